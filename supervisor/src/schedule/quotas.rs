//! How many workers one caller may have at the same time, over all its domains. Only callers with a
//! limit cost anything here.

use std::collections::HashMap;

use crate::ids::TenantId;

/// The limits of callers that have one.
#[derive(Debug, Default)]
pub(super) struct Quotas(HashMap<TenantId, usize>);

impl Quotas {
    /// A caller may have so many workers from now on, or as many as there are. Those that it has too many stay with
    /// their domains.
    pub(super) fn allow(&mut self, caller: TenantId, most: Option<usize>) {
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
    pub(super) fn limited(&self) -> Vec<TenantId> {
        self.0.keys().copied().collect()
    }

    /// Whether a caller may have one more worker than it `has`, which is asked only if it matters.
    pub(super) fn may_have_more(&self, caller: TenantId, has: impl FnOnce() -> usize) -> bool {
        self.0.is_empty() || self.0.get(&caller).is_none_or(|most| has() < *most)
    }

    /// Whether a caller that may have workers has all of them.
    pub(super) fn is_used_up(&self, caller: TenantId, has: impl FnOnce() -> usize) -> bool {
        self.0.get(&caller).is_some_and(|most| *most > 0 && has() >= *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: TenantId = TenantId::new(1);

    #[test]
    fn a_caller_without_a_limit_may_have_more() {
        let mut quotas = Quotas::default();
        assert!(quotas.may_have_more(ALICE, || unreachable!("there are no limits")));
        quotas.allow(ALICE, Some(2));
        assert!(
            quotas.may_have_more(ALICE, || 1)
                && !quotas.may_have_more(ALICE, || 2)
                && quotas.may_have_more(TenantId::new(2), || 9)
        );
        assert!(
            quotas.is_used_up(ALICE, || 2)
                && !quotas.is_used_up(ALICE, || 1)
                && !quotas.is_used_up(TenantId::new(2), || 9)
        );
        assert_eq!(quotas.limited(), [ALICE]);
        quotas.allow(ALICE, None);
        assert!(quotas.is_empty());
    }

    #[test]
    fn a_caller_that_may_have_none_has_none_that_could_give_way() {
        let mut quotas = Quotas::default();
        quotas.allow(ALICE, Some(0));
        assert!(!quotas.may_have_more(ALICE, || 0) && !quotas.is_used_up(ALICE, || 0));
    }
}
