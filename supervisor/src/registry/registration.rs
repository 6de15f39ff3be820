//! Adding, replacing and removing modules and functions. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs.
//!
//! ```text
//! composition ──linked with its functions──► configuration
//! configuration ──read, resolved: all mistakes at once──► blueprint ──weights that no call could use──► refused
//!    for each kind and architecture of the devices here: variant ──compiled by a process of its own──► machine code
//!    blueprint against machine code (kernels, parameters, blocks, stacks) ──► blobs and record on disk
//! ```
//!
//! PTX and AMD's code objects are checked against the blueprint also where no device is here for them.

use std::sync::Arc;

use pappus_blueprint::compose::is_composition;

use super::admission::{
    NewFunction, NewModule, check_config, check_module_bytes, check_no_parts, check_variants,
};
use super::blobs::Handed;
use super::codes::Codes;
use super::error::{RegistryError, Thing};
use super::linking::users_of;
use super::replacing::Source;
use super::snapshot::{FunctionEntry, ModuleEntry};
use super::state::Registry;
use super::version_names::{is_marked, kept_name};
use super::views::{ModuleView, Registered, Registration};
use crate::ids::FunctionId;
use crate::limits::MAX_MODULES;
use crate::refusal::failed;
use crate::store::records::{Kind, ModuleRecord};
use crate::store::staged::disk_bytes;
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
        let stored = self.state.put(tenant, &*record);
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

    /// Registers a function whose machine code is there.
    pub(super) fn try_add_function(
        &self,
        account: &Arc<Account>,
        new: &NewFunction,
        codes: &mut Codes,
    ) -> Result<Registered, RegistryError> {
        Thing::Function.check_name(&new.name)?;
        // For what linking makes.
        let handed = Handed::default();
        let outcome = self.add_with(account, new, &handed, codes);
        self.end_handed(account, handed);
        outcome
    }

    fn add_with(
        &self,
        account: &Arc<Account>,
        new: &NewFunction,
        handed: &Handed,
        codes: &mut Codes,
    ) -> Result<Registered, RegistryError> {
        let tenant = account.tenant;
        let mine = self.registry_of(tenant);
        let hash = check_config(&mine.change(account.clone()).blobs, &new.config_sha256)?;
        let parts = match is_composition(&self.read_config(tenant, hash)?) {
            true => {
                check_no_parts(new)?;
                self.link(account, handed, &new.name, hash, &[])?
            }
            false => self.parts(account, new)?,
        };
        let made = self.make_function(account, parts, codes)?;
        let source = Source::New { replace: new.replace, keep: new.keep };
        self.register(account, handed, made, source, codes)
    }

    /// What was handed over for a request is needed by records, or goes.
    pub(super) fn end_handed(&self, account: &Arc<Account>, handed: Handed) {
        let handed = handed.end();
        if !handed.is_empty() {
            self.release_handed(account, &handed);
        }
    }

    /// Removes a function with all its versions, or the kept version that is named; calls that were accepted finish. Returns the
    /// names towards workers of what was in memory.
    pub fn remove_function(
        &self,
        account: &Arc<Account>,
        reference: &str,
    ) -> Result<Vec<FunctionId>, RegistryError> {
        let name = self.own(account, reference)?;
        if is_marked(name) {
            return self.remove_version(account, name);
        }
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        change.sweep();
        let now = change.published();
        let current = now.functions.get(name).ok_or_else(|| RegistryError::unknown_function(name))?;
        let kept = now.version_list(name).kept;
        let steps = kept.iter().chain([&current.record.number]);
        let mut users: Vec<String> = steps.flat_map(|number| now.steps_by_number(name, *number)).collect();
        users
            .extend(users_of(&now, name).iter().filter(|user| user.runs(name)).map(|user| user.name.clone()));
        if !users.is_empty() {
            users.sort_unstable();
            users.dedup();
            return Err(RegistryError::IsStep { function: name.to_owned(), users });
        }
        let mut gone: Vec<&FunctionEntry> = kept
            .into_iter()
            .filter_map(|number| now.functions.get(&kept_name(name, number)))
            .map(|entry| &**entry)
            .collect();
        gone.push(current);
        self.change_functions(&mut change, Vec::new(), &gone)
    }
}
