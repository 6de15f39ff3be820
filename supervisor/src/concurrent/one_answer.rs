//! One answer for each call: worker, deadline, cancellation and a leaving client may all want to give it, and the
//! first of them does.
//!
//! ```text
//! open ──claim: true──► claimed ──claim: false──► claimed
//! ```

use super::sync::{AtomicBool, Ordering};

/// The right to give the answer of one call.
#[derive(Debug)]
pub struct OneAnswer {
    claimed: AtomicBool,
}

impl OneAnswer {
    /// Not claimed yet.
    pub fn new() -> Self {
        Self { claimed: AtomicBool::new(false) }
    }

    /// Takes the right to answer; true if nobody took it before.
    pub fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// True if the right was taken.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }
}

impl Default for OneAnswer {
    fn default() -> Self {
        Self::new()
    }
}
