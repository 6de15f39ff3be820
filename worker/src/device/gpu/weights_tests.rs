//! Weights on their way, there and gone, as a driver that only records saw it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use pappus_blueprint::Blueprint;
use pappus_shmem::memfd;

use super::driver::Access;
use super::fake::{self, Did, Fake, GRANULE};
use super::layout::{PIN_BYTES, UNPINNED_BYTES};
use super::*;
use crate::device::{Device, FunctionImage, Functions, Hygiene, LoadedWeights, Loading, Memory, Weights};

const MODULE: &str = "kernel k 8 8";
/// Weights that no spare is large enough for.
const LARGE: u64 = GRANULE + 100;

fn blueprint() -> Blueprint {
    let json = r#"{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {
        "inputs": ["A"], "weights": ["W"], "buffers": {"B": {"Sizeof": "A"}}, "outputs": ["B"], "control_flow": []}}"#;
    pappus_blueprint::parse(json.as_bytes()).unwrap()
}

/// A function with so many bytes of weights.
fn function(gpu: &mut Gpu<Fake>, weight_bytes: u64) -> Function<Fake> {
    let module = memfd::sealed("module", MODULE.as_bytes()).unwrap();
    let mut module = File::from(module.as_fd().try_clone_to_owned().unwrap());
    std::io::Seek::rewind(&mut module).unwrap();
    gpu.load(FunctionImage { blueprint: &blueprint(), modules: vec![module], weight_bytes }).unwrap()
}

/// A host copy of so many bytes.
fn host(bytes: u64, export: bool) -> Weights {
    Weights::Host { memfd: memfd::sealed("weights", &vec![7; bytes as usize]).unwrap(), export }
}

fn loaded(gpu: &mut Gpu<Fake>, function: &mut Function<Fake>) -> Result<LoadedWeights, Fault> {
    loop {
        if let Loading::Over(outcome) = gpu.poll_weights(function) {
            return outcome;
        }
    }
}

/// Nothing comes for a while.
fn rest(gpu: &mut Gpu<Fake>) {
    while gpu.wants_rest() {
        gpu.rest();
    }
}

/// Mappings and their ends, in order; a mapping with what may be done there.
fn maps(log: &[Did]) -> Vec<(u64, Option<Access>)> {
    let of = |did: &Did| match *did {
        Did::Map { at, access, .. } => Some((at, Some(access))),
        Did::Unmap { at, .. } => Some((at, None)),
        _ => None,
    };
    log.iter().filter_map(of).collect()
}

/// True if kernels were shown bytes of device memory that nothing was written to, or that are left from earlier weights:
/// a kernel could read beyond its own weights. Memory is told apart by its window.
fn shows_what_others_left(log: &[Did]) -> bool {
    let mut unwritten: Vec<(u64, u64)> = Vec::new();
    for did in log {
        match *did {
            Did::Map { at, bytes, access: Access::ReadWrite } => unwritten.push((at, bytes)),
            // Parts come in their order.
            Did::CopyIn { to, bytes } | Did::Fill { to, bytes, .. } => {
                if let Some(part) = unwritten.iter_mut().find(|(at, _)| *at == to) {
                    *part = (to + bytes, part.1 - bytes);
                }
            }
            Did::Map { access: Access::Read, .. } if unwritten.iter().any(|(_, left)| *left > 0) => {
                return true;
            }
            _ => {}
        }
    }
    false
}

