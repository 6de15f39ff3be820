//! What survives kernels outside of memory, and memory between processes. Where calls share a worker, shared,
//! distributed shared and local memory and registers are cleared only under `scrub_calls`; without it, the same
//! probes are the control.

use std::sync::OnceLock;

use crate::harness::Worker;
use crate::suite::UnderTest;
use crate::suite::blueprints::{Blueprint, filling, i64, launch, launch_wide, ptr, u32};
use crate::suite::cuda::{CLUSTER_PROBES, OnCuda, compile};

/// Four times the byte that buffers are filled with.
const PATTERN: u32 = 0x5e5e_5e5e;
const PATTERN_BYTE: u8 = 0x5e;
/// Processors that a GPU may have, for marks and counts.
const PROCESSORS: u64 = 512;

/// Shared memory of blocks of which several fit on a processor.
const SMALL: u64 = 48 << 10;

/// A place on the chip: how `PATTERN` is left there, and how it is looked for.
struct Place {
    name: &'static str,
    fill: String,
    scan: String,
    code: &'static [u8],
    /// Measured before: without a scrub, it is found.
    surely: bool,
    /// Both kernels mark the processors they reach.
    marks: bool,
    /// How many there are.
    processors: u64,
}

fn cluster() -> &'static [u8] {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    CODE.get_or_init(|| compile(CLUSTER_PROBES))
}

/// The shared memory that one block can have.
fn shared_bytes(arch: &str) -> u64 {
    match arch {
        "sm_70" => 96 << 10,
        "sm_75" => 64 << 10,
        "sm_80" | "sm_87" => 163 << 10,
        "sm_86" | "sm_89" | "sm_120" => 99 << 10,
        _ => 227 << 10,
    }
}

/// Counts the processors of the GPU.
fn processors(worker: &mut Worker) -> u64 {
    let map = launch_wide("smid_map", &ptr("out"), [4096, 1, 1], 1024, 0);
    worker.install(100, &filling(8 * PROCESSORS, &[map]), OnCuda::probes(), &[]);
    let seen = worker.call(100, &[], &[8 * PROCESSORS]).unwrap().remove(0);
    let blocks: Vec<_> = seen.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(blocks.iter().sum::<u64>(), 4096);
    blocks.iter().filter(|blocks| **blocks > 0).count() as u64
}

fn places(worker: &mut Worker) -> Vec<Place> {
    let count = processors(worker);
    let arch = worker.hello.arch.clone();
    let shared = shared_bytes(&arch);
    let (pattern, words) = (u32(PATTERN), u32((shared / 4) as u32));
    let small_words = u32((SMALL / 4) as u32);
    let (hits, marks) = (ptr("hits"), ptr("marks"));
    let step = |kernel: &str, params: &[&String], blocks: u64, threads: u64, shared: u64| {
        let params: Vec<_> = params.iter().map(|param| param.as_str()).collect();
        launch_wide(kernel, &params.join(","), [blocks, 1, 1], threads, shared)
    };
    let probes = OnCuda::probes();
    let mut places = vec![
        Place {
            name: "shared memory",
            fill: step("shared_fill", &[&pattern, &words, &marks], 8 * count, 1024, shared),
            scan: step("shared_scan", &[&pattern, &words, &hits, &marks], 8 * count, 1024, shared),
            code: probes,
            surely: true,
            marks: true,
            processors: count,
        },
        Place {
            name: "shared memory of small blocks",
            fill: step("shared_fill", &[&pattern, &small_words, &marks], 32 * count, 1024, SMALL),
            scan: step("shared_scan", &[&pattern, &small_words, &hits, &marks], 32 * count, 1024, SMALL),
            code: probes,
            surely: true,
            marks: true,
            processors: count,
        },
        Place {
            name: "local memory",
            fill: step("local_fill", &[&pattern, &u32(7)], 4 * count, 1024, 0),
            scan: step("local_scan", &[&pattern, &u32(7), &hits], 4 * count, 1024, 0),
            code: probes,
            surely: true,
            marks: false,
            processors: count,
        },
        Place {
            name: "registers",
            fill: step("register_fill", &[&ptr("words"), &ptr("words")], 8 * count, 256, 0),
            // One block a processor: a second one could find what the first had in its registers.
            scan: step("register_scan", &[&pattern, &hits, &u32(0)], count, 256, 0),
            code: probes,
            surely: false,
            marks: false,
            processors: count,
        },
    ];
    if matches!(arch.as_str(), "sm_90" | "sm_100" | "sm_103" | "sm_120") {
        let blocks = 8 * (count / 2 * 2);
        places.push(Place {
            name: "distributed shared memory",
            fill: step("dsmem_fill", &[&pattern, &words], blocks, 1024, shared),
            scan: step("dsmem_scan", &[&pattern, &words, &hits], blocks, 1024, shared),
            code: cluster(),
            surely: false,
            marks: false,
            processors: count,
        });
    }
    places
}

