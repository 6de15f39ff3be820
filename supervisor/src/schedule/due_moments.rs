//! Calls by the moment at which something must happen to them.
//!
//! Nearly every call is over long before its moment, and of two that come one after the other the later one mostly has the later
//! moment: a heap takes such a moment in at once, and a call that is over leaves it there until it comes to the top, or until there
//! are more of these than of others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::CallId;
use super::limits::SPARE_MOMENTS;

/// Moments in `CLOCK_MONOTONIC` nanoseconds, the earliest first. The owner says which moments still hold, after each change: see
/// [`DueMoments::tidy`].
#[derive(Debug, Default)]
pub(super) struct DueMoments(BinaryHeap<Reverse<(u64, CallId)>>);

impl DueMoments {
    /// Something must happen to a call then.
    pub(super) fn insert(&mut self, at_ns: u64, call: CallId) {
        self.0.push(Reverse((at_ns, call)));
    }

    /// The earliest moment.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes one call whose moment has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        let due = *self.0.peek().filter(|Reverse((at_ns, _))| *at_ns <= now_ns)?;
        // After a change to another moment and back, a call has the moment twice.
        while self.0.peek() == Some(&due) {
            self.0.pop();
        }
        Some(due.0.1)
    }

    /// Some moments may not hold any more, which is asked of them; there are so many calls. From now on the earliest one does.
    pub(super) fn tidy(&mut self, calls: usize, holds: impl Fn(u64, CallId) -> bool) {
        while let Some(Reverse((at_ns, call))) = self.0.peek()
            && !holds(*at_ns, *call)
        {
            self.0.pop();
        }
        if self.0.len() > 2 * calls + SPARE_MOMENTS {
            let mut all = std::mem::take(&mut self.0).into_vec();
            all.retain(|Reverse((at_ns, call))| holds(*at_ns, *call));
            all.sort_unstable();
            // A call may have the same moment several times.
            all.dedup();
            self.0 = all.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// A call has this moment, whether it had one or not.
        Set(u64, u64),
        Remove(u64),
        PopDue(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..20u64, 0..20u64).prop_map(|(call, at_ns)| Step::Set(call, at_ns)),
            2 => (0..20u64).prop_map(Step::Remove),
            1 => (0..20u64).prop_map(Step::PopDue),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn moments_are_those_of_a_set(steps in steps()) {
            let (mut moments, mut set, mut held) = (DueMoments::default(), BTreeSet::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(call, at_ns) => {
                        if let Some(before_ns) = held.insert(CallId(call), at_ns) {
                            set.remove(&(before_ns, CallId(call)));
                        }
                        set.insert((at_ns, CallId(call)));
                        moments.insert(at_ns, CallId(call));
                    }
                    Step::Remove(call) => {
                        if let Some(at_ns) = held.remove(&CallId(call)) {
                            set.remove(&(at_ns, CallId(call)));
                        }
                    }
                    Step::PopDue(now_ns) => {
                        let due = set.first().copied().filter(|(at_ns, _)| *at_ns <= now_ns);
                        prop_assert_eq!(moments.pop_due(now_ns), due.map(|(_, call)| call));
                        if let Some(due) = due {
                            set.remove(&due);
                            // What was taken holds no more, until the call has another.
                            held.remove(&due.1);
                        }
                    }
                }
                moments.tidy(held.len(), |at_ns, call| held.get(&call) == Some(&at_ns));
                prop_assert_eq!(moments.next_ns(), set.first().map(|(at_ns, _)| *at_ns));
                prop_assert!(moments.0.len() <= 2 * held.len() + SPARE_MOMENTS);
            }
        }
    }

    #[test]
    fn few_moments_are_kept_of_calls_that_are_over() {
        let (mut moments, first) = (DueMoments::default(), CallId(0));
        moments.insert(1, first);
        for call in 1..100_000 {
            moments.insert(2, CallId(call));
            moments.tidy(1, |_, call| call == first);
        }
        assert!(moments.0.len() <= SPARE_MOMENTS + 2, "{}", moments.0.len());
        assert_eq!(moments.next_ns(), Some(1));
    }
}
