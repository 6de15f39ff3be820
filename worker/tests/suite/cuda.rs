//! A CUDA device under test. A fault there ends all CUDA work of a process, so a worker is a process, and so
//! is the compiler that makes machine code of the probes.

use std::sync::OnceLock;

use super::UnderTest;
use super::blueprints::{i64, launch, ptr};
use crate::harness::Worker;
use crate::harness::program::{self, Options};

pub struct OnCuda;

/// The probes (see `probes.cu`), and those for GPUs with clusters of blocks.
pub const PROBES: &[u8] = include_bytes!("../probes/probes.ptx");
pub const CLUSTER_PROBES: &[u8] = include_bytes!("../probes/cluster.ptx");

/// Machine code for the GPU of this machine.
pub fn compile(ptx: &[u8]) -> Vec<u8> {
    program::compile(&Options::CUDA, ptx).unwrap().0
}

/// A worker with some lanes, each with [`OnCuda::LANE_BYTES`](UnderTest::LANE_BYTES).
pub fn worker_with(options: &Options) -> Worker {
    let mut worker = Worker::process(options);
    worker.lane_bytes = OnCuda::LANE_BYTES;
    worker
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
        compile(match name {
            "linalg" => include_bytes!("../../../kernels/built/linalg.ptx"),
            other => panic!("no module {other}"),
        })
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        vec![
            // Drivers differ in what they call an instruction that traps.
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
