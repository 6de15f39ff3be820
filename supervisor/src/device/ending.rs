//! Calls end that workers answered. The answers of one read start lanes' next calls with one write to a worker, and reach each
//! client by one: each write wakes its reader, so under load one write for many costs a fraction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{FaultCode, now_ns};

use super::commands::CommandRunner;
use super::decisions::{Actions, Decisions};
use super::panics::contained;
use super::unusable::Unusable;
use super::unwritten::{FULL_BYTES, Unwritten};
use super::worker_slots::WorkerSlots;
use crate::call::{Call, CompletionBatch, Outcome};
use crate::config::DeviceConfig;
use crate::ids::WorkerId;
use crate::metrics::DeviceMetrics;
use crate::schedule::events::{Finished, Outlasted, Ran, Tainted};
use crate::schedule::{CallId, Verdict};

/// How a worker says that a call ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer<'a> {
    /// Well.
    Done(&'a Done),
    /// With a fault.
    Failed(&'a FaultRef<'a>),
}

/// Ends the calls of one device that its workers answered.
#[derive(Debug)]
pub(super) struct Completer {
    pub(super) config: Arc<DeviceConfig>,
    pub(super) metrics: Arc<DeviceMetrics>,
    pub(super) slots: Arc<WorkerSlots>,
    pub(super) decisions: Arc<Decisions>,
    pub(super) commands: Arc<CommandRunner>,
}

/// What the answers of one read of a worker's pipe led to; kept for its capacity. Where a panic comes between
/// [`Batch::finish`] and [`Batch::settle`], what is left is done when it is dropped: its calls are over for the
/// scheduler, so nothing else would answer them.
#[derive(Debug)]
pub(super) struct Batch {
    completer: Arc<Completer>,
    unwritten: Unwritten,
    actions: Actions,
    /// Calls that are over and whose clients do not know yet.
    completions: Option<Box<dyn CompletionBatch>>,
    /// True if a call ended.
    ended: bool,
    /// Bytes of their staged outputs.
    staged_bytes: usize,
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.ended && self.actions.is_empty() {
            return;
        }
        // A part that panicked may do so again: the next part is done all the same, and nothing twice.
        for part in [Self::carry_out, Self::release, Self::settle] {
            if let Err(why) = contained(|| part(self)) {
                tracing::error!("not all that follows from a worker's answers is done: {why}");
            }
        }
    }
}

impl Batch {
    /// Of a worker of the device that `completer` belongs to.
    pub(super) fn new(completer: &Arc<Completer>) -> Self {
        Self {
            completer: completer.clone(),
            unwritten: Unwritten::default(),
            actions: Actions::default(),
            completions: None,
            ended: false,
            staged_bytes: 0,
        }
    }

    fn carry_out(&mut self) {
        self.completer.commands.carry_out(&mut self.actions, Some(&mut self.unwritten));
    }

    fn release(&mut self) {
        self.completer.slots.release(&mut self.unwritten);
    }

