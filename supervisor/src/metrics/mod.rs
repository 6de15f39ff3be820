//! Counters, gauges and histograms. Handles are made once; the hot path only adds. Every metric has a description, and
//! stands in the first answer of the [endpoint](crate::endpoint) with the value 0; except those [of calls](calls) of one tenant
//! or function, and [what GPUs measure](readings).

pub mod calls;
pub mod readings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::quota::Limit;

/// Upper bounds of the buckets that latencies are counted in, in seconds: from a hot call's microseconds to the
/// longest deadline that the defaults allow.
pub(crate) const BUCKETS: [f64; 23] = [
    25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// A counter that can also be read here.
#[derive(Debug)]
pub struct Count {
    exported: Counter,
    value: AtomicU64,
}

impl Count {
    /// Adds `n`.
    pub fn increment(&self, n: u64) {
        self.exported.increment(n);
        self.value.fetch_add(n, Ordering::Relaxed);
    }
}

/// Times from an invocation's arrival to its answer, by what the answer was.
#[derive(Debug)]
pub struct Latencies {
    completed: Histogram,
    failed: Histogram,
    deadline: Histogram,
    cancelled: Histogram,
}

impl Latencies {
    /// Handles for one device.
    fn new(device: &str) -> Self {
        let outcome = |outcome: &'static str| histogram!("pappus_invocation_seconds", "device" => device.to_owned(), "outcome" => outcome);
        Self {
            completed: outcome("completed"),
            failed: outcome("failed"),
            deadline: outcome("deadline"),
            cancelled: outcome("cancelled"),
        }
    }

    /// Counts an answer that came after so long.
    pub fn record(&self, answer: Answer, ns: u64) {
        let histogram = match answer {
            Answer::Completed => &self.completed,
            Answer::Failed => &self.failed,
            Answer::Deadline => &self.deadline,
            Answer::Cancelled => &self.cancelled,
        };
        histogram.record(ns as f64 * 1e-9);
    }
}

/// What an invocation was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It succeeded.
    Completed,
    /// The call failed, for a reason that is not listed below.
    Failed,
    /// The deadline passed while the call waited or ran.
    Deadline,
    /// The client gave the call up.
    Cancelled,
}

/// For invocations that end before a device is chosen, while their function is being loaded; none where nothing is
/// exported.
pub fn unplaced() -> Option<&'static Latencies> {
    UNPLACED.get()
}

static UNPLACED: OnceLock<Latencies> = OnceLock::new();

/// What happened to weights on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightCounts {
    /// Calls of functions with weights that were handed to workers.
    pub calls: u64,
    /// Those whose weights were in the worker already, or on their way.
    pub hits: u64,
    /// Loads from the host's copy.
    pub loads: u64,
    /// Their bytes.
    pub loaded_bytes: u64,
    /// Of the loads, those that began before a call was handed to a worker for them.
    pub ahead: u64,
    /// Loads that took the memory of the weights that they replace.
    pub reused: u64,
    /// Weights that left the device for others, or for calls.
    pub evictions: u64,
}

/// What happens on one device.
#[derive(Debug)]
pub struct DeviceMetrics {
    /// Invocations that succeeded.
    pub completed: Counter,
    /// Invocations that were accepted and failed.
    pub failed: Count,
    /// Jobs of several invocations that ran side by side.
    pub batches: Counter,
    /// The invocations in them.
    pub batched: Counter,
    /// How long invocations waited for company, all together.
    pub batch_wait: Gauge,
    /// Invocations refused because the queue was full.
    pub rejected: Counter,
    /// Worker processes that replaced another.
    pub restarts: Counter,
    /// Uses of functions that were refused because they keep failing.
    pub quarantines: Counter,
    /// Functions that are refused to a caller now.
    pub quarantined: Gauge,
    /// Callers whose fault budget is spent now.
    pub spent_budgets: Gauge,
    /// Workers that were scrubbed for another domain.
    pub scrubs: Counter,
    /// From arrival to answer.
    pub seconds: Arc<Latencies>,
    /// Invocations waiting.
    pub queued: Gauge,
    /// Invocations in workers.
    pub running: Gauge,
    /// Worker processes that are there or coming.
    pub workers: Gauge,
    /// Of these, those that serve a domain.
    pub residents: Gauge,
    /// Of these, those that tenants share.
    pub shared: Gauge,
    /// Uses of functions that are kept out of workers that tenants share.
    pub kept_apart: Gauge,
    /// The most worker processes that there may be.
    pub workers_at_most: Gauge,
    /// Standbys that are ready.
    pub standbys_ready: Gauge,
    /// Standbys that there should be.
    pub standbys_wanted: Gauge,
    /// 1 if no worker gets ready, else 0.
    pub lost: Gauge,
    /// What its memory is used for.
    pub memory: MemoryGauges,
    /// Device memory that lanes have for calls.
    pub lent_bytes: Gauge,
    /// Bytes of weights that are there for calls.
    pub weights_bytes: Gauge,
    /// Calls of functions with weights, by whether those were there.
    pub weights_hits: Counter,
    /// The others of these calls.
    pub weights_misses: Counter,
    /// Bytes of weights that were loaded.
    pub weights_loaded: Counter,
    /// Weights that gave way.
    pub weights_evictions: Counter,
}

