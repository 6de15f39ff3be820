//! The state machine of one device: takes events and the time, returns actions. This file puts the policies
//! together; each decides about its own part, and `follow_up` carries their verdicts out.
//!
//! ```text
//! call:    submit ──► queued ──► running ──► finished
//!            ▲          │           │ its process ended
//!            │          │         lost ──► what it wrote is being cleared ──► not cleared in time
//!            └──again── │ ◄─────────┴──────────────┴──► guilty, or overdue
//!                       └─ expired, refused
//!          overdue while running: its worker is killed
//!          cancel: a queued call is gone; a running one keeps running until the cancel grace period ends, and its
//!          result is dropped
//! ```
//!
//! What a decision costs grows with the workers of the device (64 at most) and with the logarithm of the calls, not
//! with the number of calls. Exceptions, each off the path of a call that succeeds: a function that is refused costs
//! its domain's waiting calls; a caller whose budget is spent or comes back costs its domains and the lines that they
//! stand in; a call for the whole device looks at all domains once before it begins.

use super::budget::Budget;
use super::calls::{CallState, Calls, MAX_CALLS};
use super::events::Event;
use super::exclusive::Exclusive;
use super::lending::{Lending, TakeBack};
use super::penalties::{Draw, Penalties};
use super::placing::Placing;
use super::quarantine::{Admission, Quarantined, Use};
use super::residency::Residency;
use super::retry::Attempts;
use super::turns::{Order, Turns};
use super::types::{
    Action, CallId, Command, Domain, Ended, KillReason, Limits, Loss, NotNow, Policy, Resident, Shape, Terms,
    Verdict, WhyGone,
};
use super::workers::{State, Workers};
use crate::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};
use crate::limits::CLEAR_NS;

/// The scheduler of one device.
#[derive(Debug)]
pub struct Scheduler<C> {
    pub(super) shape: Shape,
    pub(super) workers: Workers,
    pub(super) calls: Calls<C>,
    pub(super) placing: Placing,
    pub(super) turns: Option<Turns>,
    pub(super) exclusive: Exclusive,
    pub(super) penalties: Penalties,
    pub(super) lending: Lending,
    pub(super) residency: Residency,
    /// Draws for processes that are not reaped: it is not known yet what ended them.
    drawn: Vec<(WorkerId, Generation, Draw)>,
    /// Scratch, kept for its capacity.
    pub(super) orders: Vec<Order>,
    pub(super) taken: TakeBack,
}

impl<C: Clone> Scheduler<C> {
    /// A device whose slots are all empty. In the first one a process is wanted: [`Ready`](super::events::Ready) follows.
    pub fn new(shape: Shape) -> Self {
        let shape = Shape { lanes: shape.lanes.min(64), ..shape };
        Self {
            workers: Workers::new(shape.workers),
            calls: Calls::default(),
            placing: Placing::new(&shape),
            turns: shape.quantum_us.map(|quantum_us| Turns::new(shape.workers, quantum_us)),
            exclusive: Exclusive::new(),
            penalties: Penalties::new(Policy::default()),
            lending: Lending::new(&shape),
            residency: Residency::new(&shape),
            drawn: Vec::new(),
            orders: Vec::new(),
            taken: TakeBack::new(),
            shape,
        }
    }

    /// Something happened: decides what follows from it. What is to be done is appended to `actions`.
    pub fn handle<E: Event<C>>(&mut self, now_ns: u64, event: E, actions: &mut Vec<Action<C>>) -> E::Reply {
        event.apply(self, now_ns, actions)
    }

