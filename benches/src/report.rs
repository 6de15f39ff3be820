//! Figures with their targets, as a table for people and as JSON for programs.

use std::io::Write;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// So many times the floor.
    Ratio,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// A second.
    PerSecond,
    /// Bytes a second.
    BytesPerSecond,
    /// Things.
    Count,
    /// A difference, relative to what it is a difference of.
    Relative,
}

/// On which side of its target a value must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Not above it.
    AtMost,
    /// Not below it.
    AtLeast,
}

/// One measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The part it belongs to.
    pub part: &'static str,
    /// What was measured.
    pub what: String,
    /// How much of it.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
    /// What it may be at most or must be at least; none for information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// Which of the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// True if the value is within its bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    figures: Vec<Figure>,
    not_measured: Vec<String>,
    failed: Vec<String>,
    #[serde(skip)]
    part: &'static str,
    #[serde(skip)]
    live: bool,
    #[serde(skip)]
    printed_notes: usize,
    #[serde(skip)]
    printed_failures: usize,
}

impl Report {
    /// Nothing measured yet.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            figures: Vec::new(),
            not_measured: Vec::new(),
            failed: Vec::new(),
            part: "",
            live: false,
            printed_notes: 0,
            printed_failures: 0,
        }
    }

    /// Nothing measured yet; every figure is printed once it is known, as parts take minutes and may be cut off.
    pub fn live(machine: Machine) -> Self {
        Self { live: true, ..Self::new(machine) }
    }

    /// What follows belongs to `part`.
    pub fn begin(&mut self, part: &'static str) {
        self.part = part;
        if self.live {
            println!("{}", self.heading());
        }
    }

    /// Adds a value for information.
    pub fn info(&mut self, what: impl Into<String>, value: f64, unit: Unit) {
        self.add(what.into(), value, unit, None);
    }

    /// Adds a value that may be at most `target`.
    pub fn at_most(&mut self, target: f64, what: impl Into<String>, value: f64, unit: Unit) {
        self.add(what.into(), value, unit, Some((Bound::AtMost, target)));
    }

    /// Adds a value that must be at least `target`.
    pub fn at_least(&mut self, target: f64, what: impl Into<String>, value: f64, unit: Unit) {
        self.add(what.into(), value, unit, Some((Bound::AtLeast, target)));
    }

    /// Adds the median of latencies for information, and their 99th percentile, which may be at most `target_ns`.
    pub fn tail(&mut self, target_ns: f64, what: &str, latencies: &Histogram<u64>) {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64;
        self.info(format!("{what}, p50"), at(0.5), Unit::Nanoseconds);
        self.at_most(target_ns, format!("{what}, p99"), at(0.99), Unit::Nanoseconds);
    }

    /// Says why a part, or the rest of it, was not measured although it should have been.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failed.push(format!("{}: {}", self.part, why.into()));
    }

    /// True if anything failed.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Says what could not be measured, and what to do about it.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.not_measured.push(format!("{}: {}", self.part, why.into()));
    }

    /// All of them.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// Figures so far.
    pub fn len(&self) -> usize {
        self.figures.len()
    }

    /// True if there are no figures.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    fn add(&mut self, what: String, value: f64, unit: Unit, target: Option<(Bound, f64)>) {
        let figure = Figure {
            part: self.part,
            what,
            value,
            unit,
            target: target.map(|(_, target)| target),
            bound: target.map(|(bound, _)| bound),
            ok: target.map(|(bound, target)| match bound {
                Bound::AtMost => value <= target,
                Bound::AtLeast => value >= target,
            }),
        };
        if self.live {
            println!("{}", figure.line());
        }
        self.figures.push(figure);
    }

    fn heading(&self) -> String {
        format!("{:<82} {:>12} {:>10}", self.part, "measured", "target")
    }

    /// Prints the figures from the `first` on, and what could not be measured since the last time.
    pub fn print_from(&mut self, first: usize, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        for figure in &self.figures[first..] {
            writeln!(out, "{}", figure.line())?;
        }
        self.end(out)
    }

    /// Ends a part: prints what could not be measured since the last time.
    pub fn end(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        for note in &self.not_measured[self.printed_notes..] {
            writeln!(out, "  not measured: {note}")?;
        }
        for failure in &self.failed[self.printed_failures..] {
            writeln!(out, "  FAILED {failure}")?;
        }
        self.printed_notes = self.not_measured.len();
        self.printed_failures = self.failed.len();
        writeln!(out)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The report as JSON, joined to an earlier one: parts measured again replace what was known of them.
    pub fn joined_to(&self, earlier: &str) -> serde_json::Result<String> {
        let mut all: Value = serde_json::from_str(earlier)?;
        let mine = serde_json::to_value(self)?;
        let measured: Vec<&Value> =
            mine["figures"].as_array().into_iter().flatten().map(|figure| &figure["part"]).collect();
        for list in ["figures", "not_measured", "failed"] {
            let part_of = |entry: &Value| match entry {
                Value::String(text) => Value::from(text.split(':').next().unwrap_or_default()),
                figure => figure["part"].clone(),
            };
            let mut entries = all[list].as_array().cloned().unwrap_or_default();
            entries.retain(|entry| part_of(entry) != self.part && !measured.contains(&&part_of(entry)));
            entries.extend(mine[list].as_array().cloned().unwrap_or_default());
            all[list] = Value::Array(entries);
        }
        all["machine"] = mine["machine"].clone();
        serde_json::to_string_pretty(&all)
    }
}

