//! What failures must lead to, counted another way than the scheduler does: a level that fills with time.

use std::collections::{HashMap, HashSet};

use super::World;
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::schedule::{KillReason, Policy};

const MINUTE_NS: i128 = 60_000_000_000;

/// Whose use of which function: (function, caller).
type Use = (FunctionId, TenantId);

/// What the outside knows of failures.
pub(super) struct Trouble {
    policy: Policy,
    accounts: HashMap<TenantId, Account>,
    cases: HashMap<Use, Case>,
    ever_spent: HashSet<TenantId>,
    /// What stayed open: the caller's functions, each with the moment since which it must show something.
    open: HashMap<TenantId, (u64, HashSet<FunctionId>)>,
}

struct Account {
    level_ns: i128,
    at_ns: u64,
    careful: bool,
}

#[derive(Default)]
pub(super) struct Case {
    failures: u32,
    refusals: u32,
    until_ns: u64,
    pub(super) probe: Option<u64>,
}

/// What becomes of a new call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admits {
    Never,
    All,
    Probe,
}

impl Trouble {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            accounts: HashMap::new(),
            cases: HashMap::new(),
            ever_spent: HashSet::new(),
            open: HashMap::new(),
        }
    }

    fn price_ns(&self) -> i128 {
        MINUTE_NS / i128::from(self.policy.fault_budget.max(1))
    }

    fn account(&mut self, now_ns: u64, caller: TenantId) -> &mut Account {
        let full_ns = self.price_ns() * i128::from(self.policy.fault_budget);
        let fresh = Account { level_ns: full_ns, at_ns: now_ns, careful: false };
        let account = self.accounts.entry(caller).or_insert(fresh);
        account.level_ns = full_ns.min(account.level_ns + i128::from(now_ns - account.at_ns));
        account.at_ns = now_ns;
        account.careful &= account.level_ns < full_ns;
        account
    }

    pub(super) fn draw(&mut self, now_ns: u64, caller: TenantId) {
        if self.policy.fault_budget == 0 {
            return;
        }
        let price_ns = self.price_ns();
        let account = self.account(now_ns, caller);
        account.level_ns -= price_ns;
        if account.level_ns < price_ns {
            account.careful = true;
            self.ever_spent.insert(caller);
        }
    }

    pub(super) fn may_start(&mut self, now_ns: u64, caller: TenantId) -> bool {
        let price_ns = self.price_ns();
        self.policy.fault_budget == 0 || self.account(now_ns, caller).level_ns >= price_ns
    }

    pub(super) fn is_careful(&mut self, now_ns: u64, caller: TenantId) -> bool {
        self.policy.fault_budget != 0 && self.account(now_ns, caller).careful
    }

    pub(super) fn ever_spent(&self, caller: TenantId) -> bool {
        self.ever_spent.contains(&caller)
    }

    pub(super) fn case(&mut self, used: Use) -> &mut Case {
        self.cases.entry(used).or_default()
    }

    pub(super) fn admits(&self, now_ns: u64, used: Use) -> Admits {
        let after = self.policy.quarantine_after;
        match self.cases.get(&used) {
            Some(case) if after > 0 && case.failures >= after => {
                match now_ns < case.until_ns || case.probe.is_some() {
                    true => Admits::Never,
                    false => Admits::Probe,
                }
            }
            _ => Admits::All,
        }
    }

    pub(super) fn is_unproven(&self, now_ns: u64, caller: TenantId) -> bool {
        let open = self.open.get(&caller).filter(|(_, functions)| !functions.is_empty());
        open.is_some_and(|(since_ns, _)| i128::from(now_ns - since_ns) < MINUTE_NS)
    }

    /// A lost call does not run again; when it started, if its process failed in it.
    pub(super) fn left_open(&mut self, now_ns: u64, used: Use, started_ns: Option<u64>) {
        if !self.is_unproven(now_ns, used.1) {
            self.open.insert(used.1, (now_ns, HashSet::from([used.0])));
            return;
        }
        let (since_ns, functions) = self.open.get_mut(&used.1).unwrap();
        functions.insert(used.0);
        if started_ns.is_some_and(|started_ns| started_ns > *since_ns) {
            *since_ns = now_ns;
            self.draw(now_ns, used.1);
        }
    }

    pub(super) fn ended_well(&mut self, now_ns: u64, used: Use) {
        self.cases.remove(&used);
        if let Some((_, functions)) = self.open.get_mut(&used.1) {
            functions.remove(&used.0);
        }
        if self.may_start(now_ns, used.1) {
            self.account(now_ns, used.1).careful = false;
        }
    }

    pub(super) fn failed(&mut self, now_ns: u64, used: Use, call: u64) {
        let after = self.policy.quarantine_after;
        if after == 0 {
            return;
        }
        let case = self.cases.entry(used).or_default();
        let is_probe = case.probe == Some(call);
        if case.failures >= after && !is_probe {
            return;
        }
        case.failures += 1;
        if is_probe {
            case.probe = None;
        }
        if case.failures >= after {
            case.until_ns = now_ns + 1_000_000_000 * (1u64 << case.refusals).min(300);
            case.refusals += 1;
        }
    }

    /// A call is over without a result.
    pub(super) fn ended(&mut self, call: u64) {
        for case in self.cases.values_mut().filter(|case| case.probe == Some(call)) {
            case.probe = None;
        }
    }
}

impl World {
    /// A process is killed for one of its calls, or for what it did not do.
    pub(super) fn killed(&mut self, worker: WorkerId, why: KillReason<u64>) {
        self.scrubbing.remove(&worker);
        // Two of its calls may be overdue.
        if self.present.remove(&worker) {
            let alone = self.has_one_job(worker);
            let payer = match (self.is_shared(worker), &why) {
                (true, KillReason::Overdue(call)) if alone => Some(self.calls[call].domain),
                (true, _) => None,
                (false, _) => self.serves.get(&worker).copied(),
            };
            payer.into_iter().for_each(|payer| self.trouble.draw(self.now, payer));
        }
        if let KillReason::Overdue(call) | KillReason::Overran(call) = why
            && let Some(known) = self.calls.get_mut(&call)
        {
            known.paid = true;
        }
        let is_alone = self.has_one_job(worker);
        if let KillReason::Overdue(call) | KillReason::Overran(call) = why
            && let Some(known) = self.calls.get_mut(&call)
            && is_alone
            && !known.detached
        {
            known.overran = matches!(why, KillReason::Overran(_));
            self.trouble.failed(self.now, (known.function, known.domain), call);
        }
    }

    /// True if one lane of a worker is busy: whoever's calls are in it is alone there.
    fn has_one_job(&self, worker: WorkerId) -> bool {
        let running = self.calls.values().filter_map(|known| known.running);
        let lanes: HashSet<u32> = running.filter(|(w, _)| *w == worker).map(|(_, lane)| lane).collect();
        lanes.len() == 1
    }
}
