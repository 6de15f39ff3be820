//! Kernels on an interruptible CPU device of which not even one block ends: their calls end when their time is over, and no others
//! do. The control: code that runs to its end, which the device does not take, and which nothing but a signal ends.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use std::time::Duration;

use harness::program::Options;
use harness::{Call, OUTPUTS_AT, Worker};
use pappus_blueprint::PRINTED_BYTES;
use pappus_protocol::pipe::Got;
use pappus_protocol::{FaultCode, now_ns};
use pappus_worker::device::Compiler;
use pappus_worker::device::cpu::layout::POLL_AT;
use pappus_worker::device::cpu::{Cpu, compiler::CpuCompiler};

/// How long a call may run that never ends: long enough that it starts in time on a machine that is busy with other tests.
const ENDLESS_NS: u64 = 200_000_000;
/// The time of a call that may be over before it runs.
const LIMIT_NS: u64 = 5_000_000;
/// How late such a call may end on a machine that is busy with other tests.
const LATE_NS: u64 = 500_000_000;
const OUT_BYTES: u64 = 4096;

/// Kernels that never end, each in its way, beside some that do.
const KERNELS: &str = r#"(module (import "env" "memory" (memory 1))
    (func (export "spins") (param i32 i32 i64 i64) (loop $again (br $again)))
    (func (export "writes") (param $args i32) (param i32 i64 i64) (loop $again
        (i32.store (i32.load (local.get $args)) (i32.const -1))
        (br $again)))
    (func (export "reads") (param $args i32) (param i32 i64 i64) (loop $again
        (drop (i32.load (i32.load (local.get $args))))
        (br $again)))
    ;; The word that code writes to, written by the kernel as well: one of both writes is left.
    (func (export "pretends") (param i32 i32 i64 i64)
        (i32.store offset=33562624 (i32.const 0) (i32.const 0))
        (loop $again
            (i32.store offset=33562624 (i32.const 0) (i32.const 0))
            (br $again)))
    (func (export "nests") (param i32 i32 i64 i64) (local $n i64) (loop $outer
        (loop $inner
            (local.set $n (i64.add (local.get $n) (i64.const 1)))
            (br_if $inner (i64.lt_u (local.get $n) (i64.const 1000))))
        (local.set $n (i64.const 0))
        (br $outer)))
    (func (export "fills") (param $args i32) (param i32 i64 i64) (loop $again
        (memory.fill (i32.load (local.get $args)) (i32.const 7) (i32.const 4096))
        (br $again)))
    (func (export "copies") (param $args i32) (param i32 i64 i64) (loop $again
        (memory.copy (i32.load (local.get $args)) (i32.load (local.get $args)) (i32.const 4096))
        (br $again)))
    ;; Without a loop: two calls of each depth make 2⁶² of the last one.
    (func $calls (param $depth i32)
        (if (local.get $depth) (then
            (call $calls (i32.sub (local.get $depth) (i32.const 1)))
            (call $calls (i32.sub (local.get $depth) (i32.const 1))))))
    (func (export "branches") (param i32 i32 i64 i64) (call $calls (i32.const 62)))
    ;; Through a table.
    (type $kind (func (param i32)))
    (table funcref (elem $indirect))
    (func $indirect (param $depth i32)
        (if (local.get $depth) (then
            (call_indirect (type $kind) (i32.sub (local.get $depth) (i32.const 1)) (i32.const 0))
            (call_indirect (type $kind) (i32.sub (local.get $depth) (i32.const 1)) (i32.const 0)))))
    (func (export "indirect") (param i32 i32 i64 i64) (call $indirect (i32.const 62)))
    ;; Ends.
    (func (export "finds") (param $args i32) (param i32 i64 i64)
        (i32.store offset=4 (i32.load (local.get $args)) (i32.load (i32.load (local.get $args)))))
    ;; What stands behind the word that code writes to, before and after it is changed.
    (func (export "hides") (param $args i32) (param i32 i64 i64)
        (i64.store (i32.load (local.get $args)) (i64.load offset=33562632 (i32.const 0)))
        (i64.store offset=33562632 (i32.const 0) (i64.const -1))
        (i64.store offset=8 (i32.load (local.get $args)) (i64.load offset=33562632 (i32.const 0))))
    (func (export "takes_long") (param $args i32) (param i32 i64 i64) (local $left i64)
        (local.set $left (i64.const 100000000))
        (loop $again
            (local.set $left (i64.sub (local.get $left) (i64.const 1)))
            (br_if $again (i64.ne (local.get $left) (i64.const 0))))
        (i32.store (i32.load (local.get $args)) (i32.const 1))))"#;

const ENDLESS: [&str; 9] =
    ["spins", "writes", "reads", "pretends", "nests", "fills", "copies", "branches", "indirect"];

fn module() -> Vec<u8> {
    wat::parse_str(KERNELS).unwrap()
}

fn code(interruptible: bool) -> Vec<u8> {
    CpuCompiler::new(interruptible).unwrap().compile(&module()).unwrap().0
}