    /// A worker answered a call: the lane's next call is started, and the client is answered, by
    /// [`Batch::settle`] at the latest, which must follow.
    pub(super) fn finish(
        &mut self,
        worker: WorkerId,
        id: CallId,
        outcome: Answer<'_>,
    ) -> Result<(), Unusable> {
        if self.begins_again(worker, id, outcome) {
            self.carry_out();
            return Ok(());
        }
        let Self { completer, actions, .. } = self;
        let done = matches!(outcome, Answer::Done(_));
        let found = completer.decisions.decide(actions, |deciding| {
            let (call, lane) = deciding.running_call(worker, id)?;
            let call = call.clone();
            // Nothing has to be done before the lane is free: one lock is enough.
            let free = done && !is_staged(&call);
            if let Answer::Done(timings) = outcome {
                // Time that a caller waited for its own sake is no cost of its calls on this device.
                if let Some(routed) = &call.routed
                    && !deciding.may_have_held(deciding.now_ns(), call.domain.caller)
                {
                    routed.ran(timings.on_device());
                }
                let device_ns = u64::try_from(timings.on_device().as_nanos()).unwrap_or(u64::MAX);
                deciding.handle(Ran { worker, id, device_ns });
            }
            if free {
                deciding.handle(Finished { worker, id, verdict: Verdict::Well });
            }
            Some((call, lane, free))
        });
        let (call, lane, free) = found.ok_or(Unusable::UnknownCall)?;
        let ended = match outcome {
            Answer::Done(timings) => {
                // Before the lane's next call can use the staging range.
                let staged = completer.take_staged(worker, lane, &call);
                let staged = staged.map_err(|_| Unusable::Staging)?;
                self.staged_bytes += staged.iter().map(Vec::len).sum::<usize>();
                Outcome::Done { timings: *timings, staged }
            }
            Answer::Failed(fault) => {
                say_failed(worker, &call, fault);
                Outcome::Failed(fault.to_fault())
            }
        };
        if !free {
            let verdict = match outcome {
                Answer::Done(_) => Verdict::Well,
                Answer::Failed(fault) if fault.code == FaultCode::KernelTrap => Verdict::Fault,
                Answer::Failed(_) => Verdict::Neither,
            };
            completer.decisions.decide(actions, |deciding| {
                if !done {
                    deciding.handle(Tainted { worker });
                }
                deciding.handle(Finished { worker, id, verdict })
            });
        }
        // First of all: from here on only the batch can answer the call.
        self.ended = true;
        self.completions.get_or_insert_with(|| call.reply.new_batch()).push(call, ended);
        match done {
            true => {
                completer.slots.slot(worker).completed.fetch_add(1, Ordering::Relaxed);
                completer.metrics.completed.increment(1);
            }
            false => completer.metrics.failed.increment(1),
        }
        self.carry_out();
        if self.staged_bytes >= FULL_BYTES {
            self.settle();
        }
        Ok(())
    }

    /// True if a shared worker ended a call that took longer than it may there: it is to begin again in a worker of its domain.
    fn begins_again(&mut self, worker: WorkerId, id: CallId, outcome: Answer<'_>) -> bool {
        if !matches!(outcome, Answer::Failed(fault) if fault.code == FaultCode::Deadline) {
            return false;
        }
        self.completer.decisions.decide(&mut self.actions, |deciding| {
            let Some((call, _)) = deciding.running_call(worker, id) else { return false };
            let call = call.clone();
            // Before another thread hands it over again.
            let started_ns = call.started_ns.swap(0, Ordering::Relaxed);
            let again = deciding.handle(Outlasted { worker, id });
            if !again {
                call.started_ns.store(started_ns, Ordering::Relaxed);
            }
            again
        })
    }

    /// Writes what the answers led to: to the workers first, since their lanes are empty; then to each client
    /// its answers.
    pub(super) fn settle(&mut self) {
        self.release();
        if !self.ended {
            return;
        }
        let now_ns = now_ns();
        if let Some(completions) = &mut self.completions {
            completions.flush(&self.completer.config.name, now_ns);
        }
        // Only now: after a panic in between, the rest is answered when the batch is dropped.
        self.ended = false;
        self.staged_bytes = 0;
    }
}

impl Completer {
    fn take_staged(&self, worker: WorkerId, lane: u32, call: &Call) -> std::io::Result<Vec<Vec<u8>>> {
        if !is_staged(call) {
            return Ok(Vec::new());
        }
        let channel = self.slots.channel(worker);
        let staged = call.outputs.iter().zip(call.function.blueprint.outputs());
        staged
            .filter(|(target, _)| target.arena.get() == STAGING_ARENA.get())
            .map(|(target, id)| channel.take_staged(lane, target, call.plan.buffers[id.index()].bytes))
            .collect()
    }
}

/// A call failed in a worker. Why its function or the weights do not load, if so, the worker says beside.
fn say_failed(worker: WorkerId, call: &Call, fault: &FaultRef<'_>) {
    let (function, owner, caller) = call.names();
    tracing::debug!(
        function, owner, caller, worker = worker.get(), code = ?fault.code,
        "a call failed: {}", fault.message.lines().next().unwrap_or_default()
    );
}

/// True if outputs lie in the lane's staging range.
fn is_staged(call: &Call) -> bool {
    call.outputs.iter().any(|target| target.arena.get() == STAGING_ARENA.get())
}
