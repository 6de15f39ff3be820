//! Callers whose calls were there when the device failed, and that never showed whether they were why. Only where a fault
//! hits the calls of all workers: a call that is lost there runs again, alone, and then it is guilty or not. One whose
//! deadline passed, or that was cancelled, does not run again. If that were the end of it, a caller could make all processes of the device
//! end as often as it likes, with short deadlines.
//!
//! ```text
//! trusted ──a call was lost and is late or given up──► unproven: its calls run alone
//!    ▲                                                    │       │
//!    └── its functions that were open ended well, or ◄────┘       └── another one is lost like that:
//!        a minute passed                                              it draws on its budget
//! ```
//!
//! The first time costs nothing: others of the same moment were as late without any fault of theirs.

use std::collections::HashMap;

use super::limits::{MAX_OPEN, MINUTE_NS};
use super::quarantine::Use;
use crate::ids::{FunctionId, TenantId};

/// All callers that are unproven.
#[derive(Debug, Default)]
pub(super) struct MpsSuspicion {
    callers: HashMap<TenantId, Open>,
}

#[derive(Debug)]
struct Open {
    since_ns: u64,
    functions: Vec<FunctionId>,
}

impl Open {
    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.since_ns.saturating_add(MINUTE_NS)
    }
}

impl MpsSuspicion {
    /// True if nobody is, which is nearly always so.
    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// True if calls of a caller run alone.
    pub(super) fn includes(&self, now_ns: u64, caller: TenantId) -> bool {
        self.callers.get(&caller).is_some_and(|open| !open.is_over(now_ns))
    }

    /// A call was lost and does not run again. True if the call must have been the cause: it started alone, as an unproven caller's
    /// calls do, and the failure was in its process.
    pub(super) fn left_open(&mut self, now_ns: u64, used: Use, started_ns: u64, in_it: bool) -> bool {
        self.callers.retain(|_, open| !open.is_over(now_ns));
        let open = self.callers.entry(used.caller);
        let open = open.or_insert_with(|| Open { since_ns: now_ns, functions: Vec::new() });
        let was_it = in_it && started_ns > open.since_ns;
        if was_it {
            open.since_ns = now_ns;
        }
        if open.functions.len() <= MAX_OPEN && !open.functions.contains(&used.function) {
            open.functions.push(used.function);
        }
        was_it
    }

    /// A call ended well.
    pub(super) fn ended_well(&mut self, used: Use) {
        let Some(open) = self.callers.get_mut(&used.caller) else { return };
        if open.functions.len() <= MAX_OPEN {
            open.functions.retain(|function| *function != used.function);
        }
        if open.functions.is_empty() {
            self.callers.remove(&used.caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: TenantId = TenantId::new(1);

    fn used(function: u64) -> Use {
        Use { function: FunctionId::new(function), caller: ALICE }
    }

    #[test]
    fn every_function_that_was_open_has_to_end_well() {
        let mut unproven = MpsSuspicion::default();
        assert!(!unproven.left_open(10, used(1), 5, true) && !unproven.left_open(10, used(2), 6, true));
        assert!(unproven.includes(10, ALICE) && !unproven.includes(10, TenantId::new(2)));
        unproven.ended_well(used(1));
        unproven.ended_well(used(3));
        assert!(unproven.includes(10, ALICE), "the other one may have been it");
        unproven.ended_well(used(2));
        assert!(unproven.is_empty());
    }

    #[test]
    fn it_is_over_after_a_minute_however_many_functions_are_open() {
        let mut unproven = MpsSuspicion::default();
        let most = MAX_OPEN as u64 + 5;
        (0..most).for_each(|function| assert!(!unproven.left_open(10, used(function), 5, true)));
        (0..most).for_each(|function| unproven.ended_well(used(function)));
        assert!(unproven.includes(9 + MINUTE_NS, ALICE) && !unproven.includes(10 + MINUTE_NS, ALICE));
        assert_eq!(unproven.callers[&ALICE].functions.len(), MAX_OPEN + 1);
    }

    #[test]
    fn a_call_that_ran_alone_since_and_failed_was_why() {
        let mut unproven = MpsSuspicion::default();
        assert!(!unproven.left_open(10, used(1), 5, true));
        assert!(!unproven.left_open(20, used(1), 15, false), "no kernel of it failed");
        assert!(unproven.left_open(20, used(2), 15, true));
        assert!(!unproven.left_open(30, used(2), 15, true), "of the same moment");
    }
}
