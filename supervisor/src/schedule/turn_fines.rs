//! Tenants whose calls were ended for being in the way of others: each is charged for that time once more, and stands behind
//! the others until they had as much. So these have more than half of the device, also where that happens again and again.
//!
//! While it stands behind them, such a tenant gets its turn only where none of the others had a call for a quantum: they
//! need not have one at the very moment at which a turn ends.

use super::share_line::ShareLine;
use crate::ids::TenantId;

/// Who was fined, as long as they stand behind others.
#[derive(Debug, Default)]
pub(super) struct Fines {
    fined: Vec<TenantId>,
    /// When a worker of another tenant had no call any more.
    idled_ns: u64,
}

impl Fines {
    /// A tenant is fined.
    pub(super) fn add(&mut self, tenant: TenantId) {
        if !self.has(tenant) {
            self.fined.push(tenant);
        }
    }

    /// True if a tenant was fined.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.fined.contains(&tenant)
    }

    /// A worker of a tenant with a grant has no call any more.
    pub(super) fn idled(&mut self, now_ns: u64, tenant: TenantId) {
        if !self.has(tenant) {
            self.idled_ns = now_ns;
        }
    }

    /// Others had as much as some tenants were fined.
    pub(super) fn forget_paid<K: Ord + Copy>(&mut self, line: &ShareLine<K>) {
        self.fined.retain(|tenant| line.ahead_ns(*tenant) > 0);
    }

    /// Until when the first in line is not granted although none waits besides, if it has to stand behind others.
    pub(super) fn waits_until_ns<K: Ord + Copy>(
        &self,
        tenant: TenantId,
        line: &ShareLine<K>,
        quantum_ns: u64,
    ) -> Option<u64> {
        let alone = || line.iter().all(|(other, _)| other == tenant);
        let stands_behind = self.has(tenant) && line.ahead_ns(tenant) > 0 && alone();
        stands_behind.then(|| self.idled_ns.saturating_add(quantum_ns))
    }
}
