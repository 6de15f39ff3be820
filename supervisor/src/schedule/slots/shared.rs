//! Calls that wait for a shared worker: each payer has a queue of its own, and asks for the next lane where all callers ask for
//! something (`asks`). So who had less of the device is next, whatever the others send.

use super::super::asks::Asks;
use super::super::domain_queue::DomainQueue;
use super::super::types::CallId;
use crate::ids::{IdMap, TenantId};

/// The queues of all payers that have calls waiting for a shared worker.
#[derive(Debug, Default)]
pub(super) struct SharedQueues {
    of: IdMap<TenantId, SharedQueue>,
}

#[derive(Debug)]
struct SharedQueue {
    calls: DomainQueue,
    /// True if its payer spent its budget: none of its calls start, and it asks for nothing.
    held: bool,
}

impl SharedQueues {
    /// True if a new call of a payer stands behind others, or its payer is `held`, which is asked for a payer without calls here.
    pub(super) fn is_blocked(&self, payer: TenantId, held: impl FnOnce() -> bool) -> bool {
        self.of.contains_key(&payer) || held()
    }

    /// The first call of a payer, if its calls may start.
    pub(super) fn first(&self, payer: TenantId) -> Option<CallId> {
        self.of.get(&payer).filter(|queue| !queue.held)?.calls.first()
    }

    /// The calls of a payer.
    pub(super) fn calls_of(&self, payer: TenantId) -> Option<&DomainQueue> {
        self.of.get(&payer).map(|queue| &queue.calls)
    }

    /// A call waits which is over at its deadline.
    pub(super) fn push(
        &mut self,
        payer: TenantId,
        id: CallId,
        deadline_ns: u64,
        held: impl FnOnce() -> bool,
        asks: &mut Asks,
    ) {
        let queue = self.of.entry(payer);
        let queue = queue.or_insert_with(|| SharedQueue { calls: DomainQueue::default(), held: held() });
        queue.calls.push(id, deadline_ns, 0);
        if !queue.held {
            asks.push_lane(payer);
        }
    }

    /// A call with this deadline waits no more.
    pub(super) fn remove(&mut self, payer: TenantId, id: CallId, deadline_ns: u64, asks: &mut Asks) {
        let Some(queue) = self.of.get_mut(&payer) else { return };
        queue.calls.remove(id, deadline_ns);
        self.drop_if_empty(payer, asks);
    }

    /// Takes the waiting calls of a payer of which this is true.
    pub(super) fn take(
        &mut self,
        payer: TenantId,
        is_one: impl Fn(CallId) -> bool,
        asks: &mut Asks,
    ) -> Vec<CallId> {
        let Some(queue) = self.of.get_mut(&payer) else { return Vec::new() };
        let taken = queue.calls.take(is_one);
        self.drop_if_empty(payer, asks);
        taken
    }

    fn drop_if_empty(&mut self, payer: TenantId, asks: &mut Asks) {
        if self.of.get(&payer).is_some_and(|queue| queue.calls.is_empty()) {
            self.of.remove(&payer);
            asks.remove_lane(payer);
        }
    }

    /// No call of a payer starts any more.
    pub(super) fn hold(&mut self, payer: TenantId, asks: &mut Asks) {
        if let Some(queue) = self.of.get_mut(&payer) {
            queue.held = true;
            asks.remove_lane(payer);
        }
    }

    /// Calls of a payer may start again. True if it was held.
    pub(super) fn release(&mut self, payer: TenantId, asks: &mut Asks) -> bool {
        let Some(queue) = self.of.get_mut(&payer).filter(|queue| queue.held) else { return false };
        queue.held = false;
        asks.push_lane(payer);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payers_ask_for_a_lane_as_long_as_their_calls_wait_and_may_start() {
        let (mut shared, mut asks) = (SharedQueues::default(), Asks::new(10));
        let [alice, bob] = [1, 2].map(TenantId::new);
        shared.push(alice, CallId(2), 20, || false, &mut asks);
        shared.push(alice, CallId(1), 10, || true, &mut asks);
        shared.push(bob, CallId(3), 30, || true, &mut asks);
        let lanes = |asks: &Asks| asks.lanes().collect::<Vec<_>>();
        assert_eq!(lanes(&asks), [alice], "a payer that is held asks for nothing");
        assert_eq!((shared.first(alice), shared.first(bob)), (Some(CallId(1)), None));
        assert!(shared.release(bob, &mut asks) && !shared.release(bob, &mut asks));
        assert_eq!((lanes(&asks), shared.first(bob)), (vec![alice, bob], Some(CallId(3))));
        shared.remove(alice, CallId(1), 10, &mut asks);
        assert_eq!(shared.take(alice, |id| id == CallId(2), &mut asks), [CallId(2)]);
        assert_eq!(lanes(&asks), [bob]);
        assert!(!shared.is_blocked(alice, || false) && shared.is_blocked(bob, || false));
        shared.hold(bob, &mut asks);
        assert!(lanes(&asks).is_empty() && shared.first(bob).is_none());
        shared.remove(bob, CallId(3), 30, &mut asks);
        assert!(!shared.is_blocked(bob, || false) && shared.is_blocked(bob, || true));
    }
}
