//! Namespaces: what of the host the process cannot even name. Each is tried; what the host refuses is left out.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::exit;

use pappus_protocol::{Layer, Layers, control};
use rustix::event::{PollFd, PollFlags};
use rustix::process::PidfdFlags;
use rustix::thread::UnshareFlags;

use super::raw::{self, Forked};

/// The exit code that says: here a pid namespace is of no use, start again without.
pub const PIDNS_UNUSABLE: u8 = 71;

/// Namespaces that can be left by a process with the rights to.
const NAMESPACES: [(Layer, UnshareFlags); 6] = [
    (Layer::MountNs, UnshareFlags::NEWNS),
    (Layer::PidNs, UnshareFlags::NEWPID),
    (Layer::NetNs, UnshareFlags::NEWNET),
    (Layer::IpcNs, UnshareFlags::NEWIPC),
    (Layer::UtsNs, UnshareFlags::NEWUTS),
    (Layer::CgroupNs, UnshareFlags::NEWCGROUP),
];

/// Leaves as many of the namespaces in `wanted` as the host permits; which.
pub(super) fn leave(wanted: impl Fn(Layer) -> bool) -> Layers {
    let wanted: Vec<_> = NAMESPACES.into_iter().filter(|(layer, _)| wanted(*layer)).collect();
    let together = wanted.iter().fold(UnshareFlags::empty(), |all, (_, flag)| all | *flag);
    if raw::unshare(together).is_ok() {
        return wanted.into_iter().map(|(layer, _)| layer).collect();
    }
    wanted.into_iter().filter(|(_, flag)| raw::unshare(*flag).is_ok()).map(|(layer, _)| layer).collect()
}

/// Leaves the user namespace, which gives the rights to leave others. The user stays who it is.
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

/// The process that starts as the first one of the pid namespace, while the one before it waits.
pub(super) struct First {
    before: OwnedFd,
    fit: OwnedFd,
}

/// Goes on as the first process of the pid namespace just made. The process before hands a descriptor of
/// the new one to the supervisor, which adopts it, and ends.
pub(super) fn go_on_as_first(control: BorrowedFd<'_>) -> std::io::Result<First> {
    let before = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let (fits, fit) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match raw::fork()? {
        Forked::Child => Ok(First { before, fit }),
        Forked::Parent(pid) => {
            drop(fit);
            if rustix::io::read(&fits, &mut [0; 1]) != Ok(1) {
                exit(PIDNS_UNUSABLE.into());
            }
            let handed = rustix::process::pidfd_open(pid, PidfdFlags::empty())
                .map_err(|e| e.to_string())
                .and_then(|pidfd| {
                    let number = pid.as_raw_nonzero().get() as u64;
                    control::send(control, number, &[std::os::fd::AsFd::as_fd(&pidfd)])
                        .map_err(|e| e.to_string())
                });
            match handed {
                Ok(()) => exit(0),
                Err(why) => {
                    crate::log(format_args!("handing the worker to its supervisor: {why}"));
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    exit(1);
                }
            }
        }
    }
}

impl First {
    /// The namespace can be used: the process before may go, and is gone when this returns.
    pub(super) fn fits(self) -> rustix::io::Result<()> {
        rustix::io::write(&self.fit, &[1])?;
        let mut polled = [PollFd::new(&self.before, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut polled, None) {}
        Ok(())
    }

    /// It cannot: this process ends, and the one before says so.
    pub(super) fn does_not_fit(self) -> ! {
        exit(PIDNS_UNUSABLE.into())
    }
}
