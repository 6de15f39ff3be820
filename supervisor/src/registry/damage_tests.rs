//! A damaged state directory: every byte of every file changed, one at a time, and what does not belong there. The start goes
//! on, what is not damaged is all there, and nothing is deleted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pappus_blueprint::kernel_info::CodeInfo;

use super::tests::{account, add, open};
use super::*;
use crate::ids::TenantId;
use crate::store::records::{FunctionRecord, Hash, ModuleRecord, Variant};
use crate::store::{StateDir, StateError};
use crate::tenants::Tenants;

const OWNER: TenantId = TenantId::new(1);
const FOLDER: &str = "tenants/1";

/// A directory with two functions that share weights, one of them granted, a declined owner, a module with machine code, and their hashes.
fn directory(root: &Path) -> Hash {
    let registry = open(root);
    let owner = account(&registry, 1);
    add(&registry, &owner, "f", &[b"shared", b"of f"]).unwrap();
    add(&registry, &owner, "g", &[b"shared", b"of g"]).unwrap();
    for caller in ["7", "acme"] {
        registry.grant(&owner, "f", caller).unwrap();
    }
    registry.decline(&owner, "x").unwrap();
    let state = &registry.state;
    let (module, staged) = state.stage_blob(OWNER, &b"wasm"[..]).unwrap();
    state.publish_blob(OWNER, module, staged).unwrap();
    let variant = Variant { format: "wasm".into(), arch: "".into(), sha256: module, bytes: 4 };
    state.put(OWNER, &ModuleRecord { name: "m".into(), variants: vec![variant] }).unwrap();
    let info = CodeInfo::default();
    let code = state.stage_code(OWNER, module, "print", &b"machine code"[..], &info).unwrap();
    state.publish_code(OWNER, module, "print", code).unwrap();
    module
}

/// As a start does, without a device. The directory is free, but for a moment what other cases start, threads with a table of
/// descriptors of their own and processes, has a copy of its lock's descriptor.
fn start(root: &Path) -> Result<Registry, StateError> {
    let mut looks = 0..60_000;
    let opened = loop {
        match StateDir::open(root) {
            Err(StateError::Locked(_)) if looks.next().is_some() => {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
            opened => break opened,
        }
    };
    let state = std::sync::Arc::new(opened?);
    let machine = crate::tenants::Machine::here(0);
    let tenants = Tenants::new(Default::default(), state.names().clone(), machine).into();
    Registry::open(state, tenants, Vec::new(), tokio::sync::watch::channel(vec![]).1)
}

/// Functions with their callers, modules, and declined owners.
type Registered = (BTreeMap<String, (FunctionRecord, Vec<String>)>, Vec<String>, Vec<String>);

fn registered(registry: &Registry) -> Registered {
    let all = registry.snapshot(OWNER);
    let functions = all.functions.iter().map(|(name, entry)| {
        let callers = entry.callers.iter().map(|caller| caller.to_string()).collect();
        (name.clone(), ((*entry.record).clone(), callers))
    });
    let names = |of: Vec<&String>| of.into_iter().cloned().collect();
    (functions.collect(), names(all.modules.keys().collect()), names(all.declined.keys().collect()))
}

fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

/// The directory becomes what it was.
fn restore(root: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) {
    let now = files(root);
    now.keys().filter(|path| !before.contains_key(*path)).for_each(|path| fs::remove_file(path).unwrap());
    for (path, content) in before.iter().filter(|(path, content)| now.get(*path) != Some(content)) {
        fs::write(path, content).unwrap();
    }
}

fn aside(path: &Path) -> PathBuf {
    format!("{}.corrupt", path.display()).into()
}

/// The function or module whose record in this folder a path is.
fn record(path: &Path, folder: &str) -> Option<String> {
    let is_in = path.parent().is_some_and(|parent| parent.ends_with(folder));
    is_in.then(|| path.file_stem().unwrap().to_str().unwrap().to_owned())
}

/// Flips a bit of each byte of each file, one at a time; how often nothing was said about it.
fn flip_all(root: &Path, module: Hash, has_digests: bool) -> usize {
    let all = registered(&start(root).unwrap());
    let before = files(root);
    let mut unnoticed = 0;
    for (path, content) in &before {
        for at in 0..content.len() {
            let mut flipped = content.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(path, &flipped).unwrap();
            let place = || format!("byte {at} of {}: {}", path.display(), String::from_utf8_lossy(&flipped));
            match start(root) {
                Err(why) => {
                    assert!(
                        path.ends_with("VERSION") && why.to_string().contains("printf"),
                        "{why}, {}",
                        place()
                    );
                }
                Ok(registry) => {
                    let mut expected = all.clone();
                    if let Some(name) = record(path, "functions") {
                        expected.0.remove(&name);
                    }
                    if let Some(name) = record(path, "grants") {
                        expected.0.get_mut(&name).unwrap().1.clear();
                    }
                    if let Some(name) = record(path, "modules") {
                        expected.1.retain(|other| *other != name);
                    }
                    if record(path, "declined").is_some() {
                        expected.2.clear();
                    }
                    match has_digests {
                        true => assert_eq!(registered(&registry), expected, "{}", place()),
                        false => unnoticed += usize::from(registered(&registry) != expected),
                    }
                    let known = registry.state.code_info(OWNER, module, "print").unwrap();
                    assert!(known.is_none_or(|info| info.kernels.is_empty()), "{}", place());
                }
            }
            // Not a byte is lost, neither of what was damaged nor of anything else. Machine code can be made again.
            let now = files(root);
            let is_code = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with("code"));
            for (other, content) in before.iter().filter(|(other, _)| !(is_code(path) && is_code(other))) {
                let content = if other == path { &flipped } else { content };
                let found = now.get(other).or_else(|| now.get(&aside(other)));
                assert_eq!(found, Some(content), "{}, after {}", other.display(), place());
            }
            restore(root, &before);
        }
    }
    assert_eq!(registered(&start(root).unwrap()), all);
    unnoticed
}

