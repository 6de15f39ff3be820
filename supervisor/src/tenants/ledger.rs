//! What all tenants together hold of the supervisor's own memory, descriptors and threads.
//!
//! ```text
//! take ──► the tenant's quota ──► the total of all tenants ──► Taken ──dropped──► both given back
//!              │ full                 │ full
//!              └─ RESOURCE_EXHAUSTED ─┘ with the limit's name
//! ```
//!
//! A total stays below what the process may have: what is between them is the operator's, whose requests are counted
//! and never refused for a total.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::limits::{MAX_CONNECTIONS, MAX_LOADED};
use crate::quota::{Limit, QuotaError, Scope};

/// Descriptors of the supervisor's own files, threads and operator.
const OWN_DESCRIPTORS: u64 = 96;
/// Descriptors of a worker process and its thread.
const WORKER_DESCRIPTORS: u64 = 12;
/// Descriptors of a client's connection.
const CONNECTION_DESCRIPTORS: u64 = 2;
/// The least that is left to clients: some connections, and what they register and call with.
const LEAST_DESCRIPTORS: u64 = 64;

/// What the process may have, from which totals follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory: the machine's, or the control group's where that is less.
    pub memory_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// The most worker processes, standbys included.
    pub processes: u64,
}

/// Too few descriptors to register anything.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {has} files, and needs {needs} at least: raise the limit (`ulimit -Hn`, LimitNOFILE= of a unit, --ulimit nofile= \
     of a container)"
)]
pub struct TooFewDescriptors {
    has: u64,
    needs: u64,
}

impl Machine {
    /// The machine's resources for a supervisor with so many worker processes.
    pub fn here(processes: u64) -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let installed = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| installed_bytes(&text));
        let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
            .into_iter()
            .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
        Self {
            // What cannot be read is small: a few requests fit in any case.
            memory_bytes: installed.unwrap_or(1 << 30).min(group.unwrap_or(u64::MAX)),
            descriptors: descriptors.unwrap_or(u64::MAX),
            processes,
        }
    }

    /// Descriptors that clients can have in all. Where few are left for many workers, that is half: not all workers need be there
    /// at once.
    fn for_clients(&self) -> u64 {
        let own = OWN_DESCRIPTORS + WORKER_DESCRIPTORS * self.processes;
        self.descriptors.saturating_sub(own.min(self.descriptors / 2).max(OWN_DESCRIPTORS))
    }

    /// The most connections of clients.
    pub fn connections(&self) -> usize {
        MAX_CONNECTIONS.min((self.for_clients() / (2 * CONNECTION_DESCRIPTORS)) as usize)
    }

    /// Fails if the descriptors are too few to serve anybody; otherwise says what they are too few for, if
    /// anything.
    pub fn check_descriptors(&self) -> Result<Option<String>, TooFewDescriptors> {
        let (has, least) = (self.descriptors, OWN_DESCRIPTORS + WORKER_DESCRIPTORS + LEAST_DESCRIPTORS);
        if has < least {
            return Err(TooFewDescriptors { has, needs: least });
        }
        let connections = self.connections();
        Ok((connections < MAX_CONNECTIONS).then(|| {
            let all = OWN_DESCRIPTORS
                + WORKER_DESCRIPTORS * self.processes
                + 2 * CONNECTION_DESCRIPTORS * MAX_CONNECTIONS as u64;
            let tenants = self.total(Limit::Descriptors);
            format!(
                "this process may open {has} files: {connections} connections are served at once, and {tenants} descriptors of arenas \
                 and calls are taken; {all} are enough for {MAX_CONNECTIONS} connections (`ulimit -Hn`, LimitNOFILE= of a unit, \
                 --ulimit nofile= of a container)"
            )
        }))
    }

    /// The most that all tenants together may hold of one thing.
    fn total(&self, limit: Limit) -> u64 {
        match limit {
            Limit::RequestBytes | Limit::PlanBytes => self.memory_bytes / 8,
            Limit::AnswerBytes => self.memory_bytes / 16,
            Limit::WeightBytes => self.memory_bytes / 2,
            Limit::SessionBytes => self.memory_bytes / 4,
            Limit::Descriptors => {
                let connections = CONNECTION_DESCRIPTORS * self.connections() as u64;
                (self.descriptors / 4 * 3).min(self.for_clients() - connections)
            }
            Limit::LoadedFunctions => MAX_LOADED as u64,
            // On disk, in the tenant's own memory, on a device, or bounded where it is had.
            Limit::Functions
            | Limit::Connections
            | Limit::ModuleBytes
            | Limit::BlobBytes
            | Limit::BlobFiles
            | Limit::ArenaBytes
            | Limit::PinnedBytes
            | Limit::Calls
            | Limit::QueuedCalls
            | Limit::QueuedBytes
            | Limit::SlowRequests
            | Limit::DeviceMemory => u64::MAX,
        }
    }
}

