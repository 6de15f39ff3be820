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

    /// Says how many bytes the output has that `place` names.
    pub fn needs(mut self, output_bytes: u64) -> Self {
        self.output_bytes = output_bytes;
        self
    }
}

impl v1::Error {
    /// True if the message begins with the kernel that is the place, which need not be named twice.
    fn names_its_kernel(&self) -> bool {
        let kernel = self.place.strip_prefix("kernel ");
        kernel.is_some_and(|kernel| self.message.starts_with(&format!("kernel `{kernel}`")))
    }
}

impl std::fmt::Display for v1::Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.place.is_empty() && !self.names_its_kernel() {
            write!(f, "at {}: ", self.place)?;
        }
        write!(f, "{} [{}]", self.message, self.code().as_str_name())?;
        if self.retry_after_ms > 0 {
            write!(f, " (try again in {} ms)", self.retry_after_ms)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_failed_is_named_once() {
        let shown =
            |message: &str, place: &str| v1::Error::new(Code::KernelFault, message).at(place).to_string();
        let of_itself = shown("kernel `k` at k.c:7: requires n > 0", "kernel k");
        assert_eq!(of_itself, "kernel `k` at k.c:7: requires n > 0 [KERNEL_FAULT]");
        assert_eq!(shown("it trapped", "kernel k"), "at kernel k: it trapped [KERNEL_FAULT]");
        // Another kernel, whose name begins alike.
        assert!(shown("kernel `k2` trapped", "kernel k").starts_with("at kernel k: kernel `k2` trapped"));
    }
}
