//! What is registered: modules, functions, their bytes on disk and their machine code.
//!
//! - [`state`]: the state directory: content-addressed blobs, records, atomic writes.
//! - [`state_root`]: which directory may be the state directory.
//! - [`records`]: what a record holds.
//! - [`index`]: all records in memory, and which blobs they need.
//! - [`compile`]: one-shot compiling workers.
//! - [`target`]: which compiled form of a module a device runs.
//! - [`registration`]: adding and removing modules and functions.
//! - `admission`: what a registration must fulfil.
//! - `grants`: who may call whose functions.
//! - `code`: machine code for the devices here; `compilations`: who may compile now; `failures`: what failed.
//! - [`layout`]: kernels and parameters against what a blueprint does with them.
//! - [`loaded`]: functions ready to invoke: parsed, planned, with what a worker needs to install them.

mod admission;
mod code;
mod compilations;
pub mod compile;
mod failures;
mod grants;
pub mod index;
pub mod layout;
pub mod loaded;
pub mod records;
pub mod registration;
pub mod state;
pub mod state_root;
pub mod target;

pub use grants::Revoked;
pub use loaded::{Loaded, LoadedCache};
pub use registration::Registry;
pub use target::{CodeTarget, DeviceClass};

pub use crate::tenants::Tenant;

/// A protocol error without its allocation on every `Result`'s path.
pub type Refusal = Box<pappus_proto::v1::Error>;

/// A refusal with this code and message.
pub fn refusal(code: pappus_proto::Code, message: impl Into<String>) -> Refusal {
    Box::new(pappus_proto::v1::Error::new(code, message))
}

/// Something failed that may be for lack of room, descriptors or memory: then the client is told so and when to
/// come back; everything else is [`internal`].
pub fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> Refusal {
    let mut cause = Some(error);
    while let Some(found) = cause {
        let number = match found.downcast_ref::<std::io::Error>() {
            Some(io) => rustix::io::Errno::from_io_error(io),
            None => found.downcast_ref::<rustix::io::Errno>().copied(),
        };
        if let Some(lacking) = number.and_then(lacking) {
            tracing::warn!("{what}: {error}");
            let message = format!("{what}: the machine {lacking}; try again later or tell its operator");
            return Box::new(
                pappus_proto::v1::Error::new(pappus_proto::Code::ResourceExhausted, message).retry(1000),
            );
        }
        cause = found.source();
    }
    internal(what, error)
}

/// Whether a machine that has too little of something explains what a socket answered.
pub fn is_lack(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    // On a socket, to be told to come again is no lack.
    Errno::from_io_error(error).is_some_and(|number| number != Errno::AGAIN && lacking(number).is_some())
}

/// What the machine has too little of, by what the kernel answered.
fn lacking(number: rustix::io::Errno) -> Option<&'static str> {
    use rustix::io::Errno;
    match number {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            Some("has no room left on the disk of its state directory")
        }
        Errno::MFILE | Errno::NFILE => Some("has no descriptors left"),
        Errno::NOMEM | Errno::NOBUFS => Some("has no memory left"),
        Errno::AGAIN => Some("has too many processes"),
        _ => None,
    }
}

/// The supervisor itself failed; the log has the details, the client gets the gist.
pub fn internal(what: &str, error: impl std::fmt::Display) -> Refusal {
    tracing::error!("{what}: {error}");
    refusal(pappus_proto::Code::Internal, format!("{what}; the supervisor's log says why"))
}

#[cfg(test)]
mod tests {
    use pappus_proto::Code;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_the_machine_lacks_is_said_and_comes_back() {
        for (number, words) in [(Errno::NOSPC, "no room left"), (Errno::MFILE, "no descriptors left")] {
            let error = failed("cannot store it", &std::io::Error::from(number));
            assert_eq!((error.code(), error.retryable), (Code::ResourceExhausted, true));
            assert!(error.message.contains(words), "{error}");
        }
        // Wherever it is among the causes.
        let refused = pappus_shmem::MemfdError::System { call: "memfd_create", source: Errno::NFILE };
        assert_eq!(failed("", &refused).code(), Code::ResourceExhausted);
        // The control.
        let error = failed("cannot store it", &std::io::Error::from(Errno::IO));
        assert_eq!((error.code(), error.retryable), (Code::Internal, false));
    }
}
