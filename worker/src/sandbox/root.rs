//! A root directory of its own: empty, but for what the device's driver needs.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::policy::Files;

/// Any directory does as a place to put the new root together; it exists everywhere.
const PLACES: [&str; 4] = ["/tmp", "/run", "/dev", "/proc"];

/// What could be had.
pub(super) struct Root {
    /// The process sees nothing but the new root.
    pub(super) entered: bool,
    /// `/proc` in it shows this pid namespace, or is not there because nobody needs it.
    pub(super) own_proc: bool,
}

/// Puts the root together and goes there, in a mount namespace of its own.
pub(super) fn enter(files: &Files, first: bool) -> Root {
    let mut root = Root { entered: false, own_proc: !files.proc };
    // What was mounted here must not show up there.
    let changed =
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    let Some(place) = PLACES.iter().map(Path::new).find(|place| place.is_dir()) else { return root };
    if changed.is_err() {
        return root;
    }
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = rustix::mount::mount("tmpfs", place, "tmpfs", plain, Some(c"mode=0755,size=1m"));
    if mounted.is_err() {
        return root;
    }
    // What a driver does not find, it misses by itself.
    for path in files.read.iter().chain(&files.write).filter(|path| !path.starts_with("/proc")) {
        let _ = show(path, place);
    }
    if files.proc {
        let proc = place.join("proc");
        let made = std::fs::create_dir(&proc).is_ok();
        // Its own one shows its own processes only. Without a pid namespace that is the host's.
        root.own_proc = made && rustix::mount::mount("proc", &proc, "proc", plain, None).is_ok();
        if !root.own_proc && first {
            return root;
        }
        if !root.own_proc {
            let _ = rustix::mount::mount_bind_recursive("/proc", &proc);
        }
    }
    root.entered = change(place).is_ok();
    root
}

/// Makes a path of the host visible below the new root.
fn show(path: &Path, root: &Path) -> std::io::Result<()> {
    let (Ok(found), Ok(below)) = (path.symlink_metadata(), path.strip_prefix("/")) else { return Ok(()) };
    let target = root.join(below);
    if target.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(parent) = target.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    if found.is_symlink() {
        return std::os::unix::fs::symlink(std::fs::read_link(path)?, target);
    }
    match found.is_dir() {
        true => std::fs::create_dir(&target)?,
        false => drop(std::fs::File::create(&target)?),
    }
    Ok(rustix::mount::mount_bind_recursive(path, &target)?)
}

/// Makes `place` the root; the old one is gone.
fn change(place: &Path) -> rustix::io::Result<()> {
    rustix::process::chdir(place)?;
    // The old root comes to lie on the new one and is taken off again. The very first root of a system cannot be
    // moved: there, what is in it stays mounted, out of reach.
    match rustix::process::pivot_root(".", ".") {
        Ok(()) => rustix::mount::unmount(".", UnmountFlags::DETACH)?,
        Err(_) => rustix::process::chroot(".")?,
    }
    rustix::process::chdir("/")?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Nothing more is put there.
    let _ = rustix::mount::mount_remount("/", plain | MountFlags::RDONLY, "");
    Ok(())
}

/// Directories where libraries may lie that the loader was told about.
pub(super) fn library_path() -> Vec<PathBuf> {
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&told).filter(|path| path.is_absolute()).collect()
}
