//! Weights on a device that has memory of its own: loaded by the first worker that needs them, shared with
//! the others as descriptors that are kept here, evicted when memory is short.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::now_ns;
use pappus_protocol::to_worker::WeightsForm;

use super::decisions::{Actions, Decisions};
use super::unusable::Unusable;
use crate::function::Loaded;
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::processes::memory_ledger::MemoryLedger;
use crate::refusal::{Reason, Refusable};
use crate::schedule::CallId;
use crate::schedule::events::WeightsSettled;
use crate::schedule::weights::{NoRoom, Source, Weights, ZombieId};
use crate::sync::{OrderedMutex, rank};

/// What a worker may take more than it was asked to, for the driver's sake.
const SLACK_BYTES: u64 = 64 << 20;

/// The weights of one device.
#[derive(Debug)]
pub(super) struct WeightStore {
    weights: OrderedMutex<Weights<Arc<OwnedFd>>, { rank::WEIGHTS }>,
    ledger: Arc<MemoryLedger>,
    /// Says what is free.
    decisions: Arc<Decisions>,
}

/// How a function's weights come to a worker.
#[derive(Debug, Default)]
pub(super) struct Delivery(Option<(Arc<OwnedFd>, u64)>, bool);

impl Delivery {
    /// What the worker is told.
    pub(super) fn form(&self) -> WeightsForm {
        match (&self.0, self.1) {
            (Some((_, bytes)), _) => WeightsForm::Device(*bytes),
            (None, true) => WeightsForm::Export,
            (None, false) => WeightsForm::Host,
        }
    }

    /// The descriptor that takes the place of the host's copy.
    pub(super) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|(fd, _)| fd.as_fd())
    }
}

/// Why a function's weights cannot be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WeightsError {
    /// More than there is ever room for.
    #[error(
        "its weights take {taken} bytes of device memory, the device keeps {budget_bytes} for weights: give them more \
         with weights=SIZE"
    )]
    TooLarge {
        /// What they take.
        taken: u64,
        /// What there is for weights.
        budget_bytes: u64,
    },
    /// Others cannot give way now.
    #[error("all device memory for weights is in use by calls that run; try again later")]
    InUse,
    /// There is room for them, but calls were lent so much of it.
    #[error("{0} bytes of device memory for weights are lent for calls; try again later")]
    Short(u64),
}

impl Refusable for WeightsError {
    fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::OutOfMemory,
            Self::InUse | Self::Short(_) => Reason::ResourceExhausted,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        matches!(self, Self::InUse | Self::Short(_)).then_some(100)
    }
}

impl WeightStore {
    /// Without weights; they may take `budget_bytes`, as far as calls leave them.
    pub(super) fn new(budget_bytes: u64, ledger: Arc<MemoryLedger>, decisions: Arc<Decisions>) -> Self {
        Self { weights: OrderedMutex::new(Weights::new(budget_bytes)), ledger, decisions }
    }

    /// Changes what is there, and tells the ledger.
    fn change<R>(&self, change: impl FnOnce(&mut Weights<Arc<OwnedFd>>) -> R) -> R {
        let mut weights = self.weights.lock();
        let outcome = change(&mut weights);
        self.ledger.set_weights(weights.held_bytes());
        outcome
    }