#[test]
fn weights_are_read_only_but_for_the_window_that_fills_them() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut function = function(&mut gpu, LARGE);
    fake::log();
    gpu.load_weights(&mut function, host(LARGE, true));
    fake::events(Some(Ok(false)));
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Copying));
    let log = fake::log();
    let (window, at) = (maps(&log)[0].0, function.weights.base());
    assert_eq!(maps(&log), [(window, Some(Access::ReadWrite)), (at, Some(Access::Read))]);
    let copied = log.iter().position(|did| *did == Did::CopyIn { to: window, bytes: LARGE }).unwrap();
    assert_eq!(log[copied + 1], Did::Fill { to: window + LARGE, byte: 0, bytes: 2 * GRANULE - LARGE });
    assert!(matches!(log[copied + 2], Did::Record(_)));
    assert!(!log.contains(&Did::Synchronize), "nothing is waited for");
    // The copy is over before the window closes.
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Copying));
    assert_eq!(fake::log(), []);
    fake::events(None);
    let weights = loaded(&mut gpu, &mut function).unwrap();
    assert!(weights.export.is_some() && weights.bytes == 2 * GRANULE);
    assert_eq!(maps(&fake::log()), [(window, None)]);
}

/// What the driver is told when weights of `bytes` come to a function that never had any.
fn first_load(gpu: &mut Gpu<Fake>, bytes: u64) -> (Function<Fake>, Vec<Did>) {
    let mut function = function(gpu, bytes);
    fake::log();
    gpu.load_weights(&mut function, host(bytes, true));
    let weights = loaded(gpu, &mut function).unwrap();
    assert!(weights.export.is_some() && weights.bytes == bytes.next_multiple_of(GRANULE));
    (function, fake::log())
}

#[test]
fn small_weights_find_memory_that_is_mapped_and_the_next_ones_after_a_rest() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    assert!(!gpu.wants_rest(), "there is some from the start");
    let in_a_spare = |log: &[Did]| matches!(maps(log)[..], [(_, None)]);
    let (_first, log) = first_load(&mut gpu, 100);
    assert!(in_a_spare(&log), "{log:?}");
    // All of it is written: kernels may have been there.
    let (window, _) = maps(&log)[0];
    assert!(log.contains(&Did::CopyIn { to: window, bytes: 100 }), "{log:?}");
    assert!(log.contains(&Did::Fill { to: window + 100, byte: 0, bytes: GRANULE - 100 }), "{log:?}");
    // Another one without a rest sees to its own.
    assert!(gpu.wants_rest());
    let (_second, log) = first_load(&mut gpu, GRANULE);
    assert!(!in_a_spare(&log), "{log:?}");
    rest(&mut gpu);
    assert!(!gpu.wants_rest());
    let (_third, log) = first_load(&mut gpu, GRANULE);
    assert!(in_a_spare(&log), "{log:?}");
    // Larger ones leave it where it is.
    rest(&mut gpu);
    let (_large, log) = first_load(&mut gpu, LARGE);
    assert!(!in_a_spare(&log) && !gpu.wants_rest(), "{log:?}");
}

#[test]
fn memory_that_is_ready_counts_in_what_a_process_takes() {
    let with = |context_bytes| {
        let driver = Fake { context_bytes, ..Fake::new() };
        Gpu::new(driver, 1, None).unwrap().hello().context_bytes
    };
    assert_eq!([0, 5 * GRANULE].map(with), [0, 6 * GRANULE], "unless it was not measured");
}

#[test]
fn weights_that_come_again_keep_their_addresses_whatever_is_ready() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let (mut function, _) = first_load(&mut gpu, 100);
    let at = function.weights.base();
    rest(&mut gpu);
    gpu.unload_weights(&mut function, false).unwrap();
    gpu.load_weights(&mut function, host(100, true));
    loaded(&mut gpu, &mut function).unwrap();
    assert_eq!(function.weights.base(), at);
    assert!(!gpu.wants_rest(), "it is still there");
}

/// Of device memory that is mapped: what is not written yet.
fn unwritten(log: &[Did]) -> u64 {
    let mapped = log.iter().map(|did| match *did {
        Did::Map { bytes, access: Access::ReadWrite, .. } => bytes,
        _ => 0,
    });
    let filled = log.iter().map(|did| if let Did::Fill { bytes, .. } = *did { bytes } else { 0 });
    mapped.sum::<u64>() - filled.sum::<u64>()
}

