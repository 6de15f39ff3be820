//! The state machine of one device: takes events and the time, returns actions. This file puts the policies
//! together; each decides about its own part, and files of this folder say what follows.
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
use super::asks::QueueKey;
use super::book::Book;
use super::budget::Budgets;
use super::calls::{CallState, Calls, Entry};
use super::device_time::{DeviceTime, Kind, RunTimes, SharedCharges};
use super::domain_queue::Company;
use super::limits::{Limits, MAX_CALLS, Policy};
use super::mps_suspicion::MpsSuspicion;
use super::quarantine::{Admission, Quarantine, Use};
use super::queues::{Queues, View};
use super::retry::{Attempts, Withdrawn};
use super::turns::Turns;
use super::types::{
    Action, Call, CallId, CallSpec, Command, Compartment, KillReason, NotNow, Shape, Sharing, Verdict,
};
use super::workers::{State, Worker, Workers};
use crate::ids::{TenantId, TurnId, WorkerId};

/// The scheduler of one device.
#[derive(Debug)]
pub struct Scheduler<C: Call> {
    pub(super) shape: Shape,
    pub(super) workers: Workers,
    pub(super) calls: Calls<C>,
    pub(super) queues: Queues,
    pub(super) turns: Option<Turns>,
    pub(super) run_times: RunTimes,
    pub(super) device_time: DeviceTime,
    pub(super) shared_charges: SharedCharges,
    /// A list that is kept for its capacity, see [`Scheduler::weigh_everybody`].
    pub(super) payers: Vec<TenantId>,
    pub(super) apart: Apart,
    pub(super) company: Company,
    /// Uses of functions that are not in shared workers: for a while where a call took too long there, or the process was killed for one
    /// beside others; for good where a process ended under a call that was alone in it.
    pub(super) unshared: Apart,
    /// When it is looked at next whether calls are in the way of others for too long.
    pub(super) overrun_check_ns: u64,
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) quarantine: Quarantine,
    pub(super) unproven: MpsSuspicion,
    pub(super) book: Book<C::Memory>,
    /// True while a change of the device's setup is not done.
    pub(super) resizing: bool,
    /// When the event that is handled happened, and what is to be done.
    pub(super) now_ns: u64,
    pub(super) actions: Vec<Action<C>>,
}

impl<C: Call> Scheduler<C> {
    /// A device whose slots are all empty. In the first one a process is wanted: [`Ready`](super::events::Ready) follows.
    pub fn new(shape: Shape) -> Self {
        let shape = Shape { lanes: shape.lanes.min(64), ..shape };
        Self {
            workers: Workers::new(shape.workers, shape.shared_workers, shape.lanes),
            calls: Calls::default(),
            queues: Queues::new(&shape),
            turns: shape.quantum_us.map(|us| Turns::new(shape.workers, us, shape.change_ns)),
            run_times: RunTimes::default(),
            device_time: DeviceTime::default(),
            shared_charges: SharedCharges::default(),
            payers: Vec::new(),
            apart: Apart::default(),
            company: Company::default(),
            unshared: Apart::default(),
            overrun_check_ns: 0,
            policy: Policy::default(),
            budgets: Budgets::new(Policy::default().fault_budget),
            quarantine: Quarantine::new(Policy::default().quarantine_after),
            unproven: MpsSuspicion::default(),
            book: Book::new(&shape),
            resizing: false,
            now_ns: 0,
            actions: Vec::new(),
            shape,
        }
    }

    /// A call is accepted, or why not. One without `limits` was accepted elsewhere.
    pub(super) fn accept(
        &mut self,
        call: C,
        spec: CallSpec,
        limits: Option<Limits>,
        attempts: Attempts,
    ) -> Result<CallId, NotNow> {
        let now_ns = self.now_ns;
        let domain = spec.domain;
        let used = Use { function: spec.function, caller: domain.caller };
        let is_probe = match self.quarantine.admit(now_ns, used) {
            Admission::Free => false,
            Admission::Probe => true,
            Admission::Refused(refusal) => return Err(NotNow::Quarantined(refusal)),
        };
        // As a suspect a probe runs alone, and is guilty if its process ends.
        let is_suspect = is_probe || self.unproven.includes(now_ns, domain.caller);
        let attempts = if is_suspect { Attempts::of_suspect() } else { attempts };
        let alone = attempts.is_suspect();
        // A suspect proves in a process of its own that it ends none.
        if spec.sharing == Sharing::Only && !alone {
            let left_ns = match self.is_whole(&spec) {
                true => Some(u64::MAX),
                false => self.unshared.left_ns(now_ns, used),
            };
            left_ns.map_or(Ok(()), |left_ns| Err(NotNow::NotShared { left_ns }))?;
        }
        let queue = self.queue_of(&spec, alone);
        let wants_device = matches!(queue, QueueKey::Whole(_));
        let company = self.wants_company(&spec, alone || wants_device);
        let room = match company {
            Some(_) => None,
            None => self.queues.find_lane(queue, alone, self.holds(domain.caller), self.view()),
        };
        if room.is_none()
            && let Some(limits) = limits
        {
            self.check_room(&spec, limits)?;
            if !is_probe && let Some(late) = self.too_late(queue, &spec) {
                return Err(late);
            }
        }
        let id = self.calls.insert(call, spec, queue, attempts, is_probe);
        if is_probe {
            self.quarantine.probe(used);
        }
        if let Some(batch) = company {
            self.wait_for_company(id, used, batch);
            return Ok(id);
        }
        match room {
            Some(worker) => self.start_or_wait(worker, id),
            None if wants_device => self.enqueue(id),
            None if queue.compartment() == Compartment::Shared => {
                self.enqueue(id);
                // Calls before this one may wait for memory, which this one may not need.
                for worker in self.workers.shared() {
                    self.feed(worker);
                }
            }
            None => {
                let is_searched = self.queues.is_searched(now_ns) && self.workers.first_empty().is_none();
                self.enqueue(id);
                // The domain may have a claim that earlier ones had not.
                if !is_searched || !self.queues.is_searched(now_ns) {
                    self.make_room();
                }
                if spec.weight_bytes > 0 {
                    self.look_ahead_for(domain);
                }
            }
        }
        Ok(id)
    }

