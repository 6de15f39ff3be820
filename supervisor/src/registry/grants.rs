//! Who may call whose functions: granting and revoking. Blocking: callers run it off the socket's threads.

use super::error::RegistryError;
use super::index::Index;
use super::state::Registry;
use crate::function::loaded::Callers;
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_GRANTS;
use crate::refusal::failed;
use crate::store::records::GrantRecord;
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
    pub fn grant(&self, account: &Account, function: &str, tenant: &str) -> Result<(), RegistryError> {
        let name = self.own(account, function)?;
        let caller = check_caller(tenant)?;
        if *caller == *account.name {
            return Err(RegistryError::GrantToOwner);
        }
        let mut index = self.index();
        let mut callers = self.callers_of(&index, account, name)?.to_vec();
        let Err(at) = callers.binary_search_by(|name| (**name).cmp(caller)) else { return Ok(()) };
        if callers.len() >= MAX_GRANTS {
            return Err(RegistryError::TooManyGrants(name.to_owned()));
        }
        callers.insert(at, caller.into());
        self.change_callers(&mut index, account, name, callers)
    }

    /// A tenant may call a function no longer; calls that were accepted finish.
    pub fn revoke(&self, account: &Account, function: &str, tenant: &str) -> Result<Revoked, RegistryError> {
        let name = self.own(account, function)?;
        let caller = check_caller(tenant)?;
        let mut index = self.index();
        let mut callers = self.callers_of(&index, account, name)?.to_vec();
        let found = callers.binary_search_by(|name| (**name).cmp(caller));
        let at = found
            .map_err(|_| RegistryError::NotGranted { name: name.to_owned(), caller: caller.to_owned() })?;
        callers.remove(at);
        self.change_callers(&mut index, account, name, callers)?;
        let function = self.loaded.get(account.tenant, name).map(|function| function.id);
        Ok(Revoked { function, owner: account.tenant, caller: self.tenants.names().find(caller) })
    }

    /// On disk, then in the index, then for functions in memory.
    fn change_callers(
        &self,
        index: &mut Index,
        account: &Account,
        name: &str,
        callers: Vec<Box<str>>,
    ) -> Result<(), RegistryError> {
        let record = GrantRecord { name: name.to_owned(), callers };
        let stored = match record.callers.is_empty() {
            true => self.state.remove_record(account.tenant, Kind::Grant, name),
            false => self.state.put_grants(account.tenant, &record),
        };
        stored.map_err(|e| failed("cannot store the grant", &e))?;
        let callers: Callers = record.callers.into();
        index.grant(account.tenant, &account.name, name, callers.clone());
        if let Some(function) = self.loaded.get(account.tenant, name) {
            function.grant(callers);
        }
        Ok(())
    }

    /// A function is about to go, and its grants with it.
    pub(super) fn forget_grants(
        &self,
        index: &mut Index,
        account: &Account,
        name: &str,
    ) -> Result<(), RegistryError> {
        match self.callers_of(index, account, name)?.is_empty() {
            true => Ok(()),
            false => self.change_callers(index, account, name, Vec::new()),
        }
    }
}

fn check_caller(tenant: &str) -> Result<&str, RegistryError> {
    match is_tenant(tenant) {
        true => Ok(tenant),
        false => Err(RegistryError::BadTenant(tenant.to_owned())),
    }
}
