//! How much device time each tenant used since the start.

use std::collections::BTreeMap;

use super::limits::MAX_REMEMBERED;
use crate::ids::TenantId;

/// Device time by tenant.
#[derive(Debug, Default)]
pub(super) struct DeviceTime(BTreeMap<TenantId, u64>);

impl DeviceTime {
    /// A tenant used so much.
    pub(super) fn add(&mut self, tenant: TenantId, used_ns: u64) {
        if let Some(ns) = self.0.get_mut(&tenant) {
            *ns = ns.saturating_add(used_ns);
        } else if self.0.len() < MAX_REMEMBERED {
            self.0.insert(tenant, used_ns);
        }
    }

    /// What one tenant used.
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        self.0.get(&tenant).copied().unwrap_or(0)
    }

    /// Each tenant that used the device.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, u64)> {
        self.0.iter().map(|(tenant, ns)| (*tenant, *ns))
    }
}
