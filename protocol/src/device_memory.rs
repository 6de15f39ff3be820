//! How device memory is divided, as supervisor and workers must agree on it: pages, leases, shares of lanes.

use crate::Kind;
pub use crate::kind::{GPU_PAGE_BYTES, WASM_PAGE_BYTES};

/// The largest whole number of GPU pages in `bytes`.
pub const fn whole_gpu_pages(bytes: u64) -> u64 {
    bytes / GPU_PAGE_BYTES * GPU_PAGE_BYTES
}

/// What one of a worker's lanes may use of the worker's lease while other lanes have calls.
pub fn lane_bytes(kind: Kind, lease_bytes: u64, lanes: u32) -> u64 {
    let traits = kind.traits();
    match traits.has_lanes {
        false => lease_bytes,
        true => traits.whole_pages(lease_bytes / u64::from(lanes.max(1))),
    }
}

/// The division of one device's memory between processes, weights, stacks and leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// The kind of device.
    pub kind: Kind,
    /// All memory that may be used.
    pub memory_bytes: u64,
    /// Of it, what weights may take.
    pub weights_bytes: u64,
    /// Of it, what the driver may take for the stacks of one worker's kernels.
    pub stack_bytes: u64,
    /// Worker processes.
    pub workers: usize,
    /// Processes kept ready to take a worker's place.
    pub standbys: usize,
}

impl Division {
    /// How many leases the memory is divided into: on a GPU one more than there are workers, so that a
    /// replacement gets its lease before the memory of its predecessor is free.
    pub fn leases(&self) -> usize {
        match self.kind.traits().has_own_memory {
            false => self.workers,
            true => self.workers + self.standbys.min(1),
        }
    }

    /// What workers, standbys and one process that compiles take for themselves.
    pub fn all_contexts_bytes(&self, context_bytes: u64) -> u64 {
        (self.workers as u64 + self.standbys as u64 + 1).saturating_mul(context_bytes)
    }

    /// Bytes of one lease, where a process takes `context_bytes` for itself.
    pub fn lease_bytes(&self, context_bytes: u64) -> u64 {
        let traits = self.kind.traits();
        let fixed = match traits.has_own_memory {
            false => [0; 3],
            true => [
                self.weights_bytes,
                self.all_contexts_bytes(context_bytes),
                (self.workers as u64).saturating_mul(self.stack_bytes),
            ],
        };
        let left = fixed.into_iter().fold(self.memory_bytes, u64::saturating_sub);
        traits.whole_pages(left / self.leases().max(1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_lease_is_what_everything_else_leaves_in_whole_pages() {
        let cpu = Division {
            kind: Kind::Cpu,
            memory_bytes: 101 * MIB,
            weights_bytes: 0,
            stack_bytes: 0,
            workers: 3,
            standbys: 1,
        };
        assert_eq!((cpu.leases(), cpu.lease_bytes(MIB)), (3, 101 * MIB / 3 / (64 << 10) * (64 << 10)));
        let gpu = Division { kind: Kind::Cuda, weights_bytes: 10 * MIB, stack_bytes: 2 * MIB, ..cpu };
        // Of 101 MiB: weights 10, five contexts, stacks 6; the rest is for three workers and a replacement.
        assert_eq!((gpu.leases(), gpu.lease_bytes(MIB)), (4, 20 * MIB));
        assert_eq!(gpu.lease_bytes(50 * MIB), 0, "contexts that leave nothing");
    }

    #[test]
    fn lanes_of_a_gpu_share_a_lease_in_whole_pages() {
        assert_eq!(lane_bytes(Kind::Cuda, 33 * MIB, 4), 8 * MIB);
        assert_eq!(lane_bytes(Kind::Cpu, 33 * MIB, 4), 33 * MIB);
    }
}
