//! What was inferred with the versions of functions by one caller, as the protocol's statistics count it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pappus_client::v1;

use crate::failure::Reason;
use crate::limits::MAX_MODELS_PER_TOKEN;

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

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // The counts are whole after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Versions of one function, by number.
type Versions = BTreeMap<u32, Arc<Statistics>>;

/// Counts of the versions of one caller's functions. Of more than there may be, those begin anew whose last success is longest ago.
#[derive(Debug, Default)]
pub struct ByVersion(Mutex<HashMap<String, Versions>>);

impl ByVersion {
    /// Those of a version, which go on.
    pub fn of(&self, function: &str, version: u32) -> Arc<Statistics> {
        let mut all = self.lock();
        if let Some(known) = all.get(function).and_then(|versions| versions.get(&version)) {
            return known.clone();
        }
        if all.values().map(BTreeMap::len).sum::<usize>() >= MAX_MODELS_PER_TOKEN {
            let of_function = |versions: &Versions| {
                let unused = versions.iter().filter(|(_, counts)| Arc::strong_count(counts) == 1);
                unused.map(|(version, counts)| (counts.counts().last_ms, *version)).min()
            };
            let oldest = all.values_mut().filter_map(|versions| Some((of_function(versions)?, versions)));
            if let Some(((_, version), versions)) = oldest.min_by_key(|((last_ms, _), _)| *last_ms) {
                versions.remove(&version);
            }
            all.retain(|_, versions| !versions.is_empty());
        }
        all.entry(function.to_owned()).or_default().entry(version).or_default().clone()
    }

    /// What was counted of a version so far.
    pub fn counts(&self, function: &str, version: u32) -> Counts {
        let all = self.lock();
        let known = all.get(function).and_then(|versions| versions.get(&version));
        known.map(|counts| counts.counts()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Versions>> {
        // The map is whole after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_apart_and_the_one_of_longest_ago_begins_anew() {
        let all = ByVersion::default();
        let took = |version: u32| {
            let counts = all.of("f", version);
            counts.succeeded(Duration::from_millis(1), &v1::Timings::default());
            counts.lock().last_ms = version.into();
        };
        (1..=MAX_MODELS_PER_TOKEN as u32).for_each(took);
        let count = |function, version| all.counts(function, version).success.count;
        took(2);
        assert_eq!((count("f", 1), count("f", 2), count("f", 3), count("g", 1)), (1, 2, 1, 0));
        // One that is under way stays, whenever it succeeded.
        let under_way = all.of("f", 1);
        all.of("g", 1).failed(Duration::ZERO, Reason::Other);
        assert_eq!(
            (count("f", 1), count("f", 2), count("f", 3), all.counts("g", 1).fail.count),
            (1, 0, 1, 1)
        );
        drop(under_way);
        // One that never succeeded goes first.
        drop(all.of("h", 1));
        assert_eq!((count("f", 1), all.counts("g", 1).fail.count), (1, 0));
    }
}
