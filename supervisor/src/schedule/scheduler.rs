//! The state machine of one device: takes events and the time, returns actions.
//!
//! ```text
//! call:    submit ──► queued ──► running ──► (finished | worker gone)
//!                       │           │
//!                       └─ expired  └─ overdue: its worker is killed
//!          cancel: a queued call is gone, a running one is detached and runs on for nobody
//!
//! worker:  absent ──► free ──► bound to a domain ──► absent        (replaced by a fresh process)
//! ```
//!
//! A worker serves one domain (owner, caller) and is replaced before it serves another. Calls of a
//! domain start in the order they came; domains without a worker are served in the order they came.
//! Every decision costs the same however many calls and tenants wait.

use std::collections::{HashMap, VecDeque};

use slab::Slab;

use super::deadlines::Deadlines;
use super::words::{Action, CallId, Domain, Full, Limits, Terms, WorkerId};
use crate::limits::{DEADLINE_GRACE_NS, RESIDENCY_NS};

/// A call as the scheduler sees it.
#[derive(Debug)]
struct Entry<C> {
    call: C,
    serial: u64,
    domain: Domain,
    bytes: u64,
    deadline_ns: u64,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued,
    Running {
        worker: WorkerId,
        lane: u32,
        /// The deadline passed; the next time something is due, the worker is killed.
        overdue: bool,
    },
}

#[derive(Debug)]
struct Worker {
    generation: u64,
    state: State,
    /// One bit per lane with a call.
    busy: u64,
    bound_ns: u64,
    idle_since_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No process, one that starts, or one that is being replaced.
    Absent,
    /// Ready, belongs to no domain.
    Free,
    Bound(Domain),
}

#[derive(Debug, Default)]
struct DomainState {
    queue: VecDeque<CallId>,
    workers: u32,
    /// Whether it stands in [`Scheduler::waiting`].
    waits: bool,
}

/// The scheduler of one device.
#[derive(Debug)]
pub struct Scheduler<C> {
    workers: Vec<Worker>,
    lanes: u32,
    calls: Slab<Entry<C>>,
    next_serial: u64,
    domains: HashMap<Domain, DomainState>,
    /// Domains with waiting calls and no worker, oldest first.
    homeless: VecDeque<Domain>,
    /// Domains that have workers and may have more calls than those can take.
    waiting: VecDeque<Domain>,
    deadlines: Deadlines,
    queued: u64,
    queued_bytes: u64,
}

/// Bits of a call's id that hold its slab index.
const INDEX_BITS: u32 = 24;

impl<C: Clone> Scheduler<C> {
    /// A device with `workers` places, all absent, of `lanes` lanes each (at most 64).
    pub fn new(workers: usize, lanes: u32) -> Self {
        let absent =
            || Worker { generation: 0, state: State::Absent, busy: 0, bound_ns: 0, idle_since_ns: 0 };
        Self {
            workers: (0..workers).map(|_| absent()).collect(),
            lanes: lanes.min(64),
            calls: Slab::new(),
            next_serial: 1,
            domains: HashMap::new(),
            homeless: VecDeque::new(),
            waiting: VecDeque::new(),
            deadlines: Deadlines::default(),
            queued: 0,
            queued_bytes: 0,
        }
    }

    /// Calls waiting.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Calls in workers.
    pub fn running(&self) -> u64 {
        self.calls.len() as u64 - self.queued
    }

    /// Lanes of `worker` with a call, or `None` while no process is ready there.
    pub fn busy_lanes(&self, worker: WorkerId) -> Option<u32> {
        let worker = &self.workers[worker];
        (worker.state != State::Absent).then(|| worker.busy.count_ones())
    }

