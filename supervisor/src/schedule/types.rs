//! What goes into the scheduler and what comes out.

use super::quarantine::Refusal;
use crate::limits::RESIDENCY_NS;

/// A call in the scheduler; never used twice, so that a late answer cannot hit another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A worker's place on the device; the process in it may be replaced.
pub type WorkerId = usize;

/// What may share a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Domain {
    /// Owner of the function (uid).
    pub owner: u32,
    /// Caller (uid).
    pub caller: u32,
}

/// How much of a device a call needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Size {
    /// Its share of a worker's lease: a lane.
    #[default]
    Lane,
    /// More of its worker's lease: no call beside it in that worker.
    Wide,
    /// More than a lease: the device for itself.
    Exclusive,
}

/// What a device offers.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Places for workers.
    pub workers: usize,
    /// Lanes of each, at most 64.
    pub lanes: u32,
    /// Workers that one domain may have.
    pub workers_per_domain: usize,
    /// Workers submit by turns.
    pub turns: bool,
    /// How long a domain keeps a worker that another one waits for.
    pub residency_ns: u64,
    /// A fault in one worker hits the calls of all.
    pub shared_faults: bool,
    /// An idle worker is scrubbed for another domain; without this, a fresh process takes its place.
    pub scrubs: bool,
}

impl Shape {
    /// So many workers of so many lanes, all for whoever comes.
    pub fn new(workers: usize, lanes: u32) -> Self {
        Self {
            workers,
            lanes,
            workers_per_domain: workers,
            turns: false,
            residency_ns: RESIDENCY_NS,
            scrubs: false,
            shared_faults: false,
        }
    }
}

/// What the scheduler needs to know of a call.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whose worker may run it.
    pub domain: Domain,
    /// The function's name towards workers.
    pub function: u64,
    /// Inline bytes it holds while it waits.
    pub bytes: u64,
    /// Absolute, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline_ns: u64,
    /// How much of the device it needs.
    pub size: Size,
}

/// What the outside must do now.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<C> {
    /// Send the call to the worker.
    Start {
        /// Where to.
        worker: WorkerId,
        /// Which process in that place.
        generation: u64,
        /// Which of its lanes.
        lane: u32,
        /// It is a suspect: no other call is in the worker, nor on the device where faults are shared, and its kernels run one by one.
        alone: bool,
        /// The call's name in the answer.
        id: CallId,
        /// The call.
        call: C,
    },
    /// Answer that the deadline passed while the call was waiting.
    Expired {
        /// The call.
        call: C,
        /// How long its caller's budget would have kept it waiting on, if that was it.
        budget_ns: Option<u64>,
    },
    /// Answer that the call's function is refused, since it failed meanwhile.
    Refused {
        /// The call.
        call: C,
        /// For how long.
        refusal: Refusal,
    },
    /// Kill the process: a call in it is overdue, or was given up and does not end, or it does not yield its
    /// turn or forget a domain.
    Kill {
        /// That call.
        call: Option<C>,
        /// Which place.
        worker: WorkerId,
        /// Which process in it.
        generation: u64,
    },
    /// End the idle process so that a fresh one can serve another domain.
    Replace {
        /// Which place.
        worker: WorkerId,
        /// Which process in it.
        generation: u64,
    },
    /// Make the idle process forget the domain that it served. [`Scheduler::scrubbed`] follows.
    ///
    /// [`Scheduler::scrubbed`]: super::Scheduler::scrubbed
    Scrub {
        /// Which place.
        worker: WorkerId,
        /// Which process in it.
        generation: u64,
    },
    /// Lanes are empty: give the worker the memory of all. [`Scheduler::whole_ready`] follows.
    ///
    /// [`Scheduler::whole_ready`]: super::Scheduler::whole_ready
    GiveAll {
        /// Which place.
        worker: WorkerId,
        /// Counts the moves of memory: one that comes late is over.
        nth: u64,
    },
    /// Give all workers their own memory again. [`Scheduler::whole_over`] follows.
    ///
    /// [`Scheduler::whole_over`]: super::Scheduler::whole_over
    GiveBack {
        /// As above.
        nth: u64,
    },
    /// Tell the worker something about its turn.
    Turn {
        /// Which process in its place.
        generation: u64,
        /// What and whom.
        order: Order,
    },
}

/// What a worker is told about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It has the device.
    Grant {
        /// Who.
        worker: WorkerId,
        /// Names the turn.
        turn: u64,
    },
    /// Others wait.
    Revoke {
        /// Who.
        worker: WorkerId,
        /// Names the turn.
        turn: u64,
    },
    /// It is next.
    Soon {
        /// Who.
        worker: WorkerId,
    },
}

impl Order {
    /// Whom it is for.
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Grant { worker, .. } | Self::Revoke { worker, .. } | Self::Soon { worker } => worker,
        }
    }
}

/// Why a call whose process is gone does not run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its deadline passed.
    Deadline,
    /// It ran alone when its process ended, or ran too often.
    Guilty,
    /// Nobody waits for it any more.
    Detached,
}

/// How a call ended that its worker answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Well.
    Well,
    /// A kernel of it did something illegal.
    Fault,
    /// Otherwise: nothing speaks against its function.
    Neither,
}

/// Why a call is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// Too many calls wait.
    #[error("as many invocations wait as may")]
    Calls(u64),
    /// Too many inline bytes wait.
    #[error("as many inline bytes wait as may")]
    Bytes(u64),
    /// Its function keeps failing.
    #[error("it failed {} times in a row", .0.failures)]
    Quarantined(Refusal),
}

/// How failures are answered; may change while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failures in a row after which a function is refused to its caller; 0: never.
    pub quarantine_after: u32,
    /// Worker processes that may end under one caller in a minute before its calls wait; 0: any number.
    pub fault_budget: u32,
    /// How long a call that was given up may run on.
    pub cancel_grace_ns: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { quarantine_after: 3, fault_budget: 5, cancel_grace_ns: 1_000_000_000 }
    }
}

/// Limits of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls.
    pub calls: u64,
    /// Inline bytes.
    pub bytes: u64,
}
