//! Calls end that workers answered. The answers of one read start lanes' next calls with one write to a worker, and reach each
//! client by one: each write wakes its reader, so under load one write for many costs a fraction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{FaultCode, now_ns};

use super::commands::CommandRunner;
use super::decisions::{Actions, Deciding, Decisions};
use super::job::{Job, staged};
use super::panics::contained;
use super::unusable::Unusable;
use super::unwritten::{FULL_BYTES, Unwritten};
use super::worker_slots::WorkerSlots;
use crate::call::{Call, CompletionBatch, Outcome};
use crate::config::DeviceConfig;
use crate::ids::WorkerId;
use crate::metrics::DeviceMetrics;
use crate::schedule::Outlast;
use crate::schedule::events::{FellApart, Finished, Outlasted, Ran, Tainted};
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

    /// A worker answered a job: the lane's next one is started, and the clients are answered, by [`Batch::settle`] at the latest,
    /// which must follow.
    pub(super) fn finish(
        &mut self,
        worker: WorkerId,
        id: CallId,
        outcome: Answer<'_>,
    ) -> Result<(), Unusable> {
        match outcome {
            Answer::Done(timings) => self.done(worker, id, timings)?,
            Answer::Failed(fault) => self.failed(worker, id, fault)?,
        }
        self.carry_out();
        if self.staged_bytes >= FULL_BYTES {
            self.settle();
        }
        Ok(())
    }

    fn done(&mut self, worker: WorkerId, id: CallId, timings: &Done) -> Result<(), Unusable> {
        let Self { completer, actions, .. } = self;
        let found = completer.decisions.decide(actions, |deciding| {
            let (job, lane) = deciding.running_job(worker, id)?;
            // Nothing has to be done before the lane is free: one lock is enough.
            let free = !job.calls().any(|(_, call)| is_staged(call));
            let (took, calls) = (timings.on_device(), 1 + job.others.len() as u32);
            for (_, call) in job.calls() {
                // Time that a caller waited for its own sake is no cost of its calls on this device.
                if let Some(routed) = &call.routed
                    && !deciding.may_have_held(deciding.now_ns(), call.domain.caller)
                {
                    routed.ran(took / calls);
                }
            }
            let device_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            deciding.handle(Ran { worker, id, device_ns });
            if free {
                finished(deciding, worker, &job);
            }
            Some((job, lane, free, took / calls))
        });
        let (job, lane, free, took) = found.ok_or(Unusable::UnknownCall)?;
        let mut outputs = Vec::new().into_iter();
        if !free {
            // Before the lane's next call can use the staging range, and before any call is answered: if some cannot be read, all run
            // again.
            let taken = staged(&job, lane).map(|(offset, call)| completer.take_staged(worker, offset, call));
            outputs = taken.collect::<Result<Vec<_>, _>>().map_err(|_| Unusable::Staging)?.into_iter();
            completer.decisions.decide(actions, |deciding| finished(deciding, worker, &job));
        }
        let calls = 1 + job.others.len() as u64;
        for call in std::iter::once(job.call).chain(job.others.into_iter().map(|(_, call)| call)) {
            let staged = outputs.next().unwrap_or_default();
            self.staged_bytes += staged.iter().map(Vec::len).sum::<usize>();
            call.function.uses.ran(took);
            self.over(call, Outcome::Done { timings: *timings, staged });
        }
        self.completer.slots.slot(worker).completed.fetch_add(calls, Ordering::Relaxed);
        self.completer.metrics.completed.increment(calls);
        if calls > 1 {
            self.completer.metrics.batches.increment(1);
            self.completer.metrics.batched.increment(calls);
        }
        Ok(())
    }

    fn failed(&mut self, worker: WorkerId, id: CallId, fault: &FaultRef<'_>) -> Result<(), Unusable> {
        let Self { completer, actions, .. } = self;
        let late = fault.code == FaultCode::Deadline;
        let ended = completer.decisions.decide(actions, |deciding| {
            let (job, _) = deciding.running_job(worker, id)?;
            if !late {
                deciding.handle(Tainted { worker });
            }
            let mut ended: Vec<(Arc<Call>, _)> = Vec::new();
            for (id, call) in job.calls() {
                // Before another thread hands it over again.
                let started_ns = call.started_ns.swap(0, Ordering::Relaxed);
                // One that took longer than it may in a shared worker runs elsewhere; of several, who is guilty shows when each
                // runs by itself.
                let outlast = match job.others.is_empty() {
                    true if late => deciding.handle(Outlasted { worker, id }),
                    true => Outlast::Fails,
                    false if deciding.handle(FellApart { worker, id }) => Outlast::BeginsAgain,
                    false => Outlast::Fails,
                };
                if outlast == Outlast::BeginsAgain {
                    continue;
                }
                call.started_ns.store(started_ns, Ordering::Relaxed);
                deciding.handle(Tainted { worker });
                let verdict = match fault.code {
                    FaultCode::KernelTrap if job.others.is_empty() => Verdict::Fault,
                    _ => Verdict::Neither,
                };
                deciding.handle(Finished { worker, id, verdict });
                ended.push((call.clone(), outlast));
            }
            Some(ended)
        });
        for (call, outlast) in ended.ok_or(Unusable::UnknownCall)? {
            say_failed(worker, &call, fault);
            self.over(
                call,
                match outlast {
                    Outlast::HadItsPart => Outcome::HadItsPart,
                    Outlast::Fails | Outlast::BeginsAgain => Outcome::Failed(fault.to_fault()),
                },
            );
            self.completer.metrics.failed.increment(1);
        }
        Ok(())
    }

    /// A call is over: from here on only the batch can answer it.
    fn over(&mut self, call: Arc<Call>, outcome: Outcome) {
        self.ended = true;
        self.completions.get_or_insert_with(|| call.reply.new_batch()).push(call, outcome);
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
    /// The inline outputs of a call whose staging range begins at `offset`.
    fn take_staged(&self, worker: WorkerId, offset: u64, call: &Call) -> std::io::Result<Vec<Vec<u8>>> {
        if !is_staged(call) {
            return Ok(Vec::new());
        }
        let channel = self.slots.channel(worker);
        let staged = call.outputs.iter().zip(call.function.blueprint.outputs());
        staged
            .filter(|(target, _)| target.arena.get() == STAGING_ARENA.get())
            .map(|(target, id)| {
                channel.take_staged(offset + target.offset.get(), call.plan.buffers[id.index()].bytes)
            })
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

/// The calls of a job are out of their lane, and ended well.
fn finished(deciding: &mut Deciding<'_>, worker: WorkerId, job: &Job) {
    for (id, _) in job.calls() {
        deciding.handle(Finished { worker, id, verdict: Verdict::Well });
    }
}

/// True if outputs lie in the lane's staging range.
fn is_staged(call: &Call) -> bool {
    call.outputs.iter().any(|target| target.arena.get() == STAGING_ARENA.get())
}
