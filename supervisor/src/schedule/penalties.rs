//! What follows for whose calls fail: their function is refused to them for a while, and what they cost
//! others draws on their budget. Others are not held up by it.

use super::budget::Budget;
use super::quarantine::{Quarantined, Use};
use super::scheduler::{DomainState, Scheduler, State};
use super::table::{CallState, Entry};
use super::types::{Action, CallId, Domain, Policy, Verdict, WorkerId};

impl<C: Clone> Scheduler<C> {
    /// Other limits from now on.
    pub fn set_policy(&mut self, now_ns: u64, policy: Policy, actions: &mut Vec<Action<C>>) {
        self.policy = policy;
        self.quarantine.set_after(policy.quarantine_after);
        for caller in self.budgets.resize(policy.fault_budget) {
            self.review(now_ns, caller, actions);
        }
    }

    /// A function is gone for good.
    pub fn forget_function(&mut self, function: u64) {
        self.quarantine.forget(function);
    }

    /// Functions that are refused, and to whom.
    pub fn quarantined(&self, now_ns: u64) -> Vec<Quarantined> {
        self.quarantine.list(now_ns)
    }

    /// Budgets that are not whole.
    pub fn budgets(&self, now_ns: u64) -> Vec<Budget> {
        self.budgets.list(now_ns)
    }

    /// A call is over. Where it ran, [`Scheduler::review`] must follow.
    pub(super) fn judge(
        &mut self,
        now_ns: u64,
        entry: &Entry<C>,
        verdict: Verdict,
        actions: &mut Vec<Action<C>>,
    ) {
        // Nearly always nobody failed lately.
        if verdict != Verdict::Fault && self.quarantine.is_empty() && self.budgets.is_empty() {
            return;
        }
        let (used, caller) = (entry.used(), entry.domain.caller);
        match verdict {
            Verdict::Well => {
                self.quarantine.ended_well(used);
                self.budgets.ended_well(now_ns, caller);
            }
            Verdict::Fault => self.blame(now_ns, used, entry.probe, actions),
            Verdict::Neither if entry.probe => self.quarantine.probed_in_vain(used),
            Verdict::Neither => {}
        }
    }

    /// A call failed through nobody else's doing: those of its function that wait may be refused. Not
    /// suspects: whether they are guilty is about to be found out, and each that is not proves something.
    fn blame(&mut self, now_ns: u64, used: Use, is_probe: bool, actions: &mut Vec<Action<C>>) {
        let Some(refusal) = self.quarantine.failed(now_ns, used, is_probe) else { return };
        let held_up = !self.exclusive.is_empty();
        let waits =
            |entry: &Entry<C>| entry.state == CallState::Queued && !entry.suspect && entry.used() == used;
        for id in self.table.all(waits) {
            let call = self.unqueue(id, actions).map(|entry| entry.call);
            actions.extend(call.map(|call| Action::Refused { call, refusal }));
        }
        if held_up {
            self.resume(now_ns, actions);
        }
    }

    /// A worker is killed for a call. The call failed if it was alone: what it waited for may have been a
    /// neighbour. Nobody says how long a call would have taken that was given up.
    pub(super) fn kill_overdue(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) {
        let is_alone = self.workers[worker].busy.count_ones() == 1;
        let Some(entry) = self.table.get_mut(id) else { return };
        let blamed = is_alone && !entry.detached;
        let is_probe = blamed && std::mem::take(&mut entry.probe);
        let (used, call) = (entry.used(), entry.call.clone());
        self.kill(now_ns, worker, Some(call), actions);
        if blamed {
            self.blame(now_ns, used, is_probe, actions);
        }
    }

    /// A process ended under a caller, or is about to.
    pub(super) fn draw(&mut self, now_ns: u64, served: Option<Domain>, actions: &mut Vec<Action<C>>) {
        let Some(Domain { caller, .. }) = served else { return };
        self.budgets.draw(now_ns, caller);
        if !self.holds(now_ns, caller) {
            return;
        }
        self.hold(caller);
        // Nobody waits behind them.
        let theirs = |id: &CallId| self.table.get(*id).is_some_and(|entry| entry.domain.caller == caller);
        let line: Vec<CallId> = self.exclusive.waiting().into_iter().filter(theirs).collect();
        for id in &line {
            self.exclusive.remove(*id);
            self.exclusive.put_aside(*id);
        }
        if !line.is_empty() {
            self.resume(now_ns, actions);
        }
    }

    /// Whether nothing of a caller may start now.
    pub(super) fn holds(&self, now_ns: u64, caller: u32) -> bool {
        !self.budgets.is_empty()
            && (self.budgets.waits_ns(now_ns, caller).is_some()
                || self.budgets.is_careful(now_ns, caller) && self.runs(caller))
    }

    /// Whether a caller has a call in a worker.
    fn runs(&self, caller: u32) -> bool {
        let theirs = |state| matches!(state, State::Bound(domain) if domain.caller == caller);
        self.workers.iter().any(|worker| worker.busy != 0 && theirs(worker.state))
    }

    /// Nothing of a caller starts any more.
    pub(super) fn hold(&mut self, caller: u32) {
        for (_, d) in self.domains.iter_mut().filter(|(domain, _)| domain.caller == caller) {
            (d.held, d.is_unplaced, d.waits) = (true, false, false);
        }
        self.unplaced.retain(|domain| domain.caller != caller);
        self.waiting.retain(|domain| domain.caller != caller);
    }

    /// Something changed for a caller: if nothing of it was to start and now something may, it does.
    pub(super) fn review(&mut self, now_ns: u64, caller: u32, actions: &mut Vec<Action<C>>) {
        if self.holds(now_ns, caller) {
            return;
        }
        let mut free: Vec<(Option<CallId>, Domain)> = Vec::new();
        for (domain, d) in self.domains.iter_mut().filter(|(domain, d)| d.held && domain.caller == caller) {
            d.held = false;
            free.push((d.queue.front().copied(), *domain));
        }
        // The one that waited longest first.
        free.sort_unstable_by_key(|(first, _)| *first);
        free.iter().for_each(|(_, domain)| self.stand(*domain));
        let theirs = |id: &CallId| self.table.get(*id).is_some_and(|entry| entry.domain.caller == caller);
        let aside: Vec<CallId> = self.exclusive.aside().into_iter().filter(theirs).collect();
        for id in &aside {
            self.exclusive.remove(*id);
            self.exclusive.push(*id);
        }
        if !free.is_empty() || !aside.is_empty() {
            self.resume(now_ns, actions);
        }
    }

    /// A domain, whether or not it is known already.
    pub(super) fn domain_mut(&mut self, now_ns: u64, domain: Domain) -> &mut DomainState {
        if !self.domains.contains_key(&domain) && self.holds(now_ns, domain.caller) {
            self.domains.insert(domain, DomainState { held: true, ..DomainState::default() });
        }
        self.domains.entry(domain).or_default()
    }

    /// A call that needs the whole device waits for it, or for its caller's budget.
    pub(super) fn line_up(&mut self, now_ns: u64, domain: Domain, id: CallId, actions: &mut Vec<Action<C>>) {
        match self.holds(now_ns, domain.caller) {
            true => self.exclusive.put_aside(id),
            false => self.exclusive.push(id),
        }
        // Another one may have waited until this one was no longer running.
        self.try_whole(now_ns, actions);
    }
}
