//! The binaries under test. Cargo offers a test only the binaries of its own package, so they are found beside
//! this one, and built by cargo itself where they are missing or older than one of their sources.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const BINARIES: [&str; 4] = ["pappus-supervisor", "pappus-worker", "pappus", "pappus-gateway"];

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A binary under test, up to date.
pub(crate) fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(folder).join(name)
}

/// Where the operator says that they are, on a machine without cargo; otherwise where cargo builds them.
fn folder() -> PathBuf {
    std::env::var_os("PAPPUS_BIN_DIR").map_or_else(up_to_date, PathBuf::from)
}

/// The folder that all binaries are in. On a machine without cargo, `PAPPUS_BIN_DIR` says where, or the folder
/// above it has them.
fn up_to_date() -> PathBuf {
    if let Some(given) = std::env::var_os("PAPPUS_BIN_DIR").map(PathBuf::from) {
        let mut folders = given.ancestors().take(2);
        let found = folders.find(|folder| BINARIES.iter().all(|binary| folder.join(binary).is_file()));
        let found =
            found.unwrap_or_else(|| panic!("neither {} nor the folder above has them", given.display()));
        return found.to_owned();
    }
    // TARGET/PROFILE/deps/integration-HASH
    let this = std::env::current_exe().unwrap();
    let folder = this.ancestors().nth(2).unwrap();
    if !BINARIES.iter().all(|binary| is_up_to_date(&folder.join(binary))) {
        build(folder);
    }
    folder.to_owned()
}

/// True if a binary is there, and none of its sources, which cargo lists beside the binary, nor of their crates' manifests is newer.
fn is_up_to_date(binary: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let Some(built) = changed(binary) else { return false };
    let Ok(listed) = std::fs::read_to_string(binary.with_extension("d")) else { return false };
    // `BINARY: SOURCE SOURCE …`
    let sources = || listed.split_whitespace().skip(1).map(Path::new);
    let manifest =
        |source: &Path| source.ancestors().map(|up| up.join("Cargo.toml")).find(|file| file.exists());
    let manifests: HashSet<PathBuf> = sources().filter_map(manifest).collect();
    let all = sources().chain(manifests.iter().map(PathBuf::as_path));
    all.map(changed).all(|time| time.is_some_and(|time| time <= built))
}

fn build(folder: &Path) {
    // Cargo's name for the profile of target/debug is dev.
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `--examples`, of which there are none, has cargo count the features that tests need, with which scripts/test builds.
    cargo
        .current_dir(workspace())
        .args(["build", "--profile", profile, "--workspace", "--examples", "--target-dir"])
        .arg(folder.parent().unwrap());
    for binary in BINARIES {
        cargo.args(["--bin", binary]);
    }
    assert!(cargo.status().unwrap().success(), "the binaries under test do not build");
}

/// All files below a folder; none if the folder is missing.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}