#[test]
fn no_kernel_runs_before_memory_that_is_made_ready_is_zeroed() {
    fake::log();
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    assert_eq!(unwritten(&fake::log()), 0, "the first is zeroed when the process starts");
    first_load(&mut gpu, 100);
    // Calls come after each step.
    let mut seen = 0;
    while gpu.wants_rest() {
        gpu.rest();
        let before = fake::log();
        assert_eq!(gpu.has_unzeroed, unwritten(&before) > 0, "the next call sees to it");
        gpu.zero().unwrap();
        let log = [before, fake::log()].concat();
        assert_eq!(unwritten(&log), 0, "{log:?}");
        seen += usize::from(log.iter().any(|did| matches!(did, Did::Fill { .. })));
    }
    assert_eq!(seen, 1, "it is written once");
}

#[test]
fn memory_that_a_load_takes_is_zeroed_before_a_call_of_another_function_runs() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    first_load(&mut gpu, 100);
    fake::log();
    rest(&mut gpu);
    let (mut large, mut small) = (function(&mut gpu, LARGE), function(&mut gpu, 100));
    fake::out_of_memory(1);
    gpu.load_weights(&mut large, host(LARGE, true));
    gpu.load_weights(&mut small, host(100, true));
    // The large one waits for memory, and the small one stands behind it.
    assert!(matches!(gpu.poll_weights(&mut large), Loading::Submitting));
    assert!(!gpu.has_unzeroed, "nothing is left to the call that comes now");
    assert_eq!(unwritten(&fake::log()), 0);
}

#[test]
fn memory_that_is_ready_is_for_who_lacks_some() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut large = function(&mut gpu, LARGE);
    fake::log();
    fake::out_of_memory(1);
    gpu.load_weights(&mut large, host(LARGE, true));
    assert!(matches!(gpu.poll_weights(&mut large), Loading::Submitting));
    assert_eq!(maps(&fake::log()).iter().filter(|(_, access)| access.is_none()).count(), 2);
    loaded(&mut gpu, &mut large).unwrap();
    assert!(gpu.wants_rest());
}

#[test]
fn weights_in_memory_that_was_ready_can_go_on_their_way_and_need_no_name() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut function = function(&mut gpu, 100);
    gpu.load_weights(&mut function, host(100, false));
    fake::log();
    // Nothing of it is submitted yet.
    gpu.unload_weights(&mut function, false).unwrap();
    let log = fake::log();
    assert_eq!(
        (log[0].clone(), maps(&log).len()),
        (Did::Synchronize, 2),
        "neither window nor mapping is left"
    );
    gpu.load_weights(&mut function, host(100, false));
    assert!(loaded(&mut gpu, &mut function).unwrap().export.is_none());
}

#[test]
fn where_no_memory_can_be_made_ready_weights_find_theirs_later() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    first_load(&mut gpu, 100);
    fake::out_of_memory(1);
    rest(&mut gpu);
    assert!(!gpu.wants_rest(), "not again and again");
    gpu.zero().unwrap();
    let (_function, log) = first_load(&mut gpu, 100);
    assert_eq!(maps(&log).len(), 3, "{log:?}");
    assert!(gpu.wants_rest(), "when it is asked for again");
}

#[test]
fn a_load_stops_no_lane() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let bytes = 3 * PIN_BYTES + 5;
    let mut function = function(&mut gpu, bytes);
    fake::log();
    fake::events(Some(Ok(false)));
    gpu.load_weights(&mut function, host(bytes, false));
    // A part of the host's copy is pinned at a time, and copied before the next one is.
    for part in [PIN_BYTES, PIN_BYTES, PIN_BYTES] {
        assert!(matches!(gpu.poll_weights(&mut function), Loading::Submitting));
        let log = fake::log();
        let pinned = log.iter().position(|did| *did == Did::Pin { bytes: part, read_only: true }).unwrap();
        assert!(matches!(log[pinned + 1], Did::CopyIn { bytes, .. } if bytes == part));
        assert_eq!(log.iter().filter(|did| matches!(did, Did::CopyIn { .. })).count(), 1);
    }
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Copying));
    // A lane that grows meanwhile waits for lanes only.
    fake::log();
    gpu.settle().unwrap();
    assert_eq!(fake::log(), [Did::Synchronize, Did::Synchronize], "its stream, and the device's own");
    fake::events(None);
    loaded(&mut gpu, &mut function).unwrap();
}

