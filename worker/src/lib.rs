//! A worker: the sandboxed process that executes invocations on one device, for one domain at a time or, where kernels cannot leave their memory, for many.
//!
//! Folders and files; each imports only what comes earlier in this list:
//! - [`arenas`]: the memory shared with the client, and ranges of it.
//! - [`channels`]: the pipes and the control socket that connect it to the supervisor.
//! - [`sandbox`]: what the process gives up before a tenant's first byte reaches it.
//! - [`device`]: what a device must do. Below it `cpu`, the built-in device; `gpu`, what GPUs have in common; and on
//!   top of that `cuda` and `hip`, the drivers of NVIDIA's and of AMD's and what makes their machine code.
//! - [`launch`]: what the supervisor starts it with.
//! - [`compile`]: the role that turns modules into machine code, once, at registration.
//! - [`meter`]: the role that says what devices measure of themselves, as often as it is asked.
//! - [`serve`]: the role that runs calls; one loop over the pipes, generic over the device.
//! - [`backends`]: the table of the kinds of devices, with the life of a process of each.
//!
//! # The way of a hot call
//!
//! A call of a function that ran before passes these files of the crate:
//!
//! | file | does |
//! |---|---|
//! | `serve/mod.rs` | reads the frame, starts the call, asks for its end, answers, clears |
//! | `serve/lane.rs` | checks the call's regions, finds its plan, keeps what belongs to the call |
//! | `serve/installed.rs` | finds the function |
//! | `serve/turn.rs`, `turn_wait.rs` | say whether the worker may submit |
//! | `serve/poll_order.rs` | says which lanes to ask |
//! | `arenas.rs` | finds the regions' memory |
//!
//! and of the device
//!
//! | a GPU | does | the CPU | does |
//! |---|---|---|---|
//! | `gpu/mod.rs`, `device.rs`, `memory.rs` | gives the call its range | `cpu/mod.rs` | copies in and out, clears |
//! | `gpu/plan_cache.rs` | finds its commands and graphs | `cpu/launch.rs` | runs the plan's steps |
//! | `gpu/lane.rs`, `whole_call.rs` | submits, asks, clears | `cpu/function.rs` | maps the pool, restores the modules |
//! | `cuda/` or `hip/driver/stream.rs` | calls the driver | `cpu/memory.rs` | linear memory |
//!
//! (`gpu/command_list.rs` as well, for the first calls of a plan, which are no graph yet.) Frames are read and written
//! by the protocol crate.
//!
//! # Panics
//!
//! A panic on any thread ends the process at once, with the exit code
//! [`EXIT_PANICKED`](pappus_protocol::launch::EXIT_PANICKED) and one line in the log: [`end_on_panic`]. Nothing is
//! caught and no destructor runs, because data that the panicking code left half written must not be used again. For the
//! supervisor it is a death like any other: it replaces the process and runs or answers the calls that were in it.

#![deny(unsafe_code)]

pub mod arenas;
pub mod backends;
pub mod channels;
pub mod compile;
pub mod device;
pub mod launch;
pub mod meter;
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

/// From here on, a panic on any thread ends the process.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let said = panic.to_string();
        log(format_args!("{}", said.replace('\n', " ")));
        std::process::exit(pappus_protocol::launch::EXIT_PANICKED.into());
    }));
}

/// Writes a line of the text log, which the supervisor may have stopped reading.
pub fn log(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // If the log is closed, there is no other place to write to.
    let _ = writeln!(std::io::stderr(), "pappus-worker: {line}");
}
