//! The suite that every device passes, through the serving loop as the supervisor drives it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;
mod suite;

use std::sync::OnceLock;

use pappus_worker::device::cpu::Cpu;
use suite::UnderTest;

struct OnCpu;

impl UnderTest for OnCpu {
    type Device = Cpu;

    fn device() -> Cpu {
        Cpu::new().unwrap()
    }

    fn probes() -> &'static [u8] {
        static CODE: OnceLock<Vec<u8>> = OnceLock::new();
        CODE.get_or_init(|| harness::compile_cpu(&wat::parse_str(include_str!("probes.wat")).unwrap()))
    }

    fn library(name: &str) -> Vec<u8> {
        harness::compile_cpu(match name {
            "linalg" => include_bytes!("../../kernels/built/linalg.wasm"),
            "mlops" => include_bytes!("../../kernels/built/mlops.wasm"),
            "vision" => include_bytes!("../../kernels/built/vision.wasm"),
            "module" => include_bytes!("../../kernels/built/module.wasm"),
            other => panic!("no module {other}"),
        })
    }
}

suite::conformance!(cpu, OnCpu);
