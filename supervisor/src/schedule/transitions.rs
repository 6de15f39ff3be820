//! What follows from what the policies say: calls are started, workers bound, brought and handed on.

use super::book::LanePlace;
use super::calls::{CallState, Calls, Entry};
use super::jobs::Group;
use super::loading::Fit;
use super::penalties::Draw;
use super::quarantine::{Refusal, Use};
use super::run_times::Kind;
use super::scheduler::Scheduler;
use super::turns::{Order, Turns};
use super::types::{
    Action, Call, CallId, Command, Compartment, Domain, Ended, Job, KillReason, Loss, QueueKey, Verdict,
    WhyGone,
};
use super::view::View;
use super::workers::{State, Workers};
use crate::defences::Defence;
use crate::ids::{TenantId, WorkerId};
use crate::limits::{DEADLINE_GRACE_NS, SETTLE_NS, SHARED_GRACE_NS};

/// True if a caller has a call in a worker.
fn runs<C: Call>(workers: &Workers, calls: &Calls<C>, caller: TenantId) -> bool {
    workers.runs(caller, |id| calls.get(id).is_some_and(|entry| entry.domain.caller == caller))
}

impl<C: Call> Scheduler<C> {
    /// A call's deadline passed, or the moment that it was given after that.
    pub(super) fn due(&mut self, now_ns: u64, id: CallId, actions: &mut Vec<Action<C>>) {
        let Some(entry) = self.calls.get_mut(id) else { return };
        match entry.state {
            CallState::Queued => {
                let caller = entry.domain.caller;
                let Some((entry, _)) = self.unqueue(now_ns, id) else { return };
                self.judge(now_ns, &entry, Verdict::Neither, actions);
                let held = self.holds(now_ns, caller);
                let budget_ns = held.then(|| self.penalties.waits_ns(now_ns, caller));
                actions.push(Action::Expired { call: entry.call, budget_ns });
            }
            // First the worker may answer by itself; the second time patience is over.
            CallState::Running { worker, lane, overdue: false } => {
                entry.state = CallState::Running { worker, lane, overdue: true };
                let patience_ns = entry.patience_ns(now_ns, self.shape.resident_price);
                let grace_ns = if self.workers[worker].is_shared() { SHARED_GRACE_NS } else { 0 };
                self.calls.postpone(id, patience_ns.max(grace_ns));
            }
            CallState::Running { worker, overdue: true, .. } => {
                let could_act = |turns: &Turns| turns.could_act(now_ns, worker, DEADLINE_GRACE_NS);
                match self.turns.as_ref().is_none_or(could_act) {
                    true => self.kill_for(now_ns, worker, id, false, actions),
                    false => self.calls.postpone(id, DEADLINE_GRACE_NS),
                }
            }
            CallState::Lost { .. } => entry.state = CallState::Lost { overdue: true },
            CallState::Clearing { .. } => {
                let Some(entry) = self.calls.remove(id) else { return };
                self.judge(now_ns, &entry, Verdict::Neither, actions);
                actions.push(Action::NotCleared { call: entry.call });
            }
        }
    }

