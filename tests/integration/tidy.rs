//! Rules for the sources: which crate depends on which, where `unsafe` may be, how files begin and end.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use crate::programs::{self, files_below, workspace};

/// The crates, each with the crates that it may use outside its tests.
const DEPENDENCIES: [(&str, &[&str]); 16] = [
    ("version", &[]),
    ("shmem", &[]),
    ("blueprint", &[]),
    ("fence", &[]),
    ("kernels", &[]),
    ("proto", &[]),
    ("protocol", &["blueprint", "shmem"]),
    ("worker", &["blueprint", "fence", "protocol", "shmem", "version"]),
    ("supervisor", &["blueprint", "proto", "protocol", "shmem", "version"]),
    ("client", &["blueprint", "fence", "kernels", "proto", "shmem", "version"]),
    ("gateway", &["blueprint", "client", "version"]),
    // Reads what all of them read.
    (
        "fuzz",
        &["blueprint", "client", "fence", "gateway", "proto", "protocol", "shmem", "supervisor", "worker"],
    ),
    // Of its hostile programs.
    ("tests", &["client", "proto", "protocol", "shmem", "worker"]),
    // What looks like an AMD GPU to tests.
    ("tests/amd/isa", &[]),
    ("tests/amd/hip", &["gfx9"]),
    // Measures all of them.
    (
        "benches",
        &["blueprint", "client", "gateway", "kernels", "proto", "protocol", "shmem", "supervisor", "worker"],
    ),
];

/// What drives a GPU or runs kernels: none of it in the process that talks to clients.
const KERNEL_LIBRARIES: [&str; 8] = [
    "wasmtime",
    "cranelift-codegen",
    "wasmparser",
    "cudarc",
    "libloading",
    "cubecl-hip-sys",
    "opencl3",
    "ash",
];

/// Where `unsafe` may be.
const UNSAFE: [&str; 14] = [
    "shmem/src",
    "supervisor/src/server/async_fd.rs",
    "worker/src/launch.rs",
    "worker/src/sandbox/raw.rs",
    "worker/src/device/cpu",
    "worker/src/device/cuda",
    "worker/src/device/gpu",
    "worker/src/device/hip",
    // Nothing of these ships.
    "tests/amd/hip",
    "tests/hostile/holder.rs",
    "tests/hostile/prisoner",
    "worker/tests",
    "benches/src/kernels",
    "benches/src/bare",
];

/// Where the supervisor's locks are made of those of the standard library, and say what a poisoned one means.
const LOCKS: [&str; 2] = ["supervisor/src/sync.rs", "supervisor/src/concurrent/sync.rs"];

/// The longest file.
const MAX_LINES: usize = 600;

/// Files that may sleep between two attempts at something that offers no way to wait for it, within a given time.
const MAY_SLEEP: [&str; 5] = [
    "client/src/client/opening.rs",
    "client/src/command/own_supervisor.rs",
    "benches/src/harness/supervisor.rs",
    "worker/src/device/gpu/memory.rs",
    "shmem/src/last_close.rs",
];

/// Every Rust file of ours that people write, relative to the workspace.
pub(crate) fn sources() -> Vec<(String, String)> {
    // A crate inside the folder of another is found with that one.
    let inside = |name: &str| DEPENDENCIES.iter().any(|(other, _)| name.starts_with(&format!("{other}/")));
    let folders = DEPENDENCIES.iter().filter(|(name, _)| !inside(name)).flat_map(|(name, _)| {
        let folder = workspace().join(name);
        files_below(&folder)
    });
    let rust = folders.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(workspace()).unwrap();
        (name.to_str().unwrap().to_owned(), text)
    };
    let all: Vec<_> = rust.map(read).collect();
    assert!(all.len() > 100, "the sources are not where they were");
    all.into_iter().filter(|(name, _)| !name.ends_with("generated.rs")).collect()
}

/// No source may be wrong in this way.
fn no_source(what: &str, wrong: impl Fn(&str, &str) -> bool) {
    let names: Vec<_> =
        sources().into_iter().filter(|(name, text)| wrong(name, text)).map(|(name, _)| name).collect();
    assert!(names.is_empty(), "{what}: {names:?}");
}

/// The folders of the crates.
pub(crate) fn crates() -> impl Iterator<Item = &'static str> {
    DEPENDENCIES.iter().map(|(name, _)| *name)
}

/// A manifest, or the lock file, relative to the workspace.
pub(crate) fn toml(path: &str) -> toml::Table {
    let text = std::fs::read_to_string(workspace().join(path)).unwrap();
    text.parse().unwrap()
}

