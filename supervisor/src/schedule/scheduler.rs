//! The state machine of one device: takes events and the time, returns actions.
//!
//! ```text
//! call:    submit ──► queued ──► running ──► finished
//!            ▲          │           │ its process ended
//!            └──again── │ ◄────── lost ──► guilty, or overdue
//!                       └─ expired, refused
//!          overdue while running: its worker is killed
//!          cancel: a queued call is gone, a running one is detached and runs on for nobody, not for long
//!
//! worker:  absent ──► free ──► bound to a domain ──► absent        (replaced by a fresh process)
//!                      ▲               └──► being scrubbed ──► absent   (where the device is set up so)
//!                      └───────────────────────┘
//! ```
//!
//! A worker serves one domain (owner, caller) at a time, and is replaced or scrubbed before it serves another,
//! not before the domain had it for its residency. Calls of a
//! domain start in the order they came; domains without a worker are served in the order they came.
//! Every decision costs the same however many calls and tenants wait.

use std::collections::{HashMap, VecDeque};

use super::budget::Budgets;
use super::exclusive::Exclusive;
use super::quarantine::{Admission, Quarantine, Use};
use super::table::{CallState, Entry, MAX_CALLS, Table};
use super::turns::Turns;
use super::types::{
    Action, CallId, Domain, Limits, NotNow, Order, Policy, Shape, Size, Terms, Verdict, WorkerId,
};
use crate::limits::DEADLINE_GRACE_NS;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) generation: u64,
    pub(super) state: State,
    /// One bit per lane with a call.
    pub(super) busy: u64,
    /// Its call wants all lanes.
    pub(super) closed: bool,
    pub(super) bound_ns: u64,
    pub(super) idle_since_ns: u64,
    /// A call failed in its process, which serves no other domain.
    pub(super) tainted: bool,
}

impl Worker {
    /// Nobody can use it now, but soon.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.state, State::Absent | State::Scrubbing { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No process, one that starts, or one that is being replaced.
    Absent,
    /// Ready, belongs to no domain.
    Free,
    Bound(Domain),
    /// Its process forgets the domain that it served, or is killed then.
    Scrubbing {
        until_ns: u64,
    },
}

#[derive(Debug, Default)]
pub(super) struct DomainState {
    pub(super) queue: VecDeque<CallId>,
    pub(super) workers: usize,
    /// Whether it stands in [`Scheduler::unplaced`].
    pub(super) is_unplaced: bool,
    /// Whether it stands in [`Scheduler::waiting`].
    pub(super) waits: bool,
    /// Its caller spent its budget: nothing of it starts, and it stands in neither.
    pub(super) held: bool,
    /// Device time that its workers used.
    pub(super) used_ns: u64,
}

/// The scheduler of one device.
#[derive(Debug)]
pub struct Scheduler<C> {
    pub(super) shape: Shape,
    pub(super) workers: Vec<Worker>,
    pub(super) table: Table<C>,
    pub(super) domains: HashMap<Domain, DomainState>,
    /// Domains with waiting calls and no worker, oldest first.
    pub(super) unplaced: VecDeque<Domain>,
    /// Domains that have workers and may have more calls than those can take.
    pub(super) waiting: VecDeque<Domain>,
    pub(super) queued: u64,
    pub(super) queued_bytes: u64,
    pub(super) turns: Option<Turns>,
    pub(super) exclusive: Exclusive,
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) quarantine: Quarantine,
    /// When a worker may be taken that a domain waits for.
    pub(super) room_ns: Option<u64>,
    /// How many workers a caller may have, where that is limited.
    pub(super) caps: HashMap<u32, usize>,
    /// Scratch, kept for its capacity.
    orders: Vec<Order>,
}

impl<C: Clone> Scheduler<C> {
    /// A device whose places are all empty.
    pub fn new(shape: Shape) -> Self {
        let shape = Shape { lanes: shape.lanes.min(64), ..shape };
        let absent = || Worker {
            generation: 0,
            state: State::Absent,
            busy: 0,
            closed: false,
            bound_ns: 0,
            idle_since_ns: 0,
            tainted: false,
        };
        let policy = Policy::default();
        Self {
            workers: (0..shape.workers).map(|_| absent()).collect(),
            table: Table::default(),
            domains: HashMap::new(),
            unplaced: VecDeque::new(),
            waiting: VecDeque::new(),
            queued: 0,
            queued_bytes: 0,
            turns: shape.turns.then(|| Turns::new(shape.workers)),
            exclusive: Exclusive::default(),
            policy,
            budgets: Budgets::new(policy.fault_budget),
            quarantine: Quarantine::new(policy.quarantine_after),
            room_ns: None,
            caps: HashMap::new(),
            orders: Vec::new(),
            shape,
        }
    }

