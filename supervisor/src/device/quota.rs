//! What tenants hold of a device's memory: leases of the workers that serve their calls, and weights of their
//! functions. Decided with the scheduler locked, so that no other decision comes in between.

use std::sync::Arc;

use pappus_protocol::now_ns;

use super::decisions::{Actions, Decisions};
use super::weights::WeightStore;
use crate::call::Call;
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::processes::memory_ledger::MemoryLedger;
use crate::schedule::Size;
use crate::schedule::events::{Allow, LimitsChanged, SetShare};
use crate::tenants::{Account, Limit, QuotaError, Tenants};

/// The quotas of tenants on one device.
#[derive(Debug)]
pub(super) struct MemoryQuota {
    decisions: Arc<Decisions>,
    ledger: Arc<MemoryLedger>,
    weights: Option<Arc<WeightStore>>,
}

impl MemoryQuota {
    /// Of the device that these belong to.
    pub(super) fn new(
        decisions: Arc<Decisions>,
        ledger: Arc<MemoryLedger>,
        weights: Option<Arc<WeightStore>>,
    ) -> Self {
        Self { decisions, ledger, weights }
    }

    fn weights_of(&self, tenant: TenantId) -> u64 {
        self.weights.as_ref().map_or(0, |weights| weights.used_by(tenant))
    }

    /// Device memory that a tenant holds.
    pub(super) fn held_bytes(&self, tenant: TenantId) -> u64 {
        let workers = self.decisions.ask().workers_of(tenant) as u64;
        workers.saturating_mul(self.ledger.lease_bytes()).saturating_add(self.weights_of(tenant))
    }

    /// How many workers a caller may have, if that is limited, and whether a call of that size may ever run.
    pub(super) fn workers_allowed(&self, account: &Account, size: Size) -> Result<Option<usize>, QuotaError> {
        let most = account.most(Limit::DeviceMemory);
        if most == u64::MAX {
            return Ok(None);
        }
        let lease = self.ledger.lease_bytes().max(1);
        let needs = if size == Size::Exclusive { self.ledger.largest_call_bytes() } else { lease };
        let weights = self.weights_of(account.tenant);
        let left = most.saturating_sub(weights);
        match left < needs {
            true => Err(account.exceeds(Limit::DeviceMemory, most, weights, needs)),
            false => Ok(Some(usize::try_from(left / lease).unwrap_or(usize::MAX))),
        }
    }

    /// The owner of a call's function may have its weights here; other weights of the same owner may give way.
    /// [`WeightStore::settled`] follows.
    pub(super) fn reserve_weights(
        &self,
        worker: WorkerId,
        call: &Call,
    ) -> Result<Vec<FunctionId>, QuotaError> {
        let owner = &call.function.account;
        let (Some(weights), most) = (&self.weights, owner.most(Limit::DeviceMemory)) else {
            return Ok(Vec::new());
        };
        if most == u64::MAX || call.function.weight_bytes.is_empty() {
            return Ok(Vec::new());
        }
        let scheduler = self.decisions.ask();
        let leases = (scheduler.workers_of(owner.tenant) as u64).saturating_mul(self.ledger.lease_bytes());
        let mut evicted = Vec::new();
        let room = most.saturating_sub(leases);
        weights.reserve(&call.function, worker, room, &mut evicted).map_err(|more| {
            owner.exceeds(Limit::DeviceMemory, most, leases + self.weights_of(owner.tenant), more)
        })?;
        Ok(evicted)
    }

    /// Limits of tenants changed: what follows is to be carried out.
    pub(super) fn changed(&self, tenants: &Tenants) -> Actions {
        let limited = self.decisions.ask().limited();
        let mut actions = Actions::new();
        for account in tenants.live() {
            let (tenant, share) = (account.tenant, account.share());
            self.decisions.decide(|scheduler| {
                scheduler.handle(now_ns(), SetShare { tenant, share }, &mut actions);
            });
        }
        for caller in limited {
            let account = tenants.account(caller);
            self.decisions.decide(|scheduler| {
                let allowed = self.workers_allowed(&account, Size::Lane);
                let (most, now_ns) = (allowed.unwrap_or(Some(0)), now_ns());
                scheduler.handle(now_ns, Allow { caller, most }, &mut actions);
                scheduler.handle(now_ns, LimitsChanged {}, &mut actions);
            });
        }
        actions
    }
}
