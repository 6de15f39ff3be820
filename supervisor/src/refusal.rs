//! Why a request is refused: for which reason, where, and whether it may be tried again.
//!
//! Each module has its errors as an enum of its own. Those that can end a request are [`Refusable`]; only the server
//! turns them into messages of the client protocol.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use rustix::io::Errno;

use crate::quota::{Limit, QuotaError};

/// The reason, by what the sender of the request can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Correct the request.
    InvalidArgument,
    /// Name something that is there.
    NotFound,
    /// Take another name.
    AlreadyExists,
    /// Ask who may.
    PermissionDenied,
    /// Come back later, or with less.
    ResourceExhausted,
    /// Ask the operator for more device memory.
    OutOfMemory,
    /// Bring another form of the module.
    Unsupported,
    /// Ask another supervisor.
    Unavailable,
    /// Begin again: what earlier requests left is gone.
    SessionLost,
    /// Tell the operator: the supervisor itself failed.
    Internal,
}

/// An error that a request can end with. The client reads its `Display`: what is wrong and what to do about it.
pub trait Refusable: Error + Send + Sync + 'static {
    /// For which reason.
    fn reason(&self) -> Reason;

    /// The place in a configuration or request that is wrong; may be empty.
    fn place(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    /// After how many milliseconds the same request may succeed, 0 where that is unknown; none if it never will.
    fn retry_after_ms(&self) -> Option<u64> {
        None
    }

    /// The quota that is reached, if that is why.
    fn quota(&self) -> Option<Limit> {
        None
    }

    /// Bytes of the output that is the place, where there is no room for them; 0 otherwise.
    fn output_bytes(&self) -> u64 {
        0
    }
}

/// The error of a module that the one which passes it on does not know.
pub type Refusal = Box<dyn Refusable>;

impl<E: Refusable> From<E> for Refusal {
    fn from(error: E) -> Self {
        Box::new(error)
    }
}

impl Refusable for QuotaError {
    fn reason(&self) -> Reason {
        Reason::ResourceExhausted
    }

    fn retry_after_ms(&self) -> Option<u64> {
        QuotaError::retry_after_ms(self)
    }

    fn quota(&self) -> Option<Limit> {
        Some(self.limit)
    }
}

/// The supervisor could not do something, and the request is not at fault. [`failed`] and [`internal`] have logged the
/// details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The machine has too little of something.
    #[error("{what}: the machine {lack}; try again later or tell its operator")]
    Lack {
        /// What could not be done.
        what: &'static str,
        /// Of what.
        lack: Lack,
    },
    /// Anything else.
    #[error("{0}; the supervisor's log says why")]
    Internal(&'static str),
}

impl Refusable for Failure {
    fn reason(&self) -> Reason {
        match self {
            Self::Lack { .. } => Reason::ResourceExhausted,
            Self::Internal(_) => Reason::Internal,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        matches!(self, Self::Lack { .. }).then_some(1000)
    }
}

/// What a machine has too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Room on a disk.
    Room,
    /// Descriptors of this process or of the system.
    Descriptors,
    /// Memory of the host.
    Memory,
    /// Processes and threads that may be started.
    Processes,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "has no room left on the disk of its state directory",
            Self::Descriptors => "has no descriptors left",
            Self::Memory => "has no memory left",
            Self::Processes => "has too many processes",
        })
    }
}

impl Lack {
    /// By what the kernel answered.
    pub fn told_by(number: Errno) -> Option<Self> {
        match number {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Some(Self::Room),
            Errno::MFILE | Errno::NFILE => Some(Self::Descriptors),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            Errno::AGAIN => Some(Self::Processes),
            _ => None,
        }
    }
}

/// Something failed that may be for lack of room, descriptors or memory: then the client is told so and when to
/// come back; everything else is [`internal`].
pub fn failed(what: &'static str, error: &(dyn Error + 'static)) -> Failure {
    let mut cause = Some(error);
    while let Some(found) = cause {
        let number = match found.downcast_ref::<std::io::Error>() {
            Some(io) => Errno::from_io_error(io),
            None => found.downcast_ref::<Errno>().copied(),
        };
        if let Some(lack) = number.and_then(Lack::told_by) {
            tracing::warn!("{what}: {error}");
            return Failure::Lack { what, lack };
        }
        cause = found.source();
    }
    internal(what, error)
}

/// The supervisor itself failed; the log has the details, the client gets the gist.
pub fn internal(what: &'static str, error: impl fmt::Display) -> Failure {
    tracing::error!("{what}: {error}");
    Failure::Internal(what)
}

/// True if a machine that has too little of something explains what a socket answered.
pub fn is_lack(error: &std::io::Error) -> bool {
    // On a socket, to be told to come again is no lack.
    Errno::from_io_error(error)
        .is_some_and(|number| number != Errno::AGAIN && Lack::told_by(number).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_lacks_is_said_and_comes_back() {
        for (number, words) in [(Errno::NOSPC, "no room left"), (Errno::MFILE, "no descriptors left")] {
            let error = failed("cannot store it", &std::io::Error::from(number));
            assert_eq!((error.reason(), error.retry_after_ms()), (Reason::ResourceExhausted, Some(1000)));
            assert!(error.to_string().contains(words), "{error}");
        }
        // Wherever it is among the causes.
        let refused = pappus_shmem::MemfdError::System { call: "memfd_create", source: Errno::NFILE };
        assert_eq!(failed("", &refused).reason(), Reason::ResourceExhausted);
        // The control.
        let error = failed("cannot store it", &std::io::Error::from(Errno::IO));
        assert_eq!((error.reason(), error.retry_after_ms()), (Reason::Internal, None));
    }
}
