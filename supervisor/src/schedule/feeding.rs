//! Workers with free lanes are given calls that wait, and domains without workers are given workers.

use super::calls::Entry;
use super::scheduler::Scheduler;
use super::types::{Action, Call, CallId, Compartment};
use super::view::View;
use super::workers::State;
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// Gives a worker with free lanes what it should do next.
    pub(super) fn feed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if self.workers[worker].state == State::Free {
            let view = View::new(&self.workers, &self.exclusive);
            let Some(domain) = self.slots.next_for_free(view) else { return };
            self.bind(now_ns, worker, domain, actions);
        } else if self.slots.may_go(now_ns, &self.workers[worker], &self.residency) {
            let slot = &self.workers[worker];
            let waits = slot.served().is_some_and(|domain| self.slots.waits_for_memory(domain));
            match !waits && self.slots.overstays(slot, self.view(), &self.residency) {
                true => {
                    let caller = self.hand_on(now_ns, worker, actions);
                    self.feed_callers(now_ns, caller, actions);
                }
                false => self.make_room(now_ns, actions),
            }
        }
        let domain = match self.workers[worker].compartment() {
            Some(Compartment::Of(domain)) => domain,
            Some(Compartment::Shared) => return self.feed_shared(now_ns, worker, actions),
            None => return,
        };
        while let Some(id) = self.next_of(now_ns, worker)
            && self.start_waiting(now_ns, worker, id, actions)
        {}
        self.look_ahead(worker, domain, actions);
        // What is left may go to another worker that comes.
        self.slots.join_line(domain);
        let has_slots = self.workers.first_empty().is_some();
        if has_slots && self.slots.has_waiting() {
            self.make_room(now_ns, actions);
        } else if self.workers[worker].is_idle() && self.slots.has_unplaced() {
            let slot = &self.workers[worker];
            if has_slots || !self.slots.is_searched_but_for(now_ns, slot, &self.residency) {
                self.make_room(now_ns, actions);
            }
        }
    }

    /// Gives a shared worker with free lanes what it should do next. Where a payer's call lacks memory, other payers' calls go
    /// before that call, if they need none.
    fn feed_shared(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        while let Some(id) = self.next_of(now_ns, worker) {
            if !self.start_waiting(now_ns, worker, id, actions) {
                let payers: Vec<TenantId> = self.slots.next_for_lanes().collect();
                for payer in payers {
                    while let Some(id) = self.slots.next_shared_of(payer, &self.workers[worker], self.view())
                        && self.start_waiting(now_ns, worker, id, actions)
                    {}
                }
                return;
            }
        }
    }

    /// Starts a call that waits, if there is memory for it. False if the call waits for some now: true where it was refused, since the
    /// next one may have what it needs.
    fn start_waiting(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let Some(queue) = self.calls.get(id).map(|entry| entry.queue) else { return false };
        match self.fit_group(now_ns, worker, queue, id, actions) {
            Ok((fit, group)) => {
                if queue.compartment() == Compartment::Shared {
                    self.slots.serve(queue.payer());
                }
                self.take_from_queue(&group);
                self.start(now_ns, worker, fit, &group, actions);
                true
            }
            Err(short) => {
                self.wait_for_memory(now_ns, worker, id, short, actions);
                self.calls.get(id).is_none()
            }
        }
    }

    /// The next call of a worker's domain, if the worker has room for it.
    pub(super) fn next_of(&self, now_ns: u64, worker: WorkerId) -> Option<CallId> {
        let wants_all = |id| self.calls.get(id).is_some_and(Entry::wants_all_lanes);
        self.slots.next_of(now_ns, &self.workers[worker], wants_all, self.view(), &self.residency)
    }

    /// Brings workers for domains that wait, into slots that are empty, few at the same time; then takes idle ones from
    /// other domains, for those for which none comes soon.
    pub(super) fn make_room(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let mut search = self.slots.search();
        while self.residency.may_start(self.workers.coming())
            && let Some(worker) = self.workers.first_empty()
        {
            let view = View::new(&self.workers, &self.exclusive);
            if !self.slots.next_to_bring(&mut search, view) {
                break;
            }
            self.bring(worker, actions);
        }
        // Their calls may look for workers, too: not before the search is over.
        let mut callers = Vec::new();
        while let view = View::new(&self.workers, &self.exclusive)
            && let Some(worker) = self.slots.next_to_go(now_ns, &mut search, view, &self.residency)
        {
            callers.extend(self.hand_on(now_ns, worker, actions));
        }
        self.feed_callers(now_ns, callers, actions);
    }

    /// Callers have less of the device's memory: what those with a limit may start now, starts.
    pub(super) fn feed_callers(
        &mut self,
        now_ns: u64,
        callers: impl IntoIterator<Item = TenantId>,
        actions: &mut Vec<Action<C>>,
    ) {
        callers.into_iter().for_each(|caller| self.feed_limited(now_ns, caller, actions));
    }

    /// Another process may start, or be taken from a domain, since one is there.
    pub(super) fn bring_next(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        if self.workers.first_empty().is_some() && self.slots.has_unplaced() {
            self.make_room(now_ns, actions);
        }
    }
}
