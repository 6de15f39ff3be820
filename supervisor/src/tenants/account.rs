//! What the supervisor holds for one tenant at this moment, and what the tenant may have. Everything that is held is
//! taken here first and given back when its [`Taken`] is dropped. The hot path adds and compares; it takes no lock
//! here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pappus_blueprint::Isolation;

use super::last_failures::LastFailures;
use super::ledger::{self, Ledger};
use super::plans::Plans;
use crate::defences;
use crate::ids::TenantId;
use crate::metrics::calls::{self, CallCounts};
use crate::quota::{Limit, Quota, QuotaError, Scope};
use crate::schedule::{Class, TenantShare};

/// One tenant, for as long as it is connected or something of it is in memory.
#[derive(Debug)]
pub struct Account {
    /// Its number.
    pub tenant: TenantId,
    /// Its name.
    pub name: Arc<str>,
    /// Plans of its calls.
    pub plans: Plans,
    /// How its calls failed last.
    pub last_failures: LastFailures,
    /// Counts its calls, where that is exported.
    pub calls: Option<Arc<CallCounts>>,
    most: [AtomicU64; Limit::ALL.len()],
    used: [AtomicU64; Limit::ALL.len()],
    /// What it is given of devices: weight, class, and its own limit of overruns; the largest number is none.
    weight: AtomicU32,
    class: AtomicU32,
    overrun_ns: AtomicU64,
    isolation: AtomicU32,
    /// Open arenas of the tenant, each with a descriptor.
    open_arenas: AtomicU64,
    /// Seats of the tenant at connections of gateways.
    seats: AtomicU64,
    /// What all tenants have.
    ledger: Arc<Ledger>,
}

