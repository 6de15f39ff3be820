//! Weights on a device: loaded by the first worker that needs them, shared with the others as descriptors that are kept
//! here, evicted when memory is short. Where a device has no memory of its own, workers map the host's copy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::to_worker::{Load, WeightsForm};

use super::decisions::{Actions, Decisions};
use super::unusable::Unusable;
use crate::function::Loaded;
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::metrics::WeightCounts;
use crate::processes::memory_ledger::MemoryLedger;
use crate::refusal::{Reason, Refusable};
use crate::schedule::CallId;
use crate::schedule::events::WeightsSettled;
use crate::schedule::weights::{NoRoom, Source, Weights, When, ZombieId};
use crate::sync::{OrderedMutex, rank};

/// What a worker may take more than it was asked to, for the driver's sake.
const SLACK_BYTES: u64 = 64 << 20;

/// What names the memory of weights; none on a device without memory of its own.
type Memory = Option<Arc<OwnedFd>>;

/// The weights of one device.
#[derive(Debug)]
pub(super) struct WeightStore {
    weights: OrderedMutex<Weights<Memory>, { rank::WEIGHTS }>,
    ledger: Arc<MemoryLedger>,
    /// Says what is free.
    decisions: Arc<Decisions>,
    /// They take memory that calls could be lent.
    takes_memory: bool,
}

/// How a function's weights come to a worker.
#[derive(Debug)]
pub(super) struct Delivery {
    load: Load,
    device: Memory,
}

impl Delivery {
    /// What the worker is told.
    pub(super) fn load(&self) -> Load {
        self.load
    }

    /// The descriptor that takes the place of the host's copy.
    pub(super) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(|fd| fd.as_fd())
    }
}

/// What follows from a delivery, besides itself.
#[derive(Debug, Default)]
pub(super) struct Follows {
    /// Functions whose weights must leave every worker.
    pub(super) evicted: Vec<FunctionId>,
    /// What the scheduler decided.
    pub(super) actions: Actions,
}

/// What weights are delivered for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// A call that starts.
    Now(CallId),
    /// A call that waits.
    Soon,
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
    InUse {
        /// How often weights had come or gone then.
        moment: u64,
    },
    /// There is room for them, but calls were lent so much of it.
    #[error("{0} bytes of device memory for weights are lent for calls; try again later")]
    Short(u64),
}

impl Refusable for WeightsError {
    fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::OutOfMemory,
            Self::InUse { .. } | Self::Short(_) => Reason::ResourceExhausted,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        matches!(self, Self::InUse { .. } | Self::Short(_)).then_some(100)
    }
}

impl WeightStore {
    /// Without weights; they may take `budget_bytes`, as far as calls leave them, where they take `takes_memory` of the
    /// device at all.
    pub(super) fn new(
        budget_bytes: u64,
        takes_memory: bool,
        ledger: Arc<MemoryLedger>,
        decisions: Arc<Decisions>,
    ) -> Self {
        let weights = OrderedMutex::new(Weights::new(budget_bytes));
        Self { weights, ledger, decisions, takes_memory }
    }

    /// Changes what is there, and tells the ledger.
    fn change<R>(&self, change: impl FnOnce(&mut Weights<Memory>) -> R) -> R {
        let mut weights = self.weights.lock();
        let outcome = change(&mut weights);
        if self.takes_memory {
            self.ledger.set_weights(weights.held_bytes());
        }
        outcome
    }

    /// What happened so far, and how many bytes are there.
    pub(super) fn counts(&self) -> (WeightCounts, u64) {
        let weights = self.weights.lock();
        (weights.counts(), weights.used_bytes())
    }

