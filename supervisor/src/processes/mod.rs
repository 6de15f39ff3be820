//! Worker processes: how they are started, confined, counted and ended.
//!
//! - [`process`]: one worker process and its descriptors.
//! - [`subreaper`]: which processes this one waits for, and an end for all others.
//! - [`confinement`]: how they are confined; [`cgroup`]: their control groups.
//! - [`mps`]: ending one process of a device that several share through MPS.
//! - [`memory_ledger`]: the memory of one device: which process, lease and weights take how much.
//! - [`survey`]: which GPUs there are, found out by a process of its own.

pub mod cgroup;
pub mod confinement;
pub mod memory_ledger;
pub mod mps;
pub mod process;
pub mod subreaper;
pub mod survey;
