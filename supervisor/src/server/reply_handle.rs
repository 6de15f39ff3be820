//! The one answer to an invocation: by itself, or in a batch with the answers to others of the same client.
//!
//! Calls that one read of a worker's pipe completed are answered together: one write for each client. Each write
//! wakes its reader, so under load one write for many costs a fraction; for a single call it is the same.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pappus_proto::Code;
use pappus_proto::limits::MAX_REQUEST_ID_BYTES;
use pappus_proto::v1::response::Body;
use pappus_protocol::now_ns;
use tokio::task::JoinSet;

use super::replies::{self, Replies};
use super::request_error::RequestError;
use super::{refusals, responses};
use crate::call::{Call, Completion, CompletionBatch, Outcome};
use crate::concurrent::{OneAnswer, OpenCall, OpenCalls, OpenError};
use crate::device::Device;
use crate::function::Loaded;
use crate::limits::MAX_CALLS_PER_CONNECTION;
use crate::metrics::calls::CallCounts;
use crate::metrics::{self, Answer, Latencies};
use crate::refusal::internal;
use crate::schedule::CallId;
use crate::tenants::{Accepted, Account};

/// Frames of one client are written once they have so many bytes.
const FULL_BYTES: usize = 64 << 10;

/// Where an open invocation waits or runs, once its function is loaded.
pub type DevicePlace = (Arc<Device>, CallId);

/// Invocations of one connection that have no answer yet.
#[derive(Debug)]
pub struct Invocations {
    replies: Arc<Replies>,
    open: OpenCalls<ReplyHandle, DevicePlace>,
}

impl Invocations {
    /// None yet; their answers go this way.
    pub fn new(replies: Arc<Replies>) -> Arc<Self> {
        Arc::new(Self { replies, open: OpenCalls::new(MAX_CALLS_PER_CONNECTION) })
    }

    /// A new one; refused if the id is taken or there are too many.
    pub fn open(
        self: &Arc<Self>,
        request: u64,
        accepted: Accepted,
        request_id: String,
    ) -> Result<Arc<ReplyHandle>, RequestError> {
        if request_id.len() > MAX_REQUEST_ID_BYTES || !request_id.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(RequestError::RequestId);
        }
        let handle = || Arc::new(ReplyHandle::new(self.clone(), request, accepted, request_id));
        let opened = self.open.open(request, handle);
        opened.map_err(|error| match error {
            OpenError::TooMany => RequestError::TooManyCalls,
            OpenError::IdInUse => RequestError::IdInUse,
        })
    }

    /// A device took the invocation over. The place comes back if it was answered or ended meanwhile: the caller
    /// cancels it there.
    pub fn placed(&self, request: u64, handle: &ReplyHandle, place: DevicePlace) -> Option<DevicePlace> {
        self.open.placed(request, handle, place)
    }

    /// Takes an invocation out, to end it.
    pub fn take(&self, request: u64) -> Option<OpenCall<ReplyHandle, DevicePlace>> {
        self.open.take(request)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes all invocations out: the client is gone.
    pub fn take_all(&self) -> Vec<OpenCall<ReplyHandle, DevicePlace>> {
        self.open.take_all()
    }
}

/// The right to answer one invocation, and whether that was done. It exists from the moment the invocation is
/// accepted, so every way to end it, a function that does not load included, ends here once.
#[derive(Debug)]
pub struct ReplyHandle {
    of: Arc<Invocations>,
    request: u64,
    /// What the client calls the request, for the log; empty if it has no name.
    request_id: String,
    /// When the invocation arrived, in `CLOCK_MONOTONIC` nanoseconds.
    arrived_ns: u64,
    /// Where the time to the answer is recorded, once a device is chosen.
    latencies: OnceLock<Arc<Latencies>>,
    /// Where the answer is counted beside its tenant's counts, once the function is found; none where that is not exported.
    function_calls: OnceLock<Arc<CallCounts>>,
    one_answer: OneAnswer,
    /// Counts the invocation among its tenant's until it is over, and as accepted until this is dropped.
    accepted: Accepted,
}

