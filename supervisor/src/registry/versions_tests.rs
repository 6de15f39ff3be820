//! Versions of functions: which are kept, what names them, and what is left after a crash. A version is told by its one weight.

use std::path::Path;
use std::sync::Arc;

use super::codes::{Codes, Wish};
use super::tests::{account, add, load, open, try_add};
use super::views::{Registered, Registration};
use super::*;
use crate::quota::Quota;
use crate::refusal::{Reason, Refusable};
use crate::store::records::Aliases;
use crate::tenants::{Account, Limit};

struct Fixture {
    registry: Arc<Registry>,
    account: Arc<Account>,
    dir: tempfile::TempDir,
}

impl Fixture {
    /// With a function `f` of so many versions, of which 2 older ones are kept.
    fn new(versions: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = open(dir.path());
        let this = Self { account: account(&registry, 1), registry, dir };
        (1..=versions).for_each(|n| this.replace(&n.to_string(), 2).map(drop).unwrap());
        this
    }

    /// After another start.
    fn again(self) -> Self {
        let Self { registry, account: old, dir } = self;
        drop((registry, old));
        let registry = open(dir.path());
        Self { account: account(&registry, 1), registry, dir }
    }

    fn replace(&self, content: &str, keep: usize) -> Result<Registered, RegistryError> {
        try_add(&self.registry, &self.account, "f", &[content.as_bytes()], Some(keep))
    }

    fn take_back(&self, reference: &str) -> Result<Registered, RegistryError> {
        self.registry.try_use_version(&self.account, reference, &mut Codes::new(Wish::Afresh))
    }

    /// The content of the version that a call by this reference runs.
    fn says(&self, reference: &str) -> Option<String> {
        let loaded = load(&self.registry, &self.account, reference).ok()?;
        let weight = &loaded.record.weights[0];
        let mut bytes = self.registry.state.read_blob(self.account.tenant, weight.sha256, 99).unwrap();
        bytes.truncate(weight.bytes as usize);
        // What was loaded is found at once from then on.
        assert!(Arc::ptr_eq(&loaded, &self.registry.find(&self.account, reference).unwrap()));
        Some(String::from_utf8(bytes).unwrap())
    }

    /// The current number, and the kept ones.
    fn numbers(&self) -> (u32, Vec<u32>) {
        let current = self.registry.function(self.account.tenant, "f").unwrap();
        (current.number, self.registry.version_list(self.account.tenant, "f").kept)
    }

    fn alias(&self, alias: &str, number: u32) -> Result<(), RegistryError> {
        self.registry.set_alias(&self.account, "f", alias, number)
    }

    fn files(&self) -> Vec<String> {
        files(&self.dir.path().join("tenants/1/functions"))
    }
}