/// `MemTotal` of `/proc/meminfo`.
fn installed_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The totals of all tenants.
#[derive(Debug)]
pub struct Ledger {
    used: [AtomicU64; Limit::ALL.len()],
    most: [u64; Limit::ALL.len()],
    connections: usize,
    /// Invocations that are accepted and not over.
    accepted: AtomicUsize,
}

impl Ledger {
    /// Nothing is taken yet.
    pub fn new(machine: Machine) -> Self {
        Self {
            used: Limit::ALL.map(|_| AtomicU64::new(0)),
            most: Limit::ALL.map(|limit| machine.total(limit)),
            connections: machine.connections(),
            accepted: AtomicUsize::new(0),
        }
    }

    /// How much of one thing all tenants have.
    pub fn used(&self, limit: Limit) -> u64 {
        self.used[limit as usize].load(Ordering::Relaxed)
    }

    /// The most connections of clients.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// How much of one thing all tenants may have.
    pub fn most(&self, limit: Limit) -> u64 {
        self.most[limit as usize]
    }

    /// Invocations of all tenants that are accepted and not over.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }

    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn answered(&self) {
        self.accepted.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes so much for a tenant. What has no total is not counted here: calls take nothing that all threads share.
    pub(super) fn add(
        &self,
        limit: Limit,
        amount: u64,
        tenant: &std::sync::Arc<str>,
    ) -> Result<(), QuotaError> {
        let most = self.most[limit as usize];
        if most == u64::MAX {
            return Ok(());
        }
        add(&self.used[limit as usize], most, amount).map_err(|used| QuotaError {
            limit,
            tenant: tenant.clone(),
            scope: Scope::AllTenants,
            most,
            used,
            more: amount,
            freeing: 0,
        })
    }

    /// Adds an amount, also beyond the total.
    pub(super) fn charge(&self, limit: Limit, amount: u64) {
        if self.most[limit as usize] != u64::MAX {
            self.used[limit as usize].fetch_add(amount, Ordering::AcqRel);
        }
    }

    pub(super) fn give_back(&self, limit: Limit, amount: u64) {
        if self.most[limit as usize] != u64::MAX {
            self.used[limit as usize].fetch_sub(amount, Ordering::AcqRel);
        }
    }
}

/// Adds to what is used, up to `most`; else what is used.
pub(super) fn add(used: &AtomicU64, most: u64, amount: u64) -> Result<(), u64> {
    let fits = |used: u64| used.checked_add(amount).filter(|sum| *sum <= most);
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_are_shared_or_refused() {
        let with = |descriptors, processes| Machine { memory_bytes: 1 << 30, descriptors, processes };
        for few in [0, 64, 128, 171] {
            let why = with(few, 4).check_descriptors().unwrap_err();
            assert!(
                why.to_string().contains(&format!("may open {few} files, and needs 172 at least")),
                "{why}"
            );
        }
        for (some, processes) in [(172, 1), (256, 4), (512, 4), (1024, 600), (4096, 4)] {
            let machine = with(some, processes);
            let words = machine.check_descriptors().unwrap().unwrap();
            assert!(
                words.contains("connections are served at once") && machine.connections() >= 16,
                "{words}"
            );
            // There are enough descriptors for all clients, and for the supervisor with some workers.
            let tenants = machine.total(Limit::Descriptors);
            assert!(tenants >= 32, "{some}: {tenants}");
            let clients = CONNECTION_DESCRIPTORS * machine.connections() as u64 + tenants;
            assert!(clients + OWN_DESCRIPTORS <= some, "{some}: {clients}");
        }
        let plenty = with(20_000, 64);
        assert_eq!((plenty.check_descriptors(), plenty.connections()), (Ok(None), MAX_CONNECTIONS));
    }

    #[test]
    fn totals_leave_room_for_the_process_itself() {
        for (memory_bytes, descriptors) in [(1 << 30, 1024), (24 << 30, 20_000), (2 << 40, 1 << 20), (0, 0)] {
            let ledger = Ledger::new(Machine { memory_bytes, descriptors, processes: 4 });
            let memory = [Limit::RequestBytes, Limit::PlanBytes, Limit::AnswerBytes, Limit::WeightBytes];
            assert!(memory.map(|limit| ledger.most(limit)).iter().sum::<u64>() <= memory_bytes / 8 * 7);
            assert!(ledger.most(Limit::Descriptors) <= descriptors / 4 * 3);
        }
        assert!(Machine::here(0).memory_bytes > 0);
        assert_eq!(installed_bytes("MemTotal:       100 kB\nMemFree: 1 kB\n"), Some(102_400));
    }
}
