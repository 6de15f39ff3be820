//! One tenant at a connection: arenas, bytes and calls that the requests of this tenant opened, and the dispatch of requests.
//!
//! A connection of a tenant has one seat. A gateway's connection has one for each tenant whose token came with a request
//! ([`seats`](super::seats)): arenas, bytes that were handed over and open calls are a seat's, so that no request of another tenant
//! can name any of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pappus_proto::limits::{MAX_ARENA_BYTES, MAX_ITEMS};
use pappus_proto::v1::item::Source;
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};
use pappus_protocol::now_ns;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::intake::{Holder, Passed, Received};
use super::invoke::{Arrived, Prepared, Thread};
use super::invoke_error::InvokeError;
use super::replies::Replies;
use super::reply_handle::{Invocations, ReplyHandle};
use super::request_error::RequestError;
use super::sessions::OpenSessions;
use super::slow_work::SlowWorkPermit;
use super::state::RequestCtx;
use super::violation::GatewayError;
use super::{consecutive, invoke, refusals, requests, responses};
use crate::arena::Arena;
use crate::call::Completion;
use crate::client_fd::ClientFd;
use crate::device::burst::Burst;
use crate::function::Loaded;
use crate::limits::{CONNECTION_BYTES, MAX_ARENAS_PER_CONNECTION, MAX_COLD_REQUESTS};
use crate::quota::{Limit, QuotaError};
use crate::refusal::{Refusable, Refusal};
use crate::session::{Place, Turn};
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::Taken;

/// What a small request that waits is charged with: the request as decoded, and its task.
const SLOW_REQUEST_BYTES: u64 = 16 << 10;

/// A request that a task of its own does.
pub(super) struct SlowRequest {
    id: u64,
    work: SlowWork,
    /// The memory that it takes.
    memory: Taken,
}

enum SlowWork {
    /// Anything but an invocation.
    Request { body: Request, passed: Vec<ClientFd> },
    /// A call whose function is not in memory, or whose plan takes long to make.
    Prepare { handle: Arc<ReplyHandle>, arrived: Arrived, until: tokio::time::Instant },
}

/// One tenant at a connection.
#[derive(Debug)]
pub struct Seat {
    /// The tenant, and its rights.
    pub ctx: Arc<RequestCtx>,
    /// Answers to the client.
    pub replies: Arc<Replies>,
    invocations: Arc<Invocations>,
    arenas: OrderedMutex<HashMap<u64, Arc<Arena>>, { rank::ARENAS }>,
    sessions: OpenSessions,
    /// Has a permit for each slow request that is worked on.
    pub(super) cold: Arc<Semaphore>,
    /// True if other tenants have seats at the connection: no request may keep it waiting.
    beside_others: bool,
    /// The client left: no answer is read any more.
    gone: AtomicBool,
}

impl Seat {
    /// A seat at the connection whose answers go this way, at which nothing is open yet.
    pub fn new(ctx: RequestCtx, replies: Arc<Replies>, beside_others: bool) -> Arc<Self> {
        Arc::new(Self {
            ctx: Arc::new(ctx),
            invocations: Invocations::new(replies.clone()),
            replies,
            arenas: OrderedMutex::default(),
            sessions: OpenSessions::default(),
            cold: Arc::new(Semaphore::new(MAX_COLD_REQUESTS)),
            beside_others,
            gone: AtomicBool::new(false),
        })
    }

