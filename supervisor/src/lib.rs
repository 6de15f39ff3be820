//! The supervisor: one process per machine between clients and isolated workers.
//!
//! In reading order; a module uses only earlier ones (`tests/integration/arrows.rs` holds that):
//! - [`limits`], [`ids`], [`sha256`], [`tenant_name`], [`metrics`].
//! - [`service_manager`]: what a service manager tells this process, and is told by it.
//! - [`concurrent`]: what threads share while a call is answered.
//! - [`sync`]: the order of locks; waking threads.
//! - [`log`]: no tenant fills it.
//! - [`client_io`]: threads for system calls that a client can make slow.
//! - [`quota`]: what a tenant may have at most.
//! - [`defences`]: what tests can switch off.
//! - [`schedule`]: which call runs where: a pure state machine.
//! - [`config`]: flags and file.
//! - [`refusal`]: why a request is refused.
//! - [`blocking`]: threads for work that waits.
//! - [`tenants`]: who is a tenant, and what each has.
//! - [`state_room`]: memory of devices for the states of sessions.
//! - [`client_memfd`]: memory that clients pass; [`client_fd`]: their descriptors and sockets.
//! - [`store`]: the state directory.
//! - [`processes`]: worker processes, and the memory of their device.
//! - [`function`]: functions in memory.
//! - [`routing`]: which device a call goes to.
//! - [`arena`]: memory that workers map for calls; [`session`]: calls that share state.
//! - [`call`]: an accepted invocation, and how it ends.
//! - [`device`]: workers of a device, their threads, effects of decisions. [`registry`]: modules and functions.
//! - [`server`]: sockets, connections, requests, answers.
//! - [`endpoint`]: metrics and health over HTTP.
//! - [`list_devices`]: what `--device` could name here.
//! - [`run`]: all of it put together.

#![deny(unsafe_code)]

pub mod arena;
pub mod blocking;
pub mod call;
pub mod client_fd;
pub mod client_io;
pub mod client_memfd;
pub mod concurrent;
pub mod config;
pub mod defences;
pub mod device;
pub mod endpoint;
pub mod function;
pub mod ids;
pub mod limits;
pub mod list_devices;
pub mod log;
pub mod metrics;
pub mod processes;
pub mod quota;
pub mod refusal;
pub mod registry;
pub mod routing;
pub mod run;
pub mod schedule;
pub mod server;
pub mod service_manager;
pub mod session;
pub mod sha256;
pub mod state_room;
pub mod store;
pub mod sync;
pub mod tenant_name;
pub mod tenants;
