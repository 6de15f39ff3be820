//! A second signal ends the process soon, whatever is stuck (ATTACKS 29).

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use pappus_client::v1::{self, request};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;

use crate::fixture::{LATE, Supervisor, signal, ticks, until};
use crate::kit;
use crate::programs::files_below;

/// Two signals, and the end soon after the second. The first may be enough where no call is left to answer.
pub(super) fn ends_soon(supervisor: &mut Supervisor) {
    let mut admin = supervisor.admin();
    supervisor.terminate();
    until("it drains", || admin.status().map_or(true, |status| status.draining));
    supervisor.terminate();
    // The promise is one of time: a second. What is not to be waited for here does not end at all, or says itself that it
    // did not.
    let began = Instant::now();
    supervisor.ended();
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
}

#[test]
fn a_compilation_that_does_not_end_is_not_waited_for() {
    let (mut supervisor, mut client) = kit::copy_and_spin();
    let known = supervisor.worker_pids();
    // A module that nothing was compiled of yet; it takes long enough to be stopped.
    let steps = "(local.set 0 (i64.add (i64.mul (local.get 0) (local.get 1)) (local.get 2)))".repeat(4_000);
    let functions = format!("(func (param i64 i64 i64) (local i64) {steps})").repeat(40);
    let kernel = r#"(func (export "kernel") (param i32 i32 i64 i64))"#;
    let text = format!(r#"(module (import "env" "memory" (memory 1)) {kernel} {functions})"#);
    let variants = vec![kit::wasm(&mut client, &wat::parse_str(text).unwrap())];
    let add = v1::AddModule { name: "slow".into(), variants };
    client.send(request::Body::AddModule(add), &[]).unwrap();
    let mut compiler = None;
    until("it compiles", || {
        let mut others = supervisor.children().into_iter().filter(|pid| !known.contains(pid));
        compiler = others.find(|pid| ticks(*pid) > 2);
        compiler.is_some()
    });
    signal(compiler.unwrap(), Signal::STOP);
    ends_soon(&mut supervisor);
}

#[test]
fn a_blob_that_takes_long_is_not_waited_for() {
    const BYTES: u64 = 4 << 30;
    let (mut supervisor, mut client) = kit::copy_and_spin();
    // Zeros that take no memory; to hash and to write them takes many seconds.
    let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, BYTES).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
    let before = ticks(supervisor.pid());
    client.send(request::Body::PutBlob(v1::PutBlob::default()), &[fd.as_fd()]).unwrap();
    until("it is read", || ticks(supervisor.pid()) > before + 2);
    ends_soon(&mut supervisor);
    let complete = |file: &PathBuf| file.metadata().is_ok_and(|file| file.len() >= BYTES);
    assert!(!files_below(&supervisor.path("state")).iter().any(complete), "it was waited for");
}
