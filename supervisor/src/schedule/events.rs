//! What may happen to a device, as its scheduler is told: each event with what the scheduler replies.

use super::Scheduler;
use super::endings::Outlast;
use super::policy::{Limits, Policy};
use super::retry::{Attempts, Withdrawn};
use super::types::{Action, Call, CallId, CallSpec, Domain, Ended, Loss, NotNow, Size, TenantShare, Verdict};
use crate::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};

/// An event, see [`Scheduler::handle`].
pub trait Event<C: Call> {
    /// What the reporter of the event learns, beside the actions that follow.
    type Reply;

    /// Changes the scheduler's state.
    #[doc(hidden)]
    fn apply(self, scheduler: &mut Scheduler<C>) -> Self::Reply;
}

impl<C: Call> Scheduler<C> {
    /// Something happened: decides what follows from it. What is to be done is appended to `actions`.
    pub fn handle<E: Event<C>>(&mut self, now_ns: u64, event: E, actions: &mut Vec<Action<C>>) -> E::Reply {
        self.now_ns = now_ns;
        std::mem::swap(&mut self.actions, actions);
        let reply = event.apply(self);
        if self.resizing {
            self.go_on_resizing();
        }
        self.try_exclusive();
        while let Some(memory) = self.book.weights.take_released() {
            self.actions.push(Action::Release { memory });
        }
        std::mem::swap(&mut self.actions, actions);
        reply
    }
}

