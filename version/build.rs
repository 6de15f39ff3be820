//! Finds out which commit is built: what `PAPPUS_COMMIT` says, as `scripts/release` sets it; otherwise git, where this is a
//! release build. Debug builds do not ask: each commit would link every program anew.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PAPPUS_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let profile = profile().unwrap_or_default();
    let given = std::env::var("PAPPUS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| if is_release { head() } else { None });
    let commit = commit.unwrap_or_else(|| "no commit".to_owned());
    println!("cargo::rustc-env=PAPPUS_BUILD={commit}, {profile}");
}

/// The profile by its own name, which stands in `target/NAME/build/CRATE/out` alone: what a profile inherits is all that cargo says.
fn profile() -> Option<String> {
    let out = std::env::var("OUT_DIR").ok()?;
    Some(Path::new(&out).ancestors().nth(3)?.file_name()?.to_str()?.to_owned())
}

/// The commit that is checked out and its day; none without git, or where this is no checkout.
fn head() -> Option<String> {
    let commit = git(&["show", "--no-patch", "--abbrev=12", "--format=%h %cs", "HEAD"])?;
    // Written at every commit and checkout. A missing path would run this script each time.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(commit)
}

fn git(arguments: &[&str]) -> Option<String> {
    let ran = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(ran.stdout).ok()?;
    ran.status.success().then(|| said.trim().to_owned())
}