    /// The state that `slots` reads.
    pub(super) fn view(&self) -> View<'_> {
        View::new(&self.workers, &self.exclusive)
    }

    /// True if nothing of a caller may start now.
    pub(super) fn holds(&self, now_ns: u64, caller: TenantId) -> bool {
        self.penalties.holds(now_ns, caller, || self.runs(caller))
    }

    /// True if a caller has a call in a worker.
    pub(super) fn runs(&self, caller: TenantId) -> bool {
        runs(&self.workers, &self.calls, caller)
    }

    /// A call waits in its queue.
    pub(super) fn enqueue(&mut self, now_ns: u64, id: CallId) {
        let Some(entry) = self.calls.get(id) else { return };
        let (queue, payer) = (entry.queue, entry.queue.payer());
        let kind = Kind::of(entry.function, payer, entry.memory_bytes);
        let takes_ns = self.run_times.at_least_ns(kind).unwrap_or(0);
        let (penalties, workers, calls) = (&self.penalties, &self.workers, &self.calls);
        let held = || penalties.holds(now_ns, payer, || runs(workers, calls, payer));
        let waiting = self.slots.lanes_weight();
        self.slots.enqueue(queue, id, (entry.deadline_ns, takes_ns), held);
        if self.slots.lanes_weight() != waiting {
            self.weigh_everybody();
        }
        self.calls.count(id);
        self.note_contention(now_ns);
    }

    /// A call that waits is taken back. True if it held up others, since it was for the whole device.
    pub(super) fn unqueue(&mut self, now_ns: u64, id: CallId) -> Option<(Entry<C>, bool)> {
        let entry = self.calls.remove(id)?;
        if !entry.wants_device(self.shape.shared_faults) {
            self.slots.unqueue(entry.queue, id, entry.deadline_ns);
            return Some((entry, false));
        }
        self.exclusive.remove(entry.domain.caller, id);
        self.list_whole(now_ns, entry.domain.caller);
        Some((entry, true))
    }

    /// The calls of a group wait no more: it is about to start.
    pub(super) fn take_from_queue(&mut self, group: &Group) {
        for id in group.calls() {
            if let Some(entry) = self.calls.get(id) {
                self.slots.started(entry.queue, id, entry.deadline_ns);
            }
        }
    }

    /// A caller asks for the whole device as long as calls of it need that and may start. True if it asks since now.
    pub(super) fn list_whole(&mut self, now_ns: u64, caller: TenantId) -> bool {
        match self.exclusive.first_of(caller).is_some() && !self.holds(now_ns, caller) {
            true => self.slots.ask_for_device(caller),
            false => {
                self.slots.withdraw_device_ask(caller);
                false
            }
        }
    }

    /// Gives a group to a worker that has room for it, in a lane that has the memory.
    pub(super) fn start(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        Fit { place, need, load }: Fit<C::Memory>,
        group: &Group,
        actions: &mut Vec<Action<C>>,
    ) {
        let id = group.first;
        let Some(entry) = self.calls.get(id) else { return };
        let (alone, call, domain) = (entry.attempts.is_suspect(), entry.call.clone(), entry.domain);
        let (function, weight_bytes, wants_all) =
            (entry.function, entry.weight_bytes, entry.wants_all_lanes());
        let is_shared = self.workers[worker].is_shared();
        let deadline_ns = entry.deadline_ns;
        let until_ns =
            if is_shared { deadline_ns.min(self.shared_until_ns(now_ns, worker)) } else { deadline_ns };
        self.book.lend(worker, place, need, is_shared);
        group.calls().for_each(|id| self.workers.put(worker, id, place.lane, wants_all));
        if self.workers[worker].rebuild_cost.functions() == 0 && !is_shared {
            // All others paid for its process, too.
            self.slots.charge(domain.caller, self.residency.hand_over_ns());
        }
        let installs = self.workers[worker].rebuild_cost.ran(place.lane, function, weight_bytes);
        let clock_ns = self.turns.as_ref().map_or(0, |turns| turns.in_the_way_ns(now_ns));
        let LanePlace { lane, lane_bytes: memory_bytes } = place;
        for id in group.calls() {
            self.calls.started(id, worker, lane, installs, [now_ns, clock_ns, until_ns]);
        }
        let mut others = Vec::new();
        for &other in &group.others {
            others.extend(self.calls.get(other).map(|entry| (other, entry.call.clone())));
            if weight_bytes > 0 {
                self.book.weights.begin(function, true);
            }
        }
        let start =
            Command::Start { lane, alone, memory_bytes, until_ns, job: Job { id, call, others }, load };
        self.tell(worker, start, actions);
        let party = if is_shared { TenantId::EVERYBODY } else { domain.caller };
        if is_shared {
            self.weigh_everybody();
        }
        self.turn(actions, |turns, orders| turns.has_work(now_ns, worker, party, orders));
        self.note_contention(now_ns);
        if self.penalties.is_careful(now_ns, domain.caller) {
            self.slots.hold(domain.caller);
            self.slots.withdraw_device_ask(domain.caller);
        }
    }

    /// When a shared worker ends a call that it gets now. What it waits for its turn is not held against the call.
    fn shared_until_ns(&self, now_ns: u64, worker: WorkerId) -> u64 {
        let waits_ns = self.turns.as_ref().map_or(0, |turns| turns.waits_at_most_ns(worker));
        now_ns.saturating_add(self.shape.shared_limit_ns).saturating_add(waits_ns)
    }

    /// Gives a worker that belongs to no domain to this one.
    pub(super) fn bind(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        domain: Domain,
        actions: &mut Vec<Action<C>>,
    ) {
        if self.workers[worker].state == State::Free {
            let (penalties, workers, calls) = (&self.penalties, &self.workers, &self.calls);
            let held = || penalties.holds(now_ns, domain.caller, || runs(workers, calls, domain.caller));
            self.slots.bound(worker, domain, held);
            self.workers.set_state(worker, State::Bound(Compartment::Of(domain)));
            self.workers[worker].bound_ns = now_ns;
            self.book.came_to(now_ns, &self.workers, worker, domain.caller, &mut self.taken);
            self.tell_taken(actions);
        }
    }

    /// Takes a worker from its domain; no process of the slot takes calls until one is ready again.
    pub(super) fn unbind(&mut self, worker: WorkerId, why: WhyGone) {
        self.workers[worker].retires = false;
        if self.workers[worker].state == State::Empty {
            return;
        }
        if let State::Bound(compartment) = self.workers.set_state(worker, State::Absent) {
            self.workers[worker].last_gone = Some(why);
            if let Compartment::Of(domain) = compartment {
                self.slots.unbound(worker, domain);
            }
        }
    }

    /// The process in a slot is gone. True if the slot stays empty; else another process is wanted there.
    pub(super) fn refill(&mut self, worker: WorkerId, actions: &mut Vec<Action<C>>) -> bool {
        let slot = &mut self.workers[worker];
        if slot.state == State::Empty {
            return false;
        }
        let dismissed = std::mem::take(&mut slot.dismissed);
        let emptied = !self.workers.is_for_shared(worker) && (dismissed || self.workers.excess() > 0);
        match emptied {
            true => {
                self.workers.set_state(worker, State::Empty);
            }
            false => actions.push(Action::Bring { worker }),
        }
        emptied
    }

    /// True if a worker's process may leave for good: it is there, and no shared worker's.
    pub(super) fn may_leave(&self, worker: WorkerId) -> bool {
        let is_there = matches!(self.workers[worker].state, State::Free | State::Bound(_));
        is_there && !self.workers.is_for_shared(worker)
    }

    /// Processes are wanted in all slots of shared workers.
    pub(super) fn bring_shared(&mut self, actions: &mut Vec<Action<C>>) {
        for worker in self.workers.shared() {
            if self.workers[worker].state == State::Empty {
                self.bring(worker, actions);
            }
        }
    }

    /// A process is wanted in an empty slot.
    pub(super) fn bring(&mut self, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        self.workers.set_state(worker, State::Absent);
        actions.push(Action::Bring { worker });
    }

    /// An idle worker is made ready for another domain: it gives way to a fresh process, or is scrubbed. What it has counts for the
    /// returned caller no more, whose calls may start by that: [`Scheduler::feed_limited`] must follow.
    pub(super) fn hand_on(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        actions: &mut Vec<Action<C>>,
    ) -> Option<TenantId> {
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::SlotWanted);
        let scrubs = self.shape.scrubs && !self.workers[worker].tainted;
        if scrubs {
            let until_ns = now_ns.saturating_add(SETTLE_NS);
            self.workers.set_state(worker, State::Scrubbing { until_ns });
            self.residency.scrubs(now_ns, &self.workers[worker]);
        } else {
            self.residency.replaces(now_ns);
        }
        self.tell(worker, if scrubs { Command::Scrub } else { Command::Leave }, actions);
        served.map(|domain| domain.caller)
    }

    /// A worker takes no more calls until a fresh process is in its slot.
    pub(super) fn kill(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        why: KillReason<C>,
        actions: &mut Vec<Action<C>>,
    ) {
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::Killed);
        actions.push(Action::Kill { worker, generation: self.workers[worker].generation, why });
        if let Some(domain) = served {
            self.draw(now_ns, domain.caller, actions);
        }
    }

    /// A worker is killed for a call that is overdue, or `overran`. The call failed if it was alone: what it waited for may have been a
    /// neighbour. How long a call would have taken that was given up is not known.
    pub(super) fn kill_for(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        overran: bool,
        actions: &mut Vec<Action<C>>,
    ) {
        // Of a job all calls are of one function and caller, who is blamed.
        let is_alone = self.workers[worker].busy_lanes() == 1;
        // Its process is killed for it already, where it kept others waiting.
        let Some(entry) = self.calls.get_mut(id).filter(|entry| !entry.overran) else { return };
        entry.overran = overran && is_alone;
        let blamed = is_alone && !entry.detached;
        entry.paid = true;
        let probe = blamed && std::mem::take(&mut entry.probe);
        let (used, domain, call) = (entry.used(), entry.domain, entry.call.clone());
        let was_shared = entry.may_share && entry.attempts.is_suspect();
        let is_shared = self.workers[worker].is_shared();
        let why = if overran { KillReason::Overran(call) } else { KillReason::Overdue(call) };
        self.kill(now_ns, worker, why, actions);
        if is_alone && (is_shared || was_shared) {
            self.unshared.add_for_good(now_ns, used);
        }
        if is_shared && is_alone {
            // The process was everybody's, and this call alone took it from them.
            self.draw(now_ns, domain.caller, actions);
        }
        if blamed && let Some(refusal) = self.penalties.judge(now_ns, used, Verdict::Fault, probe) {
            self.refuse(now_ns, domain, used, refusal, actions);
        }
    }

    /// A call is over. Where it ran, [`Scheduler::review`] must follow.
    pub(super) fn judge(
        &mut self,
        now_ns: u64,
        entry: &Entry<C>,
        verdict: Verdict,
        actions: &mut Vec<Action<C>>,
    ) {
        if let Some(refusal) = self.penalties.judge(now_ns, entry.used(), verdict, entry.probe) {
            self.refuse(now_ns, entry.domain, entry.used(), refusal, actions);
        }
    }

    /// A lost call does not run again. Where faults hit the calls of all, it is not known then whether it was why.
    pub(super) fn left_open(
        &mut self,
        now_ns: u64,
        entry: &Entry<C>,
        loss: Loss,
        ended: Ended,
        actions: &mut Vec<Action<C>>,
    ) {
        let is_open = matches!(ended, Ended::Deadline | Ended::Detached)
            && matches!(loss, Loss::InIt | Loss::Unexplained);
        if self.shape.shared_faults
            && is_open
            && !entry.paid
            && self.penalties.left_open(now_ns, entry.used(), entry.started_ns, loss == Loss::InIt)
        {
            self.draw(now_ns, entry.domain.caller, actions);
        }
    }

    /// Waiting calls of a function are refused. Not suspects: whether they are guilty is about to be found out, and
    /// each that is not proves something.
    pub(super) fn refuse(
        &mut self,
        now_ns: u64,
        domain: Domain,
        used: Use,
        refusal: Refusal,
        actions: &mut Vec<Action<C>>,
    ) {
        let calls = &self.calls;
        let is_one =
            |id| calls.get(id).is_some_and(|entry| !entry.attempts.is_suspect() && entry.used() == used);
        // All calls of a function by one caller are of one domain.
        let mut refused = self.slots.take(QueueKey::Of(domain), is_one);
        refused.extend(self.slots.take(QueueKey::Shared(domain.caller), is_one));
        let whole = self.exclusive.take(domain.caller, is_one);
        let held_up = !whole.is_empty();
        refused.extend(whole);
        refused.sort_unstable();
        for id in refused {
            let call = self.calls.remove(id).map(|entry| entry.call);
            actions.extend(call.map(|call| Action::Refused { call, refusal }));
        }
        if held_up {
            self.list_whole(now_ns, domain.caller);
        }
        self.waits_no_more(now_ns, held_up, actions);
    }

    /// A process ended under a caller, or is about to.
    pub(super) fn draw(&mut self, now_ns: u64, caller: TenantId, actions: &mut Vec<Action<C>>) -> Draw {
        let draw = self.penalties.draw(now_ns, caller);
        if self.holds(now_ns, caller) {
            self.slots.hold(caller);
            // Other callers' calls do not wait behind those of this one.
            self.serve_line(now_ns, actions);
            if self.slots.withdraw_device_ask(caller) {
                self.resume(now_ns, actions);
            }
        }
        draw
    }

    /// Something changed for a caller: if nothing of it was to start and now something may, it does.
    pub(super) fn review(&mut self, now_ns: u64, caller: TenantId, actions: &mut Vec<Action<C>>) {
        if self.holds(now_ns, caller) {
            return;
        }
        let released = self.slots.release(caller);
        if self.list_whole(now_ns, caller) || released {
            self.resume(now_ns, actions);
        }
    }

    /// A call that needs the whole device waits for it, or for its caller's budget.
    pub(super) fn line_up(
        &mut self,
        now_ns: u64,
        caller: TenantId,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) {
        self.calls.count(id);
        self.exclusive.push(caller, id);
        self.list_whole(now_ns, caller);
        self.note_contention(now_ns);
        // Another one may have waited until this one was no longer running.
        self.try_exclusive(now_ns, actions);
    }

    /// Begins with the next call for the whole device, once all lanes are empty; with another one, where that call is refused.
    pub(super) fn try_exclusive(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        if !self.exclusive.waits() || std::mem::replace(&mut self.is_beginning, true) {
            return;
        }
        while !self.exclusive.is_closed()
            && self.calls.in_processes() == 0
            && let Some(caller) = self.slots.next_for_device()
        {
            if !self.begin(now_ns, caller, actions) {
                break;
            }
        }
        self.is_beginning = false;
    }

    /// Begins with the first call of a caller for the whole device. True if another one may be next.
    fn begin(&mut self, now_ns: u64, caller: TenantId, actions: &mut Vec<Action<C>>) -> bool {
        let Some(id) = self.exclusive.first_of(caller) else { return false };
        let Some(domain) = self.calls.get(id).map(|entry| entry.domain) else { return false };
        if self.holds(now_ns, caller) {
            // What was prepared for it was in vain: its worker ended, and that spent the budget.
            self.slots.withdraw_device_ask(caller);
            self.resume(now_ns, actions);
            return true;
        }
        let has = |state| self.workers.iter().find(|(_, w)| w.state == state).map(|(worker, _)| worker);
        if let Some(worker) = has(State::Bound(Compartment::Of(domain))).or_else(|| has(State::Free)) {
            self.bind(now_ns, worker, domain, actions);
            self.slots.join_line(domain);
            self.book.reopen();
            self.slots.serve(caller);
            self.exclusive.begin(now_ns, caller, id, worker);
            self.advance(now_ns, actions);
            return true;
        }
        if self.workers.coming() == 0 {
            // Where all belong to others, the fresh process in the slot of one of them is for this call.
            match self.workers.first_empty() {
                Some(empty) => self.bring(empty, actions),
                None => {
                    let worker = self.worth_least(now_ns, |id, _| self.may_leave(id));
                    let waits = |worker: &WorkerId| {
                        self.workers[*worker]
                            .served()
                            .is_some_and(|domain| self.slots.waits_for_memory(domain))
                    };
                    self.for_device = worker.filter(waits);
                    let caller = worker.and_then(|worker| self.hand_on(now_ns, worker, actions));
                    self.feed_callers(now_ns, caller, actions);
                }
            }
        }
        false
    }

    /// A worker has no call for the whole device any more, if it had one.
    pub(super) fn leave_device(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if !self.exclusive.is_for(worker) {
            return;
        }
        // Its domain had everything: a domain that waits for a worker need not wait for its residency.
        self.workers[worker].bound_ns = 0;
        self.reopen_to_all(now_ns, actions);
    }

    /// The device is no one call's any more: its caller is charged, and whose turn it is starts.
    pub(super) fn reopen_to_all(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        if let Some((caller, since_ns)) = self.exclusive.end() {
            // Where there are no turns, callers are charged for each of their lanes.
            let lanes = if self.turns.is_some() { 1 } else { u64::from(self.shape.lanes) };
            let had_ns = now_ns.saturating_sub(since_ns).saturating_mul(lanes);
            // Without charges it is the same caller's again.
            if !Defence::WholeDevice.is_off() {
                self.slots.charge_device(caller, had_ns);
            }
        }
        self.serve_line(now_ns, actions);
        self.resume(now_ns, actions);
    }

    /// Starts what may start, after something that held it up is gone.
    pub(super) fn resume(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        for worker in WorkerId::first(self.workers.len()) {
            self.feed(now_ns, worker, actions);
        }
        self.make_room(now_ns, actions);
        self.try_exclusive(now_ns, actions);
    }

    /// Tells the process in a worker's slot something.
    pub(super) fn tell(&mut self, worker: WorkerId, command: Command<C>, actions: &mut Vec<Action<C>>) {
        actions.push(Action::Tell { to: self.workers.address(worker), command });
    }

    /// Does something about turns, where they are in use, and passes on what follows.
    pub(super) fn turn<T>(
        &mut self,
        actions: &mut Vec<Action<C>>,
        event: impl FnOnce(&mut Turns, &mut Vec<Order>) -> T,
    ) -> Option<T> {
        let turns = self.turns.as_mut()?;
        let outcome = event(turns, &mut self.orders);
        for order in self.orders.drain(..) {
            let (worker, command) = match order {
                Order::Grant { worker, turn } => {
                    let (quantum_us, change_us) = (turns.quantum_us(), turns.change_us());
                    (worker, Command::Grant { turn, quantum_us, change_us })
                }
                Order::Revoke { worker, turn } => (worker, Command::Revoke { turn }),
                Order::Soon { worker } => (worker, Command::Soon),
            };
            actions.push(Action::Tell { to: self.workers.address(worker), command });
        }
        Some(outcome)
    }
}
