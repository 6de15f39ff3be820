//! What is written together: frames to workers and answers to clients that one read led to. Each write
//! wakes its reader, so under load one write for many costs a fraction; with one call it is the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{FaultCode, now_ns};

use super::held::{FULL_BYTES, Held};
use super::panics::contained;
use super::runtime::{Actions, Answer, Device};
use crate::call::{Call, CompletionBatch, Outcome};
use crate::ids::WorkerId;
use crate::schedule::events::{Finished, Tainted};
use crate::schedule::{CallId, Verdict};

/// Calls that one connection's read brought and whose workers were not told yet. They are told when it is
/// dropped, if not before.
#[derive(Debug, Default)]
pub struct Burst {
    /// Whether more than the request at hand was read. The last one need not wait.
    pub more: bool,
    device: Option<Arc<Device>>,
    held: Held,
}

impl Burst {
    /// Where the next call to `device` waits, unless it is the last.
    pub fn to(&mut self, device: &Arc<Device>) -> Option<&mut Held> {
        if !self.more {
            return None;
        }
        if !self.device.as_ref().is_some_and(|held| Arc::ptr_eq(held, device)) {
            self.release();
            self.device = Some(device.clone());
        }
        Some(&mut self.held)
    }

    /// Tells the workers.
    pub fn release(&mut self) {
        if let Some(device) = &self.device {
            device.release(&mut self.held);
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.release();
    }
}

/// What the answers of one read of a worker's pipe led to; kept for its capacity. Where a panic comes between
/// [`Device::finish`] and [`Device::settle`], what is left is done when it is dropped: its calls are over for the
/// scheduler, so nobody else would answer them.
#[derive(Debug)]
pub struct Batch {
    device: Arc<Device>,
    held: Held,
    actions: Actions,
    /// Calls that are over and whose clients do not know yet.
    completions: Option<Box<dyn CompletionBatch>>,
    /// Whether there are any.
    ended: bool,
    /// Their staged outputs.
    staged_bytes: usize,
}

impl Batch {
    /// Of a worker of this device.
    pub fn new(device: &Arc<Device>) -> Self {
        Self {
            device: device.clone(),
            held: Held::default(),
            actions: Actions::new(),
            completions: None,
            ended: false,
            staged_bytes: 0,
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.ended && self.actions.is_empty() {
            return;
        }
        let device = self.device.clone();
        // Whatever panicked may do so again: the next part is done all the same, and nothing twice.
        let parts: [fn(&Device, &mut Self); 3] = [
            |device, batch| device.carry_out(&mut batch.actions, Some(&mut batch.held)),
            |device, batch| device.release(&mut batch.held),
            |device, batch| device.settle(batch),
        ];
        for part in parts {
            if let Err(why) = contained(|| part(&device, self)) {
                tracing::error!("not all that follows from a worker's answers is done: {why}");
            }
        }
    }
}

impl Device {
    /// Writes what workers wait for.
    pub fn release(&self, held: &mut Held) {
        let mut workers = held.take();
        while workers != 0 {
            self.channel(WorkerId::new(workers.trailing_zeros() as usize)).write();
            workers &= workers - 1;
        }
    }

    /// A worker answered a call: the lane's next call is started, and the client is answered, by
    /// [`Device::settle`] at the latest, which must follow.
    pub fn finish(
        &self,
        worker: WorkerId,
        id: CallId,
        outcome: Answer<'_>,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        let done = matches!(outcome, Answer::Done(_));
        let found = self.decide(|scheduler| {
            let (call, lane) = scheduler.running_call(worker, id)?;
            let call = call.clone();
            // Nothing has to be done before the lane is free: one lock is enough.
            let free = done && !is_staged(&call) && call.function.weight_bytes.is_empty();
            if free {
                let finished = Finished { worker, id, verdict: Verdict::Well };
                scheduler.handle(now_ns(), finished, &mut batch.actions);
            }
            Some((call, lane, free))
        });
        let (call, lane, free) = found.ok_or("it answered a call that it does not have")?;
        let ended = match outcome {
            Answer::Done(timings) => {
                // Before the lane's next call can use the staging range.
                let staged = self.take_staged(worker, lane, &call);
                let staged = staged.map_err(|_| "its staging memory does not read")?;
                batch.staged_bytes += staged.iter().map(Vec::len).sum::<usize>();
                Outcome::Done { timings: *timings, staged }
            }
            Answer::Failed(fault) => {
                if matches!(fault.code, FaultCode::Load | FaultCode::Exhausted) {
                    // What could not be loaded is tried afresh by the next call.
                    self.channel(worker).uninstall(call.function.id);
                    if let Some(weights) = &self.weights {
                        weights.forget(call.function.id);
                    }
                }
                let (function, owner, caller) = call.names();
                tracing::debug!(
                    function, owner, caller, worker = worker.get(), code = ?fault.code,
                    "a call failed: {}", fault.message
                );
                Outcome::Failed(fault.to_fault())
            }
        };
        if !free {
            if let Some(weights) = &self.weights {
                weights.end(&call.function);
            }
            let verdict = match outcome {
                Answer::Done(_) => Verdict::Well,
                Answer::Failed(fault) if fault.code == FaultCode::KernelTrap => Verdict::Fault,
                Answer::Failed(_) => Verdict::Neither,
            };
            self.decide(|scheduler| {
                let now_ns = now_ns();
                if !done {
                    scheduler.handle(now_ns, Tainted { worker }, &mut batch.actions);
                }
                scheduler.handle(now_ns, Finished { worker, id, verdict }, &mut batch.actions)
            });
        }
        // First of all: from here on nobody but the batch answers the call.
        batch.ended = true;
        batch.completions.get_or_insert_with(|| call.reply.new_batch()).push(call, ended);
        match done {
            true => {
                self.slot(worker).completed.fetch_add(1, Ordering::Relaxed);
                self.metrics.completed.increment(1);
            }
            false => self.metrics.failed.increment(1),
        }
        self.carry_out(&mut batch.actions, Some(&mut batch.held));
        if batch.staged_bytes >= FULL_BYTES {
            self.settle(batch);
        }
        Ok(())
    }

    fn take_staged(&self, worker: WorkerId, lane: u32, call: &Call) -> std::io::Result<Vec<Vec<u8>>> {
        if !is_staged(call) {
            return Ok(Vec::new());
        }
        let channel = self.channel(worker);
        let staged = call.outputs.iter().zip(call.function.blueprint.outputs());
        staged
            .filter(|(target, _)| target.arena.get() == STAGING_ARENA)
            .map(|(target, id)| channel.take_staged(lane, target, call.plan.buffers[id.index()].bytes))
            .collect()
    }

    /// Writes what a batch led to: to the workers first, since their lanes are empty; then to each client
    /// its answers.
    pub fn settle(&self, batch: &mut Batch) {
        self.release(&mut batch.held);
        if !batch.ended {
            return;
        }
        let now_ns = now_ns();
        if let Some(completions) = &mut batch.completions {
            completions.flush(&self.config.name, now_ns);
        }
        // Only now: after a panic in between, the rest is answered when the batch is dropped.
        batch.ended = false;
        batch.staged_bytes = 0;
    }
}

/// Whether outputs lie in the lane's staging range.
fn is_staged(call: &Call) -> bool {
    call.outputs.iter().any(|target| target.arena.get() == STAGING_ARENA)
}
