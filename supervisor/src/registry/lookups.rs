//! What is registered, as it is shown: counts, lists, single modules and functions. Nothing here changes anything but
//! machine code that is made anew.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::code::Wish;
use super::error::RegistryError;
use super::index::{Index, TenantIndex};
use super::state::Registry;
use super::views::{FunctionView, ListedFunction, ModuleView, Page};
use crate::function::loaded::Callers;
use crate::ids::TenantId;
use crate::limits::LIST_PAGE;
use crate::store::records::ModuleRecord;
use crate::tenants::{Account, Limit};

impl Registry {
    /// What a tenant has registered of what is limited.
    pub fn used(&self, tenant: TenantId) -> [(Limit, u64); 3] {
        let index = self.index();
        let of = |amount: fn(&TenantIndex) -> u64| index.tenant(tenant).map_or(0, amount);
        [
            (Limit::Functions, of(|mine| mine.functions.len() as u64)),
            (Limit::ModuleBytes, of(TenantIndex::module_bytes)),
            (Limit::BlobBytes, of(TenantIndex::blob_bytes)),
        ]
    }

    /// Tenants that have anything registered, or had since the start.
    pub fn known_tenants(&self) -> Vec<TenantId> {
        self.index().tenants().collect()
    }

    /// Functions and modules of one tenant.
    pub fn counts_of(&self, tenant: TenantId) -> (u64, u64) {
        let index = self.index();
        index.tenant(tenant).map_or((0, 0), |t| (t.functions.len() as u64, t.modules.len() as u64))
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        self.index().counts()
    }

    /// A tenant's modules with names after `after`, a page of them.
    pub fn list_modules(&self, tenant: TenantId, after: &str) -> Page<Arc<ModuleRecord>> {
        page(self.index().tenant(tenant).map(|t| &t.modules), after)
    }

    /// One module with its kernels.
    pub fn show_module(&self, tenant: TenantId, name: &str) -> Result<ModuleView, RegistryError> {
        let record = self.index().tenant(tenant).and_then(|t| t.modules.get(name).cloned());
        let record = record.ok_or_else(|| RegistryError::unknown_module(name))?;
        let code = self.inspect(tenant, name, &record.variants, Wish::Known)?;
        Ok(ModuleView { record, code })
    }

    /// A page of a tenant's functions with names after `after`, and then of those that others granted.
    pub fn list_functions(&self, account: &Account, after: &str) -> Page<ListedFunction> {
        let index = self.index();
        let own = match after.contains('/') {
            true => Page { items: Vec::new(), more: false },
            false => page(index.tenant(account.tenant).map(|t| &t.functions), after),
        };
        let room = if own.more { 0 } else { LIST_PAGE - own.items.len() };
        let granted = self.list_granted(&index, account, after, room);
        drop(index);
        let items = own.items.into_iter().map(ListedFunction::Own).chain(granted.items).collect();
        Page { items, more: own.more || granted.more }
    }

    /// What others granted to a tenant, at most so many after `after`.
    fn list_granted(
        &self,
        index: &Index,
        account: &Account,
        after: &str,
        most: usize,
    ) -> Page<ListedFunction> {
        let after = if after.contains('/') { after } else { "" };
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let mut all = index.granted_to(&account.name).into_iter().flat_map(|all| all.range::<str, _>(behind));
        let listed = |reference: &str| {
            let (owner, name) = self.resolve(account, reference)?;
            let record = index.tenant(owner)?.functions.get(name)?.clone();
            Some(ListedFunction::Granted { reference: reference.into(), record })
        };
        let items = all.by_ref().take(most).filter_map(|reference| listed(reference)).collect();
        Page { items, more: all.next().is_some() }
    }

    /// One function with its configuration.
    pub fn show_function(&self, account: &Account, name: &str) -> Result<FunctionView, RegistryError> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let record = self.index().tenant(tenant).and_then(|t| t.functions.get(name).cloned());
        let record = record.ok_or_else(|| RegistryError::unknown_function(name))?;
        let config = self.read_config(tenant, record.config)?;
        let code = record.modules.iter().map(|module| {
            // The configuration is worth showing even where machine code cannot be made any more.
            let code = self.inspect(tenant, &module.name, &module.variants, Wish::Known);
            code.unwrap_or_else(|_| vec![None; module.variants.len()])
        });
        let code = code.collect();
        Ok(FunctionView { record, config, code })
    }

    /// Names of tenants that may call a function besides its owner.
    pub fn list_grants(&self, account: &Account, reference: &str) -> Result<Callers, RegistryError> {
        let name = self.own(account, reference)?;
        self.callers_of(&self.index(), account, name)
    }
}

/// One page of a list by name. Only this much happens under the index's lock.
fn page<T>(all: Option<&BTreeMap<String, Arc<T>>>, after: &str) -> Page<Arc<T>> {
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let mut rest = all.into_iter().flat_map(|all| all.range::<str, _>(behind)).map(|(_, one)| one);
    let items = rest.by_ref().take(LIST_PAGE).cloned().collect();
    Page { items, more: rest.next().is_some() }
}
