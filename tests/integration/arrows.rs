//! Imports point one way: each crate's folders have an order, and a module uses only what comes earlier. Where a
//! folder is put together from components, its files import each other one way, too.
//!
//! Read from the sources: `use crate::…`, inline `crate::…`, and chains of `super::` that reach the crate's root.
//! Tests inside the sources may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::programs::{files_below, workspace};

/// Modules of one level that must not use each other.
type Level = &'static [&'static str];

/// Of each crate the levels of its modules (a folder, or a file beside `lib.rs`), from the first, which uses no other.
const ORDER: [(&str, &[Level]); 5] = [
    (
        "supervisor",
        &[
            &["concurrent", "ids", "limits", "service_manager", "sha256", "sync", "tenant_name"],
            &["quota"],
            &["defences", "metrics"],
            &["client_io", "log", "schedule"],
            &["config", "refusal"],
            &["blocking", "tenants"],
            &["client_memfd", "state_room", "store"],
            &["arena", "client_fd"],
            &["processes", "session"],
            &["function"],
            &["routing"],
            &["call"],
            // A device knows no registry and no client; the registry knows no device.
            &["device", "registry"],
            &["server"],
            &["endpoint"],
            &["list_devices", "run"],
        ],
    ),
    (
        "worker",
        &[
            &["arenas", "channels", "sandbox"],
            &["device", "launch"],
            &["compile", "meter", "serve"],
            &["backends"],
        ],
    ),
    (
        "client",
        &[
            &["array", "error", "failure", "progress", "scratch", "table", "target", "units"],
            &["again", "picture", "source"],
            &["archive", "arena", "capacity", "client", "input", "npy", "stages", "variants"],
            &["arguments", "files", "json", "kernels", "requests"],
            &["blobs", "invocation", "sharing"],
            &["aio", "steady", "upload"],
            &["functions"],
            &["compositions"],
            &["registered"],
            &["command"],
        ],
    ),
    (
        "gateway",
        &[
            &["data_type", "limits", "log", "patient_io", "places"],
            &["failure", "tls"],
            &["jwt", "statistics"],
            &["arguments"],
            &["memory", "model", "traces", "upstream"],
            &["metrics", "sequences", "shared_memory"],
            &["callers", "endpoint"],
            &["counted", "models"],
            &["infer"],
            &["http"],
            &["grpc"],
            &["run"],
        ],
    ),
    (
        "blueprint",
        &[
            &["kernel_info", "limits", "small_float", "types"],
            &["arrays", "cursor", "expression", "hints", "hsaco", "launch", "plan", "ptx", "signatures"],
            &["code", "place"],
            &["error"],
            &["read", "size"],
            &["write"],
            &["blueprint", "format"],
            &["checked", "layout", "terms"],
            &["describe", "launches", "planner", "resolve", "weights"],
            &["fit", "warnings"],
            &["binding", "cache", "compose"],
        ],
    ),
];

/// Folders of crates whose files do not import each other in circles.
const COMPONENTS: [(&str, &str); 8] = [
    ("blueprint", "hsaco"),
    ("supervisor", "device"),
    ("supervisor", "processes"),
    ("supervisor", "registry"),
    ("supervisor", "routing"),
    ("supervisor", "schedule"),
    ("supervisor", "server"),
    ("supervisor", "store"),
];

/// A crate's sources without their tests: paths below `src`, and what is in them.
fn sources(name: &str) -> Vec<(String, String)> {
    let folder = workspace().join(name).join("src");
    let files = files_below(&folder).into_iter().filter_map(|path| {
        let file = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = file.split('/').collect();
        let is_test = |part: &&str| *part == "tests" || *part == "tests.rs" || part.ends_with("_tests.rs");
        let is_root = file == "lib.rs" || file == "main.rs" || file == "generated.rs";
        if !file.ends_with(".rs") || is_root || parts.iter().any(is_test) || is_test_only(&folder, &file) {
            return None;
        }
        Some((file, std::fs::read_to_string(&path).unwrap()))
    });
    files.collect()
}

/// True if a file's module is declared for tests only.
fn is_test_only(folder: &Path, file: &str) -> bool {
    let Some((parent, name)) = file.rsplit_once('/') else { return false };
    let name = name.trim_end_matches(".rs");
    let declared = std::fs::read_to_string(folder.join(parent).join("mod.rs")).unwrap_or_default();
    let lines: Vec<&str> = declared.lines().map(str::trim).collect();
    lines.windows(2).any(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].trim_start_matches("pub ").starts_with(&format!("mod {name};"))
    })
}

/// The module, of those beside `lib.rs`, that a file belongs to.
fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// What comes behind the crate's root in a file: `crate::`, or as many `super::` as the file is deep.
fn uses(file: &str, text: &str) -> BTreeSet<String> {
    let depth = file.trim_end_matches("/mod.rs").split('/').count();
    names_behind(&["crate::".to_owned(), "super::".repeat(depth)], text)
}

/// The names that come behind one of these beginnings of paths.
fn names_behind(roots: &[String], text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).fold(
        String::new(),
        |mut code, line| {
            code += line;
            code.push('\n');
            code
        },
    );
    let mut found = BTreeSet::new();
    for root in roots {
        for (at, _) in code.match_indices(root) {
            // `$crate::`, `my_crate::`, and a `super::` in the middle of a chain are something else.
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && !"_:$".contains(before) {
                found.extend(names(&code[at + root.len()..]));
            }
        }
    }
    found
}

