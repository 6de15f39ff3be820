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
//! again. What has an alias, or is a step by its number, is never given up. On disk the copy that is kept comes first and the
//! current record by rename behind it: after a crash there is at most a kept version with the current one's number, which the
//! next start removes.

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
use super::views::{Registered, VersionList};
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_ALIASES;
use crate::refusal::failed;
use crate::store::records::{AliasRecord, Aliases};
use crate::store::staged::disk_bytes;
use crate::store::state_dir::Kind;
use crate::tenants::Account;

/// Which version of a function is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which<'n> {
    Current,
    Number(u32),
    Alias(&'n str),
}

/// What separates a name from a number, and from an alias: no name has them.
const MARKS: [char; 2] = ['@', ':'];

/// The function that a reference is about, and which version of it; none where it is no reference.
pub(super) fn split(reference: &str) -> Option<(&str, Which<'_>)> {
    let Some(at) = reference.find(MARKS) else { return Some((reference, Which::Current)) };
    let (name, which) = (&reference[..at], &reference[at + 1..]);
    if reference[at..].starts_with(':') {
        return is_valid_name(which).then_some((name, Which::Alias(which)));
    }
    // One spelling for each number.
    let is_plain = !which.starts_with('0') && which.bytes().all(|digit| digit.is_ascii_digit());
    let number = which.parse().ok().filter(|_| is_plain)?;
    Some((name, Which::Number(number)))
}

/// The function that a version, by whichever reference, is one of.
pub(super) fn base(reference: &str) -> &str {
    reference.find(MARKS).map_or(reference, |at| &reference[..at])
}

/// True if a reference names something else than the current version.
pub(super) fn is_marked(reference: &str) -> bool {
    reference.contains(MARKS)
}

/// What the record of a kept version is called.
pub(super) fn kept_name(name: &str, number: u32) -> String {
    format!("{name}@{number}")
}

/// Of the kept versions and the one that is to be kept besides, those that go so that at most `most` are kept: the oldest that
/// are not named elsewhere, and the one that was current only if no other can. None where too many are named.
pub(super) fn to_drop(
    kept: &[u32],
    replaced: u32,
    most: usize,
    is_named: impl Fn(u32) -> bool,
) -> Option<Vec<u32>> {
    let excess = (kept.len() + 1).saturating_sub(most);
    let free = kept.iter().chain([&replaced]).copied().filter(|number| excess > 0 && !is_named(*number));
    let dropped: Vec<u32> = free.take(excess).collect();
    (dropped.len() == excess).then_some(dropped)
}

/// True if an alias or a step of a composition names this version by its number.
pub(super) fn is_named(now: &Snapshot, function: &FunctionEntry, number: u32) -> bool {
    let is_aliased = function.aliases.values().any(|aliased| *aliased == number);
    is_aliased || !steps_by_number(now, base(&function.record.name), number).is_empty()
}

/// Names of compositions with a step that names this version by its number.
pub(super) fn steps_by_number(now: &Snapshot, name: &str, number: u32) -> Vec<String> {
    let version = kept_name(name, number);
    let users = now.functions.iter().filter(|(user, entry)| !is_marked(user) && entry.record.runs(&version));
    users.map(|(user, _)| user.clone()).collect()
}

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
    pub(super) fn store_aliases(
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
                self.state.put_aliases(tenant, &record)
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
        let users = steps_by_number(&now, name, number);
        if !users.is_empty() {
            return Err(RegistryError::IsStep { function: reference.to_owned(), users });
        }
        self.remove_record(&mut change, entry).map(Vec::from_iter)
    }

    /// Takes a record of a function away, on disk first. Returns its name towards workers if it was in memory.
    pub(super) fn remove_record(
        &self,
        change: &mut Change<'_>,
        entry: &FunctionEntry,
    ) -> Result<Option<FunctionId>, RegistryError> {
        let name = &entry.record.name;
        self.state
            .remove_record(change.account.tenant, Kind::Function, name)
            .map_err(|e| failed("cannot remove the function", &e))?;
        change.function_written(Some(entry), None);
        change.publish(|next| next.remove_function(name));
        Ok(self.retire(change, &entry.record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_one_spelling_and_hostile_ones_are_none() {
        assert_eq!(split("a"), Some(("a", Which::Current)));
        assert_eq!(split("a@12"), Some(("a", Which::Number(12))));
        assert_eq!(split("a:live"), Some(("a", Which::Alias("live"))));
        assert_eq!(split("a@4294967295"), Some(("a", Which::Number(u32::MAX))));
        for bad in [
            "a@",
            "a@0",
            "a@01",
            "a@-1",
            "a@+1",
            "a@ 1",
            "a@1 ",
            "a@1@2",
            "a@1:b",
            "a:b:c",
            "a:b@1",
            "a:",
            "a:.b",
            "a:b/c",
            "a@4294967296",
            "a@99999999999999999999",
            "a@x",
            "a@١",
            "@",
            ":",
            "@@",
        ] {
            assert_eq!(split(bad), None, "{bad}");
        }
        // Nothing is called so.
        assert_eq!(split("@1"), Some(("", Which::Number(1))));
        assert_eq!(["a", "a@1", "a:b@c", "@1"].map(base), ["a", "a", "a", ""]);
        assert_eq!(["a.b-c_1", "a@", ":"].map(is_marked), [false, true, true]);
    }

    #[test]
    fn the_oldest_version_goes_first_and_none_that_is_named() {
        let drop =
            |kept: &[u32], most, named: &[u32]| to_drop(kept, 9, most, |number| named.contains(&number));
        assert_eq!(drop(&[1], 2, &[]), Some(vec![]));
        assert_eq!(drop(&[1, 2], 2, &[]), Some(vec![1]));
        assert_eq!(drop(&[1, 2], 2, &[1]), Some(vec![2]));
        assert_eq!(
            drop(&[1, 2], 2, &[1, 2]),
            Some(vec![9]),
            "what was current is better than none that has a name"
        );
        assert_eq!(drop(&[1, 2], 2, &[1, 2, 9]), None);
        assert_eq!(drop(&[1, 2, 3], 1, &[2]), Some(vec![1, 3, 9]));
        assert_eq!(drop(&[], 0, &[]), Some(vec![9]));
        assert_eq!(drop(&[], 0, &[9]), None);
        assert_eq!(
            drop(&[10], 1, &[]),
            Some(vec![10]),
            "what was current a moment ago is what one takes back"
        );
    }
}
