//! Uses of functions that run apart: for a while where their calls failed together, or took too long beside strangers; for good where
//! a call took a process from all.

use super::limits::{APART_NS, MAX_APART};
use super::quarantine::Use;
use crate::ids::{FunctionId, IdMap, TenantId};

/// Uses of functions, and until when they run apart.
#[derive(Debug, Default)]
pub(super) struct Apart(IdMap<Use, u64>);

impl Apart {
    /// True if calls of this use run apart.
    pub(super) fn holds(&self, now_ns: u64, used: Use) -> bool {
        self.left_ns(now_ns, used).is_some()
    }

    /// For how long calls of this use run apart, the largest number for good; none if they do not.
    pub(super) fn left_ns(&self, now_ns: u64, used: Use) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        match *self.0.get(&used)? {
            u64::MAX => Some(u64::MAX),
            until_ns => until_ns.checked_sub(now_ns).filter(|ns| *ns > 0),
        }
    }

    /// Calls of this use failed together.
    pub(super) fn add(&mut self, now_ns: u64, used: Use) {
        self.until(now_ns, used, now_ns.saturating_add(APART_NS));
    }

    /// Calls of this use run apart for as long as there is the function.
    pub(super) fn add_for_good(&mut self, now_ns: u64, used: Use) {
        self.until(now_ns, used, u64::MAX);
    }

    fn until(&mut self, now_ns: u64, used: Use, until_ns: u64) {
        if self.0.len() >= MAX_APART {
            self.0.retain(|_, until_ns| *until_ns > now_ns);
        }
        if self.0.len() >= MAX_APART {
            // Who has most gives way: nobody fills it for others.
            let mut counts: IdMap<TenantId, usize> = IdMap::default();
            self.0.keys().for_each(|other| *counts.entry(other.caller).or_default() += 1);
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(caller, _)| caller);
            let theirs = self.0.iter().filter(|(other, _)| Some(other.caller) == most);
            let gone = theirs.min_by_key(|(_, until_ns)| **until_ns).map(|(other, _)| *other);
            gone.map(|gone| self.0.remove(&gone));
        }
        let until = self.0.entry(used).or_default();
        *until = until_ns.max(*until);
    }

    /// Who runs apart now, and until when; none for good.
    pub(super) fn all(&self, now_ns: u64) -> impl Iterator<Item = (Use, Option<u64>)> {
        let there = self.0.iter().filter(move |(_, until_ns)| **until_ns > now_ns);
        there.map(|(used, until_ns)| (*used, (*until_ns < u64::MAX).then_some(*until_ns)))
    }

    /// A function is gone for good.
    pub(super) fn forget(&mut self, function: FunctionId) {
        self.0.retain(|used, _| used.function != function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_fills_it_for_others() {
        let used =
            |function, caller| Use { function: FunctionId::new(function), caller: TenantId::new(caller) };
        let mut apart = Apart::default();
        (0..3000).for_each(|function| apart.add_for_good(0, used(function, 1)));
        assert_eq!(apart.0.len(), MAX_APART);
        apart.add(0, used(1, 2));
        apart.add_for_good(0, used(2, 2));
        (0..3000).for_each(|function| apart.add_for_good(0, used(function, 1)));
        assert!(apart.holds(APART_NS - 1, used(1, 2)) && apart.holds(u64::MAX - 1, used(2, 2)));
        assert!(apart.holds(0, used(2999, 1)) && apart.0.len() == MAX_APART);
        apart.forget(FunctionId::new(2));
        assert!(!apart.holds(0, used(2, 2)));
    }
}
