//! What was inferred with one function by one caller, as the protocol's statistics count it.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pappus_client::v1;

use crate::failure::Reason;

/// How often something happened, and how long it took in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Times.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Tally {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// Counts of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Milliseconds since 1970 at the last success; 0 where there was none.
    pub last_ms: u64,
    /// Inferences that succeeded, from their arrival at the gateway.
    pub success: Tally,
    /// Inferences that failed.
    pub fail: Tally,
    /// Waiting for a worker.
    pub queue: Tally,
    /// Copying inputs.
    pub compute_input: Tally,
    /// Running kernels.
    pub compute_infer: Tally,
    /// Copying outputs.
    pub compute_output: Tally,
    /// Those that failed, by reason.
    pub reasons: [u64; Reason::ALL.len()],
}

/// Counts that go on.
#[derive(Debug, Default)]
pub struct Statistics(Mutex<Counts>);

impl Statistics {
    /// An inference succeeded after `took`; its call had these timings.
    pub fn succeeded(&self, took: Duration, timings: &v1::Timings) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut counts = self.lock();
        counts.last_ms = now.as_millis() as u64;
        counts.success.add(took.as_nanos() as u64);
        counts.queue.add(timings.queued_ns);
        counts.compute_input.add(timings.copy_in_ns);
        counts.compute_infer.add(timings.execute_ns);
        counts.compute_output.add(timings.copy_out_ns);
    }

    /// An inference failed after `took`.
    pub fn failed(&self, took: Duration, reason: Reason) {
        let mut counts = self.lock();
        counts.fail.add(took.as_nanos() as u64);
        counts.reasons[reason as usize] += 1;
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        // The counts are whole after every step.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
