//! The messages between the supervisor and its workers.
//!
//! Messages are small frames over a pair of pipes; descriptors travel over a control socket beside
//! them. Either side treats the other as hostile: every length, count and tag is checked.
//!
//! In reading order:
//! - [`ids`]: what both sides call functions, turns, arenas and lanes.
//! - [`header`]: the sixteen bytes before every message, and the tags.
//! - [`kind`]: the kinds of devices and what each is like.
//! - [`to_worker`], [`from_worker`]: one closed enum per direction.
//! - `cold`: how the rare ones are encoded.
//! - [`pipe`]: reading and writing frames in batches.
//! - [`turn_page`]: the page over which turns change hands.
//! - [`control`]: descriptors that belong to a frame.
//! - [`layers`]: the layers of a worker's sandbox.
//! - [`cpu_affinity`]: where both sides' threads of a device run.
//! - [`device_memory`]: how the memory of a device is divided.
//! - [`launch`]: descriptors, arguments and exit code of a worker process.
//! - [`limits`]: every limit of this protocol.

#![forbid(unsafe_code)]

mod cold;
pub mod control;
pub mod cpu_affinity;
pub mod device_memory;
pub mod from_worker;
pub mod header;
pub mod ids;
pub mod kind;
pub mod launch;
pub mod layers;
pub mod limits;
pub mod pipe;
pub mod to_worker;
pub mod turn_page;
#[cfg(test)]
mod turn_page_tests;

pub use from_worker::{Fault, FaultCode, FromWorker};
pub use ids::{ArenaId, FunctionId, LaneId, TurnId};
pub use kind::{Kind, KindTraits};
pub use layers::{Layer, Layers};
pub use to_worker::ToWorker;

/// The synchronisation that `turn_page` is built from. `tests/models` has the same names from loom.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

impl turn_page::Words for pappus_shmem::SharedWords {
    fn word(&self, at: usize) -> &sync::AtomicU64 {
        &self.words()[at]
    }
}

impl<W: turn_page::Words> turn_page::Words for std::sync::Arc<W> {
    fn word(&self, at: usize) -> &sync::AtomicU64 {
        (**self).word(at)
    }
}

/// A peer broke the protocol; the worker it belongs to cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The header is not ours.
    #[error("bad frame header: {0}")]
    Header(&'static str),
    /// A frame's body does not have its announced shape.
    #[error("bad {message} message: {why}")]
    Body {
        /// Which message.
        message: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// Descriptors are missing, too many, or belong elsewhere.
    #[error("bad descriptors on the control socket: {0}")]
    Descriptors(&'static str),
    /// Reading or writing failed.
    #[error("channel: {0}")]
    Io(#[from] std::io::Error),
}

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock that deadlines and timings on the wire refer to.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
