//! Owners whose functions a tenant does not want in its list: others grant without asking. What they granted can still be called by
//! its full name. Blocking: callers run it off the socket's threads.

use std::sync::Arc;

use super::error::RegistryError;
use super::snapshot::Snapshot;
use super::state::Registry;
use crate::ids::TenantId;
use crate::limits::MAX_DECLINED;
use crate::refusal::failed;
use crate::store::records::DeclinedRecord;
use crate::store::staged::disk_bytes;
use crate::store::state_dir::Kind;
use crate::tenant_name::is_tenant;
use crate::tenants::Account;

impl Registry {
    /// From now on the tenant's lists are without this owner's functions. Whether there is such an owner is not said.
    pub fn decline(&self, account: &Arc<Account>, owner: &str) -> Result<(), RegistryError> {
        if !is_tenant(owner) {
            return Err(RegistryError::BadTenant(owner.to_owned()));
        }
        if *owner == *account.name {
            return Err(RegistryError::DeclinedOwn);
        }
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let declined = change.published().declined;
        if declined.contains_key(owner) {
            return Ok(());
        }
        if declined.size() >= MAX_DECLINED {
            return Err(RegistryError::TooManyDeclined);
        }
        change.check_disk(disk_bytes(0), 1)?;
        change.check_memory(Snapshot::declined_bytes(owner))?;
        let stored = self.state.put_declined(account.tenant, &DeclinedRecord { name: owner.to_owned() });
        let disk_bytes = stored.map_err(|e| failed("cannot store that the owner is declined", &e))?;
        change.declined_written(owner, None, Some(disk_bytes));
        change.publish(|next| {
            next.declined.insert_mut(owner.to_owned(), disk_bytes);
        });
        Ok(())
    }

    /// What this owner granted is listed again.
    pub fn accept(&self, account: &Arc<Account>, owner: &str) -> Result<(), RegistryError> {
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let declined = change.published().declined;
        let Some(&disk_bytes) = declined.get(owner) else {
            return Err(RegistryError::NotDeclined(owner.to_owned()));
        };
        self.state
            .remove_record(account.tenant, Kind::Declined, owner)
            .map_err(|e| failed("cannot remove that the owner is declined", &e))?;
        change.publish(|next| {
            next.declined.remove_mut(owner);
        });
        change.declined_written(owner, Some(disk_bytes), None);
        Ok(())
    }

    /// The owners that a tenant declined, sorted.
    pub fn declined(&self, tenant: TenantId) -> Vec<String> {
        self.look(tenant, |mine| mine.declined.keys().cloned().collect()).unwrap_or_default()
    }
}
