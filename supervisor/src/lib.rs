//! The supervisor: one process per machine between clients and isolated workers.
//!
//! In reading order; an invocation goes through them from top to bottom and back:
//! - [`config`]: flags and file.
//! - [`server`]: sockets, connections, requests.
//! - [`call`]: an accepted invocation.
//! - [`schedule`]: which call runs where: a pure state machine.
//! - [`device`]: workers of a device, their processes and threads.
//! - [`registry`]: modules, functions, the state directory.
//! - [`tenants`]: who is a tenant, and what each may have.
//! - [`metrics`], [`limits`], [`ids`].
//! - [`list_devices`]: what `--device` could name here.
//! - [`run`]: all of it put together.

#![deny(unsafe_code)]

pub mod call;
pub mod config;
pub mod device;
pub mod function;
pub mod ids;
pub mod limits;
pub mod list_devices;
pub mod metrics;
pub mod processes;
pub mod quota;
pub mod refusal;
pub mod registry;
pub mod run;
pub mod schedule;
pub mod server;
pub mod sha256;
pub mod store;
pub mod tenant_name;
pub mod tenants;