    /// When [`Scheduler::expire`] must be called at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.next_ns()
    }

    /// The call that `worker` says it answers; `None` means that it lies.
    pub fn running_call(&self, worker: WorkerId, id: CallId) -> Option<(&C, u32)> {
        let entry = self.entry(id)?;
        match entry.place {
            Place::Running { worker: w, lane, .. } if w == worker => Some((&entry.call, lane)),
            _ => None,
        }
    }

    fn entry(&self, id: CallId) -> Option<&Entry<C>> {
        let entry = self.calls.get((id.0 & ((1 << INDEX_BITS) - 1)) as usize)?;
        (entry.serial == id.0 >> INDEX_BITS).then_some(entry)
    }

    fn index(&self, id: CallId) -> Option<usize> {
        self.entry(id).map(|_| (id.0 & ((1 << INDEX_BITS) - 1)) as usize)
    }

    /// A new call.
    pub fn submit(
        &mut self,
        now_ns: u64,
        call: C,
        Terms { domain, bytes, deadline_ns }: Terms,
        limits: Limits,
        actions: &mut Vec<Action<C>>,
    ) -> Result<CallId, Full> {
        let room = self.find_lane(now_ns, domain);
        if room.is_none() {
            if self.queued >= limits.calls.min(1 << (INDEX_BITS - 1)) {
                return Err(Full::Calls(self.queued));
            }
            if self.queued_bytes.saturating_add(bytes) > limits.bytes {
                return Err(Full::Bytes(self.queued_bytes));
            }
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = Entry { call, serial, domain, bytes, deadline_ns, place: Place::Queued };
        let id = CallId((serial << INDEX_BITS) | self.calls.insert(entry) as u64);
        self.deadlines.insert(deadline_ns, id);
        self.queued += 1;
        self.queued_bytes += bytes;
        match room {
            Some(worker) => self.start(now_ns, worker, id, actions),
            None => {
                let state = self.domains.entry(domain).or_default();
                state.queue.push_back(id);
                if state.workers == 0 {
                    if state.queue.len() == 1 {
                        self.homeless.push_back(domain);
                    }
                } else if !state.waits {
                    state.waits = true;
                    self.waiting.push_back(domain);
                }
                self.make_room(now_ns, actions);
            }
        }
        Ok(id)
    }

    /// A worker that can take a call of `domain` at once: its own with a free lane (the fullest first,
    /// so that others stay idle), else one that belongs to nobody. Calls that wait go first.
    fn find_lane(&self, now_ns: u64, domain: Domain) -> Option<WorkerId> {
        if self.domains.get(&domain).is_some_and(|d| !d.queue.is_empty()) {
            return None;
        }
        let own = self.workers.iter().enumerate().filter(|(_, w)| {
            w.state == State::Bound(domain) && w.busy.count_ones() < self.lanes && !self.must_leave(now_ns, w)
        });
        own.max_by_key(|(_, w)| w.busy.count_ones())
            .or_else(|| self.workers.iter().enumerate().find(|(_, w)| w.state == State::Free))
            .map(|(id, _)| id)
    }

    /// Whether a busy worker takes no more calls: its domain had it long enough and others have none.
    fn must_leave(&self, now_ns: u64, worker: &Worker) -> bool {
        worker.busy != 0
            && !self.homeless.is_empty()
            && now_ns.saturating_sub(worker.bound_ns) >= RESIDENCY_NS
    }

    fn start(&mut self, now_ns: u64, worker: WorkerId, id: CallId, actions: &mut Vec<Action<C>>) {
        let Some(index) = self.index(id) else { return };
        let domain = self.calls[index].domain;
        if self.workers[worker].state == State::Free {
            self.workers[worker].state = State::Bound(domain);
            self.workers[worker].bound_ns = now_ns;
            self.domains.entry(domain).or_default().workers += 1;
        }
        let place = &mut self.workers[worker];
        let lane = place.busy.trailing_ones();
        place.busy |= 1 << lane;
        let entry = &mut self.calls[index];
        entry.place = Place::Running { worker, lane, overdue: false };
        self.queued -= 1;
        self.queued_bytes -= entry.bytes;
        let (generation, call) = (place.generation, entry.call.clone());
        actions.push(Action::Start { worker, generation, lane, id, call });
    }

    /// Replaces idle workers of other domains, as many as are needed and not coming already; the one
    /// idle longest goes first. A domain that has workers gets another only from one idle for a while.
    fn make_room(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let coming = self.workers.iter().filter(|w| w.state == State::Absent).count();
        let wanted = self.homeless.len() + usize::from(!self.waiting.is_empty());
        for nth in coming..wanted {
            let patience_ns = if nth < self.homeless.len() { 0 } else { RESIDENCY_NS };
            let idle = self.workers.iter().enumerate().filter(|(_, w)| {
                matches!(w.state, State::Bound(_))
                    && w.busy == 0
                    && now_ns.saturating_sub(w.idle_since_ns) >= patience_ns
            });
            let Some(worker) = idle.min_by_key(|(_, w)| w.idle_since_ns).map(|(id, _)| id) else {
                return;
            };
            self.replace(worker, actions);
        }
    }

    fn replace(&mut self, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        self.unbind(worker);
        let generation = self.workers[worker].generation;
        actions.push(Action::Replace { worker, generation });
    }

    /// Takes a worker from its domain; the domain may become homeless.
    fn unbind(&mut self, worker: WorkerId) {
        let state = std::mem::replace(&mut self.workers[worker].state, State::Absent);
        let State::Bound(domain) = state else { return };
        let Some(d) = self.domains.get_mut(&domain) else {
            return;
        };
        d.workers -= 1;
        if d.workers > 0 {
            return;
        }
        if d.queue.is_empty() {
            self.drop_domain(domain);
        } else {
            self.homeless.push_back(domain);
        }
    }

    /// Forgets a domain that has neither calls nor workers.
    fn drop_domain(&mut self, domain: Domain) {
        if self.domains.remove(&domain).is_some_and(|d| d.waits) {
            self.waiting.retain(|waiting| *waiting != domain);
        }
    }

    /// The call that a worker which belongs to nobody should start with: of a domain without workers,
    /// else of one that has more calls than its workers can take.
    fn next_for_free(&mut self) -> Option<CallId> {
        if let Some(domain) = self.homeless.pop_front() {
            return self.domains.get_mut(&domain)?.queue.pop_front();
        }
        while let Some(domain) = self.waiting.pop_front() {
            let Some(d) = self.domains.get_mut(&domain) else {
                continue;
            };
            d.waits = d.queue.len() > 1;
            let first = d.queue.pop_front();
            if d.waits {
                self.waiting.push_back(domain);
            }
            if first.is_some() {
                return first;
            }
        }
        None
    }

    /// Gives a worker with free lanes what it should do next.
    fn feed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if self.workers[worker].state == State::Free {
            let Some(first) = self.next_for_free() else { return };
            self.start(now_ns, worker, first, actions);
        }
        if self.workers[worker].busy == 0 {
            self.workers[worker].idle_since_ns = now_ns;
            let had_it_long = now_ns.saturating_sub(self.workers[worker].bound_ns) >= RESIDENCY_NS;
            if had_it_long && !self.homeless.is_empty() {
                self.make_room(now_ns, actions);
            }
        }
        let State::Bound(domain) = self.workers[worker].state else {
            return;
        };
        while self.workers[worker].busy.count_ones() < self.lanes
            && !self.must_leave(now_ns, &self.workers[worker])
        {
            let Some(next) = self.domains.get_mut(&domain).and_then(|d| d.queue.pop_front()) else {
                break;
            };
            self.start(now_ns, worker, next, actions);
        }
        if self.workers[worker].busy == 0 && !self.homeless.is_empty() {
            self.make_room(now_ns, actions);
        }
    }

    /// A process is ready in `worker`'s place.
    pub fn worker_ready(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: u64,
        actions: &mut Vec<Action<C>>,
    ) {
        let place = &mut self.workers[worker];
        *place = Worker { generation, state: State::Free, busy: 0, bound_ns: now_ns, idle_since_ns: now_ns };
        self.feed(now_ns, worker, actions);
    }

    /// The process in `worker`'s place is gone: returns the calls that were in it, and whether each was
    /// overdue.
    pub fn worker_gone(&mut self, worker: WorkerId) -> Vec<(C, bool)> {
        self.unbind(worker);
        self.workers[worker].busy = 0;
        let lost: Vec<usize> = self
            .calls
            .iter()
            .filter(|(_, e)| matches!(e.place, Place::Running { worker: w, .. } if w == worker))
            .map(|(index, _)| index)
            .collect();
        let entries = lost.into_iter().map(|index| self.forget(index));
        entries.map(|e| (e.call, matches!(e.place, Place::Running { overdue: true, .. }))).collect()
    }

    /// `worker` finished a call; returns it, unless the worker lies.
    pub fn finished(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) -> Option<C> {
        self.running_call(worker, id)?;
        let index = self.index(id)?;
        let entry = self.forget(index);
        if let Place::Running { lane, .. } = entry.place {
            self.workers[worker].busy &= !(1 << lane);
        }
        self.feed(now_ns, worker, actions);
        Some(entry.call)
    }

    fn forget(&mut self, index: usize) -> Entry<C> {
        let entry = self.calls.remove(index);
        let id = CallId((entry.serial << INDEX_BITS) | index as u64);
        self.deadlines.remove(entry.deadline_ns, id);
        entry
    }

    /// Takes a call back if it still waits. A running call runs on; whoever asked forgets it.
    pub fn cancel(&mut self, id: CallId) -> Option<C> {
        let index = self.index(id)?;
        (self.calls[index].place == Place::Queued).then(|| self.unqueue(index))
    }

    fn unqueue(&mut self, index: usize) -> C {
        let entry = self.forget(index);
        let id = CallId((entry.serial << INDEX_BITS) | index as u64);
        self.queued -= 1;
        self.queued_bytes -= entry.bytes;
        if let Some(d) = self.domains.get_mut(&entry.domain) {
            // Deadlines and cancellations mostly hit the oldest, which stands first.
            if let Some(at) = d.queue.iter().position(|queued| *queued == id) {
                d.queue.remove(at);
            }
            if d.queue.is_empty() && d.workers == 0 {
                self.drop_domain(entry.domain);
                self.homeless.retain(|homeless| *homeless != entry.domain);
            }
        }
        entry.call
    }

    /// Does what the time demands.
    pub fn expire(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        while let Some(id) = self.deadlines.pop_due(now_ns) {
            let Some(index) = self.index(id) else { continue };
            match self.calls[index].place {
                Place::Queued => {
                    let call = self.unqueue(index);
                    actions.push(Action::Expired(call));
                }
                // First the worker may answer by itself; the second time patience is over.
                Place::Running { worker, lane, overdue: false } => {
                    let entry = &mut self.calls[index];
                    entry.place = Place::Running { worker, lane, overdue: true };
                    entry.deadline_ns = entry.deadline_ns.saturating_add(DEADLINE_GRACE_NS);
                    self.deadlines.insert(entry.deadline_ns, id);
                }
                Place::Running { worker, overdue: true, .. } => {
                    // Its place takes no more calls until a fresh process is ready.
                    self.unbind(worker);
                    let (generation, call) =
                        (self.workers[worker].generation, self.calls[index].call.clone());
                    actions.push(Action::Kill { call, worker, generation });
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
