//! One accepted invocation on its way through the supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use pappus_blueprint::Plan;
use pappus_proto::v1;
use pappus_protocol::to_worker::{Item, Target};
use pappus_shmem::Judged;
use zerocopy::little_endian::U64;

use crate::registry::Loaded;
use crate::schedule::Domain;
use crate::server::replies::Replies;

/// An arena shared with one client. It never changes tenant and dies with its connection.
#[derive(Debug)]
pub struct Arena {
    /// Its name towards workers, never used twice.
    pub id: u64,
    /// Its memory.
    pub memfd: Judged,
}

/// Where inline bytes of a call lie in its lane's staging range.
#[derive(Debug)]
pub struct Inline {
    /// Offset in the staging range.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// Everything about one call that does not change while it waits and runs.
#[derive(Debug)]
pub struct Call {
    /// What to run.
    pub function: Arc<Loaded>,
    /// Whose worker may run it.
    pub domain: Domain,
    /// What the worker will do; planned here only to know sizes and limits.
    pub plan: Arc<Plan>,
    /// Input items; offsets of staged ones are relative to the lane's staging range.
    pub items: Vec<Item>,
    /// Output targets, likewise.
    pub outputs: Vec<Target>,
    /// The words that the plan depends on.
    pub words: Vec<U64>,
    /// Inline inputs.
    pub inline: Vec<Inline>,
    /// One-off inputs.
    pub descriptors: Vec<Judged>,
    /// Arenas that items and targets name.
    pub arenas: Vec<Arc<Arena>>,
    /// Absolute, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline_ns: u64,
    /// When it arrived, likewise.
    pub arrived_ns: u64,
    /// When it was handed to a worker, likewise; 0 while it waits.
    pub started_ns: AtomicU64,
    /// Who waits for the answer.
    pub asker: Asker,
}

/// Who asked, and whether the one answer was given.
#[derive(Debug)]
pub struct Asker {
    /// The connection.
    pub replies: Arc<Replies>,
    /// The request's id there.
    pub request: u64,
    answered: AtomicBool,
}

impl Asker {
    /// Nobody was answered yet.
    pub fn new(replies: Arc<Replies>, request: u64) -> Self {
        Self { replies, request, answered: AtomicBool::new(false) }
    }

    /// Gives the answer, unless one was given; returns whether it was this one.
    pub fn answer(&self, body: impl FnOnce() -> v1::response::Body) -> bool {
        if self.answered.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.replies.answer_call(self.request, body());
        true
    }

    /// Makes sure that no answer comes any more; false if there was one already.
    pub fn give_up(&self) -> bool {
        !self.answered.swap(true, Ordering::AcqRel)
    }
}
