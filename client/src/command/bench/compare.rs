//! Two results side by side: runs at the same rate, or in the same place where there are no rates.

use std::io::Write;
use std::path::Path;

use pappus_client::Error;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::table::{Align, Table};
use crate::units::nanoseconds;

/// Settings that make two results another measurement where they differ.
const SETTINGS: [&str; 9] = [
    "functions",
    "over",
    "arrivals",
    "clients",
    "duration_ns",
    "warm_up_ns",
    "deadline_ns",
    "in_flight",
    "tenants",
];
/// What is compared of each tenant: a heading, and where it stands.
const FIGURES: [(&str, &[&str]); 4] = [
    ("ANSWERS/S", &["per_second"]),
    ("FAILED", &["failed_share"]),
    ("P50", &["latency_ns", "p50"]),
    ("P99", &["latency_ns", "p99"]),
];

/// Reads both and shows them.
pub(super) fn run(a: &Path, b: &Path, is_json: bool, out: &mut dyn Write) -> Result<()> {
    let (a, b) = (read(a)?, read(b)?);
    let differing: Vec<&str> = SETTINGS.into_iter().filter(|name| a[name] != b[name]).collect();
    let rows = rows(&a, &b);
    if is_json {
        let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
        return Ok(writeln!(out, "{}", json!({"differing": differing, "rows": rows}))?);
    }
    for name in differing {
        writeln!(out, "not the same: {name} is {} and {}", a[name], b[name])?;
    }
    print(&rows, out)?;
    if !(a["highest_rate"].is_null() && b["highest_rate"].is_null()) {
        let rate =
            |value: &Value| value.as_f64().map_or_else(|| "none".to_owned(), |rate| format!("{rate:.1}"));
        writeln!(
            out,
            "highest rate that holds: {} and {}",
            rate(&a["highest_rate"]),
            rate(&b["highest_rate"])
        )?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let value: Value = serde_json::from_str(&text).map_err(|why| {
        Failure::Refused(format!("{}: {why}: expected what --json printed", path.display()))
    })?;
    match value["runs"].is_array() {
        true => Ok(value),
        false => Err(Failure::Refused(format!("{}: no result of `pappus bench --json`", path.display()))),
    }
}

/// The figures of one tenant, in both.
#[derive(Debug)]
struct Row {
    rate: Option<f64>,
    tenant: String,
    /// In the order of `FIGURES`.
    pairs: Vec<(f64, f64)>,
}

impl Row {
    fn to_json(&self) -> Value {
        let mut value = json!({"rate": self.rate, "tenant": self.tenant});
        for ((_, path), (a, b)) in FIGURES.iter().zip(&self.pairs) {
            value[path.join("_")] = json!([a, b]);
        }
        value
    }
}

fn rows(a: &Value, b: &Value) -> Vec<Row> {
    let runs = |value: &Value| value["runs"].as_array().cloned().unwrap_or_default();
    let (a, b) = (runs(a), runs(b));
    let mut rows = Vec::new();
    for (at, run) in a.iter().enumerate() {
        let other = match run["rate"].as_f64() {
            Some(rate) => b.iter().find(|other| other["rate"].as_f64().is_some_and(|one| is_same(one, rate))),
            None => b.get(at),
        };
        let Some(other) = other else { continue };
        let rate = run["rate"].as_f64();
        let mut add = |tenant: &str, a: &Value, b: &Value| {
            let figure = |value: &Value, path: &[&str]| {
                path.iter().fold(value, |value, key| &value[key]).as_f64().unwrap_or_default()
            };
            let pairs = FIGURES.iter().map(|(_, path)| (figure(a, path), figure(b, path))).collect();
            rows.push(Row { rate, tenant: tenant.to_owned(), pairs });
        };
        add("all", &run["all"], &other["all"]);
        for (name, tenant) in run["tenants"].as_object().into_iter().flatten() {
            if let Some(other) = other["tenants"].get(name) {
                add(name, tenant, other);
            }
        }
    }
    rows
}

/// True if two rates differ by nothing but how they were computed.
fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b
}

fn print(rows: &[Row], out: &mut dyn Write) -> Result<()> {
    let mut columns = vec![("RATE", Align::Right), ("TENANT", Align::Left)];
    for (name, _) in FIGURES {
        columns.extend([(name, Align::Right), ("", Align::Right), ("B/A", Align::Right)]);
    }
    let mut table = Table::new(&columns);
    for row in rows {
        let rate = row.rate.map_or_else(String::new, |rate| format!("{rate:.1}"));
        let mut cells = vec![rate, row.tenant.clone()];
        for ((name, _), (a, b)) in FIGURES.iter().zip(&row.pairs) {
            let shown = |value: f64| match *name {
                "ANSWERS/S" => format!("{value:.1}"),
                "FAILED" => format!("{:.2} %", 100.0 * value),
                _ => nanoseconds(value as u64),
            };
            let ratio = if *a > 0.0 { format!("{:.2}", b / a) } else { "–".to_owned() };
            cells.extend([shown(*a), shown(*b), ratio]);
        }
        table.push(cells);
    }
    if table.is_empty() {
        return Ok(writeln!(out, "no rate is in both")?);
    }
    Ok(table.print(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(arrivals: &str, runs: &[(f64, u64)]) -> Value {
        let runs = runs.iter().map(|(rate, p50)| {
            let tenant =
                json!({"per_second": rate, "failed_share": 0.0, "latency_ns": {"p50": p50, "p99": 4 * p50}});
            json!({"rate": rate, "all": tenant, "tenants": {"a": tenant}})
        });
        json!({"arrivals": arrivals, "highest_rate": 20.0, "runs": runs.collect::<Vec<_>>()})
    }

    fn compared(a: &Value, b: &Value, is_json: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let paths = [("a", a), ("b", b)].map(|(name, value)| {
            let path = dir.path().join(name);
            std::fs::write(&path, value.to_string()).unwrap();
            path
        });
        let mut out = anstream::StripStream::new(Vec::new());
        run(&paths[0], &paths[1], is_json, &mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn runs_at_the_same_rate_are_compared() {
        let a = result("poisson", &[(10.0, 1000), (20.0, 2000)]);
        let b = result("uniform", &[(20.0, 3000), (30.0, 1)]);
        let shown = compared(&a, &b, false);
        assert!(shown.contains("not the same: arrivals is \"poisson\" and \"uniform\""), "{shown}");
        assert!(shown.contains("1.50") && !shown.contains("30.0 "), "{shown}");
        assert!(shown.ends_with("highest rate that holds: 20.0 and 20.0\n"), "{shown}");
        let value: Value = serde_json::from_str(&compared(&a, &b, true)).unwrap();
        assert_eq!(value["rows"].as_array().unwrap().len(), 2);
        assert_eq!(value["rows"][0]["latency_ns_p99"], json!([8000.0, 12000.0]));
        let nothing = compared(&a, &result("poisson", &[(5.0, 1)]), false);
        assert!(nothing.contains("no rate is in both"), "{nothing}");
    }

    #[test]
    fn what_is_no_result_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for text in ["{", "{\"runs\": 1}"] {
            std::fs::write(&path, text).unwrap();
            let why = run(&path, &path, false, &mut Vec::new()).unwrap_err().to_string();
            assert!(why.contains("--json"), "{why}");
        }
    }
}
