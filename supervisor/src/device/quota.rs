//! What tenants hold of a device's memory: what the workers that serve their calls are lent, and weights of their
//! functions. Decided with the scheduler locked, so that no other decision comes in between.

use std::sync::Arc;

use super::decisions::{Actions, Decisions};
use super::weights::WeightStore;
use crate::call::Call;
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::schedule::events::{Allow, LimitsChanged, SetShare};
use crate::tenants::{Account, Limit, QuotaError, Tenants};

/// The quotas of tenants on one device.
#[derive(Debug)]
pub(super) struct MemoryQuota {
    decisions: Arc<Decisions>,
    weights: Option<Arc<WeightStore>>,
}

impl MemoryQuota {
    /// Of the device that these belong to.
    pub(super) fn new(decisions: Arc<Decisions>, weights: Option<Arc<WeightStore>>) -> Self {
        Self { decisions, weights }
    }

    fn weights_of(&self, tenant: TenantId) -> u64 {
        self.weights.as_ref().map_or(0, |weights| weights.used_by(tenant))
    }

    /// Device memory that a tenant holds.
    pub(super) fn held_bytes(&self, tenant: TenantId) -> u64 {
        let lent = self.decisions.ask().lent_to(tenant);
        lent.saturating_add(self.weights_of(tenant))
    }

    /// What a caller may be lent, if that is limited, and whether a call that needs so much may ever run.
    pub(super) fn allowed(&self, account: &Account, needs: u64) -> Result<Option<u64>, QuotaError> {
        let most = account.most(Limit::DeviceMemory);
        if most == u64::MAX {
            return Ok(None);
        }
        let weights = self.weights_of(account.tenant);
        let left = most.saturating_sub(weights);
        match left < needs {
            true => Err(account.exceeds(Limit::DeviceMemory, most, weights, needs)),
            false => Ok(Some(left)),
        }
    }

    /// Whether the owner of a call's function may have so much of a device only.
    pub(super) fn limits_weights(call: &Call) -> bool {
        call.function.account.most(Limit::DeviceMemory) != u64::MAX
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
        let lent = scheduler.lent_to(owner.tenant);
        let mut evicted = Vec::new();
        let room = most.saturating_sub(lent);
        weights.reserve(&call.function, worker, room, &mut evicted).map_err(|more| {
            owner.exceeds(Limit::DeviceMemory, most, lent + self.weights_of(owner.tenant), more)
        })?;
        Ok(evicted)
    }

    /// Limits of tenants changed: what follows is to be carried out.
    pub(super) fn changed(&self, tenants: &Tenants) -> Actions {
        let limited = self.decisions.ask().limited();
        let mut actions = Actions::default();
        for account in tenants.live() {
            let (tenant, share) = (account.tenant, account.share());
            self.decisions.decide(&mut actions, |deciding| deciding.handle(SetShare { tenant, share }));
        }
        for caller in limited {
            let account = tenants.account(caller);
            self.decisions.decide(&mut actions, |deciding| {
                let most_bytes = self.allowed(&account, 0).unwrap_or(Some(0));
                deciding.handle(Allow { caller, most_bytes });
                deciding.handle(LimitsChanged {});
            });
        }
        actions
    }
}
