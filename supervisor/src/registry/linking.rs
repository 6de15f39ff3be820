//! Compositions: linked into one function when they are registered, and again when a function that they run is replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use pappus_blueprint::compose::{self, Part};
use pappus_blueprint::limits::PARSE_MEMORY;

use super::blobs::Handed;
use super::codes::Codes;
use super::error::RegistryError;
use super::making::{Made, Parts};
use super::snapshot::Snapshot;
use super::state::Registry;
use super::version_names::{base, is_marked};
use crate::limits::MAX_LINKED_AGAIN;
use crate::store::records::{Composition, FunctionModule, FunctionRecord, Hash, Weight};
use crate::tenants::{Account, Limit};

/// The record of a function that a step runs, and its configuration.
type StepFunction = (Arc<FunctionRecord>, Vec<u8>);

impl Registry {
    /// Links a composition: its functions are those in `made`, or else those that are registered. Bytes that the linked
    /// function needs beyond theirs are handed over for it.
    pub(super) fn link(
        &self,
        account: &Arc<Account>,
        handed: &Handed,
        name: &str,
        text: Hash,
        made: &[Made<'_>],
    ) -> Result<Parts, RegistryError> {
        let tenant = account.tenant;
        let charge =
            |bytes: usize| self.loaded.make_room(account, Limit::PlanBytes, PARSE_MEMORY * bytes as u64);
        let json = self.read_config(tenant, text)?;
        // Reading it takes as much again, and so does what is linked.
        let mut charged = vec![charge(2 * json.len())?];
        let snapshot = self.snapshot(tenant);
        let (mut linked_from, mut failed) = (Vec::new(), None);
        let linked = compose::link(&json, |function| {
            if failed.is_some() {
                return None;
            }
            let found = (|| -> Result<Option<StepFunction>, RegistryError> {
                if function.contains(':') {
                    return Err(RegistryError::StepByAlias(function.to_owned()));
                }
                if base(function) == name || runs_itself(&snapshot, function, name) {
                    return Err(RegistryError::StepOfItself(function.to_owned()));
                }
                if let Some(other) = made.iter().find(|made| made.record.name == function) {
                    return Ok(Some((other.record.clone(), other.config.clone())));
                }
                let Some(entry) = snapshot.find(function) else { return Ok(None) };
                let config = self.read_config(tenant, entry.record.config)?;
                Ok(Some((entry.record.clone(), config)))
            })();
            let (record, config) = match found {
                Ok(found) => found?,
                Err(why) => {
                    failed = Some(why);
                    return None;
                }
            };
            match charge(2 * config.len()) {
                Ok(more) => charged.push(more),
                Err(why) => {
                    failed = Some(why.into());
                    return None;
                }
            }
            let part = part(&record, config);
            linked_from.push(record);
            Some(part)
        });
        if let Some(why) = failed {
            return Err(why);
        }
        let linked = linked?;
        drop(charged);
        let taken = charge(linked.config.len())?;
        let store = |bytes: &[u8]| self.put_blob(account, handed, bytes.len() as u64, bytes);
        let (config, _) = store(&linked.config)?;
        let constants = match linked.constants.as_slice() {
            [] => None,
            bytes => Some(store(bytes)?),
        };
        let lost = || RegistryError::Changed;
        let modules = linked.modules.iter().map(|module| {
            let of: Option<&FunctionModule> = linked_from
                .get(module.function)
                .and_then(|record: &Arc<FunctionRecord>| record.modules.get(module.module));
            let variants = of.ok_or_else(lost)?.variants.clone();
            Ok(FunctionModule { name: module.name.as_str().into(), variants })
        });
        let weights = linked.weights.iter().map(|weight| {
            let content = match weight.of {
                None => constants,
                Some((function, at)) => {
                    let record = linked_from.get(function);
                    let of = record.and_then(|record: &Arc<FunctionRecord>| record.weights.get(at));
                    of.map(|of| (of.sha256, of.bytes))
                }
            };
            let (sha256, bytes) = content.ok_or_else(lost)?;
            Ok(Weight { name: weight.name.as_str().into(), sha256, bytes })
        });
        let functions = linked.functions.iter().map(|name| name.as_str().into()).collect();
        Ok(Parts {
            name: name.to_owned(),
            modules: modules.collect::<Result<_, RegistryError>>()?,
            weights: weights.collect::<Result<_, RegistryError>>()?,
            config: (config, linked.config),
            blueprint: linked.blueprint,
            composition: Some(Box::new(Composition { text, functions })),
            linked_from,
            taken: Some(taken),
        })
    }

    /// Links the compositions again that run the function which is first in `made`, and puts them behind it, each behind
    /// those that it runs. Where one does not fit any more all that do not are told, and nothing is replaced.
    pub(super) fn link_again<'r>(
        &'r self,
        account: &Arc<Account>,
        handed: &Handed,
        users: &[Arc<FunctionRecord>],
        made: &mut Vec<Made<'r>>,
        codes: &mut Codes,
    ) -> Result<(), RegistryError> {
        let Some(function) = made.first().map(|made| made.record.name.clone()) else { return Ok(()) };
        if users.len() > MAX_LINKED_AGAIN {
            return Err(RegistryError::TooManyCompositions { function, count: users.len() });
        }
        let mut misfits = Vec::new();
        let mut left_out: HashSet<Box<str>> = HashSet::new();
        for user in users {
            let Some(composition) = &user.composition else { continue };
            // Of one that runs another that does not fit nothing more can be said.
            if composition.functions.iter().any(|function| left_out.contains(function)) {
                left_out.insert(user.name.as_str().into());
                continue;
            }
            let linked = self.link(account, handed, &user.name, composition.text, made);
            match linked.and_then(|parts| self.make_function(account, parts, codes)) {
                Ok(again) => made.push(again),
                // The work begins anew once that is there.
                Err(why) if codes.all_made().is_err() => return Err(why),
                Err(why) => {
                    left_out.insert(user.name.as_str().into());
                    misfits.push(format!("{}: {why}", user.name));
                }
            }
        }
        match misfits.is_empty() {
            true => Ok(()),
            false => Err(RegistryError::NoLongerFit { function, misfits }),
        }
    }
}

