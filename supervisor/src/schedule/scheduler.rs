//! The state machine of one device: takes events and the time, returns actions. This file puts the policies
//! together; each decides about its own part, and `transitions` carries their verdicts out.
//!
//! ```text
//! call:    submit ──► queued ──► running ──► finished
//!            ▲          │           │ its process ended
//!            │          │         lost ──► what it wrote is being cleared ──► not cleared in time
//!            └──again── │ ◄─────────┴──────────────┴──► guilty, or overdue
//!                       └─ expired, refused
//!          too long beside strangers' calls, or failed in a job: queued again, apart
//!          overdue while running: its worker is killed
//!          cancel: a queued call is gone; a running one keeps running until the cancel grace period ends, and its
//!          result is dropped
//! ```
//!
//! What a decision costs grows with the workers of the device (64 at most) and with the logarithm of the calls, not
//! with the number of calls. Exceptions, each off the path of a call that succeeds: a function that is refused costs
//! its domain's waiting calls; a caller whose budget is spent or comes back costs its domains and the lines that they
//! stand in; while calls wait for memory or for the whole device, a decision looks at the asks that stand before them.

use super::apart::Apart;
use super::book::{Book, TakeBack};
use super::calls::{CallState, Calls, MAX_CALLS};
use super::device_time::DeviceTime;
use super::exclusive::Exclusive;
use super::penalties::{Draw, Penalties};
use super::policy::{Limits, Policy};
use super::quarantine::{Admission, Use};
use super::residency::Residency;
use super::retry::{Attempts, Withdrawn};
use super::run_times::{Kind, RunTimes};
use super::shared_charges::SharedCharges;
use super::slots::Slots;
use super::turns::{Order, Turns};
use super::types::{
    Action, Call, CallId, CallSpec, Command, Compartment, Domain, KillReason, NotNow, QueueKey, Shape,
    Verdict, WhyGone,
};
use super::workers::{State, Workers};
use crate::ids::{FunctionId, Generation, TenantId, TurnId, WorkerId};

/// The scheduler of one device.
#[derive(Debug)]
pub struct Scheduler<C: Call> {
    pub(super) shape: Shape,
    pub(super) workers: Workers,
    pub(super) calls: Calls<C>,
    pub(super) slots: Slots,
    pub(super) turns: Option<Turns>,
    pub(super) run_times: RunTimes,
    pub(super) device_time: DeviceTime,
    pub(super) shared_charges: SharedCharges,
    /// A list that is kept for its capacity, see [`Scheduler::weigh_everybody`].
    pub(super) payers: Vec<TenantId>,
    /// A worker that was taken for a call for the whole device, from a domain that waits for memory.
    pub(super) for_device: Option<WorkerId>,
    pub(super) apart: Apart,
    /// Uses of functions that are not in shared workers any more: a process ended under a call of them while no other call was there.
    pub(super) unshared: Apart,
    /// How long a call may be in the way of others, and when that is looked at next.
    pub(super) overrun_ns: u64,
    pub(super) overrun_check_ns: u64,
    pub(super) exclusive: Exclusive,
    pub(super) penalties: Penalties,
    pub(super) book: Book<C::Memory>,
    pub(super) residency: Residency,
    /// A change of its setup is not done yet.
    pub(super) resizing: bool,
    /// It has less memory than is had.
    pub(super) shedding: bool,
    /// True while it begins with calls for the whole device.
    pub(super) is_beginning: bool,
    /// Draws for processes that are not reaped: it is not known yet what ended them.
    drawn: Vec<(WorkerId, Generation, Draw)>,
    /// Scratch, kept for its capacity.
    pub(super) orders: Vec<Order>,
    pub(super) taken: TakeBack,
}

