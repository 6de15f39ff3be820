//! How the latencies of many calls are distributed, as a whole and by stage.

use std::io::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use pappus_client::v1::Timings;
use serde_json::{Value, json};

use crate::json::stage_key;
use crate::stages;
use crate::table::{Align, Table};
use crate::units::nanoseconds;

/// What is shown of a distribution.
const QUANTILES: [(&str, f64); 5] = [("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

/// A histogram for each stage, in nanoseconds.
pub(super) struct Latencies {
    stages: Vec<(&'static str, Histogram<u64>)>,
    /// Of a call at least, clearing was no part of the total.
    cleared_before: bool,
}

impl Latencies {
    /// Nothing recorded yet.
    pub(super) fn new() -> Self {
        let names = stages::rows(&Timings::default()).map(|(name, _)| name);
        // Three digits are exact enough to tell tenths of a percent apart.
        let histogram = |name| Histogram::new(3).ok().map(|histogram| (name, histogram));
        let stages = names.into_iter().chain(["round trip"]).filter_map(histogram).collect();
        Self { stages, cleared_before: false }
    }

    /// Adds one call.
    pub(super) fn record(&mut self, round_trip: Duration, timings: &Timings) {
        self.cleared_before |= stages::cleared_before(timings);
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        let values = stages::rows(timings).map(|(_, ns)| ns).into_iter().chain([round_trip]);
        for ((_, histogram), ns) in self.stages.iter_mut().zip(values) {
            // The histogram grows: there is room for every value.
            let _ = histogram.record(ns);
        }
    }

    /// A row for each stage.
    pub(super) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut columns = vec![("STAGE", Align::Left)];
        columns.extend(QUANTILES.map(|(name, _)| (name, Align::Right)));
        let mut table = Table::new(&columns);
        for (name, histogram) in &self.stages {
            let [min, p50, p90, p99, max] = QUANTILES.map(|(_, at)| nanoseconds(quantile(histogram, at)));
            table.row([(*name).to_owned(), min, p50, p90, p99, max]);
        }
        table.print(out)?;
        match self.cleared_before {
            true => writeln!(out, "{}", stages::CLEARED_BEFORE),
            false => Ok(()),
        }
    }

    /// An object for each stage.
    pub(super) fn to_json(&self) -> Value {
        let stages = self.stages.iter().map(|(name, histogram)| {
            let quantiles = QUANTILES.map(|(name, at)| (name.to_owned(), json!(quantile(histogram, at))));
            (stage_key(name), Value::Object(quantiles.into_iter().collect()))
        });
        stages.collect()
    }
}

/// A quantile; the ends are exact up to the histogram's resolution.
fn quantile(histogram: &Histogram<u64>, at: f64) -> u64 {
    if at == 0.0 { histogram.min() } else { histogram.value_at_quantile(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::new();
        for at in 1..=100 {
            let timings = Timings { execute_ns: at, ..Timings::default() };
            latencies.record(Duration::from_secs(at), &timings);
        }
        let value = latencies.to_json();
        assert_eq!(value["execute_ns"], json!({"min": 1, "p50": 50, "p90": 90, "p99": 99, "max": 100}));
        let p50 = value["round_trip_ns"]["p50"].as_u64().unwrap();
        assert!(p50.abs_diff(50_000_000_000) < 50_000_000, "{p50}");
        assert_eq!(value["queued_ns"]["max"], 0);
        let shown = |latencies: &Latencies| {
            let mut out = anstream::StripStream::new(Vec::new());
            latencies.print(&mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap()
        };
        assert!(!shown(&latencies).contains("clear:"));
        latencies.record(Duration::ZERO, &Timings { clear_ns: 2, total_ns: 1, ..Timings::default() });
        assert!(shown(&latencies).ends_with("no part of the total\n"));
    }
}
