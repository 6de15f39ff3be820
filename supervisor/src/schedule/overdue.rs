//! Calls that are not over when they should be: what follows when their moment comes (`calls`).
//!
//! A call in a worker that is overdue may answer by itself for a while, then its worker is killed. So is a shared worker that does not
//! end a call whose time there is over.
//!
//! A device that takes turns cannot interrupt what runs: while others want the device, a call that has been in their way for its tenant's
//! `overrun-limit` loses its process. What counts is the time in which the call could run and others wanted the device, divided among the
//! long calls that shared the chip meanwhile: of 32 tenants whose calls take 100 ms each, none is in the way for longer than that,
//! although each call takes three seconds. A clock of [`Turns`] counts such time; the call's began when it was handed over, or when its
//! worker got its grant, whichever came later. Its tenant is fined as much as that, beside what it is charged for its turns: its next
//! call stands behind both.
//!
//! A call that was alone in its process is guilty then: it ends with an error of its own, and counts as a failure of its function.
//! If it was not, any of the calls there may have been in the way: all of them run again, one by one.

use super::calls::CallState;
use super::limits::{DEADLINE_GRACE_NS, LONG_NS, OVERRUN_CHECK_NS, SHARED_GRACE_NS};
use super::scheduler::Scheduler;
use super::turns::Turns;
use super::types::{Action, Call, CallId, KillReason, Verdict};
use crate::ids::WorkerId;

