//! How a function was used since it came into memory: for whoever watches, not for any decision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of one function's calls.
#[derive(Debug, Default)]
pub struct Uses {
    completed: AtomicU64,
    failed: AtomicU64,
    device_ns: AtomicU64,
}

/// The counts at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Calls that ended well.
    pub completed: u64,
    /// Calls that ended otherwise once they were accepted.
    pub failed: u64,
    /// Device time of calls that ended well.
    pub device_ns: u64,
}

impl Uses {
    /// A call ended well, having taken so much of a device.
    pub fn ran(&self, took: Duration) {
        self.completed.fetch_add(1, Ordering::Relaxed);
        self.device_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A call ended otherwise.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now; none where there was no call.
    pub fn now(&self) -> Option<Used> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let used = Used {
            completed: load(&self.completed),
            failed: load(&self.failed),
            device_ns: load(&self.device_ns),
        };
        (used != Used::default()).then_some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_how_they_end() {
        let uses = Uses::default();
        assert_eq!(uses.now(), None);
        uses.ran(Duration::from_nanos(7));
        uses.ran(Duration::from_nanos(5));
        uses.failed();
        assert_eq!(uses.now(), Some(Used { completed: 2, failed: 1, device_ns: 12 }));
    }
}
