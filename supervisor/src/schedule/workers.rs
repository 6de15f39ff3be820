//! The workers of one device as its scheduler sees them: plain state that the policies look at.
//!
//! ```text
//! absent ──► free ──► bound to a domain ──► absent        (replaced by a fresh process)
//!             ▲               └──► being scrubbed ──► absent   (where the device is set up so)
//!             └───────────────────────┘
//! ```

use std::ops::{Index, IndexMut};

use super::types::{Address, CallId, Domain};
use crate::ids::{Generation, TenantId, WorkerId};

/// One worker's slot.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) generation: Generation,
    pub(super) state: State,
    /// One bit per lane with a call.
    busy: u64,
    /// The calls in it.
    calls: Vec<CallId>,
    /// Its call wants all lanes.
    closed: bool,
    pub(super) bound_ns: u64,
    pub(super) idle_since_ns: u64,
    /// A call failed in its process, which serves no other domain.
    pub(super) tainted: bool,
    /// Commands that its process was given.
    commands: u64,
}

/// What a worker's process can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No process, one that starts, or one that is being replaced.
    Absent,
    /// Ready, belongs to no domain.
    Free,
    /// Serves a domain.
    Bound(Domain),
    /// Its process forgets the domain that it served, or is killed then.
    Scrubbing { until_ns: u64 },
}

impl Worker {
    /// No process is ready, but one will be soon.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.state, State::Absent | State::Scrubbing { .. })
    }

    /// Whether it has no calls.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// How many lanes have a call.
    pub(super) fn busy_lanes(&self) -> u32 {
        self.busy.count_ones()
    }

    /// Whether one more call fits, or one that wants all lanes.
    pub(super) fn has_room(&self, lanes: u32, all: bool) -> bool {
        match all {
            true => self.is_idle(),
            false => !self.closed && self.busy_lanes() < lanes,
        }
    }

    /// The calls in it.
    pub(super) fn calls(&self) -> &[CallId] {
        &self.calls
    }

    /// Whom it serves.
    pub(super) fn served(&self) -> Option<Domain> {
        match self.state {
            State::Bound(domain) => Some(domain),
            State::Free | State::Absent | State::Scrubbing { .. } => None,
        }
    }

    /// Whether it serves this caller.
    pub(super) fn serves(&self, caller: TenantId) -> bool {
        self.served().is_some_and(|domain| domain.caller == caller)
    }

    /// Puts a call into its first free lane.
    pub(super) fn put(&mut self, id: CallId, wants_all_lanes: bool) -> u32 {
        let lane = self.busy.trailing_ones();
        self.busy |= 1 << lane;
        self.closed = wants_all_lanes;
        self.calls.push(id);
        lane
    }

    /// A call is out of its lane.
    pub(super) fn take(&mut self, id: CallId, lane: u32, now_ns: u64) {
        self.busy &= !(1 << lane);
        self.closed = false;
        if let Some(at) = self.calls.iter().position(|call| *call == id) {
            self.calls.swap_remove(at);
        }
        if self.is_idle() {
            self.idle_since_ns = now_ns;
        }
    }

    /// Takes all its calls, oldest first.
    pub(super) fn take_all(&mut self) -> Vec<CallId> {
        (self.busy, self.closed) = (0, false);
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_unstable();
        calls
    }
}

/// All workers of a device.
#[derive(Debug)]
pub(super) struct Workers(Vec<Worker>);

impl Workers {
    /// Slots without processes.
    pub(super) fn new(count: usize) -> Self {
        let absent = || Worker {
            generation: Generation::new(0),
            state: State::Absent,
            busy: 0,
            calls: Vec::new(),
            closed: false,
            bound_ns: 0,
            idle_since_ns: 0,
            tainted: false,
            commands: 0,
        };
        Self((0..count).map(|_| absent()).collect())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// With their numbers.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (WorkerId, &Worker)> + ExactSizeIterator {
        self.0.iter().enumerate().map(|(at, worker)| (WorkerId::new(at), worker))
    }

    /// A fresh process is in a slot.
    pub(super) fn arrive(&mut self, now_ns: u64, worker: WorkerId, generation: Generation) {
        let slot = &mut self.0[worker.get()];
        (slot.generation, slot.commands) = (generation, 0);
        self.free(now_ns, worker);
    }

    /// The process in a slot is as good as a fresh one.
    pub(super) fn free(&mut self, now_ns: u64, worker: WorkerId) {
        let slot = &mut self.0[worker.get()];
        slot.take_all();
        (slot.state, slot.tainted) = (State::Free, false);
        (slot.bound_ns, slot.idle_since_ns) = (now_ns, now_ns);
    }

    /// Whom the next command to a worker is for, and its number.
    pub(super) fn address(&mut self, worker: WorkerId) -> Address {
        let slot = &mut self.0[worker.get()];
        let nth = slot.commands;
        slot.commands += 1;
        Address { worker, generation: slot.generation, nth }
    }

    /// How many workers serve a caller.
    pub(super) fn serving(&self, caller: TenantId) -> usize {
        self.0.iter().filter(|worker| worker.serves(caller)).count()
    }

    /// Whether a caller has a call in a worker.
    pub(super) fn runs(&self, caller: TenantId) -> bool {
        self.0.iter().any(|worker| !worker.is_idle() && worker.serves(caller))
    }
}

impl Index<WorkerId> for Workers {
    type Output = Worker;

    fn index(&self, worker: WorkerId) -> &Worker {
        &self.0[worker.get()]
    }
}

impl IndexMut<WorkerId> for Workers {
    fn index_mut(&mut self, worker: WorkerId) -> &mut Worker {
        &mut self.0[worker.get()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W0: WorkerId = WorkerId::new(0);
    const W1: WorkerId = WorkerId::new(1);

    #[test]
    fn commands_to_one_process_are_numbered_from_zero() {
        let mut workers = Workers::new(2);
        workers.arrive(0, W1, Generation::new(3));
        let nth = |workers: &mut Workers| workers.address(W1).nth;
        assert_eq!((nth(&mut workers), nth(&mut workers)), (0, 1));
        // A scrubbed process is still the same one.
        workers.free(5, W1);
        assert_eq!(nth(&mut workers), 2);
        workers.arrive(6, W1, Generation::new(4));
        assert_eq!(workers.address(W1), Address { worker: W1, generation: Generation::new(4), nth: 0 });
    }

    #[test]
    fn lanes_are_filled_from_the_first_and_calls_come_out_oldest_first() {
        let mut workers = Workers::new(1);
        let worker = &mut workers[W0];
        let lanes = [7, 5, 9].map(|id| worker.put(CallId(id), false));
        assert_eq!((lanes, worker.busy_lanes()), ([0, 1, 2], 3));
        worker.take(CallId(5), 1, 8);
        assert!(worker.has_room(3, false) && !worker.has_room(2, false) && !worker.has_room(3, true));
        assert_eq!(worker.put(CallId(6), false), 1);
        assert_eq!(worker.take_all(), [6, 7, 9].map(CallId));
        assert!(worker.is_idle() && worker.take_all().is_empty());
    }
}
