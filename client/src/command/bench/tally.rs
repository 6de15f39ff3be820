//! What became of the calls of one tenant in one run. Times are counted from the start of the run; who measures has the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The code of calls that were answered too late, whoever noticed.
pub(super) const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";
/// The code of calls that were not sent in time, since too many others were on their way.
pub(super) const NOT_SENT: &str = "NOT_SENT";

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallError {
    /// The class of the error.
    pub(super) code: String,
    /// What was said of it; may be empty.
    pub(super) said: String,
}

impl From<&str> for CallError {
    fn from(code: &str) -> Self {
        Self { code: code.to_owned(), said: String::new() }
    }
}

/// What is shown of a distribution.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Which calls count, and when one is too late.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Calls that are due before this moment are the warm-up.
    pub(super) from: Duration,
    /// Calls that are due from here on do not count.
    pub(super) to: Duration,
    /// Answers from here on do not count: later, where no calls follow whose answers would take their places.
    pub(super) until: Duration,
    /// How long behind the moment at which a call was due an answer may come.
    pub(super) deadline: Duration,
}

impl Rules {
    fn counts(&self, due: Duration) -> bool {
        self.from <= due && due < self.to
    }
}

/// The counts and distributions of one tenant.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    rules: Rules,
    /// Calls that were due.
    pub(super) due: u64,
    /// Calls that were answered in time.
    pub(super) answered: u64,
    /// Answers in time that came within the measured time, also those to calls of the warm-up.
    pub(super) came: u64,
    /// Calls that failed, by code.
    pub(super) errors: BTreeMap<String, u64>,
    /// What was said of the first error of each code.
    pub(super) said: BTreeMap<String, String>,
    /// From the moment at which a call was due to its answer, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// From the moment at which a call was sent.
    pub(super) service: Histogram<u64>,
    /// By how much the generator sent calls after they were due.
    pub(super) late: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(rules: Rules) -> Self {
        // Three digits tell tenths of a percent apart.
        let histogram =
            || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap_or_else(|_| unreachable());
        let (latency, service, late) = (histogram(), histogram(), histogram());
        let (errors, said) = (BTreeMap::new(), BTreeMap::new());
        Self { rules, due: 0, answered: 0, came: 0, errors, said, latency, service, late }
    }

    /// A call was due, and the generator got to it at this moment.
    pub(super) fn begins(&mut self, due: Duration, now: Duration) {
        if self.rules.counts(due) {
            self.due += 1;
            record(&mut self.late, now.saturating_sub(due));
        }
    }

    /// True if a call that was not sent by now cannot be answered in time.
    pub(super) fn is_too_late(&self, due: Duration, now: Duration) -> bool {
        now >= due + self.rules.deadline
    }

    /// What is left of the time of a call.
    pub(super) fn left(&self, due: Duration, now: Duration) -> Duration {
        (due + self.rules.deadline).saturating_sub(now)
    }

    /// A call that was sent has ended, by an answer or with the code of an error.
    pub(super) fn ends(&mut self, due: Duration, sent: Duration, now: Duration, end: Result<(), CallError>) {
        let end = match end {
            Ok(()) if now > due + self.rules.deadline => Err(DEADLINE_EXCEEDED.into()),
            other => other,
        };
        match end {
            Ok(()) => {
                self.came += u64::from(self.rules.from <= now && now < self.rules.until);
                if self.rules.counts(due) {
                    self.answered += 1;
                    record(&mut self.latency, now.saturating_sub(due));
                    record(&mut self.service, now.saturating_sub(sent));
                }
            }
            Err(error) => self.fails(due, error),
        }
    }

    /// A call failed, whether or not it was sent.
    pub(super) fn fails(&mut self, due: Duration, error: impl Into<CallError>) {
        if self.rules.counts(due) {
            let CallError { code, said } = error.into();
            *self.errors.entry(code.clone()).or_default() += 1;
            self.said.entry(code).or_insert(said);
        }
    }

    /// Adds those of another tenant.
    pub(super) fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.answered += other.answered;
        self.came += other.came;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        for (code, said) in &other.said {
            self.said.entry(code.clone()).or_insert_with(|| said.clone());
        }
        for (all, one) in [
            (&mut self.latency, &other.latency),
            (&mut self.service, &other.service),
            (&mut self.late, &other.late),
        ] {
            // Both have the same bounds.
            let _ = all.add(one);
        }
    }

    /// Calls that failed.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The failed part of all calls; none failed where none was due.
    pub(super) fn failed_share(&self) -> f64 {
        self.failed() as f64 / self.due.max(1) as f64
    }

    /// Answers a second.
    pub(super) fn per_second(&self) -> f64 {
        self.came as f64 / (self.rules.to - self.rules.from).as_secs_f64()
    }

    pub(super) fn p99(&self) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(0.99))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "due": self.due,
            "answered": self.answered,
            "failed": self.failed(),
            "failed_share": self.failed_share(),
            "errors": self.errors,
            "per_second": self.per_second(),
            "latency_ns": quantiles(&self.latency),
            "service_ns": quantiles(&self.service),
            "late_ns": quantiles(&self.late),
            "distribution_ns": distribution(&self.latency),
        })
    }
}