    /// Starts work on one request. Invocations of functions in memory are handed on at once; what is slow comes back,
    /// to be done by a task of its own.
    pub(super) fn dispatch(self: &Arc<Self>, received: Received, burst: &mut Burst) -> Option<SlowRequest> {
        let Received { request, passed, memory } = received;
        let id = request.id;
        let takes = match &request.body {
            Some(Request::OpenArena(_) | Request::PutBlob(_)) => passed.len() <= 1,
            Some(Request::Invoke(_)) => true,
            _ => passed.is_empty(),
        };
        if !takes {
            self.replies.send(id, refusals::to_body(&RequestError::Descriptors));
            return None;
        }
        let passed = passed.into_iter().map(|one| match one {
            Passed::Fd(fd) => Ok(fd),
            Passed::Refused(why) => Err(why),
        });
        let passed = match passed.collect::<Result<Vec<ClientFd>, _>>() {
            Ok(passed) => passed,
            Err(why) => {
                self.replies.send(id, refusals::to_body(&why));
                return None;
            }
        };
        match request.body {
            Some(body) if self.ctx.nobody && !matches!(body, Request::Status(_)) => {
                self.replies.send(id, refusals::to_body(&GatewayError::NoTenant));
            }
            Some(body) if self.ctx.looks_on && !matches!(body, Request::Status(_)) => {
                self.replies.send(id, refusals::to_body(&RequestError::LooksOn(self.ctx.uid)));
            }
            Some(Request::Invoke(message)) => return self.invoke(id, message, passed, memory, burst),
            Some(Request::Cancel(cancel)) => {
                self.cancel(cancel.request);
                self.replies.send(id, Response::Done(v1::Done {}));
            }
            Some(Request::OpenArena(_)) => self.answer(id, self.open_arena(passed)),
            Some(Request::CloseArena(close)) => self.answer(id, self.close_arena(close.arena)),
            Some(Request::CloseSession(close)) => {
                // Dropped behind the answer: a drain that waits for the session must find that sent.
                let (closed, answer) = match self.sessions.close(&self.ctx.server, close.session) {
                    Ok(closed) => (closed, Ok(Response::Done(v1::Done {}))),
                    Err(why) => (None, Err(why.into())),
                };
                self.answer(id, answer);
                drop(closed);
            }
            Some(Request::OpenSession(open))
                if let Some(function) = self.ctx.server.registry.find(&self.ctx.account, &open.function) =>
            {
                self.answer(id, self.sessions.open(&self.ctx, &function));
            }
            Some(body) => {
                let work = SlowWork::Request { body, passed };
                return match self.charge_slow(memory, SLOW_REQUEST_BYTES) {
                    Ok(memory) => Some(SlowRequest { id, work, memory }),
                    Err(why) => {
                        self.replies.send(id, refusals::to_body(&why));
                        None
                    }
                };
            }
            None => self.replies.send(id, refusals::to_body(&RequestError::Unknown)),
        }
        None
    }

    /// The memory of a request that waits, if it is not charged yet.
    fn charge_slow(&self, memory: Option<Taken>, bytes: u64) -> Result<Taken, QuotaError> {
        match memory {
            Some(memory) => Ok(memory),
            None => self.ctx.take(Limit::RequestBytes, bytes).map_err(|why| why.with_own(CONNECTION_BYTES)),
        }
    }

    /// Does a slow request in a task of its own, once the seat has a place for one more. Where other tenants would wait behind it,
    /// the request is refused instead.
    pub(super) async fn start_slow(self: Arc<Self>, slow: SlowRequest) {
        let SlowRequest { id, work, memory } = slow;
        match work {
            SlowWork::Request { body, passed } => {
                let Some(place) = self.place().await else {
                    return self.replies.send(id, refusals::to_body(&RequestError::TooManySlow));
                };
                tokio::spawn(async move {
                    let drains = matches!(body, Request::Drain(_));
                    let Some(_permit) = self.slow_work_permit().await else { return };
                    let outcome = match body {
                        Request::OpenSession(open) => self.sessions.load(&self.ctx, &open.function).await,
                        body => requests::handle(&self.ctx, body, passed).await,
                    };
                    let ends = drains && outcome.is_ok();
                    self.answer(id, outcome);
                    if ends {
                        // Only now: the answer must be on its way before the process ends.
                        self.ctx.server.end();
                    }
                    drop((place, memory));
                });
            }
            SlowWork::Prepare { handle, arrived, until } => {
                let place = match tokio::time::timeout_at(until, self.place()).await {
                    Ok(Some(place)) => place,
                    Ok(None) => return handle.refuse(refusals::to_body(&RequestError::TooManySlow)),
                    Err(_) => {
                        let deadline = invoke::deadline(&arrived.message, &self.ctx.server.settings());
                        return handle.answer(responses::never_loaded(deadline));
                    }
                };
                tokio::spawn(async move {
                    self.prepare(id, handle, arrived, until, (place, memory)).await;
                });
            }
        }
    }

