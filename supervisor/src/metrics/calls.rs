//! Calls of one tenant or of one function: how they were answered, and how long each stage of them took.
//!
//! Who answers a call only adds to counts that its tenant and its function hold already; all names are looked up once, when a
//! tenant or a function comes into memory. Kinds of series are bounded: what comes after the first thousand tenants or
//! functions is counted together, as [`OTHERS`], until something is forgotten that nothing in memory holds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use pappus_proto::Code;
use pappus_proto::v1::Timings;
use pappus_proto::v1::response::Body;

use crate::sync::{OrderedMutex, rank};

/// Upper bounds of the buckets that times of stages are counted in, in nanoseconds and as they are written.
const BOUNDS: [(u64, &str); 15] = [
    (10_000, "0.00001"),
    (30_000, "0.00003"),
    (100_000, "0.0001"),
    (300_000, "0.0003"),
    (1_000_000, "0.001"),
    (3_000_000, "0.003"),
    (10_000_000, "0.01"),
    (30_000_000, "0.03"),
    (100_000_000, "0.1"),
    (300_000_000, "0.3"),
    (1_000_000_000, "1"),
    (3_000_000_000, "3"),
    (10_000_000_000, "10"),
    (30_000_000_000, "30"),
    (100_000_000_000, "100"),
];
/// Stages of a call that ended well, in their order; the last one is all of it.
const STAGES: [&str; 6] = ["queued", "copy_in", "execute", "copy_out", "clear", "total"];
/// How the first of [`CODES`] is written: a call that ended well.
const OK: &str = "OK";
/// Codes of answers: [`OK`], and those of errors at the places of their numbers.
const CODES: usize = 17;
/// Tenants, and functions, that are counted by name.
const MAX_COUNTED: usize = crate::limits::MAX_TENANTS_SHOWN;
/// The name under which all others are counted; no name of a tenant has parentheses.
const OTHERS: &str = "(others)";

/// Whose calls are exported one by one: the setting `metrics-of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricsOf {
    /// Nobody's: devices alone.
    Devices,
    /// Each tenant's, too.
    Tenants,
    /// Each function's, too.
    Functions,
}

impl MetricsOf {
    /// All values with their names, from the fewest series to the most.
    pub const ALL: [(Self, &str); 3] =
        [(Self::Devices, "devices"), (Self::Tenants, "tenants"), (Self::Functions, "functions")];

    /// As the setting writes it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Times of one stage.
#[derive(Debug, Default)]
struct StageTimes {
    /// By bucket; the last one has no bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

/// Counts of the calls of one tenant or function.
#[derive(Debug, Default)]
pub struct CallCounts {
    by_code: [AtomicU64; CODES],
    stages: [StageTimes; STAGES.len()],
}

impl CallCounts {
    /// Counts an answer.
    pub fn answered(&self, body: &Body) {
        let code = match body {
            Body::Error(error) => error.code,
            _ => 0,
        };
        let known = usize::try_from(code).ok().and_then(|code| self.by_code.get(code));
        known.unwrap_or(&self.by_code[Code::Internal as usize]).fetch_add(1, Ordering::Relaxed);
        if let Body::Invoked(invoked) = body
            && let Some(timings) = &invoked.timings
        {
            self.ran(timings);
        }
    }