    /// True if a call needs so much memory that it has the device for itself.
    fn is_whole(&self, spec: &CallSpec) -> bool {
        spec.memory_bytes > self.shape.memory_bytes / 2
    }

    /// In which queue a call waits that is to be `alone`, or not: whether it has the device for itself, or is in a worker beside
    /// strangers' calls, of those that may be.
    pub(super) fn queue_of(&self, spec: &CallSpec, alone: bool) -> QueueKey {
        let domain = spec.domain;
        if self.is_whole(spec) || alone && self.shape.shared_faults {
            return QueueKey::Whole(domain);
        }
        let used = Use { function: spec.function, caller: domain.caller };
        let may_share = match spec.sharing {
            Sharing::Never => false,
            Sharing::May => !self.unshared.holds(self.now_ns, used),
            // It was let in, and may be nowhere else.
            Sharing::Only => true,
        };
        match may_share && !alone && self.shape.shared_workers > 0 {
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

    pub(super) fn submit(&mut self, call: C, spec: CallSpec, limits: Limits) -> Result<CallId, NotNow> {
        self.accept(call, spec, Some(limits), Attempts::default())
    }

    pub(super) fn adopt(&mut self, call: C, spec: CallSpec, attempts: Attempts) -> Result<CallId, NotNow> {
        self.accept(call, spec, None, attempts)
    }

    pub(super) fn cancel(&mut self, id: CallId) -> Option<C> {
        let entry = self.calls.get_mut(id)?;
        if entry.state != CallState::Queued {
            if !std::mem::replace(&mut entry.detached, true) {
                self.leave_soon(id);
            }
            return None;
        }
        Some(self.withdraw(id)?.call)
    }

    pub(super) fn withdraw(&mut self, id: CallId) -> Option<Withdrawn<C>> {
        self.calls.get(id).filter(|entry| entry.state == CallState::Queued)?;
        let entry = self.unqueue(id)?;
        self.judge(&entry, Verdict::Neither);
        self.waits_no_more(entry.wants_device());
        // Those behind it may start.
        self.feed_where(|worker| worker.state == State::Bound(entry.queue.compartment()));
        self.serve_line();
        Some(Withdrawn { bytes: entry.bytes, attempts: entry.attempts, call: entry.call })
    }

    pub(super) fn yielding(&mut self, worker: WorkerId, turn: TurnId) -> bool {
        self.turn(|turns| turns.yielding(worker, turn)).unwrap_or(false)
    }

    pub(super) fn yielded(&mut self, worker: WorkerId, turn: TurnId, used_ns: u64, answered: u64) -> bool {
        let now_ns = self.now_ns;
        let has_calls = u64::from(self.workers[worker].busy_lanes()) > answered;
        let had_it = self.turn(|turns| turns.yielded(now_ns, worker, turn, used_ns, has_calls));
        if self.queues.asks.memory().is_some() {
            // Another one may be first now.
            self.serve_line();
        }
        had_it.unwrap_or(false)
    }

    pub(super) fn gave_back(&mut self, worker: WorkerId, left_bytes: u64) -> bool {
        let well = self.book.gave_back(worker, left_bytes);
        if let Some(caller) = self.workers[worker].served().map(|domain| domain.caller) {
            self.feed_limited(caller);
        }
        self.memory_came();
        well
    }

    pub(super) fn settings_changed(&mut self) {
        for worker in WorkerId::first(self.workers.len()) {
            if !matches!(self.workers[worker].state, State::Empty | State::Absent) {
                self.tell(worker, Command::Configure);
            }
        }
    }

    pub(super) fn standbys_ready(&mut self, ready: usize) {
        self.queues.residency.set_ready(ready);
        if self.queues.has_unplaced() {
            self.make_room();
        }
    }

    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        if let Some(turns) = &mut self.turns {
            turns.set_polls(policy.polls);
        }
        self.quarantine.set_after(policy.quarantine_after);
        for caller in self.budgets.resize(policy.fault_budget) {
            self.review(caller);
        }
    }

    pub(super) fn tick(&mut self) {
        let now_ns = self.now_ns;
        let queued = self.calls.queued();
        while let Some(id) = self.calls.pop_due(now_ns) {
            self.due(id);
        }
        if let Some(worker) = self.turns.as_mut().and_then(|turns| turns.expire(now_ns)) {
            self.kill(worker, KillReason::TurnKept);
        }
        self.turn(|turns| turns.overrun(now_ns));
        self.check_overruns();
        for caller in self.budgets.due(now_ns) {
            self.review(caller);
        }
        for worker in WorkerId::first(self.workers.len()) {
            if matches!(self.workers[worker].state, State::Scrubbing { until_ns } if until_ns <= now_ns) {
                self.kill(worker, KillReason::NotScrubbed);
            }
        }
        for worker in self.book.expire(now_ns) {
            self.kill(worker, KillReason::NotGivenBack);
        }
        if self.queues.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.make_room();
        }
        // Now that no call is overdue which could start: those behind the ones that are over, too.
        self.waits_no_more(self.queues.asks.has_device() || self.calls.queued() < queued);
        self.serve_line();
    }

