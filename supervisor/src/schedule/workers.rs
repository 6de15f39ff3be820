//! The workers of one device as its scheduler sees them: plain state that the policies look at.
//!
//! ```text
//! empty ──wanted──► absent ──► free ──► bound to a domain ──► absent    (replaced by a fresh process)
//!   ▲                           ▲            ├──► being scrubbed ──► absent   (where the device is set up so)
//!   │                           └────────────┘
//!   └──────────── its memory was wanted ─────┘
//! ```
//!
//! The first slots are those of shared workers, if there are any. Their processes are bound to the shared compartment as soon as
//! they are there, and stay.

use std::ops::{Index, IndexMut};

use super::limits::{COPIED_PER_US, MAX_REMEMBERED, PRICED_FUNCTIONS};
use super::types::{Address, CallId, Compartment, Domain, ResidentPrice, WhyGone};
use crate::ids::{FunctionId, Generation, IdMap, TenantId, WorkerId};

/// One worker's slot.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) generation: Generation,
    /// Changed by [`Workers::set_state`] only.
    pub(super) state: State,
    /// One bit per lane with a call.
    busy: u64,
    /// The calls in it, and their lanes.
    calls: Vec<(CallId, u32)>,
    /// True if the worker's call wants all lanes.
    closed: bool,
    pub(super) bound_ns: u64,
    pub(super) idle_since_ns: u64,
    /// True if a call failed in the process, which serves no other domain then.
    pub(super) tainted: bool,
    /// Commands that its process was given.
    commands: u64,
    /// What ran in the process for its present domain.
    pub(super) rebuild_cost: RebuildCost,
    /// True if the slot is to be empty once the process is gone.
    pub(super) dismissed: bool,
    /// Lanes of its process.
    lanes: u32,
    /// True if the process was made for a device that was set up otherwise.
    pub(super) outdated: bool,
    /// True if the worker takes no more calls, and leaves once it is idle.
    pub(super) retires: bool,
    /// Why the slot's last domain lost its process.
    pub(super) last_gone: Option<WhyGone>,
}

/// What a process would have to do again, if it gave way.
#[derive(Debug, Default)]
pub(super) struct RebuildCost {
    /// Functions that ran, and in which lanes, one bit for each.
    functions: IdMap<FunctionId, u64>,
    weight_bytes: u64,
    /// One bit for each lane that had a call.
    lanes: u64,
}

impl RebuildCost {
    /// A call runs in a lane. True if its function did not run in the process before.
    pub(super) fn ran(&mut self, lane: u32, function: FunctionId, weight_bytes: u64) -> bool {
        if self.functions.len() >= MAX_REMEMBERED {
            self.functions.clear();
        }
        self.lanes |= 1 << lane;
        let lanes = self.functions.entry(function).or_default();
        let is_new = std::mem::replace(lanes, *lanes | 1 << lane) == 0;
        self.weight_bytes += if is_new { weight_bytes } else { 0 };
        is_new
    }

    /// How many functions ran.
    pub(super) fn functions(&self) -> usize {
        self.functions.len()
    }

    /// The lanes in which a function ran, where graphs of it are: one bit for each.
    pub(super) fn lanes_of(&self, function: FunctionId) -> u64 {
        self.functions.get(&function).copied().unwrap_or(0)
    }

    /// What a fresh process would take to be as this one is.
    pub(super) fn rebuild_ns(&self, price: ResidentPrice) -> u64 {
        let weights_ns = self.weight_bytes / COPIED_PER_US * 1000;
        price.made_ns + self.install_ns(price, usize::MAX) + weights_ns
    }

    /// What it would take to have a fresh process, or one that `is_scrubbed`, ready for such a call as it had. Further functions and
    /// weights do not count: a domain that has many would keep its process from others for the sake of what only itself has to do again.
    pub(super) fn again_ns(&self, price: ResidentPrice, is_scrubbed: bool) -> u64 {
        (if is_scrubbed { price.process_ns } else { price.made_ns }) + self.install_ns(price, 1)
    }

    /// To install its functions, or so many of them.
    fn install_ns(&self, price: ResidentPrice, most: usize) -> u64 {
        let functions = self.functions.len().min(most).min(PRICED_FUNCTIONS) as u64;
        functions * (price.function_ns + u64::from(self.lanes.count_ones()) * price.graphs_ns)
    }
}

/// What a worker's process can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No process, and none is wanted.
    Empty,
    /// No process, but one is wanted: the next one starts, or the last one is on its way out.
    Absent,
    /// Ready, belongs to no domain.
    Free,
    /// Serves calls of a compartment.
    Bound(Compartment),
    /// The process forgets its last domain, or is killed at this moment.
    Scrubbing { until_ns: u64 },
}