    /// A place for one more slow request; none where there is none and other tenants would wait, too.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        match self.beside_others {
            true => self.cold.clone().try_acquire_owned().ok(),
            // Closed never: the semaphore lives as long as the seat.
            false => self.cold.clone().acquire_owned().await.ok(),
        }
    }

    fn answer(&self, id: u64, outcome: Result<Response, Refusal>) {
        self.replies.send(id, outcome.unwrap_or_else(|error| refusals::to_body(&*error)));
    }

    fn invoke(
        self: &Arc<Self>,
        id: u64,
        mut message: v1::Invoke,
        passed: Vec<ClientFd>,
        memory: Option<Taken>,
        burst: &mut Burst,
    ) -> Option<SlowRequest> {
        let at_ns = now_ns();
        let refuse = |error: &dyn Refusable| {
            self.replies.send(id, refusals::to_body(error));
            None
        };
        // Counted before the look at draining: a drain that begins afterwards sees it.
        let accepted = match self.ctx.account.accept() {
            Ok(accepted) => accepted,
            Err(error) => return refuse(&error),
        };
        let handle = match self.invocations.open(id, accepted, std::mem::take(&mut message.request_id)) {
            Ok(handle) => handle,
            Err(error) => return refuse(&error),
        };
        if self.ctx.server.is_draining() && !(message.session != 0 && self.ctx.server.sessions.go_on()) {
            handle.refuse(refusals::to_body(&RequestError::Draining));
            return None;
        }
        // Found now: what the client closes next must not be missing once the function is loaded.
        let arenas = self.arenas_named(&message);
        let own_bytes = CONNECTION_BYTES + memory.as_ref().map_or(0, Taken::amount);
        let mut arrived = match Arrived::new(message, passed, arenas, at_ns, own_bytes) {
            Ok(arrived) => arrived,
            Err(error) => {
                handle.refuse(refusals::to_body(&InvokeError::from(error)));
                return None;
            }
        };
        match self.sessions.line_up(arrived.message.session) {
            Ok(None) => {}
            Ok(Some(Place::Now(turn))) => arrived.turn = Some(turn),
            Ok(Some(Place::Later(turn))) => {
                match self.charge_slow(memory, SLOW_REQUEST_BYTES) {
                    Ok(memory) => drop(tokio::spawn(self.clone().wait(id, handle, arrived, turn, memory))),
                    Err(why) => handle.refuse(refusals::to_body(&why)),
                }
                return None;
            }
            Err(why) => {
                handle.refuse(refusals::to_body(&why));
                return None;
            }
        }
        self.begin(id, handle, arrived, None, memory, burst)
    }

    /// When a call's deadline passes that came now.
    fn until(&self, arrived: &Arrived) -> tokio::time::Instant {
        tokio::time::Instant::now() + invoke::deadline(&arrived.message, &self.ctx.server.settings())
    }

    /// Hands a call on at once, if its function is in memory; what is slow comes back. Without `until`, the call came now.
    fn begin(
        self: &Arc<Self>,
        id: u64,
        handle: Arc<ReplyHandle>,
        mut arrived: Arrived,
        until: Option<tokio::time::Instant>,
        memory: Option<Taken>,
        burst: &mut Burst,
    ) -> Option<SlowRequest> {
        let (registry, name) = (&self.ctx.server.registry, &arrived.message.function);
        let found = match arrived.message.checked {
            false => registry.find(&self.ctx.account, name),
            true => registry.find_checked(&self.ctx.account, name),
        };
        found.iter().for_each(|function| handle.found(function));
        let found = match found {
            Some(function) if function.steps.is_some() => {
                match self.charge_slow(memory, SLOW_REQUEST_BYTES) {
                    Ok(memory) => {
                        drop(tokio::spawn(consecutive::run(self.clone(), handle, arrived, function, memory)));
                    }
                    Err(why) => handle.refuse(refusals::to_body(&why)),
                }
                return None;
            }
            found => found,
        };
        if let Some(function) = found
            && self.submit(id, &handle, &mut arrived, &function, Thread::Socket, burst)
        {
            return None;
        }
        match self.charge_slow(memory, SLOW_REQUEST_BYTES) {
            Ok(memory) => {
                let until = until.unwrap_or_else(|| self.until(&arrived));
                Some(SlowRequest { id, work: SlowWork::Prepare { handle, arrived, until }, memory })
            }
            Err(why) => {
                handle.refuse(refusals::to_body(&why));
                None
            }
        }
    }

    /// Waits until the calls are over that came before this one in its session, then begins it.
    async fn wait(
        self: Arc<Self>,
        id: u64,
        handle: Arc<ReplyHandle>,
        mut arrived: Arrived,
        turn: oneshot::Receiver<Turn>,
        memory: Taken,
    ) {
        let until = self.until(&arrived);
        match tokio::time::timeout_at(until, turn).await {
            Ok(Ok(turn)) => arrived.turn = Some(turn),
            // Every turn is passed on, so that this is the deadline.
            Ok(Err(_)) | Err(_) => {
                let deadline = invoke::deadline(&arrived.message, &self.ctx.server.settings());
                return handle.answer(responses::never_its_turn(deadline));
            }
        }
        // Cancelled meanwhile, or its client is gone.
        if handle.is_over() {
            return;
        }
        let slow = self.begin(id, handle, arrived, Some(until), Some(memory), &mut Burst::default());
        if let Some(slow) = slow {
            self.start_slow(slow).await;
        }
    }

    /// Brings a function into memory for a call, plans the call, and hands it on.
    async fn prepare(
        self: &Arc<Self>,
        id: u64,
        handle: Arc<ReplyHandle>,
        mut arrived: Arrived,
        until: tokio::time::Instant,
        (place, memory): (OwnedSemaphorePermit, Taken),
    ) {
        let deadline = invoke::deadline(&arrived.message, &self.ctx.server.settings());
        let late = handle.answer_late(until, deadline);
        let Some(_permit) = self.slow_work_permit().await else { return };
        // Cancelled meanwhile, or overdue.
        if handle.is_over() {
            return;
        }
        let (registry, name) = (&self.ctx.server.registry, &arrived.message.function);
        let loaded = match arrived.message.checked {
            false => registry.load(self.ctx.whose(), &self.ctx.account, name).await,
            true => registry.load_checked(self.ctx.whose(), &self.ctx.account, name).await,
        };
        drop(late);
        loaded.iter().for_each(|function| handle.found(function));
        match loaded {
            // The deadline answered it meanwhile, or the client is gone.
            _ if handle.is_over() => {}
            Ok(function) if function.steps.is_some() => {
                drop((_permit, place));
                consecutive::run(self.clone(), handle, arrived, function, memory).await;
            }
            // Most plans are made in no time: no other thread has to be woken for them.
            Ok(function)
                if self.submit(
                    id,
                    &handle,
                    &mut arrived,
                    &function,
                    Thread::Socket,
                    &mut Burst::default(),
                ) => {}
            Ok(function) => {
                let (server, broken_off) = (&self.ctx.server, handle.clone());
                let _turn = server.plan_turns.begin(self.ctx.sharer()).await;
                let connection = self.clone();
                let submit = move || {
                    let burst = &mut Burst::default();
                    connection.submit(id, &handle, &mut arrived, &function, Thread::Own, burst);
                };
                if let Err(why) = server.registry.threads.run(self.ctx.whose(), submit).await {
                    broken_off.refuse(refusals::to_body(&why));
                }
            }
            Err(error) => handle.refuse(refusals::to_body(&error)),
        }
    }

    /// Hands a call on, or refuses it; false if planning would take longer than `thread` has. The worker may be
    /// told when `burst` is released.
    fn submit(
        &self,
        id: u64,
        handle: &Arc<ReplyHandle>,
        arrived: &mut Arrived,
        function: &Arc<Loaded>,
        thread: Thread,
        burst: &mut Burst,
    ) -> bool {
        let prepared = match invoke::prepare(&self.ctx, handle.clone(), arrived, function, thread) {
            Ok(prepared) => prepared,
            Err(InvokeError::PlanTakesLong) => return false,
            Err(error) => {
                handle.refuse(refusals::to_body(&error));
                return true;
            }
        };
        let Prepared { call, device, inline_bytes } = prepared;
        handle.placed(&device.metrics.seconds);
        let held = burst.to(&device.slots);
        match device.submit(call, inline_bytes, held) {
            Ok(accepted) => {
                let place = (device.clone(), accepted);
                if let Some((device, call)) = self.invocations.placed(id, handle, place) {
                    // Cancelled, or its client gone, just before the device had it.
                    device.cancel(call);
                }
            }
            Err(why) => {
                let caller = &self.ctx.account;
                handle.refuse(responses::not_accepted(caller, function, &device.config.name, why));
            }
        }
        true
    }

    /// Detaches the client from one of its calls at once; a waiting call never runs.
    fn cancel(&self, request: u64) {
        let Some(open) = self.invocations.take(request) else { return };
        if let Some((device, id)) = open.place {
            device.cancel(id);
        }
        open.handle.answer(responses::cancelled());
    }

    /// Waits until this tenant may do one more thing that takes long; none once the client is gone. The
    /// operator never waits behind tenants.
    pub(super) async fn slow_work_permit(&self) -> Option<SlowWorkPermit> {
        let permit = match self.ctx.admin {
            true => SlowWorkPermit::default(),
            false => self.ctx.server.slow_work.acquire(&self.ctx.account).await,
        };
        (!self.gone.load(Ordering::Acquire)).then_some(permit)
    }

    /// Arenas of this seat that a request names.
    fn arenas_named(&self, message: &v1::Invoke) -> Vec<Arc<Arena>> {
        let items = message.inputs.iter().flat_map(|input| &input.items);
        let inputs = items.filter_map(|item| match &item.source {
            Some(Source::Region(region)) => Some(region.arena),
            _ => None,
        });
        let outputs = message.outputs.iter().filter_map(|output| output.region.as_ref().map(|r| r.arena));
        let arenas = self.arenas();
        let mut named: Vec<Arc<Arena>> = Vec::new();
        // More than a call may have are refused later.
        for id in inputs.take(MAX_ITEMS).chain(outputs.take(MAX_ITEMS)) {
            if named.iter().all(|arena| arena.id != id)
                && let Some(arena) = arenas.get(&id)
            {
                named.push(arena.clone());
            }
        }
        named
    }

    fn arenas(&self) -> OrderedGuard<'_, HashMap<u64, Arc<Arena>>, { rank::ARENAS }> {
        self.arenas.lock()
    }

    fn open_arena(&self, mut passed: Vec<ClientFd>) -> Result<Response, Refusal> {
        let fd = passed.pop().ok_or(RequestError::NoMemfd)?;
        let memfd = fd.arena(MAX_ARENA_BYTES).map_err(RequestError::Memfd)?;
        let mut arenas = self.arenas();
        if arenas.len() >= MAX_ARENAS_PER_CONNECTION {
            return Err(RequestError::TooManyArenas.into());
        }
        let (id, account) = (self.ctx.server.next_arena(), &self.ctx.account);
        let arena = Arc::new(Arena::new(id, memfd, account, Limit::ArenaBytes)?);
        let opened = v1::ArenaOpened { arena: arena.id, bytes: arena.memfd.bytes() };
        arenas.insert(arena.id, arena);
        Ok(Response::Arena(opened))
    }

    fn close_arena(&self, id: u64) -> Result<Response, Refusal> {
        let arena = self.arenas().remove(&id);
        let arena = arena.ok_or(RequestError::NoArena(id))?;
        self.ctx.server.forget_arena(&arena);
        Ok(Response::Done(v1::Done {}))
    }

    /// Whom the memory and descriptors of requests are charged to.
    pub(super) fn holder(&self) -> Holder {
        Holder { account: self.ctx.account.clone(), operator: self.ctx.admin }
    }

    /// True if nothing is open here and nothing is worked on.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        // Tasks that work on a request of the tenant have the seat, too.
        Arc::strong_count(self) == 1
            && self.invocations.is_empty()
            && self.arenas().is_empty()
            && self.sessions.is_empty()
            && self.ctx.handed.is_empty()
    }

    /// The tenant has no seat here any more: its calls are cancelled, and what it opened is closed.
    pub(super) fn leave(&self) {
        for open in self.invocations.take_all() {
            if let Some((device, id)) = open.place {
                device.cancel(id);
            }
            open.handle.answer(responses::cancelled());
        }
        self.close_all();
    }

    /// The client is gone: its waiting calls, arenas and bytes go too.
    pub(super) fn clean_up(&self) {
        self.gone.store(true, Ordering::Release);
        for open in self.invocations.take_all() {
            open.handle.give_up();
            if let Some((device, id)) = open.place {
                device.cancel(id);
            }
        }
        self.close_all();
    }

    /// Ends arenas and bytes that were handed over.
    fn close_all(&self) {
        let arenas = std::mem::take(&mut *self.arenas());
        arenas.values().for_each(|arena| self.ctx.server.forget_arena(arena));
        self.sessions.close_all(&self.ctx.server);
        self.ctx.server.registry.connection_ended(&self.ctx.account, &self.ctx.handed);
    }
}