    /// A worker is to have the weights of a function that has some. `has` says which functions' weights the worker has.
    pub(super) fn deliver(
        &self,
        function: &Loaded,
        worker: WorkerId,
        need: Need,
        has: impl Fn(FunctionId) -> bool,
        follows: &mut Follows,
    ) -> Result<Delivery, WeightsError> {
        let taken = self.taken_by(function);
        let Follows { evicted, actions } = follows;
        // With the scheduler locked: nothing else gets what is free meanwhile.
        let (claimed, moment) = self.decisions.decide(actions, |deciding| {
            let when = match need {
                Need::Now(id) => {
                    deciding.handle(WeightsSettled { id });
                    When::Now
                }
                Need::Soon => When::Soon,
            };
            let free_bytes = match self.takes_memory {
                // Weights that gave way to a call would come again, in place of the call, and give way again.
                true if when == When::Soon && deciding.is_memory_awaited() => 0,
                true => deciding.free_bytes(),
                false => u64::MAX,
            };
            let claimed = self.change(|weights| {
                weights.set_room(free_bytes);
                let source = weights.claim(function.id, worker, taken, when, evicted)?;
                weights.own(function.id, function.owner);
                if when == When::Now {
                    // Before anything else can take them away.
                    weights.begin(function.id, false);
                }
                let instead_of = match source {
                    Source::Export => weights.take_over(function.id, worker, evicted, has),
                    Source::Host | Source::Device(..) => None,
                };
                Ok((source, instead_of.map(FunctionId::get)))
            });
            deciding.set_taken(self.ledger.taken_bytes());
            (claimed, deciding.weights_moment())
        });
        let (form, device, instead_of) = match claimed {
            Ok((Source::Host, _)) => (WeightsForm::Host, None, None),
            Ok((Source::Export, instead_of)) => (WeightsForm::Export, None, instead_of),
            // Where it is not the device's memory, the host's copy is what is shared.
            Ok((Source::Device(None, _), _)) => (WeightsForm::Host, None, None),
            Ok((Source::Device(fd, bytes), _)) => (WeightsForm::Device(bytes), fd, None),
            Err(NoRoom { short: true, .. }) => return Err(WeightsError::Short(taken)),
            Err(NoRoom { budget_bytes, .. }) if taken > budget_bytes => {
                return Err(WeightsError::TooLarge { taken, budget_bytes });
            }
            Err(NoRoom { .. }) => return Err(WeightsError::InUse { moment }),
        };
        Ok(Delivery { load: Load { weights: form, instead_of }, device })
    }

    /// What the weights of a function take.
    fn taken_by(&self, function: &Loaded) -> u64 {
        let page_bytes = if self.takes_memory { GPU_PAGE_BYTES } else { 1 };
        function.packed_weight_bytes().next_multiple_of(page_bytes)
    }

    /// Calls of these functions are about to start in a worker, the first one first.
    pub(super) fn expect(&self, worker: WorkerId, functions: Vec<FunctionId>) {
        self.weights.lock().expect(worker, functions);
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
        let bytes = self.taken_by(function);
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

    /// A function's weights are in a worker, in memory that `fd` names, or that is known already.
    pub(super) fn loaded(
        &self,
        function: FunctionId,
        worker: WorkerId,
        fd: Option<OwnedFd>,
        bytes: u64,
    ) -> Result<(), Unusable> {
        if !self.takes_memory && fd.is_some() {
            return Err(Unusable::WeightsNotAsked);
        }
        if self.takes_memory && bytes > self.ledger.total_bytes().saturating_add(SLACK_BYTES) {
            return Err(Unusable::WeightsTooLarge);
        }
        let there = self.change(|weights| {
            let device = match fd {
                Some(fd) => Some(Some(Arc::new(fd))),
                // There is nothing to name.
                None if !self.takes_memory && weights.is_loader(function, worker) => Some(None),
                None => None,
            };
            weights.loaded(function, worker, device, bytes)
        });
        match there {
            true => Ok(()),
            false => Err(Unusable::WeightsOfAnother),
        }
    }

    /// What a worker was to load does not.
    pub(super) fn not_loaded(&self, function: FunctionId, worker: WorkerId) {
        self.change(|weights| weights.not_loaded(function, worker));
    }

    /// A call of the function is about to be in a worker that has its weights or loads them; false if they gave way
    /// meanwhile. [`WeightStore::deliver`] says so by itself.
    pub(super) fn begin(&self, function: &Loaded) -> bool {
        self.weights.lock().begin(function.id, true)
    }

    /// It is not there, or not any more.
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
