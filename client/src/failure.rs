//! What can go wrong in a command, and the exit code it means to a script.

use std::process::ExitCode;

use pappus_client::{Code, Error};

/// The supervisor answers, and takes no calls yet.
pub(crate) const NOT_READY: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// What was asked for was refused: nothing ran.
pub(crate) const REFUSED: u8 = 3;
/// It was accepted and failed while running.
pub(crate) const FAILED: u8 = 4;
/// There is no supervisor to talk to.
pub(crate) const UNREACHABLE: u8 = 5;
/// The supervisor answers, and takes no calls any more.
pub(crate) const DRAINING: u8 = 6;

/// A command's result.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments do not fit together.
    #[error("{0}\n\nFor more information, try '--help'.")]
    Usage(String),
    /// The library says.
    #[error("{0}")]
    Library(#[from] Error),
    /// The result cannot be printed.
    #[error("cannot print the result: {0}")]
    Print(#[from] std::io::Error),
    /// The blueprint does not go with these inputs.
    #[error("{0}")]
    Blueprint(#[from] pappus_blueprint::Error),
    /// What a supervisor says is a blueprint is none.
    #[error("{0}")]
    NoBlueprint(#[from] pappus_blueprint::Mistakes),
    /// Input that is wrong for another reason.
    #[error("{0}")]
    Refused(String),
    /// Calls cannot be made yet.
    #[error("not ready: no worker and no standby is up yet")]
    NotReady,
    /// Calls cannot be made any more.
    #[error("not ready: the supervisor is draining and takes no more calls")]
    Draining,
    /// The demo found something wrong.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// True if the reader of the output closed it, having seen enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// What a script sees.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.code().into()
    }

    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::NotReady => NOT_READY,
            Self::Draining => DRAINING,
            Self::Blueprint(_) | Self::NoBlueprint(_) | Self::Refused(_) => REFUSED,
            Self::Print(_) | Self::Failed(_) => FAILED,
            Self::Library(error) => of_library(error),
        }
    }
}

fn of_library(error: &Error) -> u8 {
    match error {
        Error::Unreachable { .. } | Error::Silent { .. } | Error::Lost | Error::Protocol(_) => UNREACHABLE,
        Error::Refused(error) => of_answer(error.code()),
        Error::Invalid(_) | Error::Config { .. } | Error::File { .. } | Error::Content { .. } => REFUSED,
        Error::Io { .. } | Error::Memfd(_) => FAILED,
    }
}

fn of_answer(code: Code) -> u8 {
    match code {
        Code::DeadlineExceeded
        | Code::Cancelled
        | Code::KernelFault
        | Code::Overrun
        | Code::SessionLost
        | Code::WorkerLost
        | Code::Internal
        | Code::Unspecified => FAILED,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Quarantined
        | Code::OutOfMemory
        | Code::Unsupported
        | Code::Unavailable => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pappus_client::v1;

    #[test]
    fn every_kind_of_failure_has_the_documented_code() {
        let answer = |code| Failure::from(Error::Refused(v1::Error::new(code, "")));
        let unreachable =
            Error::Unreachable { path: "s".into(), source: std::io::ErrorKind::NotFound.into() };
        let cases = [
            (Failure::NotReady, 1),
            (Failure::Draining, 6),
            (Failure::Usage(String::new()), 2),
            (answer(Code::InvalidArgument), 3),
            (answer(Code::NotFound), 3),
            (answer(Code::ResourceExhausted), 3),
            (answer(Code::Unavailable), 3),
            (answer(Code::Quarantined), 3),
            (Failure::Refused(String::new()), 3),
            (answer(Code::KernelFault), 4),
            (answer(Code::DeadlineExceeded), 4),
            (answer(Code::WorkerLost), 4),
            (answer(Code::Cancelled), 4),
            (answer(Code::Internal), 4),
            (unreachable.into(), 5),
            (Error::Lost.into(), 5),
            (Error::Silent { patience: std::time::Duration::ZERO }.into(), 5),
        ];
        for (failure, code) in cases {
            assert_eq!(failure.code(), code, "{failure:?}");
        }
    }
}