#[test]
fn crates_depend_in_one_direction() {
    for (name, allowed) in DEPENDENCIES {
        let manifest = toml(&format!("{name}/Cargo.toml"));
        let uses = manifest.get("dependencies").and_then(|table| table.as_table());
        let uses: BTreeSet<_> = uses
            .into_iter()
            .flat_map(|table| table.keys())
            .filter_map(|key| key.strip_prefix("pappus-"))
            .collect();
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        assert!(uses.is_subset(&allowed), "{name} uses {uses:?}, allowed are {allowed:?}");
    }
    // The control, and no crate is forgotten here.
    let workspace = toml("Cargo.toml");
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let members: BTreeSet<_> = members.iter().map(|member| member.as_str().unwrap()).collect();
    assert_eq!(members, DEPENDENCIES.iter().map(|(name, _)| *name).collect());
}

/// Packages that `package` is made of, by the lock file (which also counts what only its tests need).
fn tree(package: &str) -> HashSet<String> {
    let lock = toml("Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    let depends: HashMap<&str, Vec<&str>> = packages
        .iter()
        .map(|package| {
            let on = package.get("dependencies").and_then(|list| list.as_array());
            // NAME, or NAME VERSION where there are several.
            let on = on.into_iter().flatten().map(|on| on.as_str().unwrap().split(' ').next().unwrap());
            (package["name"].as_str().unwrap(), on.collect())
        })
        .collect();
    let mut found = HashSet::new();
    let mut open = vec![package];
    while let Some(name) = open.pop() {
        if found.insert(name.to_owned()) {
            open.extend(&depends[name]);
        }
    }
    found
}

#[test]
fn neither_supervisor_nor_client_runs_kernels() {
    for package in ["pappus-supervisor", "pappus-proto", "pappus-protocol", "pappus-shmem"] {
        let tree = tree(package);
        let found: Vec<_> = KERNEL_LIBRARIES.iter().filter(|name| tree.contains(**name)).collect();
        assert!(found.is_empty(), "{package} depends on {found:?}");
    }
    // The control: the worker does.
    assert!(tree("pappus-worker").contains("wasmtime"));
}

#[test]
fn nothing_that_is_delivered_looks_like_a_gpu() {
    let lookalikes = ["pappus-gfx9", "pappus-amdhip64"];
    for package in ["pappus-supervisor", "pappus-client"] {
        let tree = tree(package);
        let found: Vec<_> = lookalikes.iter().filter(|name| tree.contains(**name)).collect();
        assert!(found.is_empty(), "{package} depends on {found:?}");
    }
    // The worker's tests open it, which the lock file does not tell from what the worker needs.
    let words = b"look-alike of HIP";
    let holds =
        |path: PathBuf| std::fs::read(path).unwrap().windows(words.len()).any(|window| window == words);
    assert!(!holds(programs::program("pappus-worker")));
    // The controls.
    assert!(tree("pappus-amdhip64").contains("pappus-gfx9"));
    assert!(holds(std::env::current_exe().unwrap().with_file_name("libamdhip64.so")));
}

/// Blocks and implementations that are `unsafe`, beyond the notes that can be checked where they stand.
fn unexplained(text: &str) -> usize {
    let code = |line: &&str| !line.trim_start().starts_with("//") && !line.contains('"');
    // In parts, so that this file is not found.
    let blocks = [concat!("unsa", "fe {"), concat!("unsa", "fe impl")];
    let blocks = |line: &str| blocks.iter().map(|block| line.matches(block).count()).sum::<usize>();
    let note = concat!("SAF", "ETY: ");
    let notes = text.lines().filter_map(|line| line.split_once(note));
    let notes =
        notes.filter(|(_, why)| !["as above", "as for", "as in"].iter().any(|so| why.starts_with(so)));
    text.lines().filter(code).map(blocks).sum::<usize>().saturating_sub(notes.count())
}

#[test]
fn each_unsafe_block_counts_with_its_own_note() {
    let block = concat!("unsa", "fe { f() }\n");
    let note = concat!("// SAF", "ETY: ");
    for (text, missing) in [
        (block.to_owned(), 1),
        (format!("{note}f has no contract.\n{block}"), 0),
        (format!("{note}f has no contract.\n{block}{note}as above.\n{block}"), 1),
        (format!("// {block}"), 0),
    ] {
        assert_eq!(unexplained(&text), missing, "{text}");
    }
}

#[test]
fn unsafe_is_where_it_may_be() {
    let word = |line: &str| {
        let code = line.split("//").next().unwrap();
        code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
    };
    let uses = |text: &str| text.lines().filter(|line| !line.contains('"')).any(word);
    no_source("unsafe outside its places", |name, text| {
        uses(text) && !UNSAFE.iter().any(|place| name.starts_with(place))
    });
    // A block says by itself why it is sound, a function what its caller owes.
    no_source("unsafe blocks without a note of their own", |_, text| unexplained(text) > 0);
    no_source("an unsafe function without a contract", |_, text| {
        uses(text) && !text.contains("SAFETY:") && !text.contains("# Safety")
    });
    // The control.
    assert!(sources().iter().any(|(name, text)| name.starts_with("shmem") && uses(text)));
}

#[test]
fn every_lock_of_the_supervisor_has_a_rank() {
    let supervisor = |name: &str| name.starts_with("supervisor/src/") && !LOCKS.contains(&name);
    let std_lock = |text: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| ["Mutex", "RwLock"].contains(&word))
    };
    no_source("a lock without a rank: use OrderedMutex or OrderedRwLock", |name, text| {
        // These take the locks of the folder's own `sync`, which models of threads replace.
        supervisor(name) && !name.starts_with("supervisor/src/concurrent/") && std_lock(text)
    });
    let bare = ["std::sync::Mutex", "PoisonError", "unwrap_or_else(|e| e.into_inner())"];
    no_source("a lock of the standard library's", |name, text| {
        supervisor(name) && bare.iter().any(|bare| text.contains(bare))
    });
    // The control.
    assert_eq!(sources().iter().filter(|(name, text)| LOCKS.contains(&&**name) && std_lock(text)).count(), 2);
}

