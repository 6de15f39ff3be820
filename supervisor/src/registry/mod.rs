//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - `snapshot`: one tenant's records as other threads see them; `blob_table`: its blobs and their counts of
//!   users; `granted`: grants by tenant.
//! - `tenant`: one tenant's part of the registry, and the queue of its changes.
//! - [`compile`]: one-shot compiling workers.
//! - [`device_class`]: devices that run the same machine code, and their compiler.
//! - `compilations`: who may compile now; `failures`: compilations that failed.
//! - [`state`]: all of it as one object, read from the state directory.
//! - [`requests`]: what the registry is asked to add; [`views`]: its answers; [`error`]: its refusals.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.
//! - [`codes`]: the machine code that one request needs; [`code`]: which variant each device runs, and making its code; [`admission`]: what a registration must fulfil.
//! - Lookups: `access`: which function a tenant means; `lookups`: what is shown; `loading`: functions ready to invoke.
//! - `checked`: checked versions of functions.
//! - `tries`: requests that may need machine code, tried until it is there.
//! - Changes: `blobs`, `modules`, `functions` (`signature`: what is kept of inputs and outputs), `grants`, `declined`; `release`: what nothing needs any more.

mod access;
pub mod admission;
mod blob_table;
mod blobs;
mod checked;
pub mod code;
pub mod codes;
mod compilations;
pub mod compile;
#[cfg(test)]
mod damage_tests;
mod declined;
pub mod device_class;
pub mod error;
mod failures;
mod functions;
mod granted;
mod grants;
pub mod layout;
mod loading;
mod lookups;
mod modules;
mod release;
pub mod requests;
mod signature;
mod snapshot;
pub mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod tries;
pub mod views;

pub use blobs::Handed;
pub use device_class::DeviceClass;
pub use error::RegistryError;
pub use grants::Revoked;
pub use state::Registry;
