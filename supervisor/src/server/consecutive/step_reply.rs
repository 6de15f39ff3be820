//! Where the answer to one call of a composition goes: to the task that runs the composition. The composition's own answer is
//! another one: whoever ends that ends the call.

use std::any::Any;
use std::sync::Arc;

use pappus_proto::v1::response::Body;
use pappus_protocol::now_ns;
use tokio::sync::mpsc;

use crate::call::{Call, Completion, CompletionBatch, Outcome};
use crate::server::reply_handle::{DevicePlace, ReplyHandle};
use crate::server::responses;
use crate::tenants::Account;

/// The right to answer one call of a composition.
#[derive(Debug)]
pub(in crate::server) struct StepReply {
    composition: Arc<ReplyHandle>,
    /// Has room for the one answer.
    answer: mpsc::Sender<Body>,
}

impl StepReply {
    /// Not answered yet; the answer comes out of the other end, or nothing where the composition was ended.
    pub(super) fn new(composition: Arc<ReplyHandle>) -> (Arc<Self>, mpsc::Receiver<Body>) {
        let (answer, answered) = mpsc::channel(1);
        (Arc::new(Self { composition, answer }), answered)
    }

    /// The reply of a call that is a composition's.
    pub(in crate::server) fn of(call: &Call) -> Option<&Self> {
        let reply: &dyn Any = &*call.reply;
        reply.downcast_ref()
    }

    /// Gives the answer, unless one was given.
    pub(in crate::server) fn answer(&self, body: Body) {
        // There is room for the first alone.
        let _ = self.answer.try_send(body);
    }

    /// A device has the call now. The place comes back if the composition was ended meanwhile: the caller cancels the call there.
    pub(in crate::server) fn placed(&self, place: DevicePlace) -> Option<DevicePlace> {
        self.composition.moved(place)
    }
}

impl Completion for StepReply {
    fn complete(&self, call: &Call, device: &str, outcome: Outcome) {
        if !matches!(outcome, Outcome::Done { .. }) {
            call.function.uses.failed();
        }
        let body = responses::to_body(call, device, outcome, now_ns());
        call.function.calls.iter().for_each(|calls| calls.answered(&body));
        self.answer(body);
    }

    fn is_over(&self) -> bool {
        self.composition.is_over() || self.answer.capacity() == 0 || self.answer.is_closed()
    }

    fn account(&self) -> &Arc<Account> {
        self.composition.account()
    }

    fn new_batch(&self) -> Box<dyn CompletionBatch> {
        self.composition.new_batch()
    }
}
