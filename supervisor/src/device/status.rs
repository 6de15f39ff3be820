//! What is to be seen of a device from outside.

use std::sync::atomic::Ordering;

use super::decisions::Decisions;
use super::worker_slots::WorkerSlots;
use crate::metrics::{DeviceMetrics, WeightCounts};
use crate::processes::process_table::ProcessTable;
use crate::schedule::Resident;

/// A device at one moment.
#[derive(Debug)]
pub struct DeviceStatus {
    /// The most of its memory that one call can have.
    pub largest_call_bytes: u64,
    /// Calls that wait.
    pub queued: u64,
    /// Inline bytes of calls that wait.
    pub queued_bytes: u64,
    /// Calls that run.
    pub running: u64,
    /// Calls that succeeded.
    pub completed: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Bytes of weights that are there for calls.
    pub weights_bytes: u64,
    /// What happened to weights.
    pub weights: WeightCounts,
    /// Its workers, by their slots; slots without a process are left out, unless one served a domain before.
    pub workers: Vec<WorkerStatus>,
}

/// A worker at one moment.
#[derive(Debug)]
pub struct WorkerStatus {
    /// The process in the worker's slot; 0 if the slot is empty.
    pub pid: u32,
    /// What the worker does now.
    pub state: WorkerState,
    /// Calls that the worker completed.
    pub completed: u64,
    /// How often its process was replaced.
    pub restarts: u64,
    /// How often its process was scrubbed for another domain.
    pub scrubs: u64,
    /// Device time that its turns used.
    pub device_ns: u64,
    /// Names of the layers of its sandbox that are in force.
    pub sandbox: Vec<&'static str>,
    /// The worker's device memory, and its domain.
    pub resident: Resident,
    /// Bytes of weights that the process has.
    pub weight_bytes: u64,
    /// Bytes of the process's context, before any work.
    pub context_bytes: u64,
}

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The slot has no process, and needs none.
    Unused,
    /// The process is not ready yet.
    Starting,
    /// The worker has no call.
    Idle,
    /// The worker has calls in so many lanes.
    Busy(u32),
}

/// What is shown of a device.
#[derive(Debug)]
pub(super) struct StatusView<'a> {
    pub(super) metrics: &'a DeviceMetrics,
    pub(super) processes: &'a ProcessTable,
    pub(super) slots: &'a WorkerSlots,
    pub(super) decisions: &'a Decisions,
}

impl StatusView<'_> {
    /// Its calls and workers now.
    pub(super) fn status(&self) -> DeviceStatus {
        let (queued, queued_bytes, running, busy, (weights, weights_bytes)) = {
            let scheduler = self.decisions.ask();
            let of_worker = |w| (scheduler.busy_lanes(w), scheduler.device_ns(w), scheduler.resident(w));
            let busy: Vec<_> = self.slots.workers().map(of_worker).collect();
            let weights = (scheduler.weights().counts(), scheduler.weights().used_bytes());
            (scheduler.queued(), scheduler.queued_bytes(), scheduler.running(), busy, weights)
        };
        let shown =
            |(_, (.., resident)): &(_, (_, _, Resident))| resident.is_used || resident.last_gone.is_some();
        let workers =
            self.slots.workers().zip(busy).filter(shown).map(|(worker, (busy, device_ns, resident))| {
                let (slot, link) = (self.slots.slot(worker), self.slots.channel(worker));
                // Another process may be in its slot meanwhile.
                let busy =
                    busy.filter(|(generation, _)| !link.is_hung_up(*generation)).map(|(_, lanes)| lanes);
                WorkerStatus {
                    pid: link.pid().unwrap_or(0),
                    state: match busy {
                        None if !resident.is_used => WorkerState::Unused,
                        None => WorkerState::Starting,
                        Some(0) => WorkerState::Idle,
                        Some(lanes) => WorkerState::Busy(lanes),
                    },
                    completed: slot.completed.load(Ordering::Relaxed),
                    restarts: slot.restarts.load(Ordering::Relaxed),
                    scrubs: slot.scrubs.load(Ordering::Relaxed),
                    device_ns,
                    sandbox: link.layers().iter().map(|layer| layer.name()).collect(),
                    weight_bytes: link.weight_bytes(),
                    context_bytes: if link.pid().is_some() { self.processes.context_bytes() } else { 0 },
                    resident,
                }
            });
        DeviceStatus {
            weights_bytes,
            weights,
            largest_call_bytes: self.processes.largest_call_bytes(),
            queued,
            queued_bytes,
            running,
            completed: self.slots.completed(),
            failed: self.metrics.failed_so_far(),
            workers: workers.collect(),
        }
    }
}
