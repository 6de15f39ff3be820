//! The operator: asks for status and quotas through the admin socket, again and again, and looks each time at what the
//! kernel says of the supervisor's process.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use pappus_client::Client;
use pappus_client::v1;

use super::Result;
use super::supervisor::HONEST;

/// From one look to the next.
const EVERY: Duration = Duration::from_millis(100);
/// Looks between two at every descriptor, which takes long where there are many.
const EVERY_DESCRIPTOR: u64 = 10;
/// Descriptors of a connection: the socket for reading, for answers, and while answers wait.
const PER_CONNECTION: u64 = 3;

/// What the quotas show as held, of all tenants; of no tenant more than it may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Bytes of requests, answers, plans and weights.
    pub(crate) memory: u64,
    /// Of these, what is kept for calls to come.
    pub(crate) caches: u64,
    /// Bytes of weights.
    pub(crate) weights: u64,
    /// Descriptors, those of connections and of functions in memory included.
    pub(crate) descriptors: u64,
    pub(crate) connections: u64,
    /// Honest tenants without a function in memory.
    pub(crate) evicted: u64,
}

/// One look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// How long the operator waited for both answers.
    pub(crate) operator: Duration,
    /// How late the look was for want of a processor: so late may the operator's answer be besides.
    pub(crate) late: Duration,
    /// Resident memory in bytes.
    pub(crate) resident: u64,
    /// Bytes of shared memory that are the supervisor's own: weights.
    pub(crate) shared: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Shown at that time or at the look before; whichever was more.
    pub(crate) held: Held,
}

/// What the kernel says of a process.
struct Process {
    resident: u64,
    descriptors: u64,
    threads: u64,
}

/// Who looks.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: u32,
    admin_socket: PathBuf,
    admin: Option<Client>,
    looks: u64,
    shared: u64,
    held: Held,
}

impl Watch {
    pub(crate) fn new(pid: u32, admin_socket: PathBuf) -> Self {
        Self { pid, admin_socket, admin: None, looks: 0, shared: 0, held: Held::default() }
    }

    /// Looks until it is over.
    pub(crate) fn live(mut self, over: &AtomicBool, readings: &Sender<Reading>) -> Result<()> {
        let mut next = Instant::now();
        while !over.load(Ordering::Acquire) {
            let late = next.elapsed();
            let reading = Reading { late, ..self.look()? };
            if readings.send(reading).is_err() {
                return Ok(());
            }
            next = Instant::now() + EVERY;
            super::rest(EVERY);
        }
        Ok(())
    }

    /// One look: at the process, at what is shown, at the process again. Descriptors present both times are not on
    /// their way.
    pub(crate) fn look(&mut self) -> Result<Reading> {
        let before = self.process()?;
        let began = Instant::now();
        let held = match self.ask() {
            Ok(held) => held,
            // It came too late, which its time says; the connection is made anew.
            Err(_) => {
                self.admin = None;
                self.held
            }
        };
        let operator = began.elapsed();
        let after = self.process()?;
        if self.looks.is_multiple_of(EVERY_DESCRIPTOR) {
            self.shared = shared(self.pid)?;
        }
        self.looks += 1;
        let more = self.held.or(held);
        self.held = held;
        Ok(Reading {
            operator,
            late: Duration::ZERO,
            resident: before.resident.min(after.resident),
            shared: self.shared,
            descriptors: before.descriptors.min(after.descriptors),
            threads: before.threads.min(after.threads),
            held: more,
        })
    }

    /// What the kernel says of the process now.
    fn process(&self) -> Result<Process> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        Ok(Process {
            resident: 1024 * number(&status, "VmRSS:")?,
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", self.pid))?.count() as u64,
            threads: number(&status, "Threads:")?,
        })
    }

    fn ask(&mut self) -> Result<Held> {
        if self.admin.is_none() {
            self.admin = Some(Client::connect(&self.admin_socket)?);
        }
        let admin = self.admin.as_mut().ok_or("not connected")?;
        let status = admin.status()?;
        let tenants = admin.list_tenants()?;
        Ok(held(&tenants, status.connections))
    }
}

/// Descriptors beyond its limit that a tenant can have for a moment: one message brings up to 253, on either socket
/// thread; they are refused and count until they are closed.
const AT_ONCE_DESCRIPTORS: u64 = 2 * 253;

/// What is shown as held.
fn held(tenants: &[v1::TenantInfo], connections: u64) -> Held {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for quota in tenants.iter().flat_map(|tenant| &tenant.quotas) {
        let beyond = if quota.name == "descriptors" { AT_ONCE_DESCRIPTORS } else { 0 };
        let most = quota.limit.map_or(u64::MAX, |limit| limit.saturating_add(beyond));
        *sums.entry(&quota.name).or_default() += quota.used.min(most);
    }
    let sum = |names: &[&str]| names.iter().filter_map(|name| sums.get(name)).sum::<u64>();
    // Connections that have not said yet whose they are no tenant shows.
    let connections = connections.max(sum(&["connections"]));
    Held {
        memory: sum(&["request-bytes", "answer-bytes", "plan-bytes", "weight-bytes"]),
        caches: sum(&["plan-bytes", "weight-bytes"]),
        weights: sum(&["weight-bytes"]),
        descriptors: sum(&["descriptors", "loaded-functions"]) + PER_CONNECTION * connections,
        connections,
        evicted: tenants.iter().filter(|tenant| HONEST.contains(&&*tenant.name) && has_none(tenant)).count()
            as u64,
    }
}

/// True if none of a tenant's functions is in memory.
fn has_none(tenant: &v1::TenantInfo) -> bool {
    tenant.quotas.iter().any(|quota| quota.name == "loaded-functions" && quota.used == 0)
}

impl Held {
    /// Of each thing the larger amount.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            caches: self.caches.max(other.caches),
            weights: self.weights.max(other.weights),
            descriptors: self.descriptors.max(other.descriptors),
            connections: self.connections.max(other.connections),
            evicted: self.evicted.max(other.evicted),
        }
    }
}

/// A number of `/proc/PID/status`.
fn number(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.and_then(|line| line.split_whitespace().next());
    Ok(words.ok_or_else(|| format!("/proc shows no {name}"))?.parse()?)
}

/// Bytes of the supervisor's own shared memory, each file once.
fn shared(pid: u32) -> Result<u64> {
    const BLOCK: u64 = 512;
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if is_weights(&path) {
            // It may be closed meanwhile.
            if let Ok(file) = std::fs::metadata(&path) {
                files.insert(file.ino(), file.blocks() * BLOCK);
            }
        }
    }
    Ok(files.values().sum())
}

fn is_weights(descriptor: &Path) -> bool {
    let name = std::fs::read_link(descriptor);
    name.is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:pappus-weights"))
}