impl Account {
    /// Of a tenant that has nothing yet.
    pub fn new(tenant: TenantId, name: Arc<str>, quota: Quota, ledger: Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self {
            tenant,
            plans: Plans::default(),
            last_failures: LastFailures::default(),
            calls: calls::of_tenant(&name),
            name,
            most: Limit::ALL.map(|limit| quota.get(limit).into()),
            used: Limit::ALL.map(|_| AtomicU64::new(0)),
            weight: AtomicU32::new(1),
            class: AtomicU32::new(Class::default() as u32),
            overrun_ns: AtomicU64::new(u64::MAX),
            isolation: AtomicU32::new(Isolation::Auto as u32),
            open_arenas: AtomicU64::new(0),
            seats: AtomicU64::new(0),
            ledger,
        })
    }

    /// True if it has a connection, or a seat at a gateway's.
    pub fn is_here(&self) -> bool {
        self.used(Limit::Connections) > 0 || self.seats.load(Ordering::Relaxed) > 0
    }

    /// An arena of its is open from now on.
    pub fn arena_opened(&self) {
        self.open_arenas.fetch_add(1, Ordering::Relaxed);
    }

    /// One is open no more: its descriptor is closed once no call needs it.
    pub fn arena_closed(&self) {
        self.open_arenas.fetch_sub(1, Ordering::Relaxed);
    }

    /// It is given this of devices from now on.
    pub fn give(&self, share: TenantShare) {
        self.weight.store(share.weight, Ordering::Relaxed);
        self.class.store(share.class as u32, Ordering::Relaxed);
        self.overrun_ns.store(share.overrun_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.isolation.store(share.isolation as u32, Ordering::Relaxed);
    }

    /// What it is given of devices.
    pub fn share(&self) -> TenantShare {
        let class = self.class.load(Ordering::Relaxed) as usize;
        let overrun_ns = self.overrun_ns.load(Ordering::Relaxed);
        TenantShare {
            weight: self.weight.load(Ordering::Relaxed),
            class: Class::ALL.get(class).copied().unwrap_or_default(),
            overrun_ns: (overrun_ns != u64::MAX).then_some(overrun_ns),
            isolation: self.isolation(),
        }
    }

    /// Whether its calls, and calls of its functions, are in workers beside those of others.
    pub fn isolation(&self) -> Isolation {
        let isolation = self.isolation.load(Ordering::Relaxed) as usize;
        Isolation::ALL.get(isolation).copied().unwrap_or_default()
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

    /// How much of one thing is taken.
    pub fn used(&self, limit: Limit) -> u64 {
        self.used[limit as usize].load(Ordering::Relaxed)
    }

    /// True if this tenant, or all tenants together, have more than the limit.
    pub fn is_over(&self, limit: Limit) -> bool {
        self.used(limit) > self.most(limit) || self.ledger.used(limit) > self.ledger.most(limit)
    }

    /// True if half of the limit stays free with so much more, for this tenant and for all together.
    pub fn leaves_half(&self, limit: Limit, amount: u64) -> bool {
        let leaves = |used: u64, most: u64| used.saturating_add(amount) <= most / 2;
        leaves(self.used(limit), self.most(limit)) && leaves(self.ledger.used(limit), self.ledger.most(limit))
    }

    /// Takes so much of a limit, or fails if that is too much.
    pub fn take(self: &Arc<Self>, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
        self.add(limit, amount)?;
        Ok(Taken { account: self.clone(), limit, amount })
    }

    /// Adds an amount without a check: for something that is there already, or the operator's.
    pub fn charge(self: &Arc<Self>, limit: Limit, amount: u64) -> Taken {
        self.count(limit, amount);
        Taken { account: self.clone(), limit, amount }
    }

    fn count(&self, limit: Limit, amount: u64) {
        self.used[limit as usize].fetch_add(amount, Ordering::AcqRel);
        self.ledger.charge(limit, amount);
    }

    /// Checks that so much more fits into a limit whose use is counted elsewhere.
    pub fn check(&self, limit: Limit, used: u64, more: u64) -> Result<(), QuotaError> {
        let most = self.most(limit);
        match used.checked_add(more) {
            Some(sum) if sum <= most => Ok(()),
            // Adding nothing is never too much, however small the limit has become.
            _ if more == 0 => Ok(()),
            _ => Err(self.exceeds(limit, most, used, more)),
        }
    }

    /// The error of something that does not fit.
    pub fn exceeds(&self, limit: Limit, most: u64, used: u64, more: u64) -> QuotaError {
        let lasting = match limit {
            Limit::Descriptors => self.open_arenas.load(Ordering::Relaxed),
            // The only call waits for other tenants: nothing of its own gets free.
            Limit::DeviceMemory if self.used(Limit::Calls) <= 1 => used,
            _ => limit.lasting(self.used(Limit::Connections)),
        };
        let freeing = used.saturating_sub(lasting);
        QuotaError { limit, tenant: self.name.clone(), scope: Scope::Tenant, most, used, more, freeing }
    }

    fn add(&self, limit: Limit, amount: u64) -> Result<(), QuotaError> {
        // Adding nothing is never too much, however small the limit has become.
        if amount == 0 {
            return Ok(());
        }
        if defences::is_unlimited(limit) {
            self.count(limit, amount);
            return Ok(());
        }
        let most = self.most(limit);
        ledger::add(&self.used[limit as usize], most, amount)
            .map_err(|used| self.exceeds(limit, most, used, amount))?;
        let all = self.ledger.add(limit, amount, &self.name);
        if all.is_err() {
            self.used[limit as usize].fetch_sub(amount, Ordering::AcqRel);
        }
        all
    }

    fn give_back(&self, limit: Limit, amount: u64) {
        self.used[limit as usize].fetch_sub(amount, Ordering::AcqRel);
        self.ledger.give_back(limit, amount);
    }

    /// Accepts one more invocation, or refuses it if there are too many.
    pub fn accept(self: &Arc<Self>) -> Result<Accepted, QuotaError> {
        self.add(Limit::Calls, 1)?;
        self.ledger.accept();
        Ok(Accepted { account: self.clone(), counts: AtomicBool::new(true) })
    }
}

/// A tenant's seat at a gateway's connection: as long as it exists, the tenant counts as one that is here.
#[derive(Debug)]
pub struct Sitting(Arc<Account>);

impl Sitting {
    /// This tenant has a seat more.
    pub fn at(account: &Arc<Account>) -> Self {
        account.seats.fetch_add(1, Ordering::Relaxed);
        Self(account.clone())
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        self.0.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An amount of something, given back when dropped.
#[derive(Debug)]
pub struct Taken {
    account: Arc<Account>,
    limit: Limit,
    amount: u64,
}

impl Taken {
    /// How much it is.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Holds what another one holds as well, of the same limit and tenant.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(self.limit == other.limit && Arc::ptr_eq(&self.account, &other.account));
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Takes more, or gives some back, to have `amount`.
    pub fn resize(&mut self, amount: u64) -> Result<(), QuotaError> {
        match amount.checked_sub(self.amount) {
            // An error names the whole new amount, as if nothing were taken yet.
            Some(more) => {
                self.account.add(self.limit, more).map_err(|error| error.with_own(self.amount))?;
            }
            None => self.account.give_back(self.limit, self.amount - amount),
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.account.give_back(self.limit, self.amount);
    }
}

/// One accepted invocation. It counts as its tenant's until it is over, and as one of all tenants' until dropped:
/// draining waits until the latter are zero.
#[derive(Debug)]
pub struct Accepted {
    account: Arc<Account>,
    /// True while the invocation counts as its tenant's.
    counts: AtomicBool,
}

impl Accepted {
    /// Whose invocation it is.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Frees the tenant's place before the answer is sent, so that a tenant that reads the answer can invoke
    /// again.
    pub fn end(&self) {
        if self.counts.swap(false, Ordering::AcqRel) {
            self.account.give_back(Limit::Calls, 1);
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.end();
        self.account.ledger.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Machine;
    use super::*;
    use crate::limits::CONNECTION_BYTES;

    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::new(Machine { memory_bytes: 8000, descriptors: 1000, processes: 0 }))
    }

    fn account(quota: Quota, ledger: &Arc<Ledger>) -> Arc<Account> {
        Account::new(TenantId::new(7), "7".into(), quota, ledger.clone())
    }

    #[test]
    fn a_quota_counts_until_it_is_released() {
        let mut quota = Quota::default();
        quota.set(Limit::ArenaBytes, 10);
        quota.set(Limit::Calls, 1);
        let ledger = ledger();
        let account = account(quota, &ledger);
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
        assert_eq!(ledger.accepted(), 1);
        // Once a call is over, the tenant may make another one; draining waits for both.
        call.end();
        let next = account.accept().unwrap();
        drop(call);
        assert_eq!((account.used(Limit::Calls), ledger.accepted()), (1, 1));
        drop(next);
        assert_eq!((account.used(Limit::Calls), ledger.accepted()), (0, 0));
    }

    #[test]
    fn all_tenants_together_have_a_total_and_the_operator_is_not_refused_for_it() {
        let ledger = ledger();
        let (one, two) = (account(Quota::default(), &ledger), account(Quota::default(), &ledger));
        let most = ledger.most(Limit::RequestBytes);
        let held = one.take(Limit::RequestBytes, most - 1).unwrap();
        let error = two.take(Limit::RequestBytes, 2).unwrap_err();
        assert_eq!(
            (error.scope, error.used, error.retry_after_ms()),
            (Scope::AllTenants, most - 1, Some(1000))
        );
        // What did not fit is not counted for the tenant either.
        assert_eq!(two.used(Limit::RequestBytes), 0);
        assert!(!one.is_over(Limit::RequestBytes));
        let operator = two.charge(Limit::RequestBytes, 100);
        assert_eq!(ledger.used(Limit::RequestBytes), most + 99);
        assert!(one.is_over(Limit::RequestBytes) && !one.is_over(Limit::PlanBytes));
        drop((held, operator));
        assert_eq!(ledger.used(Limit::RequestBytes), 0);
    }

    #[test]
    fn what_is_refused_may_be_tried_again_unless_it_is_the_tenants_to_end() {
        let mut quota = Quota::default();
        quota.set(Limit::Descriptors, 2);
        quota.set(Limit::RequestBytes, 2 * CONNECTION_BYTES);
        let account = account(quota, &ledger());
        let retry_ms = |limit, amount| account.take(limit, amount).unwrap_err().retry_after_ms();
        let held =
            [account.take(Limit::Descriptors, 1).unwrap(), account.take(Limit::Descriptors, 1).unwrap()];
        account.arena_opened();
        assert_eq!(
            retry_ms(Limit::Descriptors, 1),
            Some(10),
            "the other one is a call's, or is being closed"
        );
        account.arena_opened();
        assert_eq!(retry_ms(Limit::Descriptors, 1), None);
        account.arena_closed();
        assert_eq!(retry_ms(Limit::Descriptors, 1), Some(10));
        drop(held);

        let _connections = account.take(Limit::Connections, 2).unwrap();
        let _base = account.charge(Limit::RequestBytes, 2 * CONNECTION_BYTES);
        assert_eq!(retry_ms(Limit::RequestBytes, 1), None, "connections stay");
        let _call = account.charge(Limit::RequestBytes, 1);
        assert_eq!(retry_ms(Limit::RequestBytes, 1), Some(10));
    }

    #[test]
    fn what_is_taken_can_grow_and_shrink() {
        let mut quota = Quota::default();
        quota.set(Limit::PlanBytes, 10);
        let account = account(quota, &ledger());
        let mut taken = account.take(Limit::PlanBytes, 4).unwrap();
        taken.resize(10).unwrap();
        let why = taken.resize(11).unwrap_err();
        assert_eq!((why.used, why.more), (0, 11));
        assert_eq!((taken.amount(), account.used(Limit::PlanBytes)), (10, 10));
        taken.resize(1).unwrap();
        assert_eq!(account.used(Limit::PlanBytes), 1);
        drop(taken);
        assert_eq!(account.used(Limit::PlanBytes), 0);
    }
}
