//! What the faults of one caller may cost all others. Every worker process that ends under a caller, and not from outside, draws on
//! its budget, which comes back with time. A caller that spent it waits: nothing of it starts before one draw has
//! come back, and then one call at a time, until one ends well.
//!
//! Several processes that end at once may draw more than there is; then it takes as much longer until
//! something starts, so that in the long run no caller draws more than comes back.

use std::collections::HashMap;

use super::limits::MINUTE_NS;
use crate::ids::TenantId;

/// The budgets of all callers that drew lately.
#[derive(Debug)]
pub struct Budgets {
    /// How many draws come back in a minute, which is also the most there are; 0: no limits.
    per_minute: u32,
    accounts: HashMap<TenantId, Account>,
    /// When something may change for somebody who waits.
    next_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    /// When everything will have come back.
    whole_ns: u64,
    /// True if the budget was spent, and nothing ended well since.
    careful: bool,
}

/// A caller's budget, as `status` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Whose.
    pub caller: TenantId,
    /// Draws that are left.
    pub left: u32,
    /// Draws that there can be.
    pub per_minute: u32,
    /// How long nothing of it starts; 0 if something may.
    pub waits_ns: u64,
}

impl Budgets {
    /// No caller drew yet.
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, accounts: HashMap::new(), next_ns: None }
    }

    /// Another size. What was drawn is forgotten; returns who had drawn.
    pub fn resize(&mut self, per_minute: u32) -> Vec<TenantId> {
        if self.per_minute == per_minute {
            return Vec::new();
        }
        let callers = self.accounts.keys().copied().collect();
        *self = Self::new(per_minute);
        callers
    }

    /// True if no caller drew lately, which is nearly always so.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// How long one draw takes to come back.
    fn interval_ns(&self) -> u64 {
        MINUTE_NS / u64::from(self.per_minute.max(1))
    }

    /// When there is something to draw again.
    fn ready_ns(&self, account: &Account) -> u64 {
        account.whole_ns.saturating_sub(self.interval_ns() * u64::from(self.per_minute.saturating_sub(1)))
    }

    fn account(&self, now_ns: u64, caller: TenantId) -> Option<&Account> {
        self.accounts.get(&caller).filter(|account| account.whole_ns > now_ns)
    }

    /// A process ended under a caller.
    pub fn draw(&mut self, now_ns: u64, caller: TenantId) {
        if self.per_minute == 0 {
            return;
        }
        // Those for whom [`Budgets::due`] has something to say go there.
        self.accounts.retain(|_, account| account.whole_ns > now_ns || account.careful);
        let whole_ns = now_ns.max(self.accounts.get(&caller).map_or(0, |account| account.whole_ns));
        let account = Account { whole_ns: whole_ns.saturating_add(self.interval_ns()), careful: false };
        let careful = self.is_careful(now_ns, caller) || self.ready_ns(&account) > now_ns;
        let account = Account { careful, ..account };
        self.next_ns = self.next_ns.into_iter().chain(self.changes_ns(now_ns, &account)).min();
        self.accounts.insert(caller, account);
    }

    /// When something changes for a caller who waits: one call may start once something came back, and several once all did.
    fn changes_ns(&self, now_ns: u64, account: &Account) -> Option<u64> {
        let moments = [self.ready_ns(account), account.whole_ns];
        moments.into_iter().find(|at_ns| account.careful && *at_ns > now_ns)
    }

    /// Time until this caller may start calls again; none if it may now.
    pub fn waits_ns(&self, now_ns: u64, caller: TenantId) -> Option<u64> {
        let ready_ns = self.ready_ns(self.account(now_ns, caller)?);
        ready_ns.checked_sub(now_ns).filter(|left| *left > 0)
    }

    /// True if a caller's calls start one at a time.
    pub fn is_careful(&self, now_ns: u64, caller: TenantId) -> bool {
        self.account(now_ns, caller).is_some_and(|account| account.careful)
    }

    /// True if something drawn has not come back.
    pub fn has_drawn(&self, now_ns: u64, caller: TenantId) -> bool {
        self.account(now_ns, caller).is_some()
    }

    /// A call ended well.
    pub fn ended_well(&mut self, now_ns: u64, caller: TenantId) {
        if self.waits_ns(now_ns, caller).is_some() {
            return;
        }
        if let Some(account) = self.accounts.get_mut(&caller).filter(|account| account.careful) {
            account.careful = false;
        }
    }

    /// When [`Budgets::due`] may have something to say.
    pub fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// The callers for whom something changed.
    pub fn due(&mut self, now_ns: u64) -> Vec<TenantId> {
        if self.next_ns.is_none_or(|next| next > now_ns) {
            return Vec::new();
        }
        let is_due = |account: &Account| account.careful && self.ready_ns(account) <= now_ns;
        let due = self.accounts.iter().filter(|(_, account)| is_due(account));
        let mut callers: Vec<TenantId> = due.map(|(caller, _)| *caller).collect();
        callers.sort_unstable();
        self.accounts.retain(|_, account| account.whole_ns > now_ns);
        self.next_ns = self.accounts.values().filter_map(|account| self.changes_ns(now_ns, account)).min();
        callers
    }

    /// Those that are not whole, by caller.
    pub fn list(&self, now_ns: u64) -> Vec<Budget> {
        let known = self.accounts.iter().filter(|(_, account)| account.whole_ns > now_ns);
        let mut all: Vec<Budget> = known
            .map(|(caller, account)| {
                let drawn = (account.whole_ns - now_ns).div_ceil(self.interval_ns());
                Budget {
                    caller: *caller,
                    left: self.per_minute.saturating_sub(drawn.min(u64::from(u32::MAX)) as u32),
                    per_minute: self.per_minute,
                    waits_ns: self.waits_ns(now_ns, *caller).unwrap_or(0),
                }
            })
            .collect();
        all.sort_unstable_by_key(|budget| budget.caller);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALICE: TenantId = TenantId::new(1);
    const BOB: TenantId = TenantId::new(2);

    const S: u64 = 1_000_000_000;

    #[test]
    fn five_a_minute_then_one_every_twelve_seconds() {
        let mut budgets = Budgets::new(5);
        for nth in 0..5 {
            assert_eq!(budgets.waits_ns(0, ALICE), None, "{nth}");
            budgets.draw(0, ALICE);
        }
        assert_eq!((budgets.waits_ns(0, ALICE), budgets.waits_ns(0, BOB)), (Some(12 * S), None));
        assert_eq!(budgets.next_ns(), Some(12 * S));
        assert!(budgets.due(12 * S - 1).is_empty());
        assert_eq!(budgets.due(12 * S), [ALICE]);
        assert_eq!((budgets.waits_ns(12 * S, ALICE), budgets.is_careful(12 * S, ALICE)), (None, true));
        budgets.draw(12 * S, ALICE);
        assert_eq!(budgets.waits_ns(12 * S, ALICE), Some(12 * S));
    }

    #[test]
    fn several_draws_at_once_take_longer_to_restore() {
        let mut budgets = Budgets::new(2);
        (0..4).for_each(|_| budgets.draw(0, ALICE));
        assert_eq!(budgets.waits_ns(0, ALICE), Some(90 * S));
        assert_eq!(budgets.list(0), [Budget { caller: ALICE, left: 0, per_minute: 2, waits_ns: 90 * S }]);
        assert_eq!(budgets.list(119 * S)[0].left, 1);
        assert!(budgets.list(120 * S).is_empty());
    }

    #[test]
    fn care_ends_with_a_good_end_or_when_everything_is_back() {
        let mut budgets = Budgets::new(1);
        budgets.draw(0, ALICE);
        budgets.ended_well(30 * S, ALICE);
        assert!(budgets.is_careful(30 * S, ALICE), "a call that began before says nothing");
        assert_eq!((budgets.due(60 * S), budgets.is_careful(60 * S, ALICE)), (vec![ALICE], false));
        let mut budgets = Budgets::new(2);
        (0..2).for_each(|_| budgets.draw(0, ALICE));
        assert_eq!(budgets.due(30 * S), [ALICE]);
        assert_eq!(budgets.next_ns(), Some(60 * S));
        budgets.ended_well(30 * S, ALICE);
        assert!(!budgets.is_careful(30 * S, ALICE) && budgets.due(60 * S).is_empty());
        assert_eq!(budgets.next_ns(), None);
    }

    #[test]
    fn every_waiting_caller_is_told_when_its_budget_is_back() {
        let mut budgets = Budgets::new(1);
        budgets.draw(0, ALICE);
        budgets.draw(61 * S, BOB);
        assert_eq!((budgets.due(61 * S), budgets.due(121 * S)), (vec![ALICE], vec![BOB]));
        assert!(budgets.is_empty());
    }

    #[test]
    fn no_limit_and_another_size() {
        let mut budgets = Budgets::new(0);
        (0..9).for_each(|_| budgets.draw(0, ALICE));
        assert!(budgets.is_empty() && budgets.waits_ns(0, ALICE).is_none());
        assert!(budgets.resize(1).is_empty());
        budgets.draw(0, ALICE);
        assert_eq!((budgets.resize(1).len(), budgets.resize(7)), (0, vec![ALICE]));
        assert_eq!((budgets.waits_ns(0, ALICE), budgets.next_ns()), (None, None));
    }

    proptest! {
        /// Who draws only when it may never draws more than there was and came back.
        #[test]
        fn a_caller_never_draws_more_than_its_budget_restores(per_minute in 1..20u32, steps in proptest::collection::vec(0..20u64, 1..200)) {
            let mut budgets = Budgets::new(per_minute);
            let (mut now, mut drawn) = (0, 0u64);
            for step in steps {
                now += step * S;
                budgets.due(now);
                if budgets.waits_ns(now, ALICE).is_none() {
                    budgets.draw(now, ALICE);
                    drawn += 1;
                }
                prop_assert!(drawn <= u64::from(per_minute) + now * u64::from(per_minute) / MINUTE_NS + 1);
                prop_assert!(budgets.next_ns().is_none_or(|next| next > now));
                let left = budgets.list(now).first().map_or(per_minute, |budget| budget.left);
                prop_assert_eq!(left == 0, budgets.waits_ns(now, ALICE).is_some());
            }
        }
    }
}
