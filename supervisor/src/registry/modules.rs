//! Adding and removing modules. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs.

use std::sync::Arc;

use super::admission::check_module_bytes;
use super::code::Wish;
use super::error::{RegistryError, Thing};
use super::requests::NewModule;
use super::state::Registry;
use super::views::ModuleView;
use crate::ids::TenantId;
use crate::limits::MAX_MODULES;
use crate::refusal::failed;
use crate::store::records::ModuleRecord;
use crate::store::state_dir::Kind;
use crate::tenants::Account;

impl Registry {
    /// Registers a module by name.
    pub fn add_module(&self, account: &Account, module: NewModule) -> Result<ModuleView, RegistryError> {
        let tenant = account.tenant;
        Thing::Module.check_name(&module.name)?;
        let variants = self.check_variants(tenant, &module.name, &module.variants)?;
        let code = self.inspect(tenant, &module.name, &variants, Wish::Afresh)?;
        let record = Arc::new(ModuleRecord { name: module.name, variants });
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        match mine.modules.get(&record.name) {
            Some(existing) if *existing == record => {}
            Some(_) => {
                return Err(RegistryError::Exists { thing: Thing::Module, name: record.name.clone() });
            }
            None if !record.variants.iter().all(|v| mine.has_blob(v.sha256)) => {
                return Err(RegistryError::Vanished);
            }
            None if mine.modules.len() >= MAX_MODULES => return Err(RegistryError::TooManyModules),
            None => {
                check_module_bytes(account, mine, record.variants.iter())?;
                self.state.put_module(tenant, &record).map_err(|e| failed("cannot store the module", &e))?;
                mine.add_module(record.clone());
            }
        }
        Ok(ModuleView { record, code })
    }

    /// Removes a module; functions that use it keep their copy.
    pub fn remove_module(&self, tenant: TenantId, name: &str) -> Result<(), RegistryError> {
        let mut index = self.index();
        let Some(record) = index.tenant_mut(tenant).modules.get(name).cloned() else {
            return Err(RegistryError::unknown_module(name));
        };
        self.state
            .remove_record(tenant, Kind::Module, name)
            .map_err(|e| failed("cannot remove the module", &e))?;
        let unneeded = index.tenant_mut(tenant).remove_module(&record);
        unneeded.into_iter().for_each(|hash| self.state.remove_blob(tenant, hash));
        Ok(())
    }
}