#[test]
fn no_changed_byte_stops_the_start_loses_a_byte_or_touches_what_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let module = directory(dir.path());
    flip_all(dir.path(), module, true);
}

/// What builds before this one wrote: a changed byte may go unnoticed there, and loses nothing either.
#[test]
fn no_changed_byte_of_a_record_without_a_digest_loses_a_byte() {
    let dir = tempfile::tempdir().unwrap();
    let module = directory(dir.path());
    for (path, content) in files(dir.path()) {
        let text = String::from_utf8_lossy(&content);
        if let Some((record, _)) = text.rsplit_once(r#","sha256":""#).filter(|_| text.ends_with(r#""}"#)) {
            fs::write(path, format!("{record}}}")).unwrap();
        }
    }
    assert!(flip_all(dir.path(), module, false) > 0, "the control: some make another record");
}

#[test]
fn what_does_not_belong_among_records_is_set_aside_and_nothing_is_deleted_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let all = registered(&start(dir.path()).unwrap());
    let tenant = dir.path().join(FOLDER);
    let unneeded = tenant.join("blobs").join("0".repeat(64));
    fs::write(&unneeded, "needed by nothing").unwrap();
    let strays = ["functions/folder.json", "functions/notes.txt", "grants/link.json", "modules/pipe.json"];
    let [folder, notes, link, pipe] = strays.map(|name| tenant.join(name));
    fs::create_dir(&folder).unwrap();
    fs::write(&notes, "notes").unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // In the place of folders.
    fs::write(dir.path().join("tenants/9"), "no tenant").unwrap();
    fs::create_dir_all(dir.path().join("tenants/10")).unwrap();
    fs::write(dir.path().join("tenants/10/functions"), "no folder").unwrap();
    for _ in 0..2 {
        assert_eq!(registered(&start(dir.path()).unwrap()), all);
        for stray in strays {
            assert!(fs::symlink_metadata(aside(&tenant.join(stray))).is_ok(), "{stray}");
        }
        assert!(unneeded.exists(), "what was set aside may need it");
    }
    assert_eq!(fs::read(dir.path().join("tenants/9.corrupt")).unwrap(), b"no tenant");
    assert_eq!(fs::read(dir.path().join("tenants/10/functions.corrupt")).unwrap(), b"no folder");
    // The control: once nothing is set aside, it goes.
    fs::remove_dir(aside(&folder)).unwrap();
    [notes, link, pipe].iter().for_each(|stray| fs::remove_file(aside(stray)).unwrap());
    start(dir.path()).unwrap();
    assert!(!unneeded.exists());
}

#[test]
fn what_a_damaged_function_may_need_outlives_other_functions_and_is_granted_to_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let path = dir.path().join(FOLDER).join("functions/f.json");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, "{").unwrap();
    let blobs = || fs::read_dir(dir.path().join(FOLDER).join("blobs")).unwrap().count();
    let there = blobs();
    {
        let registry = open(dir.path());
        let owner = account(&registry, 1);
        registry.remove_function(&owner, "g").unwrap();
        assert_eq!(blobs(), there, "both needed some of them");
    }
    // The file comes back, and the function with its callers.
    fs::write(&path, &whole).unwrap();
    let callers = |registry: &Registry| registered(registry).0["f"].1.join(" ");
    assert_eq!(callers(&start(dir.path()).unwrap()), "7 acme");
    // Another function takes the name: nobody was granted that.
    fs::write(&path, "{").unwrap();
    let registry = open(dir.path());
    add(&registry, &account(&registry, 1), "f", &[]).unwrap();
    assert_eq!(callers(&registry), "");
    drop(registry);
    assert_eq!(callers(&start(dir.path()).unwrap()), "");
}
