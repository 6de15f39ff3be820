//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - `snapshot`: one tenant's records as other threads see them, and grants by tenant; `blob_table`: its blobs and their
//!   counts of users.
//! - `tenant`: one tenant's part of the registry, and the queue of its changes.
//! - [`compile`]: one-shot compiling workers.
//! - [`device_class`]: devices that run the same machine code, and their compiler.
//! - `compilations`: who may compile now; `failures`: compilations that failed.
//! - [`state`]: all of it as one object, read from the state directory.
//! - [`views`]: what the registry answers; [`error`]: why it refuses.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.
//! - [`codes`]: the machine code that one request needs; [`code`]: which variant each device runs, and its code; [`admission`]: what is registered, and what it must fulfil.
//! - Lookups: `lookups`: what is shown; `loading`: functions ready to invoke, until they go; `checked`: checked versions of them.
//! - Changes: `blobs`, `registration` (`making`: what is to be registered; `linking`: compositions; `signature`: what is kept of
//!   inputs and outputs; `replacing`: its place), `versions` (`version_names`: what they are called), `grants`.
//! - `compile_retry`: requests that may need machine code, tried again until it is there.

pub mod admission;
mod blob_table;
mod blobs;
mod checked;
pub mod code;
pub mod codes;
mod compilations;
pub mod compile;
mod compile_retry;
#[cfg(test)]
mod damage_tests;
pub mod device_class;
pub mod error;
mod failures;
mod grants;
pub mod layout;
mod linking;
mod loading;
mod lookups;
mod making;
mod registration;
mod replacing;
mod signature;
mod snapshot;
pub mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod version_names;
mod versions;
#[cfg(test)]
mod versions_tests;
pub mod views;

pub use blobs::Handed;
pub use device_class::DeviceClass;
pub use error::RegistryError;
pub use grants::Revoked;
pub use state::Registry;
