//! `pappus apply`: makes the functions of a tenant equal to those of a folder.
//!
//! ```text
//! read all ─► compare with what is registered ─► remove compositions ─► functions ─► compositions ─► remove functions
//! ```
//!
//! Compositions come behind the functions that they run, and go before them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use pappus_client::archive::{CONFIG, is_package};
use pappus_client::{Client, Error, registered, v1};
use pappus_proto::limits::is_valid_name;
use serde_json::{Value, json};

use super::registrable::Registrable;
use crate::arguments::ApplyArguments;
use crate::failure::{Failure, Result};
use crate::json;
use crate::progress::Progress;

const UNCHANGED: &str = "unchanged";
const REMOVED: &str = "removed";

/// A function of the folder.
struct Wanted {
    name: String,
    path: PathBuf,
    content: Registrable,
}

/// What is done about one function.
struct Change<'w> {
    name: String,
    /// What becomes of it: `added`, `replaced`, `unchanged` or `removed`.
    done: &'static str,
    /// None where it is removed.
    wanted: Option<&'w Wanted>,
}

/// Reads the folder, compares, and does what is missing.
pub(crate) fn run(
    connect: impl FnOnce() -> Result<Client>,
    arguments: &ApplyArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let wanted = in_order(read(&arguments.folder)?);
    if wanted.is_empty() && !arguments.empty {
        return Err(Failure::Refused(format!(
            "{}: no function is in this folder (NAME.json, NAME.pappus, or NAME with {CONFIG} in it): to remove all that is \
             registered, add --empty",
            arguments.folder.display()
        )));
    }
    let mut client = connect()?;
    let mut progress = Progress::spinner("comparing");
    let changes = compare(&mut client, &wanted, arguments.keep)?;
    let (mut lines, mut told) = (Vec::new(), Ok(()));
    for change in changes {
        let done = match arguments.dry_run {
            true => change.done,
            false => carry_out(&mut client, &change, &mut progress)?,
        };
        // Whoever reads no further has all of it done nevertheless.
        if !arguments.json.json && told.is_ok() {
            told = writeln!(out, "{done} {}", change.name);
        }
        lines.push((change.name, done, change.wanted.map(|wanted| &wanted.path)));
    }
    drop(progress);
    told?;
    summary(&lines, arguments, out)
}

fn summary(
    lines: &[(String, &'static str, Option<&PathBuf>)],
    arguments: &ApplyArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let count = |done: &str| lines.iter().filter(|(_, other, _)| *other == done).count();
    let counts = ["added", "replaced", UNCHANGED, REMOVED].map(|done| (done, count(done)));
    if arguments.json.json {
        let functions = lines.iter().map(|(name, done, path)| {
            let file = path.map(|path| path.display().to_string());
            json!({"name": name, "registration": done, "file": file})
        });
        let mut value = json!({"dry_run": arguments.dry_run, "functions": functions.collect::<Vec<Value>>()});
        counts.into_iter().for_each(|(done, count)| value[done] = count.into());
        return Ok(writeln!(out, "{value}")?);
    }
    let counts = counts.map(|(done, count)| format!("{count} {done}")).join(", ");
    let dry = if arguments.dry_run { " (dry run: nothing was done)" } else { "" };
    Ok(writeln!(out, "{counts}{dry}")?)
}

/// The functions of a folder, by name. An error is all that is wrong with them.
fn read(folder: &Path) -> Result<BTreeMap<String, Wanted>> {
    if folder.join(CONFIG).is_file() {
        let message = "this is one package: name the folder that it is in";
        return Err(Failure::Refused(format!("{}: {message}", folder.display())));
    }
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let mut paths: Vec<PathBuf> =
        entries.map_err(Error::file(folder))?.into_iter().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let (mut wanted, mut wrong) = (BTreeMap::<String, Wanted>::new(), Vec::new());
    for path in paths {
        let Some(name) = name_of(&path) else { continue };
        let found = match wanted.get(&name) {
            _ if !is_valid_name(&name) => Err(Failure::Refused(format!(
                "{}: {name:?} is no name of a function: 1 to 128 letters, digits, `.`, `_` or `-`, the first of them not `.`",
                path.display()
            ))),
            Some(other) => {
                let other = other.path.display();
                Err(Failure::Refused(format!("{}: {other} is a function of this name, too", path.display())))
            }
            None => Registrable::read(&path, &[]),
        };
        match found {
            Ok(content) => drop(wanted.insert(name.clone(), Wanted { name, path, content })),
            Err(why) => wrong.push(why),
        }
    }
    match wrong.len() {
        0 => Ok(wanted),
        // As it is, with its code.
        1 => Err(wrong.remove(0)),
        _ => {
            let lines: Vec<String> = wrong.iter().map(Failure::to_string).collect();
            Err(Failure::Refused(lines.join("\n")))
        }
    }
}

/// What a function would be called, if the path is one: a package, or a configuration.
fn name_of(path: &Path) -> Option<String> {
    let is_function = match path.is_dir() {
        true => path.join(CONFIG).is_file(),
        false => is_package(path) || path.extension().is_some_and(|extension| extension == "json"),
    };
    let name = if path.is_dir() && !is_package(path) { path.file_name() } else { path.file_stem() };
    name.filter(|_| is_function).map(|name| name.to_string_lossy().into_owned())
}

/// Functions first, then compositions, each behind those that it runs; by name otherwise.
fn in_order(mut wanted: BTreeMap<String, Wanted>) -> Vec<Wanted> {
    let mut order = Vec::new();
    let mut placed = BTreeSet::new();
    let runs: HashMap<String, Vec<String>> = wanted
        .values()
        .filter_map(|one| match &one.content {
            Registrable::Function(_) => None,
            Registrable::Composition(composition) => Some((one.name.clone(), composition.functions())),
        })
        .collect();
    let names: Vec<String> = wanted.keys().cloned().collect();
    let (compositions, functions): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| runs.contains_key(name));
    let mut waiting = compositions;
    order.extend(functions);
    while !waiting.is_empty() {
        let is_free = |name: &String| {
            runs[name]
                .iter()
                .all(|other| !runs.contains_key(other) || placed.contains(other) || other == name)
        };
        let (free, others): (Vec<_>, Vec<_>) = waiting.iter().cloned().partition(is_free);
        // Those that run each other are refused by the supervisor, which says so.
        let (next, others) = if free.is_empty() { (others, Vec::new()) } else { (free, others) };
        placed.extend(next.iter().cloned());
        order.extend(next);
        waiting = others;
    }
    order.into_iter().filter_map(|name| wanted.remove(&name)).collect()
}

/// What has to be done, in order.
fn compare<'w>(client: &mut Client, wanted: &'w [Wanted], keep: bool) -> Result<Vec<Change<'w>>> {
    let mut there = client.list_functions()?;
    there.retain(|function| !function.granted);
    let gone = there.iter().filter(|function| !keep && !wanted.iter().any(|one| one.name == function.name));
    let removed =
        |function: &v1::FunctionInfo| Change { name: function.name.clone(), done: REMOVED, wanted: None };
    let (compositions, functions): (Vec<_>, Vec<_>) =
        gone.partition(|function| !function.composition_sha256.is_empty());
    let mut changes: Vec<_> = compositions.into_iter().map(removed).collect();
    for one in wanted {
        let done = match there.iter().any(|function| function.name == one.name) {
            false => "added",
            true if is_there(client, one).map_err(|why| placed(why, one))? => UNCHANGED,
            true => "replaced",
        };
        changes.push(Change { name: one.name.clone(), done, wanted: Some(one) });
    }
    changes.extend(functions.into_iter().map(removed));
    Ok(changes)
}

