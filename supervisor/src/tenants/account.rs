//! What one tenant has and may have at this moment. The hot path adds and compares; it takes no lock here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pappus_blueprint::{CacheBounds, PlanCache};

use crate::ids::{FunctionId, TenantId};
use crate::limits::{MAX_PLAN_BYTES, MAX_PLANS};
use crate::quota::{Limit, Quota, QuotaError};
use crate::sync::{OrderedMutex, rank};

/// One tenant, for as long as it is connected or something of it is in memory.
#[derive(Debug)]
pub struct Account {
    /// Its number.
    pub tenant: TenantId,
    /// Its name.
    pub name: Arc<str>,
    /// Plans of its calls.
    pub plans: OrderedMutex<PlanCache, { rank::PLANS }>,
    most: [AtomicU64; Limit::ALL.len()],
    /// Of what comes and goes with connections; what is registered is counted in the registry.
    used: [AtomicU64; Limit::ALL.len()],
    /// Invocations of all tenants that are accepted and not over.
    accepted: Arc<AtomicUsize>,
}

impl Account {
    /// Of a tenant that has nothing yet.
    pub fn new(tenant: TenantId, name: Arc<str>, quota: Quota, accepted: Arc<AtomicUsize>) -> Arc<Self> {
        let bounds = CacheBounds { plans: MAX_PLANS, bytes: MAX_PLAN_BYTES };
        Arc::new(Self {
            tenant,
            name,
            plans: OrderedMutex::new(PlanCache::new(bounds)),
            most: Limit::ALL.map(|limit| quota.get(limit).into()),
            used: Limit::ALL.map(|_| AtomicU64::new(0)),
            accepted,
        })
    }

    /// Other limits hold from now on; what is there already stays.
    pub fn allow(&self, quota: Quota) {
        for limit in Limit::ALL {
            self.most[limit as usize].store(quota.get(limit), Ordering::Relaxed);
        }
    }

    /// The most of one thing; the largest number where there is no limit.
    pub fn most(&self, limit: Limit) -> u64 {
        self.most[limit as usize].load(Ordering::Relaxed)
    }

    /// How much of one thing is taken, of those that come and go with connections.
    pub fn used(&self, limit: Limit) -> u64 {
        self.used[limit as usize].load(Ordering::Relaxed)
    }

    /// Takes so much of one thing, or says that it is too much.
    pub fn take(self: &Arc<Self>, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
        self.add(limit, amount)?;
        Ok(Taken { account: self.clone(), limit, amount })
    }

    /// Whether so much more of something fits that is counted elsewhere.
    pub fn check(&self, limit: Limit, used: u64, more: u64) -> Result<(), QuotaError> {
        let most = self.most(limit);
        match used.checked_add(more) {
            Some(sum) if sum <= most => Ok(()),
            // What adds nothing is never too much, however small the limit has become.
            _ if more == 0 => Ok(()),
            _ => Err(self.exceeds(limit, most, used, more)),
        }
    }

    /// The error of something that does not fit.
    pub fn exceeds(&self, limit: Limit, most: u64, used: u64, more: u64) -> QuotaError {
        QuotaError { limit, tenant: self.name.clone(), most, used, more }
    }

    fn add(&self, limit: Limit, amount: u64) -> Result<(), QuotaError> {
        let most = self.most(limit);
        let fits = |used: u64| used.checked_add(amount).filter(|sum| *sum <= most);
        let used = self.used[limit as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        used.map(drop).map_err(|used| self.exceeds(limit, most, used, amount))
    }

    fn give_back(&self, limit: Limit, amount: u64) {
        self.used[limit as usize].fetch_sub(amount, Ordering::AcqRel);
    }

    /// One more accepted invocation, or that there are too many.
    pub fn accept(self: &Arc<Self>) -> Result<Accepted, QuotaError> {
        self.add(Limit::Calls, 1)?;
        self.accepted.fetch_add(1, Ordering::AcqRel);
        Ok(Accepted(self.clone()))
    }

    /// A function is gone: nobody plans it again.
    pub fn forget_plans(&self, function: FunctionId) {
        self.plans.lock().remove_function(function.get());
    }
}

/// An amount of something, given back when dropped.
#[derive(Debug)]
pub struct Taken {
    account: Arc<Account>,
    limit: Limit,
    amount: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.account.give_back(self.limit, self.amount);
    }
}

/// One accepted invocation, counted while it exists: as its tenant's, and as one of all. Draining waits for the
/// latter to reach zero.
#[derive(Debug)]
pub struct Accepted(Arc<Account>);

impl Accepted {
    /// Whose invocation it is.
    pub fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.0.give_back(Limit::Calls, 1);
        self.0.accepted.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_counts_until_it_is_released() {
        let mut quota = Quota::default();
        quota.set(Limit::ArenaBytes, 10);
        quota.set(Limit::Calls, 1);
        let all = Arc::new(AtomicUsize::new(0));
        let account = Account::new(TenantId::new(7), "7".into(), quota, all.clone());
        let first = account.take(Limit::ArenaBytes, 6).unwrap();
        assert!(account.take(Limit::ArenaBytes, 5).unwrap_err().to_string().contains("6 in use"));
        assert!(account.take(Limit::ArenaBytes, u64::MAX).is_err());
        let second = account.take(Limit::ArenaBytes, 4).unwrap();
        drop(first);
        assert_eq!(account.used(Limit::ArenaBytes), 4);
        // Less than is there already: nothing more fits, and nothing breaks.
        quota.set(Limit::ArenaBytes, 3);
        account.allow(quota);
        assert!(account.take(Limit::ArenaBytes, 1).is_err());
        drop(second);
        assert!(account.take(Limit::ArenaBytes, 3).is_ok());

        let call = account.accept().unwrap();
        assert!(account.accept().is_err());
        assert_eq!(all.load(Ordering::Relaxed), 1);
        drop(call);
        assert_eq!((account.used(Limit::Calls), all.load(Ordering::Relaxed)), (0, 0));
    }
}
