//! Calls that wait: those of one queue, the earliest deadline first, and of equal ones the oldest call; and those that wait for company.

use std::collections::{BTreeMap, HashMap};

use super::limits::MAX_JOB_CALLS;
use super::quarantine::Use;
use super::types::{Batch, CallId};

/// Waiting calls, with how long each takes at least. What an operation costs grows with the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct DomainQueue {
    calls: BTreeMap<(u64, CallId), u64>,
    /// How long all of them take at least, one after the other.
    takes_ns: u64,
}

impl DomainQueue {
    /// True if no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The next call.
    pub(super) fn first(&self) -> Option<CallId> {
        self.calls.first_key_value().map(|((_, id), _)| *id)
    }

    /// The next ones, so many at most.
    pub(super) fn next_few(&self, most: usize) -> impl Iterator<Item = CallId> + Clone {
        self.calls.keys().take(most).map(|(_, id)| *id)
    }

    /// A call waits that takes so long at least, as far as that is known.
    pub(super) fn push(&mut self, id: CallId, deadline_ns: u64, takes_ns: u64) {
        let before_ns = self.calls.insert((deadline_ns, id), takes_ns).unwrap_or(0);
        self.takes_ns = self.takes_ns.saturating_sub(before_ns).saturating_add(takes_ns);
    }

    /// A call with this deadline waits no more, if it did.
    pub(super) fn remove(&mut self, id: CallId, deadline_ns: u64) {
        let takes_ns = self.calls.remove(&(deadline_ns, id)).unwrap_or(0);
        self.takes_ns = self.takes_ns.saturating_sub(takes_ns);
    }

    /// Takes the calls of which this is true.
    pub(super) fn take(&mut self, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let taken: Vec<_> = self.calls.keys().copied().filter(|(_, id)| is_one(*id)).collect();
        taken.iter().for_each(|(deadline_ns, id)| self.remove(*id, *deadline_ns));
        taken.into_iter().map(|(_, id)| id).collect()
    }

    /// How long all that would go before a call of that deadline take at least, one after the other; none if some of
    /// those that wait would not.
    pub(super) fn before_ns(&self, deadline_ns: u64) -> Option<u64> {
        let last = self.calls.last_key_value().is_none_or(|((last_ns, _), _)| *last_ns <= deadline_ns);
        last.then_some(self.takes_ns)
    }
}

/// Calls of one device that wait for company: of functions that say how long a call may wait for others that would join its job. They
/// stand in no queue meanwhile, and in theirs all at once when the first of them has waited so long, or a job has no room for more.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// By function and caller, each call with since when, and how many items it brings.
    calls: HashMap<Use, Vec<(CallId, u64, u64)>>,
    /// How long calls have waited, all together.
    pub(super) waited_ns: u64,
}

impl Company {
    /// One more waits. True if a job has no room for more.
    pub(super) fn join(&mut self, used: Use, id: CallId, batch: Batch, now_ns: u64) -> bool {
        let calls = self.calls.entry(used).or_default();
        calls.push((id, now_ns, batch.items));
        let items = calls.iter().fold(0u64, |sum, (_, _, items)| sum.saturating_add(*items));
        items >= batch.most || calls.len() >= MAX_JOB_CALLS
    }

    /// Those of a function that wait no more, of which this is true; in the order in which they came.
    pub(super) fn take(&mut self, used: Use, now_ns: u64, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let Some(calls) = self.calls.get_mut(&used) else { return Vec::new() };
        let taken: Vec<_> = calls.extract_if(.., |(id, ..)| is_one(*id)).collect();
        if calls.is_empty() {
            self.calls.remove(&used);
        }
        self.waited_ns += taken.iter().map(|(_, since_ns, _)| now_ns.saturating_sub(*since_ns)).sum::<u64>();
        taken.into_iter().map(|(id, ..)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(calls: &[(u64, u64)]) -> DomainQueue {
        let mut queue = DomainQueue::default();
        calls.iter().for_each(|(id, deadline_ns)| queue.push(CallId(*id), *deadline_ns, 10));
        queue
    }

    #[test]
    fn the_earliest_deadline_is_first_and_of_equal_ones_the_oldest() {
        let mut queue = queue(&[(1, 50), (2, 40), (4, 40), (3, 40)]);
        assert_eq!(queue.next_few(9).map(|id| id.0).collect::<Vec<_>>(), [2, 3, 4, 1]);
        for (id, deadline_ns) in [(2, 40), (3, 40), (4, 40), (1, 50)] {
            assert_eq!(queue.first(), Some(CallId(id)));
            queue.remove(CallId(id), deadline_ns);
        }
        assert!(queue.is_empty() && queue.takes_ns == 0);
    }

    #[test]
    fn what_goes_before_a_call_is_known_where_it_would_be_last() {
        let mut queue = queue(&[(1, 50), (2, 60)]);
        assert_eq!((queue.before_ns(59), queue.before_ns(60)), (None, Some(20)));
        assert_eq!(queue.take(|id| id == CallId(2)), [CallId(2)]);
        assert_eq!(queue.before_ns(59), Some(10));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_calls(steps in prop::collection::vec((0..9u64, 0..3u64, 0..50u64, any::<bool>()), 1..99)) {
            let mut queue = DomainQueue::default();
            for (id, deadline_ns, takes_ns, comes) in steps {
                match comes {
                    true => queue.push(CallId(id), deadline_ns, takes_ns),
                    false => queue.remove(CallId(id), deadline_ns),
                }
                prop_assert_eq!(queue.takes_ns, queue.calls.values().sum::<u64>());
            }
        }
    }
}
