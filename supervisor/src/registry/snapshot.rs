//! What one tenant registered, as others see it: immutable, copied in constant time, and changed by making the next one,
//! which shares all but a path of it. Beside it: grants, found by the tenant that has them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

use super::version_names::{Which, base, is_marked, kept_name, split};
use super::views::{ListedFunction, Page, VersionList};
use crate::function::loaded::Callers;
use crate::limits::LIST_PAGE;
use crate::store::records::{Aliases, FunctionRecord, ModuleRecord};

/// Bytes of an entry and of its place in the tree, besides its record.
const PLACE_BYTES: usize = 256;
/// Bytes of one caller, twice in memory: with the function, and where callers look for what they were granted.
const CALLER_BYTES: usize = 256;
/// Bytes of one alias.
const ALIAS_BYTES: usize = 64;

/// By name.
pub(super) type ByName<T> = RedBlackTreeMapSync<String, Arc<T>>;

/// A registered function: its current version, or a kept one.
#[derive(Debug, Clone)]
pub(super) struct FunctionEntry {
    pub(super) record: Arc<FunctionRecord>,
    /// Who may call it besides its owner; of a kept version, none: the current one's may.
    pub(super) callers: Callers,
    /// Names of its versions; of a kept version, none.
    pub(super) aliases: Arc<Aliases>,
    /// What its record takes on disk.
    pub(super) disk_bytes: u64,
    /// Room on disk of the record of callers; 0 if there is no record.
    pub(super) grant_disk_bytes: u64,
    /// Likewise of the record of aliases.
    pub(super) alias_disk_bytes: u64,
}

impl FunctionEntry {
    /// Of a function that nobody else may call, without aliases.
    pub(super) fn new(record: Arc<FunctionRecord>, disk_bytes: u64) -> Self {
        let (callers, aliases) = (Callers::default(), Arc::default());
        Self { record, callers, aliases, disk_bytes, grant_disk_bytes: 0, alias_disk_bytes: 0 }
    }

    /// Roughly what such an entry occupies in memory, found by its owner and by its callers.
    pub(super) fn memory_bytes(record: &FunctionRecord, callers: &[Box<str>], aliases: &Aliases) -> u64 {
        let callers = callers.iter().map(|caller| caller.len() + record.name.len() + CALLER_BYTES);
        let aliases = aliases.keys().map(|alias| alias.len() + ALIAS_BYTES);
        let names = callers.sum::<usize>() + aliases.sum::<usize>();
        (PLACE_BYTES + record.name.len() + record.approx_bytes() + names) as u64
    }
}

impl ModuleEntry {
    /// Roughly what such an entry occupies in memory.
    pub(super) fn memory_bytes(record: &ModuleRecord) -> u64 {
        (PLACE_BYTES + record.name.len() + record.approx_bytes()) as u64
    }
}

/// A registered module.
#[derive(Debug)]
pub(super) struct ModuleEntry {
    pub(super) record: Arc<ModuleRecord>,
    /// What its record takes on disk.
    pub(super) disk_bytes: u64,
}

/// All functions and modules of a tenant.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) functions: ByName<FunctionEntry>,
    pub(super) modules: ByName<ModuleEntry>,
    /// Owners whose functions are not listed for the tenant, and what the record of each takes on disk.
    pub(super) declined: RedBlackTreeMapSync<String, u64>,
}

impl Snapshot {
    /// Adds a function, or puts it in the place of the one of that name.
    pub(super) fn put_function(&mut self, entry: FunctionEntry) {
        self.functions.insert_mut(entry.record.name.clone(), Arc::new(entry));
    }

    /// Adds a module.
    pub(super) fn put_module(&mut self, entry: ModuleEntry) {
        self.modules.insert_mut(entry.record.name.clone(), Arc::new(entry));
    }

    /// Roughly what a declined owner occupies in memory.
    pub(super) fn declined_bytes(owner: &str) -> u64 {
        (PLACE_BYTES + owner.len()) as u64
    }

    /// Takes a function out, if it is there.
    pub(super) fn remove_function(&mut self, name: &str) {
        self.functions.remove_mut(name);
    }

    /// Takes a module out, if it is there.
    pub(super) fn remove_module(&mut self, name: &str) {
        self.modules.remove_mut(name);
    }

    /// The version that a reference means: NAME, NAME@NUMBER or NAME:ALIAS.
    pub(super) fn find(&self, reference: &str) -> Option<&Arc<FunctionEntry>> {
        if !is_marked(reference) {
            return self.functions.get(reference);
        }
        let (name, which) = split(reference)?;
        let current = self.functions.get(name);
        let number = match which {
            Which::Current => return current,
            Which::Number(number) => number,
            Which::Alias(alias) => *current?.aliases.get(alias)?,
        };
        match current {
            Some(current) if current.record.number == number => Some(current),
            _ => self.functions.get(&kept_name(name, number)),
        }
    }

