//! The probe kernels are what their source gives.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn probes_are_what_their_source_gives() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new("scripts/probes").arg("check").current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
