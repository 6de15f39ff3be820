//! One device: its workers and what runs on them.
//!
//! - [`runtime`]: the device as the rest sees it: submit, cancel; carries out decisions.
//! - [`workers`]: workers come and go.
//! - [`status`]: what is shown of it.
//! - `quota`: what tenants hold of it.
//! - [`weights`]: weights in its memory, loaded once and shared.
//! - [`whole`]: one worker gets the memory of all for a while.
//! - [`link`]: talking to the process in one worker's place; what it has installed and mapped.
//! - [`thread`]: the OS thread of one worker: puts a process in its place, reads its answers, replaces it.
//! - [`standby`]: processes that are ready to take a place.
//! - [`reaper`]: processes that are about to be gone.
//! - `fate`: what a fault there means.
//! - [`batch`]: what is written together: frames to workers, answers to clients.

pub mod batch;
#[cfg(test)]
mod fake_tests;
mod fate;
pub mod link;
mod quota;
pub mod reaper;
pub mod runtime;
pub mod standby;
mod status;
pub mod thread;
pub mod weights;
pub mod whole;
mod workers;

pub use runtime::Device;