fn files(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

fn says<const N: usize>(here: &Fixture, references: [&str; N]) -> [Option<String>; N] {
    references.map(|reference| here.says(reference))
}

fn said<const N: usize>(content: [Option<&str>; N]) -> [Option<String>; N] {
    content.map(|content| content.map(str::to_owned))
}

#[test]
fn a_replaced_version_stays_and_the_oldest_goes_first() {
    let here = Fixture::new(2);
    assert_eq!((here.numbers(), here.files()), ((2, vec![1]), vec!["f.json".into(), "f@1.json".into()]));
    assert_eq!(here.replace("2", 2).unwrap().registration, Registration::Unchanged);
    for content in ["3", "4"] {
        assert_eq!(here.replace(content, 2).unwrap().registration, Registration::Replaced);
    }
    let expected = said([Some("4"), None, Some("2"), Some("3"), Some("4"), None]);
    let references = ["f", "f@1", "f@2", "f@3", "f@4", "f@5"];
    assert_eq!((here.numbers(), says(&here, references)), ((4, vec![2, 3]), expected.clone()));
    // A list has the function once, and counts have all that is there.
    assert_eq!(here.registry.list_functions(&here.account, "").items.len(), 1);
    assert_eq!((here.registry.counts(), here.account.used(Limit::Functions)), ((3, 0), 3));
    let before = [Limit::BlobBytes, Limit::BlobFiles, Limit::PlanBytes].map(|limit| here.account.used(limit));
    let loaded = here.registry.loaded.all(None);
    loaded.iter().for_each(|function| here.registry.loaded.evict(function));
    drop(loaded);
    let memory = here.account.used(Limit::PlanBytes);
    let here = here.again();
    let after = [Limit::BlobBytes, Limit::BlobFiles].map(|limit| here.account.used(limit));
    assert_eq!((after, here.account.used(Limit::PlanBytes)), ([before[0], before[1]], memory));
    assert_eq!((here.numbers(), says(&here, references)), ((4, vec![2, 3]), expected));
    // A smaller setting counts from the next replacement on, and none is no version at all.
    here.replace("5", 1).unwrap();
    assert_eq!(here.numbers(), (5, vec![4]));
    here.replace("6", 0).unwrap();
    assert_eq!((here.numbers(), here.files()), ((6, vec![]), vec!["f.json".into()]));
    here.registry.remove_function(&here.account, "f").unwrap();
    assert_eq!(here.account.used(Limit::BlobFiles), 0);
}

#[test]
fn a_replacement_is_taken_back_and_its_number_is_not_given_again() {
    let here = Fixture::new(3);
    here.says("f").unwrap();
    let in_flight = load(&here.registry, &here.account, "f").unwrap();
    let used = here.take_back("f@1").unwrap();
    assert_eq!((used.registration, used.replaced.first()), (Registration::Replaced, Some(&in_flight.id)));
    assert_eq!((here.numbers(), in_flight.record.number), ((1, vec![2, 3]), 3));
    assert_eq!(says(&here, ["f", "f@1", "f@3"]), said([Some("1"), Some("1"), Some("3")]));
    assert_eq!(here.files(), ["f.json", "f@2.json", "f@3.json"]);
    assert_eq!(here.take_back("f@1").unwrap().registration, Registration::Unchanged);
    drop(in_flight);
    let here = here.again();
    assert_eq!((here.numbers(), here.says("f")), ((1, vec![2, 3]), Some("1".into())));
    here.replace("4", 2).unwrap();
    assert_eq!((here.numbers(), here.says("f@1")), ((4, vec![1, 3]), Some("1".into())));
    // By an alias, and to one with the same content under another number.
    here.replace("1", 2).unwrap();
    here.alias("good", 1).unwrap_err();
    here.alias("good", 4).unwrap();
    here.take_back("f:good").unwrap();
    assert_eq!((here.numbers(), here.says("f")), ((4, vec![3, 5]), Some("4".into())));
    here.take_back("f@5").unwrap();
    here.take_back("f@3").unwrap();
    assert_eq!((here.numbers(), here.says("f@5")), ((3, vec![4, 5]), Some("1".into())));
    for (reference, reason) in [
        ("f", Reason::InvalidArgument),
        ("f@9", Reason::NotFound),
        ("f:none", Reason::NotFound),
        ("g@1", Reason::NotFound),
    ] {
        assert_eq!(here.take_back(reference).unwrap_err().reason(), reason, "{reference}");
    }
}

#[test]
fn an_alias_names_a_version_and_keeps_it() {
    let here = Fixture::new(2);
    here.alias("live", 1).unwrap();
    assert_eq!(here.says("f:live"), Some("1".into()));
    here.replace("3", 2).unwrap();
    here.replace("4", 2).unwrap();
    assert_eq!(here.numbers(), (4, vec![1, 3]));
    here.alias("next", 3).unwrap();
    here.alias("now", 4).unwrap();
    let why = here.replace("5", 2).unwrap_err();
    assert_eq!(why.reason(), Reason::ResourceExhausted);
    assert!(why.to_string().contains("remove an alias"), "{why}");
    assert_eq!((here.numbers(), here.says("f")), ((4, vec![1, 3]), Some("4".into())));
    let here = here.again();
    assert_eq!(says(&here, ["f:live", "f:next", "f:now"]), said([Some("1"), Some("3"), Some("4")]));
    // It moves at once, to the current version as well.
    here.alias("live", 4).unwrap();
    assert_eq!(here.says("f:live"), Some("4".into()));
    here.replace("5", 2).unwrap();
    assert_eq!((here.numbers(), here.says("f:live")), ((5, vec![3, 4]), Some("4".into())));
    here.registry.remove_alias(&here.account, "f", "live").unwrap();
    assert_eq!(here.says("f:live"), None);
    assert_eq!(
        here.registry.remove_alias(&here.account, "f", "live").unwrap_err().reason(),
        Reason::NotFound
    );
    assert_eq!(here.alias("more", 9).unwrap_err().reason(), Reason::NotFound);
    for bad in ["", "a/b", "a:b", "a@1", ".a"] {
        assert_eq!(here.alias(bad, 5).unwrap_err().reason(), Reason::InvalidArgument, "{bad}");
    }
    let most = crate::limits::MAX_ALIASES;
    (2..most).for_each(|n| here.alias(&format!("a{n}"), 5).unwrap());
    assert_eq!(here.alias("more", 5).unwrap_err().reason(), Reason::ResourceExhausted);
    here.registry.remove_function(&here.account, "f").unwrap();
    assert_eq!(here.account.used(Limit::BlobFiles), 0);
    add(&here.registry, &here.account, "f", &[b"new"]).unwrap();
    assert_eq!(here.registry.version_list(here.account.tenant, "f").aliases, Arc::new(Aliases::new()));
    assert_eq!(here.numbers(), (1, vec![]));
}

#[test]
fn one_version_is_removed_unless_something_names_it() {
    let here = Fixture::new(3);
    here.alias("old", 1).unwrap();
    let remove = |reference| here.registry.remove_function(&here.account, reference);
    let why = |reference| remove(reference).unwrap_err().to_string();
    assert!(why("f@1").contains("has the alias old"));
    assert!(why("f@3").contains("is the current version"));
    assert!(why("f:old").contains("no function `f:old`"));
    here.says("f@2").unwrap();
    assert_eq!(remove("f@2").unwrap().len(), 1);
    assert_eq!((here.numbers(), here.says("f@2")), ((3, vec![1]), None));
    assert!(why("f@2").contains("no function `f@2`"));
}

#[test]
fn a_quota_without_room_keeps_fewer_versions() {
    let here = Fixture::new(1);
    let allow = |limit, most| {
        let mut quota = Quota::default();
        quota.set(limit, most);
        here.account.allow(quota);
    };
    allow(Limit::Functions, 1);
    here.replace("2", 2).unwrap();
    assert_eq!(here.numbers(), (2, vec![]));
    allow(Limit::Functions, 2);
    here.replace("3", 2).unwrap();
    here.replace("4", 2).unwrap();
    assert_eq!((here.numbers(), here.account.used(Limit::Functions)), ((4, vec![3]), 2));
    // What has an alias does not make way.
    here.alias("live", 3).unwrap();
    here.replace("5", 2).unwrap();
    assert_eq!(here.numbers(), (5, vec![3]));
    // The function that is there, and its alias: two records of versions, one of aliases, configuration and two weights.
    allow(Limit::BlobFiles, here.account.used(Limit::BlobFiles) + 1);
    here.replace("6", 2).unwrap();
    assert_eq!(here.numbers(), (6, vec![3]));
    allow(Limit::PlanBytes, here.account.used(Limit::PlanBytes) + 10_000);
    here.replace("7", 2).unwrap();
    assert!(here.numbers().1.contains(&3));
}

#[test]
fn a_replacement_that_broke_off_is_finished_by_the_next_start() {
    let here = Fixture::new(2);
    here.alias("live", 2).unwrap();
    // The place of what is to be kept takes no rename, as if the disk failed.
    let place = here.dir.path().join("tenants/1/functions/f@2.json");
    std::fs::create_dir(&place).unwrap();
    assert_eq!(here.replace("3", 2).unwrap().registration, Registration::Replaced);
    let names = ["f", "f@1", "f@2", "f:live"];
    let expected = said([Some("3"), Some("1"), Some("2"), Some("2")]);
    assert_eq!(says(&here, names), expected);
    assert!(here.replace("4", 2).is_err(), "before that, nothing else changes");
    std::fs::remove_dir(&place).unwrap();
    let here = here.again();
    assert_eq!((here.numbers(), says(&here, names)), ((3, vec![1, 2]), expected));
    // A function goes with its versions, and with what it was granted and called.
    here.registry.grant(&here.account, "f", "2").unwrap();
    let place = here.dir.path().join("tenants/1/functions/f@1.json");
    std::fs::rename(&place, here.dir.path().join("moved")).unwrap();
    std::fs::create_dir(&place).unwrap();
    here.registry.remove_function(&here.account, "f").unwrap();
    assert_eq!(says(&here, names), said([None; 4]));
    std::fs::remove_dir(&place).unwrap();
    std::fs::rename(here.dir.path().join("moved"), &place).unwrap();
    let here = here.again();
    assert_eq!((says(&here, names), here.files()), (said([None; 4]), vec![]));
    assert_eq!(here.account.used(Limit::BlobFiles), 0);
}

#[test]
fn a_copy_of_the_current_version_goes_and_a_version_can_take_the_place_of_a_damaged_one() {
    let here = Fixture::new(2);
    let folder = here.dir.path().join("tenants/1/functions");
    // As where a file was brought back.
    let copy = |from: &str, to: &str| {
        let record = crate::store::records::FunctionRecord {
            name: to.into(),
            ..(*here.registry.function(here.account.tenant, from).unwrap()).clone()
        };
        here.registry.state.put(here.account.tenant, &record).unwrap();
    };
    copy("f", "f@2");
    assert_eq!(files(&folder), ["f.json", "f@1.json", "f@2.json"]);
    let here = here.again();
    assert_eq!((here.numbers(), here.files()), ((2, vec![1]), vec!["f.json".into(), "f@1.json".into()]));
    assert_eq!(says(&here, ["f", "f@2", "f@1"]), said([Some("2"), Some("2"), Some("1")]));
    let kept = std::fs::read(folder.join("f@1.json")).unwrap();
    here.take_back("f@1").unwrap();
    std::fs::write(folder.join("f@1.json"), kept).unwrap();
    let here = here.again();
    assert_eq!((here.numbers(), here.files()), ((1, vec![2]), vec!["f.json".into(), "f@2.json".into()]));
    // Versions of a function whose own record is damaged are there, are listed, and one of them can take its place.
    std::fs::write(folder.join("f.json"), "{").unwrap();
    let here = here.again();
    assert_eq!(says(&here, ["f", "f@2"]), said([None, Some("2")]));
    let listed = here.registry.list_functions(&here.account, "").items;
    assert!(matches!(&listed[..], [views::ListedFunction::Own { record, .. }] if record.name == "f@2"));
    here.take_back("f@2").unwrap();
    assert_eq!((here.numbers(), here.says("f")), ((2, vec![]), Some("2".into())));
}

#[test]
fn a_grant_is_for_all_versions() {
    let here = Fixture::new(2);
    here.alias("live", 1).unwrap();
    let bob = account(&here.registry, 2);
    let calls = |reference: &str| load(&here.registry, &bob, reference).is_ok();
    let all = ["1/f", "1/f@1", "1/f@2", "1/f:live"];
    assert_eq!(all.map(calls), [false; 4]);
    assert_eq!(here.registry.grant(&here.account, "f@1", "2").unwrap_err().reason(), Reason::InvalidArgument);
    here.says("f@1").unwrap();
    here.registry.grant(&here.account, "f", "2").unwrap();
    assert_eq!((all.map(calls), calls("1/f@3"), calls("1/f:none")), ([true; 4], false, false));
    assert_eq!(here.registry.list_functions(&bob, "").items.len(), 1);
    for refused in [
        here.registry.remove_function(&bob, "1/f@1").map(drop),
        here.registry.set_alias(&bob, "1/f", "mine", 1),
        here.registry.try_use_version(&bob, "1/f@1", &mut Codes::new(Wish::Afresh)).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().reason(), Reason::PermissionDenied);
    }
    here.take_back("f@1").unwrap();
    assert_eq!(all.map(calls), [true; 4]);
    let revoked = here.registry.revoke(&here.account, "f", "2").unwrap();
    assert_eq!((revoked.functions.len(), all.map(calls)), (2, [false; 4]));
    assert!(all.iter().all(|reference| here.registry.find(&bob, reference).is_none()));
}