/// The histogram's bounds are constants which its library accepts.
fn unreachable() -> Histogram<u64> {
    unreachable!("a histogram of three digits up to an hour")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    let mut value = json!({"mean": histogram.mean()});
    for (name, at) in QUANTILES {
        value[name] = histogram.value_at_quantile(at).into();
    }
    value
}

/// Pairs of a quantile and its latency, closer to each other towards the end.
fn distribution(histogram: &Histogram<u64>) -> Value {
    let points =
        histogram.iter_quantiles(2).map(|point| json!([point.quantile(), point.value_iterated_to()]));
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        from: Duration::from_secs(1),
        to: Duration::from_secs(3),
        until: Duration::from_secs(3),
        deadline: Duration::from_millis(500),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_latency_counts_from_when_the_call_was_due() {
        let mut tally = Tally::new(RULES);
        // Due at 1.5 s, sent 100 ms late, answered 10 ms behind that.
        tally.begins(ms(1500), ms(1600));
        tally.ends(ms(1500), ms(1600), ms(1610), Ok(()));
        let json = tally.to_json();
        let close = |key: &str, expected: u64| {
            let ns = json[key]["p50"].as_u64().unwrap();
            assert!(ns.abs_diff(expected) <= expected / 500, "{key}: {ns}");
        };
        close("latency_ns", 110_000_000);
        close("service_ns", 10_000_000);
        close("late_ns", 100_000_000);
    }

    #[test]
    fn the_warm_up_and_what_is_due_behind_the_end_do_not_count() {
        let mut tally = Tally::new(RULES);
        for due in [0, 999, 1000, 2999, 3000] {
            tally.begins(ms(due), ms(due));
            tally.ends(ms(due), ms(due), ms(due + 2), Ok(()));
        }
        for due in [500, 2000, 3500] {
            tally.begins(ms(due), ms(due));
            tally.fails(ms(due), NOT_SENT);
        }
        assert_eq!((tally.due, tally.answered, tally.failed()), (3, 2, 1));
        // Of the two answers around each end, one came within.
        assert_eq!((tally.came, tally.per_second()), (2, 1.0));
    }

    #[test]
    fn behind_a_trace_answers_still_count() {
        let mut tally = Tally::new(Rules { until: Duration::MAX, ..RULES });
        for due in [1000, 2999] {
            tally.begins(ms(due), ms(due));
            tally.ends(ms(due), ms(due), ms(due + 200), Ok(()));
        }
        assert_eq!((tally.due, tally.came), (2, 2));
    }

    #[test]
    fn an_answer_behind_the_deadline_is_a_failure() {
        let mut tally = Tally::new(RULES);
        for (due, now) in [(1000, 1500), (1000, 1501)] {
            tally.begins(ms(due), ms(due));
            tally.ends(ms(due), ms(due), ms(now), Ok(()));
        }
        tally.begins(ms(1000), ms(1000));
        tally.ends(ms(1000), ms(1000), ms(1001), Err("NOT_FOUND".into()));
        let expected = BTreeMap::from([(DEADLINE_EXCEEDED.to_owned(), 1), ("NOT_FOUND".to_owned(), 1)]);
        assert_eq!((tally.answered, &tally.errors), (1, &expected));
        assert!((tally.failed_share() - 2.0 / 3.0).abs() < 1e-9);
        assert!(!tally.is_too_late(ms(1000), ms(1499)) && tally.is_too_late(ms(1000), ms(1500)));
        assert_eq!((tally.left(ms(1000), ms(1400)), tally.left(ms(1000), ms(1600))), (ms(100), ms(0)));
    }

    #[test]
    fn tenants_are_added_up() {
        let mut all = Tally::new(RULES);
        for latency in [10, 30] {
            let mut one = Tally::new(RULES);
            one.begins(ms(1000), ms(1000));
            one.ends(ms(1000), ms(1000), ms(1000 + latency), Ok(()));
            one.fails(ms(1000), NOT_SENT);
            all.add(&one);
        }
        assert_eq!((all.due, all.answered, all.errors[NOT_SENT], all.latency.len()), (2, 2, 2, 2));
        assert!(all.p99().abs_diff(ms(30)) < ms(1));
    }
}
