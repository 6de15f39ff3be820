//! What things cost on the virtual device: measured on one NVIDIA H200, each with the page or table that it is from.
//!
//! Two costs are not measured directly: each was chosen to reproduce a measured figure, and says so.

use pappus_supervisor::schedule::limits::GPU_CHANGE_NS;
use serde::Serialize;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Costs in nanoseconds, bytes and parts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// The chip changes to a process whose work comes after the last one's is over: 142 µs, by bare programs that pass
    /// turns through shared memory.
    pub change_ns: u64,
    /// … whose work was waiting on the chip: 8 tenants with one call in flight each and turns off make 6359 calls a second,
    /// 157 µs each, of which 35 are the call.
    pub sliced_change_ns: u64,
    /// How long the chip stays with a process while others have work: beside 1, 2, 4 endless kernels a neighbour waits
    /// 4, 9, 18 ms.
    pub slice_ns: u64,
    /// A frame from supervisor to worker or back, or an answer to a client, between threads that poll: four of them are the
    /// 11 µs that a hot call takes beyond its work.
    pub hop_ns: u64,
    /// A thread that slept is woken.
    pub wake_ns: u64,
    /// How long threads poll before they sleep: `poll-us`.
    pub poll_ns: u64,
    /// From an answer to the same caller's next call, while other tenants keep the host busy. **Chosen**: 8 tenants with one
    /// call in flight each, whose turns wait for their next calls, make 16 237 calls a second.
    pub busy_gap_ns: u64,
    /// A process starts, up to its context: `cuInit`.
    pub start_ns: u64,
    /// It makes its context, one process after the other, alone on the device: 131–188 ms.
    pub context_ns: u64,
    /// … and for each context that there is already: bare programs that do nothing else took 0.18 s beside none, 0.36, 0.56 and 0.79
    /// beside 10, 20 and 30 on an H100 (docs/benchmarks/history.md).
    pub beside_context_ns: u64,
    /// What neighbours keep of their rate meanwhile.
    pub context_rate: f64,
    /// Device memory of a context.
    pub context_bytes: u64,
    /// A standby takes a slot: what the first call of another process takes longer than a hot one, less what installing
    /// takes.
    pub attach_ns: u64,
    /// A function is installed in a process: its first call over a hot one.
    pub install_ns: u64,
    /// A process that leaves or is killed is gone.
    pub exit_ns: u64,
    /// What neighbours keep of their rate meanwhile.
    pub exit_rate: f64,
    /// A process forgets a domain, while the device stands still: modules are unloaded, stacks and shared memory cleared.
    /// **Chosen**: nine tenants on eight workers that are scrubbed make 48 296 matmuls a second; a switch was seen to
    /// cost 5 to 10 ms, with the graphs that are made again.
    pub scrub_ns: u64,
    /// Memory is mapped or given back, beside what each byte takes.
    pub map_ns: u64,
    /// … for a GiB: cycle of mapping and clearing.
    pub map_gib_ns: u64,
}

impl Costs {
    /// Of an H200 and its host.
    pub const H200: Self = Self {
        change_ns: GPU_CHANGE_NS,
        sliced_change_ns: 122 * US,
        slice_ns: 4_500 * US,
        hop_ns: 2_750,
        wake_ns: 137 * US,
        poll_ns: 50 * US,
        busy_gap_ns: 20 * US,
        start_ns: 204 * MS,
        context_ns: 150 * MS,
        beside_context_ns: 19 * MS,
        context_rate: 0.9,
        context_bytes: 524 << 20,
        attach_ns: MS,
        install_ns: 440 * US,
        exit_ns: 54 * MS,
        exit_rate: 0.97,
        scrub_ns: 4 * MS,
        map_ns: 76 * US,
        map_gib_ns: 365 * US,
    };

    /// Mapping so much more, or giving it back.
    pub fn mapping_ns(&self, bytes: u64) -> u64 {
        match bytes {
            0 => 0,
            _ => self.map_ns + (u128::from(self.map_gib_ns) * u128::from(bytes) / (1 << 30)) as u64,
        }
    }
}

/// What a call does on the chip.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Work {
    /// Its name, for people.
    pub name: &'static str,
    /// How long the call takes alone; none if it never ends.
    pub alone_ns: Option<u64>,
    /// How many such calls of one process run side by side as fast as alone; more share that speed.
    pub width: f64,
    /// What the chip loses when its slice ends in the middle of it.
    pub cut_ns: u64,
    /// What the first call in each lane takes its process: its graph is made.
    pub graph_ns: u64,
    /// Device memory of its buffers.
    pub memory_bytes: u64,
}

impl Work {
    /// A matrix product, 128×128 i64: one call in flight makes 21 735/s, which are 46 µs, 11 of them on the way; 8 lanes
    /// make 123 000 to 143 000/s.
    pub const MATMUL: Self = Self {
        name: "matmul 128²",
        alone_ns: Some(35 * US),
        width: 4.6,
        cut_ns: 0,
        graph_ns: 100 * US,
        memory_bytes: 384 << 10,
    };
    /// A network run 500 times: 380/s alone, 1649/s in 8 lanes; a graph takes 0.7 + 2.9 ms to make. Cut off by slices it
    /// makes 1516 of 1976/s.
    pub const INFERENCE: Self = Self {
        name: "inference ×500",
        alone_ns: Some(2_604 * US),
        width: 4.3,
        cut_ns: 1_240 * US,
        graph_ns: 3_600 * US,
        memory_bytes: 8 << 20,
    };
    /// A kernel that never ends.
    pub const ENDLESS: Self = Self {
        name: "endless",
        alone_ns: None,
        width: 1.0,
        cut_ns: 0,
        graph_ns: 100 * US,
        memory_bytes: 384 << 10,
    };

    /// A kernel that fills so much of the chip that one over `width` is left for others, for so long.
    pub const fn lasting(name: &'static str, alone_ns: u64, width: f64) -> Self {
        Self { name, alone_ns: Some(alone_ns), width, cut_ns: 0, graph_ns: 100 * US, memory_bytes: 384 << 10 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_costs_by_the_byte_and_once() {
        let costs = Costs::H200;
        assert_eq!(costs.mapping_ns(0), 0);
        assert!(costs.mapping_ns(1) >= costs.map_ns);
        assert_eq!(costs.mapping_ns(2 << 30) - costs.map_ns, 2 * costs.map_gib_ns);
    }
}
