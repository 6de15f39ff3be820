//! The process at the other end of a socket, by name: certainly the one that connected.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};

/// A process that lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its id.
    pub pid: u32,
    /// The process's name in the system, chosen by itself: for people, not for decisions.
    pub name: String,
}

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

/// The process that connected this socket, if it lives and the kernel can tell it from a later process with
/// the same id (Linux 6.5).
pub fn process(socket: BorrowedFd<'_>) -> Option<PeerProcess> {
    let pidfd = getsockopt(&socket, sockopt::PeerPidfd).ok()?;
    let name_of = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let pid = pid_of(&pidfd)?;
    let name = name_of(pid)?;
    // Only if it lived until after the look, its name is its own.
    (pid_of(&pidfd)? == pid).then(|| PeerProcess { pid, name: printable(&name) })
}

/// The id of a process that is not reaped yet.
fn pid_of(pidfd: &OwnedFd) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // 0 is one of a foreign pid namespace, -1 one that is gone.
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

fn printable(name: &str) -> String {
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_is_the_process_that_connected() {
        let (_client, socket) = UnixStream::pair().unwrap();
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        // Older kernels cannot say: then nothing is said.
        if let Some(process) = process(OwnedFd::from(socket).as_fd()) {
            assert_eq!((process.pid, process.name), (std::process::id(), own.trim_end().to_owned()));
        }
        let no_peer = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(super::process(OwnedFd::from(no_peer).as_fd()), None);
    }

    #[test]
    fn a_name_cannot_forge_lines() {
        assert_eq!(printable("a\nb\x1b[0m\n"), "a?b?[0m");
    }
}