impl Worker {
    /// True if no process is ready, but one will be soon.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.state, State::Absent | State::Scrubbing { .. })
    }

    /// True if it has no calls.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// How many lanes have a call.
    pub(super) fn busy_lanes(&self) -> u32 {
        self.busy.count_ones()
    }

    /// True if a lane has a call.
    pub(super) fn has_call_in(&self, lane: u32) -> bool {
        self.busy >> lane & 1 == 1
    }

    /// True unless all lanes in which a function ran have calls: elsewhere, its graph is to be made again.
    pub(super) fn finds_its_lane(&self, function: FunctionId) -> bool {
        let known = self.rebuild_cost.lanes_of(function);
        known == 0 || known & !self.busy != 0
    }

    /// True if one more call fits, or one that wants all lanes.
    pub(super) fn has_room(&self, all: bool) -> bool {
        !self.retires
            && match all {
                true => self.is_idle(),
                false => !self.closed && self.busy_lanes() < self.lanes,
            }
    }

    /// The calls in it.
    pub(super) fn calls(&self) -> impl ExactSizeIterator<Item = CallId> {
        self.calls.iter().map(|(id, _)| *id)
    }

    /// The calls of the job in a lane, in the order in which they lie there.
    pub(super) fn job_in(&self, lane: u32) -> impl Iterator<Item = CallId> {
        self.calls.iter().filter(move |(_, other)| *other == lane).map(|(id, _)| *id)
    }

    /// Whose calls it serves.
    pub(super) fn compartment(&self) -> Option<Compartment> {
        match self.state {
            State::Bound(compartment) => Some(compartment),
            State::Empty | State::Free | State::Absent | State::Scrubbing { .. } => None,
        }
    }

    /// The domain that has the worker alone.
    pub(super) fn served(&self) -> Option<Domain> {
        match self.compartment() {
            Some(Compartment::Of(domain)) => Some(domain),
            Some(Compartment::Shared) | None => None,
        }
    }

    /// True if all domains share it.
    pub(super) fn is_shared(&self) -> bool {
        self.state == State::Bound(Compartment::Shared)
    }

    /// True if it is a worker of this caller's.
    pub(super) fn serves(&self, caller: TenantId) -> bool {
        self.served().is_some_and(|domain| domain.caller == caller)
    }
}

/// All workers of a device. A set for each state spares searches.
#[derive(Debug, Default)]
pub(super) struct Workers {
    slots: Vec<Worker>,
    /// In so many slots there may be processes; there are more slots where there were more once.
    ceiling: usize,
    /// Slots of shared workers, the first ones.
    shared: usize,
    /// Lanes of processes that come.
    lanes: u32,
    empty: WorkerSet,
    /// Slots without a process where a domain can have one soon.
    absent: WorkerSet,
    scrubbing: WorkerSet,
    free: WorkerSet,
    busy: WorkerSet,
}

/// A set of workers: one bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WorkerSet(u64);

impl WorkerSet {
    /// Puts one in, or takes it out.
    pub(super) fn set(&mut self, worker: WorkerId, is_in: bool) {
        let bit = 1 << worker.get();
        self.0 = if is_in { self.0 | bit } else { self.0 & !bit };
    }

    /// How many are in it.
    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// True if none is.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The one with the lowest number.
    pub(super) fn first(self) -> Option<WorkerId> {
        (self.0 != 0).then(|| WorkerId::new(self.0.trailing_zeros() as usize))
    }

    /// By their numbers.
    pub(super) fn iter(mut self) -> impl Iterator<Item = WorkerId> {
        std::iter::from_fn(move || {
            let first = self.first()?;
            self.0 &= self.0 - 1;
            Some(first)
        })
    }
}

impl Workers {
    /// Slots without processes, the first ones for `shared` workers; in the first one a process is wanted.
    pub(super) fn new(count: usize, shared: usize, lanes: u32) -> Self {
        let mut workers = Self { shared, ..Self::default() };
        workers.resize(count, lanes);
        if count > 0 {
            workers.set_state(WorkerId::new(0), State::Absent);
        }
        workers
    }

    /// From now on there may be so many processes, and those that come have so many lanes.
    pub(super) fn resize(&mut self, count: usize, lanes: u32) {
        let empty = || Worker {
            generation: Generation::new(0),
            state: State::Empty,
            busy: 0,
            calls: Vec::new(),
            closed: false,
            bound_ns: 0,
            idle_since_ns: 0,
            tainted: false,
            commands: 0,
            rebuild_cost: RebuildCost::default(),
            dismissed: false,
            lanes,
            outdated: false,
            retires: false,
            last_gone: None,
        };
        let slots = self.slots.len().max(count);
        self.slots.resize_with(slots, empty);
        (self.ceiling, self.lanes) = (count, lanes);
        WorkerId::first(slots).for_each(|worker| self.note_state(worker));
    }