    /// What is kept of a function beside its current version, and the names of its versions.
    pub(super) fn version_list(&self, name: &str) -> VersionList {
        let entry = self.functions.get(name);
        let aliases = entry.map(|entry| entry.aliases.clone()).unwrap_or_default();
        let (current, largest) = entry.map_or((0, 0), |entry| (entry.record.number, entry.record.largest));
        // A function that was never replaced has no others.
        if (current, largest) == (1, 0) {
            return VersionList { current, kept: Vec::new(), aliases };
        }
        let start = format!("{name}@");
        let behind = self.functions.range::<str, _>((Bound::Included(&*start), Bound::Unbounded));
        let versions = behind.take_while(|(version, _)| version.starts_with(&start));
        let numbers = versions.map(|(_, entry)| entry.record.number);
        let mut kept: Vec<u32> = numbers.filter(|number| *number != current).collect();
        kept.sort_unstable();
        VersionList { current, kept, aliases }
    }

    /// True if an alias or a step of a composition names this version by its number.
    pub(super) fn is_named(&self, function: &FunctionEntry, number: u32) -> bool {
        let is_aliased = function.aliases.values().any(|aliased| *aliased == number);
        is_aliased || !self.steps_by_number(base(&function.record.name), number).is_empty()
    }

    /// Names of compositions with a step that names this version by its number.
    pub(super) fn steps_by_number(&self, name: &str, number: u32) -> Vec<String> {
        let version = kept_name(name, number);
        let is_user =
            |(user, entry): &(&String, &Arc<FunctionEntry>)| !is_marked(user) && entry.record.runs(&version);
        self.functions.iter().filter(is_user).map(|(user, _)| user.clone()).collect()
    }

    /// Who may call a function besides its owner; none if its record is not listed any more.
    pub(super) fn callers_of(&self, record: &Arc<FunctionRecord>) -> Option<Callers> {
        let entry = self.functions.get(&record.name)?;
        let callers = |entry: &Arc<FunctionEntry>| entry.callers.clone();
        let of_function = self.functions.get(base(&record.name));
        Arc::ptr_eq(&entry.record, record).then(|| of_function.map(callers).unwrap_or_default())
    }

    /// True if a tenant of this name may call a function, and its versions, besides its owner.
    pub(super) fn is_granted(&self, function: &str, caller: &str) -> bool {
        self.functions
            .get(base(function))
            .is_some_and(|entry| entry.callers.binary_search_by(|name| (**name).cmp(caller)).is_ok())
    }
}

/// One page of a list by name, with names after `after`.
pub(super) fn page<T, V>(all: &ByName<T>, after: &str, view: impl Fn(&T) -> V) -> Page<V> {
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let mut rest = all.range::<str, _>(behind).map(|(_, one)| view(one));
    let items = rest.by_ref().take(LIST_PAGE).collect();
    Page { items, more: rest.next().is_some() }
}

/// One page of a tenant's functions with names after `after`. A kept version is listed with its function; by itself only where that
/// is not there, since its record is damaged.
pub(super) fn page_of_functions(now: &Snapshot, after: &str) -> Page<ListedFunction> {
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let all = now.functions.range::<str, _>(behind);
    let mut rest = all.filter(|(name, _)| !is_marked(name) || now.functions.get(base(name)).is_none());
    let items = rest.by_ref().take(LIST_PAGE).map(|(name, entry)| ListedFunction::Own {
        record: entry.record.clone(),
        versions: now.version_list(name),
    });
    Page { items: items.collect(), more: rest.next().is_some() }
}

/// By a caller's name, what others granted to it: OWNER/NAME. Pure bookkeeping: its lock is held for one change or one page.
#[derive(Debug, Default)]
pub(super) struct Granted(HashMap<Box<str>, BTreeSet<Box<str>>>);

impl Granted {
    /// From now on `after` may call a function besides its owner, and no more `before`. Both are sorted.
    pub(super) fn change(&mut self, owner: &str, function: &str, before: &Callers, after: &Callers) {
        let reference = format!("{owner}/{function}");
        for caller in before.iter().filter(|caller| after.binary_search(caller).is_err()) {
            if let Some(granted) = self.0.get_mut(caller) {
                granted.remove(&*reference);
                if granted.is_empty() {
                    self.0.remove(caller);
                }
            }
        }
        for caller in after.iter().filter(|caller| before.binary_search(caller).is_err()) {
            self.0.entry(caller.clone()).or_default().insert(reference.as_str().into());
        }
    }

    /// How many functions an owner granted to a tenant.
    pub(super) fn count(&self, caller: &str, owner: &str) -> usize {
        // No name has a slash, behind which this one's functions are.
        let first = format!("{owner}/");
        let all = self
            .0
            .get(caller)
            .into_iter()
            .flat_map(|all| all.range::<str, _>((Bound::Included(&*first), Bound::Unbounded)));
        all.take_while(|reference| reference.starts_with(&first)).count()
    }

