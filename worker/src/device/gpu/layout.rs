//! Sizes that the device's parts agree on.

use pappus_blueprint::limits::BUFFER_ALIGN;

/// Steps that are submitted at a time. The driver's queue takes about a thousand launches before a
/// submission blocks, and with it every other lane.
pub(super) const SLICE_STEPS: u32 = 256;

/// Steps from which on a plan becomes a graph, and up to which its repeats are unfolded for one.
pub(super) const GRAPH_STEPS: std::ops::RangeInclusive<u64> = 2..=20_000;

/// Steps of the longest plan that becomes one graph together with its copies: longer ones would save little beside the time
/// of their steps.
pub(super) const WHOLE_STEPS: u64 = 64;

/// Runs of a plan, on any lane, before it becomes a graph: making one costs about as much time of a processor as launching
/// its steps (1500 kernels on an H200: 3.6 and 4.0 ms), during which nothing of it runs.
pub(super) const RUNS_BEFORE_GRAPH: u32 = 2;

/// Calls in a row that a graph of a whole call cannot be changed for, before it is made for theirs.
pub(super) const RUNS_BEFORE_ANOTHER: u32 = 16;

/// Steps of a plan that becomes a graph while its first call waits for a turn: fewer are launched in no time, and more would
/// keep the worker from noticing that its turn begins.
pub(super) const EARLY_GRAPH_STEPS: std::ops::RangeInclusive<u64> = WHOLE_STEPS + 1..=4096;

/// Memory of an instantiated graph for each node, host and device memory together, roughly.
pub(super) const GRAPH_NODE_BYTES: u64 = 1 << 10;

/// Bytes of all bound plans: command lists and graphs.
pub(super) const BOUND_PLANS_BYTES: u64 = 512 << 20;

/// Pinned memory through which one-off inputs reach the device, in two halves.
pub(super) const BOUNCE_BYTES: usize = 4 << 20;

/// Host copies of weights that stay pinned, so that they can be loaded again at full speed. They are in memory in any
/// case; pinned, they stay there.
pub(super) const PINNED_WEIGHTS_BYTES: u64 = 64 << 30;

/// Host copies of weights from this size on are pinned: to pin a smaller one takes longer (0.13 ms on an H200) than it saves
/// whenever they are loaded (0.05 ms for 1 MiB).
pub(super) const LEAST_PINNED_BYTES: u64 = 1 << 20;

/// How much of a host copy is pinned at a time, which takes about a millisecond and blocks the other lanes.
pub(super) const PIN_BYTES: u64 = 16 << 20;

/// How much is copied at a time from memory that cannot be pinned: the driver takes it to memory of its own meanwhile.
pub(super) const UNPINNED_BYTES: u64 = 2 << 20;

/// One call in this many is timed step by step; the time of the others is split like that of the last timed one.
pub(super) const TIMED_EVERY: u64 = 256;

/// Bytes that go to a lane's memory or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    /// In pinned memory of the host.
    pub(super) host: *mut u8,
    /// True if it is an address of the device, where the state of a session is.
    pub(super) is_state: bool,
    pub(super) device: u64,
    pub(super) bytes: u64,
}

impl Transfer {
    /// Takes along the transfer behind this one where both are of a session's state, whose buffers lie in its memory as they do in a
    /// lane's. What is between them is the session's, too. True if it did.
    pub(super) fn joins(&mut self, next: &Transfer) -> bool {
        let gap = |from: u64, to: u64| to.checked_sub(from)?.checked_sub(self.bytes);
        let gaps = (gap(self.host.addr() as u64, next.host.addr() as u64), gap(self.device, next.device));
        match gaps {
            (Some(one), Some(other))
                if one == other && one < BUFFER_ALIGN && self.is_state && next.is_state =>
            {
                self.bytes += one + next.bytes;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_state_are_copied_at_once_where_they_lie_alike() {
        let transfer = |host: usize, device, bytes, is_state| Transfer {
            host: std::ptr::without_provenance_mut(host),
            is_state,
            device,
            bytes,
        };
        let first = || transfer(0x1000, 0x8000, 300, true);
        let joined = |next: Transfer| {
            let mut first = first();
            first.joins(&next).then_some(first.bytes)
        };
        assert_eq!(joined(transfer(0x1200, 0x8200, 40, true)), Some(552));
        assert_eq!(joined(transfer(0x112c, 0x812c, 4, true)), Some(304));
        for (host, device, is_state) in [
            (0x1200, 0x8300, true),
            (0x1300, 0x8300, true),
            (0x1100, 0x8100, true),
            (0x1200, 0x7000, true),
            (0x0800, 0x7800, true),
            (0x1200, 0x8200, false),
        ] {
            assert_eq!(joined(transfer(host, device, 40, is_state)), None, "{host:#x} {device:#x}");
        }
        let mut input = transfer(0x1000, 0x8000, 300, false);
        assert!(!input.joins(&transfer(0x1200, 0x8200, 40, true)));
    }
}