impl Place {
    /// Functions 1, which fills, and 2, which scans.
    fn install(&self, worker: &mut Worker) {
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
        let words = format!(r#"{{"Fill": {{"buffer": "words", "byte": {PATTERN_BYTE}}}}}"#);
        worker.install(1, &json(&[words, self.fill.clone()]), self.code, &[]);
        worker.install(2, &json(std::slice::from_ref(&self.scan)), self.code, &[]);
    }

    /// Fills (1) or scans (2): how often the pattern was found.
    fn call(&self, worker: &mut Worker, function: u64) -> u64 {
        let outputs = worker.call(function, &[], &[8, 4 * PROCESSORS]).unwrap();
        let reached = outputs[1].chunks(4).filter(|mark| mark[0] != 0).count() as u64;
        assert!(!self.marks || reached == self.processors, "{}: reached {reached} processors", self.name);
        u64::from_le_bytes(outputs[0][..].try_into().unwrap())
    }

    /// What a scan finds right behind a fill.
    fn found(&self, worker: &mut Worker) -> u64 {
        self.call(worker, 1);
        self.call(worker, 2)
    }

    /// Without a scrub, something is found.
    fn control(&self, worker: &mut Worker) {
        let found = self.found(worker);
        let note = if found == 0 { ": not observed" } else { "" };
        println!("{}: {found} words without a scrub{note}", self.name);
        assert!(found > 0 || !self.surely, "{}: the control finds nothing", self.name);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_between_calls_that_are_scrubbed() {
    let mut worker = OnCuda::worker();
    for place in places(&mut worker) {
        place.install(&mut worker);
        place.control(&mut worker);
        worker.configure(|settings| settings.scrub_calls = true);
        worker.until_leased();
        for _ in 0..3 {
            assert_eq!(place.found(&mut worker), 0, "{}", place.name);
        }
        // Scrubbing is off again: the control bites as before.
        worker.configure(|settings| settings.scrub_calls = false);
        worker.until_leased();
        place.control(&mut worker);
    }
    worker.end().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_for_the_next_domain_of_a_scrubbed_worker() {
    let mut worker = OnCuda::worker();
    worker.configure(|settings| settings.scrub_switch = true);
    worker.until_leased();
    for place in places(&mut worker) {
        place.install(&mut worker);
        place.control(&mut worker);
        for _ in 0..3 {
            place.call(&mut worker, 1);
            worker.scrub();
            place.install(&mut worker);
            assert_eq!(place.call(&mut worker, 2), 0, "{}", place.name);
        }
        // Without one in between, the control bites as before.
        place.control(&mut worker);
    }
    worker.end().unwrap();
}

/// Leaves every pattern in a worker that then ends somehow; the next worker finds none of it.
fn nothing_is_left_by(end: impl Fn(Worker)) {
    let mut first = OnCuda::worker();
    let names: Vec<_> = places(&mut first).iter().map(|place| place.name).collect();
    first.end().unwrap();
    for (nth, name) in names.into_iter().enumerate() {
        let mut dirty = OnCuda::worker();
        let place = places(&mut dirty).remove(nth);
        place.install(&mut dirty);
        place.control(&mut dirty);
        let fill = launch("fill", &[ptr("out"), i64(PATTERN_BYTE.into()), i64(256 << 10)].join(","));
        dirty.install(3, &filling(256 << 10, &[fill]), OnCuda::probes(), &[]);
        dirty.call(3, &[], &[256 << 10]).unwrap();
        place.call(&mut dirty, 1);
        end(dirty);
        let mut next = OnCuda::worker();
        place.install(&mut next);
        assert_eq!(place.call(&mut next, 2), 0, "{name}");
        next.install(3, &filling(256 << 10, &[launch("work", "")]), OnCuda::probes(), &[]);
        assert!(next.call(3, &[], &[256 << 10]).unwrap() == [vec![0; 256 << 10]], "the pool");
        next.end().unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_by_a_worker_that_ended() {
    nothing_is_left_by(|worker| worker.end().unwrap());
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_after_a_fault() {
    nothing_is_left_by(|mut worker| {
        worker.install(4, &filling(8, &[launch("trap", "")]), OnCuda::probes(), &[]);
        worker.call_alone(4, &[], &[8]).unwrap_err();
        worker.breaks();
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_after_a_call_that_never_ends() {
    nothing_is_left_by(|mut worker| {
        worker.install(4, &filling(8, &[launch("endless", &ptr("out"))]), OnCuda::probes(), &[]);
        let call = worker.arena_call(4, &[], &[8]);
        worker.begin(&call);
        // As the supervisor does when the deadline has passed.
        worker.kill();
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]
fn nothing_is_left_after_a_kill_in_the_middle_of_a_call() {
    nothing_is_left_by(|mut worker| {
        let call = worker.arena_call(1, &[], &[8, 4 * PROCESSORS]);
        for _ in 0..20 {
            worker.begin(&call);
        }
        worker.kill();
    });
}