impl<C: Call> Scheduler<C> {
    /// A call's moment has come.
    pub(super) fn due(&mut self, id: CallId) {
        let now_ns = self.now_ns;
        let Some(entry) = self.calls.get_mut(id) else { return };
        let deadline_ns = entry.deadline_ns;
        let is_early = now_ns < deadline_ns;
        match entry.state {
            CallState::Queued if is_early => {
                let used = entry.used();
                if !self.end_company(used) {
                    self.calls.move_to(id, deadline_ns);
                }
            }
            CallState::Queued => {
                let caller = entry.domain.caller;
                let Some(entry) = self.unqueue(id) else { return };
                self.judge(&entry, Verdict::Neither);
                let held = self.holds(caller);
                let budget_ns = held.then(|| self.budgets.waits_ns(now_ns, caller).unwrap_or(0));
                self.actions.push(Action::Expired { call: entry.call, budget_ns });
            }
            CallState::Running { worker, overdue: false, .. } if is_early => {
                self.end_if_stuck(worker, id);
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
                    true => self.kill_for(worker, id, false),
                    false => self.calls.postpone(id, DEADLINE_GRACE_NS),
                }
            }
            CallState::Lost if is_early => self.calls.move_to(id, deadline_ns),
            CallState::Lost => {}
            CallState::Clearing => {
                let Some(entry) = self.calls.remove(id) else { return };
                self.judge(&entry, Verdict::Neither);
                self.actions.push(Action::NotCleared { call: entry.call });
            }
        }
    }

    /// A shared worker should have ended a call by now: the process is ended, unless it waited for its turn until lately, without which
    /// no call ends.
    fn end_if_stuck(&mut self, worker: WorkerId, id: CallId) {
        let now_ns = self.now_ns;
        let Some(entry) = self.calls.get(id) else { return };
        let (until_ns, deadline_ns) = (entry.until_ns, entry.deadline_ns);
        let had_turn_ns = self.turns.as_ref().map_or(0, |turns| turns.granted_ns(worker).unwrap_or(now_ns));
        let at_ns = until_ns.max(had_turn_ns).saturating_add(self.shape.shared_stuck_ns);
        let is_stuck = at_ns <= now_ns && self.workers[worker].is_shared();
        if is_stuck {
            self.kill_for(worker, id, false);
        }
        self.calls.move_to(id, if at_ns > now_ns { at_ns.min(deadline_ns) } else { deadline_ns });
    }

    /// A worker is killed for a call that is overdue, or `overran`. The call failed if it was alone: what it waited for may have been a
    /// neighbour. How long a call would have taken that was given up is not known.
    pub(super) fn kill_for(&mut self, worker: WorkerId, id: CallId, overran: bool) {
        let now_ns = self.now_ns;
        // Of a job all calls are of one function and caller, who is blamed.
        let is_alone = self.workers[worker].busy_lanes() == 1;
        // Of a call that kept others waiting, the process is killed already.
        let Some(entry) = self.calls.get_mut(id).filter(|entry| !entry.overran) else { return };
        entry.overran = overran && is_alone;
        let blamed = is_alone && !entry.detached;
        entry.paid = true;
        let probe = blamed && std::mem::take(&mut entry.probe);
        let (used, domain, call) = (entry.used(), entry.domain, entry.call.clone());
        let was_shared = entry.may_share() && entry.attempts.is_suspect();
        let is_shared = self.workers[worker].is_shared();
        let why = if overran { KillReason::Overran(call) } else { KillReason::Overdue(call) };
        self.kill(worker, why);
        if is_alone && (is_shared || was_shared) {
            self.unshared.add_for_good(now_ns, used);
        } else if is_shared {
            // What it waited for may have been a neighbour: it is kept out for a while only, so that nobody's calls, with deadlines that
            // pass before they are found out, end the process again and again.
            self.unshared.add(now_ns, used);
        }
        if is_shared && is_alone {
            // The process was everybody's, and this call alone took it from them.
            self.draw(domain.caller);
        }
        if blamed {
            self.judge_use(domain, used, Verdict::Fault, probe);
        }
    }

    /// A call that runs was given up by its client: its worker has to end it when the grace period is over, unless somebody still
    /// wants another call of the same job.
    pub(super) fn leave_soon(&mut self, id: CallId) {
        let Some(entry) = self.calls.get(id) else { return };
        let mut until_ns = self.now_ns.saturating_add(self.policy.cancel_grace_ns);
        let is_wanted = |id| self.calls.get(id).is_some_and(|entry| !entry.detached);
        if let CallState::Running { worker, lane, .. } = entry.state {
            if self.workers[worker].job_in(lane).any(is_wanted) {
                return;
            }
            if self.workers[worker].is_shared() {
                // The worker ends it by then, and is not taken from others before.
                until_ns = until_ns.max(entry.until_ns);
            }
        }
        self.calls.shorten(id, until_ns);
    }

    /// When calls are looked at next: now and then, while others wait.
    pub(super) fn next_overrun_check_ns(&self) -> Option<u64> {
        let contended = self.turns.as_ref().is_some_and(Turns::is_contended);
        contended.then_some(self.overrun_check_ns)
    }

    /// Ends what was in the way of others for too long.
    pub(super) fn check_overruns(&mut self) {
        let now_ns = self.now_ns;
        self.note_contention();
        let Some(turns) = &mut self.turns else { return };
        if now_ns < self.overrun_check_ns || !turns.is_contended() {
            return;
        }
        self.overrun_check_ns = now_ns.saturating_add(OVERRUN_CHECK_NS);
        let clock_ns = turns.in_the_way_ns(now_ns);
        let granted: Vec<(WorkerId, u64)> = turns.granted().collect();
        let mut long_calls = 0;
        for (worker, granted_clock_ns) in granted {
            let Some((ran_ns, id)) = self.longest(worker, granted_clock_ns, clock_ns) else { continue };
            long_calls += usize::from(ran_ns >= LONG_NS);
            let Some(tenant) = self.workers[worker].served().map(|domain| domain.caller) else { continue };
            let limit_ns =
                self.queues.asks.line().share_of(tenant).overrun_ns.unwrap_or(self.policy.overrun_ns);
            if limit_ns != 0 && ran_ns >= limit_ns {
                self.turns.iter_mut().for_each(|turns| turns.fine(tenant, ran_ns));
                self.kill_for(worker, id, true);
            }
        }
        self.turns.iter_mut().for_each(|turns| turns.set_long_calls(now_ns, long_calls));
    }

    /// The call of a worker that is in the way of others for longest, and for how long it is.
    fn longest(&self, worker: WorkerId, granted_clock_ns: u64, clock_ns: u64) -> Option<(u64, CallId)> {
        let ran_ns = |id: CallId| {
            let entry = self.calls.get(id)?;
            Some((clock_ns.saturating_sub(entry.started_clock_ns.max(granted_clock_ns)), id))
        };
        self.workers[worker].calls().filter_map(ran_ns).max()
    }
}
