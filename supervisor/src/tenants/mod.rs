//! Who is a tenant, and what each has and may have. Inside, a tenant is a number: a uid is its own, names of the
//! configuration have high ones. On disk there are only names.
//!
//! - `mod.rs`: from a peer's uid or a gateway's token to a tenant, by rules that can be read again.
//! - [`names`]: numbers that stand for tenants.
//! - [`plans`]: plans of its calls.
//! - [`account`]: what a tenant has at this moment; [`ledger`]: what all tenants have.
//! - [`last_failures`]: how a tenant's calls failed last.

pub mod account;
pub mod last_failures;
pub mod ledger;
pub mod names;
pub mod plans;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sha2::{Digest, Sha256};

pub use crate::quota::{Limit, Quota, QuotaError};
pub use account::{Accepted, Account, Sitting, Taken};
pub use ledger::{Ledger, Machine};
pub use names::Names;
pub use plans::{CountedPlan, PlanError};

use crate::config::TenantRules;
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_TOKEN_BYTES;
use crate::refusal::{Reason, Refusable};
use crate::sync::{OrderedGuard, OrderedMutex, OrderedReadGuard, OrderedRwLock, rank};

/// What a peer may do here.
#[derive(Debug)]
pub struct PeerRights {
    /// The peer's own tenant; none if it can only act for others.
    pub tenant: Option<Arc<Account>>,
    /// True if the peer may act for tenants whose tokens it has.
    pub gateway: bool,
    /// True if the peer is the supervisor's own user and no tenant: it may only ask for the status.
    pub looks_on: bool,
}

/// Why a peer is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTenant {
    /// The configuration does not name the peer, and refuses everybody else.
    #[error(
        "uid {0} is no tenant here: ask the operator to name it in the configuration, [tenants.NAME] uid = {0}"
    )]
    Unknown(u32),
    /// The peer's uid is the one that stands for all unmapped uids.
    #[error(
        "your uid is not mapped into the supervisor's user namespace: the supervisor cannot tell who you are"
    )]
    Unmapped,
    /// The uid of workers, or one that stands for a name.
    #[error("uid {0} is never a tenant")]
    Never(u32),
}

impl Refusable for NoTenant {
    fn reason(&self) -> Reason {
        Reason::PermissionDenied
    }
}

/// Why a connection is some tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grounds {
    /// Its peer's uid.
    Uid(u32),
    /// A token, by its hash, that a gateway presented.
    Token {
        /// The gateway's uid.
        gateway: u32,
        /// SHA-256 of the token.
        sha256: [u8; 32],
    },
}

/// All tenants.
#[derive(Debug)]
pub struct Tenants {
    names: Arc<Names>,
    rules: OrderedRwLock<TenantRules, { rank::TENANT_RULES }>,
    /// Of those that are connected or have something in memory.
    accounts: OrderedMutex<HashMap<TenantId, Weak<Account>>, { rank::ACCOUNTS }>,
    /// Of gateways that have connections which do not say yet for whom they act, by uid.
    gateways: OrderedMutex<HashMap<u32, Weak<Account>>, { rank::GATEWAYS }>,
    /// What all of them have.
    ledger: Arc<Ledger>,
    /// Uids of worker processes that are no user's.
    workers: OnceLock<Vec<u32>>,
    /// How often the rules were read again.
    readings: AtomicU64,
}

impl Default for Tenants {
    fn default() -> Self {
        Self::new(TenantRules::default(), Arc::default(), Machine::here(0))
    }
}

impl Tenants {
    /// Tenants by `rules`, with their `names`.
    pub fn new(rules: TenantRules, names: Arc<Names>, machine: Machine) -> Self {
        let tenants = Self {
            names,
            rules: OrderedRwLock::new(rules),
            accounts: OrderedMutex::default(),
            gateways: OrderedMutex::default(),
            ledger: Arc::new(Ledger::new(machine)),
            workers: OnceLock::new(),
            readings: AtomicU64::new(0),
        };
        tenants.name_all(&tenants.rules());
        tenants
    }

    /// Every configured name has a number, so that it can be found.
    fn name_all(&self, rules: &TenantRules) {
        for name in rules.tenants.keys() {
            let _ = self.names.number(name);
        }
    }

