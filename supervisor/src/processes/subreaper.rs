//! Keeps the list of child processes that a thread waits for, and reaps all other children.
//!
//! The supervisor is a *subreaper*: the kernel makes orphans of its children its own children. A worker that is killed
//! before it has handed its successor over, or whose descriptor of the successor is lost, leaves an orphan for which no
//! thread waits. The orphan ends by itself, since its pipes are closed; unreaped it would stay in the process table.

use std::collections::HashSet;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions};
use tokio::sync::Notify;

use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// How soon to look again for those that did not end yet, at first and in the long run.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Known {
    pids: HashSet<u32>,
    /// Processes that are being started: they are children already, and not in the list yet. A start takes long where
    /// another process stops the new one, so no lock is held during it.
    starting: usize,
}

fn known() -> OrderedGuard<'static, Known, { rank::CHILDREN }> {
    static KNOWN: OnceLock<OrderedMutex<Known, { rank::CHILDREN }>> = OnceLock::new();
    KNOWN.get_or_init(OrderedMutex::default).lock()
}

/// A process ended that may have left an orphan. (A handler for SIGCHLD would interrupt every thread's waiting.)
static AGAIN: Notify = Notify::const_new();

/// Starts a process that the caller waits for, and then [forgets](forget).
pub(super) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    known().starting += 1;
    let child = command.spawn();
    let mut known = known();
    known.starting -= 1;
    known.pids.extend(child.as_ref().map(Child::id));
    child
}

/// Enters a process that the caller waits for.
pub(super) fn adopt(pid: u32) {
    known().pids.insert(pid);
}

/// Takes out a process that was reaped.
pub(super) fn forget(pid: u32) {
    known().pids.remove(&pid);
    AGAIN.notify_one();
}

/// Reaps children that ended and are not in the list. True if others may still be running.
fn reap() -> bool {
    let known = known();
    if known.starting > 0 {
        return true;
    }
    let mut left = false;
    for pid in children().filter(|pid| !known.pids.contains(pid)) {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let gone = Pid::from_raw(pid as i32).map(|pid| rustix::process::waitid(WaitId::Pid(pid), ended));
        match gone {
            Some(Ok(Some(_))) => tracing::debug!(pid, "an orphan ended"),
            _ => left = true,
        }
    }
    left
}

/// All children of the supervisor, ended or not; empty if the kernel does not list children.
fn children() -> impl Iterator<Item = u32> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
}

/// Reaps orphans that were re-parented to the supervisor, until it ends.
pub async fn reap_strays() {
    loop {
        AGAIN.notified().await;
        let mut pause = LOOK_AGAIN;
        while tokio::task::spawn_blocking(reap).await.unwrap_or(false) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z")
    }

    #[test]
    fn a_process_is_known_from_its_start_until_it_was_waited_for() {
        let mut known = spawn(&mut Command::new("true")).unwrap();
        // Other tests' processes are strays to this one, so nothing is reaped here: that is tested from outside.
        let mut stray = Command::new("true").spawn().unwrap();
        while !ended(known.id()) || !ended(stray.id()) {}
        assert!([known.id(), stray.id()].iter().all(|pid| children().any(|child| child == *pid)));
        assert!(super::known().pids.contains(&known.id()) && !super::known().pids.contains(&stray.id()));
        forget(known.id());
        assert!(!super::known().pids.contains(&known.id()));
        assert!(known.wait().unwrap().success() && stray.wait().unwrap().success());
    }
}
