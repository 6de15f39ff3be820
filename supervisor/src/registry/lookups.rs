//! What is registered, as it is shown: counts, lists, single modules and functions. Nothing here changes anything but
//! machine code that is made anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::codes::Codes;
use super::error::RegistryError;
use super::grants::plain;
use super::snapshot::{Snapshot, page, page_of_functions};
use super::state::Registry;
use super::views::{FunctionView, ListedFunction, ModuleView, Page};
use crate::function::loaded::Callers;
use crate::ids::TenantId;
use crate::limits::LIST_PAGE;
use crate::store::records::{FunctionRecord, ModuleRecord};
use crate::tenants::Account;

impl Registry {
    /// Functions and modules of one tenant.
    pub fn counts_of(&self, tenant: TenantId) -> (u64, u64) {
        let sizes = |mine: &Snapshot| (mine.functions.size() as u64, mine.modules.size() as u64);
        self.look(tenant, sizes).unwrap_or_default()
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.functions.load(Ordering::Relaxed), self.counts.modules.load(Ordering::Relaxed))
    }

    /// A tenant's modules with names after `after`, a page of them.
    pub fn list_modules(&self, tenant: TenantId, after: &str) -> Page<Arc<ModuleRecord>> {
        page(&self.snapshot(tenant).modules, after, |entry| entry.record.clone())
    }

    /// The record of a tenant's module.
    fn module(&self, tenant: TenantId, name: &str) -> Option<Arc<ModuleRecord>> {
        self.look(tenant, |mine| mine.modules.get(name).map(|entry| entry.record.clone()))?
    }

    /// The record of a tenant's function.
    pub(super) fn function(&self, tenant: TenantId, name: &str) -> Option<Arc<FunctionRecord>> {
        self.look(tenant, |mine| mine.find(name).map(|entry| entry.record.clone()))?
    }

    /// One module with its kernels, as far as machine code is there.
    pub(super) fn try_show_module(
        &self,
        account: &Account,
        name: &str,
        codes: &mut Codes,
    ) -> Result<ModuleView, RegistryError> {
        let tenant = account.tenant;
        let record = self.module(tenant, name).ok_or_else(|| RegistryError::unknown_module(name))?;
        let code = self.inspect(tenant, name, &record.variants, codes)?;
        Ok(ModuleView { record, code })
    }

    /// A function that another tenant granted, by OWNER/NAME, as a list shows it; declined or not.
    pub fn granted_function(&self, account: &Account, reference: &str) -> Option<ListedFunction> {
        let (owner, name) = self.resolve(account, reference)?;
        let record = self.function(owner, name).filter(|_| owner != account.tenant)?;
        let versions = self.version_list(owner, name);
        let granted = ListedFunction::Granted { reference: reference.into(), record, versions };
        self.is_granted(account, owner, name).then_some(granted)
    }

    /// A page of a tenant's functions with names after `after`, and then of those that others granted whom it did not decline;
    /// after "/" come these alone.
    pub fn list_functions(&self, account: &Account, after: &str) -> Page<ListedFunction> {
        let own = match after.contains('/') {
            true => Page { items: Vec::new(), more: false },
            false => page_of_functions(&self.snapshot(account.tenant), after),
        };
        let room = if own.more { 0 } else { LIST_PAGE - own.items.len() };
        let behind = if after.contains('/') && after != "/" { after } else { "" };
        let declined = self.look(account.tenant, |mine| mine.declined.clone()).unwrap_or_default();
        let is_declined = |owner: &str| declined.contains_key(owner);
        let granted = self.granted.lock().page(&account.name, behind, room, is_declined);
        // One that was removed or revoked since is left out.
        let listed = granted.items.into_iter().filter_map(|reference| {
            let (owner, name) = self.resolve(account, &reference)?;
            let record = self.function(owner, name)?;
            let versions = self.version_list(owner, name);
            Some(ListedFunction::Granted { reference, record, versions })
        });
        let items = own.items.into_iter().chain(listed).collect();
        Page { items, more: own.more || granted.more }
    }

    /// One function with its configuration, and kernels as far as its machine code is there.
    pub(super) fn try_show_function(
        &self,
        account: &Account,
        name: &str,
        codes: &mut Codes,
    ) -> Result<FunctionView, RegistryError> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let record = self.function(tenant, name).ok_or_else(|| RegistryError::unknown_function(name))?;
        let config = self.read_config(tenant, record.config)?;
        let code = record.modules.iter().map(|module| {
            // The configuration is worth showing even where machine code cannot be made any more.
            let code = self.inspect(tenant, &module.name, &module.variants, codes);
            code.unwrap_or_else(|_| vec![None; module.variants.len()])
        });
        let code = code.collect();
        let versions = self.version_list(tenant, name);
        Ok(FunctionView { record, config, code, versions })
    }

    /// Names of tenants that may call a function besides its owner.
    pub fn list_grants(&self, account: &Account, reference: &str) -> Result<Callers, RegistryError> {
        let name = plain(self.own(account, reference)?)?;
        let callers =
            self.look(account.tenant, |mine| mine.functions.get(name).map(|entry| entry.callers.clone()));
        callers.flatten().ok_or_else(|| RegistryError::unknown_function(name))
    }
}
