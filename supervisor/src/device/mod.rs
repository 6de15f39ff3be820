//! One device: its workers and what runs on them.
//!
//! - [`runtime`]: the device as the rest sees it: submit, cancel; puts together what follows here.
//! - `destination`: the device as the router sees it.
//! - [`setup`]: settings and threads; `changing`: changing settings while the device serves.
//! - `decisions`: the scheduler behind a lock.
//! - `commands`: decisions carried out; `command_order`: in the order in which they were decided.
//! - [`worker_slots`]: the slots of its workers. `worker_channel`: the channel to the process in one slot; what that
//!   process has installed and mapped.
//! - [`unwritten`]: frames to workers that are written together; [`burst`]: those of one read of a client.
//! - `job`: what a lane is told to run; `ending`: calls that end, and their answers to clients.
//! - `worker_events`: workers come and go. `unusable`: why the process of one is not used.
//! - [`thread`]: the OS thread of one worker: puts a process in its slot, reads its answers, replaces it. `turns_heard`:
//!   what it hears of turns.
//! - `standby`: processes that are ready to take a slot; `bring_up`: how one gets there.
//! - `reaper`: processes that are about to be gone.
//! - `panics`: what a panic in one of these threads ends.
//! - `shared_fault`: what a fault of processes means that share it.
//! - `weights`: weights in its memory, loaded once and shared.
//! - `quota`: what tenants hold of it; `device_book`: where processes write down what they take; `status`: what is
//!   shown of it.

mod bring_up;
pub mod burst;
mod changing;
mod command_order;
#[cfg(test)]
mod command_order_tests;
mod commands;
mod decisions;
mod destination;
mod device_book;
mod ending;
#[cfg(test)]
mod fake_tests;
mod job;
mod panics;
mod quota;
mod reaper;
pub mod runtime;
pub mod setup;
mod shared_fault;
mod standby;
pub mod status;
pub mod thread;
mod turns_heard;
mod unusable;
pub mod unwritten;
mod weights;
mod worker_channel;
mod worker_events;
pub mod worker_slots;

pub use decisions::shape;
pub use runtime::Device;