    /// True if a slot is a shared worker's.
    pub(super) fn is_for_shared(&self, worker: WorkerId) -> bool {
        worker.get() < self.shared
    }

    /// The slots of shared workers.
    pub(super) fn shared(&self) -> impl Iterator<Item = WorkerId> + use<> {
        WorkerId::first(self.shared)
    }

    /// By how many the processes that stay, or come, exceed the ceiling.
    pub(super) fn excess(&self) -> usize {
        // A shared worker without a process gets one.
        let stays = |(id, worker): &(WorkerId, &Worker)| {
            worker.state != State::Empty && !worker.dismissed || self.is_for_shared(*id)
        };
        self.iter().filter(stays).count().saturating_sub(self.ceiling)
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A worker's state changes; what it was.
    pub(super) fn set_state(&mut self, worker: WorkerId, state: State) -> State {
        let before = std::mem::replace(&mut self[worker].state, state);
        self.note_state(worker);
        before
    }

    fn note_state(&mut self, worker: WorkerId) {
        let state = self[worker].state;
        self.empty.set(worker, state == State::Empty && !self.is_for_shared(worker));
        self.absent.set(worker, state == State::Absent && !self.is_for_shared(worker));
        self.scrubbing.set(worker, matches!(state, State::Scrubbing { .. }));
        self.free.set(worker, state == State::Free);
    }

    /// Puts a call into a lane: an empty one, or that of the job to which the call belongs.
    pub(super) fn put(&mut self, worker: WorkerId, id: CallId, lane: u32, wants_all_lanes: bool) {
        let slot = &mut self[worker];
        slot.busy |= 1 << lane;
        slot.closed = wants_all_lanes;
        slot.calls.push((id, lane));
        self.busy.set(worker, true);
    }

    /// A call is out of its lane, which is empty with the last call of a job.
    pub(super) fn take(&mut self, worker: WorkerId, id: CallId, lane: u32, now_ns: u64) {
        let slot = &mut self[worker];
        slot.closed = false;
        slot.calls.retain(|(call, _)| *call != id);
        if slot.job_in(lane).next().is_none() {
            slot.busy &= !(1 << lane);
        }
        if slot.is_idle() {
            slot.idle_since_ns = now_ns;
            self.busy.set(worker, false);
        }
    }

    /// Takes all calls of a worker, oldest first.
    pub(super) fn take_all(&mut self, worker: WorkerId) -> Vec<CallId> {
        self.busy.set(worker, false);
        let slot = &mut self[worker];
        (slot.busy, slot.closed) = (0, false);
        let mut calls: Vec<CallId> = std::mem::take(&mut slot.calls).into_iter().map(|(id, _)| id).collect();
        calls.sort_unstable();
        calls
    }

    /// The first slot without a process in which none is wanted.
    pub(super) fn first_empty(&self) -> Option<WorkerId> {
        // Slots beyond the ceiling stay empty.
        let beyond = self.slots.len().saturating_sub(self.ceiling);
        self.empty.first().filter(|_| self.empty.len() > beyond)
    }

    /// The first that is ready, belongs to no domain and stays.
    pub(super) fn first_free(&self) -> Option<WorkerId> {
        self.free.iter().find(|worker| !self[*worker].retires)
    }

    /// How many slots will soon have a process that a domain can have.
    pub(super) fn coming(&self) -> usize {
        self.absent() + self.scrubbing()
    }

    /// How many slots have no process where a domain can have one soon.
    pub(super) fn absent(&self) -> usize {
        self.absent.len()
    }

    /// Slots whose process is being scrubbed.
    pub(super) fn scrubbing(&self) -> usize {
        self.scrubbing.len()
    }

    /// With their numbers.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (WorkerId, &Worker)> + ExactSizeIterator {
        self.slots.iter().enumerate().map(|(at, worker)| (WorkerId::new(at), worker))
    }