/// One launch of one block.
fn config(kernel: &str) -> String {
    let one = r#"{"Absolute": 1}"#;
    format!(
        r#"{{"module_path": "m.wasm", "kernels": ["{kernel}"], "blueprint": {{
            "inputs": [], "buffers": {{"C": {{"Absolute": {OUT_BYTES}}}}}, "outputs": ["C"],
            "control_flow": [{{"ExecKernel": ["{kernel}", [{{"Ptr": "C"}}],
                {{"grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one},
                  "block_dim_x": {one}, "block_dim_y": {one}, "block_dim_z": {one},
                  "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
    )
}

fn worker() -> Worker {
    Worker::start(|| Cpu::new(true).unwrap())
}

/// Calls a function whose kernel never ends; how late its answer came.
fn runs_out(worker: &mut Worker, function: u64, outputs: &[u64]) -> u64 {
    let deadline_ns = now_ns() + ENDLESS_NS;
    let call = Call { deadline_ns, ..worker.arena_call(function, &[], outputs) };
    let fault = worker.invoke(&call).unwrap_err();
    let late_ns = now_ns() - deadline_ns;
    assert_eq!((fault.code, fault.kernel), (FaultCode::Deadline, Some(0)), "{fault}");
    late_ns
}

#[test]
fn a_call_of_which_no_block_ends_is_over_at_its_deadline_again_and_again() {
    let (mut worker, code) = (worker(), code(true));
    worker.install(1, &config("finds"), &code, &[]);
    for (function, kernel) in (2..).zip(ENDLESS) {
        worker.install(function, &config(kernel), &code, &[]);
        for _ in 0..2 {
            let late_ns = runs_out(&mut worker, function, &[OUT_BYTES]);
            assert!(late_ns < LATE_NS, "{kernel}: {late_ns} ns late");
            assert_eq!(worker.read_arena(OUTPUTS_AT, OUT_BYTES), [0; OUT_BYTES as usize], "{kernel}");
            assert_eq!(worker.call(1, &[], &[OUT_BYTES]).unwrap(), [[0; OUT_BYTES as usize]], "{kernel}");
        }
    }
    worker.end().unwrap();
}

#[test]
fn a_checked_call_of_which_no_block_ends_is_over_as_well() {
    let mut worker = worker();
    let code = CpuCompiler::new(true).unwrap().compile_checked(&module()).unwrap().0;
    worker.checked = true;
    // What reaches outside of its buffers is a fault there.
    for (function, kernel) in (1..).zip(ENDLESS.into_iter().filter(|kernel| *kernel != "pretends")) {
        worker.install(function, &config(kernel), &code, &[]);
        let late_ns = runs_out(&mut worker, function, &[OUT_BYTES, PRINTED_BYTES]);
        assert!(late_ns < LATE_NS, "{kernel}: {late_ns} ns late");
    }
    worker.end().unwrap();
}

#[test]
fn the_time_of_a_call_that_is_over_ends_no_other() {
    let (mut worker, code) = (worker(), code(true));
    for (function, kernel) in [(1, "finds"), (2, "takes_long")] {
        worker.install(function, &config(kernel), &code, &[]);
    }
    for _ in 0..3 {
        let deadline_ns = now_ns() + LIMIT_NS;
        // A machine that is busy may take longer than that for it.
        let over = worker.invoke(&Call { deadline_ns, ..worker.arena_call(1, &[], &[OUT_BYTES]) });
        assert!(over.is_ok() || now_ns() > deadline_ns, "{over:?}");
        assert_eq!(worker.call(2, &[], &[OUT_BYTES]).unwrap()[0][0], 1);
        assert!(now_ns() > deadline_ns, "the long one ran when the other one's time was over");
    }
    worker.end().unwrap();
}

#[test]
fn nothing_that_a_kernel_leaves_in_the_page_of_polls_is_found() {
    assert_eq!(POLL_AT, 33_562_624);
    let mut worker = worker();
    worker.install(1, &config("hides"), &code(true), &[]);
    for _ in 0..2 {
        assert_eq!(worker.call(1, &[], &[OUT_BYTES]).unwrap()[0][..16], [[0; 8], [255; 8]].concat());
    }
    worker.end().unwrap();
}

#[test]
fn code_of_the_other_kind_is_not_taken() {
    let hello = |interruptible| CpuCompiler::new(interruptible).unwrap().hello().fingerprint;
    assert_ne!(hello(true), hello(false), "machine code is stored under it");
    for interruptible in [true, false] {
        let mut worker = Worker::start(move || Cpu::new(interruptible).unwrap());
        assert_eq!(worker.hello.fingerprint, hello(interruptible));
        worker.install(1, &config("finds"), &code(!interruptible), &[]);
        let fault = worker.call(1, &[], &[OUT_BYTES]).unwrap_err();
        assert_eq!(fault.code, FaultCode::Load, "{fault}");
        worker.install(2, &config("finds"), &code(interruptible), &[]);
        assert_eq!(worker.call(2, &[], &[OUT_BYTES]).unwrap(), [[0; OUT_BYTES as usize]]);
        worker.end().unwrap();
    }
}

#[test]
fn a_process_in_its_sandbox_interrupts_and_ends_well() {
    let mut worker = Worker::process(&Options { interruptible: true, ..Options::CPU });
    worker.install(1, &config("spins"), &code(true), &[]);
    worker.install(2, &config("hides"), &code(true), &[]);
    for _ in 0..2 {
        runs_out(&mut worker, 1, &[OUT_BYTES]);
        worker.call(2, &[], &[OUT_BYTES]).unwrap();
    }
    worker.end().unwrap();
}

#[test]
fn without_it_no_deadline_ends_a_block() {
    let mut worker = Worker::process(&Options::CPU);
    worker.install(1, &config("spins"), &code(false), &[]);
    let deadline_ns = now_ns() + LIMIT_NS;
    worker.begin(&Call { deadline_ns, ..worker.arena_call(1, &[], &[OUT_BYTES]) });
    while now_ns() < deadline_ns + 20 * LIMIT_NS {
        let got = worker.from.wait(Duration::ZERO, Some(Duration::from_millis(5)), None).unwrap();
        assert_ne!(got, Got::Closed);
        while let Some(frame) = worker.from.frame().unwrap() {
            let said = format!("{:?}", pappus_protocol::FromWorker::decode(frame).unwrap());
            assert!(!said.contains("Failed") && !said.contains("Done"), "{said}");
        }
    }
    worker.kill();
}
