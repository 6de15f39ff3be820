//! The client protocol: what travels between a client and the supervisor's Unix stream socket.
//!
//! In reading order:
//! - [`handshake`]: sixteen bytes each way that never change shape.
//! - [`frame`]: a header with length and descriptor count before every message.
//! - [`decoding`]: what a request takes in memory, before it is decoded.
//! - [`v1`]: the messages, generated from `proto/pappus.proto` (a test keeps them fresh).
//! - [`limits`]: every limit of the protocol.

#![forbid(unsafe_code)]

pub mod decoding;
pub mod frame;
pub mod handshake;
pub mod limits;
#[allow(missing_docs, clippy::all, unreachable_pub)]
#[rustfmt::skip]
#[path = "generated.rs"]
pub mod v1;

pub use v1::Code;

impl v1::Error {
    /// An error that will not go away by itself.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), ..Self::default() }
    }

    /// Names the place in a configuration or request that is wrong.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = place.into();
        self
    }

    /// Marks an error that may pass; `after_ms` = 0 means that the time is not known.
    pub fn retry(mut self, after_ms: u64) -> Self {
        self.retryable = true;
        self.retry_after_ms = after_ms;
        self
    }
}

impl std::fmt::Display for v1::Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.place.is_empty() {
            write!(f, "at {}: ", self.place)?;
        }
        write!(f, "{} [{}]", self.message, self.code().as_str_name())?;
        if self.retry_after_ms > 0 {
            write!(f, " (try again in {} ms)", self.retry_after_ms)?;
        }
        Ok(())
    }
}