    /// To change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (WorkerId, &mut Worker)> {
        self.slots.iter_mut().enumerate().map(|(at, worker)| (WorkerId::new(at), worker))
    }

    /// Those of a set.
    pub(super) fn of(&self, set: WorkerSet) -> impl Iterator<Item = (WorkerId, &Worker)> {
        set.iter().map(|worker| (worker, &self[worker]))
    }

    /// Those with calls.
    pub(super) fn busy(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.of(self.busy)
    }

    /// Those without calls.
    pub(super) fn idle(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let all = if self.len() < 64 { (1 << self.len()) - 1 } else { u64::MAX };
        self.of(WorkerSet(all & !self.busy.0))
    }

    /// True if the sets are what the states are; for invariants.
    #[cfg(test)]
    pub(super) fn sets_are_right(&self) -> bool {
        self.iter().all(|(id, worker)| {
            let is_in = |set: WorkerSet| set.0 >> id.get() & 1 == 1;
            let coming = is_in(self.absent) != is_in(self.scrubbing);
            let are = (is_in(self.empty), coming, is_in(self.free), is_in(self.busy));
            let (free, empty) = (worker.state == State::Free, worker.state == State::Empty);
            let is_own = !self.is_for_shared(id);
            are == (empty && is_own, worker.is_coming() && is_own, free, !worker.is_idle())
        })
    }

    /// A fresh process is in a slot.
    pub(super) fn arrive(&mut self, now_ns: u64, worker: WorkerId, generation: Generation) {
        let slot = &mut self.slots[worker.get()];
        (slot.generation, slot.commands, slot.dismissed) = (generation, 0, false);
        (slot.lanes, slot.outdated, slot.retires) = (self.lanes, false, false);
        self.free(now_ns, worker);
    }

    /// The process in a slot is as good as a fresh one.
    pub(super) fn free(&mut self, now_ns: u64, worker: WorkerId) {
        self.take_all(worker);
        self.set_state(worker, State::Free);
        let slot = &mut self[worker];
        slot.tainted = false;
        slot.rebuild_cost = RebuildCost::default();
        (slot.bound_ns, slot.idle_since_ns) = (now_ns, now_ns);
    }

    /// Whom the next command to a worker is for, and its number.
    pub(super) fn address(&mut self, worker: WorkerId) -> Address {
        let slot = &mut self[worker];
        let nth = slot.commands;
        slot.commands += 1;
        Address { worker, generation: slot.generation, nth }
    }
}

impl Index<WorkerId> for Workers {
    type Output = Worker;

    fn index(&self, worker: WorkerId) -> &Worker {
        &self.slots[worker.get()]
    }
}

impl IndexMut<WorkerId> for Workers {
    fn index_mut(&mut self, worker: WorkerId) -> &mut Worker {
        &mut self.slots[worker.get()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W0: WorkerId = WorkerId::new(0);
    const W1: WorkerId = WorkerId::new(1);

    #[test]
    fn commands_to_one_process_are_numbered_from_zero() {
        let mut workers = Workers::new(2, 0, 8);
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
    fn calls_come_out_of_their_lanes_oldest_first() {
        let mut workers = Workers::new(1, 0, 3);
        assert_eq!(workers.busy().count(), 0);
        (0..).zip([7, 5, 9]).for_each(|(lane, id)| workers.put(W0, CallId(id), lane, false));
        assert!(workers.sets_are_right() && workers.idle().count() == 0);
        assert_eq!(workers[W0].busy_lanes(), 3);
        workers.take(W0, CallId(5), 1, 8);
        let worker = &mut workers[W0];
        assert!(worker.has_room(false) && !worker.has_room(true));
        worker.retires = true;
        assert!(!worker.has_room(false), "it takes no more calls");
        assert!(worker.has_call_in(0) && !worker.has_call_in(1) && worker.has_call_in(2));
        workers.put(W0, CallId(6), 1, false);
        assert_eq!(workers.take_all(W0), [6, 7, 9].map(CallId));
        assert!(workers[W0].is_idle() && workers.take_all(W0).is_empty() && workers.sets_are_right());
    }

    #[test]
    fn a_process_is_the_dearer_the_more_it_would_have_to_do_again() {
        let mut past = RebuildCost::default();
        let rebuild_ns = |past: &RebuildCost| past.rebuild_ns(ResidentPrice::GPU);
        let mut before = rebuild_ns(&past);
        let mut dearer =
            |past: &RebuildCost| std::mem::replace(&mut before, rebuild_ns(past)) < rebuild_ns(past);
        assert!(past.ran(0, FunctionId::new(1), 0));
        assert!(dearer(&past), "a function");
        assert!(!past.ran(0, FunctionId::new(1), 0));
        assert!(!dearer(&past));
        past.ran(3, FunctionId::new(1), 0);
        assert!(dearer(&past), "graphs of another lane");
        past.ran(3, FunctionId::new(2), 1 << 30);
        assert!(dearer(&past), "weights");
        let prices_ns =
            |past: &RebuildCost| [true, false].map(|scrubbed| past.again_ns(ResidentPrice::GPU, scrubbed));
        let before_ns = prices_ns(&past);
        for id in 0..1000 {
            past.ran(0, FunctionId::new(id), 0);
        }
        assert_eq!(past.functions(), 1000);
        let all_ns = rebuild_ns(&past);
        past.ran(0, FunctionId::new(1000), 0);
        assert_eq!(rebuild_ns(&past), all_ns, "so many make it no dearer");
        // A domain does not keep its process from others by calling many functions.
        assert_eq!(prices_ns(&past), before_ns);
    }
}