#[test]
fn a_host_copy_stays_pinned_and_is_shared() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let bytes = 2 * PIN_BYTES;
    let mut functions = [function(&mut gpu, bytes), function(&mut gpu, bytes)];
    let file = memfd::sealed("weights", &vec![7; bytes as usize]).unwrap();
    let host = || {
        let again: OwnedFd = file.as_fd().try_clone_to_owned().unwrap();
        Weights::Host { memfd: memfd::judge_sealed(again, u64::MAX).unwrap(), export: false }
    };
    fake::log();
    let pins = |log: &[Did]| log.iter().filter(|did| matches!(did, Did::Pin { .. })).count();
    gpu.load_weights(&mut functions[0], host());
    loaded(&mut gpu, &mut functions[0]).unwrap();
    assert_eq!(pins(&fake::log()), 2);
    gpu.unload_weights(&mut functions[0], false).unwrap();
    for function in &mut functions {
        gpu.load_weights(function, host());
        fake::events(Some(Ok(false)));
        assert!(matches!(gpu.poll_weights(function), Loading::Copying), "all of it at once");
        fake::events(None);
        loaded(&mut gpu, function).unwrap();
        assert_eq!(pins(&fake::log()), 0);
    }
    // The host copy is unpinned with the last function that has it.
    let [first, second] = functions;
    gpu.unload(first).unwrap();
    assert!(!fake::log().contains(&Did::Unpin));
    gpu.unload(second).unwrap();
    assert_eq!(fake::log().into_iter().filter(|did| *did == Did::Unpin).count(), 2);
}

#[test]
fn what_cannot_be_pinned_is_copied_in_small_parts() {
    let mut driver = Fake::new();
    driver.properties.pins_read_only = false;
    let mut gpu = Gpu::new(driver, 1, None).unwrap();
    let mut function = function(&mut gpu, 2 * UNPINNED_BYTES);
    gpu.load_weights(&mut function, host(2 * UNPINNED_BYTES, false));
    fake::log();
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Submitting));
    let log = fake::log();
    assert!(matches!(log.last(), Some(Did::CopyIn { bytes: UNPINNED_BYTES, .. })), "{log:?}");
    loaded(&mut gpu, &mut function).unwrap();
}

#[test]
fn addresses_stay_when_weights_go_and_come_again() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut function = function(&mut gpu, 100);
    gpu.load_weights(&mut function, host(100, false));
    loaded(&mut gpu, &mut function).unwrap();
    let at = function.weights.base();
    assert_ne!(at, 0);
    fake::log();
    gpu.unload_weights(&mut function, false).unwrap();
    assert_eq!(fake::log(), [Did::Unmap { at, bytes: GRANULE }]);
    let descriptor = memfd::sealed("memory", b"memory").unwrap().as_fd().try_clone_to_owned().unwrap();
    gpu.load_weights(&mut function, Weights::Device { descriptor, bytes: GRANULE });
    assert_eq!(loaded(&mut gpu, &mut function).unwrap().bytes, GRANULE);
    assert_eq!(function.weights.base(), at);
    assert_eq!(maps(&fake::log()), [(at, Some(Access::Read))], "memory that others filled has no window");
}

