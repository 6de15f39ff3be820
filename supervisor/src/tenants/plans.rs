//! Plans of one tenant's calls. Each is charged to the tenant for as long as the cache or a call has it.
//!
//! ```text
//! find ──► it is there                          no allocation
//!   └────► make ──► planned, without the lock ──► room: the tenant's, or that of plans that no call has ──► kept
//! ```

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use pappus_blueprint::{Blueprint, CacheBounds, Error, Plan, PlanCache, Sizes};

use super::account::{Account, Taken};
use crate::ids::FunctionId;
use crate::limits::{MAX_PLAN_BYTES, MAX_PLANS};
use crate::quota::{Limit, QuotaError};
use crate::sync::{OrderedMutex, rank};

/// A plan, and what its tenant is charged for it.
#[derive(Debug)]
pub struct CountedPlan {
    plan: Plan,
    _taken: Taken,
}

impl CountedPlan {
    /// A plan that `taken` pays for.
    pub fn new(plan: Plan, taken: Taken) -> Self {
        Self { plan, _taken: taken }
    }
}

impl Deref for CountedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Borrow<Plan> for CountedPlan {
    fn borrow(&self) -> &Plan {
        &self.plan
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The blueprint takes no such sizes.
    #[error(transparent)]
    Sizes(#[from] Error),
    /// The tenant holds too many already.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

/// The plans that are kept.
#[derive(Debug)]
pub struct Plans(OrderedMutex<PlanCache<CountedPlan>, { rank::PLANS }>);

impl Default for Plans {
    fn default() -> Self {
        Self(OrderedMutex::new(PlanCache::new(CacheBounds { plans: MAX_PLANS, bytes: MAX_PLAN_BYTES })))
    }
}

impl Plans {
    /// Frees the bytes of a plan that no call has; false if there is none.
    pub fn give_up_one(&self) -> bool {
        self.0.lock().give_up_one()
    }

    /// A function is gone: no call of it is planned again.
    pub fn forget(&self, function: FunctionId) {
        self.0.lock().remove_function(function.get());
    }
}

impl Account {
    /// The plan of a call, if it is kept; an error if it is known that there is none.
    pub fn find_plan(
        &self,
        function: FunctionId,
        blueprint: &Blueprint,
        sizes: &Sizes<'_>,
    ) -> Result<Option<Arc<CountedPlan>>, Error> {
        self.plans.0.lock().find(function.get(), blueprint, sizes)
    }

    /// Plans a call, which may take long, and keeps what comes of it.
    pub fn make_plan(
        self: &Arc<Self>,
        function: FunctionId,
        blueprint: &Blueprint,
        sizes: &Sizes<'_>,
    ) -> Result<Arc<CountedPlan>, PlanError> {
        let keep = |outcome, bytes| self.plans.0.lock().keep(function.get(), sizes, outcome, bytes);
        let plan = blueprint.plan(sizes).inspect_err(|error| keep(Err(error.clone()), 0))?;
        let bytes = plan.approx_bytes();
        let plan = Arc::new(CountedPlan::new(plan, self.take_plan_bytes(bytes as u64)?));
        keep(Ok(plan.clone()), bytes);
        Ok(plan)
    }

    /// Room for a plan; kept ones that no call has make way.
    fn take_plan_bytes(self: &Arc<Self>, bytes: u64) -> Result<Taken, QuotaError> {
        loop {
            match self.take(Limit::PlanBytes, bytes) {
                Err(why) if bytes <= why.most && self.plans.give_up_one() => {}
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::quota::Quota;
    use crate::tenants::Tenants;

    const F: FunctionId = FunctionId::new(1);

    /// Copies its input, of at most a terabyte, to another buffer.
    fn blueprint() -> Blueprint {
        let config = r#"{"modules": [], "kernels": [], "blueprint": {"inputs": ["a"], "weights": [],
            "buffers": {"b": {"Sizeof": "a"}}, "outputs": ["b"], "control_flow": []}}"#;
        pappus_blueprint::parse(config.as_bytes()).unwrap()
    }

    #[test]
    fn plans_that_calls_hold_are_charged_and_others_make_way() {
        let (tenants, blueprint) = (Tenants::default(), blueprint());
        let account = tenants.account(TenantId::new(1));
        let make = |bytes: u64| {
            account.make_plan(F, &blueprint, &Sizes { inputs: &[bytes], weights: &[], words: &[], free: &[] })
        };
        let find = |bytes: u64| {
            account.find_plan(F, &blueprint, &Sizes { inputs: &[bytes], weights: &[], words: &[], free: &[] })
        };
        let first = make(0).unwrap();
        let one = account.used(Limit::PlanBytes);
        assert!(one >= size_of::<Plan>() as u64);
        assert!(Arc::ptr_eq(&find(0).unwrap().unwrap(), &first));
        let mut quota = Quota::default();
        quota.set(Limit::PlanBytes, 3 * one);
        account.allow(quota);
        let held = [first, make(1).unwrap(), make(2).unwrap()];
        // Gone from the cache they would still be held.
        account.plans.forget(F);
        assert_eq!(account.used(Limit::PlanBytes), 3 * one);
        let why = make(3).unwrap_err();
        assert!(matches!(why, PlanError::Quota(why) if why.limit == Limit::PlanBytes));
        drop(held);
        for n in 0..100 {
            make(n).unwrap();
        }
        assert_eq!(account.used(Limit::PlanBytes), 3 * one);
        assert!(find(99).unwrap().is_some() && find(0).unwrap().is_none());
        account.plans.forget(F);
        assert_eq!(account.used(Limit::PlanBytes), 0);
    }

    #[test]
    fn sizes_without_a_plan_are_found_again_without_planning() {
        let (tenants, blueprint) = (Tenants::default(), blueprint());
        let account = tenants.account(TenantId::new(1));
        let sizes = Sizes { inputs: &[u64::MAX], weights: &[], words: &[], free: &[] };
        assert!(account.find_plan(F, &blueprint, &sizes).unwrap().is_none());
        let why = account.make_plan(F, &blueprint, &sizes).unwrap_err();
        assert_eq!(PlanError::Sizes(account.find_plan(F, &blueprint, &sizes).unwrap_err()), why);
    }
}