/// True if exactly this function is registered.
fn is_there(client: &mut Client, wanted: &Wanted) -> Result<bool> {
    let shown = client.show_function(&wanted.name)?;
    match &wanted.content {
        Registrable::Function(package) => Ok(registered::has_package(client, package, &shown)?),
        Registrable::Composition(composition) => Ok(registered::has_composition(composition, &shown)?),
    }
}

/// Does it; what the supervisor says was done.
fn carry_out(client: &mut Client, change: &Change<'_>, progress: &mut Progress) -> Result<&'static str> {
    let Some(wanted) = change.wanted else {
        client.remove_function(&change.name)?;
        return Ok(change.done);
    };
    if change.done == UNCHANGED {
        return Ok(change.done);
    }
    let added = wanted.content.add(client, &wanted.name, true, progress);
    let added = added.map_err(|why| placed(why.into(), wanted))?;
    Ok(json::registration(added.registration()).unwrap_or(change.done))
}

/// A refusal names the file, if it does not already.
fn placed(why: Failure, wanted: &Wanted) -> Failure {
    let path = wanted.path.display().to_string();
    match why {
        Failure::Library(Error::Refused(mut refusal)) if !refusal.message.starts_with(&path) => {
            refusal.message = format!("{path}: {}", refusal.message);
            Error::Refused(refusal).into()
        }
        Failure::Library(Error::Invalid(message)) if !message.starts_with(&path) => {
            Error::Invalid(format!("{path}: {message}")).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: &str = r#"{"modules": [], "kernels": [],
        "blueprint": {"inputs": ["A"], "buffers": {}, "outputs": ["A"], "control_flow": []}}"#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        dir
    }

    fn composition(function: &str) -> String {
        let step = format!(r#"{{"name": "s", "function": "{function}", "inputs": {{"A": "x"}}}}"#);
        format!(r#"{{"inputs": ["x"], "steps": [{step}], "outputs": {{"y": {{"step": "s"}}}}}}"#)
    }

    #[test]
    fn functions_are_files_and_folders_and_compositions_come_behind_them() {
        let (b, c) = (composition("a"), composition("b"));
        let dir = folder(&[
            ("b.json", &b),
            ("a.json", &c),
            ("z.json", FUNCTION),
            ("in/function.json", FUNCTION),
            ("lib/m.wasm", ""),
            ("README.md", ""),
        ]);
        // a runs b, which runs a: those come last, whatever they are.
        let names = |wanted: Vec<Wanted>| wanted.into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names(in_order(read(dir.path()).unwrap())), ["in", "z", "a", "b"]);
        let dir =
            folder(&[("a.json", &composition("b")), ("b.json", &composition("z")), ("z.json", FUNCTION)]);
        assert_eq!(names(in_order(read(dir.path()).unwrap())), ["z", "b", "a"]);
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_file() {
        let dir = folder(&[
            ("a b.json", FUNCTION),
            ("f.json", FUNCTION),
            ("f/function.json", FUNCTION),
            ("wrong.json", "{\n \"blueprint\": 7}"),
        ]);
        let why = read(dir.path()).err().unwrap();
        let text = why.to_string();
        for words in
            ["a b.json: \"a b\" is no name", "f.json: ", " is a function of this name, too", "wrong.json:2:"]
        {
            assert!(text.contains(words), "{text}");
        }
        let package = folder(&[("function.json", FUNCTION)]);
        assert!(read(package.path()).err().unwrap().to_string().ends_with("name the folder that it is in"));
    }
}
