//! A function that was made gets its place among what is registered: the compositions that run it are linked again, limits are
//! checked, and the version before is kept or goes (`versions` says which).

use std::collections::HashMap;
use std::sync::Arc;

use super::blobs::Handed;
use super::codes::{Codes, Wish};
use super::error::{RegistryError, Thing};
use super::linking::users_of;
use super::making::Made;
use super::snapshot::{FunctionEntry, Snapshot};
use super::state::Registry;
use super::tenant::Change;
use super::version_names::{kept_name, to_drop};
use super::views::{Registered, Registration};
use crate::function::LoadedCache;
use crate::function::loaded::{Callers, Parsed};
use crate::ids::FunctionId;
use crate::refusal::failed;
use crate::store::records::{FunctionRecord, Kind};
use crate::store::staged::disk_bytes;
use crate::tenants::{Account, Limit};

/// Where a function that is to be registered comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A client handed it over.
    New {
        /// True if it may take the place of another one.
        replace: bool,
        /// The most older versions that are kept.
        keep: usize,
    },
    /// It is a version that was kept.
    Kept(Arc<FunctionRecord>),
}

impl Source {
    /// True if a function made so takes the place of the one `before`.
    fn replaces(&self, before: &FunctionEntry, record: &FunctionRecord) -> bool {
        match self {
            Self::New { .. } => !record.is_made_as(&before.record),
            Self::Kept(_) => true,
        }
    }

    /// The record with its version number.
    fn number(&self, record: &Arc<FunctionRecord>, now: &Snapshot) -> Arc<FunctionRecord> {
        let before = now.functions.get(&record.name).map(|entry| &entry.record);
        let kept = now.version_list(&record.name).kept;
        let numbers = before.map_or([0; 2], |before| [before.number, before.largest]);
        let largest = kept.into_iter().chain(numbers).max().unwrap_or(0);
        let (number, largest) = match (self, before) {
            (Self::Kept(kept), _) => (kept.number, if largest > kept.number { largest } else { 0 }),
            (Self::New { .. }, Some(before)) if record.is_made_as(before) => (before.number, before.largest),
            (Self::New { .. }, _) => (largest.saturating_add(1), 0),
        };
        FunctionRecord { number, largest, ..FunctionRecord::clone(record) }.into()
    }
}

/// What a registration changes, besides compositions.
struct Step<'c> {
    record: &'c Arc<FunctionRecord>,
    before: Option<&'c FunctionEntry>,
    /// The record under which the version before is kept.
    stays: Option<Arc<FunctionRecord>>,
    dropped: Vec<&'c FunctionEntry>,
}

impl<'c> Step<'c> {
    /// Of a function that keeps at most so many versions where a new one comes; none where too many are named.
    fn new(now: &'c Snapshot, source: &Source, record: &'c Arc<FunctionRecord>, most: usize) -> Option<Self> {
        let name = &record.name;
        let before = now.functions.get(name).map(|entry| &**entry);
        let replaced = before.filter(|before| source.replaces(before, record));
        let dropped = match (source, replaced) {
            (Source::Kept(kept), _) => vec![kept.number],
            (Source::New { .. }, Some(before)) => {
                let kept = now.version_list(name).kept;
                to_drop(&kept, before.record.number, most, |number| now.is_named(before, number))?
            }
            (Source::New { .. }, None) => Vec::new(),
        };
        let stays = replaced.filter(|before| !dropped.contains(&before.record.number)).map(|before| {
            let name = kept_name(name, before.record.number);
            Arc::new(FunctionRecord { name, largest: 0, ..FunctionRecord::clone(&before.record) })
        });
        let kept = |number: u32| now.functions.get(&kept_name(name, number)).map(|entry| &**entry);
        let dropped = dropped.into_iter().filter_map(kept).collect();
        Some(Self { record, before, stays, dropped })
    }
}

