//! The whole system from outside: every case starts a supervisor of its own, in a directory of its own, and
//! nothing is shared, so cases run in any order and all at once.
//!
//! What they stand on:
//! - [`programs`]: the binaries under test.
//! - [`fixture`]: a running supervisor.
//! - [`kit`]: small functions to run on it.
//! - [`folder`]: what looks like an AMD GPU.
//! - [`disk`]: a disk that can be filled.
//! - [`raw`]: a client that breaks rules.
//! - [`tracer`]: a process stopped at its system calls.
//! - [`house`]: a supervisor with tenants that a gateway acts for.
//!
//! The cases:
//! - [`thesis`], [`ancestors`]: what earlier systems computed, and what they did wrong.
//! - [`frames`], [`calls`], [`descriptors`]: hostile bytes, requests and descriptors on the socket.
//! - [`shapes`]: arrays of calls, and free dimensions. [`library`]: the functions that come with Pappus.
//! - [`hostile`]: kernels, modules and blueprints that attack.
//! - [`memory`]: shared memory that changes under a call.
//! - [`again`]: calls that run again because their worker ended under them.
//! - [`deadlines`]: deadlines and giving up at every stage of a call.
//! - [`quarantine`]: what follows for whose calls keep failing.
//! - [`exclusive`]: calls that need the memory of all workers.
//! - [`standbys`]: processes that are ready to take a worker's place.
//! - [`turns`]: workers that take turns.
//! - [`live`]: settings that change while calls are in flight.
//! - [`weights`]: more weights than there is room for.
//! - [`shared`]: workers that all domains share.
//! - [`workers`], [`handover`], [`liars`], [`lifecycle`], [`draining`], [`limits`], [`state`], [`tenants`], [`load`]: the life of the system.
//! - [`chaos`]: all of it at once, for as long as one likes, judged by what every client saw.
//! - [`abuse`]: one tenant takes nothing from the others.
//! - [`scarcity`]: a machine that lacks something. [`damage`]: stored bytes that are damaged.
//! - [`syscalls`]: every system call failing once.
//! - [`prisoner`]: what can be done from inside the sandbox.
//! - [`gateway`]: functions over HTTP and gRPC, and whoever attacks there. [`seats`]: tenants that share a gateway's connection.
//! - [`gateways`], [`grants`], [`quotas`]: tenants by configuration: tokens, shared functions, limits.
//! - [`restarts`]: clients that outlive one.
//! - [`replacing`]: a function takes the place of another. [`compositions`]: functions that are linked into one.
//! - [`service_manager`]: what systemd hands over and is told; restarts that refuse nobody.
//! - [`surveys`]: which devices a supervisor takes.
//! - [`amd`]: the HIP device on a library that looks like HIP's.
//! - [`kernel_author`]: kernels of others, from `pappus kernel new` to a failed requirement.
//! - [`checked`]: calls that find what strays, show buffers and let kernels print.
//! - [`folders`]: all functions of a folder, and one of them without a supervisor that stays. [`top`]: what is watched on a terminal.
//! - [`cli`], [`inputs`], [`metrics`]: the command and the endpoint that operators use.
//! - [`health`]: what an orchestrator is told. [`monitoring`]: dashboard, alerts and run book name what there is.
//! - [`arrows`]: imports point one way.
//! - [`tidy`], [`words`], [`threats`], [`pages`]: what must hold for the sources, their comments and documentation.
#![forbid(unsafe_code)]
// The exception for tests covers functions marked as such; everything here is one, helpers included.
#![allow(clippy::unwrap_used)]

mod disk;
mod fixture;
#[path = "../amd/folder.rs"]
mod folder;
mod house;
mod kit;
mod programs;
mod raw;
// Reads and writes registers of x86-64; so do the two that use it.
#[cfg(target_arch = "x86_64")]
mod tracer;

mod abuse;
mod again;
mod amd;
mod ancestors;
mod arrows;
mod batches;
mod bench;
mod calls;
mod chaos;
mod checked;
mod cli;
mod code_objects;
mod command_line;
mod compositions;
mod consecutive;
mod damage;
mod deadlines;
mod descriptors;
mod devices;
mod draining;
mod exclusive;
mod folders;
mod frames;
mod gateway;
mod gateways;
mod grants;
mod handover;
mod health;
mod hostile;
mod inputs;
mod kernel_author;
mod liars;
mod library;
mod lifecycle;
mod limits;
mod live;
mod load;
mod memory;
mod metrics;
mod monitoring;
mod pages;
mod prisoner;
mod quarantine;
mod quotas;
mod replacing;
mod residents;
mod restarts;
#[cfg(target_arch = "x86_64")]
mod scarcity;
mod seats;
mod service_manager;
mod sessions;
mod shapes;
mod shared;
mod shares;
mod standbys;
mod state;
mod surveys;
#[cfg(target_arch = "x86_64")]
mod syscalls;
mod tenants;
mod thesis;
mod threats;
mod tidy;
mod top;
mod turns;
mod versions;
mod weights;
mod words;
mod workers;