impl<C: Call> Scheduler<C> {
    /// A device whose slots are all empty. In the first one a process is wanted: [`Ready`](super::events::Ready) follows.
    pub fn new(shape: Shape) -> Self {
        let shape = Shape { lanes: shape.lanes.min(64), ..shape };
        Self {
            workers: Workers::new(shape.workers, shape.shared_workers, shape.lanes),
            calls: Calls::default(),
            slots: Slots::new(&shape),
            turns: shape.quantum_us.map(|us| Turns::new(shape.workers, us, shape.change_ns)),
            run_times: RunTimes::default(),
            device_time: DeviceTime::default(),
            shared_charges: SharedCharges::default(),
            payers: Vec::new(),
            for_device: None,
            apart: Apart::default(),
            unshared: Apart::default(),
            overrun_ns: Policy::default().overrun_ns,
            overrun_check_ns: 0,
            exclusive: Exclusive::default(),
            penalties: Penalties::new(Policy::default()),
            book: Book::new(&shape),
            residency: Residency::new(&shape),
            resizing: false,
            shedding: false,
            is_beginning: false,
            drawn: Vec::new(),
            orders: Vec::new(),
            taken: TakeBack::new(),
            shape,
        }
    }

    /// A call is accepted, or why not. One without `limits` was accepted elsewhere.
    pub(super) fn accept(
        &mut self,
        now_ns: u64,
        call: C,
        spec: CallSpec,
        limits: Option<Limits>,
        attempts: Attempts,
        actions: &mut Vec<Action<C>>,
    ) -> Result<CallId, NotNow> {
        let domain = spec.domain;
        let used = Use { function: spec.function, caller: domain.caller };
        let is_probe = match self.penalties.admit(now_ns, used) {
            Admission::Free => false,
            Admission::Probe => true,
            Admission::Refused(refusal) => return Err(NotNow::Quarantined(refusal)),
        };
        // As a suspect a probe runs alone, and is guilty if its process ends.
        let is_suspect = is_probe || self.penalties.must_prove(now_ns, domain.caller);
        let attempts = if is_suspect { Attempts::of_suspect() } else { attempts };
        let alone = attempts.is_suspect();
        let is_whole = spec.memory_bytes > self.shape.memory_bytes / 2;
        let wants_device = is_whole || alone && self.shape.shared_faults;
        let may_share = spec.may_share && !alone && !is_whole;
        let queue = self.queue_of(may_share, domain, spec.function, spec.memory_bytes);
        let room = match wants_device {
            false => {
                let held = || self.holds(now_ns, domain.caller);
                self.slots.find_lane(now_ns, queue, alone, held, self.view(), &self.residency)
            }
            true => None,
        };
        if room.is_none()
            && let Some(limits) = limits
        {
            self.check_room(&spec, limits)?;
            if !is_probe
                && !wants_device
                && let Some(late) = self.too_late(now_ns, queue, &spec)
            {
                return Err(late);
            }
        }
        let id = self.calls.insert(call, spec, queue, is_whole, attempts, is_probe);
        if is_probe {
            self.penalties.probe(used);
        }
        match room {
            Some(worker) => self.start_or_wait(now_ns, worker, id, actions),
            None if wants_device => self.line_up(now_ns, domain.caller, id, actions),
            None if queue.compartment() == Compartment::Shared => {
                self.enqueue(now_ns, id);
                // Those before it may wait for memory that it does not need.
                for worker in self.workers.shared() {
                    self.feed(now_ns, worker, actions);
                }
            }
            None => {
                let is_searched = self.slots.is_searched(now_ns) && self.workers.first_empty().is_none();
                self.enqueue(now_ns, id);
                // Its domain may have what those that waited then had not.
                if !is_searched || !self.slots.is_searched(now_ns) {
                    self.make_room(now_ns, actions);
                }
                if spec.weight_bytes > 0 {
                    self.look_ahead_for(domain, actions);
                }
            }
        }
        Ok(id)
    }

    /// In which queue a call waits: whether it is in a worker beside strangers' calls, of those that may be. Calls of
    /// its kind must have been short lately, as far as that is known.
    pub(super) fn queue_of(
        &self,
        may_share: bool,
        domain: Domain,
        function: FunctionId,
        memory_bytes: u64,
    ) -> QueueKey {
        let takes_ns = || self.run_times.at_least_ns(Kind::of(function, domain.caller, memory_bytes));
        let is_short = || takes_ns().is_none_or(|ns| ns <= self.shape.shared_limit_ns);
        let is_unshared = || self.unshared.holds(0, Use { function, caller: domain.caller });
        match self.shape.shared_workers > 0 && may_share && !is_unshared() && is_short() {
            true => QueueKey::Shared(domain.caller),
            false => QueueKey::Of(domain),
        }
    }

