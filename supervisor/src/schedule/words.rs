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

/// What the scheduler needs to know of a call.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whose worker may run it.
    pub domain: Domain,
    /// Inline bytes it holds while it waits.
    pub bytes: u64,
    /// Absolute, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline_ns: u64,
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
        /// The call's name in the answer.
        id: CallId,
        /// The call.
        call: C,
    },
    /// Answer that the deadline passed while the call was waiting.
    Expired(C),
    /// Kill the process: a call in it is overdue.
    Kill {
        /// The call.
        call: C,
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
