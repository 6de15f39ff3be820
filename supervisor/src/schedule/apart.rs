//! Uses of functions that run apart: for a while where their calls failed together, for good where a call took a process from all.

use super::quarantine::Use;
use crate::ids::{FunctionId, IdMap};

/// How long calls of a function by one caller run apart once some of them failed together: what fails is tried twice.
const APART_NS: u64 = 10_000_000_000;
/// More uses of functions are not kept apart at a time.
const MOST_APART: usize = 1024;

/// Uses of functions, and until when they run apart.
#[derive(Debug, Default)]
pub(super) struct Apart(IdMap<Use, u64>);

impl Apart {
    /// True if calls of this use run apart.
    pub(super) fn holds(&self, now_ns: u64, used: Use) -> bool {
        !self.0.is_empty() && self.0.get(&used).is_some_and(|until_ns| *until_ns > now_ns)
    }

    /// Calls of this use failed together.
    pub(super) fn add(&mut self, now_ns: u64, used: Use) {
        self.until(now_ns, used, now_ns.saturating_add(APART_NS));
    }

    /// Calls of this use run apart for as long as there is the function.
    pub(super) fn add_for_good(&mut self, now_ns: u64, used: Use) {
        self.until(now_ns, used, u64::MAX);
    }

    fn until(&mut self, now_ns: u64, used: Use, until_ns: u64) {
        if self.0.len() >= MOST_APART {
            self.0.retain(|_, until_ns| *until_ns > now_ns);
        }
        if self.0.len() < MOST_APART {
            self.0.insert(used, until_ns);
        }
    }

    /// A function is gone for good.
    pub(super) fn forget(&mut self, function: FunctionId) {
        self.0.retain(|used, _| used.function != function);
    }
}
