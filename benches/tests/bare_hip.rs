//! The bare programs for AMD's GPUs, on a library that looks like HIP's: each computes what the reference does, and prints
//! rates that can be read. How high these are says nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/amd/folder.rs"]
mod folder;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn gpu() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    folder::look_like_a_gpu(folder.path(), "arch=gfx942");
    folder
}

fn bare(gpu: &TempDir, what: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pappus-bench"));
    command.args(["bare", what, "--kind", "hip"]).args(args).env("LD_LIBRARY_PATH", gpu.path());
    command
}

/// What a program prints, which ends well only if its results are those of the reference.
fn measured(gpu: &TempDir, what: &str, args: &[&str]) -> Value {
    let output = bare(gpu, what, args).output().unwrap();
    assert!(output.status.success(), "{what} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn is_rate(rate: &Value, lanes: u64) {
    assert_eq!(rate["lanes"], lanes, "{rate}");
    let figure = |name: &str| rate[name].as_f64().unwrap();
    assert!(figure("per_second") > 0.0 && figure("p50_ns") > 0.0, "{rate}");
    assert!(figure("p99_ns") >= figure("p50_ns"), "{rate}");
}

#[test]
fn the_survey_names_the_device() {
    let found = measured(&gpu(), "survey", &[]);
    assert_eq!(found["name"], "Look-alike gfx942");
    assert_eq!(found["arch"], "gfx942:sramecc+:xnack-");
    assert_eq!(found["driver"], "HIP 7.1.52802");
}

#[test]
fn lanes_are_kept_busy_kernel_by_kernel_and_as_graphs() {
    let gpu = gpu();
    for flags in [&[][..], &["--graph"], &["--graph", "--clearing"]] {
        let args = [&["--work=empty", "--threads=1,2", "--lanes=2", "--measured-ms=100"], flags].concat();
        let rates = measured(&gpu, "closed", &args);
        is_rate(&rates[0], 2);
        is_rate(&rates[1], 4);
    }
    let rates = measured(&gpu, "closed", &["--work=matmul", "--measured-ms=300"]);
    is_rate(&rates[0], 1);
    let rates =
        measured(&gpu, "closed", &["--work=inference", "--repetitions=1", "--graph", "--measured-ms=300"]);
    is_rate(&rates[0], 1);
}

#[test]
fn calls_are_made_one_after_the_other() {
    let gpu = gpu();
    is_rate(&measured(&gpu, "one-by-one", &["--work=empty", "--graph", "--measured-ms=100"]), 1);
    is_rate(&measured(&gpu, "one-by-one", &["--work=empty", "--every-us=5000", "--measured-ms=100"]), 1);
}

#[test]
fn a_worker_of_the_ancestors_design_serves_one_request_after_the_other() {
    let gpu = gpu();
    let mut worker = bare(&gpu, "ancestor-worker", &["--work=matmul"]);
    let mut worker = worker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut to, mut from) = (worker.stdin.take().unwrap(), worker.stdout.take().unwrap());
    let mut said = || {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        byte[0]
    };
    assert_eq!(said(), b'r', "it is ready");
    for _ in 0..2 {
        to.write_all(b"r").unwrap();
        assert_eq!(said(), b'd');
    }
    drop(to);
    assert!(worker.wait().unwrap().success());
}
