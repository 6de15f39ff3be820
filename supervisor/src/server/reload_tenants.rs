//! Rereading the rules about tenants: changes, the tenants they concern, and connections that end.

use std::sync::Arc;

use pappus_proto::v1;

use super::state::Server;
use crate::config::TenantRules;
use crate::config::tenant_changes::{self, SettingChange, TenantChanges, amount};
use crate::limits::LIST_PAGE;
use crate::quota::UnknownLimit;
use crate::tenants::{Account, Limit};

/// Tenants named in one line.
const NAMED: usize = 5;

/// What other rules about tenants changed.
#[derive(Debug, Default)]
pub(super) struct TenantsReloaded {
    /// Who may be a tenant at all.
    pub access: Vec<v1::SettingChange>,
    /// Changes of quotas and shares, of the first so many tenants.
    pub tenants: Vec<v1::TenantChanges>,
    /// True if more tenants changed.
    pub more: bool,
}

impl Server {
    /// Other rules about tenants are in force from now on. Connections that would be refused now, or be another tenant's,
    /// end.
    pub(super) fn reload_tenants(&self, rules: TenantRules) -> TenantsReloaded {
        let before = self.registry.tenants.reload(rules.clone());
        let mut closed = 0;
        for entry in self.connection_slots.all() {
            if !self.is_welcome(&entry)
                && let Some(replies) = entry.replies.upgrade()
            {
                replies.close();
                closed += 1;
            }
        }
        self.devices.iter().for_each(|device| device.quotas_changed(&self.registry.tenants));
        let reloaded = self.tell(&before, &rules);
        tracing::info!(tenants = rules.tenants.len(), closed, "tenants read again");
        for change in &reloaded.access {
            tracing::info!("{}: {} -> {}", change.name, change.before, change.after);
        }
        for v1::TenantChanges { tenant, changes } in &reloaded.tenants {
            let tenant = if tenant.is_empty() { "tenant-defaults" } else { tenant };
            for v1::SettingChange { name, before, after, effect } in changes {
                let effect = if effect.is_empty() { String::new() } else { format!(": {effect}") };
                tracing::info!(tenant, "{name}: {before} -> {after}{effect}");
            }
        }
        reloaded
    }

    fn tell(&self, before: &TenantRules, after: &TenantRules) -> TenantsReloaded {
        let live = self.registry.tenants.live();
        let access = tenant_changes::access(before, after);
        let mut changed = tenant_changes::tenants(before, after);
        let tell = |TenantChanges { tenant, changes }: TenantChanges| {
            let change = |change: SettingChange| {
                let effect = match change.name.parse() {
                    Ok(limit) => self.effect(limit, tenant.as_deref(), after, &live),
                    Err(UnknownLimit) => String::new(),
                };
                message(change, effect)
            };
            let changes = changes.into_iter().map(change).collect();
            v1::TenantChanges { changes, tenant: tenant.unwrap_or_default() }
        };
        let tenants = changed.by_ref().take(LIST_PAGE).map(tell).collect();
        let access = access.into_iter().map(|change| message(change, String::new())).collect();
        TenantsReloaded { access, tenants, more: changed.next().is_some() }
    }

    /// The effect of a changed limit, of one tenant or of the defaults, on connected tenants.
    fn effect(
        &self,
        limit: Limit,
        tenant: Option<&str>,
        rules: &TenantRules,
        live: &[Arc<Account>],
    ) -> String {
        let most = tenant.map_or(rules.defaults, |name| rules.quota(name)).get(limit);
        if most < limit.lasting(1) {
            return format!("too little for a connection, which takes {}", limit.show(limit.lasting(1)));
        }
        let concerned = live.iter().filter(|account| match tenant {
            Some(name) => *account.name == *name,
            None => account.most(limit) == most,
        });
        self.too_many(limit, concerned)
    }

    /// Names the tenants that have more than a new limit.
    fn too_many<'a>(&self, limit: Limit, tenants: impl Iterator<Item = &'a Arc<Account>>) -> String {
        let later = match limit {
            Limit::LoadedFunctions => "those that no call uses go when another one comes",
            _ => "it stays, and no more comes until it is less",
        };
        let having = tenants.map(|account| (account, self.used(account, limit)));
        let over: Vec<_> = having.filter(|(account, used)| *used > account.most(limit)).collect();
        if over.is_empty() {
            return String::new();
        }
        let mut words: Vec<String> = over
            .iter()
            .take(NAMED)
            .map(|(account, used)| format!("{} has {}", account.name, amount(limit, *used)))
            .collect();
        if over.len() > NAMED {
            words.push(format!("{} others have more, too", over.len() - NAMED));
        }
        format!("{}: {later}", words.join(", "))
    }
}

fn message(SettingChange { name, before, after }: SettingChange, effect: String) -> v1::SettingChange {
    v1::SettingChange { name: name.to_owned(), before, after, effect }
}
