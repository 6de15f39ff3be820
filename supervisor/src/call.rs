//! One accepted invocation on its way through the supervisor.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pappus_blueprint::Plan;
use pappus_proto::v1;
use pappus_protocol::now_ns;
use pappus_protocol::to_worker::{Item, Target};
use pappus_shmem::{Judged, memfd};
use zerocopy::little_endian::U64;

use crate::metrics::{self, Latencies};
use crate::registry::{Loaded, Refusal};
use crate::schedule::Domain;
use crate::server::replies::{self, Replies};
use crate::tenants::{Accepted, Account, Limit, Taken};

/// An arena shared with one client. It never changes tenant and dies with its connection.
#[derive(Debug)]
pub struct Arena {
    /// Its name towards workers, never used twice.
    pub id: u64,
    /// Its memory.
    pub memfd: Judged,
    closed: AtomicBool,
    /// Its bytes among those of its tenant's arenas.
    _taken: Taken,
    /// Likewise among those that workers map, once a call names it.
    pinned: OnceLock<Taken>,
}

impl Arena {
    /// An open arena.
    pub fn new(id: u64, memfd: Judged, account: &Arc<Account>) -> Result<Self, Refusal> {
        let taken = account.take(Limit::ArenaBytes, memfd.bytes())?;
        Ok(Self { id, memfd, closed: AtomicBool::new(false), _taken: taken, pinned: OnceLock::new() })
    }

    /// Workers are about to map it, as long as it is open.
    pub fn pin(&self, account: &Arc<Account>) -> Result<(), Refusal> {
        if self.pinned.get().is_none() {
            // If another call did so meanwhile, what was taken twice is given back.
            let _ = self.pinned.set(account.take(Limit::PinnedBytes, self.memfd.bytes())?);
        }
        Ok(())
    }

    /// No further call may name it. To be called before workers are told to forget it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether a worker that maps it for a call that waited must forget it again after that call.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
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
    /// When it was handed to a worker, likewise; 0 while it waits, for the first time or again.
    pub started_ns: AtomicU64,
    /// Where its frame ends in what its worker was sent.
    pub sent_at: AtomicU64,
    /// Who waits for the answer.
    pub asker: Arc<Asker>,
}

impl Call {
    /// For the operator's log: the function, its owner, and the caller.
    pub fn names(&self) -> (&str, &str, &str) {
        (&self.function.record.name, &self.function.account.name, &self.asker.account().name)
    }

    /// Zeroes the output regions of a call whose worker is gone, as the worker would have done.
    pub fn zero_outputs(&self) {
        const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        for target in &self.outputs {
            let Some(arena) = self.arenas.iter().find(|arena| arena.id == target.arena.get()) else {
                continue;
            };
            let end = target.offset.get() + target.bytes.get();
            for start in (target.offset.get()..end).step_by(ZEROS.len()) {
                let bytes = (end - start).min(ZEROS.len() as u64) as usize;
                // The client's own memory: if it cannot be written, nobody else is harmed.
                let _ = memfd::write_all_at(arena.memfd.as_fd(), start, &ZEROS[..bytes]);
            }
        }
    }
}

/// Who asked, and whether the one answer was given. It exists from the moment an invocation is accepted,
/// so whatever happens to it later, loading its function included, ends here once.
#[derive(Debug)]
pub struct Asker {
    replies: Arc<Replies>,
    request: u64,
    /// When it asked, in `CLOCK_MONOTONIC` nanoseconds.
    asked_ns: u64,
    /// Where the time to the answer is recorded, once a device is chosen.
    latencies: OnceLock<Arc<Latencies>>,
    answered: AtomicBool,
    /// Counts it as accepted until it is dropped.
    accepted: Accepted,
}

impl Asker {
    /// Nobody was answered yet.
    pub fn new(replies: Arc<Replies>, request: u64, accepted: Accepted) -> Self {
        replies.owe();
        Self {
            replies,
            request,
            asked_ns: now_ns(),
            latencies: OnceLock::new(),
            answered: AtomicBool::new(false),
            accepted,
        }
    }

    /// A device was chosen: from now on, answers count among its own.
    pub fn placed(&self, latencies: &Arc<Latencies>) {
        // A call is placed once.
        let _ = self.latencies.set(latencies.clone());
    }

    /// Gives the answer, unless one was given.
    pub fn answer(&self, body: v1::response::Body) {
        if self.give_up() {
            self.record(&body);
            self.replies.forget(self.request, self);
            self.replies.send(self.request, body);
        }
    }

    /// Appends the answer's frame to `frames`, which go to [`Asker::replies`] next; unless one was given.
    pub fn answer_later(&self, body: v1::response::Body, frames: &mut Vec<u8>) {
        if self.give_up() {
            self.record(&body);
            self.replies.forget(self.request, self);
            replies::append(frames, self.request, body);
        }
    }

    /// Says that the invocation is not accepted; it is none whose latency counts.
    pub fn refuse(&self, error: v1::Error) {
        if self.give_up() {
            self.replies.forget(self.request, self);
            self.replies.send(self.request, v1::response::Body::Error(error));
        }
    }

    /// The client gave up: the last answer says so.
    pub fn cancelled(&self, body: v1::response::Body) {
        if self.give_up() {
            self.record(&body);
            self.replies.send(self.request, body);
        }
    }

    fn record(&self, body: &v1::response::Body) {
        let latencies = match self.latencies.get() {
            Some(latencies) => Some(&**latencies),
            None => metrics::unplaced(),
        };
        if let Some(latencies) = latencies {
            latencies.record(body, now_ns().saturating_sub(self.asked_ns));
        }
    }

    /// Whose invocation it is.
    pub fn account(&self) -> &Arc<Account> {
        self.accepted.account()
    }

    /// Where the answer goes.
    pub fn replies(&self) -> &Arc<Replies> {
        &self.replies
    }

    /// Makes sure that no answer comes any more; false if there was one already.
    pub fn give_up(&self) -> bool {
        !self.answered.swap(true, Ordering::AcqRel)
    }

    /// Whether nobody waits any more.
    pub fn is_over(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.replies.paid();
    }
}
