//! AMD GPUs: the driver that [`gpu`](super::gpu) runs calls with, and what picks their machine code out of modules.
//!
//! In reading order:
//! - [`sys`]: the declarations of HIP's library. `driver`: the library found at run time, its results, and types that own
//!   what it gives.
//! - `topology`: what the kernel says of GPUs, where the library is missing; `survey`: which devices there are.
//! - `kernels`: the kernels that `gpu` launches on its own account.
//! - `engine`: the device that both roles need, and what `gpu` asks of it; `compiler`: the compiling role.
//! - `policy`: what its processes may do.
//!
//! There is no compiler in it: a code object is the machine code, and a registration picks one and judges it.

#![allow(unsafe_code, reason = "the driver is a C library")]

mod compiler;
mod driver;
mod engine;
mod kernels;
mod policy;
mod survey;
pub mod sys;
mod topology;

use pappus_protocol::Fault;
use pappus_protocol::from_worker::Survey;

use self::compiler::HipCompiler;
pub use self::engine::Engine;
use super::gpu::Gpu;
use super::{Backend, Mode};
use crate::sandbox::policy::Policy;

/// One AMD GPU, or a partition of one.
pub type Hip = Gpu<Engine>;

impl Backend for Hip {
    type Compiler = HipCompiler;

    const POLICY: &'static Policy = &policy::POLICY;

    fn device(lanes: usize, mode: Mode) -> Result<Self, Fault> {
        Self::new(Engine::start()?, lanes, mode.shared)
    }

    fn compiler(_: bool) -> Result<HipCompiler, Fault> {
        Ok(HipCompiler { engine: Engine::start()? })
    }

    fn survey() -> Result<Survey, Fault> {
        survey::survey()
    }
}
