//! Programs on a GPU without Pappus: what a server of one's own would reach, and what the ancestors' design
//! reaches. Each runs in a process of its own, so that its context is gone before Pappus is measured.
//!
//! - [`cuda`]: NVIDIA's driver, as much of it as is needed.
//! - [`work`]: the functions of the library as copies and launches, with the same machine code and geometry.
//! - [`loops`]: calls in a closed loop or at a rate, as graphs or kernel by kernel.
//! - [`turns`]: processes that pass the device on through shared memory.
//! - [`ancestors`]: worker processes that serve one request after the other.
//! - [`program`]: which programs there are, and how one is asked for.

pub mod ancestors;
pub mod cuda;
pub mod loops;
pub mod program;
pub mod turns;
pub mod work;
