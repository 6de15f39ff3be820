//! Versions of a function: how callers name them, which are kept, and what changes them besides a registration.
//!
//! ```text
//! NAME          the current version: its record is called NAME
//! NAME@NUMBER   exactly this version: the current one, or a kept one, whose record is called NAME@NUMBER
//! NAME:ALIAS    the version whose number the alias has at the moment
//!
//! add --replace   current ──► kept, under its number;  new one ──► current;  kept beyond the setting, oldest first ──► gone
//! use NAME@N      current ──► kept;                    kept N  ──► current
//! ```
//!
//! A kept version stays as it was linked, and is no user of the functions that its steps name; once it is current, it is linked
//! again. What has an alias, or is a step by its number, is never given up.

use std::sync::Arc;

use pappus_proto::limits::is_valid_name;

use super::blobs::Handed;
use super::codes::Codes;
use super::error::RegistryError;
use super::making::Parts;
use super::replacing::Source;
use super::snapshot::{FunctionEntry, Snapshot};
use super::state::Registry;
use super::tenant::Change;
use super::version_names::{Which, base, is_marked, kept_name, split};
use super::views::{Registered, VersionList};
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_ALIASES;
use crate::refusal::failed;
use crate::store::records::{AliasRecord, Aliases, Kind};
use crate::store::staged::disk_bytes;
use crate::tenants::Account;

impl Registry {
    /// What is kept of a function beside its current version, and the names of versions.
    pub fn version_list(&self, tenant: TenantId, reference: &str) -> VersionList {
        self.look(tenant, |mine| mine.version_list(base(reference))).unwrap_or_default()
    }

    /// Makes a kept version the current one, where its machine code is there. Calls that were accepted finish with what they
    /// began with.
    pub(super) fn try_use_version(
        &self,
        account: &Arc<Account>,
        reference: &str,
        codes: &mut Codes,
    ) -> Result<Registered, RegistryError> {
        let reference = self.own(account, reference)?;
        let unknown = || RegistryError::unknown_function(reference);
        if !is_marked(reference) {
            return Err(RegistryError::NoVersion(reference.to_owned()));
        }
        let now = self.snapshot(account.tenant);
        let entry = now.find(reference).ok_or_else(unknown)?;
        let record = entry.record.clone();
        let name = base(reference);
        if record.name == name {
            return Ok(Registered::unchanged(record));
        }
        let handed = Handed::default();
        let outcome = (|| {
            let parts = match &record.composition {
                // Its steps are what they are now.
                Some(composition) => self.link(account, &handed, name, composition.text, &[])?,
                None => {
                    let (config, blueprint) = self.parse_config(account, record.config)?;
                    Parts {
                        name: name.to_owned(),
                        config: (record.config, config),
                        blueprint,
                        modules: record.modules.clone(),
                        weights: record.weights.clone(),
                        composition: None,
                        linked_from: vec![record.clone()],
                        taken: None,
                    }
                }
            };
            let made = self.make_function(account, parts, codes)?;
            self.register(account, &handed, made, Source::Kept(record.clone()), codes)
        })();
        self.end_handed(account, handed);
        outcome
    }

    /// From now on an alias names a version of a function.
    pub fn set_alias(
        &self,
        account: &Arc<Account>,
        function: &str,
        alias: &str,
        number: u32,
    ) -> Result<(), RegistryError> {
        if !is_valid_name(alias) {
            return Err(RegistryError::BadAlias(alias.to_owned()));
        }
        self.change_aliases(account, function, |now, entry| {
            let version = kept_name(&entry.record.name, number);
            now.find(&version).ok_or_else(|| RegistryError::unknown_function(&version))?;
            let mut aliases = Aliases::clone(&entry.aliases);
            aliases.insert(alias.into(), number);
            match aliases.len() > MAX_ALIASES {
                true => Err(RegistryError::TooManyAliases(entry.record.name.clone())),
                false => Ok(aliases),
            }
        })
    }

    /// An alias names nothing any more.
    pub fn remove_alias(
        &self,
        account: &Arc<Account>,
        function: &str,
        alias: &str,
    ) -> Result<(), RegistryError> {
        self.change_aliases(account, function, |_, entry| {
            let mut aliases = Aliases::clone(&entry.aliases);
            match aliases.remove(alias) {
                Some(_) => Ok(aliases),
                None => Err(RegistryError::unknown_function(&format!("{}:{alias}", entry.record.name))),
            }
        })
    }

    fn change_aliases(
        &self,
        account: &Arc<Account>,
        function: &str,
        change_of: impl FnOnce(&Snapshot, &FunctionEntry) -> Result<Aliases, RegistryError>,
    ) -> Result<(), RegistryError> {
        let name = self.own(account, function)?;
        let tenant = account.tenant;
        let mine = self.registry_of(tenant);
        let mut change = mine.change(account.clone());
        let now = change.published();
        let entry = now.functions.get(name).filter(|_| !is_marked(name));
        let entry = entry.ok_or_else(|| RegistryError::unknown_function(name))?;
        let aliases = change_of(&now, entry)?;
        if aliases == *entry.aliases {
            return Ok(());
        }
        self.store_aliases(&mut change, entry, aliases)
    }

    /// On disk, then for lookups.
    fn store_aliases(
        &self,
        change: &mut Change<'_>,
        entry: &FunctionEntry,
        aliases: Aliases,
    ) -> Result<(), RegistryError> {
        let (tenant, name) = (change.account.tenant, &entry.record.name);
        let aliases = Arc::new(aliases);
        let memory = |aliases| FunctionEntry::memory_bytes(&entry.record, &entry.callers, aliases);
        change.check_memory(memory(&aliases).saturating_sub(memory(&entry.aliases)))?;
        if entry.alias_disk_bytes == 0 && !aliases.is_empty() {
            change.check_disk(disk_bytes(0), 1)?;
        }
        let stored = match aliases.is_empty() {
            true if entry.alias_disk_bytes == 0 => Ok(0),
            true => self.state.remove_record(tenant, Kind::Alias, name).map(|()| 0),
            false => {
                let record = AliasRecord { name: name.clone(), aliases: Aliases::clone(&aliases) };
                self.state.put(tenant, &record)
            }
        };
        let alias_disk_bytes = stored.map_err(|e| failed("cannot store the alias", &e))?;
        let next = FunctionEntry { aliases, alias_disk_bytes, ..entry.clone() };
        change.function_written(Some(entry), Some(&next));
        change.publish(|all| all.put_function(next));
        Ok(())
    }

    /// Removes one kept version.
    pub(super) fn remove_version(
        &self,
        account: &Arc<Account>,
        reference: &str,
    ) -> Result<Vec<FunctionId>, RegistryError> {
        let unknown = || RegistryError::unknown_function(reference);
        let Some((name, Which::Number(number))) = split(reference) else { return Err(unknown()) };
        let mine = self.registry_of(account.tenant);
        let mut change = mine.change(account.clone());
        change.sweep();
        let now = change.published();
        let entry = now.find(reference).ok_or_else(unknown)?;
        if entry.record.name == name {
            return Err(RegistryError::IsCurrent(reference.to_owned()));
        }
        let aliases = now.version_list(name).aliases;
        if let Some((alias, _)) = aliases.iter().find(|(_, aliased)| **aliased == number) {
            return Err(RegistryError::IsAliased { version: reference.to_owned(), alias: alias.to_string() });
        }
        let users = now.steps_by_number(name, number);
        if !users.is_empty() {
            return Err(RegistryError::IsStep { function: reference.to_owned(), users });
        }
        self.change_functions(&mut change, Vec::new(), &[&**entry])
    }
}
