//! Every test that the threat model names exists, and every kind of attack in it has tests or a reason why not.

use std::collections::BTreeMap;

use crate::programs::workspace;

/// Kinds of attacks, numbered from 1.
const ATTACKS: usize = 33;

struct Row {
    number: usize,
    /// Paths and names of tests.
    tests: Vec<(String, String)>,
    /// What no test shows, and why.
    reason: String,
}

/// What looks like `path::name`, in backticks.
fn tests_in(text: &str) -> Vec<(String, String)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let named = quoted.filter_map(|words| words.split_once(".rs::"));
    named.map(|(path, name)| (format!("{path}.rs"), name.to_owned())).collect()
}

fn page() -> String {
    std::fs::read_to_string(workspace().join("docs/threat-model.md")).unwrap()
}

fn rows(page: &str) -> Vec<Row> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| "));
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let number = cells.first()?.parse().ok()?;
        Some(Row {
            number,
            tests: tests_in(line),
            reason: cells.last().copied().unwrap_or_default().to_owned(),
        })
    };
    lines.filter_map(row).collect()
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let mut sources = BTreeMap::new();
    let page = page();
    let named = tests_in(&page);
    assert!(named.len() > 100, "the page names {} tests", named.len());
    for (path, name) in named {
        let source = sources.entry(path.clone()).or_insert_with(|| {
            std::fs::read_to_string(workspace().join(&path)).unwrap_or_else(|e| panic!("{path}: {e}"))
        });
        let at = source.find(&format!("fn {name}"));
        let rest = at.map(|at| &source[at + "fn ".len() + name.len()..]);
        let is_whole = rest.is_some_and(|rest| rest.starts_with(['(', '<']));
        assert!(is_whole, "docs/threat-model.md names {path}::{name}, which is not there");
    }
}

#[test]
fn every_kind_of_attack_has_tests_or_a_reason() {
    let page = page();
    let rows = rows(&page);
    let numbers: Vec<_> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=ATTACKS).collect::<Vec<_>>());
    for row in rows {
        assert!(!row.tests.is_empty() || row.reason.len() > 20, "number {} is not covered", row.number);
    }
}