/// What the linker needs of a function.
fn part(record: &FunctionRecord, config: Vec<u8>) -> Part {
    let modules = record.modules.iter().map(|module| {
        let variants =
            module.variants.iter().map(|variant| format!("{} {}", variant.label(), variant.sha256));
        variants.collect::<Vec<_>>().join(", ")
    });
    let weights = record.weights.iter().map(|weight| (weight.sha256.to_string(), Some(weight.bytes)));
    Part { config, modules: modules.collect(), weights: weights.collect() }
}

/// True if a function runs the one of this name, directly or through other functions.
fn runs_itself(snapshot: &Snapshot, function: &str, name: &str) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![function]);
    while let Some(next) = open.pop() {
        let Some(entry) = snapshot.find(next) else { continue };
        let functions = entry.record.composition.iter().flat_map(|composition| &composition.functions);
        for function in functions {
            if base(function) == name {
                return true;
            }
            if seen.insert(&**function) {
                open.push(function);
            }
        }
    }
    false
}

/// Compositions over a function, directly or through compositions, in an order from the function upwards.
pub(super) fn users_of(snapshot: &Snapshot, function: &str) -> Vec<Arc<FunctionRecord>> {
    let mut users: HashMap<&str, Vec<&Arc<FunctionRecord>>> = HashMap::new();
    // A kept version runs nothing but what it was linked from.
    for (_, entry) in snapshot.functions.iter().filter(|(name, _)| !is_marked(name)) {
        for name in entry.record.composition.iter().flat_map(|composition| &composition.functions) {
            users.entry(name).or_default().push(&entry.record);
        }
    }
    let mut found: BTreeMap<&str, &Arc<FunctionRecord>> = BTreeMap::new();
    let mut open = vec![function];
    while let Some(next) = open.pop() {
        for user in users.get(next).into_iter().flatten() {
            if found.insert(&user.name, user).is_none() {
                open.push(&user.name);
            }
        }
    }
    // How many of those that each runs are still to come.
    let runs = |record: &FunctionRecord| {
        let functions = record.composition.iter().flat_map(|composition| &composition.functions);
        functions.filter(|name| found.contains_key(&***name)).count()
    };
    let mut waiting: HashMap<&str, usize> = found.iter().map(|(name, user)| (*name, runs(user))).collect();
    let mut ready: BTreeSet<&str> =
        waiting.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    let mut order = Vec::with_capacity(found.len());
    while let Some(next) = ready.pop_first() {
        let Some(record) = found.get(next) else { continue };
        order.push((*record).clone());
        for user in users.get(next).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(user.name.as_str()) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(&user.name);
                }
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::FunctionEntry;
    use super::*;

    /// A function that runs these.
    fn entry(name: &str, functions: &[&str]) -> FunctionEntry {
        let functions: Box<[Box<str>]> = functions.iter().map(|name| (*name).into()).collect();
        let composition = Composition { text: Hash([1; 32]), functions };
        let record = FunctionRecord {
            name: name.into(),
            config: Hash([0; 32]),
            modules: Box::default(),
            weights: Box::default(),
            inputs: Box::default(),
            outputs: Box::default(),
            input_types: Box::default(),
            state_bytes: 0,
            composition: (!composition.functions.is_empty()).then(|| Box::new(composition)),
            number: 1,
            largest: 0,
        };
        FunctionEntry::new(record.into(), 1)
    }

    #[test]
    fn users_come_behind_those_that_they_run() {
        let mut all = Snapshot::default();
        for (name, functions) in [
            ("f", &[][..]),
            ("g", &[]),
            ("b", &["f"]),
            ("a", &["b", "g"]),
            ("z", &["a", "f"]),
            ("other", &["g"]),
        ] {
            all.put_function(entry(name, functions));
        }
        let names = |function: &str| -> Vec<String> {
            users_of(&all, function).iter().map(|user| user.name.clone()).collect()
        };
        assert_eq!(names("f"), ["b", "a", "z"]);
        assert_eq!(names("g"), ["a", "other", "z"]);
        assert!(names("z").is_empty() && names("nothing").is_empty());
        assert!(runs_itself(&all, "z", "f") && runs_itself(&all, "z", "g") && !runs_itself(&all, "b", "g"));
    }
}