    fn rules(&self) -> OrderedReadGuard<'_, TenantRules, { rank::TENANT_RULES }> {
        self.rules.read()
    }

    /// A process with one of these uids is a worker and never a tenant. Called once, before any client connects.
    pub fn keep_out(&self, workers: Vec<u32>) {
        let _ = self.workers.set(workers);
    }

    /// Numbers and names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What all tenants have.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A tenant's account.
    pub fn account(&self, tenant: TenantId) -> Arc<Account> {
        let name = self.names.name(tenant);
        let (quota, share) = {
            let rules = self.rules();
            (rules.quota(&name), rules.share(&name))
        };
        let mut accounts = self.accounts();
        if let Some(account) = accounts.get(&tenant).and_then(Weak::upgrade) {
            return account;
        }
        // What is left of others goes now and then.
        if accounts.len() >= 16 && accounts.len().is_power_of_two() {
            accounts.retain(|_, account| account.strong_count() > 0);
        }
        let account = Account::new(tenant, name, quota, self.ledger.clone());
        account.give(share);
        accounts.insert(tenant, Arc::downgrade(&account));
        account
    }

    fn accounts(&self) -> OrderedGuard<'_, HashMap<TenantId, Weak<Account>>, { rank::ACCOUNTS }> {
        self.accounts.lock()
    }

    /// What connections of a gateway hold before they say for whom they act, and those of the supervisor's own user where that is
    /// no tenant.
    pub fn gateway_account(&self, uid: u32) -> Arc<Account> {
        let mut gateways = self.gateways.lock();
        if let Some(account) = gateways.get(&uid).and_then(Weak::upgrade) {
            return account;
        }
        gateways.retain(|_, account| account.strong_count() > 0);
        let name = format!("gateway {uid}").into();
        let account = Account::new(TenantId::new(uid), name, Quota::default(), self.ledger.clone());
        gateways.insert(uid, Arc::downgrade(&account));
        account
    }

    /// The accounts there are.
    pub fn live(&self) -> Vec<Arc<Account>> {
        self.accounts().values().filter_map(Weak::upgrade).collect()
    }

    /// A tenant's account, if it is connected or has something in memory.
    fn found(&self, tenant: TenantId) -> Option<Arc<Account>> {
        self.accounts().get(&tenant).and_then(Weak::upgrade)
    }

    /// True if a tenant has a connection, or a seat at a gateway's.
    pub fn is_connected(&self, tenant: TenantId) -> bool {
        self.found(tenant).is_some_and(|account| account.is_here())
    }

    /// A function is gone: its owner and its callers need no plans of it any more.
    pub fn forget_plans<'n>(
        &self,
        function: FunctionId,
        owner: TenantId,
        callers: impl Iterator<Item = &'n str>,
    ) {
        let callers = callers.filter_map(|name| self.names.find(name));
        let accounts = std::iter::once(owner).chain(callers).filter_map(|tenant| self.found(tenant));
        accounts.for_each(|account| account.plans.forget(function));
    }

    /// What a tenant may have.
    pub fn quota(&self, tenant: TenantId) -> Quota {
        self.rules().quota(&self.names.name(tenant))
    }

    /// Names of all configured tenants.
    pub fn configured(&self) -> Vec<String> {
        self.rules().tenants.keys().cloned().collect()
    }

    /// A configured tenant's uids; none if it is not configured.
    pub fn uids(&self, name: &str) -> Option<Vec<u32>> {
        self.rules().find(name).map(|rule| rule.uids.clone())
    }

    /// What the peer of a new connection is, or why it is not served. The operator's own socket serves every
    /// process that reaches it.
    pub fn judge(&self, uid: u32, operator: bool) -> Result<PeerRights, NoTenant> {
        let rules = self.rules();
        let tenant = self.tenant_of(&rules, uid, operator)?;
        let gateway = !operator && rules.gateways.contains(&uid);
        drop(rules);
        let looks_on = tenant.is_none() && !gateway && uid == own_uid();
        match (tenant, gateway || looks_on) {
            (None, false) => Err(NoTenant::Unknown(uid)),
            (tenant, _) => {
                Ok(PeerRights { tenant: tenant.map(|tenant| self.account(tenant)), gateway, looks_on })
            }
        }
    }

    fn tenant_of(&self, rules: &TenantRules, uid: u32, operator: bool) -> Result<Option<TenantId>, NoTenant> {
        if uid == overflow_uid() {
            return Err(NoTenant::Unmapped);
        }
        if uid >= crate::tenant_name::FIRST_NAMED
            || self.workers.get().is_some_and(|workers| workers.contains(&uid))
        {
            return Err(NoTenant::Never(uid));
        }
        Ok(match rules.of_uid(uid) {
            Some(name) => self.names.find(name),
            None if rules.accept_unknown || operator => Some(Names::of_uid(uid)),
            None => None,
        })
    }

    /// The tenant of a token, and the grounds to remember.
    pub fn of_token(&self, gateway: u32, token: &[u8]) -> Option<(Arc<Account>, Grounds)> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let sha256: [u8; 32] = Sha256::digest(token).into();
        let tenant = self.names.find(self.rules().of_token(&sha256)?)?;
        Some((self.account(tenant), Grounds::Token { gateway, sha256 }))
    }

    /// How often the rules were read again: where that is the same number, every tenant stands as it stood.
    pub fn readings(&self) -> u64 {
        self.readings.load(Ordering::Acquire)
    }

    /// The tenant that a connection, or a request, on these grounds is now.
    pub fn stands(&self, grounds: Grounds) -> Option<TenantId> {
        let rules = self.rules();
        match grounds {
            Grounds::Uid(uid) => self.tenant_of(&rules, uid, false).ok().flatten(),
            Grounds::Token { gateway, sha256 } if rules.gateways.contains(&gateway) => {
                self.names.find(rules.of_token(&sha256)?)
            }
            Grounds::Token { .. } => None,
        }
    }

    /// Other rules are in force from now on; those before come back.
    pub fn reload(&self, rules: TenantRules) -> TenantRules {
        self.name_all(&rules);
        let quotas: Vec<_> =
            self.live().into_iter().map(|account| (rules.quota(&account.name), account)).collect();
        let before = std::mem::replace(&mut *self.rules.write(), rules);
        self.readings.fetch_add(1, Ordering::AcqRel);
        quotas.into_iter().for_each(|(quota, account)| account.allow(quota));
        // Those that came meanwhile may have been given what held before.
        for account in self.live() {
            let rules = self.rules();
            account.allow(rules.quota(&account.name));
            account.give(rules.share(&account.name));
        }
        before
    }
}

