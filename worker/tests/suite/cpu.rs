//! The built-in device under test, on a thread of the test: with code that runs to its end, and with code that can be interrupted.

use std::sync::OnceLock;

use pappus_worker::device::Compiler;
use pappus_worker::device::cpu::Cpu;
use pappus_worker::device::cpu::compiler::CpuCompiler;

use super::blueprints::{i64, launch, ptr};
use super::{Uncleared, UnderTest};
use crate::harness::{self, Worker};

pub struct OnCpu<const INTERRUPTIBLE: bool>;

impl<const INTERRUPTIBLE: bool> OnCpu<INTERRUPTIBLE> {
    fn device() -> Cpu {
        Cpu::new(INTERRUPTIBLE).unwrap()
    }

    fn compile(module: &[u8]) -> Vec<u8> {
        CpuCompiler::new(INTERRUPTIBLE).unwrap().compile(module).unwrap().0
    }
}

impl<const INTERRUPTIBLE: bool> UnderTest for OnCpu<INTERRUPTIBLE> {
    const LANE_BYTES: u64 = harness::LANE_BYTES;
    const SMALL_LANE_BYTES: u64 = 4096;
    const STRAY: &'static str = "out of bounds";
    const NO_CODE: &'static str = "machine code";
    const GRIDS: &'static [[u64; 3]] = &[[1, 1, 1], [7, 3, 2], [100_000, 5, 1], [i32::MAX as u64, 2, 3]];

    fn worker() -> Worker {
        Worker::start(Self::device)
    }

    fn uncleared_worker() -> Worker {
        Worker::start(|| Uncleared(Self::device()))
    }

    fn probes() -> &'static [u8] {
        static CODE: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
        let probes = || wat::parse_str(include_str!("../probes.wat")).unwrap();
        CODE[usize::from(INTERRUPTIBLE)].get_or_init(|| Self::compile(&probes()))
    }

    fn library(name: &str) -> Vec<u8> {
        Self::compile(match name {
            "linalg" => include_bytes!("../../../kernels/built/linalg.wasm"),
            other => panic!("no module {other}"),
        })
    }

    fn traps() -> Vec<(&'static str, String, &'static str)> {
        vec![
            ("trap", String::new(), "unreachable"),
            ("divide", i64(0), "divide by zero"),
            ("recurse", String::new(), "stack"),
        ]
    }

    fn strays() -> Vec<(&'static str, String)> {
        // Right behind the plan's pages and further.
        let fills = [4097, 1 << 20, 1 << 31].map(|bytes| {
            let params = [ptr("out"), i64(1), i64(bytes)];
            ("fill", launch("fill", &params.join(",")))
        });
        let copies = [[ptr("out"), i64(0xf000_0000), i64(64)], [i64(0xffff_fff0), ptr("out"), i64(64)]];
        let copies = copies.map(|params| ("copy", launch("copy", &params.join(","))));
        fills.into_iter().chain(copies).collect()
    }
}
