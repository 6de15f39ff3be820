//! A worker: the sandboxed process that executes invocations on one device for one domain at a time.
//!
//! In reading order:
//! - [`channels`]: the pipes and the control socket that connect it to the supervisor.
//! - [`serve`]: the role that runs calls; one loop over the pipes, generic over the device.
//! - [`compile`]: the role that turns modules into machine code, once, at registration.
//! - [`arenas`]: the memory shared with the client, and ranges of it.
//! - [`device`]: what a device must do; the built-in CPU, and NVIDIA GPUs.
//! - [`launch`]: what the supervisor starts it with.
//! - [`sandbox`]: what the process gives up before a tenant's first byte reaches it.

#![deny(unsafe_code)]

pub mod arenas;
pub mod channels;
pub mod compile;
pub mod device;
pub mod launch;
pub mod sandbox;
pub mod serve;

pub use channels::Channels;
pub use pappus_protocol::launch::Role;

/// Why a worker ends although its supervisor did not ask for it. The supervisor replaces it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The supervisor broke the protocol, or a channel broke.
    #[error(transparent)]
    Protocol(#[from] pappus_protocol::ProtocolError),
    /// A message that this role or this state has no use for.
    #[error("unexpected message: {0}")]
    Unexpected(&'static str),
    /// The staging arena cannot be used.
    #[error("the staging arena: {0}")]
    Staging(String),
    /// An arena cannot be looked at.
    #[error("an arena: {0}")]
    Arena(pappus_shmem::MemfdError),
    /// The device cannot go on.
    #[error("the device: {0}")]
    Device(#[from] pappus_protocol::Fault),
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Protocol(error.into())
    }
}

/// Writes a line of the text log, which the supervisor may have stopped reading.
pub fn log(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // There is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "pappus-worker: {line}");
}
