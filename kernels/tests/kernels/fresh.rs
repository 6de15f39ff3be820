//! `built/` is what the sources give.

use std::process::Command;

#[test]
fn built_is_what_the_sources_give() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new("scripts/kernels").arg("check").current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