    /// Whether one more call may wait.
    fn check_room(&self, spec: &CallSpec, limits: Limits) -> Result<(), NotNow> {
        let (queued, bytes) = (self.calls.queued(), self.calls.queued_bytes());
        if queued >= limits.calls.min(MAX_CALLS) {
            return Err(NotNow::Calls(queued));
        }
        if bytes.saturating_add(spec.bytes) > limits.bytes {
            return Err(NotNow::Bytes(bytes));
        }
        let (queued, bytes) = self.calls.waiting_of(spec.domain.caller);
        if queued >= limits.own_calls {
            return Err(NotNow::OwnCalls(queued));
        }
        if bytes.saturating_add(spec.bytes) > limits.own_bytes {
            return Err(NotNow::OwnBytes(bytes));
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, now_ns: u64, id: CallId, actions: &mut Vec<Action<C>>) -> Option<C> {
        let entry = self.calls.get_mut(id)?;
        if entry.state != CallState::Queued {
            if !std::mem::replace(&mut entry.detached, true) {
                self.leave_soon(now_ns, id);
            }
            return None;
        }
        Some(self.withdraw(now_ns, id, actions)?.call)
    }

    pub(super) fn withdraw(
        &mut self,
        now_ns: u64,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) -> Option<Withdrawn<C>> {
        self.calls.get(id).filter(|entry| entry.state == CallState::Queued)?;
        let (entry, held_up) = self.unqueue(now_ns, id)?;
        self.judge(now_ns, &entry, Verdict::Neither, actions);
        self.waits_no_more(now_ns, held_up, actions);
        self.serve_line(now_ns, actions);
        Some(Withdrawn { call: entry.call, bytes: entry.bytes, attempts: entry.attempts })
    }

    /// A call does not wait any more: others start that it `held_up`, since it was for the whole device.
    pub(super) fn waits_no_more(&mut self, now_ns: u64, held_up: bool, actions: &mut Vec<Action<C>>) {
        match held_up {
            true if self.exclusive.is_in_vain() => self.reopen_to_all(now_ns, actions),
            true => self.resume(now_ns, actions),
            false => {}
        }
    }

    pub(super) fn ready(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        generation: Generation,
        actions: &mut Vec<Action<C>>,
    ) {
        self.workers.arrive(now_ns, worker, generation);
        self.book.arrived(worker, generation, self.shape.lanes);
        if self.workers.is_for_shared(worker) {
            self.workers.set_state(worker, State::Bound(Compartment::Shared));
            self.bring_shared(actions);
        }
        self.tell(worker, Command::Configure, actions);
        self.hand_out(now_ns, worker, actions);
    }

    /// A worker is nobody's: who needs one has it.
    fn hand_out(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if self.for_device.take_if(|taken| *taken == worker).is_some() {
            // Else that domain, whose call cannot start yet, would have it again, and it would be taken again.
            self.try_exclusive(now_ns, actions);
        }
        self.feed(now_ns, worker, actions);
        self.bring_next(now_ns, actions);
        self.try_exclusive(now_ns, actions);
    }

    pub(super) fn scrubbed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) -> bool {
        let asked = matches!(self.workers[worker].state, State::Scrubbing { .. });
        if asked {
            self.workers.free(now_ns, worker);
            let generation = self.workers[worker].generation;
            self.book.weights.worker_gone(worker, generation);
            self.book.weights.reaped(worker, generation);
            self.memory_came(now_ns, actions);
            self.hand_out(now_ns, worker, actions);
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
        let charge = self.turn(actions, |turns, orders| turns.gone(now_ns, worker, orders));
        self.charge(charge.flatten());
        self.book.gone(worker);
        self.book.weights.worker_gone(worker, self.workers[worker].generation);
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::Ended);
        let emptied = self.refill(worker, actions);
        let mut lost = Vec::new();
        let mut charged_lanes = 0u64;
        for id in self.workers.take_all(worker) {
            let Some(entry) = self.calls.get_mut(id) else { continue };
            if entry.weight_bytes > 0 {
                self.book.weights.end(entry.function);
            }
            let CallState::Running { lane, overdue, .. } = entry.state else { continue };
            entry.state = CallState::Lost { overdue };
            lost.push((id, entry.call.clone()));
            let (caller, started_ns) = (entry.domain.caller, entry.started_ns);
            // The calls of a job had the time together.
            if charged_lanes >> lane & 1 == 0 {
                self.charge_call(now_ns, caller, started_ns);
            }
            charged_lanes |= 1 << lane;
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
            // No call there uses weights any more, which may give way to calls of their owner.
            self.feed_limited(now_ns, domain.owner, actions);
            self.lanes_are_free(now_ns, actions);
        }
        if emptied {
            // While it left, its slot counted as one that gets a process. Its domain may go to a worker that is free.
            self.resume(now_ns, actions);
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
        self.book.reaped(worker, generation);
        self.book.weights.reaped(worker, generation);
        let drawn = self.drawn.iter().position(|(w, g, _)| (*w, *g) == (worker, generation));
        if let Some((.., draw)) = drawn.map(|at| self.drawn.swap_remove(at)).filter(|_| from_outside) {
            self.penalties.give_back(now_ns, draw);
            self.review(now_ns, draw.caller, actions);
        }
        self.memory_came(now_ns, actions);
    }

    pub(super) fn yielding(&mut self, worker: WorkerId, turn: TurnId, actions: &mut Vec<Action<C>>) -> bool {
        self.turn(actions, |turns, orders| turns.yielding(worker, turn, orders)).unwrap_or(false)
    }

    pub(super) fn yielded(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        turn: TurnId,
        (used_ns, answered): (u64, u64),
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let has_calls = u64::from(self.workers[worker].busy_lanes()) > answered;
        let charge = self
            .turn(actions, |turns, orders| turns.yielded(now_ns, worker, turn, used_ns, has_calls, orders));
        let charge = charge.flatten();
        self.charge(charge);
        if self.slots.next_for_memory().is_some() {
            // Another one may be first now.
            self.serve_line(now_ns, actions);
        }
        charge.is_some()
    }

    pub(super) fn gave_back(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        left_bytes: u64,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let well = self.book.gave_back(worker, left_bytes);
        if let Some(caller) = self.workers[worker].served().map(|domain| domain.caller) {
            self.feed_limited(now_ns, caller, actions);
        }
        self.memory_came(now_ns, actions);
        well
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
        if self.slots.has_unplaced() {
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
        self.overrun_ns = policy.overrun_ns;
        if let Some(turns) = &mut self.turns {
            turns.set_polls(policy.polls);
        }
        for caller in self.penalties.set_policy(policy) {
            self.review(now_ns, caller, actions);
        }
    }

    pub(super) fn allow(&mut self, tenant: TenantId, most_bytes: Option<u64>) {
        self.book.allow(tenant, most_bytes);
    }

    pub(super) fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let held_up = self.exclusive.waits();
        while let Some(id) = self.calls.pop_due(now_ns) {
            self.due(now_ns, id, actions);
        }
        if let Some(worker) = self.turns.as_mut().and_then(|turns| turns.expire(now_ns)) {
            self.kill(now_ns, worker, KillReason::TurnKept, actions);
        }
        self.turn(actions, |turns, orders| turns.overrun(now_ns, orders));
        self.check_overruns(now_ns, actions);
        self.end_stuck(now_ns, actions);
        for caller in self.penalties.due(now_ns) {
            self.review(now_ns, caller, actions);
        }
        for worker in WorkerId::first(self.workers.len()) {
            if matches!(self.workers[worker].state, State::Scrubbing { until_ns } if until_ns <= now_ns) {
                self.kill(now_ns, worker, KillReason::NotScrubbed, actions);
            }
        }
        for worker in self.book.expire(now_ns) {
            self.kill(now_ns, worker, KillReason::NotGivenBack, actions);
        }
        if self.slots.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.make_room(now_ns, actions);
        }
        // Now that no call is overdue which could start.
        self.waits_no_more(now_ns, held_up, actions);
        self.serve_line(now_ns, actions);
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
