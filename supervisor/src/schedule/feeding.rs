//! Workers with free lanes are given calls that wait, and domains without workers are given workers.

use super::calls::Entry;
use super::queues::View;
use super::scheduler::Scheduler;
use super::types::{Call, CallId, Compartment};
use super::workers::{State, Worker};
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// Gives a worker with free lanes what it should do next.
    pub(super) fn feed(&mut self, worker: WorkerId) {
        if self.workers[worker].state == State::Free {
            let view = View { now_ns: self.now_ns, workers: &self.workers };
            let Some(domain) = self.queues.next_for_free(view) else { return };
            self.bind(worker, domain);
        } else if self.queues.may_go(&self.workers[worker], self.view()) {
            let slot = &self.workers[worker];
            let waits = slot.served().is_some_and(|domain| self.queues.waits_for_memory(domain));
            match !waits && self.queues.overstays(slot, self.view()) {
                true => {
                    let caller = self.hand_on(worker);
                    self.feed_callers(caller);
                }
                false => self.make_room(),
            }
        }
        let domain = match self.workers[worker].compartment() {
            Some(Compartment::Of(domain)) => domain,
            Some(Compartment::Shared) => return self.feed_shared(worker),
            None => return,
        };
        while let Some(id) = self.next_of(worker)
            && self.start_waiting(worker, id)
        {}
        self.look_ahead(worker, domain);
        let has_slots = self.workers.first_empty().is_some();
        let view = View { now_ns: self.now_ns, workers: &self.workers };
        let is_waited_for = has_slots && self.queues.wants_more(domain)
            || self.workers[worker].is_idle()
                && self.queues.has_unplaced()
                && (has_slots || !self.queues.is_searched_with(&self.workers[worker], view));
        if is_waited_for {
            self.make_room();
        }
    }

    /// Starts calls that may start in some of the workers.
    pub(super) fn feed_where(&mut self, is_one: impl Fn(&Worker) -> bool) {
        for worker in WorkerId::first(self.workers.len()) {
            if is_one(&self.workers[worker]) {
                self.feed(worker);
            }
        }
    }

    /// Gives a shared worker with free lanes what it should do next. Where a payer's call lacks memory, other payers' calls go
    /// before that call, if they need none.
    fn feed_shared(&mut self, worker: WorkerId) {
        while let Some(id) = self.next_shared(worker) {
            if !self.start_waiting(worker, id) {
                let payers: Vec<TenantId> = self.queues.asks.lanes().collect();
                for payer in payers {
                    while let Some(id) = self.queues.next_shared_of(payer, &self.workers[worker])
                        && self.start_waiting(worker, id)
                    {}
                }
                return;
            }
        }
    }

    /// The next call for a shared worker with room: the first in line, or one close behind it whose lane is empty, while the first one's
    /// has a call. To make a graph in another lane keeps the worker from all others for about as long as a call of as many kernels
    /// takes.
    fn next_shared(&self, worker: WorkerId) -> Option<CallId> {
        let first = self.next_of(worker)?;
        let finds = |id: &CallId| {
            let function = self.calls.get(*id).map(|entry| entry.function);
            function.is_none_or(|id| self.workers[worker].finds_its_lane(id))
        };
        if finds(&first) {
            return Some(first);
        }
        // Of twice as many callers as there are lanes, most lanes find one. Nobody is kept waiting for more than a call may have.
        let (most, more_ns) = (2 * self.shape.lanes as usize, self.shape.shared_limit_ns);
        self.queues.close_behind(most, more_ns).find(finds).or(Some(first))
    }

    /// The next call of a worker's domain, if the worker has room for it.
    pub(super) fn next_of(&self, worker: WorkerId) -> Option<CallId> {
        let next = self.queues.next_of(&self.workers[worker], self.view())?;
        let wants_all = self.calls.get(next).is_some_and(Entry::wants_all_lanes);
        (!wants_all || self.workers[worker].has_room(true)).then_some(next)
    }

    /// Brings workers for domains that wait, into slots that are empty, few at the same time; then takes idle workers from other
    /// domains, where too few come soon.
    pub(super) fn make_room(&mut self) {
        if self.workers.first_empty().is_some() {
            let (unplaced, others) = self.queues.missing(self.view(), self.workers.coming());
            for _ in 0..unplaced + others {
                let may_start = self.queues.residency.may_start(self.workers.coming());
                let Some(worker) = self.workers.first_empty().filter(|_| may_start) else { break };
                self.bring(worker);
            }
        }
        // At the pace of residents.
        let come_soon = self.queues.residency.come_soon(&self.workers);
        let (unplaced, others) = self.queues.missing(self.view(), come_soon);
        let may_go = match unplaced + others {
            0 => Ok(0),
            missing => self.queues.residency.may_go(self.now_ns, come_soon, missing),
        };
        let (most, mut again_ns) = may_go.map_or_else(|at_ns| (0, at_ns), |most| (most, None));
        // Their calls may look for workers, too: not before the search is over.
        let mut callers = Vec::new();
        for nth in 0..most {
            match self.queues.one_to_go(nth < unplaced, self.view()) {
                Ok(worker) => callers.extend(self.hand_on(worker)),
                Err(at_ns) => {
                    again_ns = at_ns;
                    break;
                }
            }
        }
        self.queues.searched(again_ns);
        self.feed_callers(callers);
    }

    /// Callers have less of the device's memory: what those with a limit may start now, starts.
    pub(super) fn feed_callers(&mut self, callers: impl IntoIterator<Item = TenantId>) {
        callers.into_iter().for_each(|caller| self.feed_limited(caller));
    }
}
