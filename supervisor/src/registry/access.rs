//! Which function a tenant means, and whether it may. A tenant that was granted a function may call it, and see its
//! name, its inputs and outputs; nothing else of it. It names it OWNER/NAME.

use super::error::RegistryError;
use super::state::Registry;
use crate::ids::TenantId;
use crate::tenants::Account;

impl Registry {
    /// The owner and the name in it that a caller means: NAME is its own, OWNER/NAME another's.
    pub(super) fn resolve<'n>(&self, caller: &Account, reference: &'n str) -> Option<(TenantId, &'n str)> {
        match reference.split_once('/') {
            None => Some((caller.tenant, reference)),
            Some((owner, name)) => Some((self.tenants.names().find(owner)?, name)),
        }
    }

    /// True if a tenant may call a function besides its owner.
    pub(super) fn is_granted(&self, caller: &Account, owner: TenantId, name: &str) -> bool {
        self.look(owner, |theirs| theirs.is_granted(name, &caller.name)).unwrap_or(false)
    }

    /// The name of a tenant's own function, which OWN/NAME is another spelling of.
    pub(super) fn own<'n>(&self, account: &Account, reference: &'n str) -> Result<&'n str, RegistryError> {
        match self.resolve(account, reference) {
            Some((owner, name)) if owner == account.tenant => Ok(name),
            Some((owner, name)) if self.is_granted(account, owner, name) => {
                Err(RegistryError::NotOwner(reference.to_owned()))
            }
            _ => Err(RegistryError::unknown_function(reference)),
        }
    }
}