    /// The state that `queues` are looked at beside.
    pub(super) fn view(&self) -> View<'_> {
        View { now_ns: self.now_ns, workers: &self.workers }
    }

    /// True if a caller has a call in a worker.
    pub(super) fn runs(&self, caller: TenantId) -> bool {
        let is_its = |id| self.calls.get(id).is_some_and(|entry| entry.domain.caller == caller);
        // Of a worker of its own it is known without a look at each call.
        let is_one =
            |worker: &Worker| worker.serves(caller) || worker.is_shared() && worker.calls().any(is_its);
        self.workers.busy().any(|(_, worker)| is_one(worker))
    }

    /// A call waits in its queue.
    pub(super) fn enqueue(&mut self, id: CallId) {
        let Some(entry) = self.calls.get(id) else { return };
        let (queue, payer) = (entry.queue, entry.queue.payer());
        let kind = Kind::of(entry.function, payer, entry.memory_bytes);
        let takes_ns = self.run_times.at_least_ns(kind).unwrap_or(0);
        let held = self.holds(payer);
        let waiting = self.queues.asks.lanes_weight();
        self.queues.enqueue(queue, id, (entry.order_ns(), takes_ns), held);
        if self.queues.asks.lanes_weight() != waiting {
            self.weigh_everybody();
        }
        self.calls.count(id);
        self.note_contention();
    }

    /// A call that waits is taken back.
    pub(super) fn unqueue(&mut self, id: CallId) -> Option<Entry<C>> {
        let entry = self.calls.remove(id)?;
        if !self.leaves_company(id, &entry) {
            self.queues.unqueue(entry.queue, id, entry.order_ns());
        }
        Some(entry)
    }

    /// Starts all calls that may start now.
    pub(super) fn resume(&mut self) {
        self.feed_where(|_| true);
        self.make_room();
    }

    /// Tells the process in a worker's slot something.
    pub(super) fn tell(&mut self, worker: WorkerId, command: Command<C>) {
        self.actions.push(Action::Tell { to: self.workers.address(worker), command });
    }

    /// A call waits, or a worker has one: whether tenants contend may have changed.
    pub(super) fn note_contention(&mut self) {
        let is_wanted = self.turns.is_some() && self.is_wanted_outside();
        if let Some(turns) = &mut self.turns {
            turns.set_outside(self.now_ns, is_wanted);
        }
    }

    /// True if anybody asks for a worker or for the whole device, or waits beside a caller who has the whole device.
    pub(super) fn is_wanted_outside(&self) -> bool {
        let waits = |caller| self.calls.queued() > self.calls.waiting_of(caller).0;
        self.queues.is_wanted_outside() || self.queues.exclusive.caller().is_some_and(waits)
    }

    /// Does something about turns, where they are in use, and passes on what follows.
    pub(super) fn turn<T>(&mut self, event: impl FnOnce(&mut Turns) -> T) -> Option<T> {
        let turns = self.turns.as_mut()?;
        let outcome = event(turns);
        for (worker, order) in turns.take_orders() {
            let to = self.workers.address(worker);
            self.actions.push(Action::Tell { to, command: Command::Turn(order) });
        }
        while let Some(charge) = self.turns.as_mut().and_then(Turns::take_charge) {
            self.charge(charge);
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
