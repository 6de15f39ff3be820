//! Between two calls of one worker: memory, module variables, constants, regions.

use super::GpuUnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, ptr};
use crate::harness::{OUTPUTS_AT, UNTOUCHED, Worker};

/// What the probe must find if nothing is cleared.
#[derive(PartialEq, Eq)]
enum Control {
    Finds,
    MayFind,
}

/// What `probe` sees in its output of `bytes`, after `dirty` and then after itself, or on a fresh worker.
pub fn seen<T: GpuUnderTest>(mut worker: Worker, dirty: Option<&str>, probe: &str, bytes: u64) -> Vec<u8> {
    worker.install(2, probe, T::probes(), &[]);
    if let Some(dirty) = dirty {
        worker.install(1, dirty, T::probes(), &[]);
        worker.call(1, &[], &[8]).unwrap();
        worker.call(2, &[], &[bytes]).unwrap();
        worker.call(1, &[], &[8]).unwrap();
    }
    let seen = [(); 2].map(|()| worker.call(2, &[], &[bytes]).unwrap().remove(0)).concat();
    worker.end().unwrap();
    seen
}

/// The probe sees the same as on a fresh worker; where nothing is cleared, something else.
fn no_trace<T: GpuUnderTest>(place: &str, control: &Control, dirty: &str, probe: &str, bytes: u64) {
    let fresh = seen::<T>(T::worker(), None, probe, bytes);
    assert!(seen::<T>(T::worker(), Some(dirty), probe, bytes) == fresh, "{place}: something is left");
    let found = seen::<T>(T::uncleared_worker(), Some(dirty), probe, bytes) != fresh;
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
pub fn dirty(steps: &[String]) -> String {
    filling(8, steps)
}

pub fn the_pool_with_its_tails<T: GpuUnderTest>() {
    // Up to the alignment that the planner gives every buffer.
    let probe = filling(8192, &[launch("work", "")]);
    no_trace::<T>("pool", &Control::Finds, &dirty(&[fill(256)]), &probe, 8192);
}

pub fn the_pool_beyond_a_calls_plan<T: GpuUnderTest>() {
    let probe = filling(128 << 10, &[launch("work", "")]);
    no_trace::<T>("pool beyond the plan", &Control::Finds, &dirty(&[fill(96 << 10)]), &probe, 128 << 10);
}

pub fn module_variables<T: GpuUnderTest>() {
    for kernel in ["module_global", "module_bss"] {
        let steps = [launch(kernel, &ptr("out"))];
        no_trace::<T>(kernel, &Control::Finds, &dirty(&steps), &dirty(&steps), 8);
    }
}

pub fn the_constant_bank<T: GpuUnderTest>() {
    let write = dirty(&[launch("constant_write", &i64(0xaaaa))]);
    let mut worker = T::worker();
    worker.install(1, &write, T::probes(), &[]);
    if let Err(fault) = worker.call_alone(1, &[], &[8]) {
        println!("constant bank: written to, it faults: {fault}");
        worker.breaks();
        return;
    }
    worker.end().unwrap();
    for at in [0, 511] {
        let read = dirty(&[launch("constant_read", &[ptr("out"), i64(at)].join(","))]);
        no_trace::<T>("constant bank", &Control::MayFind, &write, &read, 8);
    }
}

pub fn staging_and_output_tails<T: GpuUnderTest>() {
    super::regions::staging_is_cleared_and_the_rest_of_the_arena_untouched::<T>();
    let mut worker = T::worker();
    worker.install(1, &dirty(&[fill(8192)]), T::probes(), &[]);
    // More room than the output has: nothing is written behind it, whatever the pool holds there.
    worker.call(1, &[], &[4096]).unwrap();
    assert_eq!(worker.read_arena(OUTPUTS_AT, 8), [0xaa; 8]);
    assert_eq!(worker.read_arena(OUTPUTS_AT + 8, 4088), [UNTOUCHED; 4088]);
    worker.end().unwrap();
}

/// A copy of weights in the pool goes like everything else; the weights themselves stay.
pub fn weights_of_one_function_are_not_found_by_another<T: GpuUnderTest>() {
    let copy = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 4096)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(4096)].join(","))],
    };
    let mut worker = T::worker();
    worker.install(1, &copy.json(), T::probes(), &[&[0xaa; 4096]]);
    worker.install(2, &filling(8192, &[launch("work", "")]), T::probes(), &[]);
    for _ in 0..3 {
        assert_eq!(worker.call(1, &[], &[4096]).unwrap(), [[0xaa; 4096]]);
        assert_eq!(worker.call(2, &[], &[8192]).unwrap(), [[0; 8192]]);
    }
    worker.end().unwrap();
}