    pub(super) fn submit(
        &mut self,
        now_ns: u64,
        call: C,
        terms: Terms,
        limits: Limits,
        actions: &mut Vec<Action<C>>,
    ) -> Result<CallId, NotNow> {
        let domain = terms.domain;
        let used = Use { function: terms.function, caller: domain.caller };
        let is_probe = match self.penalties.admit(now_ns, used) {
            Admission::Free => false,
            Admission::Probe => true,
            Admission::Refused(refusal) => return Err(NotNow::Quarantined(refusal)),
        };
        // As a suspect a probe runs alone, and is guilty if its process ends.
        let is_whole = terms.memory_bytes > self.shape.memory_bytes / 2;
        let wants_device = is_whole || is_probe && self.shape.shared_faults;
        let room = match wants_device {
            false => {
                let held = || self.holds(now_ns, domain.caller);
                self.placing.find_lane(now_ns, domain, is_probe, held, self.view(), &self.residency)
            }
            true => None,
        };
        if room.is_none() {
            let (queued, bytes) = (self.calls.queued(), self.calls.queued_bytes());
            if queued >= limits.calls.min(MAX_CALLS) {
                return Err(NotNow::Calls(queued));
            }
            if bytes.saturating_add(terms.bytes) > limits.bytes {
                return Err(NotNow::Bytes(bytes));
            }
        }
        let attempts = if is_probe { Attempts::of_suspect() } else { Attempts::default() };
        let id = self.calls.insert(call, terms, is_whole, attempts, is_probe);
        if is_probe {
            self.penalties.probe(used);
        }
        match room {
            Some(worker) => self.start_or_wait(now_ns, worker, id, actions),
            None if wants_device => self.line_up(now_ns, domain.caller, id, actions),
            None => {
                self.enqueue(now_ns, domain, id);
                self.make_room(now_ns, actions);
            }
        }
        Ok(id)
    }

    pub(super) fn finished(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        verdict: Verdict,
        actions: &mut Vec<Action<C>>,
    ) -> Option<C> {
        let (_, lane) = self.running_call(worker, id)?;
        let entry = self.calls.remove(id)?;
        // Before anything else gets the device.
        let had_device = self.exclusive.is_for(worker);
        self.workers[worker].take(id, lane, now_ns);
        self.lending.unpromise(entry.beside_bytes);
        self.judge(now_ns, &entry, verdict, actions);
        if self.penalties.may_hold() {
            self.review(now_ns, entry.domain.caller, actions);
        }
        self.serve_memory(now_ns, entry.domain.caller, actions);
        self.feed(now_ns, worker, actions);
        if self.workers[worker].is_idle() {
            self.turn(actions, |turns, _| turns.idle(now_ns, worker));
        }
        if had_device {
            self.leave_device(now_ns, worker, actions);
        }
        self.try_exclusive(now_ns, actions);
        Some(entry.call)
    }

    pub(super) fn cancel(&mut self, now_ns: u64, id: CallId, actions: &mut Vec<Action<C>>) -> Option<C> {
        let entry = self.calls.get_mut(id)?;
        if entry.state != CallState::Queued {
            let again = std::mem::replace(&mut entry.detached, true);
            let until_ns = now_ns.saturating_add(self.penalties.cancel_grace_ns()).min(entry.deadline_ns);
            if !again {
                self.calls.move_to(id, until_ns);
            }
            return None;
        }
        let held_up = self.exclusive.has_line();
        let entry = self.unqueue(now_ns, id, actions)?;
        self.judge(now_ns, &entry, Verdict::Neither, actions);
        if held_up {
            self.resume(now_ns, actions);
        }
        Some(entry.call)
    }

    pub(super) fn ready(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        actions: &mut Vec<Action<C>>,
    ) {
        self.workers.arrive(now_ns, worker, generation);
        self.lending.arrived(worker, generation);
        self.tell(worker, Command::Configure, actions);
        self.feed(now_ns, worker, actions);
        self.try_exclusive(now_ns, actions);
    }

