//! How many answers a connection still owes, and waiting until there are none.

use super::sync::{AtomicUsize, Notify, Ordering};

/// The lowest bit: a task waits. The rest counts answers.
const WAITED_FOR: usize = 1;
/// One answer.
const ONE: usize = 2;

/// Answers that were promised and neither given nor given up.
#[derive(Debug)]
pub struct OwedAnswers {
    /// Count and waiting task in one word: who gives the last answer cannot miss that a task waits for it.
    state: AtomicUsize,
    changed: Notify,
}

impl OwedAnswers {
    /// None yet.
    pub fn new() -> Self {
        Self { state: AtomicUsize::new(0), changed: Notify::new() }
    }

    /// Promises one answer.
    pub fn owe(&self) {
        self.state.fetch_add(ONE, Ordering::Relaxed);
    }

    /// Keeps or breaks one promise: its answer was handed to the socket, or will never be given.
    pub fn settle(&self) {
        if self.state.fetch_sub(ONE, Ordering::AcqRel) == ONE | WAITED_FOR {
            self.changed.notify_one();
        }
    }

    /// The client has taken every byte that was kept for it.
    pub fn delivered(&self) {
        self.changed.notify_one();
    }

    /// Returns once no answer is owed and `is_delivered`, which is asked again after each [`Self::delivered`]. One
    /// task at a time.
    pub async fn all_settled(&self, is_delivered: impl Fn() -> bool) {
        while self.state.fetch_or(WAITED_FOR, Ordering::AcqRel) >= ONE || !is_delivered() {
            self.changed.notified().await;
        }
    }
}

impl Default for OwedAnswers {
    fn default() -> Self {
        Self::new()
    }
}
