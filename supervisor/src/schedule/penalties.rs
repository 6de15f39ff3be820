//! Penalties for callers whose calls fail: the function is refused to its caller for a while, and each process that ends draws on
//! the caller's budget. Other callers are not held up.

use super::budget::{Budget, Budgets};
use super::mps_suspicion::MpsSuspicion;
use super::policy::Policy;
use super::quarantine::{Admission, Quarantine, Quarantined, Refusal, Use};
use super::types::Verdict;
use crate::ids::{FunctionId, TenantId};

/// The penalties of all callers of one device.
#[derive(Debug)]
pub(super) struct Penalties {
    cancel_grace_ns: u64,
    budgets: Budgets,
    quarantine: Quarantine,
    unproven: MpsSuspicion,
}

/// A draw on a caller's budget that may turn out to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) caller: TenantId,
    /// True if the caller's calls started one at a time before, too.
    was_careful: bool,
}

impl Penalties {
    /// Of callers that did nothing yet.
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            cancel_grace_ns: policy.cancel_grace_ns,
            budgets: Budgets::new(policy.fault_budget),
            quarantine: Quarantine::new(policy.quarantine_after),
            unproven: MpsSuspicion::default(),
        }
    }

    /// Other limits from now on. Returns the callers for whom something may have changed.
    pub(super) fn set_policy(&mut self, policy: Policy) -> Vec<TenantId> {
        self.cancel_grace_ns = policy.cancel_grace_ns;
        self.quarantine.set_after(policy.quarantine_after);
        self.budgets.resize(policy.fault_budget)
    }

    /// How long a call that was given up may run on.
    pub(super) fn cancel_grace_ns(&self) -> u64 {
        self.cancel_grace_ns
    }

    /// What becomes of a new call.
    pub(super) fn admit(&self, now_ns: u64, used: Use) -> Admission {
        self.quarantine.admit(now_ns, used)
    }

    /// A call that was admitted as the probe is accepted.
    pub(super) fn probe(&mut self, used: Use) {
        self.quarantine.probe(used);
    }

    /// A call is over. Returns the refusal for waiting calls, where the function is refused from now on.
    pub(super) fn judge(&mut self, now_ns: u64, used: Use, verdict: Verdict, probe: bool) -> Option<Refusal> {
        match verdict {
            Verdict::Fault => return self.quarantine.failed(now_ns, used, probe),
            _ if self.quarantine.is_empty() && self.budgets.is_empty() && self.unproven.is_empty() => {}
            Verdict::Well => {
                self.quarantine.ended_well(used);
                self.budgets.ended_well(now_ns, used.caller);
                self.unproven.ended_well(used);
            }
            Verdict::Neither if probe => self.quarantine.probed_in_vain(used),
            Verdict::Neither => {}
        }
        None
    }

    /// True if calls of a caller run alone, since it stayed open whether one of them was why the device failed.
    pub(super) fn must_prove(&self, now_ns: u64, caller: TenantId) -> bool {
        self.unproven.includes(now_ns, caller)
    }

    /// Where faults hit the calls of all: a lost call does not run again, for its deadline or its client. True if the call must have
    /// been the cause; `in_it`: the failure was in its process.
    pub(super) fn left_open(&mut self, now_ns: u64, used: Use, started_ns: u64, in_it: bool) -> bool {
        self.unproven.left_open(now_ns, used, started_ns, in_it)
    }

    /// A process ended under a caller, or is about to.
    pub(super) fn draw(&mut self, now_ns: u64, caller: TenantId) -> Draw {
        let was_careful = self.budgets.is_careful(now_ns, caller);
        self.budgets.draw(now_ns, caller);
        Draw { caller, was_careful }
    }

    /// What was drawn was not the caller's doing.
    pub(super) fn give_back(&mut self, now_ns: u64, draw: Draw) {
        self.budgets.give_back(now_ns, draw.caller, draw.was_careful);
    }

    /// True if nothing of a caller may start now; `runs` says whether it has a call in a worker.
    pub(super) fn holds(&self, now_ns: u64, caller: TenantId, runs: impl FnOnce() -> bool) -> bool {
        self.budgets.waits_ns(now_ns, caller).is_some() || self.is_careful(now_ns, caller) && runs()
    }

    /// True if any caller may be held up.
    pub(super) fn may_hold(&self) -> bool {
        !self.budgets.is_empty()
    }

    /// Time until a caller whose budget is spent may start calls again; 0 if only its running call is in the way.
    pub(super) fn waits_ns(&self, now_ns: u64, caller: TenantId) -> u64 {
        self.budgets.waits_ns(now_ns, caller).unwrap_or(0)
    }

    /// True if a caller's calls start one at a time.
    pub(super) fn is_careful(&self, now_ns: u64, caller: TenantId) -> bool {
        self.budgets.is_careful(now_ns, caller)
    }

    /// True if a caller's budget is not whole.
    pub(super) fn has_drawn(&self, now_ns: u64, caller: TenantId) -> bool {
        self.budgets.has_drawn(now_ns, caller)
    }

    /// When [`Penalties::due`] has something to say.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.budgets.next_ns()
    }

    /// Callers whose budget allows more than before.
    pub(super) fn due(&mut self, now_ns: u64) -> Vec<TenantId> {
        self.budgets.due(now_ns)
    }

    /// A function is gone for good.
    pub(super) fn forget_function(&mut self, function: FunctionId) {
        self.quarantine.forget(function);
    }

    /// Functions that are refused, and to whom.
    pub(super) fn quarantined(&self, now_ns: u64) -> Vec<Quarantined> {
        self.quarantine.list(now_ns)
    }

    /// Budgets that are not whole.
    pub(super) fn budgets(&self, now_ns: u64) -> Vec<Budget> {
        self.budgets.list(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: TenantId = TenantId::new(1);

    const USED: Use = Use { function: FunctionId::new(7), caller: ALICE };
    const MINUTE_NS: u64 = 60_000_000_000;

    fn penalties(quarantine_after: u32, fault_budget: u32) -> Penalties {
        Penalties::new(Policy { quarantine_after, fault_budget, ..Policy::default() })
    }

    #[test]
    fn a_fault_counts_and_a_good_end_wipes_the_slate() {
        let mut penalties = penalties(2, 0);
        assert_eq!(penalties.judge(0, USED, Verdict::Fault, false), None);
        assert_eq!(penalties.judge(0, USED, Verdict::Well, false), None);
        assert_eq!(penalties.judge(0, USED, Verdict::Fault, false), None);
        assert_eq!(penalties.judge(0, USED, Verdict::Fault, false).map(|refusal| refusal.failures), Some(2));
        assert!(matches!(penalties.admit(0, USED), Admission::Refused(_)));
        penalties.forget_function(FunctionId::new(7));
        assert_eq!(penalties.admit(0, USED), Admission::Free);
    }

    #[test]
    fn a_probe_that_says_nothing_makes_way_for_the_next() {
        let mut penalties = penalties(1, 0);
        penalties.judge(0, USED, Verdict::Fault, false);
        assert_eq!(penalties.admit(MINUTE_NS, USED), Admission::Probe);
        penalties.probe(USED);
        assert!(matches!(penalties.admit(MINUTE_NS, USED), Admission::Refused(_)));
        penalties.judge(MINUTE_NS, USED, Verdict::Neither, true);
        assert_eq!(penalties.admit(MINUTE_NS, USED), Admission::Probe);
    }

    #[test]
    fn a_spent_budget_holds_its_caller_and_then_one_call_at_a_time() {
        let mut penalties = penalties(0, 1);
        assert!(!penalties.holds(0, ALICE, || true));
        penalties.draw(0, ALICE);
        assert!(penalties.holds(0, ALICE, || false) && !penalties.holds(0, TenantId::new(2), || true));
        assert_eq!(penalties.waits_ns(0, ALICE), MINUTE_NS);
        assert_eq!((penalties.next_ns(), penalties.due(MINUTE_NS)), (Some(MINUTE_NS), vec![ALICE]));
        assert!(!penalties.holds(MINUTE_NS, ALICE, || false));
    }

    #[test]
    fn a_draw_that_was_wrong_is_given_back() {
        let mut penalties = penalties(0, 1);
        let draw = penalties.draw(0, ALICE);
        assert!(penalties.holds(0, ALICE, || false));
        penalties.give_back(5, draw);
        assert!(!penalties.holds(5, ALICE, || true) && !penalties.is_careful(5, ALICE));
        assert!(penalties.budgets(5).is_empty());
    }
}