    pub(super) fn scrubbed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) -> bool {
        let asked = matches!(self.workers[worker].state, State::Scrubbing { .. });
        if asked {
            self.workers.free(now_ns, worker);
            self.feed(now_ns, worker, actions);
            self.try_exclusive(now_ns, actions);
        }
        asked
    }

    pub(super) fn tainted(&mut self, worker: WorkerId) {
        self.workers[worker].tainted = true;
    }

    pub(super) fn gone(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        actions: &mut Vec<Action<C>>,
    ) -> Vec<(CallId, C)> {
        self.turn(actions, |turns, orders| turns.gone(now_ns, worker, orders));
        self.lending.gone(worker);
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::Ended);
        self.refill(worker, actions);
        let mut lost = Vec::new();
        for id in self.workers[worker].take_all() {
            let Some(entry) = self.calls.get_mut(id) else { continue };
            self.lending.unpromise(std::mem::take(&mut entry.beside_bytes));
            let overdue = matches!(entry.state, CallState::Running { overdue: true, .. });
            entry.state = CallState::Lost { overdue };
            lost.push((id, entry.call.clone()));
        }
        // Not before: what it sets going looks for workers.
        if let Some(domain) = served.filter(|_| !self.shape.shared_faults) {
            let draw = self.draw(now_ns, domain.caller, actions);
            self.drawn.push((worker, self.workers[worker].generation, draw));
        }
        self.leave_device(now_ns, worker, actions);
        if let Some(domain) = served {
            self.review(now_ns, domain.caller, actions);
            self.feed_limited(now_ns, domain.caller, actions);
        }
        lost
    }

    pub(super) fn reaped(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        from_outside: bool,
        actions: &mut Vec<Action<C>>,
    ) {
        self.lending.reaped(worker, generation);
        let drawn = self.drawn.iter().position(|(w, g, _)| (*w, *g) == (worker, generation));
        if let Some((.., draw)) = drawn.map(|at| self.drawn.swap_remove(at)).filter(|_| from_outside) {
            self.penalties.give_back(now_ns, draw);
            self.review(now_ns, draw.caller, actions);
        }
        self.memory_came(now_ns, actions);
    }

    pub(super) fn buried(
        &mut self,
        now_ns: u64,
        id: CallId,
        loss: Loss,
        actions: &mut Vec<Action<C>>,
    ) -> Option<(C, Ended)> {
        let entry = self.calls.get_mut(id)?;
        let (overdue, deadline_ns) = match entry.state {
            CallState::Lost { overdue } => (overdue, entry.deadline_ns),
            CallState::Clearing { overdue, deadline_ns } => (overdue, deadline_ns),
            CallState::Queued | CallState::Running { .. } => return None,
        };
        let late = overdue || deadline_ns <= now_ns;
        if let Some(ended) = entry.attempts.lost(loss, late, entry.detached) {
            let entry = self.calls.remove(id)?;
            if ended == Ended::Guilty {
                if self.shape.shared_faults {
                    self.draw(now_ns, entry.domain.caller, actions);
                }
                self.judge(now_ns, &entry, Verdict::Fault, actions);
            } else {
                self.judge(now_ns, &entry, Verdict::Neither, actions);
            }
            self.try_exclusive(now_ns, actions);
            return Some((entry.call, ended));
        }
        let (domain, wants_device) = (entry.domain, entry.wants_device(self.shape.shared_faults));
        self.calls.waits_again(id);
        if wants_device {
            self.line_up(now_ns, domain.caller, id, actions);
            return None;
        }
        self.enqueue(now_ns, domain, id);
        for worker in WorkerId::first(self.workers.len()) {
            let state = self.workers[worker].state;
            if state == State::Free || state == State::Bound(domain) {
                self.feed(now_ns, worker, actions);
            }
        }
        self.make_room(now_ns, actions);
        self.try_exclusive(now_ns, actions);
        None
    }

    pub(super) fn clearing(&mut self, now_ns: u64, id: CallId, actions: &mut Vec<Action<C>>) -> Option<u64> {
        let entry = self.calls.get(id).filter(|entry| matches!(entry.state, CallState::Lost { .. }))?;
        let until_ns = entry.deadline_ns.max(now_ns.saturating_add(CLEAR_NS));
        self.calls.clears(id, until_ns);
        // No process has it any more.
        self.try_exclusive(now_ns, actions);
        Some(until_ns)
    }

    pub(super) fn yielding(&mut self, worker: WorkerId, turn: TurnId, actions: &mut Vec<Action<C>>) -> bool {
        self.turn(actions, |turns, orders| turns.yielding(worker, turn, orders)).unwrap_or(false)
    }

    pub(super) fn yielded(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        turn: TurnId,
        used_ns: u64,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let has_calls = !self.workers[worker].is_idle();
        let charged = self
            .turn(actions, |turns, orders| turns.yielded(now_ns, worker, turn, used_ns, has_calls, orders));
        charged.flatten().is_some()
    }

    pub(super) fn gave_back(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        left_bytes: u64,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let well = self.lending.gave_back(worker, left_bytes);
        if let Some(caller) = self.workers[worker].served().map(|domain| domain.caller) {
            self.feed_limited(now_ns, caller, actions);
        }
        self.memory_came(now_ns, actions);
        well
    }

    pub(super) fn weights_given_up(&mut self, now_ns: u64, coming_bytes: u64, actions: &mut Vec<Action<C>>) {
        self.lending.weights_answer(coming_bytes);
        self.memory_came(now_ns, actions);
    }

    pub(super) fn weights_settled(&mut self, id: CallId) {
        if let Some(entry) = self.calls.get_mut(id) {
            self.lending.unpromise(std::mem::take(&mut entry.beside_bytes));
        }
    }

    pub(super) fn not_started(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        missing_bytes: u64,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let Some((_, lane)) = self.running_call(worker, id) else { return false };
        let shared_faults = self.shape.shared_faults;
        self.workers[worker].take(id, lane, now_ns);
        let Some(entry) = self.calls.get_mut(id) else { return false };
        self.lending.unpromise(std::mem::replace(&mut entry.beside_bytes, missing_bytes));
        entry.attempts.not_started();
        let (domain, wants_device) = (entry.domain, entry.wants_device(shared_faults));
        self.calls.waits_again(id);
        if self.workers[worker].is_idle() {
            self.turn(actions, |turns, _| turns.idle(now_ns, worker));
        }
        if wants_device {
            self.line_up(now_ns, domain.caller, id, actions);
            self.leave_device(now_ns, worker, actions);
        } else {
            self.enqueue(now_ns, domain, id);
            self.feed(now_ns, worker, actions);
        }
        true
    }

    pub(super) fn settings_changed(&mut self, actions: &mut Vec<Action<C>>) {
        for worker in WorkerId::first(self.workers.len()) {
            if !matches!(self.workers[worker].state, State::Empty | State::Absent) {
                self.tell(worker, Command::Configure, actions);
            }
        }
    }

    pub(super) fn standbys_ready(&mut self, now_ns: u64, ready: usize, actions: &mut Vec<Action<C>>) {
        self.residency.set_ready(ready);
        if self.placing.has_unplaced() {
            self.make_room(now_ns, actions);
        }
    }

    pub(super) fn epoch_ended(&mut self) {
        for worker in WorkerId::first(self.workers.len()) {
            if self.workers[worker].state != State::Empty {
                self.unbind(worker, WhyGone::Ended);
            }
        }
    }

    pub(super) fn set_policy(&mut self, now_ns: u64, policy: Policy, actions: &mut Vec<Action<C>>) {
        for caller in self.penalties.set_policy(policy) {
            self.review(now_ns, caller, actions);
        }
    }

    pub(super) fn allow(&mut self, caller: TenantId, most_bytes: Option<u64>) {
        self.lending.allow(caller, most_bytes);
    }

    pub(super) fn function_gone(&mut self, function: FunctionId) {
        self.penalties.forget_function(function);
    }

    pub(super) fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let held_up = self.exclusive.has_line();
        while let Some(id) = self.calls.pop_due(now_ns) {
            self.due(now_ns, id, actions);
        }
        if let Some(worker) = self.turns.as_mut().and_then(|turns| turns.expire(now_ns)) {
            self.kill(now_ns, worker, KillReason::TurnKept, actions);
        }
        for caller in self.penalties.due(now_ns) {
            self.review(now_ns, caller, actions);
        }
        for worker in WorkerId::first(self.workers.len()) {
            if matches!(self.workers[worker].state, State::Scrubbing { until_ns } if until_ns <= now_ns) {
                self.kill(now_ns, worker, KillReason::NotScrubbed, actions);
            }
        }
        for worker in self.lending.expire(now_ns) {
            self.kill(now_ns, worker, KillReason::NotGivenBack, actions);
        }
        if self.placing.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.make_room(now_ns, actions);
        }
        if held_up {
            self.resume(now_ns, actions);
        }
    }
}