impl Registry {
    /// Registers what was made.
    pub(super) fn register<'r>(
        &'r self,
        account: &Arc<Account>,
        handed: &Handed,
        made: Made<'r>,
        source: Source,
        codes: &mut Codes,
    ) -> Result<Registered, RegistryError> {
        let tenant = account.tenant;
        let mine = self.registry_of(tenant);
        let may_replace = !matches!(source, Source::New { replace: false, .. });
        let users = |now: &Snapshot, record: &FunctionRecord| match now.functions.get(&record.name) {
            Some(before) if source.replaces(before, record) => users_of(now, &record.name),
            _ => Vec::new(),
        };
        let mut made = vec![made];
        let linked = if may_replace { users(&mine.published(), &made[0].record) } else { Vec::new() };
        self.link_again(account, handed, &linked, &mut made, codes)?;
        let again = made.split_off(1);
        let Some(Made { record: made, config, blueprint, classes, linked_from, taken }) = made.pop() else {
            return Err(RegistryError::Vanished);
        };
        let mut change = mine.change(account.clone());
        change.sweep();
        let now = change.published();
        let functions = &now.functions;
        let before = functions.get(&made.name);
        let record = source.number(&made, &now);
        match before {
            Some(existing) if existing.record == record => {
                return Ok(Registered::unchanged(record));
            }
            Some(existing) if !may_replace && source.replaces(existing, &record) => {
                return Err(RegistryError::Exists { thing: Thing::Function, name: record.name.clone() });
            }
            _ => {}
        }
        // Other requests of the tenant may have changed what this one linked, or kept.
        let is_here = |known: &Arc<FunctionRecord>| {
            functions.get(&known.name).is_some_and(|entry| Arc::ptr_eq(&entry.record, known))
        };
        let is_made = |known: &Arc<FunctionRecord>| {
            again.iter().map(|one| &one.record).chain([&made]).any(|made| Arc::ptr_eq(made, known))
        };
        let mut linked_from = again.iter().flat_map(|one| &one.linked_from).chain(&linked_from);
        let is_kept = match &source {
            Source::Kept(kept) => is_here(kept),
            Source::New { .. } => true,
        };
        if users(&now, &record).len() != linked.len()
            || !is_kept
            || !linked.iter().all(is_here)
            || !linked_from.all(|known| is_here(known) || is_made(known))
        {
            return Err(RegistryError::Changed);
        }
        for record in again.iter().map(|one| &one.record).chain([&record]) {
            if !record.blobs().all(|hash| change.blobs.has(hash)) {
                return Err(RegistryError::Vanished);
            }
        }
        let again: Vec<(Arc<FunctionRecord>, &FunctionEntry)> = again
            .iter()
            .filter_map(|one| {
                let before = functions.get(&one.record.name)?;
                let FunctionRecord { number, largest, .. } = *before.record;
                let record = FunctionRecord { number, largest, ..FunctionRecord::clone(&one.record) };
                Some((Arc::new(record), &**before))
            })
            .collect();
        let step = self.step_with_room(&change, &now, &source, &record, &again)?;
        // Those of the damaged function wait for its record, not for another function of its name.
        for kind in [Kind::Grant, Kind::Alias] {
            if before.is_none() && change.alone.remove(&(kind, record.name.clone())) {
                let why = "its function was damaged, and another one was registered by that name";
                self.state.set_aside(tenant, kind, &record.name, why);
            }
        }
        let again = again.into_iter().filter(|(record, before)| before.record != *record);
        let kept = step.stays.map(|stays| (stays, None));
        let current = [(record.clone(), step.before)];
        let new = kept
            .into_iter()
            .chain(again.map(|(record, before)| (record, Some(before))))
            .chain(current)
            .collect();
        let replaced = self.change_functions(&mut change, new, &step.dropped)?;
        tracing::debug!(
            tenant = &*account.name,
            function = record.name,
            number = record.number,
            "registered"
        );
        let registration = match before {
            None => Registration::Added,
            // Made of the same, of which more is known by now.
            Some(before) if !source.replaces(before, &record) => Registration::Unchanged,
            Some(_) => Registration::Replaced,
        };
        drop((change, taken));
        // Who registers a function mostly calls it next. Large weights are read when they are wanted. Machine code may have gone with a
        // client that handed the module over, while another module was compiled.
        let there = &mut Codes::new(Wish::Known);
        if let Ok(runs_on) = self.check_code(tenant, &blueprint, &record.modules, &classes, there) {
            let parsed = Parsed { blueprint, config, weights: None, runs_on, steps: None };
            if !record.is_consecutive()
                && LoadedCache::has_room(account, &parsed)
                && let Some(parsed) = self.with_small_weights(account, &record, parsed)
            {
                let current = || self.look(tenant, |mine| mine.callers_of(&record))?;
                self.loaded.insert_if_room(account.clone(), record.clone(), parsed, current);
            }
        }
        Ok(Registered { record, registration, replaced })
    }

    /// The change, with as many versions kept as may be and as the tenant's limits have room for.
    fn step_with_room<'c>(
        &self,
        change: &Change<'_>,
        now: &'c Snapshot,
        source: &Source,
        record: &'c Arc<FunctionRecord>,
        again: &[(Arc<FunctionRecord>, &FunctionEntry)],
    ) -> Result<Step<'c>, RegistryError> {
        let most = if let Source::New { keep, .. } = source { *keep } else { 0 };
        let named = || RegistryError::VersionsNamed { name: record.name.clone(), most };
        let mut step = Step::new(now, source, record, most).ok_or_else(named)?;
        let kept = now.version_list(&record.name).kept.len();
        let mut fewer = most.min(kept + 1);
        loop {
            let full = match check_room(change, now, &step, again) {
                Ok(()) => return Ok(step),
                Err(why) => why,
            };
            // A replacement that fits alone is not refused for what it could be taken back to.
            let next = fewer.checked_sub(1).filter(|_| step.stays.is_some());
            match next.and_then(|most| Some((most, Step::new(now, source, record, most)?))) {
                Some((most, smaller)) if matches!(source, Source::New { .. }) => {
                    (fewer, step) = (most, smaller);
                }
                _ => return Err(full),
            }
        }
    }

    /// Writes records of functions and removes others, with their grants and aliases, and publishes that: all of it or nothing. A new
    /// record may take another one's place, whose callers and aliases stay. Returns the names towards workers of what was in memory.
    pub(super) fn change_functions(
        &self,
        change: &mut Change<'_>,
        new: Vec<(Arc<FunctionRecord>, Option<&FunctionEntry>)>,
        gone: &[&FunctionEntry],
    ) -> Result<Vec<FunctionId>, RegistryError> {
        let account = change.account.clone();
        let cannot = |e| failed("cannot store what is registered", &e);
        let mut records = self.state.change(account.tenant);
        let mut entries = Vec::new();
        for (record, before) in new {
            let disk_bytes = records.put(&*record).map_err(cannot)?;
            let entry = match before {
                Some(before) => FunctionEntry { record, disk_bytes, ..before.clone() },
                None => FunctionEntry::new(record, disk_bytes),
            };
            entries.push((entry, before));
        }
        // On a full disk, where they go one by one, rights go first.
        for entry in gone {
            let also = [(Kind::Grant, entry.grant_disk_bytes), (Kind::Alias, entry.alias_disk_bytes)];
            let there = also.iter().filter(|(_, bytes)| *bytes > 0);
            there.for_each(|(kind, _)| records.remove(*kind, &entry.record.name));
        }
        gone.iter().for_each(|entry| records.remove(Kind::Function, &entry.record.name));
        records.commit().map_err(cannot)?;
        for (entry, before) in &entries {
            // Before the old one is released: what both need stays.
            change.blobs.need_function(&entry.record);
            change.function_written(*before, Some(entry));
        }
        gone.iter().for_each(|entry| change.function_written(Some(entry), None));
        let old: Vec<_> =
            entries.iter().filter_map(|(_, before)| *before).chain(gone.iter().copied()).collect();
        change.publish(|next| {
            gone.iter().for_each(|entry| next.remove_function(&entry.record.name));
            entries.into_iter().for_each(|(entry, _)| next.put_function(entry));
        });
        for entry in gone {
            self.granted.lock().change(
                &account.name,
                &entry.record.name,
                &entry.callers,
                &Callers::default(),
            );
        }
        Ok(old.into_iter().filter_map(|entry| self.retire(change, &entry.record)).collect())
    }
}

