//! What survives kernels outside of memory, and memory between processes. Where calls share a worker, shared,
//! distributed shared and local memory and registers are cleared only under `scrub_calls`; without it, the same
//! probes are the control.

use pappus_protocol::TurnId;

use super::GpuUnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, launch_wide, ptr};
use crate::harness::Worker;

/// Processors that a GPU may have, for marks and counts.
const PROCESSORS: u64 = 512;

/// A place on the chip: how a word of four times the device's `PATTERN` is left there, and how it is looked for.
pub struct Place {
    pub name: &'static str,
    pub fill: String,
    pub scan: String,
    pub code: &'static [u8],
    /// Without a scrub, it is found.
    pub surely: bool,
    /// Both kernels mark the processors they reach.
    pub marks: bool,
}

/// A GPU whose processors keep what kernels leave in them.
pub trait ChipUnderTest: GpuUnderTest {
    /// Blocks of 1024 threads, so many that every processor gets some.
    const COVERING: u64;
    /// The byte that one kernel leaves and another looks for.
    const PATTERN: u8;
    /// The driver leaves nothing on the chip for the next process; otherwise that takes turns, at whose begin a worker clears it.
    const CLEARED_BETWEEN_PROCESSES: bool;
    /// Without that, the next process surely finds something.
    const SURELY_NOT_CLEARED: bool;

    /// The places of a chip of this architecture with so many processors.
    fn places(arch: &str, processors: u64) -> Vec<Place>;
}

/// A launch of blocks along x.
pub fn step(kernel: &str, params: &[&str], blocks: u64, threads: u64, shared: u64) -> String {
    launch_wide(kernel, &params.join(","), [blocks, 1, 1], threads, shared)
}

/// Counts the processors of the GPU.
fn processors<T: ChipUnderTest>(worker: &mut Worker) -> u64 {
    let map = launch_wide("smid_map", &ptr("out"), [T::COVERING, 1, 1], 1024, 0);
    worker.install(100, &filling(8 * PROCESSORS, &[map]), T::probes(), &[]);
    let seen = worker.call(100, &[], &[8 * PROCESSORS]).unwrap().remove(0);
    let blocks: Vec<_> = seen.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(blocks.iter().sum::<u64>(), T::COVERING);
    blocks.iter().filter(|blocks| **blocks > 0).count() as u64
}

/// The places, and how many processors there are.
fn places<T: ChipUnderTest>(worker: &mut Worker) -> (Vec<Place>, u64) {
    let processors = processors::<T>(worker);
    let arch = worker.hello.arch.clone();
    (T::places(&arch, processors), processors)
}