impl DeviceMetrics {
    /// Handles for one device.
    pub fn new(device: &str) -> Self {
        let outcome = |outcome: &'static str| counter!("pappus_invocations_total", "device" => device.to_owned(), "outcome" => outcome);
        let weights = |weights: &'static str| counter!("pappus_weights_calls_total", "device" => device.to_owned(), "weights" => weights);
        Self {
            completed: outcome("completed"),
            failed: Count { exported: outcome("failed"), value: AtomicU64::new(0) },
            batches: counter!("pappus_batches_total", "device" => device.to_owned()),
            batch_wait: gauge!("pappus_batch_wait_seconds", "device" => device.to_owned()),
            batched: counter!("pappus_batched_invocations_total", "device" => device.to_owned()),
            rejected: outcome("rejected"),
            restarts: counter!("pappus_worker_restarts_total", "device" => device.to_owned()),
            quarantines: counter!("pappus_quarantine_refusals_total", "device" => device.to_owned()),
            quarantined: gauge!("pappus_quarantined_functions", "device" => device.to_owned()),
            spent_budgets: gauge!("pappus_spent_fault_budgets", "device" => device.to_owned()),
            scrubs: counter!("pappus_worker_scrubs_total", "device" => device.to_owned()),
            seconds: Arc::new(Latencies::new(device)),
            queued: gauge!("pappus_queued", "device" => device.to_owned()),
            running: gauge!("pappus_running", "device" => device.to_owned()),
            workers: gauge!("pappus_workers", "device" => device.to_owned()),
            residents: gauge!("pappus_residents", "device" => device.to_owned()),
            shared: gauge!("pappus_shared_workers", "device" => device.to_owned()),
            kept_apart: gauge!("pappus_kept_apart", "device" => device.to_owned()),
            workers_at_most: gauge!("pappus_workers_at_most", "device" => device.to_owned()),
            standbys_ready: gauge!("pappus_standbys_ready", "device" => device.to_owned()),
            standbys_wanted: gauge!("pappus_standbys_wanted", "device" => device.to_owned()),
            lost: gauge!("pappus_device_lost", "device" => device.to_owned()),
            memory: MemoryGauges::new(device),
            lent_bytes: gauge!("pappus_lent_bytes", "device" => device.to_owned()),
            weights_bytes: gauge!("pappus_weights_bytes", "device" => device.to_owned()),
            weights_hits: weights("there"),
            weights_misses: weights("loaded"),
            weights_loaded: counter!("pappus_weights_loaded_bytes_total", "device" => device.to_owned()),
            weights_evictions: counter!("pappus_weights_evictions_total", "device" => device.to_owned()),
        }
    }

    /// Bytes of weights on the device, and what happened to weights since the start.
    pub fn weights(&self, bytes: u64, counts: &WeightCounts) {
        self.weights_bytes.set(bytes as f64);
        self.weights_hits.absolute(counts.hits);
        self.weights_misses.absolute(counts.calls - counts.hits);
        self.weights_loaded.absolute(counts.loaded_bytes);
        self.weights_evictions.absolute(counts.evictions);
    }

    /// Failed invocations since the start.
    pub fn failed_so_far(&self) -> u64 {
        self.failed.value.load(Ordering::Relaxed)
    }
}

