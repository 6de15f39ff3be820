//! The system calls of the sandbox that have no safe form. All of them happen before the process has a
//! second thread or has opened anything itself.

#![allow(unsafe_code)]

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Which of the two processes this is.
pub(super) enum Forked {
    /// The one before; what it started.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Splits a process that has one thread.
pub(super) fn fork() -> std::io::Result<Forked> {
    // SAFETY: with a single thread no lock can be held by a thread that is missing in the copy.
    match unsafe { libc::fork() } {
        ..0 => Err(std::io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(Pid::from_raw(pid).ok_or(std::io::ErrorKind::Other)?)),
    }
}

/// Leaves namespaces, never the table of descriptors.
pub(super) fn unshare(namespaces: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES));
    // SAFETY: descriptors stay shared, which is what the function's contract is about.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}

/// Closes every descriptor from `first` on: what others left open by mistake.
pub(super) fn close_from(first: u32) -> rustix::io::Result<()> {
    // SAFETY: the process has opened nothing yet that lies there, so nothing owns what is closed.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::INVAL)),
    }
}
