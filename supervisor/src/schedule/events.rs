//! What may happen to a device, as its scheduler is told: each event with what the scheduler replies.

use super::Scheduler;
use super::endings::Outlast;
use super::limits::{Limits, Policy};
use super::retry::{Attempts, Withdrawn};
use super::types::{
    Action, Call, CallId, CallSpec, Domain, Ended, Loss, NotNow, Shape, TenantShare, Verdict,
};
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

/// Defines events: what each tells, what the scheduler replies, and its method that takes what is told.
macro_rules! events {
    ($($(#[$doc:meta])* $name:ident $(<$call:ident>)? { $($field:ident: $type:ty),* } -> $reply:ty = $method:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            #[allow(missing_docs, reason = "its name says what a field is, or the text of the event")]
            pub struct $name $(<$call>)? { $(pub $field: $type,)* }

            impl<C: Call> Event<C> for $name $(<$call>)? {
                type Reply = $reply;

                fn apply(self, scheduler: &mut Scheduler<C>) -> $reply {
                    scheduler.$method($(self.$field),*)
                }
            }
        )*
    };
}

events! {
    /// A new call: its id, or why it is not accepted.
    Submit<C> { call: C, spec: CallSpec, limits: Limits } -> Result<CallId, NotNow> = submit;

    /// A call that waited on another device: its id, or why its function is refused here. How much may wait does not matter to
    /// a call that was accepted.
    Adopt<C> { call: C, spec: CallSpec, attempts: Attempts } -> Result<CallId, NotNow> = adopt;

    /// A call that waits is to wait on another device; none if it does not wait.
    Withdraw { id: CallId } -> Option<Withdrawn<C>> = withdraw;

    /// The process in a worker's slot is gone, or takes no more calls: the calls that were in it, oldest first. Once
    /// nothing writes to their regions any more, [`Buried`] follows for each.
    Gone { worker: WorkerId } -> Vec<(CallId, C)> = gone;

    /// A worker answered a call: the call. None means that the worker does not have it.
    Finished { worker: WorkerId, id: CallId, verdict: Verdict } -> Option<C> = finished;

    /// A worker answered a job well, of which this call is the first: it was on the device for so long, as the worker says. [`Finished`]
    /// follows for each of its calls.
    Ran { worker: WorkerId, id: CallId, device_ns: u64 } -> () = ran;

    /// A tenant is given this of the device from now on.
    SetShare { tenant: TenantId, share: TenantShare } -> () = set_share;

    /// A call's client gave it up: the call, if it still waited. One that runs goes on until the cancel grace period
    /// ends, and its result is dropped.
    Cancel { id: CallId } -> Option<C> = cancel;

    /// The process of a lost call is gone, and what it wrote is being cleared: until when that may take. [`Buried`]
    /// follows once it is done; if it is not done then, the call is over. None if it is over already.
    Clearing { id: CallId } -> Option<u64> = clearing;

    /// Nothing is left of a lost call's attempt: the call waits again, or is over, which is replied with the reason.
    Buried { id: CallId, loss: Loss } -> Option<(C, Ended)> = buried;

    /// A process is in a worker's slot and ready for calls.
    Ready { worker: WorkerId, generation: Generation } -> () = ready;

    /// A process that served is reaped, after [`Gone`]: its memory is free. It ended `from_outside` if neither Pappus nor the process itself
    /// ended the process.
    Reaped { worker: WorkerId, generation: Generation, from_outside: bool } -> () = reaped;

    /// A worker gave back the memory that it was told first of, and all its lanes have so much left; false means that it was not told, or
    /// has more left than it may.
    GaveBack { worker: WorkerId, left_bytes: u64 } -> bool = gave_back;

    /// What a process takes of the device's memory for itself is something else from now on: nothing before it begins, and once it is reaped.
    ContextChanged { before: u64, now: u64 } -> () = context_changed;

    /// A worker was not told to load weights after all.
    NotSent { worker: WorkerId, function: FunctionId } -> () = not_sent;

    /// Weights that a worker was told to load do not load there.
    NotLoaded { worker: WorkerId, function: FunctionId } -> () = not_loaded;

    /// A worker let weights go, as it was told.
    WeightsLeft { worker: WorkerId, function: FunctionId } -> () = weights_left;

    /// A function could not be loaded in a worker: the worker forgets the function, which its next call there loads afresh.
    LoadFailed { worker: WorkerId, function: FunctionId } -> () = uninstall;

    /// Workers that serve a domain are to forget a function.
    Uninstall { domain: Domain, function: FunctionId } -> () = uninstall_for;

    /// A process needs device memory for itself before any call: true if it has so much from now on. If not, the process waits,
    /// and asks again. It is `urgent` if a worker's slot or a registration waits for the process.
    ContextWanted { bytes: u64, urgent: bool } -> bool = context_wanted;

    /// So many standbys are ready to take a slot.
    StandbysReady { count: usize } -> () = standbys_ready;

    /// Settings of workers changed: they are to be told.
    SettingsChanged {} -> () = settings_changed;

    /// A worker forgot the domain that it served; false means that it was not asked to, or took too long.
    Scrubbed { worker: WorkerId } -> bool = scrubbed;

    /// A call failed in a worker's process: it serves no other domain.
    Tainted { worker: WorkerId } -> () = taint;

    /// A worker's lanes run empty for the next worker; false means that it does not have that turn.
    Yielding { worker: WorkerId, turn: TurnId } -> bool = yielding;

    /// A worker ended a call whose time was over, and cleared what the call wrote.
    Outlasted { worker: WorkerId, id: CallId } -> Outlast = outlasted;

    /// A job of several calls failed, or could not be handed over: this call of it runs again by itself. False if it has to be answered.
    FellApart { worker: WorkerId, id: CallId } -> bool = fell_apart;

    /// A worker gives its turn back, of which it used so much device time, and has answered so many calls whose [`Finished`] follows;
    /// false means that it does not have that turn.
    Yielded { worker: WorkerId, turn: TurnId, used_ns: u64, answered: u64 } -> bool = yielded;

    /// All processes of an epoch are about to be gone: nothing more starts in them. [`Gone`] follows for each.
    EpochEnded {} -> () = epoch_ended;

    /// Failures are answered otherwise from now on.
    SetPolicy { policy: Policy } -> () = set_policy;

    /// The device is set up otherwise from now on, and `remakes` all its processes, or those that have other lanes only. Processes that are
    /// [`Ready`] afterwards are made for it. What is known of shared workers, faults, scrubs and weights stays, and so do turns.
    Resize { to: Shape, remakes: bool } -> () = resize;

    /// A tenant may have so much device memory from now on, for calls and weights together, or as much as there is.
    /// [`LimitsChanged`] makes it count for calls that wait.
    Allow { tenant: TenantId, most_bytes: Option<u64> } -> () = allow;

    /// Limits of callers changed: what may start now does.
    LimitsChanged {} -> () = resume;

    /// A function is gone for good: no worker keeps it.
    FunctionGone { function: FunctionId } -> () = function_gone;

    /// Time passed; due at [`Scheduler::next_deadline_ns`] at the latest.
    Tick {} -> () = tick;
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