/// What the memory of one device is used for: the account that `status` shows. Together they are the setting `memory`.
#[derive(Debug)]
pub struct MemoryGauges {
    /// What processes take for themselves.
    pub contexts: Gauge,
    /// Stacks of kernels that ran.
    pub stacks: Gauge,
    /// What lanes were lent, of processes that are not reaped too.
    pub leases: Gauge,
    /// Weights, those included that a worker is still to forget.
    pub weights: Gauge,
    /// The rest.
    pub free: Gauge,
}

impl MemoryGauges {
    fn new(device: &str) -> Self {
        let part =
            |part: &'static str| gauge!("pappus_memory_bytes", "device" => device.to_owned(), "part" => part);
        Self {
            contexts: part("contexts"),
            stacks: part("stacks"),
            leases: part("leases"),
            weights: part("weights"),
            free: part("free"),
        }
    }
}

/// Counters of the socket.
#[derive(Debug)]
pub struct SocketMetrics {
    /// Connections that are open.
    pub open: Gauge,
    /// Connections accepted.
    pub connections: Counter,
    /// Connections ended because the client broke the protocol.
    pub violations: Counter,
    /// Tokens of gateways that are no tenant's.
    pub wrong_tokens: Counter,
}

impl SocketMetrics {
    /// The handles.
    pub fn new() -> Self {
        Self {
            open: gauge!("pappus_open_connections"),
            connections: counter!("pappus_connections_total"),
            violations: counter!("pappus_protocol_violations_total"),
            wrong_tokens: counter!("pappus_wrong_tokens_total"),
        }
    }
}

impl Default for SocketMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Device time that a tenant used on a device.
pub fn tenant_seconds(device: &str, tenant: &str) -> Gauge {
    gauge!("pappus_tenant_device_seconds", "device" => device.to_owned(), "tenant" => tenant.to_owned())
}

/// What is registered, by all tenants.
pub fn registered(functions: u64, modules: u64) {
    gauge!("pappus_functions").set(functions as f64);
    gauge!("pappus_modules").set(modules as f64);
}

/// Open sessions of all tenants, and what their state takes.
pub fn sessions(open: usize, bytes: u64) {
    gauge!("pappus_sessions").set(open as f64);
    gauge!("pappus_session_bytes").set(bytes as f64);
}

/// Room on the disk of the state directory for this user.
pub fn state_free(bytes: u64) {
    gauge!("pappus_state_free_bytes").set(bytes as f64);
}

