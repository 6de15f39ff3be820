//! What an operator sets for the scheduler: how failures are answered, and how much may wait.

/// How failures are answered; may change while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failures in a row after which a function is refused to its caller; 0: never.
    pub quarantine_after: u32,
    /// Worker processes that may end under one caller in a minute before its calls wait; 0: any number.
    pub fault_budget: u32,
    /// How long a call that was given up may run on.
    pub cancel_grace_ns: u64,
    /// How long a call may be in the way of others that wait for their turn; 0: for ever.
    pub overrun_ns: u64,
    /// True if workers and the supervisor's threads poll while they wait for each other.
    pub polls: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            quarantine_after: 3,
            fault_budget: 5,
            cancel_grace_ns: 1_000_000_000,
            overrun_ns: 2_000_000_000,
            polls: false,
        }
    }
}

/// Limits of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls.
    pub calls: u64,
    /// Inline bytes.
    pub bytes: u64,
    /// Of these, calls of one caller.
    pub own_calls: u64,
    /// Their inline bytes.
    pub own_bytes: u64,
}
