//! Rules for directories that are, or may become, a supervisor's state directory. No directory of another
//! owner is adopted, changed or even written to.
//!
//! ```text
//! nothing there                      made, mode 0700
//! ours: VERSION says so, or a start  taken; its mode becomes 0700
//!   that broke off left only its own
//!   files
//! empty                              taken; its mode becomes 0700
//! a link, others may write to it,    refused
//!   others' files in it, another
//!   user's, or below a directory
//!   where others can replace it
//! ```
//!
//! What is looked at and changed is one descriptor: nobody can put something else under the name in between. Later the
//! name leads to the same directory, as only root and this user can change what is above it.

use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::error::{StateError, Unfit, failed};
use crate::tenants::overflow_uid;

/// The mode of the state directory: it holds modules and weights of all tenants.
const MODE: u32 = 0o700;
/// Write permission of the group and of others, and the sticky bit of directories that users share.
const SHARED: u32 = 0o1022;
/// Write permission of others.
const OTHERS: u32 = 0o002;
/// In such a directory only the owner of a file can rename or remove it.
const STICKY: u32 = 0o1000;
/// What every `VERSION` of a state directory starts with.
const MARKER: &[u8] = b"pappus-state ";
/// What `mkfs` leaves in the root of a new file system.
const LOST_AND_FOUND: &str = "lost+found";

/// Makes the directory, or checks that it may be used, and closes it to other users. Its path without links.
pub(super) fn claim(root: &Path) -> Result<PathBuf, StateError> {
    let root = without_links(root)?;
    let unfit = |why| StateError::Unfit { path: root.clone(), why };
    let own = rustix::process::geteuid().as_raw();
    for above in root.ancestors().skip(1) {
        check_above(above, own).map_err(&unfit)?;
    }
    match DirBuilder::new().mode(MODE).create(&root) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed("create", &root)(e)),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&root, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR | Errno::LOOP if root.is_symlink() => unfit(Unfit::Link),
        Errno::NOTDIR => unfit(Unfit::NoDirectory),
        // Another user's, most likely.
        _ => match fs::symlink_metadata(&root) {
            Ok(found) if found.uid() != own => unfit(Unfit::Owner { owner: found.uid(), own }),
            _ => failed("open", &root)(e.into()),
        },
    })?;
    let dir = File::from(dir);
    let found = dir.metadata().map_err(failed("look at", &root))?;
    if found.uid() != own {
        return Err(unfit(Unfit::Owner { owner: found.uid(), own }));
    }
    let mode = found.mode() & 0o7777;
    if mode & SHARED != 0 {
        return Err(unfit(Unfit::Shared { mode }));
    }
    if let Some(file) = foreign_file(&dir, &root)? {
        // What a supervisor's directory holds, and no other: what does not fit is `VERSION`.
        return Err(match root.join("tenants").is_dir() && root.join("lock").is_file() {
            true => StateError::Version { found: version_of(&root), path: root },
            false => unfit(Unfit::Foreign { file }),
        });
    }
    if mode != MODE {
        let closed = rustix::fs::fchmod(&dir, Mode::from_raw_mode(MODE));
        closed.map_err(|e| failed("chmod", &root)(e.into()))?;
        tracing::info!("{}: its mode was {mode:04o} and is {MODE:04o} now", root.display());
    }
    Ok(root)
}

/// Where the directory is or will be, links above it followed now and never again.
fn without_links(root: &Path) -> Result<PathBuf, StateError> {
    let Some(name) = root.file_name() else { return root.canonicalize().map_err(failed("look at", root)) };
    let parent = match root.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(failed("create", parent))?;
    Ok(parent.canonicalize().map_err(failed("look at", parent))?.join(name))
}

/// Checks that no other user can replace a directory below this one.
fn check_above(above: &Path, own: u32) -> Result<(), Unfit> {
    // What cannot be looked at cannot be opened either.
    let Ok(found) = fs::metadata(above) else { return Ok(()) };
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let path = || above.to_owned();
    // Root of the host is unmapped in a container of a user.
    if owner != own && owner != 0 && owner != overflow_uid() {
        return Err(Unfit::OwnerAbove { above: path(), owner, own });
    }
    match mode & OTHERS != 0 && mode & STICKY == 0 {
        true => Err(Unfit::SharedAbove { above: path(), mode }),
        false => Ok(()),
    }
}

