//! What the process itself takes, under the names that Prometheus' own libraries use for it: read when somebody asks.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Says what they mean, and when the process started: now.
pub(super) fn describe() {
    describe_gauge!("process_start_time_seconds", Unit::Seconds, "When the supervisor started, since 1970");
    describe_gauge!("process_resident_memory_bytes", Unit::Bytes, "Memory of the supervisor itself");
    describe_gauge!("process_open_fds", "Descriptors that the supervisor has open");
    describe_gauge!("process_max_fds", "Descriptors that it may have open");
    describe_gauge!("process_threads", "Its threads");
    describe_counter!(
        "process_cpu_seconds_total",
        Unit::Seconds,
        "Processor time of the supervisor itself, in whole seconds"
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!("process_start_time_seconds").set(now.as_secs_f64());
}

/// Reads them. What cannot be read stays as it was.
pub(super) fn export() {
    if let Some(pages) = std::fs::read_to_string("/proc/self/statm").ok().and_then(|text| resident(&text)) {
        gauge!("process_resident_memory_bytes").set((pages * page_size() as u64) as f64);
    }
    let entries = |folder| std::fs::read_dir(folder).map(|entries| entries.count());
    if let Ok(open) = entries("/proc/self/fd") {
        // One descriptor is the folder that is being read.
        gauge!("process_open_fds").set(open.saturating_sub(1) as f64);
    }
    if let Ok(threads) = entries("/proc/self/task") {
        gauge!("process_threads").set(threads as f64);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        gauge!("process_max_fds").set(most as f64);
    }
    let used = clock_gettime(ClockId::ProcessCPUTime);
    counter!("process_cpu_seconds_total").absolute(used.tv_sec.unsigned_abs());
}

/// Resident pages, of a `statm` file: the second number.
fn resident(statm: &str) -> Option<u64> {
    statm.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_are_the_second_number() {
        assert_eq!(resident("5000 1234 900 1 0 800 0\n"), Some(1234));
        assert_eq!([resident(""), resident("5000"), resident("a b")], [None; 3]);
        let own = std::fs::read_to_string("/proc/self/statm").unwrap();
        assert!(resident(&own).unwrap() > 10);
    }
}
