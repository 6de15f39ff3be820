//! The client library of Pappus: small, and able to keep many requests in flight. [`Client`] blocks; [`aio::Client`] is for programs on
//! tokio; [`steady::SteadyClient`] and [`aio::SteadyClient`] outlive restarts of the supervisor.
//!
//! ```no_run
//! use pappus_client::{Client, Invocation};
//!
//! # fn main() -> pappus_client::Result<()> {
//! let mut client = Client::connect("/run/pappus/pappus.sock")?;
//! let mut arena = client.open_arena(2 << 20)?;
//! let input = arena.store(&[1; 1 << 20])?;
//! let output = arena.alloc(1 << 20)?;
//! let answer = client.invoke(&Invocation::new("double").input("A", input).output_to("B", output))?;
//! println!("{} bytes: {:?}", answer.outputs[0].bytes, arena.load(output)?);
//! # Ok(())
//! # }
//! ```
//!
//! In reading order:
//! - [`client`]: the connection; requests out, answers in, in any order.
//! - `requests`: a method of [`Client`] for every request.
//! - `blobs`: how modules, configurations and weights are handed over.
//! - [`arena`]: shared memory for inputs and outputs.
//! - [`invocation`]: one call, built step by step.
//! - `again`: what is done again over a restart, and for how long.
//! - [`steady`]: a client that outlives restarts of its supervisor.
//! - [`aio`]: a connection that many tasks share; each request may be from another tenant.
//! - [`functions`]: a configuration on disk, its module files and its weights → a registered function.
//! - [`compositions`]: functions that are linked into one.
//! - [`registered`]: whether what is registered is what lies on disk.
//! - `files`: where the files of a configuration are: beside it, or in its package.
//! - [`archive`]: all of that in one file.
//! - `upload`: its files on their way, with word of how far they are.
//! - [`variants`]: which file holds which compiled form of a module.
//! - [`kernels`]: which kernels a module file holds.
//! - [`sharing`]: whether these can run in a worker that tenants share.
//! - [`mod@array`]: what an array may be, and whether it is what a function declares.
//! - [`npy`]: NumPy's file format, as much as is needed.
//! - [`source`]: the bytes of a file, or of a part of one.
//! - [`error`]: what can go wrong.

#![forbid(unsafe_code)]

mod again;
pub mod aio;
pub mod archive;
pub mod arena;
pub mod array;
mod blobs;
pub mod client;
pub mod compositions;
pub mod error;
mod files;
pub mod functions;
pub mod invocation;
pub mod kernels;
pub mod npy;
pub mod registered;
mod requests;
pub mod sharing;
pub mod source;
pub mod steady;
mod upload;
pub mod variants;

pub use arena::Arena;
pub use blobs::Blob;
pub use client::Client;
pub use error::{Error, Result};
pub use invocation::{Invocation, Item};
pub use pappus_blueprint::{PRINTED, PRINTED_BYTES};
pub use pappus_proto::{Code, v1};
pub use pappus_shmem::memfd;
