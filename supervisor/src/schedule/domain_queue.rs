//! The waiting calls of one domain: the earliest deadline first, and of equal ones the oldest call.
//!
//! While calls for the whole device wait, only calls that came before them may start; then the oldest is first.
//!
//! Calls mostly come in the order of their ids, so they stand in a row by these; one that waits no more leaves a gap there, until it
//! is the first, or until there are more gaps than calls.

use std::collections::{BTreeSet, VecDeque};

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

/// So many gaps may there be besides one for each call.
const SPARE: usize = if cfg!(test) { 2 } else { 32 };

/// Waiting calls. What an operation costs grows with the logarithm of their number; but to put one back that came before others
/// costs as much as there are of these.
#[derive(Debug, Default)]
pub(super) struct DomainQueue {
    /// By their ids, the first one without a gap before it.
    calls: VecDeque<(CallId, Option<Due>)>,
    by_deadline: BTreeSet<(u64, CallId)>,
    /// How long all of them take at least, one after the other.
    takes_ns: u64,
}

impl DomainQueue {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.by_deadline.is_empty()
    }

    /// The call that came first.
    pub(super) fn oldest(&self) -> Option<CallId> {
        self.calls.front().map(|(id, _)| *id)
    }

    /// Where a call stands, or would stand.
    fn place(&self, id: CallId) -> Result<usize, usize> {
        match self.calls.back() {
            Some((last, _)) if *last < id => Err(self.calls.len()),
            _ => self.calls.binary_search_by_key(&id, |(id, _)| *id),
        }
    }

    /// What is known of a call that waits.
    fn due(&self, id: CallId) -> Option<Due> {
        self.calls[self.place(id).ok()?].1
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
        let last = self.by_deadline.last().and_then(|(_, id)| self.due(*id));
        last.is_some_and(|due| now_ns < due.late_ns)
    }

    /// The next ones, so many at most.
    pub(super) fn next_few(&self, most: usize) -> impl Iterator<Item = CallId> + Clone {
        self.by_deadline.iter().take(most).map(|(_, id)| *id)
    }

    /// A call waits.
    pub(super) fn push(&mut self, id: CallId, due: Due) {
        self.remove(id);
        match self.place(id) {
            Ok(at) => self.calls[at].1 = Some(due),
            Err(at) => self.calls.insert(at, (id, Some(due))),
        }
        self.by_deadline.insert((due.deadline_ns, id));
        self.takes_ns = self.takes_ns.saturating_add(due.takes_ns);
    }

    /// A call waits no more.
    pub(super) fn remove(&mut self, id: CallId) {
        let Ok(at) = self.place(id) else { return };
        let Some(due) = self.calls[at].1.take() else { return };
        self.by_deadline.remove(&(due.deadline_ns, id));
        self.takes_ns = self.takes_ns.saturating_sub(due.takes_ns);
        while self.calls.front().is_some_and(|(_, due)| due.is_none()) {
            self.calls.pop_front();
        }
        let most = 2 * self.by_deadline.len() + SPARE;
        if self.calls.len() > most {
            self.calls.retain(|(_, due)| due.is_some());
        }
        if self.calls.capacity() > 4 * most {
            self.calls.shrink_to(most);
        }
    }

    /// Takes the calls of which this is true, oldest first.
    pub(super) fn take(&mut self, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let waiting = self.calls.iter().filter(|(_, due)| due.is_some());
        let taken: Vec<CallId> = waiting.map(|(id, _)| *id).filter(|id| is_one(*id)).collect();
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
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn calls_wait_as_in_a_map(steps in prop::collection::vec((0..40u64, prop::option::of(0..10u64)), 1..300)) {
            let (mut queue, mut map) = (DomainQueue::default(), BTreeMap::new());
            for (id, deadline_ns) in steps {
                let id = CallId(id);
                match deadline_ns {
                    Some(deadline_ns) => {
                        queue.push(id, Due { deadline_ns, takes_ns: 10, late_ns: deadline_ns });
                        map.insert(id, deadline_ns);
                    }
                    None => {
                        queue.remove(id);
                        map.remove(&id);
                    }
                }
                prop_assert_eq!(queue.oldest(), map.keys().next().copied());
                prop_assert_eq!(queue.is_empty(), map.is_empty());
                prop_assert_eq!(queue.takes_ns, 10 * map.len() as u64);
                let mut by_deadline: Vec<_> = map.iter().map(|(id, at_ns)| (*at_ns, *id)).collect();
                by_deadline.sort_unstable();
                let expected: Vec<_> = by_deadline.iter().map(|(_, id)| *id).collect();
                prop_assert_eq!(queue.next_few(usize::MAX).collect::<Vec<_>>(), expected);
                let latest_ns = by_deadline.last().map_or(0, |(at_ns, _)| *at_ns);
                prop_assert_eq!(queue.is_in_time(5), latest_ns > 5);
                prop_assert!(queue.calls.len() <= 2 * map.len() + SPARE);
                prop_assert!(queue.calls.capacity() <= 8 * map.len() + 4 * SPARE);
            }
            let all: Vec<CallId> = map.keys().copied().collect();
            prop_assert_eq!(queue.take(|_| true), all);
            prop_assert!(queue.is_empty() && queue.calls.is_empty());
        }
    }
}
