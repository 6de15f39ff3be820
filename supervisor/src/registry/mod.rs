//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - [`state`]: the state directory: content-addressed blobs, records, atomic writes.
//! - [`records`]: what a record holds.
//! - [`index`]: all records in memory, and which blobs they need.
//! - [`compile`]: one-shot compiling workers.
//! - [`target`]: which compiled form of a module a device runs.
//! - [`registration`]: adding and removing modules and functions.
//! - `admission`: what a registration must fulfil.
//! - `code`: machine code for the devices here.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.
//! - [`loaded`]: functions ready to invoke: parsed, planned, with what a worker needs to install them.

mod admission;
mod code;
pub mod compile;
pub mod index;
pub mod layout;
pub mod loaded;
pub mod records;
pub mod registration;
pub mod state;
pub mod target;

pub use loaded::{Loaded, LoadedCache};
pub use registration::Registry;
pub use target::{CodeTarget, DeviceClass};

/// Owner and caller of functions: the peer's uid.
pub type Tenant = u32;

/// A protocol error without its allocation on every `Result`'s path.
pub type Refusal = Box<pappus_proto::v1::Error>;

/// A refusal with this code and message.
pub fn refusal(code: pappus_proto::Code, message: impl Into<String>) -> Refusal {
    Box::new(pappus_proto::v1::Error::new(code, message))
}

/// The supervisor itself failed; the log has the details, the client gets the gist.
pub fn internal(what: &str, error: impl std::fmt::Display) -> Refusal {
    tracing::error!("{what}: {error}");
    refusal(pappus_proto::Code::Internal, format!("{what}; the supervisor's log says why"))
}