impl Figure {
    /// A line of the table.
    fn line(&self) -> String {
        let sign = if self.bound == Some(Bound::AtLeast) { "≥" } else { "≤" };
        let target = self.target.map(|target| format!("{sign} {}", shown(target, self.unit)));
        let verdict = match self.ok {
            Some(true) => "ok",
            Some(false) => "missed",
            None => "",
        };
        let (value, target) = (shown(self.value, self.unit), target.unwrap_or_default());
        format!("  {:<80} {value:>12} {target:>10} {verdict}", self.what).trim_end().to_owned()
    }
}

/// A value as people read it.
fn shown(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ratio => format!("{value:.2}×"),
        Unit::Nanoseconds if value.abs() < 1e3 => format!("{value:.0} ns"),
        Unit::Nanoseconds if value.abs() < 1e6 => format!("{:.1} µs", value / 1e3),
        Unit::Nanoseconds if value.abs() < 1e9 => format!("{:.2} ms", value / 1e6),
        Unit::Nanoseconds => format!("{:.2} s", value / 1e9),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::PerSecond => format!("{value:.0} /s"),
        Unit::BytesPerSecond => format!("{:.1} GB/s", value / 1e9),
        Unit::Count => format!("{value:.0}"),
        Unit::Relative => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_well_in_every_unit() {
        for (value, unit, expected) in [
            (1.2345, Unit::Ratio, "1.23×"),
            (-12.0, Unit::Nanoseconds, "-12 ns"),
            (45_300.0, Unit::Nanoseconds, "45.3 µs"),
            (5e5, Unit::Nanoseconds, "500.0 µs"),
            (1.5e6, Unit::Nanoseconds, "1.50 ms"),
            (2e9, Unit::Nanoseconds, "2.00 s"),
            ((20 << 20) as f64, Unit::Bytes, "20.0 MiB"),
            (1234.5, Unit::PerSecond, "1234 /s"),
            (54.25e9, Unit::BytesPerSecond, "54.2 GB/s"),
            (3.0, Unit::Count, "3"),
            (0.000_123, Unit::Relative, "1.2e-4"),
        ] {
            assert_eq!(shown(value, unit), expected);
        }
    }

    #[test]
    fn the_table_says_what_was_met_missed_and_left_out() {
        let mut report = Report::new(Machine::describe());
        report.begin("p");
        report.at_most(2.0, "good", 2.0, Unit::Ratio);
        report.at_most(2.0, "bad", 2.1, Unit::Ratio);
        report.info("plain", 1.0, Unit::Ratio);
        report.skip("no compiler");
        let mut out = Vec::new();
        report.print_from(0, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let ends: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(ends, ["target", "ok", "missed", "1.00×", "compiler"]);
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["figures"][1]["ok"], false);
        assert_eq!(json["not_measured"][0], "p: no compiler");
    }

    #[test]
    fn lower_bounds_are_met_from_above_and_failures_are_shown() {
        let mut report = Report::new(Machine::describe());
        report.begin("g");
        report.at_least(0.9, "good", 0.9, Unit::Ratio);
        report.at_least(0.9, "bad", 0.89, Unit::Ratio);
        report.at_least(0.9, "nothing", f64::NAN, Unit::Ratio);
        report.fail("the device hangs");
        assert!(report.has_failed());
        let oks: Vec<_> = report.figures.iter().map(|figure| figure.ok).collect();
        assert_eq!(oks, [Some(true), Some(false), Some(false)]);
        let mut out = Vec::new();
        report.print_from(0, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("≥ 0.90×") && text.contains("FAILED g: the device hangs"), "{text}");
    }

    #[test]
    fn a_part_measured_again_replaces_itself_and_leaves_others() {
        let part = |name, what: &str| {
            let mut report = Report::new(Machine::describe());
            report.begin(name);
            report.info(what, 1.0, Unit::Ratio);
            report.skip(what);
            report
        };
        let first = part("a", "first").to_json().unwrap();
        let both = part("b", "second").joined_to(&first).unwrap();
        let again = part("a", "third").joined_to(&both).unwrap();
        let json: Value = serde_json::from_str(&again).unwrap();
        let whats: Vec<_> = json["figures"].as_array().unwrap().iter().map(|f| f["what"].clone()).collect();
        assert_eq!(whats, ["second", "third"]);
        assert_eq!(json["not_measured"], serde_json::json!(["b: second", "a: third"]));
        assert!(part("a", "x").joined_to("no JSON").is_err());
    }
}