    /// A worker installs a function for a call; others that must go everywhere are added to `evicted`.
    pub(super) fn deliver(
        &self,
        function: &Loaded,
        worker: WorkerId,
        call: CallId,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<Delivery, WeightsError> {
        let bytes = function.packed_weight_bytes();
        if bytes == 0 {
            return Ok(Delivery::default());
        }
        let taken = bytes.next_multiple_of(GPU_PAGE_BYTES);
        // With the scheduler locked: nothing else gets what is free meanwhile.
        let claimed = self.decisions.decide(|scheduler| {
            scheduler.handle(now_ns(), WeightsSettled { id: call }, &mut Actions::new());
            let free_bytes = scheduler.free_bytes();
            let claimed = self.change(|weights| {
                weights.set_room(free_bytes);
                let claimed = weights.claim(function.id, worker, taken, evicted);
                weights.own(function.id, function.owner);
                claimed
            });
            scheduler.set_taken(self.ledger.taken_bytes());
            claimed
        });
        match claimed {
            Ok(Source::Host) => Ok(Delivery::default()),
            Ok(Source::Export) => Ok(Delivery(None, true)),
            Ok(Source::Device(fd, bytes)) => Ok(Delivery(Some((fd, bytes)), false)),
            Err(NoRoom { short: true, .. }) => Err(WeightsError::Short(taken)),
            Err(NoRoom { budget_bytes, .. }) if taken > budget_bytes => {
                Err(WeightsError::TooLarge { taken, budget_bytes })
            }
            Err(NoRoom { .. }) => Err(WeightsError::InUse),
        }
    }

    /// Device memory that weights of one tenant's functions take.
    pub(super) fn used_by(&self, owner: TenantId) -> u64 {
        self.weights.lock().used_by(owner)
    }

    /// Promises a worker room for a function's weights in what their owner may have; else says what they take.
    pub(super) fn reserve(
        &self,
        function: &Loaded,
        worker: WorkerId,
        room: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), u64> {
        let bytes = function.packed_weight_bytes().next_multiple_of(GPU_PAGE_BYTES);
        self.change(|weights| weights.reserve(function.id, worker, (function.owner, bytes), room, evicted))
    }

    /// What was promised to a worker is loaded, or not wanted any more.
    pub(super) fn settled(&self, function: &Loaded, worker: WorkerId) {
        self.weights.lock().settled(function.id, worker);
    }

    /// Weights that no call uses give way to calls that need so much memory; their functions are added to `evicted`.
    /// How much is free once all workers forgot them.
    pub(super) fn give_up(&self, bytes: u64, evicted: &mut Vec<FunctionId>) -> u64 {
        self.change(|weights| weights.give_up(bytes, evicted))
    }

    /// A worker sent what names a function's weights.
    pub(super) fn exported(
        &self,
        function: FunctionId,
        worker: WorkerId,
        fd: OwnedFd,
        bytes: u64,
    ) -> Result<(), Unusable> {
        if bytes > self.ledger.total_bytes().saturating_add(SLACK_BYTES) {
            return Err(Unusable::WeightsTooLarge);
        }
        match self.change(|weights| weights.exported(function, worker, Arc::new(fd), bytes)) {
            true => Ok(()),
            false => Err(Unusable::WeightsOfAnother),
        }
    }

    /// A call of the function is in a worker; only functions with weights count.
    pub(super) fn begin(&self, function: &Loaded) {
        if !function.weight_bytes.is_empty() {
            self.weights.lock().begin(function.id);
        }
    }

    /// It is not any more.
    pub(super) fn end(&self, function: &Loaded) {
        if !function.weight_bytes.is_empty() {
            self.weights.lock().end(function.id);
        }
    }

    /// The function is gone, or its weights do not load.
    pub(super) fn forget(&self, function: FunctionId) {
        self.change(|weights| weights.forget(function));
    }

    /// A worker forgot one function.
    pub(super) fn uninstalled(&self, function: FunctionId, worker: WorkerId) {
        self.change(|weights| weights.uninstalled(function, worker));
    }

    /// What was delivered for a worker was never sent to it.
    pub(super) fn not_sent(&self, function: FunctionId, worker: WorkerId) {
        self.change(|weights| weights.not_sent(function, worker));
    }

    /// A worker forgot all functions.
    pub(super) fn scrubbed(&self, worker: WorkerId) {
        self.change(|weights| {
            let zombie = weights.worker_gone(worker);
            weights.reaped(zombie);
        });
    }

    /// A worker's process is about to be gone: [`WeightStore::reaped`] must follow.
    pub(super) fn worker_gone(&self, worker: WorkerId) -> ZombieId {
        self.change(|weights| weights.worker_gone(worker))
    }

    /// Nothing is left of a worker's process.
    pub(super) fn reaped(&self, zombie: ZombieId) {
        self.change(|weights| weights.reaped(zombie));
    }
}