#[test]
fn what_is_chosen_by_hand_for_the_scheduler_is_little_and_in_one_file() {
    let is_chosen = |line: &&str| {
        let value = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
        let value = value.strip_prefix("const ").and_then(|rest| rest.split_once(" = "));
        value.is_some_and(|(_, value)| value.starts_with(|c: char| c.is_ascii_digit()))
    };
    let product = |text: &str| text.split("\nmod tests {").next().unwrap().to_owned();
    let file = "supervisor/src/schedule/limits.rs";
    no_source(
        "a number that was chosen by hand: it belongs into schedule/limits.rs, with its reason",
        |name, text| {
            let is_other = name.starts_with("supervisor/src/schedule/") && name != file;
            let is_test = name.ends_with("_tests.rs") || name.ends_with("_model.rs");
            is_other && !is_test && product(text).lines().any(|line| is_chosen(&line))
        },
    );
    let limits = sources().into_iter().find(|(name, _)| name == file).unwrap().1;
    let count = limits.lines().filter(|line| line.starts_with("pub const ")).count();
    assert!((30..=45).contains(&count), "{count} constants");
}

#[test]
fn every_file_says_its_role_first() {
    no_source("no role comment at the top", |_, text| {
        !text.lines().next().is_some_and(|line| line.starts_with("//! "))
    });
}

#[test]
fn files_are_short() {
    let lines = |text: &str| text.lines().count();
    no_source("too long", |name, text| lines(text) > MAX_LINES && !name.contains("/tests/"));
}

#[test]
fn nothing_is_put_off_or_guessed() {
    // In two parts, so that this file is not found.
    for words in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
        no_source(words, |_, text| text.contains(words));
    }
    // Only what needs hardware or measures is left out, and says how to run it.
    let ignored = concat!("#[ig", "nore");
    let reasons = [
        "needs an NVIDIA GPU: scripts/gpu-check ",
        "needs an AMD GPU: scripts/gpu-check ",
        "measures: scripts/test ",
    ];
    let with_reason = reasons.map(|reason| format!("{ignored} = \"{reason}"));
    let reasons = |text: &str| with_reason.iter().map(|reason| text.matches(reason).count()).sum::<usize>();
    no_source(ignored, |_, text| text.matches(ignored).count() != reasons(text));
    // A random case that fails is written down.
    let forgets = concat!("failure_persistence: No", "ne");
    no_source(forgets, |_, text| text.contains(forgets));
    let sleep = concat!("thread::sl", "eep");
    no_source(sleep, |name, text| {
        text.contains(sleep) && !MAY_SLEEP.iter().any(|place| name.ends_with(place))
    });
}

#[test]
fn every_metric_is_documented() {
    let source = std::fs::read_to_string(workspace().join("supervisor/src/metrics/mod.rs")).unwrap();
    let names: BTreeSet<_> =
        source.split('"').skip(1).step_by(2).filter(|text| text.starts_with("pappus_")).collect();
    assert!(names.len() >= 7, "{names:?}");
    let page = "docs/operations/metrics-and-logs.md";
    let text = std::fs::read_to_string(workspace().join(page)).unwrap();
    let missing: Vec<_> = names.iter().filter(|name| !text.contains(**name)).collect();
    assert!(missing.is_empty(), "{page} does not mention {missing:?}");
}

#[test]
fn programs_without_test_hooks_know_none_of_them() {
    let holds = |program: &str, text: &str| {
        let bytes = std::fs::read(programs::program(program)).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    for program in ["pappus", "pappus-supervisor", "pappus-worker"] {
        assert!(!holds(program, concat!("PAPPUS_", "TEST_")), "{program} has a hook for tests");
    }
    // The control: names of variables are found like this.
    assert!(holds("pappus-supervisor", "CUDA_VISIBLE_DEVICES"));
}