    /// At most so many of what was granted to a tenant, sorted, after `after`, without what declined owners granted.
    pub(super) fn page(
        &self,
        caller: &str,
        after: &str,
        most: usize,
        is_declined: impl Fn(&str) -> bool,
    ) -> Page<Box<str>> {
        let mut page = Page { items: Vec::new(), more: false };
        let Some(all) = self.0.get(caller) else { return page };
        let mut rest = all.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        while let Some(reference) = rest.next() {
            match reference.split_once('/') {
                Some((owner, _)) if is_declined(owner) => {
                    // All of this owner's lie before the character behind the slash.
                    let next = format!("{owner}0");
                    rest = all.range::<str, _>((Bound::Included(&*next), Bound::Unbounded));
                }
                _ if page.items.len() == most => {
                    page.more = true;
                    break;
                }
                _ => page.items.push(reference.clone()),
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::store::records::Hash;

    fn entry(name: String) -> FunctionEntry {
        let record = FunctionRecord {
            name,
            config: Hash([0; 32]),
            modules: Box::default(),
            weights: Box::default(),
            inputs: Box::default(),
            outputs: Box::default(),
            input_types: Box::default(),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        };
        FunctionEntry::new(record.into(), 1)
    }

    #[test]
    fn a_change_among_fifty_thousand_leaves_what_others_hold_and_shares_it() {
        let mut now = Snapshot::default();
        (0..50_000).for_each(|n| now.put_function(entry(format!("f{n:05}"))));
        let start = Instant::now();
        let mut held = Vec::new();
        for n in 0..1000 {
            held.push(now.clone());
            now.put_function(entry(format!("f{:05}", n * 37)));
        }
        println!("a snapshot and a change among 50 000 functions: {:?}", start.elapsed() / 1000);
        // Every one that is held is as it was: only what came later differs, and all else is the same in memory.
        let first = &held[0];
        let same = |name: &str| {
            Arc::ptr_eq(&first.functions.get(name).unwrap().record, &now.functions.get(name).unwrap().record)
        };
        assert!(same("f00001") && !same("f00037"));
        assert_eq!((first.functions.size(), now.functions.size()), (50_000, 50_000));
    }

    #[test]
    fn a_page_begins_behind_a_name() {
        let mut all = Snapshot::default();
        (0..LIST_PAGE + 2).for_each(|n| all.put_function(entry(format!("f{n:05}"))));
        let names = |after: &str| page(&all.functions, after, |entry| entry.record.name.clone());
        let first = names("");
        assert_eq!((first.items.len(), first.more, &*first.items[0]), (LIST_PAGE, true, "f00000"));
        let rest = names(&first.items[LIST_PAGE - 1]);
        assert_eq!((rest.items, rest.more), (vec!["f01000".to_owned(), "f01001".to_owned()], false));
    }

    #[test]
    fn grants_are_found_from_the_callers_side() {
        let mut granted = Granted::default();
        let callers = |names: &[&str]| -> Callers { names.iter().map(|name| Box::from(*name)).collect() };
        let none = Callers::default();
        granted.change("acme", "f", &none, &callers(&["7", "b"]));
        granted.change("acme", "g", &none, &callers(&["b"]));
        let none_declined = |_: &str| false;
        let to =
            |granted: &Granted, caller: &str| granted.page(caller, "", 10, none_declined).items.join(" ");
        assert_eq!(to(&granted, "b"), "acme/f acme/g");
        let one = granted.page("b", "", 1, none_declined);
        assert_eq!((&*one.items[0], one.more), ("acme/f", true));
        granted.change("acm", "f", &none, &callers(&["b"]));
        assert_eq!(["acm", "acme", "acmex", "7"].map(|owner| granted.count("b", owner)), [1, 2, 0, 0]);
        let but = |name: &'static str| move |owner: &str| owner == name;
        let b = |after, most, declined| granted.page("b", after, most, but(declined));
        assert_eq!(b("", 10, "acme").items.join(" "), "acm/f");
        assert_eq!(b("", 10, "acm").items.join(" "), "acme/f acme/g");
        assert_eq!([b("", 1, "acme").more, b("", 1, "acm").more], [false, true]);
        assert!(b("acme/f", 10, "acme").items.is_empty());
        granted.change("acm", "f", &callers(&["b"]), &none);
        assert_eq!(granted.page("b", "acme/f", 1, none_declined).items.join(" "), "acme/g");
        granted.change("acme", "f", &callers(&["7", "b"]), &callers(&["7"]));
        assert_eq!((to(&granted, "b"), to(&granted, "7")), ("acme/g".into(), "acme/f".into()));
        granted.change("acme", "f", &callers(&["7"]), &none);
        granted.change("acme", "g", &callers(&["b"]), &none);
        assert!(granted.0.is_empty());
    }
}