impl ReplyHandle {
    /// Not answered yet.
    pub fn new(of: Arc<Invocations>, request: u64, accepted: Accepted, request_id: String) -> Self {
        of.replies.owe();
        Self {
            of,
            request,
            request_id,
            arrived_ns: now_ns(),
            latencies: OnceLock::new(),
            function_calls: OnceLock::new(),
            one_answer: OneAnswer::new(),
            accepted,
        }
    }

    /// The function was found: from now on, the answer counts among those of the function.
    pub fn found(&self, function: &Loaded) {
        // An invocation is of one function.
        function.calls.iter().for_each(|calls| drop(self.function_calls.set(calls.clone())));
    }

    /// A device was chosen: from now on, the answer counts among those of the device.
    pub fn placed(&self, latencies: &Arc<Latencies>) {
        // An invocation is placed once.
        let _ = self.latencies.set(latencies.clone());
    }

    /// Gives the answer, unless one was given. What was begun for the call may go on for a while.
    pub fn answer(&self, body: Body) {
        self.answer_for(None, body);
    }

    /// The same, for a call that was made of the invocation.
    fn answer_for(&self, call: Option<&Call>, body: Body) {
        if self.give_up() {
            keep_state(call, &body);
            self.record(call, &body);
            self.forget();
            self.of.replies.send(self.request, body);
        }
    }

    /// Says in time that the deadline passed while a function was being loaded, which goes on; until the watch is dropped. Loading keeps
    /// its thread busy, so another task watches.
    pub fn answer_late(self: &Arc<Self>, until: tokio::time::Instant, deadline: Duration) -> JoinSet<()> {
        let (mut late, watched) = (JoinSet::new(), self.clone());
        late.spawn(async move {
            tokio::time::sleep_until(until).await;
            watched.answer(responses::never_loaded(deadline));
        });
        late
    }

    /// Gives the answer to an invocation that several calls were made of, and is over.
    pub fn finish(&self, body: Body) {
        self.accepted.end();
        self.answer(body);
    }

    /// Gives the answer to an invocation that is not accepted, unless one was given. It has no latency.
    pub fn refuse(&self, body: Body) {
        if self.give_up() {
            self.accepted.end();
            self.note(None, &body);
            self.forget();
            self.of.replies.send(self.request, body);
        }
    }

    /// Appends the answer's frame to `frames`, which are sent next; unless one was given. The call is over.
    fn append(&self, call: &Call, body: Body, frames: &mut Vec<u8>) {
        if self.give_up() {
            keep_state(Some(call), &body);
            self.accepted.end();
            self.record(Some(call), &body);
            self.forget();
            replies::append(frames, self.request, body);
        }
    }

    /// It is about to be answered; its id is free, unless it is in use again already.
    fn forget(&self) {
        self.of.open.close(self.request, self);
    }

    /// Counts the answer with its tenant, and with its function if that was found; and logs an error under the name that the
    /// client gave the request.
    fn note(&self, call: Option<&Call>, body: &Body) {
        if let Body::Error(error) = body {
            let (caller, request) = (&*self.account().name, &*self.request_id);
            let function = call.map(|call| &*call.function.record.name);
            tracing::debug!(
                request,
                caller,
                function,
                code = error.code().as_str_name(),
                "a call got an error"
            );
        }
        let whose = [self.account().calls.as_ref(), self.function_calls.get()];
        whose.into_iter().flatten().for_each(|calls| calls.answered(body));
    }

    fn record(&self, call: Option<&Call>, body: &Body) {
        self.note(call, body);
        // Where nothing is exported, the clock need not be read.
        let Some(unplaced) = metrics::unplaced() else { return };
        let latencies = self.latencies.get().map_or(unplaced, |latencies| latencies);
        let answer = match body {
            Body::Error(error) => match error.code() {
                Code::DeadlineExceeded => Answer::Deadline,
                Code::Cancelled => Answer::Cancelled,
                _ => Answer::Failed,
            },
            _ => Answer::Completed,
        };
        latencies.record(answer, now_ns().saturating_sub(self.arrived_ns));
    }

    /// The handle of a call whose answer goes to a client's socket.
    pub(super) fn of(call: &Call) -> Option<&Self> {
        handle_of(call)
    }

    /// Another device has the call now. The place comes back if the call was answered or ended meanwhile: the caller
    /// cancels it there.
    pub(super) fn moved(&self, place: DevicePlace) -> Option<DevicePlace> {
        self.of.placed(self.request, self, place)
    }

