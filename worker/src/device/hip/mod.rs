//! AMD GPUs: the driver that [`gpu`](super::gpu) runs calls with, and what picks their machine code out of modules.
//!
//! In reading order:
//! - [`sys`]: the declarations of HIP's library. `driver`: the library found at run time, its results, and types that own
//!   what it gives.
//! - `topology`: what the kernel says of GPUs, where the library is missing; [`survey`]: which devices there are.
//! - `kernels`: the kernels that `gpu` launches on its own account.
//! - `engine`: the device that both roles need, and what `gpu` asks of it; [`compiler`]: the compiling role.
//!
//! There is no compiler in it: a code object is the machine code, and a registration picks one and judges it.

#![allow(unsafe_code, reason = "the driver is a C library")]

pub mod compiler;
mod driver;
mod engine;
mod kernels;
pub mod survey;
pub mod sys;
mod topology;

use pappus_protocol::Fault;

pub use self::engine::Engine;
use super::gpu::Gpu;

/// One AMD GPU, or a partition of one.
pub type Hip = Gpu<Engine>;

impl Hip {
    /// The first GPU that the process sees; its lanes have no memory yet.
    pub fn start(lanes: usize) -> Result<Self, Fault> {
        Self::new(Engine::start()?, lanes)
    }
}
