//! What goes into the scheduler and what comes out.

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
}

impl Shape {
    /// So many workers of so many lanes, all for whoever comes.
    pub fn new(workers: usize, lanes: u32) -> Self {
        Self { workers, lanes, workers_per_domain: workers, turns: false }
    }
}

/// What the scheduler needs to know of a call.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whose worker may run it.
    pub domain: Domain,
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
        /// It is a suspect: no other call is in the worker, and its kernels run one by one.
        alone: bool,
        /// The call's name in the answer.
        id: CallId,
        /// The call.
        call: C,
    },
    /// Answer that the deadline passed while the call was waiting.
    Expired(C),
    /// Kill the process: a call in it is overdue, or it does not yield its turn.
    Kill {
        /// The overdue call.
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
    /// Lanes are empty: give the worker the memory of all. [`Scheduler::whole_ready`] follows.
    ///
    /// [`Scheduler::whole_ready`]: super::Scheduler::whole_ready
    GiveAll {
        /// Which place.
        worker: WorkerId,
    },
    /// Give all workers their own memory again. [`Scheduler::whole_over`] follows.
    ///
    /// [`Scheduler::whole_over`]: super::Scheduler::whole_over
    GiveBack,
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

/// The queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Too many calls wait.
    #[error("{0} invocations wait already")]
    Calls(u64),
    /// Too many inline bytes wait.
    #[error("{0} inline bytes wait already")]
    Bytes(u64),
}

/// Limits of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls.
    pub calls: u64,
    /// Inline bytes.
    pub bytes: u64,
}
