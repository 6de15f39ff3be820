//! Why a request is refused: for which reason, in which words, and whether it may be tried again.
//!
//! Only the server turns this into a message of the client protocol.

use crate::quota::QuotaError;

/// The reason, by what whoever sent the request can do about it.
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
    /// Tell the operator: the supervisor itself failed.
    Internal,
}

/// A request that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message} [{reason:?}]", if place.is_empty() { String::new() } else { format!("at {place}: ") })]
pub struct RequestError {
    /// For which reason.
    pub reason: Reason,
    /// What is wrong and what to do about it.
    pub message: String,
    /// The place in a configuration or request that is wrong; may be empty.
    pub place: String,
    /// After how many milliseconds the same request may succeed, 0 where that is unknown; none if it never will.
    pub retry_after_ms: Option<u64>,
}

/// A refusal without its allocation on every `Result`'s path.
pub type Refusal = Box<RequestError>;

impl RequestError {
    /// Names the place in a configuration or request that is wrong.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = place.into();
        self
    }

    /// Marks a refusal that may pass; `after_ms` = 0 means that it is unknown when.
    pub fn retry(mut self, after_ms: u64) -> Self {
        self.retry_after_ms = Some(after_ms);
        self
    }
}

impl From<QuotaError> for Refusal {
    fn from(error: QuotaError) -> Self {
        let retry_after_ms = error.retry_after_ms();
        Box::new(RequestError { retry_after_ms, ..*refusal(Reason::ResourceExhausted, error.to_string()) })
    }
}

/// A refusal for this reason in these words.
pub fn refusal(reason: Reason, message: impl Into<String>) -> Refusal {
    Box::new(RequestError { reason, message: message.into(), place: String::new(), retry_after_ms: None })
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
            return Box::new(refusal(Reason::ResourceExhausted, message).retry(1000));
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
    refusal(Reason::Internal, format!("{what}; the supervisor's log says why"))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_the_machine_lacks_is_said_and_comes_back() {
        for (number, words) in [(Errno::NOSPC, "no room left"), (Errno::MFILE, "no descriptors left")] {
            let error = failed("cannot store it", &std::io::Error::from(number));
            assert_eq!((error.reason, error.retry_after_ms), (Reason::ResourceExhausted, Some(1000)));
            assert!(error.message.contains(words), "{error}");
        }
        // Wherever it is among the causes.
        let refused = pappus_shmem::MemfdError::System { call: "memfd_create", source: Errno::NFILE };
        assert_eq!(failed("", &refused).reason, Reason::ResourceExhausted);
        // The control.
        let error = failed("cannot store it", &std::io::Error::from(Errno::IO));
        assert_eq!((error.reason, error.retry_after_ms), (Reason::Internal, None));
    }
}
