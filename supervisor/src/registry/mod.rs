//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - [`index`]: all records in memory, and which blobs they need.
//! - [`compile`]: one-shot compiling workers.
//! - [`device_class`]: devices that run the same machine code, and their compiler.
//! - [`registration`]: adding and removing modules and functions.
//! - `admission`: what a registration must fulfil.
//! - `grants`: who may call whose functions.
//! - `code`: machine code for the devices here; `compilations`: who may compile now; `failures`: what failed.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.

mod admission;
mod code;
mod compilations;
pub mod compile;
pub mod device_class;
mod failures;
mod grants;
pub mod index;
pub mod layout;
pub mod registration;

pub use device_class::DeviceClass;
pub use grants::Revoked;
pub use registration::Registry;