/// The first names of a path or of a group of paths.
fn names(path: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut open, mut names, mut next) = (1, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 1 => break,
            '}' => open -= 1,
            ',' if open == 1 => next = true,
            c if next && !c.is_whitespace() => {
                names.push(word(&group[at..]));
                next = false;
            }
            _ => {}
        }
    }
    names
}

/// Uses of modules of the same or a later level, as `file: module`, and modules that have no level.
fn wrong(levels: &[Level], sources: &[(String, String)]) -> (Vec<String>, BTreeSet<String>) {
    let level: BTreeMap<&str, usize> =
        levels.iter().enumerate().flat_map(|(at, level)| level.iter().map(move |name| (*name, at))).collect();
    let modules: BTreeSet<&str> = sources.iter().map(|(file, _)| module_of(file)).collect();
    let unknown = modules.iter().filter(|name| !level.contains_key(*name)).map(ToString::to_string).collect();
    let mut found = Vec::new();
    for (file, text) in sources {
        let own = module_of(file);
        for used in uses(file, text) {
            if used != own && modules.contains(&*used) && level.get(&*used) >= level.get(own) {
                found.push(format!("{file}: {used}"));
            }
        }
    }
    (found, unknown)
}

/// Files of a folder in circles of imports, and files that import from such a circle.
fn circles(folder: &str, sources: &[(String, String)]) -> Vec<String> {
    let roots = ["super::".to_owned(), format!("crate::{folder}::")];
    let map = sources.iter().find(|(file, _)| *file == format!("{folder}/mod.rs"));
    let exports = map.map(|(_, text)| exports(text)).unwrap_or_default();
    let files = sources.iter().filter_map(|(file, text)| {
        let name = file.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let is_file = name != "mod" && !name.contains('/');
        let file_of = |name: String| exports.get(&name).cloned().unwrap_or(name);
        let counts = |used: &String| used != name;
        let used = || names_behind(&roots, text).into_iter().map(file_of).filter(counts).collect();
        is_file.then(|| (name.to_owned(), used()))
    });
    let mut files: BTreeMap<String, BTreeSet<String>> = files.collect();
    loop {
        let left: BTreeSet<String> = files.keys().cloned().collect();
        files.retain(|_, used| !used.is_disjoint(&left));
        if files.len() == left.len() {
            return files.into_keys().collect();
        }
    }
}

/// By its name, the file from which a `mod.rs` exports something.
fn exports(text: &str) -> BTreeMap<String, String> {
    let lines = text.match_indices("pub use ").map(|(at, found)| &text[at + found.len()..]);
    let own = lines.filter_map(|path| path.split_once("::")).filter(|(file, _)| *file != "crate");
    own.flat_map(|(file, rest)| names(rest).into_iter().map(|name| (name, file.to_owned()))).collect()
}

#[test]
fn files_of_components_do_not_import_each_other_in_circles() {
    for (name, folder) in COMPONENTS {
        let sources = sources(name);
        assert!(sources.iter().any(|(file, _)| file.starts_with(folder)), "there is no folder {folder}");
        let circles = circles(folder, &sources);
        assert!(circles.is_empty(), "{folder}: files that import each other, or such: {circles:?}");
    }
}

#[test]
fn a_circle_of_files_is_found_over_any_number_of_them() {
    let file = |name: &str, text: &str| (format!("device/{name}.rs"), text.to_owned());
    let mut all = vec![
        file("low", "use super::super::high;\nuse crate::device::low::Own;"),
        file("middle", "use super::low::Thing;"),
        file("high", "fn f() { crate::device::middle::g() }"),
    ];
    assert!(circles("device", &all).is_empty());
    let apart = all.clone();
    all[0].1 += "use super::high::Thing;";
    assert_eq!(circles("device", &all), ["high", "low", "middle"]);
    // Through what `mod.rs` exports, too.
    let mut all = apart;
    all.push(file("mod", "pub use crate::low::Other;\npub use high::{\n    Another,\n    Thing,\n};"));
    assert!(circles("device", &all).is_empty());
    all[0].1 += "use super::Thing;";
    assert_eq!(circles("device", &all), ["high", "low", "middle"]);
}

#[test]
fn modules_use_only_what_comes_earlier() {
    for (name, levels) in ORDER {
        let sources = sources(name);
        assert!(sources.len() > 10, "the sources of {name} are not where they were");
        let (wrong, unknown) = wrong(levels, &sources);
        assert!(unknown.is_empty(), "{name}: no level for {unknown:?}");
        assert!(wrong.is_empty(), "{name}: uses of what comes later, or is of the same level: {wrong:#?}");
    }
}

#[test]
fn a_wrong_arrow_is_found_however_it_is_written() {
    let levels: [Level; 2] = [&["low"], &["high", "beside"]];
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let all = [
        file("low.rs", "use super::high::Thing;"),
        file("low/inner.rs", "use crate::{\n    low::a::{b, c}, high::d,\n};"),
        file("low/deep.rs", "fn f() { super::super::high::g() }"),
        file("high.rs", "use crate::low::a;\npub(in crate::high) fn g() { crate::beside::h() }"),
        file(
            "beside.rs",
            "// crate::high\nuse low_crate::high;\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}",
        ),
        file("high/inner.rs", "use super::low;"),
    ];
    let (wrong, unknown) = wrong(&levels, &all);
    assert_eq!(wrong, ["low.rs: high", "low/inner.rs: high", "low/deep.rs: high", "high.rs: beside"]);
    assert!(unknown.is_empty());
    assert_eq!(super::arrows::wrong(&levels[1..], &all[..1]).1, BTreeSet::from(["low".to_owned()]));
}
