//! Compositions: linked into one function when they are registered, and again when a function that they run is replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use pappus_blueprint::compose::{self, Consecutive, Linked, Part};
use pappus_blueprint::limits::PARSE_MEMORY;
use pappus_blueprint::{DType, Dimension as Known, Mistakes};

use super::blobs::Handed;
use super::codes::Codes;
use super::error::RegistryError;
use super::making::{Made, Parts};
use super::snapshot::Snapshot;
use super::state::Registry;
use super::version_names::{base, is_marked};
use crate::limits::MAX_LINKED_AGAIN;
use crate::store::records::{Composition, Dimension, FunctionModule, FunctionRecord, Hash, Weight};
use crate::tenants::{Account, Limit, QuotaError, Taken};

/// Finds functions of steps.
struct Functions<'a> {
    registry: &'a Registry,
    account: &'a Arc<Account>,
    /// The composition.
    name: &'a str,
    snapshot: Snapshot,
    made: &'a [Made<'a>],
    /// The owner's functions that were found.
    found: Vec<Arc<FunctionRecord>>,
    /// The memory of reading them.
    charged: Vec<Taken>,
    failed: Option<RegistryError>,
}

impl Functions<'_> {
    /// What is to be known of a function; none if there is no such function, or if looking for it failed.
    fn find(&mut self, function: &str) -> Option<Part> {
        if self.failed.is_some() {
            return None;
        }
        match self.try_find(function) {
            Ok(part) => part,
            Err(why) => {
                self.failed = Some(why);
                None
            }
        }
    }

    fn try_find(&mut self, function: &str) -> Result<Option<Part>, RegistryError> {
        if function.contains(':') {
            return Err(RegistryError::StepByAlias(function.to_owned()));
        }
        if function.contains('/') && self.registry.own(self.account, function).is_err() {
            return self.registry.granted_part(self.account, function);
        }
        let function = self.registry.own(self.account, function)?;
        if base(function) == self.name || runs_itself(&self.snapshot, function, self.name) {
            return Err(RegistryError::StepOfItself(function.to_owned()));
        }
        let (record, config) = match self.made.iter().find(|made| made.record.name == function) {
            Some(other) => (other.record.clone(), other.config.clone()),
            None => {
                let Some(entry) = self.snapshot.find(function) else { return Ok(None) };
                let config = self.registry.read_config(self.account.tenant, entry.record.config)?;
                (entry.record.clone(), config)
            }
        };
        if record.is_consecutive() {
            return Err(RegistryError::StepOfCalls(function.to_owned()));
        }
        self.charged.push(self.registry.charge_text(self.account, 2 * config.len())?);
        let part = part(&record, config);
        self.found.push(record);
        Ok(Some(part))
    }

    /// What came of checking the composition with these functions, and the records of those that are the owner's.
    fn outcome<T>(
        self,
        checked: Result<T, Mistakes>,
    ) -> Result<(T, Vec<Arc<FunctionRecord>>), RegistryError> {
        match self.failed {
            Some(why) => Err(why),
            None => Ok((checked?, self.found)),
        }
    }
}

impl Registry {
    /// The memory that reading JSON takes.
    fn charge_text(&self, account: &Arc<Account>, bytes: usize) -> Result<Taken, QuotaError> {
        self.loaded.make_room(account, Limit::PlanBytes, PARSE_MEMORY * bytes as u64)
    }

