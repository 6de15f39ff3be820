//! The waiting calls of one domain: the earliest deadline first, and of equal ones the oldest call.
//!
//! While calls for the whole device wait, only calls that came before them may start; then the oldest is first.

use std::collections::{BTreeMap, BTreeSet};

use super::types::CallId;

/// What a queue knows of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// When it must be over.
    pub(super) deadline_ns: u64,
    /// How long it takes at least, as far as that is known.
    pub(super) takes_ns: u64,
    /// From when on it would miss its deadline if its domain got its first worker then.
    pub(super) late_ns: u64,
}

/// Waiting calls. What an operation costs grows with the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct DomainQueue {
    calls: BTreeMap<CallId, Due>,
    by_deadline: BTreeSet<(u64, CallId)>,
    /// How long all of them take at least, one after the other.
    takes_ns: u64,
}

impl DomainQueue {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The call that came first.
    pub(super) fn oldest(&self) -> Option<CallId> {
        self.calls.first_key_value().map(|(id, _)| *id)
    }

    /// The next call; with a barrier, none that came later than it.
    pub(super) fn first(&self, barrier: Option<CallId>) -> Option<CallId> {
        match barrier {
            None => self.by_deadline.first().map(|(_, id)| *id),
            Some(barrier) => self.oldest().filter(|oldest| *oldest <= barrier),
        }
    }

    /// Whether the call with the latest deadline could meet it if the domain got its first worker now.
    pub(super) fn is_in_time(&self, now_ns: u64) -> bool {
        let last = self.by_deadline.last().and_then(|(_, id)| self.calls.get(id));
        last.is_some_and(|due| now_ns < due.late_ns)
    }

    /// The next ones, so many at most.
    pub(super) fn next_few(&self, most: usize) -> impl Iterator<Item = CallId> + Clone {
        self.by_deadline.iter().take(most).map(|(_, id)| *id)
    }

    /// A call waits.
    pub(super) fn push(&mut self, id: CallId, due: Due) {
        self.remove(id);
        self.calls.insert(id, due);
        self.by_deadline.insert((due.deadline_ns, id));
        self.takes_ns = self.takes_ns.saturating_add(due.takes_ns);
    }

    /// A call waits no more.
    pub(super) fn remove(&mut self, id: CallId) {
        if let Some(due) = self.calls.remove(&id) {
            self.by_deadline.remove(&(due.deadline_ns, id));
            self.takes_ns = self.takes_ns.saturating_sub(due.takes_ns);
        }
    }

    /// Takes the calls of which this is true, oldest first.
    pub(super) fn take(&mut self, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let taken: Vec<CallId> = self.calls.keys().copied().filter(|id| is_one(*id)).collect();
        taken.iter().for_each(|id| self.remove(*id));
        taken
    }

    /// How long all that would go before a call of that deadline take at least, one after the other; none if some of
    /// those that wait would not.
    pub(super) fn before_ns(&self, deadline_ns: u64) -> Option<u64> {
        let last = self.by_deadline.last().is_none_or(|(last_ns, _)| *last_ns <= deadline_ns);
        last.then_some(self.takes_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(calls: &[(u64, u64)]) -> DomainQueue {
        let mut queue = DomainQueue::default();
        for (id, deadline_ns) in calls {
            queue.push(CallId(*id), Due { deadline_ns: *deadline_ns, takes_ns: 10, late_ns: *deadline_ns });
        }
        queue
    }

    #[test]
    fn the_earliest_deadline_is_first_and_of_equal_ones_the_oldest() {
        let mut queue = queue(&[(1, 50), (2, 40), (4, 40), (3, 40)]);
        let mut order = Vec::new();
        while let Some(id) = queue.first(None) {
            queue.remove(id);
            order.push(id.0);
        }
        assert_eq!(order, [2, 3, 4, 1]);
        assert!(queue.is_empty() && queue.takes_ns == 0);
    }

    #[test]
    fn before_a_barrier_the_oldest_is_first() {
        let queue = queue(&[(3, 50), (2, 60), (9, 1)]);
        assert_eq!(queue.first(Some(CallId(5))), Some(CallId(2)));
        assert_eq!(queue.first(Some(CallId(1))), None);
        assert_eq!((queue.first(None), queue.oldest()), (Some(CallId(9)), Some(CallId(2))));
    }

    #[test]
    fn what_goes_before_a_call_is_known_where_it_would_be_last() {
        let mut queue = queue(&[(1, 50), (2, 60)]);
        assert_eq!((queue.before_ns(59), queue.before_ns(60)), (None, Some(20)));
        assert_eq!(queue.take(|id| id == CallId(2)), [CallId(2)]);
        assert_eq!(queue.before_ns(59), Some(10));
    }
}