/// Defines an event and which method of the scheduler handles it.
macro_rules! event {
    (
        $(#[$doc:meta])* $name:ident $(<$call:ident>)? { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } -> $reply:ty,
        |$event:ident, $scheduler:ident| $handle:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name $(<$call>)? { $($(#[$field_doc])* pub $field: $type,)* }

        impl<C: Call> Event<C> for $name $(<$call>)? {
            type Reply = $reply;

            fn apply(self, $scheduler: &mut Scheduler<C>) -> $reply {
                let $event = self;
                $handle
            }
        }
    };
}

event! {
    /// A new call: its id, or why it is not accepted.
    Submit<C> {
        /// The call.
        call: C,
        /// What is to be known of it.
        spec: CallSpec,
        /// How much may wait.
        limits: Limits,
    } -> Result<CallId, NotNow>,
    |event, scheduler| {
        scheduler.accept(event.call, event.spec, Some(event.limits), Attempts::default())
    }
}

event! {
    /// A call that waited on another device: its id, or why its function is refused here. How much may wait does not matter to
    /// a call that was accepted.
    Adopt<C> {
        /// The call.
        call: C,
        /// What is to be known of it.
        spec: CallSpec,
        /// What is known of its attempts there.
        attempts: Attempts,
    } -> Result<CallId, NotNow>,
    |event, scheduler| scheduler.accept(event.call, event.spec, None, event.attempts)
}

event! {
    /// A call that waits is to wait on another device; none if it does not wait.
    Withdraw {
        /// The call.
        id: CallId,
    } -> Option<Withdrawn<C>>,
    |event, scheduler| scheduler.withdraw(event.id)
}

event! {
    /// The process in a worker's slot is gone, or takes no more calls: the calls that were in it, oldest first. Once
    /// nothing writes to their regions any more, [`Buried`] follows for each.
    Gone {
        /// Which slot.
        worker: WorkerId,
    } -> Vec<(CallId, C)>,
    |event, scheduler| scheduler.gone(event.worker)
}

event! {
    /// A worker answered a call: the call. None means that the worker does not have it.
    Finished {
        /// The worker.
        worker: WorkerId,
        /// The call.
        id: CallId,
        /// How it ended.
        verdict: Verdict,
    } -> Option<C>,
    |event, scheduler| {
        scheduler.finished(event.worker, event.id, event.verdict)
    }
}

event! {
    /// A worker answered a job well: [`Finished`] follows for each of its calls.
    Ran {
        /// The worker.
        worker: WorkerId,
        /// The job's first call.
        id: CallId,
        /// How long the job was on the device, as its worker says.
        device_ns: u64,
    } -> (),
    |event, scheduler| scheduler.ran(event.worker, event.id, event.device_ns)
}

event! {
    /// A tenant is given this of the device from now on.
    SetShare {
        /// Who.
        tenant: TenantId,
        /// What.
        share: TenantShare,
    } -> (),
    |event, scheduler| scheduler.set_share(event.tenant, event.share)
}

event! {
    /// A call's client gave it up: the call, if it still waited. One that runs goes on until the cancel grace period
    /// ends, and its result is dropped.
    Cancel {
        /// The call.
        id: CallId,
    } -> Option<C>,
    |event, scheduler| scheduler.cancel(event.id)
}

event! {
    /// The process of a lost call is gone, and what it wrote is being cleared: until when that may take. [`Buried`]
    /// follows once it is done; if it is not done then, the call is over. None if it is over already.
    Clearing {
        /// The call.
        id: CallId,
    } -> Option<u64>,
    |event, scheduler| scheduler.clearing(event.id)
}

event! {
    /// Nothing is left of a lost call's attempt: the call waits again, or is over, which is replied with the reason.
    Buried {
        /// The call.
        id: CallId,
        /// How it was lost.
        loss: Loss,
    } -> Option<(C, Ended)>,
    |event, scheduler| scheduler.buried(event.id, event.loss)
}

event! {
    /// A process is in a worker's slot and ready for calls.
    Ready {
        /// Which slot.
        worker: WorkerId,
        /// Names the process among those of the slot.
        generation: Generation,
    } -> (),
    |event, scheduler| scheduler.ready(event.worker, event.generation)
}

event! {
    /// A process that served is reaped, after [`Gone`]: its memory is free.
    Reaped {
        /// Where it served.
        worker: WorkerId,
        /// Which process.
        generation: Generation,
        /// True if neither Pappus nor the process itself ended the process.
        from_outside: bool,
    } -> (),
    |event, scheduler| {
        scheduler.reaped(event.worker, event.generation, event.from_outside)
    }
}

event! {
    /// A worker gave back the memory that it was told first of; false means that it was not told, or has more left
    /// than it may.
    GaveBack {
        /// The worker.
        worker: WorkerId,
        /// What all its lanes have.
        left_bytes: u64,
    } -> bool,
    |event, scheduler| scheduler.gave_back(event.worker, event.left_bytes)
}

event! {
    /// What a process takes of the device's memory for itself is something else from now on.
    ContextChanged {
        /// Bytes that it took: none if it begins.
        before: u64,
        /// Bytes that it takes: none once it is reaped.
        now: u64,
    } -> (),
    |event, scheduler| {
        scheduler.context_changed(event.before, event.now)
    }
}

/// A worker has weights that it was told to load: false means that it was not told to.
#[derive(Debug, Clone, Copy)]
pub struct Loaded<M> {
    /// The worker.
    pub worker: WorkerId,
    /// Whose weights.
    pub function: FunctionId,
    /// What names their memory, if the worker made it for all.
    pub memory: Option<M>,
    /// What they take.
    pub bytes: u64,
}

impl<C: Call> Event<C> for Loaded<C::Memory> {
    type Reply = bool;

    fn apply(self, scheduler: &mut Scheduler<C>) -> bool {
        scheduler.loaded(self)
    }
}

event! {
    /// A worker was not told to load weights after all.
    NotSent {
        /// The worker.
        worker: WorkerId,
        /// Whose weights.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.not_sent(event.worker, event.function)
}

event! {
    /// Weights that a worker was told to load do not load there.
    NotLoaded {
        /// The worker.
        worker: WorkerId,
        /// Whose weights.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.not_loaded(event.worker, event.function)
}

event! {
    /// A worker let weights go, as it was told.
    WeightsLeft {
        /// The worker.
        worker: WorkerId,
        /// Whose weights.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.weights_left(event.worker, event.function)
}

event! {
    /// A function could not be loaded in a worker: the worker forgets the function, which its next call there loads afresh.
    LoadFailed {
        /// The worker.
        worker: WorkerId,
        /// Which function.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.uninstall(event.worker, event.function)
}

event! {
    /// Workers that serve a domain are to forget a function.
    Uninstall {
        /// The domain.
        domain: Domain,
        /// Which function.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.uninstall_for(event.domain, event.function)
}

event! {
    /// A process needs device memory for itself before any call: true if it has so much from now on. If not, the process waits,
    /// and asks again.
    ContextWanted {
        /// Bytes.
        bytes: u64,
        /// True if a worker's slot waits for the process.
        urgent: bool,
    } -> bool,
    |event, scheduler| {
        scheduler.context_wanted(event.bytes, event.urgent)
    }
}

event! {
    /// So many standbys are ready to take a slot.
    StandbysReady {
        /// How many.
        count: usize,
    } -> (),
    |event, scheduler| scheduler.standbys_ready(event.count)
}

event! {
    /// Settings of workers changed: they are to be told.
    SettingsChanged {} -> (),
    |_event, scheduler| scheduler.settings_changed()
}

event! {
    /// A worker forgot the domain that it served; false means that it was not asked to, or took too long.
    Scrubbed {
        /// The worker.
        worker: WorkerId,
    } -> bool,
    |event, scheduler| scheduler.scrubbed(event.worker)
}

event! {
    /// A call failed in a worker's process: it serves no other domain.
    Tainted {
        /// The worker.
        worker: WorkerId,
    } -> (),
    |event, scheduler| scheduler.workers[event.worker].tainted = true
}

event! {
    /// A worker's lanes run empty for the next worker; false means that it does not have that turn.
    Yielding {
        /// The worker.
        worker: WorkerId,
        /// Its turn.
        turn: TurnId,
    } -> bool,
    |event, scheduler| {
        let yielding = scheduler.turn(|turns, orders| turns.yielding(event.worker, event.turn, orders));
        yielding.unwrap_or(false)
    }
}

event! {
    /// A worker ended a call whose time was over, and cleared what the call wrote.
    Outlasted {
        /// The worker.
        worker: WorkerId,
        /// The call.
        id: CallId,
    } -> Outlast,
    |event, scheduler| scheduler.outlasted(event.worker, event.id)
}

event! {
    /// A job of several calls failed, or could not be handed over: this call of it runs again by itself. False if it has to be answered.
    FellApart {
        /// The worker.
        worker: WorkerId,
        /// The call.
        id: CallId,
    } -> bool,
    |event, scheduler| scheduler.fell_apart(event.worker, event.id)
}

event! {
    /// A worker gives its turn back; false means that it does not have that turn.
    Yielded {
        /// The worker.
        worker: WorkerId,
        /// Its turn.
        turn: TurnId,
        /// Device time that it used.
        used_ns: u64,
        /// Calls that it answered and whose [`Finished`] follows.
        answered: u64,
    } -> bool,
    |event, scheduler| scheduler.yielded(event.worker, event.turn, (event.used_ns, event.answered))
}

event! {
    /// All processes of an epoch are about to be gone: nothing more starts in them. [`Gone`] follows for each.
    EpochEnded {} -> (),
    |_event, scheduler| scheduler.epoch_ended()
}

event! {
    /// Failures are answered otherwise from now on.
    SetPolicy {
        /// How.
        policy: Policy,
    } -> (),
    |event, scheduler| scheduler.set_policy(event.policy)
}

event! {
    /// The device is set up otherwise from now on. Processes that are [`Ready`] afterwards are made for it.
    Resize {
        /// How.
        to: Size,
    } -> (),
    |event, scheduler| scheduler.resize(event.to)
}

event! {
    /// A tenant may have so much device memory from now on, for calls and weights together, or as much as there is.
    /// [`LimitsChanged`] makes it count for calls that wait.
    Allow {
        /// Who.
        tenant: TenantId,
        /// Bytes.
        most_bytes: Option<u64>,
    } -> (),
    |event, scheduler| scheduler.book.allow(event.tenant, event.most_bytes)
}

event! {
    /// Limits of callers changed: what may start now does.
    LimitsChanged {} -> (),
    |_event, scheduler| scheduler.resume()
}

event! {
    /// A function is gone for good: no worker keeps it.
    FunctionGone {
        /// Which.
        function: FunctionId,
    } -> (),
    |event, scheduler| scheduler.function_gone(event.function)
}

event! {
    /// Time passed; due at [`Scheduler::next_deadline_ns`] at the latest.
    Tick {} -> (),
    |_event, scheduler| scheduler.tick()
}
