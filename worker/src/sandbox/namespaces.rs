//! Namespaces: processes, files, networks and names of the host that the process cannot refer to. Each is tried; those
//! that the host refuses are left out.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::exit;

use pappus_protocol::launch::EXIT_PIDNS_UNUSABLE;
use pappus_protocol::{Layer, Layers, ProtocolError, control};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::UnshareFlags;

use super::raw::{self, Forked};

/// Namespaces that a process with the rights to can leave by itself.
const NAMESPACES: [(Layer, UnshareFlags); 5] = [
    (Layer::MountNs, UnshareFlags::NEWNS),
    (Layer::NetNs, UnshareFlags::NEWNET),
    (Layer::IpcNs, UnshareFlags::NEWIPC),
    (Layer::UtsNs, UnshareFlags::NEWUTS),
    (Layer::CgroupNs, UnshareFlags::NEWCGROUP),
];

/// Leaves as many of the namespaces in `wanted` as the host permits, but for those of users and processes; which.
pub(super) fn leave(wanted: impl Fn(Layer) -> bool) -> Layers {
    let wanted: Vec<_> = NAMESPACES.into_iter().filter(|(layer, _)| wanted(*layer)).collect();
    let together = wanted.iter().fold(UnshareFlags::empty(), |all, (_, flag)| all | *flag);
    if raw::unshare(together).is_ok() {
        return wanted.into_iter().map(|(layer, _)| layer).collect();
    }
    wanted.into_iter().filter(|(_, flag)| raw::unshare(*flag).is_ok()).map(|(layer, _)| layer).collect()
}

/// Puts later children into a pid namespace of their own; true if the host permits that.
pub(super) fn leave_pids() -> bool {
    raw::unshare(UnshareFlags::NEWPID).is_ok()
}

/// Leaves the user namespace, which gives the rights to leave others; true if that worked. The user stays the
/// same.
pub(super) fn leave_users() -> bool {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if raw::unshare(UnshareFlags::NEWUSER).is_err() {
        return false;
    }
    // Without the maps everything works as well: the ids only look strange from inside.
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"));
    let _ = std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"));
    true
}

/// The first process of the pid namespace, once it runs. The process that made it waits until it is told that the
/// namespace is usable, or ends at once.
pub(super) struct First {
    before: OwnedFd,
    /// The pipe on which the process before waits to hear that the namespace is usable; none where it does not wait.
    fit: Option<OwnedFd>,
}

/// Goes on as the first process of the pid namespace just made. The old process hands a descriptor of the new one to
/// the supervisor, which adopts the new process, and ends; with `asks`, only once the namespace is known to be usable.
pub(super) fn go_on_as_first(control: BorrowedFd<'_>, asks: bool) -> std::io::Result<First> {
    let before = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let word = match asks {
        true => Some(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?),
        false => None,
    };
    match (raw::fork()?, word) {
        (Forked::Child, word) => Ok(First { before, fit: word.map(|(_, fit)| fit) }),
        (Forked::Parent(pid), None) => hand_over(control, pid),
        (Forked::Parent(pid), Some((fits, fit))) => {
            drop(fit);
            match rustix::io::read(&fits, &mut [0; 1]) {
                Ok(1) => hand_over(control, pid),
                _ => exit(EXIT_PIDNS_UNUSABLE.into()),
            }
        }
    }
}

/// Ends this process in favour of another one.
fn hand_over(control: BorrowedFd<'_>, pid: Pid) -> ! {
    let handed = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|error| ProtocolError::Io(error.into()))
        .and_then(|pidfd| control::send(control, pid.as_raw_nonzero().get() as u64, &[pidfd.as_fd()]));
    match handed {
        Ok(()) => exit(0),
        Err(why) => {
            // The end of the supervisor is no fault of the worker's.
            if !matches!(&why, ProtocolError::Io(error) if error.kind() == ErrorKind::BrokenPipe) {
                crate::log(format_args!("handing the worker to its supervisor: {why}"));
            }
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            exit(1);
        }
    }
}

impl First {
    /// Tells the process before that the namespace is usable, so that it may end.
    pub(super) fn fits(&self) -> rustix::io::Result<()> {
        match &self.fit {
            Some(fit) => rustix::io::write(fit, &[1]).map(drop),
            None => Ok(()),
        }
    }

    /// Ends this process since the namespace is not usable; the process before reports that with its exit code.
    pub(super) fn does_not_fit(&self) -> ! {
        exit(EXIT_PIDNS_UNUSABLE.into())
    }

    /// Returns when the process before is gone: from then on the supervisor is this one's parent.
    pub(super) fn adopted(&self) {
        let mut polled = [PollFd::new(&self.before, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut polled, None) {}
    }
}