    /// Calls waiting.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Calls in workers, and those whose process just ended.
    pub fn running(&self) -> u64 {
        self.table.len() as u64 - self.queued
    }

    /// The process that is ready in `worker`'s place, if one is, and its lanes with a call.
    pub fn busy_lanes(&self, worker: WorkerId) -> Option<(u64, u32)> {
        let worker = &self.workers[worker];
        (!worker.is_coming()).then(|| (worker.generation, worker.busy.count_ones()))
    }

    /// When [`Scheduler::expire`] must be called at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let turns = self.turns.as_ref().and_then(Turns::next_deadline_ns);
        let scrubs = self.shape.scrubs.then(|| {
            let until = self.workers.iter().filter_map(|worker| match worker.state {
                State::Scrubbing { until_ns } => Some(until_ns),
                _ => None,
            });
            until.min()
        });
        let all =
            [self.table.next_deadline_ns(), turns, scrubs.flatten(), self.room_ns, self.budgets.next_ns()];
        all.into_iter().flatten().min()
    }

    /// The call that `worker` says it answers; `None` means that it lies.
    pub fn running_call(&self, worker: WorkerId, id: CallId) -> Option<(&C, u32)> {
        let entry = self.table.get(id)?;
        match entry.state {
            CallState::Running { worker: w, lane, .. } if w == worker => Some((&entry.call, lane)),
            _ => None,
        }
    }

    /// A new call.
    pub fn submit(
        &mut self,
        now_ns: u64,
        call: C,
        terms: Terms,
        limits: Limits,
        actions: &mut Vec<Action<C>>,
    ) -> Result<CallId, NotNow> {
        let used = Use { function: terms.function, caller: terms.domain.caller };
        let is_probe = match self.quarantine.is_empty() {
            true => false,
            false => match self.quarantine.admit(now_ns, used) {
                Admission::Free => false,
                Admission::Probe => true,
                Admission::Refused(refusal) => return Err(NotNow::Quarantined(refusal)),
            },
        };
        // As a suspect a probe runs alone, and is guilty if its process ends.
        let wants_device = terms.size == Size::Exclusive || is_probe && self.shape.shared_faults;
        let room = match wants_device {
            false => self.find_lane(now_ns, terms.domain, is_probe || terms.size != Size::Lane),
            true => None,
        };
        if room.is_none() {
            if self.queued >= limits.calls.min(MAX_CALLS) {
                return Err(NotNow::Calls(self.queued));
            }
            if self.queued_bytes.saturating_add(terms.bytes) > limits.bytes {
                return Err(NotNow::Bytes(self.queued_bytes));
            }
        }
        let id = self.table.insert(call, terms);
        if is_probe {
            self.quarantine.probe(used);
            if let Some(entry) = self.table.get_mut(id) {
                (entry.probe, entry.suspect) = (true, true);
            }
        }
        self.queued += 1;
        self.queued_bytes += terms.bytes;
        match room {
            Some(worker) => self.start(now_ns, worker, id, actions),
            None if wants_device => self.line_up(now_ns, terms.domain, id, actions),
            None => {
                self.domain_mut(now_ns, terms.domain).queue.push_back(id);
                self.stand(terms.domain);
                self.make_room(now_ns, actions);
            }
        }
        Ok(id)
    }

    /// A process is ready in `worker`'s place.
    pub fn worker_ready(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: u64,
        actions: &mut Vec<Action<C>>,
    ) {
        self.workers[worker] = Worker {
            generation,
            state: State::Free,
            busy: 0,
            closed: false,
            bound_ns: now_ns,
            idle_since_ns: now_ns,
            tainted: false,
        };
        self.feed(now_ns, worker, actions);
        self.try_whole(now_ns, actions);
    }

    /// A worker forgot the domain that it served, and is like a fresh one; false means that it lies.
    pub fn scrubbed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) -> bool {
        let Worker { state, generation, .. } = self.workers[worker];
        let asked = matches!(state, State::Scrubbing { .. });
        if asked {
            self.worker_ready(now_ns, worker, generation, actions);
        }
        asked
    }

    /// All processes are about to be gone: nothing more starts in them. [`Scheduler::worker_gone`] follows for each.
    pub fn condemn_all(&mut self) {
        (0..self.workers.len()).for_each(|worker| self.unbind(worker));
    }

    /// Whether a worker has calls.
    pub fn has_calls(&self, worker: WorkerId) -> bool {
        self.workers[worker].busy != 0
    }

    /// A call failed in a worker's process: no other domain gets that one.
    pub fn taint(&mut self, worker: WorkerId) {
        self.workers[worker].tainted = true;
    }

    /// A worker answered a call: returns it, and the worker gets what it should do next. `None` means
    /// that the worker does not have such a call.
    pub fn finished(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        verdict: Verdict,
        actions: &mut Vec<Action<C>>,
    ) -> Option<C> {
        let (_, lane) = self.running_call(worker, id)?;
        let entry = self.table.remove(id)?;
        // Before anything else gets the device.
        let had_device = self.exclusive.is_for(worker);
        let place = &mut self.workers[worker];
        place.busy &= !(1 << lane);
        place.closed = false;
        if place.busy == 0 {
            place.idle_since_ns = now_ns;
        }
        self.judge(now_ns, &entry, verdict, actions);
        if !self.budgets.is_empty() {
            self.review(now_ns, entry.domain.caller, actions);
        }
        self.feed(now_ns, worker, actions);
        if self.workers[worker].busy == 0 {
            self.turn(actions, |turns, _| turns.idle(now_ns, worker));
        }
        if had_device {
            self.leave_whole(now_ns, worker, actions);
        }
        self.try_whole(now_ns, actions);
        Some(entry.call)
    }

    /// Takes a call back if it still waits. A running call runs on for a moment, but not again; whoever
    /// asked forgets it.
    pub fn cancel(&mut self, now_ns: u64, id: CallId, actions: &mut Vec<Action<C>>) -> Option<C> {
        let entry = self.table.get_mut(id)?;
        if entry.state != CallState::Queued {
            let again = std::mem::replace(&mut entry.detached, true);
            let until_ns = entry.deadline_ns.min(now_ns.saturating_add(self.policy.cancel_grace_ns));
            if !again {
                self.table.hasten(id, until_ns);
            }
            return None;
        }
        let held_up = !self.exclusive.is_empty();
        let entry = self.unqueue(id, actions)?;
        self.judge(now_ns, &entry, Verdict::Neither, actions);
        if held_up {
            self.resume(now_ns, actions);
        }
        Some(entry.call)
    }

    pub(super) fn unqueue(&mut self, id: CallId, actions: &mut Vec<Action<C>>) -> Option<Entry<C>> {
        let entry = self.table.remove(id)?;
        self.queued -= 1;
        self.queued_bytes -= entry.bytes;
        if entry.wants_device(self.shape.shared_faults) {
            if self.exclusive.remove(id) {
                self.give_back(actions);
            }
            return Some(entry);
        }
        if let Some(d) = self.domains.get_mut(&entry.domain) {
            // Deadlines and cancellations mostly hit the oldest, which stands first.
            if let Some(at) = d.queue.iter().position(|queued| *queued == id) {
                d.queue.remove(at);
            }
            if d.queue.is_empty() && d.workers == 0 {
                self.drop_domain(entry.domain);
            }
        }
        Some(entry)
    }

    /// Does what the time demands.
    pub fn expire(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let held_up = !self.exclusive.is_empty();
        while let Some(id) = self.table.pop_due(now_ns) {
            let Some(entry) = self.table.get_mut(id) else { continue };
            match entry.state {
                CallState::Queued => {
                    let caller = entry.domain.caller;
                    let Some(entry) = self.unqueue(id, actions) else { continue };
                    self.judge(now_ns, &entry, Verdict::Neither, actions);
                    let budget_ns = self.holds(now_ns, caller).then(|| self.budgets.waits_ns(now_ns, caller));
                    let budget_ns = budget_ns.map(|waits_ns| waits_ns.unwrap_or(0));
                    actions.push(Action::Expired { call: entry.call, budget_ns });
                }
                // First the worker may answer by itself; the second time patience is over.
                CallState::Running { worker, lane, overdue: false } => {
                    entry.state = CallState::Running { worker, lane, overdue: true };
                    self.table.postpone(id, DEADLINE_GRACE_NS);
                }
                CallState::Running { worker, overdue: true, .. }
                    if self
                        .turns
                        .as_ref()
                        .is_some_and(|turns| !turns.could_act(now_ns, worker, DEADLINE_GRACE_NS)) =>
                {
                    self.table.postpone(id, DEADLINE_GRACE_NS);
                }
                CallState::Running { worker, overdue: true, .. } => {
                    self.kill_overdue(now_ns, worker, id, actions);
                }
                CallState::Lost { .. } => entry.state = CallState::Lost { overdue: true },
            }
        }
        if let Some(worker) = self.turns.as_mut().and_then(|turns| turns.expire(now_ns)) {
            self.kill(now_ns, worker, None, actions);
        }
        for caller in self.budgets.due(now_ns) {
            self.review(now_ns, caller, actions);
        }
        for worker in 0..self.workers.len() {
            if matches!(self.workers[worker].state, State::Scrubbing { until_ns } if until_ns <= now_ns) {
                self.kill(now_ns, worker, None, actions);
            }
        }
        if self.room_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.make_room(now_ns, actions);
        }
        if held_up {
            self.resume(now_ns, actions);
        }
    }

    /// Whose a worker is.
    pub(super) fn served(&self, worker: WorkerId) -> Option<Domain> {
        match self.workers[worker].state {
            State::Bound(domain) => Some(domain),
            State::Free | State::Absent | State::Scrubbing { .. } => None,
        }
    }

    /// Its place takes no more calls until a fresh process is ready.
    pub(super) fn kill(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        call: Option<C>,
        actions: &mut Vec<Action<C>>,
    ) {
        let served = self.served(worker);
        self.unbind(worker);
        let generation = self.workers[worker].generation;
        actions.push(Action::Kill { call, worker, generation });
        self.draw(now_ns, served, actions);
    }

    /// A worker says that its lanes run empty for the next one; false means that it lies.
    pub fn yielding(&mut self, worker: WorkerId, turn: u64, actions: &mut Vec<Action<C>>) -> bool {
        self.turn(actions, |turns, orders| turns.yielding(worker, turn, orders)).unwrap_or(false)
    }

    /// A worker gives its turn back; false means that it lies.
    pub fn yielded(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        turn: u64,
        used_ns: u64,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let has_calls = self.workers[worker].busy != 0;
        let charged = self
            .turn(actions, |turns, orders| turns.yielded(now_ns, worker, turn, used_ns, has_calls, orders));
        let Some(Some(charged)) = charged else { return false };
        self.charge(worker, charged);
        true
    }

    /// Charges device time to the domain that a worker serves.
    pub(super) fn charge(&mut self, worker: WorkerId, used_ns: u64) {
        if let State::Bound(domain) = self.workers[worker].state
            && let Some(d) = self.domains.get_mut(&domain)
        {
            d.used_ns += used_ns;
        }
    }

    /// Device time that a domain's workers were charged since it has calls or workers.
    pub fn used_ns(&self, domain: Domain) -> u64 {
        self.domains.get(&domain).map_or(0, |d| d.used_ns)
    }

    /// Device time that the turns of a worker's place used.
    pub fn device_ns(&self, worker: WorkerId) -> u64 {
        self.turns.as_ref().map_or(0, |turns| turns.used_ns(worker))
    }

    /// Does something about turns, where they are in use, and passes on what follows.
    pub(super) fn turn<T>(
        &mut self,
        actions: &mut Vec<Action<C>>,
        event: impl FnOnce(&mut Turns, &mut Vec<Order>) -> T,
    ) -> Option<T> {
        let outcome = event(self.turns.as_mut()?, &mut self.orders);
        for order in self.orders.drain(..) {
            let generation = self.workers[order.worker()].generation;
            actions.push(Action::Turn { generation, order });
        }
        Some(outcome)
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