    fn ran(&self, timings: &Timings) {
        let Timings { queued_ns, copy_in_ns, execute_ns, copy_out_ns, clear_ns, total_ns } = *timings;
        let times = [queued_ns, copy_in_ns, execute_ns, copy_out_ns, clear_ns, total_ns];
        for (stage, ns) in self.stages.iter().zip(times) {
            let bucket = BOUNDS.partition_point(|(bound, _)| *bound < ns);
            stage.counts[bucket].fetch_add(1, Ordering::Relaxed);
            stage.sum_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// A tenant's name, and a function of it if a function is counted.
type Key = (Arc<str>, String);

/// Tenants or functions that are counted by name.
#[derive(Debug, Default)]
struct Counted {
    by_name: BTreeMap<Key, Arc<CallCounts>>,
    others: Arc<CallCounts>,
}

impl Counted {
    fn of(&mut self, key: Key) -> Arc<CallCounts> {
        if !self.by_name.contains_key(&key) {
            if self.by_name.len() >= MAX_COUNTED {
                self.by_name.retain(|_, counts| Arc::strong_count(counts) > 1);
            }
            if self.by_name.len() >= MAX_COUNTED {
                return self.others.clone();
            }
        }
        self.by_name.entry(key).or_default().clone()
    }

    /// All with calls, by name; the others last.
    fn all(&self) -> Vec<(Key, Arc<CallCounts>)> {
        let by_name = self.by_name.iter().map(|(key, counts)| (key.clone(), counts.clone()));
        let others = ((OTHERS.into(), String::new()), self.others.clone());
        let called = |counts: &CallCounts| counts.by_code.iter().any(|n| n.load(Ordering::Relaxed) > 0);
        by_name.chain([others]).filter(|(_, counts)| called(counts)).collect()
    }
}

static TENANTS: LazyLock<OrderedMutex<Counted, { rank::CALL_METRICS }>> =
    LazyLock::new(OrderedMutex::default);
static FUNCTIONS: LazyLock<OrderedMutex<Counted, { rank::CALL_METRICS }>> =
    LazyLock::new(OrderedMutex::default);

/// What counts a tenant's calls; none where nothing is exported.
pub fn of_tenant(name: &Arc<str>) -> Option<Arc<CallCounts>> {
    super::unplaced()?;
    Some(TENANTS.lock().of((name.clone(), String::new())))
}

/// What counts calls of a function, whoever makes them; none where nothing is exported.
pub fn of_function(owner: &Arc<str>, name: &str) -> Option<Arc<CallCounts>> {
    super::unplaced()?;
    Some(FUNCTIONS.lock().of((owner.clone(), name.to_owned())))
}

/// Writes the series in Prometheus' text format.
pub fn write(of: MetricsOf, text: &mut String) {
    if of >= MetricsOf::Tenants {
        let all = TENANTS.lock().all();
        write_all(
            "pappus_tenant",
            "of a tenant",
            &all,
            |(tenant, _)| format!("tenant=\"{}\"", escaped(tenant)),
            text,
        );
    }
    if of >= MetricsOf::Functions {
        let all = FUNCTIONS.lock().all();
        let labels =
            |(owner, name): &Key| format!("owner=\"{}\",function=\"{}\"", escaped(owner), escaped(name));
        write_all("pappus_function", "of a function", &all, labels, text);
    }
}

fn write_all(
    prefix: &str,
    whose: &str,
    all: &[(Key, Arc<CallCounts>)],
    labels: impl Fn(&Key) -> String,
    text: &mut String,
) {
    if all.is_empty() {
        return;
    }
    let all: Vec<_> = all.iter().map(|(key, counts)| (labels(key), counts)).collect();
    let family = |name: &str, kind: &str, help: &str| {
        format!("# HELP {prefix}_{name} {help} {whose}\n# TYPE {prefix}_{name} {kind}\n")
    };
    text.push_str(&family("calls_total", "counter", "Answers to calls, by code,"));
    for (labels, counts) in &all {
        for (code, n) in counts.by_code.iter().enumerate() {
            let n = n.load(Ordering::Relaxed);
            if n > 0 {
                line(text, format_args!("{prefix}_calls_total{{{labels},code=\"{}\"}} {n}", code_name(code)));
            }
        }
    }
    text.push_str(&family("call_seconds", "histogram", "Times of the stages of successful calls"));
    for (labels, counts) in &all {
        for (stage, times) in STAGES.iter().zip(&counts.stages) {
            let name = format!("{prefix}_call_seconds");
            let labels = format!("{labels},stage=\"{stage}\"");
            let mut below = 0;
            let bounds = BOUNDS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
            for (bound, n) in bounds.zip(&times.counts) {
                below += n.load(Ordering::Relaxed);
                line(text, format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}"));
            }
            let seconds = times.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
            line(text, format_args!("{name}_sum{{{labels}}} {seconds}"));
            line(text, format_args!("{name}_count{{{labels}}} {below}"));
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // A text takes everything.
    let _ = writeln!(text, "{line}");
}

fn code_name(code: usize) -> &'static str {
    match code {
        0 => OK,
        code => i32::try_from(code)
            .ok()
            .and_then(|code| Code::try_from(code).ok())
            .map_or("", |c| c.as_str_name()),
    }
}

/// A value of a label: quotes, backslashes and ends of lines escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use pappus_proto::v1::{Error, Invoked};

    use super::*;

    fn key(tenant: &str) -> Key {
        (tenant.into(), String::new())
    }

    fn ran(ns: u64) -> Body {
        let timings = Timings { execute_ns: ns, total_ns: ns + 1, ..Timings::default() };
        Body::Invoked(Invoked { timings: Some(timings), ..Invoked::default() })
    }

    fn text(counted: &Counted) -> String {
        let mut text = String::new();
        let labels = |(tenant, _): &Key| format!("tenant=\"{}\"", escaped(tenant));
        write_all("pappus_tenant", "of a tenant", &counted.all(), labels, &mut text);
        text
    }

    #[test]
    fn answers_are_counted_by_code_and_stages_by_bucket() {
        let mut counted = Counted::default();
        assert_eq!(text(&counted), "", "no series without calls");
        let counts = counted.of(key("a\"b"));
        assert_eq!(text(&counted), "");
        counts.answered(&ran(10_000));
        counts.answered(&ran(2_000_000_000_000));
        counts.answered(&Body::Error(Error::new(Code::Overrun, "")));
        counts.answered(&Body::Error(Error { code: 9999, ..Error::default() }));
        let text = text(&counted);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}:\n{text}");
        has("# TYPE pappus_tenant_calls_total counter");
        has(r#"pappus_tenant_calls_total{tenant="a\"b",code="OK"} 2"#);
        has(r#"pappus_tenant_calls_total{tenant="a\"b",code="OVERRUN"} 1"#);
        has(r#"pappus_tenant_calls_total{tenant="a\"b",code="INTERNAL"} 1"#);
        has(r#"pappus_tenant_call_seconds_bucket{tenant="a\"b",stage="execute",le="0.00001"} 1"#);
        has(r#"pappus_tenant_call_seconds_bucket{tenant="a\"b",stage="total",le="0.00001"} 0"#);
        has(r#"pappus_tenant_call_seconds_bucket{tenant="a\"b",stage="total",le="0.00003"} 1"#);
        has(r#"pappus_tenant_call_seconds_bucket{tenant="a\"b",stage="total",le="100"} 1"#);
        has(r#"pappus_tenant_call_seconds_bucket{tenant="a\"b",stage="total",le="+Inf"} 2"#);
        has(r#"pappus_tenant_call_seconds_sum{tenant="a\"b",stage="execute"} 2000.00001"#);
        assert!(!text.contains("NOT_FOUND") && !text.contains(OTHERS), "{text}");
    }

    #[test]
    fn those_beyond_the_bound_are_counted_together_until_there_is_room() {
        let mut counted = Counted::default();
        let held: Vec<_> = (0..MAX_COUNTED).map(|n| counted.of(key(&n.to_string()))).collect();
        counted.of(key("late")).answered(&ran(1));
        assert!(text(&counted).contains(r#"pappus_tenant_calls_total{tenant="(others)",code="OK"} 1"#));
        assert!(Arc::ptr_eq(&counted.of(key("7")), &held[7]), "who is known stays");
        drop(held);
        counted.of(key("late")).answered(&ran(1));
        assert!(text(&counted).contains(r#"tenant="late""#));
    }

    #[test]
    fn bounds_are_what_is_written_and_every_code_has_its_place() {
        for (ns, written) in BOUNDS {
            assert_eq!(written.parse::<f64>().unwrap(), ns as f64 / 1e9);
        }
        let last = (0..).take_while(|code| Code::try_from(*code).is_ok()).last();
        assert_eq!(last, Some(CODES as i32 - 1));
    }
}
