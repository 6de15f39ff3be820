//! What each tenant has and may have, for itself and for the operator.

use std::collections::BTreeSet;
use std::ops::Bound;

use pappus_proto::v1;

use super::connection_slots::{ConnectionEntry, SlotOwner};
use super::state::Server;
use crate::device::Device;
use crate::ids::FunctionId;
use crate::limits::{LIST_PAGE, MAX_PEERS_SHOWN};
use crate::registry::Revoked;
use crate::schedule::Domain;
use crate::tenants::{Account, Limit};

impl Server {
    /// A tenant as it may see itself.
    pub fn quota_of(&self, account: &Account) -> v1::TenantInfo {
        let quotas = Limit::ALL.map(|limit| {
            let used = self.used(account, limit);
            let most = account.most(limit);
            v1::Quota { name: limit.name().to_owned(), used, limit: (most != u64::MAX).then_some(most) }
        });
        let share = account.share();
        v1::TenantInfo {
            name: account.name.to_string(),
            quotas: quotas.into(),
            device_ns: self.devices.iter().map(|device| device.device_time_of(account.tenant)).sum(),
            weight: share.weight,
            class: share.class.name().to_owned(),
            ..Default::default()
        }
    }

    /// How much of something a tenant has.
    pub(super) fn used(&self, account: &Account, limit: Limit) -> u64 {
        match limit {
            Limit::DeviceMemory => self.most_of(|device| device.held_bytes(account.tenant)),
            Limit::QueuedCalls => self.most_of(|device| device.waiting_of(account.tenant).0),
            Limit::QueuedBytes => self.most_of(|device| device.waiting_of(account.tenant).1),
            _ => account.used(limit),
        }
    }

    /// Of something that each device has, the most.
    fn most_of(&self, has: impl Fn(&Device) -> u64) -> u64 {
        self.devices.iter().map(|device| has(device)).max().unwrap_or(0)
    }

    /// A page of all tenants, as the operator sees them: those that are configured, have something, or are here.
    pub fn list_tenants(&self, after: &str) -> v1::TenantList {
        let tenants = &self.registry.tenants;
        let connection_slots = self.connection_slots.all();
        let mut names: BTreeSet<String> = tenants.configured().into_iter().collect();
        let known = self.registry.known_tenants();
        let here = connection_slots.iter().filter_map(|entry| match entry.owner {
            Some(SlotOwner::Tenant(tenant)) => Some(tenant),
            _ => None,
        });
        names.extend(known.into_iter().chain(here).map(|tenant| tenants.names().name(tenant).to_string()));
        let mut rest = names.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let page = rest
            .by_ref()
            .take(LIST_PAGE)
            .filter_map(|name| self.tenant_info(name, &connection_slots))
            .collect();
        v1::TenantList { tenants: page, more: rest.next().is_some() }
    }

    fn tenant_info(&self, name: &str, connection_slots: &[ConnectionEntry]) -> Option<v1::TenantInfo> {
        let tenants = &self.registry.tenants;
        let tenant = tenants.names().find(name)?;
        let uids = tenants.uids(name);
        let mine = || connection_slots.iter().filter(|entry| entry.owner == Some(SlotOwner::Tenant(tenant)));
        let peer = |entry: &ConnectionEntry| {
            let process = entry.replies.upgrade()?.peer()?;
            Some(v1::Peer { uid: entry.uid, pid: process.pid, process: process.name })
        };
        Some(v1::TenantInfo {
            configured: uids.is_some(),
            uids: uids.unwrap_or_else(|| vec![tenant.get()]),
            connections: mine().count() as u64,
            peers: mine().filter_map(peer).take(MAX_PEERS_SHOWN).collect(),
            ..self.quota_of(&tenants.account(tenant))
        })
    }

    /// A function that was in memory is not registered any more: workers forget it after the calls that they have.
    pub fn uninstall(&self, function: FunctionId) {
        for version in [function, function.checked()] {
            self.router.forget(version);
            self.devices.iter().for_each(|device| device.uninstall(version));
        }
    }

    /// A function is revoked: what was kept for that pair of owner and caller goes.
    pub fn forget(&self, revoked: &Revoked) {
        let Some(caller) = revoked.caller else { return };
        let domain = Domain { owner: revoked.owner, caller };
        let account = self.registry.tenants.live().into_iter().find(|a| a.tenant == caller);
        for function in &revoked.functions {
            self.devices.iter().for_each(|device| device.uninstall_for(*function, domain));
            account.iter().for_each(|account| account.plans.forget(*function));
        }
    }

    /// True if a connection is whose it should be.
    pub(super) fn is_welcome(&self, entry: &ConnectionEntry) -> bool {
        let tenants = &self.registry.tenants;
        match entry.owner {
            None => true,
            Some(SlotOwner::Tenant(tenant)) => tenants.stands(entry.grounds) == Some(tenant),
            Some(SlotOwner::Gateway(uid)) => tenants.judge(uid, false).is_ok_and(|now| now.tenant.is_none()),
        }
    }
}
