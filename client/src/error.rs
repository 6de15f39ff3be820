//! What can go wrong between a client and the supervisor. Every message says what to do about it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pappus_proto::v1;

/// Bytes that the kernel takes as a socket's path, without the zero at its end.
const SOCKET_PATH_BYTES: usize = 107;

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request, or the connection, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No supervisor listens on the socket.
    #[error("cannot reach a supervisor at {}: {}", path.display(), why_unreachable(path, source))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the kernel answered.
        source: std::io::Error,
    },
    /// A supervisor is there and does not answer. What was sent may still be done.
    #[error(
        "the supervisor does not answer: nothing came for {patience:?}. Its process is stopped, swaps, or is in a debugger \
         (`ps -C pappus-supervisor -o pid,stat,wchan` shows T or t where it is stopped), or one that ends lets its last \
         calls finish; its log says more. To wait longer, give it more patience (`--patience 60s`)"
    )]
    Silent {
        /// How long it was waited for.
        patience: std::time::Duration,
    },
    /// The connection broke; what was in flight has no answer.
    #[error(
        "the supervisor closed the connection: it stopped, or it refused what it was sent (its log says)"
    )]
    Lost,
    /// The supervisor's answer is an error.
    #[error("{0}")]
    Refused(v1::Error),
    /// The peer does not speak this protocol, or not correctly.
    #[error("{0}")]
    Protocol(String),
    /// What was asked for cannot be sent; nothing was.
    #[error("{0}")]
    Invalid(String),
    /// A configuration is wrong.
    #[error("{}", source.lines(format_args!("{}:", path.display())))]
    Config {
        /// The configuration's file.
        path: PathBuf,
        /// All that is wrong, and where.
        source: pappus_blueprint::Mistakes,
    },
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A system call failed.
    #[error("{what} failed: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the kernel answered.
        source: std::io::Error,
    },
    /// Shared memory could not be made.
    #[error(transparent)]
    Memfd(#[from] pappus_shmem::MemfdError),
}

impl Error {
    /// For `map_err`: a system call that concerns a file.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }

    pub(crate) fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }

    pub(crate) fn content(path: &Path, message: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), message: message.into() }
    }
}

/// What the kernel answered to a connection, and what to do about it.
fn why_unreachable(path: &Path, source: &std::io::Error) -> String {
    let bytes = path.as_os_str().len();
    match source.kind() {
        ErrorKind::PermissionDenied => {
            format!("{source}; it belongs to another user: use the supervisor's uid or root")
        }
        _ if bytes > SOCKET_PATH_BYTES => {
            format!("the path has {bytes} bytes, a socket's can have {SOCKET_PATH_BYTES}: use a shorter one")
        }
        _ => format!(
            "{source}; start `pappus-supervisor --socket … --state-dir …`, or name the socket it was started with"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_why_a_socket_cannot_be_reached_are_told_apart() {
        let why = |path: &str, kind: ErrorKind| {
            Error::Unreachable { path: path.into(), source: kind.into() }.to_string()
        };
        assert!(why("s", ErrorKind::PermissionDenied).contains("use the supervisor's uid or root"));
        assert!(why("s", ErrorKind::NotFound).contains("start `pappus-supervisor "));
        let long = "x".repeat(SOCKET_PATH_BYTES + 1);
        let words = "has 108 bytes, a socket's can have 107";
        assert!(why(&long, ErrorKind::InvalidInput).contains(words));
        let connected = crate::Client::connect(&long).unwrap_err().to_string();
        assert!(connected.contains(words), "{connected}");
        let why = why(&long[1..], ErrorKind::NotFound);
        assert!(!why.contains(words), "{why}");
    }
}
