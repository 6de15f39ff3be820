//! What tenants hold of a device's memory: what the workers that serve their calls are lent, and weights of their
//! functions. The scheduler keeps to it; here is what tenants are told.

use super::decisions::{Actions, Decisions};
use crate::ids::TenantId;
use crate::schedule::events::{Allow, LimitsChanged, SetShare};
use crate::tenants::{Account, Limit, QuotaError, Tenants};

/// Device memory that a tenant holds.
pub(super) fn held_bytes(decisions: &Decisions, tenant: TenantId) -> u64 {
    decisions.ask().held_by(tenant)
}

/// What a tenant may have, if that is limited.
pub(super) fn most_bytes(account: &Account) -> Option<u64> {
    Some(account.most(Limit::DeviceMemory)).filter(|most| *most != u64::MAX)
}

/// A tenant may not have so much besides what it has.
pub(super) fn exceeds(account: &Account, has_bytes: u64, needs_bytes: u64) -> QuotaError {
    account.exceeds(Limit::DeviceMemory, account.most(Limit::DeviceMemory), has_bytes, needs_bytes)
}

/// Checks that a call that needs so much can run beside its caller's weights.
pub(super) fn check(
    account: &Account,
    weights_bytes: impl FnOnce() -> u64,
    needs_bytes: u64,
) -> Result<(), QuotaError> {
    let Some(most) = most_bytes(account) else { return Ok(()) };
    let weights_bytes = weights_bytes();
    match most.saturating_sub(weights_bytes) < needs_bytes {
        true => Err(exceeds(account, weights_bytes, needs_bytes)),
        false => Ok(()),
    }
}

/// Limits of tenants changed: what follows is to be carried out.
pub(super) fn changed(decisions: &Decisions, tenants: &Tenants) -> Actions {
    let mut accounts = tenants.live();
    // Nobody may be here of those whose functions others call.
    let limited = decisions.ask().limited();
    accounts.extend(limited.into_iter().map(|tenant| tenants.account(tenant)));
    let mut actions = Actions::default();
    decisions.decide(&mut actions, |deciding| {
        for account in &accounts {
            let tenant = account.tenant;
            deciding.handle(SetShare { tenant, share: account.share() });
            deciding.handle(Allow { tenant, most_bytes: most_bytes(account) });
        }
        deciding.handle(LimitsChanged {});
    });
    actions
}
