//! NVIDIA GPUs: the driver that [`gpu`](super::gpu) runs calls with, and what turns modules into machine code.
//!
//! In reading order:
//! - `driver`: the driver's library, its results, and types that own its handles.
//! - `check`, `elf`, `image`, `compiler`: from a module to machine code (the compiling role), fenced where workers may be
//!   shared; `survey`: which devices there are.
//! - `engine`, `nvml`: the context for both roles, its cost, and the answers to `gpu`; what GPUs measure (the metering role).
//! - `policy`: what its processes may do.
//! - `copy_kernel`, `scrub_kernels`: the PTX that `gpu` launches on its own account.

#![allow(unsafe_code, reason = "the driver is a C library")]

mod check;
mod compiler;
mod copy_kernel;
mod driver;
mod elf;
mod engine;
mod image;
mod nvml;
mod policy;
mod scrub_kernels;
mod survey;

use pappus_blueprint::code;
use pappus_protocol::Fault;
use pappus_protocol::from_worker::{Reading, Survey};

use self::compiler::CudaCompiler;
pub use self::engine::Engine;
use super::gpu::Gpu;
use super::{Backend, CodeError, Mode};
use crate::sandbox::policy::Policy;

/// One NVIDIA GPU, or a slice of one.
pub type Cuda = Gpu<Engine>;

impl Backend for Cuda {
    type Compiler = CudaCompiler;

    const POLICY: &'static Policy = &policy::POLICY;

    fn device(lanes: usize, mode: Mode) -> Result<Self, Fault> {
        Self::new(Engine::start(mode.interruptible)?, lanes, mode.shared)
    }

    fn compiler(interruptible: bool) -> Result<CudaCompiler, Fault> {
        Ok(CudaCompiler { engine: Engine::start(interruptible)? })
    }

    fn survey() -> Result<Survey, Fault> {
        survey::survey()
    }

    fn readings(devices: &[String]) -> Result<Vec<Reading>, Fault> {
        nvml::readings(devices)
    }
}

/// Checks that a module's bytes may be given to a driver, which is told no length: the part of compiling that
/// needs no GPU.
pub fn judge(module: &[u8]) -> Result<(), CodeError> {
    match check::format(module)? {
        check::Format::Cubin => elf::judge(module).map(drop),
        check::Format::Fatbin => Ok(()),
        check::Format::Ptx => code::declared(module).map(drop),
    }
}
