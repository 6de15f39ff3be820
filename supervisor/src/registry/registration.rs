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
    NewFunction, NewModule, check_blob, check_module_bytes, check_no_parts, check_variants,
};
use super::blobs::Handed;
use super::codes::{Codes, Wish};
use super::error::{RegistryError, Thing};
use super::linking::users_of;
use super::making::Made;
use super::snapshot::{FunctionEntry, ModuleEntry};
use super::state::Registry;
use super::tenant::Change;
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
        Thing::Function.check_name(&new.name)?;
        // What linking makes is needed by records, or goes.
        let handed = Handed::default();
        let outcome = self.add_with(account, new, &handed, codes);
        let handed = handed.end();
        if !handed.is_empty() {
            self.release_handed(account, &handed);
        }
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
        let hash = check_blob(&mine.change(account.clone()).blobs, "config_sha256", &new.config_sha256)?.0;
        let parts = match is_composition(&self.read_config(tenant, hash)?) {
            true => {
                check_no_parts(new)?;
                self.link(account, handed, &new.name, hash, &[])?
            }
            false => self.parts(account, new)?,
        };
        let mut made = vec![self.make_function(account, parts, codes)?];
        let snapshot = mine.published();
        let is_new = |entry: &FunctionEntry| !made[0].record.is_made_as(&entry.record);
        let users = match snapshot.functions.get(&new.name).filter(|entry| is_new(entry)) {
            Some(_) if new.replace => users_of(&snapshot, &new.name),
            _ => Vec::new(),
        };
        self.link_again(account, handed, &users, &mut made, codes)?;
        let again = made.split_off(1);
        let Some(Made { record, config, blueprint, classes, linked_from, taken }) = made.pop() else {
            return Err(RegistryError::Vanished);
        };
        let mut change = mine.change(account.clone());
        change.sweep();
        let functions = change.published().functions;
        let before = functions.get(&record.name);
        match before {
            Some(existing) if existing.record == record => {
                return Ok(Registered {
                    record,
                    registration: Registration::Unchanged,
                    replaced: Vec::new(),
                });
            }
            Some(existing) if !new.replace && !existing.record.is_made_as(&record) => {
                return Err(RegistryError::Exists { thing: Thing::Function, name: record.name.clone() });
            }
            _ => {}
        }
        // Other requests of the tenant may have changed what this one linked.
        let is_replaced = before.is_some_and(|entry| !entry.record.is_made_as(&record));
        let users_now = if is_replaced { users_of(&change.published(), &record.name) } else { Vec::new() };
        let is_here = |known: &Arc<FunctionRecord>| {
            functions.get(&known.name).is_some_and(|entry| Arc::ptr_eq(&entry.record, known))
        };
        let is_made = |known: &Arc<FunctionRecord>| {
            again.iter().map(|one| &one.record).chain([&record]).any(|made| Arc::ptr_eq(made, known))
        };
        let mut linked_from = again.iter().flat_map(|one| &one.linked_from).chain(&linked_from);
        if users_now.len() != users.len()
            || !users.iter().all(is_here)
            || !linked_from.all(|known| is_here(known) || is_made(known))
        {
            return Err(RegistryError::Changed);
        }
        for record in again.iter().map(|one| &one.record).chain([&record]) {
            if !record.blobs().all(|hash| change.blobs.has(hash)) {
                return Err(RegistryError::Vanished);
            }
        }
        let more = again.iter().map(|one| &one.record).filter_map(|record| {
            let existing = functions.get(&record.name)?;
            let of = |record: &FunctionRecord| FunctionEntry::memory_bytes(record, &existing.callers);
            Some(of(record).saturating_sub(of(&existing.record)))
        });
        let more = more.sum::<u64>();
        match before {
            Some(existing) => {
                // Compositions have the modules of their steps.
                let replaced = again
                    .iter()
                    .map(|one| &one.record)
                    .chain([&record])
                    .filter_map(|new| functions.get(&new.name).map(|entry| (&*entry.record, &**new)));
                let (kept, added) = change.blobs.replaced_module_bytes(replaced);
                account.check(Limit::ModuleBytes, kept, added)?;
                let of = |record: &FunctionRecord| FunctionEntry::memory_bytes(record, &existing.callers);
                change.check_memory(more + of(&record).saturating_sub(of(&existing.record)))?;
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
        // Compositions first: if the rest is not done, the same request does all of it again.
        let mut replaced = Vec::new();
        for Made { record, .. } in again {
            if let Some(before) = functions.get(&record.name).filter(|before| before.record != record) {
                replaced.extend(self.store_function(&mut change, &record, Some(&**before))?);
            }
        }
        replaced.extend(self.store_function(&mut change, &record, before.map(|entry| &**entry))?);
        tracing::debug!(tenant = &*account.name, function = record.name, "registered");
        let registration = match before {
            None => Registration::Added,
            // Made of the same, of which more is known by now.
            Some(before) if before.record.is_made_as(&record) => Registration::Unchanged,
            Some(_) => Registration::Replaced,
        };
        drop((change, taken));
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

    /// Writes a function's record, in the place of the one `before`, and publishes it. Returns the name towards workers of
    /// the function before, if that was in memory.
    fn store_function(
        &self,
        change: &mut Change<'_>,
        record: &Arc<FunctionRecord>,
        before: Option<&FunctionEntry>,
    ) -> Result<Option<FunctionId>, RegistryError> {
        // By rename: after a crash the record is the old one or the new one.
        let stored = self.state.put_function(change.account.tenant, record);
        let disk_bytes = stored.map_err(|e| failed("cannot store the function", &e))?;
        // Before the old one is released: what both need stays.
        change.blobs.need_function(record);
        let (callers, grant_disk_bytes) =
            before.map_or_else(Default::default, |entry| (entry.callers.clone(), entry.grant_disk_bytes));
        let entry = FunctionEntry { record: record.clone(), callers, disk_bytes, grant_disk_bytes };
        change.function_written(before, Some(&entry));
        change.publish(|next| next.put_function(entry));
        Ok(before.and_then(|before| self.retire(change, &before.record)))
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
        let users = users_of(&change.published(), name);
        if !users.is_empty() {
            let users = users.iter().filter(|user| user.runs(name)).map(|user| user.name.clone()).collect();
            return Err(RegistryError::IsStep { function: name.to_owned(), users });
        }
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
