//! Worker processes: how they are started, confined, counted and ended.
//!
//! - [`target`]: which device a process is for; [`launcher`]: how it is started; `spawner`: the thread that forks.
//! - [`process`]: one worker process, and its end.
//! - [`subreaper`]: the processes that the supervisor waits for; all other children are reaped as strays.
//! - [`confinement`]: how they are confined; [`cgroup`]: their control groups.
//! - [`mps`]: ending one process of a device that several share through MPS.
//! - [`process_table`]: which processes of one device may start, and when.
//! - `words`: what they write to their standard error.
//! - [`survey`]: which GPUs there are, found out by a process of its own; [`meter`]: what GPUs measure of themselves.

pub mod cgroup;
pub mod confinement;
pub mod launcher;
pub mod meter;
pub mod mps;
pub mod process;
pub mod process_table;
mod spawner;
pub mod subreaper;
pub mod survey;
pub mod target;
mod words;
