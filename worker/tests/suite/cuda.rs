//! A CUDA device under test. A fault there ends all CUDA work of a process, so a worker is a process, and so
//! is the compiler that makes machine code of the probes.

use std::sync::OnceLock;

use super::blueprints::{i64, launch, ptr, u32};
use super::leaks_on_chip::{ChipUnderTest, Place, step};
use super::{GpuUnderTest, UnderTest};
use crate::harness::Worker;
use crate::harness::program::{self, Options};

pub struct OnCuda;

/// The PTX of a module of the library.
pub fn library_text(name: &str) -> &'static [u8] {
    match name {
        "linalg" => include_bytes!("../../../kernels/built/linalg.ptx"),
        other => panic!("no module {other}"),
    }
}

/// The probes (see `probes.cu`), those for GPUs with clusters of blocks, and one that takes a tensor map.
pub const PROBES: &[u8] = include_bytes!("../probes/probes.ptx");
pub const CLUSTER_PROBES: &[u8] = include_bytes!("../probes/cluster.ptx");
pub const TENSOR_MAP_PROBES: &[u8] = include_bytes!("../probes/tensor_map.ptx");

/// Machine code for the GPU of this machine.
pub fn compile(ptx: &[u8]) -> Vec<u8> {
    program::compile(&Options::CUDA, ptx).unwrap().0
}

fn worker_with(options: &Options) -> Worker {
    let mut worker = Worker::process(options);
    worker.lane_bytes = OnCuda::LANE_BYTES;
    worker
}

impl GpuUnderTest for OnCuda {
    fn worker_with(lanes: u32) -> Worker {
        worker_with(&Options { lanes, ..Options::CUDA })
    }
}

/// What is left on the chip.
const WORD: u32 = u32::from_le_bytes([OnCuda::PATTERN; 4]);
/// Shared memory of blocks of which several fit on a processor.
const SMALL: u64 = 48 << 10;

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

impl ChipUnderTest for OnCuda {
    const COVERING: u64 = 4096;
    const PATTERN: u8 = 0x5e;
    const CLEARED_BETWEEN_PROCESSES: bool = true;
    const SURELY_NOT_CLEARED: bool = false;

    fn places(arch: &str, count: u64) -> Vec<Place> {
        let shared = shared_bytes(arch);
        let (pattern, words) = (u32(WORD), u32((shared / 4) as u32));
        let small_words = u32((SMALL / 4) as u32);
        let (hits, marks) = (ptr("hits"), ptr("marks"));
        let probes = Self::probes();
        let mut places = vec![
            Place {
                name: "shared memory",
                fill: step("shared_fill", &[&pattern, &words, &marks], 8 * count, 1024, shared),
                scan: step("shared_scan", &[&pattern, &words, &hits, &marks], 8 * count, 1024, shared),
                code: probes,
                surely: true,
                marks: true,
            },
            Place {
                name: "shared memory of small blocks",
                fill: step("shared_fill", &[&pattern, &small_words, &marks], 32 * count, 1024, SMALL),
                scan: step("shared_scan", &[&pattern, &small_words, &hits, &marks], 32 * count, 1024, SMALL),
                code: probes,
                surely: true,
                marks: true,
            },
            Place {
                name: "local memory",
                fill: step("local_fill", &[&pattern, &u32(7)], 4 * count, 1024, 0),
                scan: step("local_scan", &[&pattern, &u32(7), &hits], 4 * count, 1024, 0),
                code: probes,
                surely: true,
                marks: false,
            },
            Place {
                name: "registers",
                fill: step("register_fill", &[&ptr("words"), &ptr("words")], 8 * count, 256, 0),
                // One block a processor: a second one could find what the first had in its registers.
                scan: step("register_scan", &[&pattern, &hits, &u32(0)], count, 256, 0),
                code: probes,
                surely: false,
                marks: false,
            },
        ];
        if matches!(arch, "sm_90" | "sm_100" | "sm_103" | "sm_120") {
            let blocks = 8 * (count / 2 * 2);
            places.push(Place {
                name: "distributed shared memory",
                fill: step("dsmem_fill", &[&pattern, &words], blocks, 1024, shared),
                scan: step("dsmem_scan", &[&pattern, &words, &hits], blocks, 1024, shared),
                code: cluster(),
                surely: false,
                marks: false,
            });
        }
        places
    }
}

impl UnderTest for OnCuda {
    const LANE_BYTES: u64 = 16 << 20;
    /// What the driver maps at a time.
    const SMALL_LANE_BYTES: u64 = 2 << 20;
    const FAULTS_END_THE_WORKER: bool = true;
    const ENDS_RUNNING_KERNELS: bool = false;
    const STRAY: &'static str = "illegal";
    const NO_CODE: &'static str = "";
    const GRIDS: &'static [[u64; 3]] = &[[1, 1, 1], [7, 3, 2], [100_000, 5, 1], [65_537, 2, 65_535]];

    fn worker() -> Worker {
        worker_with(&Options::CUDA)
    }

    fn uncleared_worker() -> Worker {
        worker_with(&Options { uncleared: true, ..Options::CUDA })
    }

    fn probes() -> &'static [u8] {
        static CODE: OnceLock<Vec<u8>> = OnceLock::new();
        CODE.get_or_init(|| compile(PROBES))
    }

    fn library(name: &str) -> Vec<u8> {
        compile(library_text(name))
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        vec![
            // Drivers have different names for a trapping instruction.
            ("trap", String::new(), ""),
            ("illegal", i64(16), "illegal"),
            ("misaligned", ptr("out"), "misaligned"),
            ("assertion", i64(0), "assert"),
            ("wild_jump", i64(0x10), ""),
            ("recurse", [i64(1 << 40), ptr("out")].join(","), ""),
        ]
    }

    fn strays() -> Vec<(&'static str, String)> {
        let illegal = [0, 64, 1 << 46].map(|at| ("illegal", launch("illegal", &i64(at))));
        // Behind the pool, whose address range is longer than what is mapped.
        let behind = [ptr("out"), i64(1), i64(1 << 40)];
        let copy = [i64(0), ptr("out"), i64(64)];
        let others = [("fill", behind), ("copy", copy)];
        let others = others.map(|(kernel, params)| (kernel, launch(kernel, &params.join(","))));
        illegal.into_iter().chain(others).collect()
    }
}
