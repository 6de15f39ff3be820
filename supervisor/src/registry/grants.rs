//! Who may call whose functions: granting and revoking. Blocking: callers run it off the socket's threads.

use std::sync::Arc;

use super::error::RegistryError;
use super::snapshot::FunctionEntry;
use super::state::Registry;
use super::tenant::Change;
use crate::function::loaded::Callers;
use crate::ids::{FunctionId, TenantId};
use crate::limits::{MAX_GRANTS, MAX_GRANTS_TO_ONE};
use crate::refusal::failed;
use crate::store::records::GrantRecord;
use crate::store::staged::disk_bytes;
use crate::store::state_dir::Kind;
use crate::tenant_name::is_tenant;
use crate::tenants::Account;

/// A function that one caller may not call any more.
#[derive(Debug)]
pub struct Revoked {
    /// Its name towards workers, if it was in memory.
    pub function: Option<FunctionId>,
    /// Whose it is.
    pub owner: TenantId,
    /// Who may not call it; none if no tenant of that name ever was here.
    pub caller: Option<TenantId>,
}

impl Registry {
    /// Lets another tenant call a function. Whether there is a tenant of that name is not said: it would tell who is
    /// here.
    pub fn grant(&self, account: &Arc<Account>, function: &str, tenant: &str) -> Result<(), RegistryError> {
        let name = self.own(account, function)?;
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
        let memory = |callers| FunctionEntry::memory_bytes(&entry.record, callers);
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
        let name = self.own(account, function)?;
        let caller = check_caller(tenant)?;
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let entry = entry_of(&change, name)?;
        let mut callers = entry.callers.to_vec();
        let at = find(&callers, caller)
            .map_err(|_| RegistryError::NotGranted { name: name.to_owned(), caller: caller.to_owned() })?;
        callers.remove(at);
        self.change_callers(&mut change, &entry, callers)?;
        let function = self.loaded.get(account.tenant, name).map(|function| function.id);
        Ok(Revoked { function, owner: account.tenant, caller: self.tenants.names().find(caller) })
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
            _ => self.state.put_grants(account.tenant, &record),
        };
        let grant_disk_bytes = stored.map_err(|e| failed("cannot store the grant", &e))?;
        let callers: Callers = record.callers.into();
        let (record, disk_bytes) = (entry.record.clone(), entry.disk_bytes);
        let next = FunctionEntry { record, callers: callers.clone(), disk_bytes, grant_disk_bytes };
        change.function_written(Some(entry), Some(&next));
        change.publish(|all| all.put_function(next));
        self.granted.lock().change(&account.name, name, &entry.callers, &callers);
        if let Some(function) = self.loaded.get(account.tenant, name) {
            function.grant(callers);
        }
        Ok(())
    }

    /// A function is about to go, and its grants with it.
    pub(super) fn forget_grants(&self, change: &mut Change<'_>, name: &str) -> Result<(), RegistryError> {
        let entry = entry_of(change, name)?;
        match entry.callers.is_empty() {
            true => Ok(()),
            false => self.change_callers(change, &entry, Vec::new()),
        }
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

fn check_caller(tenant: &str) -> Result<&str, RegistryError> {
    match is_tenant(tenant) {
        true => Ok(tenant),
        false => Err(RegistryError::BadTenant(tenant.to_owned())),
    }
}
