//! Adding and removing modules. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs.

use std::sync::Arc;

use super::admission::{check_module_bytes, check_variants};
use super::codes::Codes;
use super::error::{RegistryError, Thing};
use super::requests::NewModule;
use super::snapshot::ModuleEntry;
use super::state::Registry;
use super::views::{ModuleView, Registration};
use crate::limits::MAX_MODULES;
use crate::refusal::failed;
use crate::store::records::ModuleRecord;
use crate::store::staged::disk_bytes;
use crate::store::state_dir::Kind;
use crate::tenants::Account;

impl Registry {
    /// Registers a module whose machine code is there.
    pub(super) fn try_add_module(
        &self,
        account: &Arc<Account>,
        module: &NewModule,
        codes: &mut Codes,
    ) -> Result<(ModuleView, Registration), RegistryError> {
        let tenant = account.tenant;
        Thing::Module.check_name(&module.name)?;
        let mine = self.registry_of(tenant);
        let variants = check_variants(&mine.change(account.clone()).blobs, &module.name, &module.variants)?;
        let code = self.inspect(tenant, &module.name, &variants, codes)?;
        let record = Arc::new(ModuleRecord { name: module.name.clone(), variants });
        let mut change = mine.change(account.clone());
        let modules = change.published().modules;
        match modules.get(&record.name) {
            Some(existing) if existing.record == record => {
                return Ok((ModuleView { record, code }, Registration::Unchanged));
            }
            Some(_) => {
                return Err(RegistryError::Exists { thing: Thing::Module, name: record.name.clone() });
            }
            None if !record.variants.iter().all(|v| change.blobs.has(v.sha256)) => {
                return Err(RegistryError::Vanished);
            }
            None if modules.size() >= MAX_MODULES => return Err(RegistryError::TooManyModules),
            None => check_module_bytes(&change, record.variants.iter())?,
        }
        change.check_disk(disk_bytes(0), 1)?;
        change.check_memory(ModuleEntry::memory_bytes(&record))?;
        let stored = self.state.put_module(tenant, &record);
        let disk_bytes = stored.map_err(|e| failed("cannot store the module", &e))?;
        let entry = ModuleEntry { record: record.clone(), disk_bytes };
        change.module_written(None, Some(&entry));
        change.blobs.need_variants(&record);
        change.publish(|next| next.put_module(entry));
        Ok((ModuleView { record, code }, Registration::Added))
    }

    /// Removes a module; functions that use it keep their copy.
    pub fn remove_module(&self, account: &Arc<Account>, name: &str) -> Result<(), RegistryError> {
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        let entry = change.published().modules.get(name).cloned();
        let entry = entry.ok_or_else(|| RegistryError::unknown_module(name))?;
        self.state
            .remove_record(account.tenant, Kind::Module, name)
            .map_err(|e| failed("cannot remove the module", &e))?;
        change.publish(|next| next.remove_module(name));
        change.module_written(Some(&entry), None);
        let unneeded = change.blobs.release_variants(&entry.record);
        change.remove(unneeded);
        Ok(())
    }
}
