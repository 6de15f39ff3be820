//! The whole system from outside: every case starts a supervisor of its own, in a directory of its own, and
//! nothing is shared, so cases run in any order and all at once.
//!
//! What they stand on:
//! - [`programs`]: the binaries under test.
//! - [`fixture`]: a running supervisor.
//! - [`kit`]: small functions to run on it.
//! - [`raw`]: a client that breaks rules.
//!
//! The cases:
//! - [`thesis`], [`ancestors`]: what earlier systems computed, and what they did wrong.
//! - [`frames`], [`calls`], [`descriptors`]: hostile bytes, requests and descriptors on the socket.
//! - [`memory`]: shared memory that changes under a call.
//! - [`again`]: calls that run again because their worker ended under them.
//! - [`exclusive`]: calls that need the memory of all workers.
//! - [`standbys`]: processes that are ready to take a worker's place.
//! - [`turns`]: workers that take turns.
//! - [`workers`], [`liars`], [`lifecycle`], [`draining`], [`limits`], [`state`], [`tenants`], [`load`]: the life of the system.
//! - [`surveys`]: which devices a supervisor takes.
//! - [`cli`], [`metrics`]: the command and the endpoint that operators use.
//! - [`tidy`]: what must hold for the sources.
#![forbid(unsafe_code)]
// The exception for tests covers functions marked as such; everything here is one, helpers included.
#![allow(clippy::unwrap_used)]

mod fixture;
mod kit;
mod programs;
mod raw;

mod again;
mod ancestors;
mod calls;
mod cli;
mod descriptors;
mod draining;
mod exclusive;
mod frames;
mod liars;
mod lifecycle;
mod limits;
mod load;
mod memory;
mod metrics;
mod standbys;
mod state;
mod surveys;
mod tenants;
mod thesis;
mod tidy;
mod turns;
mod workers;
