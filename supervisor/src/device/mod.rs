//! One device: its workers and what runs on them.
//!
//! - [`runtime`]: the device as the rest sees it: submit, cancel, status; carries out decisions.
//! - [`link`]: talking to the process in one worker's place; what it has installed and mapped.
//! - [`thread`]: the OS thread of one worker: starts the process, reads its answers, replaces it.
//! - [`process`]: a worker process and its descriptors.
//! - [`survey`]: which GPUs there are, found out by a process of its own.
//! - [`answers`]: from a worker's words to a client's answer.

pub mod answers;
pub mod link;
pub mod process;
pub mod runtime;
pub mod survey;
pub mod thread;

pub use runtime::Device;