/// A file that no supervisor put there; none in a directory that says to be ours, and in an empty one.
fn foreign_file(dir: &File, root: &Path) -> Result<Option<String>, StateError> {
    if is_marked(dir, root)? {
        return Ok(None);
    }
    let failed = |e: Errno| failed("list", root)(e.into());
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy();
        if !matches!(&*name, "." | "..") && !is_of_a_first_start(&name) && name != LOST_AND_FOUND {
            return Ok(Some(name.into_owned()));
        }
    }
    Ok(None)
}

/// True if `VERSION` says that this is a state directory, of whichever version.
fn is_marked(dir: &File, root: &Path) -> Result<bool, StateError> {
    let failed = |e| failed("read", &root.join("VERSION"))(e);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file: OwnedFd = match rustix::fs::openat(dir.as_fd(), "VERSION", flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP) => return Ok(false),
        Err(e) => return Err(failed(e.into())),
    };
    let mut start = Vec::new();
    File::from(file).take(MARKER.len() as u64).read_to_end(&mut start).map_err(failed)?;
    Ok(start == MARKER)
}

/// What `VERSION` says, as far as it is worth telling.
fn version_of(root: &Path) -> String {
    let mut start = Vec::new();
    let read = File::open(root.join("VERSION"))
        .and_then(|file| file.take(2 * MARKER.len() as u64).read_to_end(&mut start));
    match read {
        Ok(_) => String::from_utf8_lossy(&start).into_owned(),
        Err(_) => "nothing".to_owned(),
    }
}

/// True if a file is left from a first start that ended before `VERSION` was written.
fn is_of_a_first_start(name: &str) -> bool {
    name == "lock" || name.starts_with("VERSION.") && name.ends_with(".tmp")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        let outcome =
            claim(&root).map(drop).map_err(|why| why.to_string().replace(root.to_str().unwrap(), "DIR"));
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
            assert!(why.contains("one that is not there is made") && !why.contains("chmod"), "{why}");
            assert_eq!(after, mode);
        }
    }

    #[test]
    fn a_damaged_version_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tenants")).unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        let why = || claim(dir.path()).unwrap_err().to_string();
        assert!(why().contains(r#"VERSION says "nothing""#), "{}", why());
        for damaged in ["qappus-state 1\n", "", "\u{0}\u{0}"] {
            fs::write(dir.path().join("VERSION"), damaged).unwrap();
            assert!(why().contains(r"printf 'pappus-state 1\n' > "), "{}", why());
        }
        // The control.
        fs::write(dir.path().join("VERSION"), "pappus-state 1\n").unwrap();
        claim(dir.path()).unwrap();
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
    #[test]
    fn a_link_is_refused_and_what_it_leads_to_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("state"));
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let why = claim(&link).unwrap_err().to_string();
        assert!(why.contains("is a symbolic link") && why.contains("--state-dir"), "{why}");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o755);
        // The control: a link above it is followed once, by a name that nobody else can change.
        std::os::unix::fs::symlink(dir.path(), dir.path().join("above")).unwrap();
        assert_eq!(
            claim(&dir.path().join("above/new")).unwrap(),
            dir.path().canonicalize().unwrap().join("new")
        );
    }

    #[test]
    fn a_directory_that_others_can_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().join("above");
        fs::create_dir(&above).unwrap();
        let refused = |mode, owner| {
            fs::set_permissions(&above, PermissionsExt::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&above, Some(owner), None).unwrap();
            claim(&above.join("below/state")).err().map(|why| why.to_string())
        };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(refused(0o1777, own), None, "only its owner can rename what is in it");
        let why = refused(0o777, own).unwrap();
        assert!(why.contains("lies below") && why.contains("mode 0777"), "{why}");
        if own == 0 {
            let why = refused(0o755, 4321).unwrap();
            assert!(why.contains("lies below") && why.contains("belongs to uid 4321"), "{why}");
        }
    }
}
