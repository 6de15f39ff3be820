//! A device as the router sees it.

use super::runtime::Device;
use crate::function::Loaded;
use crate::routing::{Candidate, Destination};
use crate::state_room::DeviceMemory;

/// How fast weights are copied to a GPU from pinned memory: 54 bytes in a nanosecond were measured on an H200.
const WEIGHTS_BYTES_PER_NS: u64 = 50;

impl Destination for Device {
    fn runs(&self, function: &Loaded) -> bool {
        function.runs_on(self.config.kind, &self.config.arch)
    }

    fn largest_call_bytes(&self) -> u64 {
        self.processes.largest_call_bytes()
    }

    fn is_lost(&self) -> bool {
        self.decisions.is_lost()
    }

    fn has(&self, state: &DeviceMemory) -> bool {
        state.is_in(&self.states)
    }

    fn candidate(&self, at: usize, function: &Loaded) -> Candidate {
        let weights_ns = match self.config.kind.traits().has_own_memory {
            false => 0,
            true => function.weight_bytes.iter().sum::<u64>() / WEIGHTS_BYTES_PER_NS,
        };
        Candidate { device: at, lanes: self.lanes(), workers: self.workers(), weights_ns }
    }
}
