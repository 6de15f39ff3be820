//! Who has weights mapped: workers, and what is left of processes that are gone. Weights that were given up take memory
//! until none has them.

use crate::ids::{FunctionId, Generation, WorkerId};

/// Who has weights mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Worker(WorkerId),
    /// A process of that worker that is gone and not reaped.
    Zombie(WorkerId, Generation),
}

/// One that has weights mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightHolder {
    pub(super) who: Who,
    /// True if the worker loaded a copy of its own, before the weights were shared.
    pub(super) own: bool,
    /// True if it was told to let them go, and did not say that it did.
    pub(super) told: bool,
}

impl WeightHolder {
    /// A worker is told to load them, for itself or for all.
    pub(super) fn new(worker: WorkerId, own: bool) -> Self {
        Self { who: Who::Worker(worker), own, told: false }
    }

    /// True if that worker has them and was not told to let them go.
    pub(super) fn is_kept_by(&self, worker: WorkerId) -> bool {
        self.who == Who::Worker(worker) && !self.told
    }
}

/// Weights that were given up, until the last worker confirms that.
#[derive(Debug)]
pub(super) struct Leaving<T> {
    pub(super) function: FunctionId,
    pub(super) bytes: u64,
    pub(super) holders: Vec<WeightHolder>,
    /// The name of the memory, if it was shared and no process but its maker ever mapped it.
    pub(super) device: Option<T>,
}

impl<T> Leaving<T> {
    /// Device memory that they take.
    pub(super) fn taken_bytes(&self) -> u64 {
        let own = own_copies(&self.holders);
        let shared = u64::from(self.holders.len() as u64 > own);
        self.bytes.saturating_mul(own + shared)
    }
}

/// How many loaded them for themselves.
pub(super) fn own_copies(holders: &[WeightHolder]) -> u64 {
    holders.iter().filter(|holder| holder.own).count() as u64
}
