//! The resources of an idle system: the same before a run and after it.

use std::fs;

use super::caller::ARENA_NAME;
use crate::fixture::{Supervisor, until};

/// Memory that the allocator may keep.
const SLACK_BYTES: u64 = 32 << 20;
/// Threads for blocking work that wait a while for more of it.
const SLACK_THREADS: usize = 32;

/// Counted while nothing happens.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// Open descriptors of the supervisor.
    descriptors: usize,
    /// Its children, collected or not.
    processes: usize,
    /// Device memory that is given out, and neither kept as weights nor by a worker that would give it back.
    missing_bytes: u64,
}

/// What is compared.
#[derive(Debug)]
pub(crate) struct Baseline {
    held: Held,
    threads: usize,
    resident_bytes: u64,
}

/// What a supervisor holds once it is idle, the connection of this look included.
fn held(supervisor: &Supervisor) -> Option<Held> {
    let status = supervisor.status();
    let idle = status.devices.iter().all(|device| {
        // A slot may be empty: processes are made when they are needed.
        let mut workers = device.workers.iter().filter(|worker| worker.state != "unused");
        let ready = workers.all(|worker| worker.state == "idle" && worker.pid != 0);
        ready && device.queued + device.running == 0 && device.standbys_ready == device.standbys
    });
    let missing = status.devices.iter().filter_map(|device| {
        let memory = device.memory?;
        let lent: u64 = device.workers.iter().map(|worker| worker.lent_bytes).sum();
        Some(memory.total_bytes - memory.free_bytes - memory.weight_bytes - lent)
    });
    // No other client is connected, and the connection of the previous look is closed.
    (idle && status.connections == 1).then(|| Held {
        descriptors: entries(supervisor.pid(), "fd"),
        processes: supervisor.all_children().len(),
        missing_bytes: missing.sum(),
    })
}

fn entries(pid: u32, folder: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, |entries| entries.count())
}

/// Of an idle supervisor that just started.
pub(crate) fn baseline(supervisor: &Supervisor) -> Baseline {
    let mut first = None;
    until("the supervisor is idle", || {
        // Twice the same: whatever starts is there.
        let now = held(supervisor);
        let same = now.is_some() && now == first;
        first = now;
        same
    });
    let threads = entries(supervisor.pid(), "task");
    Baseline { held: first.unwrap(), threads, resident_bytes: supervisor.resident_bytes() }
}

/// Waits until a supervisor holds what it held before; fails with what is left over.
pub(crate) fn none_since(before: &Baseline, supervisor: &Supervisor) {
    let mut now = None;
    until(&format!("everything is as before: {before:?}"), || {
        let new = held(supervisor);
        // For the log of a failure.
        if new != now {
            println!("now: {new:?}");
        }
        now = new;
        now.as_ref() == Some(&before.held)
    });
    // Threads without work stay for a while.
    until(&format!("{} threads are left", before.threads), || {
        entries(supervisor.pid(), "task") <= before.threads + SLACK_THREADS
    });
    let bytes = supervisor.resident_bytes();
    assert!(bytes <= before.resident_bytes + SLACK_BYTES, "{bytes} bytes, before {}", before.resident_bytes);
    until("nothing of the clients' memory is left", || {
        let processes = supervisor.children().into_iter().chain([supervisor.pid()]);
        processes.flat_map(traces).next().is_none()
    });
}

/// Memory of clients that a process maps or holds.
pub(crate) fn traces(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().map(str::to_owned);
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open =
        open.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()));
    mapped.chain(open).filter(|line| line.contains(ARENA_NAME)).collect()
}