    /// Makes sure that no answer comes any more; false if there was one already.
    pub fn give_up(&self) -> bool {
        self.one_answer.claim()
    }
}

/// A call that is answered with its outputs has changed the state of its session.
fn keep_state(call: Option<&Call>, body: &Body) {
    if let (Some(turn), Body::Invoked(_)) = (call.and_then(|call| call.turn.as_ref()), body) {
        turn.keep();
    }
}

impl Completion for ReplyHandle {
    fn complete(&self, call: &Call, device: &str, outcome: Outcome) {
        self.accepted.end();
        count(call, &outcome);
        self.answer_for(Some(call), responses::to_body(call, device, outcome, now_ns()));
    }

    fn is_over(&self) -> bool {
        self.one_answer.is_claimed()
    }

    fn account(&self) -> &Arc<Account> {
        self.accepted.account()
    }

    fn new_batch(&self) -> Box<dyn CompletionBatch> {
        Box::new(ReplyBatch::default())
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        self.of.replies.paid();
    }
}

/// Calls that ended and whose clients do not know yet; kept for its capacity.
#[derive(Debug, Default)]
struct ReplyBatch {
    ended: Vec<EndedCall>,
    frames: Vec<u8>,
}

#[derive(Debug)]
struct EndedCall {
    call: Arc<Call>,
    /// Present until it is turned into an answer.
    outcome: Option<Outcome>,
    /// Tells clients apart.
    client: usize,
}

/// Where the answer to a call goes, if that is a client's socket.
fn handle_of(call: &Call) -> Option<&ReplyHandle> {
    let reply: &dyn Any = &*call.reply;
    reply.downcast_ref()
}

/// Counts a call that did not end well; the device counts the others, with their time.
fn count(call: &Call, outcome: &Outcome) {
    if !matches!(outcome, Outcome::Done { .. }) {
        call.function.uses.failed();
    }
}

impl CompletionBatch for ReplyBatch {
    fn push(&mut self, call: Arc<Call>, outcome: Outcome) {
        let client = handle_of(&call).map_or(0, |handle| Arc::as_ptr(&handle.of.replies) as usize);
        self.ended.push(EndedCall { call, outcome: Some(outcome), client });
    }

    fn flush(&mut self, device: &str, now_ns: u64) {
        // Stable: each client gets its answers in the order in which its calls ended.
        self.ended.sort_by_key(|ended| ended.client);
        for group in self.ended.chunk_by_mut(|a, b| a.client == b.client) {
            answer(group, device, now_ns, &mut self.frames);
        }
        // Only now: draining waits for calls to be gone, and must find their answers sent.
        self.ended.clear();
        self.frames.shrink_to(2 * FULL_BYTES);
    }
}

/// Frames of answers that one client gets next, sent when this is dropped: also after a panic, each client gets its own
/// and no other's.
struct ToClient<'a> {
    replies: Option<&'a Arc<Replies>>,
    frames: &'a mut Vec<u8>,
}

impl ToClient<'_> {
    fn send(&mut self) {
        // Taken first: what panics here is not tried again.
        if let Some(replies) = self.replies.take() {
            replies.send_frames(self.frames);
        }
        self.frames.clear();
    }
}

impl Drop for ToClient<'_> {
    fn drop(&mut self) {
        self.send();
    }
}

/// Answers calls of one client.
fn answer(group: &mut [EndedCall], device: &str, now_ns: u64, frames: &mut Vec<u8>) {
    let mut to_client = ToClient { replies: None, frames };
    for EndedCall { call, outcome, .. } in group {
        let outcome = outcome.take();
        let Some(handle) = handle_of(call) else {
            outcome.into_iter().for_each(|outcome| call.reply.complete(call, device, outcome));
            continue;
        };
        let body = match outcome {
            Some(outcome) => {
                count(call, &outcome);
                responses::to_body(call, device, outcome, now_ns)
            }
            None if handle.is_over() => continue,
            // Its answer panicked before.
            None => refusals::to_body(&internal("cannot make the answer", "a panic")),
        };
        to_client.replies = Some(&handle.of.replies);
        handle.append(call, body, to_client.frames);
        if to_client.frames.len() >= FULL_BYTES {
            to_client.send();
        }
    }
}