/// Checks that a tenant may have what there is after a change.
fn check_room(
    change: &Change<'_>,
    now: &Snapshot,
    step: &Step<'_>,
    again: &[(Arc<FunctionRecord>, &FunctionEntry)],
) -> Result<(), RegistryError> {
    let account = &change.account;
    // What goes, and what comes in its place, by name.
    let mut before: HashMap<&str, u64> = HashMap::new();
    let of =
        |entry: &FunctionEntry| FunctionEntry::memory_bytes(&entry.record, &entry.callers, &entry.aliases);
    let old = step.before.into_iter().chain(again.iter().map(|(_, before)| *before));
    let gone = old.clone().chain(step.dropped.iter().copied());
    before.extend(gone.clone().map(|entry| (&*entry.record.name, of(entry))));
    let come = again.iter().map(|(record, _)| record).chain([step.record]).chain(&step.stays);
    let mut after = 0;
    for record in come.clone() {
        let none = Default::default();
        let entry = now.functions.get(&record.name);
        let callers = entry.map_or(&[][..], |entry| &entry.callers);
        after += FunctionEntry::memory_bytes(record, callers, entry.map_or(&none, |entry| &entry.aliases));
    }
    change.check_memory(after.saturating_sub(before.values().sum()))?;
    let added = usize::from(step.before.is_none()) + usize::from(step.stays.is_some());
    let added = added.saturating_sub(step.dropped.len()) as u64;
    if added > 0 {
        account.check(Limit::Functions, now.functions.size() as u64, added)?;
    }
    // Compositions have the modules of their steps.
    let (kept, more) =
        change.blobs.replaced_module_bytes(gone.map(|entry| &*entry.record), come.map(|record| &**record));
    account.check(Limit::ModuleBytes, kept, more)?;
    if added > 0 {
        change.check_disk(disk_bytes(0) * added, added)?;
    }
    Ok(())
}
