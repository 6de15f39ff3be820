//! What was measured, for people, as JSON and as comma-separated values.

use std::io::Write;

use serde_json::{Value, json};

use super::tally::Tally;
use crate::table::{Align, Table};
use crate::units::nanoseconds;

/// A table shows each tenant up to so many; JSON has all.
const TENANTS_SHOWN: usize = 16;

/// One run.
#[derive(Debug)]
pub(super) struct Measured {
    /// Calls a second of each tenant without a rate of its own; nothing where calls came otherwise.
    pub(super) rate: Option<f64>,
    /// True if the run is within the limits.
    pub(super) holds: bool,
    pub(super) all: Tally,
    /// By name.
    pub(super) tenants: Vec<(String, Tally)>,
}

impl Measured {
    /// All tenants together, and each of several.
    fn rows(&self) -> impl Iterator<Item = (&str, &Tally)> {
        let each = self.tenants.iter().map(|(name, tally)| (name.as_str(), tally));
        let each = each.filter(|_| self.tenants.len() > 1);
        std::iter::once(("all", &self.all)).chain(each)
    }

    pub(super) fn to_json(&self) -> Value {
        let named = self.tenants.iter().filter(|_| self.tenants.len() > 1);
        let named: serde_json::Map<_, _> =
            named.map(|(name, tally)| (name.clone(), tally.to_json())).collect();
        json!({"rate": self.rate, "holds": self.holds, "all": self.all.to_json(), "tenants": named})
    }
}

/// A row for each run, and for each of a few tenants.
pub(super) fn print(runs: &[Measured], out: &mut dyn Write) -> std::io::Result<()> {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("RATE", right),
        ("TENANT", Align::Left),
        ("DUE", right),
        ("ANSWERS/S", right),
        ("FAILED", right),
        ("P50", right),
        ("P90", right),
        ("P99", right),
        ("MAX", right),
        ("LATE P99", right),
        ("HOLDS", Align::Left),
    ]);
    for run in runs {
        let few = run.tenants.len() <= TENANTS_SHOWN;
        for (name, tally) in run.rows().take(if few { usize::MAX } else { 1 }) {
            let time = |at| nanoseconds(tally.latency.value_at_quantile(at));
            let is_first = name == "all";
            table.row([
                run.rate.filter(|_| is_first).map_or_else(String::new, |rate| format!("{rate:.1}")),
                name.to_owned(),
                tally.due.to_string(),
                format!("{:.1}", tally.per_second()),
                format!("{:.2} %", 100.0 * tally.failed_share()),
                time(0.5),
                time(0.9),
                time(0.99),
                time(1.0),
                nanoseconds(tally.late.value_at_quantile(0.99)),
                if !is_first {
                    ""
                } else if run.holds {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
            ]);
        }
    }
    table.print(out)?;
    for run in runs {
        let (slowest, fastest) = (spread(run, false), spread(run, true));
        if let (Some(slowest), Some(fastest)) = (slowest, fastest)
            && run.tenants.len() > TENANTS_SHOWN
        {
            writeln!(out, "p99 of {} tenants: {fastest} to {slowest}", run.tenants.len())?;
        }
        for (code, count) in &run.all.errors {
            let rate = run.rate.map_or_else(String::new, |rate| format!(" at {rate:.1}/s"));
            let said = run.all.said.get(code).filter(|said| !said.is_empty());
            let such_as = said.map_or_else(String::new, |said| format!(", such as: {said}"));
            writeln!(out, "{code}{rate}: {count}{such_as}")?;
        }
    }
    Ok(())
}

/// The p99 of the fastest or of the slowest tenant.
fn spread(run: &Measured, fastest: bool) -> Option<String> {
    let all = run.tenants.iter().map(|(_, tally)| tally.p99());
    let found = if fastest { all.min() } else { all.max() };
    found.map(|time| nanoseconds(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

/// A heading, and a line for each run and tenant; times in nanoseconds.
pub(super) fn csv(runs: &[Measured], out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "rate,tenant,due,answered,failed,answers_per_s,p50_ns,p90_ns,p99_ns,p999_ns,max_ns,late_p99_ns,holds,errors"
    )?;
    for run in runs {
        for (name, tally) in run.rows() {
            let rate = run.rate.map_or_else(String::new, |rate| rate.to_string());
            let errors = tally.errors.iter().map(|(code, count)| format!("{code}={count}"));
            let times =
                [0.5, 0.9, 0.99, 0.999, 1.0].map(|at| tally.latency.value_at_quantile(at).to_string());
            writeln!(
                out,
                "{rate},{name},{},{},{},{},{},{},{},{}",
                tally.due,
                tally.answered,
                tally.failed(),
                tally.per_second(),
                times.join(","),
                tally.late.value_at_quantile(0.99),
                run.holds,
                errors.collect::<Vec<_>>().join(" ")
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tally::Rules;
    use super::*;

    /// A run of two tenants: of four calls one failed.
    fn measured() -> Measured {
        let ms = Duration::from_millis;
        let rules = Rules { from: ms(0), to: ms(1000), until: ms(1000), deadline: ms(500) };
        let mut tenants = Vec::new();
        let mut all = Tally::new(rules);
        for (name, latency, code) in [("a", 10, None), ("b", 20, Some("NOT_FOUND"))] {
            let mut tally = Tally::new(rules);
            for code in [None, code] {
                tally.begins(ms(1), ms(1));
                tally.ends(ms(1), ms(1), ms(1 + latency), code.map_or(Ok(()), |code| Err(code.into())));
            }
            all.add(&tally);
            tenants.push((name.to_owned(), tally));
        }
        Measured { rate: Some(2.0), holds: false, all, tenants }
    }

    fn text(print: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> String {
        let mut out = anstream::StripStream::new(Vec::new());
        print(&mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn tenants_and_all_of_them_have_a_row_each() {
        let shown = text(|out| print(&[measured()], out));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 5, "{shown}");
        assert!(lines[1].contains("25.00 %") && lines[1].contains("no"), "{shown}");
        assert!(lines[3].contains("50.00 %") && lines[3].contains("20.0"), "{shown}");
        assert_eq!(lines[4], "NOT_FOUND at 2.0/s: 1");
        let one = Measured { tenants: measured().tenants.into_iter().take(1).collect(), ..measured() };
        assert_eq!(text(|out| print(&[one], out)).lines().count(), 3);
    }

    #[test]
    fn values_are_those_of_the_heading() {
        let shown = text(|out| csv(&[measured()], out));
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{shown}");
        let of = |row: usize, name: &str| rows[row][rows[0].iter().position(|head| *head == name).unwrap()];
        assert_eq!(
            (of(1, "tenant"), of(1, "due"), of(1, "answered"), of(1, "failed")),
            ("all", "4", "3", "1")
        );
        assert_eq!((of(3, "tenant"), of(3, "errors"), of(3, "holds")), ("b", "NOT_FOUND=1", "false"));
        let p50: u64 = of(2, "p50_ns").parse().unwrap();
        assert!(p50.abs_diff(10_000_000) < 10_000, "{p50}");
    }

    #[test]
    fn the_object_has_all_tenants() {
        let value = measured().to_json();
        assert_eq!((&value["rate"], &value["all"]["due"]), (&json!(2.0), &json!(4)));
        assert_eq!(value["tenants"]["b"]["errors"], json!({"NOT_FOUND": 1}));
        assert!(value["all"]["distribution_ns"].as_array().unwrap().len() > 2);
    }
}
