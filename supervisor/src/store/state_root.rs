//! Whether a directory may become, or is, a supervisor's state directory. No directory of another owner is
//! adopted, changed or even written to.
//!
//! ```text
//! nothing there                      made, mode 0700
//! ours: VERSION says so, or a start  taken; its mode becomes 0700
//!   that broke off left only its own
//!   files
//! empty                              taken; its mode becomes 0700
//! others may write to it, others'    refused
//!   files in it, another user's
//! ```

use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::error::{StateError, Unfit, failed};

/// The mode of the state directory: it holds modules and weights of all tenants.
const MODE: u32 = 0o700;
/// Write permission of the group and of others, and the sticky bit of directories that users share.
const SHARED: u32 = 0o1022;
/// What every `VERSION` of a state directory starts with.
const MARKER: &[u8] = b"pappus-state ";
/// What `mkfs` leaves in the root of a new file system.
const LOST_AND_FOUND: &str = "lost+found";

/// Makes the directory, or checks that it may be used, and closes it to other users.
pub(super) fn claim(root: &Path) -> Result<(), StateError> {
    let unfit = |why| StateError::Unfit { path: root.to_owned(), why };
    let found = match fs::metadata(root) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return create(root),
        Err(e) => return Err(failed("look at", root)(e)),
    };
    if !found.is_dir() {
        return Err(unfit(Unfit::NoDirectory));
    }
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        return Err(unfit(Unfit::Owner { owner: found.uid(), own }));
    }
    let mode = found.mode() & 0o7777;
    if mode & SHARED != 0 {
        return Err(unfit(Unfit::Shared { mode }));
    }
    if let Some(file) = foreign_file(root)? {
        return Err(unfit(Unfit::Foreign { file }));
    }
    if mode != MODE {
        fs::set_permissions(root, PermissionsExt::from_mode(MODE)).map_err(failed("chmod", root))?;
        tracing::info!("{}: its mode was {mode:04o} and is {MODE:04o} now", root.display());
    }
    Ok(())
}

fn create(root: &Path) -> Result<(), StateError> {
    if let Some(parent) = root.parent() {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    DirBuilder::new().mode(MODE).create(root).map_err(failed("create", root))
}

/// A file that no supervisor put there; none in a directory that says to be ours, and in an empty one.
fn foreign_file(root: &Path) -> Result<Option<String>, StateError> {
    if is_marked(root)? {
        return Ok(None);
    }
    let entries = fs::read_dir(root).map_err(failed("list", root))?;
    for entry in entries {
        let name = entry.map_err(failed("list", root))?.file_name().to_string_lossy().into_owned();
        if !is_of_a_first_start(&name) && name != LOST_AND_FOUND {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether `VERSION` says that this is a state directory, of whichever version.
fn is_marked(root: &Path) -> Result<bool, StateError> {
    let path = root.join("VERSION");
    let mut start = Vec::new();
    match File::open(&path).and_then(|file| file.take(MARKER.len() as u64).read_to_end(&mut start)) {
        Ok(_) => Ok(start == MARKER),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("read", &path)(e)),
    }
}

/// Files of a start that ended before it had written `VERSION`.
fn is_of_a_first_start(name: &str) -> bool {
    name == "lock" || name.starts_with("VERSION.") && name.ends_with(".tmp")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this mode with these files, claimed; what came of it, and its mode afterwards.
    fn claimed(mode: u32, files: &[(&str, &str)]) -> (Result<(), String>, u32) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        fs::create_dir(&root).unwrap();
        for (name, content) in files {
            fs::write(root.join(name), content).unwrap();
        }
        fs::set_permissions(&root, PermissionsExt::from_mode(mode)).unwrap();
        let outcome = claim(&root).map_err(|why| why.to_string().replace(root.to_str().unwrap(), "DIR"));
        let files_after = fs::read_dir(&root).unwrap().count();
        assert_eq!(files_after, files.len(), "nothing is put into it");
        (outcome, fs::metadata(&root).unwrap().mode() & 0o7777)
    }

    #[test]
    fn a_new_directory_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b");
        claim(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn an_empty_directory_and_our_own_are_taken_and_closed_to_others() {
        let ours = ("VERSION", "pappus-state 1\n");
        let broke_off = [("lock", ""), ("VERSION.0.tmp", "pap")];
        for files in [&[][..], &[ours, ("anything", "")], &broke_off, &[("lost+found", "")]] {
            for mode in [0o700, 0o755] {
                assert_eq!(claimed(mode, files), (Ok(()), 0o700), "{files:?}");
            }
        }
    }

    #[test]
    fn what_others_can_write_to_is_refused_and_keeps_its_mode() {
        for (mode, text) in [(0o1777, "1777"), (0o777, "0777"), (0o770, "0770")] {
            let (outcome, after) = claimed(mode, &[]);
            let why = outcome.unwrap_err();
            assert!(why.starts_with("DIR can be written by other users") && why.contains(text), "{why}");
            assert!(why.contains("chmod 700"), "{why}");
            assert_eq!(after, mode);
        }
    }

    #[test]
    fn a_directory_with_other_files_is_refused_and_keeps_its_mode() {
        for files in
            [&[("thesis.tex", "")][..], &[("VERSION", "1.2.3"), ("lock", "")], &[("lock", ""), ("x", "")]]
        {
            let (outcome, after) = claimed(0o755, files);
            let why = outcome.unwrap_err();
            assert!(why.starts_with("DIR holds files that are no supervisor's, such as"), "{why}");
            assert!(why.contains("--state-dir"), "{why}");
            assert_eq!(after, 0o755);
        }
    }

    #[test]
    fn a_file_and_another_users_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(claim(&file).unwrap_err().to_string().contains("is no directory"));
        let own = rustix::process::geteuid();
        if own.is_root() {
            let theirs = dir.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(4321), None).unwrap();
            let why = claim(&theirs).unwrap_err().to_string();
            assert!(why.contains("belongs to uid 4321") && why.contains("chown 0"), "{why}");
        } else {
            let why = claim(Path::new("/")).unwrap_err().to_string();
            assert!(why.contains("belongs to uid 0"), "{why}");
        }
    }
}