/// What the driver is told when weights of `bytes` take the memory of others of `before` bytes.
fn replaced(before: u64, bytes: u64) -> Vec<Did> {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut first = function(&mut gpu, before);
    let mut second = function(&mut gpu, bytes);
    gpu.load_weights(&mut first, host(before, true));
    loaded(&mut gpu, &mut first).unwrap();
    fake::log();
    gpu.unload_weights(&mut first, true).unwrap();
    gpu.load_weights(&mut second, host(bytes, true));
    let weights = loaded(&mut gpu, &mut second).unwrap();
    let has = before.next_multiple_of(GRANULE);
    let needs = bytes.next_multiple_of(GRANULE);
    // Memory that suits is reused, and other workers have its descriptor.
    let suits = has >= needs && has - needs <= needs / 8;
    assert_eq!((weights.bytes, weights.export.is_none()), (if suits { has } else { needs }, suits));
    fake::log()
}

#[test]
fn weights_take_the_memory_of_those_that_they_replace_and_nothing_of_those_is_left() {
    let log = replaced(16 * GRANULE, 15 * GRANULE - 100);
    assert!(!shows_what_others_left(&log), "{log:?}");
    // The control: without the zeros behind the copy, the rest of those before would be there.
    let rest =
        log.iter().position(|did| matches!(did, Did::Fill { bytes, .. } if *bytes == GRANULE + 100)).unwrap();
    let mut without = log.clone();
    without.remove(rest);
    assert!(shows_what_others_left(&without), "the control finds nothing");
    // Memory that is too small or much too large is not used.
    replaced(GRANULE, 2 * GRANULE);
    replaced(16 * GRANULE, 8 * GRANULE);
}

#[test]
fn memory_that_is_kept_is_for_the_next_load_only() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut functions = [100, 5 * GRANULE, 100].map(|bytes| function(&mut gpu, bytes));
    gpu.load_weights(&mut functions[0], host(100, true));
    loaded(&mut gpu, &mut functions[0]).unwrap();
    gpu.unload_weights(&mut functions[0], true).unwrap();
    for (function, bytes) in functions[1..].iter_mut().zip([5 * GRANULE, 100]) {
        gpu.load_weights(function, host(bytes, true));
        assert!(loaded(&mut gpu, function).unwrap().export.is_some(), "it is new");
    }
}

#[test]
fn a_load_waits_for_memory_that_others_are_about_to_give_back() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut function = function(&mut gpu, LARGE);
    fake::out_of_memory(2);
    gpu.load_weights(&mut function, host(LARGE, false));
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Submitting));
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Submitting));
    loaded(&mut gpu, &mut function).unwrap();
}

#[test]
fn a_load_that_fails_leaves_nothing_mapped() {
    // The first in memory that was mapped before, twice.
    for (bytes, maps) in [(100, (0, 2)), (LARGE, (1, 1))] {
        let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
        let mut function = function(&mut gpu, bytes);
        fake::log();
        gpu.load_weights(&mut function, host(bytes, false));
        fake::fail_next_copy();
        loaded(&mut gpu, &mut function).unwrap_err();
        let log = fake::log();
        let mapped = log.iter().filter(|did| matches!(did, Did::Map { .. })).count();
        let unmapped = log.iter().filter(|did| matches!(did, Did::Unmap { .. })).count();
        assert_eq!((mapped, unmapped), maps, "{log:?}");
        // What was submitted is over before.
        let over = log.iter().rposition(|did| *did == Did::Synchronize).unwrap();
        assert!(over < log.iter().position(|did| matches!(did, Did::Unmap { .. })).unwrap());
        // The next load is a fresh one.
        gpu.load_weights(&mut function, host(bytes, false));
        loaded(&mut gpu, &mut function).unwrap();
    }
}

#[test]
fn a_load_that_is_given_up_is_over_first() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let mut function = function(&mut gpu, 100);
    gpu.load_weights(&mut function, host(100, false));
    fake::events(Some(Ok(false)));
    assert!(matches!(gpu.poll_weights(&mut function), Loading::Copying));
    fake::log();
    gpu.unload_weights(&mut function, false).unwrap();
    let log = fake::log();
    assert_eq!(log[0], Did::Synchronize);
    assert_eq!(maps(&log).len(), 2, "neither the window nor the mapping is left");
    fake::events(None);
}
