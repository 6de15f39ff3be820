//! A hot call allocates nothing in the worker: counted by the allocator, on the worker's thread only.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{Worker, compile_cpu};
use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::{ArenaId, Fault, LaneId};
use pappus_shmem::Mapping;
use pappus_worker::device::cpu::{Cpu, Function};
use pappus_worker::device::{
    Call, Device, FunctionImage, Functions, Hygiene, Lanes, Loading, Memory, Weights,
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: everything is the system allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The CPU, made on the worker's thread, which is counted from then on.
struct Counted(Cpu);

impl Device for Counted {
    fn hello(&self) -> Hello {
        COUNTED.set(true);
        self.0.hello()
    }
}

impl Functions for Counted {
    type Function = Function;

    fn load(&mut self, image: FunctionImage<'_>) -> Result<Function, Fault> {
        self.0.load(image)
    }
    fn load_weights(&mut self, function: &mut Function, weights: Weights) {
        self.0.load_weights(function, weights);
    }
    fn poll_weights(&mut self, function: &mut Function) -> Loading {
        self.0.poll_weights(function)
    }
    fn unload_weights(&mut self, function: &mut Function, keep: bool) -> Result<(), Fault> {
        self.0.unload_weights(function, keep)
    }
}

impl Memory for Counted {
    fn lane_bytes(&self, lane: LaneId) -> u64 {
        self.0.lane_bytes(lane)
    }
    fn grow(&mut self, lane: LaneId, bytes: u64) -> Result<(), Fault> {
        self.0.grow(lane, bytes)
    }
    fn give_back(&mut self, lane: LaneId) -> Result<(), Fault> {
        self.0.give_back(lane)
    }
    fn map_arena(&mut self, arena: ArenaId, mapping: &Mapping) -> Result<(), Fault> {
        self.0.map_arena(arena, mapping)
    }
    fn unmap_arena(&mut self, arena: ArenaId) {
        self.0.unmap_arena(arena);
    }
}

impl Lanes for Counted {
    fn lanes(&self) -> usize {
        self.0.lanes()
    }
    fn start(&mut self, lane: LaneId, function: &mut Function, call: &Call<'_>) {
        self.0.start(lane, function, call);
    }
    fn poll(&mut self, lane: LaneId) -> Option<Result<Done, Fault>> {
        self.0.poll(lane)
    }
    fn clear(&mut self, lane: LaneId, function: &mut Function) -> Result<(), Fault> {
        self.0.clear(lane, function)
    }
}

impl Hygiene for Counted {
    fn forget(&mut self) -> Result<(), Fault> {
        self.0.forget()
    }
}

#[test]
fn hot_calls_do_not_allocate() {
    let mut worker = Worker::start(|| Counted(Cpu::new(false).unwrap()));
    let linalg = compile_cpu(include_bytes!("../../kernels/built/linalg.wasm"));
    worker.install(1, include_str!("../../kernels/configs/vec_add.json"), &linalg, &[]);
    let mlops = compile_cpu(include_bytes!("../../kernels/built/mlops.wasm"));
    worker.install(2, include_str!("../../kernels/configs/matmul.json"), &mlops, &[]);
    let vector = [0; 4000];
    let add = worker.arena_call(1, &[&vector, &vector], &[4000]);
    let matrix = [&31u64.to_le_bytes()[..], &[0; 8 * 31 * 31]].concat();
    let mut multiply = worker.arena_call(2, &[&matrix], &[matrix.len() as u64]);
    multiply.scalars = vec![31];
    let mut rounds = |count| {
        for _ in 0..count {
            worker.invoke(&add).unwrap();
            worker.invoke(&multiply).unwrap();
        }
        ALLOCATIONS.load(Ordering::Relaxed)
    };
    let warm = rounds(3);
    assert!(warm > 0, "nothing is counted");
    assert_eq!(rounds(100), warm);
    worker.end().unwrap();
}