/// What may be asked at any time.
impl<C> Scheduler<C> {
    /// Calls waiting.
    pub fn queued(&self) -> u64 {
        self.calls.queued()
    }

    /// Calls in workers, and those whose process just ended.
    pub fn running(&self) -> u64 {
        self.calls.running()
    }

    /// The call that `worker` says it answers; `None` means that it lies.
    pub fn running_call(&self, worker: WorkerId, id: CallId) -> Option<(&C, u32)> {
        let entry = self.calls.get(id)?;
        match entry.state {
            CallState::Running { worker: w, lane, .. } if w == worker => Some((&entry.call, lane)),
            _ => None,
        }
    }

    /// When [`Tick`](super::events::Tick) is due at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let turns = self.turns.as_ref().and_then(Turns::next_deadline_ns);
        let scrubs = self.shape.scrubs.then(|| {
            let until = self.workers.iter().filter_map(|(_, worker)| match worker.state {
                State::Scrubbing { until_ns } => Some(until_ns),
                _ => None,
            });
            until.min()
        });
        let policies = [self.placing.next_ns(), self.penalties.next_ns(), self.exclusive.next_ns()];
        let lending = self.lending.next_ns();
        let all =
            [self.calls.next_deadline_ns(), turns, scrubs.flatten(), lending].into_iter().chain(policies);
        all.flatten().min()
    }

    /// The process that is ready in a worker's slot, if one is, and its lanes with a call.
    pub fn busy_lanes(&self, worker: WorkerId) -> Option<(Generation, u32)> {
        let worker = &self.workers[worker];
        let is_there = !worker.is_coming() && worker.state != State::Empty;
        is_there.then(|| (worker.generation, worker.busy_lanes()))
    }

    /// Whether a worker has calls.
    pub fn has_calls(&self, worker: WorkerId) -> bool {
        !self.workers[worker].is_idle()
    }

    /// Device time that the turns of a worker used.
    pub fn device_ns(&self, worker: WorkerId) -> u64 {
        self.turns.as_ref().map_or(0, |turns| turns.used_ns(worker))
    }

    /// Functions that are refused, and to whom.
    pub fn quarantined(&self, now_ns: u64) -> Vec<Quarantined> {
        self.penalties.quarantined(now_ns)
    }

    /// Budgets that are not whole.
    pub fn budgets(&self, now_ns: u64) -> Vec<Budget> {
        self.penalties.budgets(now_ns)
    }

    /// Callers with a limit of memory.
    pub fn limited(&self) -> Vec<TenantId> {
        self.lending.limited()
    }

    /// Device memory that the workers of a caller have for its calls.
    pub fn lent_to(&self, caller: TenantId) -> u64 {
        self.lending.bytes_of(caller, &self.workers)
    }

    /// Device memory that is lent for calls, and that processes keep for stacks.
    pub fn lent(&self) -> (u64, u64) {
        self.lending.sums()
    }

    /// Device memory that nothing has and no call was promised.
    pub fn free_bytes(&self) -> u64 {
        self.lending.free_bytes()
    }

    /// So much device memory is taken for other things than calls. Whoever takes more looks at
    /// [`Scheduler::free_bytes`] before, with no event in between.
    pub fn set_taken(&mut self, bytes: u64) {
        self.lending.set_taken(bytes);
    }

    /// The process in a worker's slot.
    pub fn resident(&self, worker: WorkerId) -> Resident {
        let slot = &self.workers[worker];
        Resident {
            is_used: slot.state != State::Empty,
            domain: slot.served(),
            lent_bytes: self.lending.worker_bytes(worker),
            functions: slot.past.functions(),
            last_gone: slot.last_gone,
        }
    }

    /// The workers that serve a domain.
    pub fn serving(&self, domain: Domain) -> Vec<WorkerId> {
        let serves = self.workers.iter().filter(|(_, worker)| worker.served() == Some(domain));
        serves.map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
