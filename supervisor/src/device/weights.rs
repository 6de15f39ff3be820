//! Descriptors of memory with weights, and the commands about weights to workers.
//! [`schedule`](crate::schedule::weights) decides which weights are where.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::to_worker::{Load, WeightsForm};

use crate::call::Call;
use crate::function::Loaded;
use crate::ids::FunctionId;
use crate::schedule;
use crate::schedule::weights::{Source, Supply};

/// What a worker may take more than it was asked to, for the driver's sake.
pub(super) const SLACK_BYTES: u64 = 64 << 20;

/// What names the memory of weights; none on a device without memory of its own, where workers map the host's copy.
pub(super) type Memory = Option<Arc<OwnedFd>>;

impl schedule::Call for Arc<Call> {
    type Memory = Memory;

    fn is_like(&self, other: &Self) -> bool {
        let batch = self.function.blueprint.batch().map(|batch| batch.free);
        let same = |(at, (one, other)): (usize, (_, _))| Some(at) == batch || one == other;
        self.function.id == other.function.id
            && self.scalars.len() == other.scalars.len()
            && self.scalars.iter().zip(&other.scalars).enumerate().all(same)
    }
}

/// What the weights of a function take on a device, which lie in memory of its own or not.
pub(super) fn taken_by(function: &Loaded, has_own_memory: bool) -> u64 {
    let page_bytes = if has_own_memory { GPU_PAGE_BYTES } else { 1 };
    function.packed_weight_bytes().next_multiple_of(page_bytes)
}

/// The part of a command that tells a worker which weights to load.
pub(super) fn load_of(supply: &Supply<Memory>) -> Load {
    let weights = match supply.source {
        // Where it is not the device's memory, the host's copy is what is shared.
        Source::Host | Source::Device(None, _) => WeightsForm::Host,
        Source::Export => WeightsForm::Export,
        Source::Device(Some(_), bytes) => WeightsForm::Device(bytes),
    };
    Load { weights, instead_of: supply.instead_of.map(FunctionId::get) }
}

/// The descriptor that goes with that: of the device's memory, or of the host's copy.
pub(super) fn descriptor_of<'a>(supply: &'a Supply<Memory>, function: &'a Loaded) -> Option<BorrowedFd<'a>> {
    match &supply.source {
        Source::Device(Some(fd), _) => Some(fd.as_fd()),
        Source::Host | Source::Export | Source::Device(None, _) => function.host_weights(),
    }
}
