//! Ratios of SPECIFICATION that hold with a margin on any machine and in any profile: a change that loses one of them fails here.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use serde_json::Value;

/// `scripts/test` runs it alone, when nothing else is measured along.
#[test]
#[ignore = "measures: scripts/test runs it by itself"]
fn ratios_hold() {
    const HELD: [(&str, &str); 2] =
        [("compose", "its steps as calls, in linked chains"), ("batch", "… / one by one")];
    let figures = measured(&HELD.map(|(part, _)| part));
    for (part, what) in HELD {
        let of_it: Vec<_> = figures.iter().filter(|f| f["part"] == part && f["what"] == what).collect();
        assert!(!of_it.is_empty(), "{part} measures no “{what}”");
        for figure in of_it {
            assert_eq!(figure["ok"], true, "pappus-bench {part}: {figure}");
        }
    }
}

/// What `pappus-bench` says of these parts.
fn measured(parts: &[&str]) -> Vec<Value> {
    let home = tempfile::tempdir().unwrap();
    let json = home.path().join("figures.json");
    let ended = Command::new(env!("CARGO_BIN_EXE_pappus-bench"))
        .args(parts)
        .args(["--rounds", "3", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    report["figures"].as_array().unwrap().clone()
}