#[test]
fn hostile_names_name_nothing() {
    let here = Fixture::new(2);
    for name in [
        "f@",
        "f@0",
        "f@-1",
        "f@01",
        "f@99999999999999999999",
        "f:b:c",
        "f@1@1",
        "@1",
        ":a",
        "f@1:a",
        "@",
        ":",
    ] {
        let all = [
            load(&here.registry, &here.account, name).map(drop),
            here.take_back(name).map(drop),
            here.registry.remove_function(&here.account, name).map(drop),
            here.registry.set_alias(&here.account, name, "a", 1),
        ];
        for refused in all {
            assert_eq!(refused.unwrap_err().reason(), Reason::NotFound, "{name}");
        }
        assert!(here.registry.find(&here.account, name).is_none());
        let added = add(&here.registry, &here.account, name, &[]);
        assert_eq!(added.unwrap_err().reason(), Reason::InvalidArgument, "{name}");
    }
    for name in ["f@1", "f:live"] {
        assert_eq!(
            add(&here.registry, &here.account, name, &[]).unwrap_err().reason(),
            Reason::InvalidArgument
        );
    }
    assert_eq!(here.numbers(), (2, vec![1]));
}

#[test]
fn records_of_older_builds_are_first_versions() {
    let here = Fixture::new(1);
    let text = std::fs::read_to_string(here.dir.path().join("tenants/1/functions/f.json")).unwrap();
    assert!(!text.contains("number") && !text.contains("largest"), "as older builds wrote it: {text}");
    let here = here.again();
    assert_eq!(here.numbers(), (1, vec![]));
    here.replace("2", 2).unwrap();
    assert_eq!((here.numbers(), here.says("f@1")), ((2, vec![1]), Some("1".into())));
}
