//! The slots of a device's workers: the channel to the process in each, and what is counted of it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::held::Held;
use super::worker_channel::WorkerChannel;
use crate::ids::WorkerId;
use crate::schedule::Share;
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// One worker's slot.
#[derive(Debug)]
pub(super) struct WorkerSlot {
    /// The process in it.
    channel: OrderedMutex<WorkerChannel, { rank::CHANNEL }>,
    /// Calls answered well.
    pub(super) completed: AtomicU64,
    /// Processes that took the slot after the first.
    pub(super) restarts: AtomicU64,
    /// Times that its processes were scrubbed for another domain.
    pub(super) scrubs: AtomicU64,
    /// The lease that is its own.
    pub(super) own_bytes: AtomicU64,
}

impl WorkerSlot {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            channel: OrderedMutex::new(WorkerChannel::new()?),
            completed: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            scrubs: AtomicU64::new(0),
            own_bytes: AtomicU64::new(0),
        })
    }

    /// A share of the device's memory in bytes, where all of it is `all_bytes`.
    pub(super) fn share_bytes(&self, share: Share, all_bytes: u64) -> u64 {
        match share {
            Share::Nothing => 0,
            Share::Own => self.own_bytes.load(Ordering::Relaxed),
            Share::All => all_bytes,
        }
    }
}

/// The slots of one device.
#[derive(Debug)]
pub struct WorkerSlots(Vec<WorkerSlot>);

impl WorkerSlots {
    /// So many, without processes.
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        Ok(Self((0..count).map(|_| WorkerSlot::new()).collect::<Result<_, _>>()?))
    }

    /// The workers whose slots these are.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        WorkerId::first(self.0.len())
    }

    /// A worker's slot.
    pub(super) fn slot(&self, worker: WorkerId) -> &WorkerSlot {
        &self.0[worker.get()]
    }

    /// The channel to the process in a worker's slot.
    pub(super) fn channel(&self, worker: WorkerId) -> OrderedGuard<'_, WorkerChannel, { rank::CHANNEL }> {
        self.0[worker.get()].channel.lock()
    }

    /// One channel after the other.
    pub(super) fn each_channel(&self, mut tell: impl FnMut(&mut WorkerChannel)) {
        self.0.iter().for_each(|slot| tell(&mut slot.channel.lock()));
    }

    /// Whether a slot has no process.
    pub(super) fn lacks_process(&self) -> bool {
        self.0.iter().any(|slot| slot.channel.lock().pid().is_none())
    }

    /// Whether no slot has a process.
    pub(super) fn have_no_process(&self) -> bool {
        self.0.iter().all(|slot| slot.channel.lock().pid().is_none())
    }

    /// Calls answered well, by all workers.
    pub(super) fn completed(&self) -> u64 {
        self.0.iter().map(|slot| slot.completed.load(Ordering::Relaxed)).sum()
    }

    /// Writes what workers wait for. After a panic, the next release writes to those that are left.
    pub(super) fn release(&self, held: &mut Held) {
        while let Some(worker) = held.pop() {
            self.channel(worker).write();
        }
    }

    /// Ends all processes.
    pub(super) fn close(&self) {
        self.each_channel(|channel| {
            channel.kill_any();
            channel.wake();
        });
    }
}
