//! One device: its workers and what runs on them.
//!
//! - [`runtime`]: the device as the rest sees it: submit, cancel; carries out decisions.
//! - [`worker_events`]: workers come and go.
//! - [`status`]: what is shown of it.
//! - `quota`: what tenants hold of it.
//! - [`weights`]: weights in its memory, loaded once and shared.
//! - [`memory_rebalance`]: one worker gets the memory of all for a while.
//! - [`worker_channel`]: talking to the process in one worker's place; what it has installed and mapped.
//! - [`thread`]: the OS thread of one worker: puts a process in its place, reads its answers, replaces it.
//! - [`standby`]: processes that are ready to take a place.
//! - [`reaper`]: processes that are about to be gone.
//! - `shared_fault`: what a fault there means.
//! - [`write_coalescing`]: what is written together: frames to workers, answers to clients.

#[cfg(test)]
mod fake_tests;
pub mod memory_rebalance;
mod quota;
pub mod reaper;
pub mod runtime;
mod shared_fault;
pub mod standby;
mod status;
pub mod thread;
pub mod weights;
pub mod worker_channel;
mod worker_events;
pub mod write_coalescing;

pub use runtime::Device;
