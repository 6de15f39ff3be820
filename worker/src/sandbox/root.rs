//! A root directory of its own: empty, but for what the device's driver needs.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::files::Files;

/// Any directory does as a place to put the new root together; it exists everywhere.
const PLACES: [&str; 4] = ["/tmp", "/run", "/dev", "/proc"];

/// The kind of root that the host permitted.
pub(super) struct Root {
    /// The process sees nothing but the new root.
    pub(super) entered: bool,
    /// `/proc` in it shows this pid namespace, or is not there because the device does not need it.
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
    // Opened before anything covers a place where files may lie, such as the folder of the MPS daemon. A missing
    // file is for the driver to report.
    let paths = files.read.iter().chain(&files.write).filter(|path| !path.starts_with("/proc"));
    let shown: Vec<Shown<'_>> = paths.filter_map(|path| Shown::open(path).ok()).collect();
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = rustix::mount::mount("tmpfs", place, "tmpfs", plain, Some(c"mode=0755,size=1m"));
    if mounted.is_err() {
        return root;
    }
    // The worker's user goes through the folders that are made here, whatever the supervisor's service says of its own files.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    for path in &shown {
        let _ = path.show(place);
    }
    drop(shown);
    if files.proc {
        let proc = place.join("proc");
        let made = std::fs::create_dir(&proc).is_ok();
        // A `/proc` of its own shows only the sandbox's processes. Without a pid namespace it is the host's.
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

/// A path of the host that is to be visible below the new root.
struct Shown<'a> {
    path: &'a Path,
    file: OwnedFd,
}

impl<'a> Shown<'a> {
    fn open(path: &'a Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { path, file: rustix::fs::open(path, flags, Mode::empty())? })
    }

    fn show(&self, root: &Path) -> std::io::Result<()> {
        let Ok(below) = self.path.strip_prefix("/") else { return Ok(()) };
        let target = root.join(below);
        if target.symlink_metadata().is_ok() {
            return Ok(());
        }
        if let Some(parent) = target.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        match FileType::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode) {
            FileType::Symlink => {
                let leads_to = rustix::fs::readlinkat(&self.file, "", Vec::new())?;
                return std::os::unix::fs::symlink(OsStr::from_bytes(leads_to.as_bytes()), target);
            }
            FileType::Directory => std::fs::create_dir(&target)?,
            _ => drop(std::fs::File::create(&target)?),
        }
        let source = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::mount::mount_bind_recursive(source, &target)?)
    }
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