impl Place {
    /// Functions 1, which fills, and 2, which scans.
    fn install<T: ChipUnderTest>(&self, worker: &mut Worker) {
        let json = |steps: &[String]| {
            Blueprint {
                inputs: &[],
                weights: &[],
                buffers: &[("hits", 8), ("marks", 4 * PROCESSORS), ("words", 1024)],
                outputs: &["hits", "marks"],
                steps,
            }
            .json()
        };
        // Not in the function that scans: whatever fills a buffer has the pattern in its registers.
        let words = format!(r#"{{"Fill": {{"buffer": "words", "byte": {}}}}}"#, T::PATTERN);
        worker.install(1, &json(&[words, self.fill.clone()]), self.code, &[]);
        worker.install(2, &json(std::slice::from_ref(&self.scan)), self.code, &[]);
    }

    /// Fills (1) or scans (2): how often the pattern was found.
    fn call(&self, worker: &mut Worker, function: u64, processors: u64) -> u64 {
        let outputs = worker.call(function, &[], &[8, 4 * PROCESSORS]).unwrap();
        let reached = outputs[1].chunks(4).filter(|mark| mark[0] != 0).count() as u64;
        assert!(!self.marks || reached == processors, "{}: reached {reached} processors", self.name);
        u64::from_le_bytes(outputs[0][..].try_into().unwrap())
    }

    /// What a scan finds right behind a fill.
    fn found(&self, worker: &mut Worker, processors: u64) -> u64 {
        self.call(worker, 1, processors);
        self.call(worker, 2, processors)
    }

    /// Without a scrub, something is found.
    fn control(&self, worker: &mut Worker, processors: u64) {
        let found = self.found(worker, processors);
        let note = if found == 0 { ": not observed" } else { "" };
        println!("{}: {found} words without a scrub{note}", self.name);
        assert!(found > 0 || !self.surely, "{}: the control finds nothing", self.name);
    }
}

pub fn nothing_is_left_between_calls_that_are_scrubbed<T: ChipUnderTest>() {
    let mut worker = T::worker();
    let (places, count) = places::<T>(&mut worker);
    for place in places {
        place.install::<T>(&mut worker);
        place.control(&mut worker, count);
        worker.configure(|settings| settings.scrub_calls = true);
        worker.until_leased();
        for _ in 0..3 {
            assert_eq!(place.found(&mut worker, count), 0, "{}", place.name);
        }
        // Scrubbing is off again: the control bites as before.
        worker.configure(|settings| settings.scrub_calls = false);
        worker.until_leased();
        place.control(&mut worker, count);
    }
    worker.end().unwrap();
}

pub fn nothing_is_left_for_the_next_domain_of_a_scrubbed_worker<T: ChipUnderTest>() {
    let mut worker = T::worker();
    worker.configure(|settings| settings.scrub_switch = true);
    worker.until_leased();
    let (places, count) = places::<T>(&mut worker);
    for place in places {
        place.install::<T>(&mut worker);
        place.control(&mut worker, count);
        for _ in 0..3 {
            place.call(&mut worker, 1, count);
            worker.scrub();
            place.install::<T>(&mut worker);
            assert_eq!(place.call(&mut worker, 2, count), 0, "{}", place.name);
        }
        // Without one in between, the control bites as before.
        place.control(&mut worker, count);
    }
    worker.end().unwrap();
}

/// A turn that lasts for the whole test.
fn with_its_turn(worker: &mut Worker) {
    worker.configure(|settings| settings.turns = true);
    worker.until_leased();
    worker.grant(TurnId::new(1), 60_000_000);
}

/// Leaves every pattern in a worker that then ends somehow; the next worker finds none of it.
fn nothing_is_left_by<T: ChipUnderTest>(end: impl Fn(Worker)) {
    let mut first = T::worker();
    let (places, count) = places::<T>(&mut first);
    first.end().unwrap();
    for place in places {
        let mut dirty = T::worker();
        place.install::<T>(&mut dirty);
        place.control(&mut dirty, count);
        let fill = launch("fill", &[ptr("out"), i64(T::PATTERN.into()), i64(256 << 10)].join(","));
        dirty.install(3, &filling(256 << 10, &[fill]), T::probes(), &[]);
        dirty.call(3, &[], &[256 << 10]).unwrap();
        place.call(&mut dirty, 1, count);
        end(dirty);
        if T::SURELY_NOT_CLEARED {
            let mut control = T::worker();
            place.install::<T>(&mut control);
            assert!(place.call(&mut control, 2, count) > 0, "{}: the control finds nothing", place.name);
            control.end().unwrap();
        }
        let mut next = T::worker();
        place.install::<T>(&mut next);
        if !T::CLEARED_BETWEEN_PROCESSES {
            with_its_turn(&mut next);
        }
        assert_eq!(place.call(&mut next, 2, count), 0, "{}", place.name);
        next.install(3, &filling(256 << 10, &[launch("work", "")]), T::probes(), &[]);
        assert!(next.call(3, &[], &[256 << 10]).unwrap() == [vec![0; 256 << 10]], "the pool");
        next.end().unwrap();
    }
}

pub fn nothing_is_left_by_a_worker_that_ended<T: ChipUnderTest>() {
    nothing_is_left_by::<T>(|worker| worker.end().unwrap());
}

pub fn nothing_is_left_after_a_fault<T: ChipUnderTest>() {
    nothing_is_left_by::<T>(|mut worker| {
        worker.install(4, &filling(8, &[launch("trap", "")]), T::probes(), &[]);
        worker.call_alone(4, &[], &[8]).unwrap_err();
        worker.breaks();
    });
}

pub fn nothing_is_left_after_a_call_that_never_ends<T: ChipUnderTest>() {
    nothing_is_left_by::<T>(|mut worker| {
        worker.install(4, &filling(8, &[launch("endless", &ptr("out"))]), T::probes(), &[]);
        let call = worker.arena_call(4, &[], &[8]);
        worker.begin(&call);
        // As the supervisor does when the deadline has passed.
        worker.kill();
    });
}

pub fn nothing_is_left_after_a_kill_in_the_middle_of_a_call<T: ChipUnderTest>() {
    nothing_is_left_by::<T>(|mut worker| {
        let call = worker.arena_call(1, &[], &[8, 4 * PROCESSORS]);
        for _ in 0..20 {
            worker.begin(&call);
        }
        worker.kill();
    });
}
