//! Adding, replacing and removing modules and functions. Blocking: callers run it off the socket's threads.
//!
//! An acknowledged record is on disk with every blob it needs.
//!
//! ```text
//! configuration ──read, resolved: all mistakes at once──► blueprint ──weights that no call could use──► refused
//!    for each kind and architecture of the devices here: variant ──compiled by a process of its own──► machine code
//!    blueprint against machine code (kernels, parameters, blocks, stacks) ──► blobs and record on disk
//! ```
//!
//! PTX and AMD's code objects are checked against the blueprint also where no device is here for them.

use std::sync::Arc;

use pappus_blueprint::Mistakes;

use super::admission::{
    NewFunction, NewModule, able, check_blob, check_module_bytes, check_modules, check_variants,
    check_weights,
};
use super::codes::{Codes, Wish};
use super::error::{RegistryError, Thing};
use super::signature::{Signature, signature};
use super::snapshot::{FunctionEntry, ModuleEntry};
use super::state::Registry;
use super::views::{ModuleView, Registered, Registration};
use crate::function::LoadedCache;
use crate::function::loaded::Parsed;
use crate::ids::FunctionId;
use crate::limits::MAX_MODULES;
use crate::refusal::failed;
use crate::store::records::{FunctionRecord, ModuleRecord};
use crate::store::staged::disk_bytes;
use crate::store::state_dir::Kind;
use crate::tenants::{Account, Limit};

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

    /// Registers a function whose machine code is there.
    pub(super) fn try_add_function(
        &self,
        account: &Arc<Account>,
        new: &NewFunction,
        codes: &mut Codes,
    ) -> Result<Registered, RegistryError> {
        let tenant = account.tenant;
        Thing::Function.check_name(&new.name)?;
        let mine = self.registry_of(tenant);
        let config_hash =
            check_blob(&mine.change(account.clone()).blobs, "config_sha256", &new.config_sha256)?.0;
        let (config, blueprint) = self.parse_config(account, config_hash)?;
        let (modules, weights) = {
            let change = mine.change(account.clone());
            let modules = check_modules(&change, &blueprint, &new.modules)?;
            (modules, check_weights(&change.blobs, &blueprint, &new.weights)?)
        };
        let weight_bytes: Vec<u64> = weights.iter().map(|weight| weight.bytes).collect();
        blueprint
            .check_weights(&weight_bytes)
            .map_err(|why| why.found_in(&config))
            .map_err(Mistakes::from)?;
        let classes = self.with_room(&weights, able(&blueprint, self.runnable(&modules)?)?)?;
        self.check_code(tenant, &blueprint, &modules, &classes, codes)?;
        self.check_declared(tenant, &blueprint, &modules, codes)?;
        let Signature { inputs, outputs, input_types } = signature(&blueprint);
        let record = Arc::new(FunctionRecord {
            name: new.name.clone(),
            config: config_hash,
            modules,
            weights,
            inputs,
            outputs,
            input_types,
        });
        let mut change = mine.change(account.clone());
        change.sweep();
        let functions = change.published().functions;
        let before = functions.get(&record.name);
        match before {
            Some(existing) if existing.record == record => {
                return Ok(Registered { record, registration: Registration::Unchanged, replaced: None });
            }
            Some(existing) if !new.replace && !existing.record.is_made_as(&record) => {
                return Err(RegistryError::Exists { thing: Thing::Function, name: record.name.clone() });
            }
            _ if !record.blobs().all(|hash| change.blobs.has(hash)) => return Err(RegistryError::Vanished),
            Some(existing) => {
                let (kept, more) = change.blobs.replaced_module_bytes(&existing.record, &record);
                account.check(Limit::ModuleBytes, kept, more)?;
                let of = |record: &FunctionRecord| FunctionEntry::memory_bytes(record, &existing.callers);
                change.check_memory(of(&record).saturating_sub(of(&existing.record)))?;
            }
            None => {
                change.check_memory(FunctionEntry::memory_bytes(&record, &[]))?;
                account.check(Limit::Functions, functions.size() as u64, 1)?;
                check_module_bytes(&change, record.variants())?;
                change.check_disk(disk_bytes(0), 1)?;
            }
        }
        // Those of the damaged function wait for its record, not for another function of its name.
        if before.is_none() && change.grants_alone.remove(&record.name) {
            let why = "its function was damaged, and another one was registered by that name";
            self.state.set_aside(tenant, Kind::Grant, &record.name, why);
        }
        // By rename: after a crash the record is the old one or the new one.
        let stored = self.state.put_function(tenant, &record);
        let disk_bytes = stored.map_err(|e| failed("cannot store the function", &e))?;
        tracing::debug!(tenant = &*account.name, function = record.name, "registered");
        // Before the old one is released: what both need stays.
        change.blobs.need_function(&record);
        let (callers, grant_disk_bytes) =
            before.map_or_else(Default::default, |entry| (entry.callers.clone(), entry.grant_disk_bytes));
        let entry = FunctionEntry { record: record.clone(), callers, disk_bytes, grant_disk_bytes };
        change.function_written(before.map(|entry| &**entry), Some(&entry));
        change.publish(|next| next.put_function(entry));
        let registration = match before {
            None => Registration::Added,
            // Made of the same, of which more is known by now.
            Some(before) if before.record.is_made_as(&record) => Registration::Unchanged,
            Some(_) => Registration::Replaced,
        };
        let replaced = before.and_then(|before| self.retire(&mut change, &before.record));
        drop(change);
        // Who registers a function mostly calls it next. Large weights are read when they are wanted. Machine code may have gone with a
        // client that handed the module over, while another module was compiled.
        let there = &mut Codes::new(Wish::Known);
        if let Ok(runs_on) = self.check_code(tenant, &blueprint, &record.modules, &classes, there) {
            let parsed = Parsed { blueprint, config, weights: None, runs_on };
            if LoadedCache::has_room(account, &parsed)
                && let Some(parsed) = self.with_small_weights(account, &record, parsed)
            {
                let current = || self.look(tenant, |mine| mine.callers_of(&record))?;
                self.loaded.insert_if_room(account.clone(), record.clone(), parsed, current);
            }
        }
        Ok(Registered { record, registration, replaced })
    }

    /// Removes a function; calls that were accepted finish. Returns its name towards workers if it was in
    /// memory.
    pub fn remove_function(
        &self,
        account: &Arc<Account>,
        name: &str,
    ) -> Result<Option<FunctionId>, RegistryError> {
        let tenant = account.tenant;
        let name = self.own(account, name)?;
        let mine = self.registry_of(tenant);
        let mut change = mine.change(account.clone());
        change.sweep();
        // First: if the rest fails, a later function of this name is granted to no tenant.
        self.forget_grants(&mut change, name)?;
        let functions = change.published().functions;
        let Some(entry) = functions.get(name) else {
            return Err(RegistryError::unknown_function(name));
        };
        self.state
            .remove_record(tenant, Kind::Function, name)
            .map_err(|e| failed("cannot remove the function", &e))?;
        change.function_written(Some(entry), None);
        change.publish(|next| next.remove_function(name));
        Ok(self.retire(&mut change, &entry.record))
    }
}