    /// Makes one function of a composition: its functions are those in `made`, or else those that are registered. What linking makes
    /// is handed over for the composition. Where a function is another owner's, or no device has code of all, the
    /// composition runs as consecutive calls.
    pub(super) fn link(
        &self,
        account: &Arc<Account>,
        handed: &Handed,
        name: &str,
        text: Hash,
        made: &[Made<'_>],
    ) -> Result<Parts, RegistryError> {
        let json = self.read_config(account.tenant, text)?;
        // Reading it takes as much again, and so does what is linked.
        let charged = self.charge_text(account, 2 * json.len())?;
        let snapshot = self.snapshot(account.tenant);
        let functions = || Functions {
            registry: self,
            account,
            name,
            snapshot: snapshot.clone(),
            made,
            found: Vec::new(),
            charged: Vec::new(),
            failed: None,
        };
        if !compose::names_others(&json) {
            let mut functions = functions();
            let linked = compose::link(&json, |function| functions.find(function));
            let (linked, found) = functions.outcome(linked)?;
            let parts = self.linked_parts(account, handed, name, text, linked, found)?;
            if self.runnable(&parts.modules).is_ok() {
                return Ok(parts);
            }
        }
        let mut functions = functions();
        let checked = compose::consecutive(&json, |function| functions.find(function));
        let (Consecutive { interface, functions }, linked_from) = functions.outcome(checked)?;
        drop(charged);
        let taken = self.charge_text(account, interface.len())?;
        let (config, _) = self.put_blob(account, handed, interface.len() as u64, &interface[..])?;
        // As those are called that are replaced.
        let plain = |name: &String| self.own(account, name).unwrap_or(name).into();
        let functions = functions.iter().map(plain).collect();
        Ok(Parts {
            name: name.to_owned(),
            modules: Box::default(),
            weights: Box::default(),
            blueprint: pappus_blueprint::parse(&interface)?,
            config: (config, interface),
            composition: Some(Box::new(Composition { text, functions, consecutive: true })),
            linked_from,
            taken: Some(taken),
        })
    }

    /// A function of what was linked.
    fn linked_parts(
        &self,
        account: &Arc<Account>,
        handed: &Handed,
        name: &str,
        text: Hash,
        linked: Linked,
        linked_from: Vec<Arc<FunctionRecord>>,
    ) -> Result<Parts, RegistryError> {
        let taken = self.charge_text(account, linked.config.len())?;
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
            composition: Some(Box::new(Composition { text, functions, consecutive: false })),
            linked_from,
            taken: Some(taken),
        })
    }

    /// What a step may know of another owner's function; none where that is not granted.
    fn granted_part(&self, account: &Account, function: &str) -> Result<Option<Part>, RegistryError> {
        let Some((owner, name)) = self.resolve(account, function) else { return Ok(None) };
        let Some(record) = self.function(owner, name).filter(|_| self.is_granted(account, owner, name))
        else {
            return Ok(None);
        };
        if record.is_consecutive() {
            return Err(RegistryError::StepOfCalls(function.to_owned()));
        }
        if record.state_bytes > 0 {
            return Err(RegistryError::StepWithState(function.to_owned()));
        }
        Ok(Some(granted(&record)))
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

/// What can be known of a granted function: its interface, as it is kept with its record.
fn granted(record: &FunctionRecord) -> Part {
    let declared = |dtype: &str, shape: &Option<Box<[Dimension]>>| {
        let dimension = |dim: &Dimension| match dim {
            Dimension::Fixed(value) => Known::Fixed(*value),
            Dimension::Free(_) => Known::Free(0),
            Dimension::Computed(_) => Known::Computed,
        };
        let shape = shape.as_ref().map(|dims| dims.iter().map(dimension).collect());
        Some(pappus_blueprint::Declared { dtype: DType::named(dtype)?, shape })
    };
    let inputs = record.inputs.iter().enumerate().map(|(at, name)| {
        let of = record.input_types.get(at).and_then(|of| declared(&of.dtype, &of.shape));
        (&**name, of)
    });
    let outputs = record.outputs.iter().map(|of| (&*of.name, declared(&of.dtype, &of.shape)));
    let config = compose::interface(&inputs.collect::<Vec<_>>(), &outputs.collect::<Vec<_>>());
    Part { config, ..Part::default() }
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
        let composition = Composition { text: Hash([1; 32]), functions, consecutive: false };
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
