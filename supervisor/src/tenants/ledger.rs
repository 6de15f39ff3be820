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

use crate::limits::MAX_LOADED;
use crate::quota::{Limit, QuotaError, Scope};

/// Descriptors that tenants leave to the supervisor's own files, workers and operator.
const OWN_DESCRIPTORS: u64 = 512;

/// What the process may have, from which totals follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory: the machine's, or the control group's where that is less.
    pub memory_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Machine {
    /// This machine, as this process may use it.
    pub fn here() -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let installed = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| installed_bytes(&text));
        let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
            .into_iter()
            .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
        Self {
            // What cannot be read is small: a few requests fit in any case.
            memory_bytes: installed.unwrap_or(1 << 30).min(group.unwrap_or(u64::MAX)),
            descriptors: descriptors.unwrap_or(u64::MAX),
        }
    }

    /// The most that all tenants together may hold of one thing.
    fn total(&self, limit: Limit) -> u64 {
        match limit {
            Limit::RequestBytes | Limit::PlanBytes => self.memory_bytes / 8,
            Limit::AnswerBytes => self.memory_bytes / 16,
            Limit::WeightBytes => self.memory_bytes / 2,
            Limit::Descriptors => {
                (self.descriptors / 4 * 3).min(self.descriptors.saturating_sub(OWN_DESCRIPTORS))
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
    /// Invocations that are accepted and not over.
    accepted: AtomicUsize,
}

impl Ledger {
    /// Nothing is taken yet.
    pub fn new(machine: Machine) -> Self {
        Self {
            used: Limit::ALL.map(|_| AtomicU64::new(0)),
            most: Limit::ALL.map(|limit| machine.total(limit)),
            accepted: AtomicUsize::new(0),
        }
    }

    /// How much of one thing all tenants have.
    pub fn used(&self, limit: Limit) -> u64 {
        self.used[limit as usize].load(Ordering::Relaxed)
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
    fn totals_leave_room_for_the_process_itself() {
        for (memory_bytes, descriptors) in [(1 << 30, 1024), (24 << 30, 20_000), (2 << 40, 1 << 20), (0, 0)] {
            let ledger = Ledger::new(Machine { memory_bytes, descriptors });
            let memory = [Limit::RequestBytes, Limit::PlanBytes, Limit::AnswerBytes, Limit::WeightBytes];
            assert!(memory.map(|limit| ledger.most(limit)).iter().sum::<u64>() <= memory_bytes / 8 * 7);
            assert!(ledger.most(Limit::Descriptors) <= descriptors / 4 * 3);
        }
        assert!(Machine::here().memory_bytes > 0);
        assert_eq!(installed_bytes("MemTotal:       100 kB\nMemFree: 1 kB\n"), Some(102_400));
    }
}
