//! Functions of other tenants: which one a caller means and whether it may, granting and revoking, and owners whose functions a
//! tenant does not want in its list. Changes are blocking: callers run them off the socket's threads.
//!
//! A tenant that was granted a function may call it, and see its name, its inputs and outputs; nothing else of it. It names it
//! OWNER/NAME. Others grant without asking; what declined owners granted can still be called by its full name.

use std::sync::Arc;

use super::error::RegistryError;
use super::snapshot::{FunctionEntry, Snapshot};
use super::state::Registry;
use super::tenant::Change;
use super::version_names::{is_marked, kept_name};
use crate::function::Loaded;
use crate::function::loaded::Callers;
use crate::ids::{FunctionId, TenantId};
use crate::limits::{MAX_DECLINED, MAX_GRANTS, MAX_GRANTS_TO_ONE};
use crate::refusal::failed;
use crate::store::records::{DeclinedRecord, GrantRecord, Kind};
use crate::store::staged::disk_bytes;
use crate::tenant_name::is_tenant;
use crate::tenants::Account;

/// A function that one caller may not call any more.
#[derive(Debug)]
pub struct Revoked {
    /// The names towards workers of its versions that were in memory.
    pub functions: Vec<FunctionId>,
    /// Whose it is.
    pub owner: TenantId,
    /// Who may not call it; none if no tenant of that name ever was here.
    pub caller: Option<TenantId>,
}

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

    /// Lets another tenant call a function. Whether there is a tenant of that name is not said: it would tell who is
    /// here.
    pub fn grant(&self, account: &Arc<Account>, function: &str, tenant: &str) -> Result<(), RegistryError> {
        let name = plain(self.own(account, function)?)?;
        let caller = check_caller(tenant)?;
        if *caller == *account.name {
            return Err(RegistryError::GrantToOwner);
        }
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let entry = entry_of(&change, name)?;
        let Err(at) = find(&entry.callers, caller) else { return Ok(()) };
        if entry.callers.len() >= MAX_GRANTS {
            return Err(RegistryError::TooManyGrants(name.to_owned()));
        }
        if self.granted.lock().count(caller, &account.name) >= MAX_GRANTS_TO_ONE {
            return Err(RegistryError::TooManyGrantsTo(caller.to_owned()));
        }
        change.check_disk(disk_bytes(0), 1)?;
        let mut callers = entry.callers.to_vec();
        callers.insert(at, caller.into());
        let memory = |callers| FunctionEntry::memory_bytes(&entry.record, callers, &entry.aliases);
        change.check_memory(memory(&callers) - memory(&entry.callers))?;
        self.change_callers(&mut change, &entry, callers)
    }

    /// A tenant may call a function no longer; calls that were accepted finish.
    pub fn revoke(
        &self,
        account: &Arc<Account>,
        function: &str,
        tenant: &str,
    ) -> Result<Revoked, RegistryError> {
        let name = plain(self.own(account, function)?)?;
        let caller = check_caller(tenant)?;
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let entry = entry_of(&change, name)?;
        let mut callers = entry.callers.to_vec();
        let at = find(&callers, caller)
            .map_err(|_| RegistryError::NotGranted { name: name.to_owned(), caller: caller.to_owned() })?;
        callers.remove(at);
        self.change_callers(&mut change, &entry, callers)?;
        let functions = self.versions_in_memory(account.tenant, name).map(|function| function.id).collect();
        Ok(Revoked { functions, owner: account.tenant, caller: self.tenants.names().find(caller) })
    }

    /// On disk, then for lookups, then for functions in memory.
    fn change_callers(
        &self,
        change: &mut Change<'_>,
        entry: &FunctionEntry,
        callers: Vec<Box<str>>,
    ) -> Result<(), RegistryError> {
        let account = change.account.clone();
        let name = &entry.record.name;
        let record = GrantRecord { name: name.clone(), callers };
        let stored = match record.callers.len() {
            0 => self.state.remove_record(account.tenant, Kind::Grant, name).map(|()| 0),
            fewer if fewer < entry.callers.len() => self.state.put_fewer_grants(account.tenant, &record),
            _ => self.state.put(account.tenant, &record),
        };
        let grant_disk_bytes = stored.map_err(|e| failed("cannot store the grant", &e))?;
        let callers: Callers = record.callers.into();
        let next = FunctionEntry { callers: callers.clone(), grant_disk_bytes, ..entry.clone() };
        change.function_written(Some(entry), Some(&next));
        change.publish(|all| all.put_function(next));
        self.granted.lock().change(&account.name, name, &entry.callers, &callers);
        for function in self.versions_in_memory(account.tenant, name) {
            function.grant(callers.clone());
        }
        Ok(())
    }

    /// Those of a function's versions that are in memory.
    fn versions_in_memory(&self, owner: TenantId, name: &str) -> impl Iterator<Item = Arc<Loaded>> {
        let kept = self.version_list(owner, name).kept;
        let names = kept.into_iter().map(|number| kept_name(name, number)).chain([name.to_owned()]);
        names.filter_map(move |name| self.loaded.peek(owner, &name))
    }

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
        let stored = self.state.put(account.tenant, &DeclinedRecord { name: owner.to_owned() });
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

/// A tenant's function as it is listed.
fn entry_of(change: &Change<'_>, name: &str) -> Result<Arc<FunctionEntry>, RegistryError> {
    let entry = change.published().functions.get(name).cloned();
    entry.ok_or_else(|| RegistryError::unknown_function(name))
}

/// Where a caller is among the callers of a function, or belongs.
fn find(callers: &[Box<str>], caller: &str) -> Result<usize, usize> {
    callers.binary_search_by(|name| (**name).cmp(caller))
}

/// The name, if it is of all versions of a function.
pub(super) fn plain(name: &str) -> Result<&str, RegistryError> {
    match is_marked(name) {
        false => Ok(name),
        true => Err(RegistryError::GrantOfVersion(name.to_owned())),
    }
}

fn check_caller(tenant: &str) -> Result<&str, RegistryError> {
    match is_tenant(tenant) {
        true => Ok(tenant),
        false => Err(RegistryError::BadTenant(tenant.to_owned())),
    }
}
