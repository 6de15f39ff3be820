//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - [`index`]: all records in memory, and which blobs they need.
//! - [`compile`]: one-shot compiling workers.
//! - [`device_class`]: devices that run the same machine code, and their compiler.
//! - `compilations`: who may compile now; `failures`: what failed.
//! - [`state`]: all of it as one object, read from the state directory.
//! - [`requests`]: what it is asked to add; [`views`]: what it answers; [`error`]: why it refuses.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.
//! - [`code`]: machine code for the devices here; [`admission`]: what a registration must fulfil.
//! - Lookups: `access`: which function a tenant means; `lookups`: what is shown; `loading`: functions ready to invoke.
//! - Changes: `blobs`, `modules`, `functions`, `grants`; `release`: what nothing needs any more.

mod access;
pub mod admission;
mod blobs;
pub mod code;
mod compilations;
pub mod compile;
pub mod device_class;
pub mod error;
mod failures;
mod functions;
mod grants;
pub mod index;
pub mod layout;
mod loading;
mod lookups;
mod modules;
mod release;
pub mod requests;
pub mod state;
pub mod views;

pub use blobs::Handed;
pub use device_class::DeviceClass;
pub use error::RegistryError;
pub use grants::Revoked;
pub use state::Registry;
