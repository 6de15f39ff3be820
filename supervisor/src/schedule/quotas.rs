//! How many workers one caller may have at the same time, whichever domains they serve. Only callers with a
//! limit cost anything here.

use std::collections::HashMap;

/// The limits of callers that have one.
#[derive(Debug, Default)]
pub(super) struct Quotas(HashMap<u32, usize>);

impl Quotas {
    /// A caller may have so many workers from now on, or as many as there are. Those that it has too many stay with
    /// their domains.
    pub(super) fn allow(&mut self, caller: u32, most: Option<usize>) {
        match most {
            Some(most) => drop(self.0.insert(caller, most)),
            None if self.0.is_empty() => {}
            None => drop(self.0.remove(&caller)),
        }
    }

    /// Whether no caller has a limit.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Callers with a limit.
    pub(super) fn limited(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    /// Whether a caller may have one more worker than it `has`, which is asked only if it matters.
    pub(super) fn may_have_more(&self, caller: u32, has: impl FnOnce() -> usize) -> bool {
        self.0.is_empty() || self.0.get(&caller).is_none_or(|most| has() < *most)
    }

    /// Whether a caller that may have workers has all of them.
    pub(super) fn is_used_up(&self, caller: u32, has: impl FnOnce() -> usize) -> bool {
        self.0.get(&caller).is_some_and(|most| *most > 0 && has() >= *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_without_a_limit_may_have_more() {
        let mut quotas = Quotas::default();
        assert!(quotas.may_have_more(1, || unreachable!("there are no limits")));
        quotas.allow(1, Some(2));
        assert!(
            quotas.may_have_more(1, || 1) && !quotas.may_have_more(1, || 2) && quotas.may_have_more(2, || 9)
        );
        assert!(quotas.is_used_up(1, || 2) && !quotas.is_used_up(1, || 1) && !quotas.is_used_up(2, || 9));
        assert_eq!(quotas.limited(), [1]);
        quotas.allow(1, None);
        assert!(quotas.is_empty());
    }

    #[test]
    fn a_caller_that_may_have_none_has_none_that_could_give_way() {
        let mut quotas = Quotas::default();
        quotas.allow(1, Some(0));
        assert!(!quotas.may_have_more(1, || 0) && !quotas.is_used_up(1, || 0));
    }
}
