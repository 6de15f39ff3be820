//! An AMD GPU under test. A fault there ends all work of a process, so a worker is a process. Which code objects suit it is
//! known once a process has looked, as the compiler does that is given a bundle of them.

use std::sync::OnceLock;

use super::UnderTest;
use super::blueprints::{i64, launch, ptr};
use crate::harness::Worker;
use crate::harness::program::{self, Options};

pub struct OnHip;

/// Built by `scripts/probes` and `scripts/kernels`, for each processor that there are code objects for.
const PROBES: [&[u8]; 2] =
    [include_bytes!("../probes/probes.gfx90a.hsaco"), include_bytes!("../probes/probes.gfx942.hsaco")];
const LINALG: [&[u8]; 2] = [
    include_bytes!("../../../kernels/built/linalg.hsaco"),
    include_bytes!("../../../kernels/built/linalg.gfx942.hsaco"),
];

/// The code object that runs on the GPU of this machine.
fn suiting(objects: &[&[u8]]) -> Vec<u8> {
    let mut why = Vec::new();
    for object in objects {
        match program::compile(&Options::HIP, object) {
            Ok((code, _)) => return code,
            Err(fault) => why.push(fault.message),
        }
    }
    panic!("nothing runs here: {why:?}")
}

fn worker_with(options: &Options) -> Worker {
    let mut worker = Worker::process(options);
    worker.lane_bytes = OnHip::LANE_BYTES;
    worker
}

impl UnderTest for OnHip {
    const LANE_BYTES: u64 = 16 << 20;
    /// What is lent at a time.
    const SMALL_LANE_BYTES: u64 = 2 << 20;
    const FAULTS_END_THE_WORKER: bool = true;
    const ENDS_RUNNING_KERNELS: bool = false;
    const STRAY: &'static str = "it ";
    const NO_CODE: &'static str = "";
    const GRIDS: &'static [[u64; 3]] = &[[1, 1, 1], [7, 3, 2], [1_000, 5, 1]];

    fn worker() -> Worker {
        worker_with(&Options::HIP)
    }

    fn uncleared_worker() -> Worker {
        worker_with(&Options { uncleared: true, ..Options::HIP })
    }

    fn probes() -> &'static [u8] {
        static CODE: OnceLock<Vec<u8>> = OnceLock::new();
        CODE.get_or_init(|| suiting(&PROBES))
    }

    fn library(name: &str) -> Vec<u8> {
        match name {
            "linalg" => suiting(&LINALG),
            other => panic!("no module {other}"),
        }
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        vec![("trap", String::new(), ""), ("illegal", i64(16), "not its own")]
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
