//! One device: its workers and what runs on them.
//!
//! - [`runtime`]: the device as the rest sees it: submit, cancel; asks its scheduler.
//! - `commands`: decisions carried out; `command_order`: in the order in which they were decided.
//! - [`worker_channel`]: the channel to the process in one worker's slot; what that process has installed and mapped.
//! - [`worker_events`]: workers come and go.
//! - [`thread`]: the OS thread of one worker: puts a process in its slot, reads its answers, replaces it.
//! - [`standby`]: processes that are ready to take a slot; `bring_up`: how one gets there.
//! - [`reaper`]: processes that are about to be gone.
//! - `panics`: what a panic in one of these threads ends.
//! - `shared_fault`: what a fault of processes means that share it.
//! - [`write_coalescing`]: what is written together: frames to workers ([`held`]), answers to clients.
//! - [`weights`]: weights in its memory, loaded once and shared.
//! - `quota`: what tenants hold of it; [`status`]: what is shown of it.

mod bring_up;
mod command_order;
#[cfg(test)]
mod command_order_tests;
mod commands;
#[cfg(test)]
mod fake_tests;
pub mod held;
mod panics;
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