/// The supervisor's own user, who is the operator.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The uid that stands for users who are not mapped into this namespace.
pub(crate) fn overflow_uid() -> u32 {
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;
    use clap::Parser;

    fn rules(text: &str) -> TenantRules {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        // As a start reads it.
        let path = file.path().to_str().unwrap();
        let flags = Flags::parse_from(["p", "--socket", "/s", "--state-dir", "/d", "--config", path]);
        crate::config::Config::resolve(flags).unwrap().tenants
    }

    fn named(text: &str) -> Tenants {
        Tenants::new(rules(text), Arc::default(), Machine::here(0))
    }

    /// The SHA-256 of "token".
    const SHA256: &str = "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0";

    fn name_of(tenants: &Tenants, uid: u32) -> Option<String> {
        tenants.judge(uid, false).unwrap().tenant.map(|account| account.name.to_string())
    }

    #[test]
    fn a_peer_is_what_its_uid_says() {
        let tenants = named("[tenants.acme]\nuid = [1000, 1001]");
        assert_eq!(name_of(&tenants, 1000).as_deref(), Some("acme"));
        assert_eq!(name_of(&tenants, 1001).as_deref(), Some("acme"));
        assert_eq!(name_of(&tenants, 1002).as_deref(), Some("1002"));
        let both = [1000, 1001].map(|uid| tenants.judge(uid, false).unwrap().tenant.unwrap());
        assert!(Arc::ptr_eq(&both[0], &both[1]));
        for uid in [overflow_uid(), crate::tenant_name::FIRST_NAMED, u32::MAX] {
            assert!(tenants.judge(uid, false).is_err() && tenants.judge(uid, true).is_err(), "{uid}");
        }
        tenants.keep_out(vec![1000, 77]);
        assert_eq!(tenants.judge(77, false).unwrap_err(), NoTenant::Never(77));
        assert!(
            tenants.judge(1000, false).is_err(),
            "a worker's uid is none, also where the configuration names it"
        );
    }

    #[test]
    fn unknown_uids_may_be_refused_though_never_the_operators() {
        let tenants = named("unknown-tenants = 'refuse'\ngateways = [33]\n[tenants.acme]\nuid = 1000");
        assert_eq!(name_of(&tenants, 1000).as_deref(), Some("acme"));
        let why = tenants.judge(1002, false).unwrap_err().to_string();
        assert!(why.contains("[tenants.NAME] uid = 1002"), "{why}");
        assert!(tenants.judge(1002, true).is_ok());
        let gateway = tenants.judge(33, false).unwrap();
        assert!(gateway.gateway && gateway.tenant.is_none() && !gateway.looks_on);
        // The supervisor's own user may look, and is a tenant where the configuration says so.
        let own = tenants.judge(own_uid(), false).unwrap();
        assert!(own.looks_on && own.tenant.is_none() && !own.gateway);
        assert_eq!(tenants.stands(Grounds::Uid(own_uid())), None);
        let named = named(&format!("unknown-tenants = 'refuse'\n[tenants.own]\nuid = {}", own_uid()));
        assert!(!named.judge(own_uid(), false).unwrap().looks_on);
    }

    #[test]
    fn a_token_is_its_tenants_alone_and_only_from_a_gateway() {
        let text =
            format!("gateways = [33]\n[tenants.acme]\ntoken-sha256 = ['{}', '{SHA256}']", "2".repeat(64));
        let tenants = named(&text);
        let (account, grounds) = tenants.of_token(33, b"token").unwrap();
        assert_eq!((&*account.name, tenants.stands(grounds)), ("acme", Some(account.tenant)));
        for wrong in [&b""[..], b"Token", b"token\n", SHA256.as_bytes(), &[b't'; 5000]] {
            assert!(tenants.of_token(33, wrong).is_none());
        }
        assert!(tenants.judge(33, false).unwrap().gateway);
        assert!(!tenants.judge(34, false).unwrap().gateway && !tenants.judge(33, true).unwrap().gateway);

        tenants.reload(rules(&text.replace("[33]", "[34]")));
        assert_eq!(tenants.stands(grounds), None, "no gateway any more");
        tenants.reload(rules(&text.replace(SHA256, &"1".repeat(64))));
        assert_eq!(tenants.stands(grounds), None, "no token any more");
        tenants.reload(rules(&text));
        assert_eq!(tenants.stands(grounds), Some(account.tenant));
    }

    #[test]
    fn reloaded_quotas_apply_to_connected_tenants() {
        let tenants = named("[tenants.acme]\nuid = 1\narena-bytes = 5");
        let (acme, other) = (tenants.judge(1, false).unwrap(), tenants.judge(2, false).unwrap());
        let (acme, other) = (acme.tenant.unwrap(), other.tenant.unwrap());
        let _taken = acme.take(Limit::ArenaBytes, 5).unwrap();
        tenants.reload(rules("[tenant-defaults]\ncalls = 1\n[tenants.acme]\nuid = 1\narena-bytes = 6"));
        assert_eq!(
            (acme.most(Limit::ArenaBytes), acme.most(Limit::Calls), other.most(Limit::Calls)),
            (6, 1, 1)
        );
        assert!(acme.take(Limit::ArenaBytes, 2).is_err() && acme.take(Limit::ArenaBytes, 1).is_ok());
    }

    #[test]
    fn accounts_of_tenants_that_left_are_dropped() {
        let tenants = Tenants::default();
        let kept = tenants.account(Names::of_uid(5));
        (100..10_000).for_each(|uid| drop(tenants.account(Names::of_uid(uid))));
        assert!(tenants.accounts().len() < 100);
        assert!(Arc::ptr_eq(&kept, &tenants.account(Names::of_uid(5))));
    }
}
