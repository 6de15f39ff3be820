//! Between two calls of one worker: memory, module variables, constants, regions, memory that the driver keeps for
//! kernels.

use pappus_protocol::FaultCode;

use crate::harness::program::{self, Options};
use crate::harness::{OUTPUTS_AT, UNTOUCHED, Worker};
use crate::suite::UnderTest;
use crate::suite::blueprints::{Blueprint, filling, i64, launch, launch_wide, ptr, u32};
use crate::suite::cuda::OnCuda;

/// Whether the probe must find something where nothing is cleared.
#[derive(PartialEq, Eq)]
enum Control {
    Finds,
    MayFind,
}

/// What `probe` sees in its output of `bytes`, after `dirty` and after itself, or on a fresh worker.
fn seen(mut worker: Worker, dirty: Option<&str>, probe: &str, bytes: u64) -> Vec<u8> {
    worker.install(2, probe, OnCuda::probes(), &[]);
    if let Some(dirty) = dirty {
        worker.install(1, dirty, OnCuda::probes(), &[]);
        worker.call(1, &[], &[8]).unwrap();
        worker.call(2, &[], &[bytes]).unwrap();
        worker.call(1, &[], &[8]).unwrap();
    }
    let seen = worker.call(2, &[], &[bytes]).unwrap().remove(0);
    worker.end().unwrap();
    seen
}

/// The probe sees the same as on a fresh worker; where nothing is cleared, something else.
fn no_trace(place: &str, control: &Control, dirty: &str, probe: &str, bytes: u64) {
    let fresh = seen(OnCuda::worker(), None, probe, bytes);
    assert!(seen(OnCuda::worker(), Some(dirty), probe, bytes) == fresh, "{place}: something is left");
    let found = seen(OnCuda::uncleared_worker(), Some(dirty), probe, bytes) != fresh;
    match (control, found) {
        (Control::Finds, _) => {
            assert!(found, "{place}: the control finds nothing: was it built with test-hooks?")
        }
        (Control::MayFind, _) => {
            println!("{place}: {}", if found { "control finds" } else { "not observed" })
        }
    }
}

fn fill(bytes: u64) -> String {
    launch("fill", &[ptr("out"), i64(0xaa), i64(bytes)].join(","))
}

/// A function whose output has 8 bytes.
fn dirty(steps: &[String]) -> String {
    filling(8, steps)
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn the_pool_with_its_tails() {
    // Up to the alignment that the planner gives every buffer.
    let probe = filling(8192, &[launch("work", "")]);
    no_trace("pool", &Control::Finds, &dirty(&[fill(256)]), &probe, 8192);
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn the_pool_beyond_a_calls_plan() {
    let probe = filling(128 << 10, &[launch("work", "")]);
    no_trace("pool beyond the plan", &Control::Finds, &dirty(&[fill(96 << 10)]), &probe, 128 << 10);
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn module_variables() {
    for kernel in ["module_global", "module_bss"] {
        let steps = [launch(kernel, &ptr("out"))];
        no_trace(kernel, &Control::Finds, &dirty(&steps), &dirty(&steps), 8);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn the_constant_bank() {
    let write = dirty(&[launch("constant_write", &i64(0xaaaa))]);
    let mut worker = OnCuda::worker();
    worker.install(1, &write, OnCuda::probes(), &[]);
    if let Err(fault) = worker.call_alone(1, &[], &[8]) {
        println!("constant bank: written to, it faults: {fault}");
        worker.breaks();
        return;
    }
    worker.end().unwrap();
    for at in [0, 511] {
        let read = dirty(&[launch("constant_read", &[ptr("out"), i64(at)].join(","))]);
        no_trace("constant bank", &Control::MayFind, &write, &read, 8);
    }
}

/// Looks behind its own two parameters, where the launch before had its fourth. The driver keeps other things there
/// as well, so only that value counts.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn parameters_of_other_launches() {
    let probe = dirty(&[launch("arguments", &[ptr("out"), i64(16)].join(","))]);
    let secret = 2.5f64;
    let four = [ptr("out"), u32(7), r#"{"F32": 1.5}"#.to_owned(), format!(r#"{{"F64": {secret}}}"#)];
    let left = dirty(&[launch("parameters", &four.join(","))]);
    let found = |worker| seen(worker, Some(&left), &probe, 8) == secret.to_bits().to_le_bytes();
    let control = found(OnCuda::uncleared_worker());
    println!("parameters: {}", if control { "control finds" } else { "not observed" });
    assert!(!found(OnCuda::worker()), "a parameter of another call");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn staging_and_output_tails() {
    crate::suite::regions::staging_is_cleared_and_the_rest_of_the_arena_untouched::<OnCuda>();
    let mut worker = OnCuda::worker();
    worker.install(1, &dirty(&[fill(8192)]), OnCuda::probes(), &[]);
    // More room than the output has: nothing is written behind it, whatever the pool holds there.
    worker.call(1, &[], &[4096]).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 8), [0xaa; 8]);
    assert_eq!(worker.read_arena(OUTPUTS_AT + 8, 4088), [UNTOUCHED; 4088]);
    worker.end().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn a_module_with_a_heap_is_refused() {
    // The driver takes a limit of zero and keeps a heap, and what is left in one outlives a call.
    let heap = b".version 7.0\n.target sm_70\n.address_size 64\n\
        .extern .func (.param .b64 address) malloc (.param .b64 bytes);\n\
        .visible .entry take(.param .u64 seen) {\n\
        .reg .b64 %a, %s;\n ld.param.u64 %s, [seen];\n cvta.to.global.u64 %s, %s;\n\
        { .param .b64 bytes; .param .b64 address; st.param.b64 [bytes], 64;\n\
        call.uni (address), malloc, (bytes); ld.param.b64 %a, [address]; }\n\
        st.global.u64 [%s], %a;\n ret;\n}\n";
    let refused = program::compile(&Options::CUDA, heap).unwrap_err();
    assert_eq!(refused.code, FaultCode::BadModule, "{refused}");
    assert!(refused.message.contains("`malloc`"), "{refused}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn what_kernels_print_goes_nowhere() {
    let mut worker = OnCuda::worker();
    let flood = launch_wide("printf_flood", &i64(100), [64, 1, 1], 64, 0);
    worker.install(1, &dirty(&[flood]), OnCuda::probes(), &[]);
    worker.install(2, &dirty(&[launch("trap", "")]), OnCuda::probes(), &[]);
    for _ in 0..3 {
        worker.call(1, &[], &[8]).unwrap();
    }
    let said = worker.end_and_said();
    assert!(!said.contains("a line that a kernel prints"), "{} bytes", said.len());
}

/// A copy of weights in the pool goes like everything else; the weights themselves stay.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn weights_of_one_function_are_not_found_by_another() {
    let copy = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 4096)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(4096)].join(","))],
    };
    let mut worker = OnCuda::worker();
    worker.install(1, &copy.json(), OnCuda::probes(), &[&[0xaa; 4096]]);
    worker.install(2, &filling(8192, &[launch("work", "")]), OnCuda::probes(), &[]);
    for _ in 0..3 {
        assert_eq!(worker.call(1, &[], &[4096]).unwrap(), [[0xaa; 4096]]);
        assert_eq!(worker.call(2, &[], &[8192]).unwrap(), [[0; 8192]]);
    }
    worker.end().unwrap();
}
