//! Why a request is refused, as its client is told.

use pappus_proto::v1::response::Body;
use pappus_proto::{Code, v1};

use crate::metrics;
use crate::refusal::{Reason, Refusable};

/// A refusal as a message, which is sent next: it is counted.
pub(super) fn to_error(refusal: &dyn Refusable) -> v1::Error {
    let code = match refusal.reason() {
        Reason::InvalidArgument => Code::InvalidArgument,
        Reason::NotFound => Code::NotFound,
        Reason::AlreadyExists => Code::AlreadyExists,
        Reason::PermissionDenied => Code::PermissionDenied,
        Reason::ResourceExhausted => Code::ResourceExhausted,
        Reason::OutOfMemory => Code::OutOfMemory,
        Reason::Unsupported => Code::Unsupported,
        Reason::Unavailable => Code::Unavailable,
        Reason::SessionLost => Code::SessionLost,
        Reason::Internal => Code::Internal,
    };
    if let Some(limit) = refusal.quota() {
        metrics::quota_refusal(limit);
    }
    let error = v1::Error::new(code, refusal.to_string()).at(refusal.place()).needs(refusal.output_bytes());
    match refusal.retry_after_ms() {
        Some(after_ms) => error.retry(after_ms),
        None => error,
    }
}

/// A refusal as an answer.
pub(super) fn to_body(refusal: &dyn Refusable) -> Body {
    Body::Error(to_error(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::{Failure, Lack};
    use crate::server::invoke_error::{InvokeError, ValueError};

    #[test]
    fn a_refusal_is_told_with_its_place_or_with_when_to_come_back() {
        let error = InvokeError::Input { name: "A".into(), why: ValueError::NoSource };
        let told = to_error(&error);
        assert_eq!(
            (told.code(), told.place.as_str(), told.retryable),
            (Code::InvalidArgument, "input A", false)
        );
        assert_eq!(told.message, ValueError::NoSource.to_string());
        let told = to_error(&Failure::Lack { what: "cannot store it", lack: Lack::Room });
        assert_eq!((told.code(), told.retryable, told.retry_after_ms), (Code::ResourceExhausted, true, 1000));
        assert!(told.place.is_empty() && told.message.starts_with("cannot store it: "), "{told}");
    }
}
