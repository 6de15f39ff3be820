//! Counters and their optional Prometheus endpoint. Handles are made once; the hot path only adds.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

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

/// What happens on one device.
#[derive(Debug)]
pub struct DeviceMetrics {
    /// Invocations that succeeded.
    pub completed: Counter,
    /// Invocations that were accepted and failed.
    pub failed: Count,
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
    /// Seconds from arrival to answer.
    pub seconds: Histogram,
    /// Invocations waiting.
    pub queued: Gauge,
    /// Invocations in workers.
    pub running: Gauge,
}

impl DeviceMetrics {
    /// Handles for one device.
    pub fn new(device: &str) -> Self {
        let outcome = |outcome: &'static str| counter!("pappus_invocations_total", "device" => device.to_owned(), "outcome" => outcome);
        Self {
            completed: outcome("completed"),
            failed: Count { exported: outcome("failed"), value: AtomicU64::new(0) },
            rejected: outcome("rejected"),
            restarts: counter!("pappus_worker_restarts_total", "device" => device.to_owned()),
            quarantines: counter!("pappus_quarantine_refusals_total", "device" => device.to_owned()),
            quarantined: gauge!("pappus_quarantined_functions", "device" => device.to_owned()),
            spent_budgets: gauge!("pappus_spent_fault_budgets", "device" => device.to_owned()),
            scrubs: counter!("pappus_worker_scrubs_total", "device" => device.to_owned()),
            seconds: histogram!("pappus_invocation_seconds", "device" => device.to_owned()),
            queued: gauge!("pappus_queued", "device" => device.to_owned()),
            running: gauge!("pappus_running", "device" => device.to_owned()),
        }
    }

    /// Failed invocations since the start.
    pub fn failed_so_far(&self) -> u64 {
        self.failed.value.load(Ordering::Relaxed)
    }
}

/// Counters of the socket.
#[derive(Debug)]
pub struct SocketMetrics {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections ended because the client broke the protocol.
    pub violations: Counter,
}

impl SocketMetrics {
    /// The handles.
    pub fn new() -> Self {
        Self {
            connections: counter!("pappus_connections_total"),
            violations: counter!("pappus_protocol_violations_total"),
        }
    }
}

impl Default for SocketMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A worker process made a system call that its sandbox does not have.
pub fn sandbox_violation() {
    counter!("pappus_sandbox_violations_total").increment(1);
}

/// Serves the counters; must run inside the runtime and before any handle is made.
pub fn serve(address: SocketAddr) -> Result<(), metrics_exporter_prometheus::BuildError> {
    metrics_exporter_prometheus::PrometheusBuilder::new().with_http_listener(address).install()?;
    metrics::describe_counter!("pappus_invocations_total", "Invocations by device and outcome");
    metrics::describe_counter!("pappus_worker_restarts_total", "Worker processes that replaced another");
    metrics::describe_counter!("pappus_connections_total", "Connections accepted");
    metrics::describe_counter!(
        "pappus_protocol_violations_total",
        "Connections ended for breaking the protocol"
    );
    metrics::describe_counter!(
        "pappus_sandbox_violations_total",
        "Processes ended for a system call that their sandbox does not have"
    );
    metrics::describe_histogram!(
        "pappus_invocation_seconds",
        metrics::Unit::Seconds,
        "From arrival to answer"
    );
    metrics::describe_counter!(
        "pappus_quarantine_refusals_total",
        "Calls refused because their function keeps failing"
    );
    metrics::describe_gauge!("pappus_quarantined_functions", "Functions refused to a caller");
    metrics::describe_gauge!("pappus_spent_fault_budgets", "Callers that wait for their fault budget");
    metrics::describe_gauge!("pappus_queued", "Invocations waiting");
    metrics::describe_gauge!("pappus_running", "Invocations in workers");
    Ok(())
}