/// Publishes whether calls can be made and functions registered, and which reasons there are against it.
pub fn ready(reasons: impl Iterator<Item = (&'static str, bool)>) {
    let mut ready = true;
    for (reason, holds) in reasons {
        ready &= !holds;
        gauge!("pappus_not_ready", "reason" => reason).set(f64::from(u8::from(holds)));
    }
    gauge!("pappus_ready").set(f64::from(u8::from(ready)));
}

/// A line of the log that somebody should see, also where so many of its kind come that it is left out.
pub fn log_line(level: &'static str) {
    log_lines(level).increment(1);
}

fn log_lines(level: &'static str) -> Counter {
    counter!("pappus_log_lines_total", "level" => level)
}

/// A request was refused, or a connection closed, because a quota is reached: a tenant's, or what all have together.
pub fn quota_refusal(limit: Limit) {
    if let Some(refusals) = QUOTA_REFUSALS.get() {
        refusals[limit as usize].increment(1);
    }
}

static QUOTA_REFUSALS: OnceLock<[Counter; Limit::ALL.len()]> = OnceLock::new();

/// A worker process made a system call that its sandbox does not have.
pub fn sandbox_violation() {
    sandbox_violations().increment(1);
}

fn sandbox_violations() -> Counter {
    counter!("pappus_sandbox_violations_total")
}

/// Says what every metric means, and makes those that no device and no socket has, so that they start at 0.
pub(crate) fn describe() {
    describe_gauge!("pappus_build_info", "Always 1; which build this is");
    describe_gauge!("pappus_ready", "Whether calls can be made and functions be registered");
    describe_gauge!("pappus_not_ready", "Whether this is a reason why the supervisor is not ready");
    describe_counter!(
        "pappus_log_lines_total",
        "Lines of the log of level warn and error, left out ones too"
    );
    describe_gauge!("pappus_functions", "Registered functions");
    describe_gauge!("pappus_modules", "Registered modules");
    describe_gauge!("pappus_open_connections", "Connections that are open");
    describe_gauge!("pappus_sessions", "Sessions that are open");
    describe_gauge!(
        "pappus_session_bytes",
        Unit::Bytes,
        "Memory of their state, of the host twice over or of a GPU"
    );
    describe_gauge!("pappus_state_free_bytes", Unit::Bytes, "Room on the disk of the state directory");
    describe_gauge!("pappus_device_lost", "Whether no worker of the device gets ready");
    describe_gauge!("pappus_workers_at_most", "The most worker processes that there may be");
    describe_gauge!("pappus_standbys_ready", "Processes that are ready to take a worker's place");
    describe_gauge!("pappus_standbys_wanted", "Processes that should be ready to take a worker's place");
    describe_gauge!("pappus_memory_bytes", Unit::Bytes, "What the memory of the device is used for");
    gauge!("pappus_build_info", "version" => pappus_version::VERSION).set(1.0);
    state_free(0);
    log_lines("warn").increment(0);
    log_lines("error").increment(0);
    describe_counter!("pappus_invocations_total", "Invocations by device and outcome");
    describe_histogram!(
        "pappus_invocation_seconds",
        Unit::Seconds,
        "From an invocation's arrival to its answer, by device and outcome"
    );
    describe_counter!("pappus_batches_total", "Runs of several invocations side by side");
    describe_gauge!("pappus_batch_wait_seconds", "Time that invocations waited for others to run with");
    describe_counter!("pappus_batched_invocations_total", "Invocations that ran side by side with others");
    describe_counter!("pappus_worker_restarts_total", "Worker processes that replaced another");
    describe_counter!("pappus_worker_scrubs_total", "Workers that were cleared for another tenant");
    describe_counter!("pappus_connections_total", "Connections accepted");
    describe_counter!("pappus_protocol_violations_total", "Connections ended for breaking the protocol");
    describe_counter!(
        "pappus_wrong_tokens_total",
        "Connections of gateways ended and requests refused for a token that is no tenant's"
    );
    describe_counter!(
        "pappus_sandbox_violations_total",
        "Processes ended for a system call that their sandbox does not have"
    );
    describe_counter!(
        "pappus_quarantine_refusals_total",
        "Calls refused because their function keeps failing"
    );
    describe_gauge!("pappus_quarantined_functions", "Functions refused to a caller");
    describe_gauge!("pappus_spent_fault_budgets", "Callers that wait for their fault budget");
    describe_gauge!(
        "pappus_tenant_device_seconds",
        Unit::Seconds,
        "Device time that a tenant used since the start"
    );
    describe_gauge!("pappus_queued", "Invocations waiting");
    describe_gauge!("pappus_running", "Invocations in workers");
    describe_gauge!("pappus_workers", "Worker processes that are there or coming");
    describe_gauge!("pappus_residents", "Workers that serve a domain");
    describe_gauge!("pappus_shared_workers", "Workers that tenants share");
    describe_gauge!("pappus_kept_apart", "Uses of functions that are kept out of workers that tenants share");
    describe_gauge!("pappus_lent_bytes", Unit::Bytes, "Device memory that lanes of workers have for calls");
    describe_gauge!("pappus_weights_bytes", Unit::Bytes, "Weights that are on the device");
    describe_counter!(
        "pappus_weights_calls_total",
        "Calls of functions with weights, by whether those were there or had to be loaded"
    );
    describe_counter!("pappus_weights_loaded_bytes_total", Unit::Bytes, "Weights that were loaded");
    describe_counter!("pappus_weights_evictions_total", "Weights that gave way to others, or to calls");
    sandbox_violations().increment(0);
    describe_counter!(
        "pappus_quota_refusals_total",
        "Requests refused, and connections closed, because a tenant has as much of something as it may"
    );
    // Set once: a process has one recorder.
    let _ = QUOTA_REFUSALS
        .set(Limit::ALL.map(|limit| counter!("pappus_quota_refusals_total", "quota" => limit.name())));
    let _ = UNPLACED.set(Latencies::new("none"));
}
