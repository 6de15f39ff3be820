//! Calls for the whole device get it: a worker and memory are prepared for the next one, and the device is everybody's again.

use super::asks::{Ask, QueueKey};
use super::book::Short;
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Call, Compartment, Domain};
use super::workers::State;
use crate::defences::Defence;
use crate::ids::WorkerId;

impl<C: Call> Scheduler<C> {
    /// Begins with the next call for the whole device, once all lanes are empty; with another one, where that call is refused. Follows
    /// each event.
    pub(super) fn try_exclusive(&mut self) {
        while self.queues.asks.has_device()
            && !self.queues.exclusive.is_closed()
            && self.calls.in_processes() == 0
            && !self.queues.memory_goes_first()
            && let Some((domain, _)) = self.queues.asks.device()
        {
            if !self.begin(domain) {
                break;
            }
        }
    }

    /// Begins with the first call of a domain for the whole device. True if another one may be next.
    fn begin(&mut self, domain: Domain) -> bool {
        let Some(id) = self.queues.first_of(QueueKey::Whole(domain)) else { return false };
        let has = |state| self.workers.iter().find(|(_, w)| w.state == state).map(|(worker, _)| worker);
        if let Some(worker) = has(State::Bound(Compartment::Of(domain))).or_else(|| has(State::Free)) {
            if self.workers[worker].state == State::Free {
                self.bind(worker, domain);
            }
            self.book.reopen();
            self.queues.asks.serve(domain.caller);
            self.queues.exclusive.begin(self.now_ns, domain, id, worker);
            self.advance();
            return true;
        }
        if self.workers.coming() == 0 {
            // Where all belong to others, the fresh process in the slot of one of them is for this call.
            match self.workers.first_empty() {
                Some(empty) => self.bring(empty),
                None => {
                    let worker = self.worth_least(|id, _| self.may_leave(id));
                    let caller = worker.and_then(|worker| self.hand_on(worker));
                    self.feed_callers(caller);
                }
            }
        }
        false
    }

    /// A worker has no call for the whole device any more, if it had one.
    pub(super) fn leave_device(&mut self, worker: WorkerId) {
        if !self.queues.exclusive.is_for(worker) {
            return;
        }
        // Its domain had everything: a domain that waits for a worker need not wait for its residency.
        self.workers[worker].bound_ns = 0;
        self.reopen_to_all();
    }

    /// The device is no one call's any more: its caller is charged, and whose turn it is starts.
    pub(super) fn reopen_to_all(&mut self) {
        if let Some((caller, since_ns)) = self.queues.exclusive.end() {
            // Where there are no turns, callers are charged for each of their lanes.
            let lanes = if self.turns.is_some() { 1 } else { u64::from(self.shape.lanes) };
            let had_ns = self.now_ns.saturating_sub(since_ns).saturating_mul(lanes);
            // Without charges it is the same caller's again.
            if !Defence::WholeDevice.is_off() {
                self.queues.asks.charge_device(caller, had_ns);
            }
        }
        self.serve_line();
        self.resume();
    }

    /// A call does not wait any more. One for the whole device `held_up` others, which may start.
    pub(super) fn waits_no_more(&mut self, held_up: bool) {
        let is_over = |(id, _)| self.calls.get(id).is_none();
        match held_up {
            // It was prepared for a call that does not wait any more.
            true if self.queues.exclusive.prepared().is_some_and(is_over) => self.reopen_to_all(),
            true => self.resume(),
            false => {}
        }
    }

    /// Goes on with the call that the device is prepared for, if the memory that it waited for is there.
    pub(super) fn advance(&mut self) {
        let Some((id, worker)) = self.queues.exclusive.prepared() else { return };
        let Some(domain) = self.workers[worker].served() else {
            // The worker is killed, and with its end this ends.
            return;
        };
        let group = Group::of(id);
        let Some(need) = self.need_of(worker, &group) else { return };
        if self.holds(domain.caller) {
            // Its caller spent the budget meanwhile, elsewhere.
            return self.reopen_to_all();
        }
        if self.book.excess_bytes(&self.workers, worker, need) > 0 {
            return self.wait_for_memory(worker, id, Short::OwnLimit);
        }
        match self.fit(worker, &group) {
            Ok(fit) => {
                self.book.reopen();
                self.queues.exclusive.run();
                let queue = QueueKey::Whole(domain);
                self.queues.started(queue, id, 0);
                // The caller's other domains are next.
                self.queues.asks.remove(Ask::Worker(queue));
                self.queues.join_line(queue);
                self.start(worker, fit, &group);
            }
            Err(short @ Short::OwnerLimit(_)) => self.wait_for_memory(worker, id, short),
            Err(_) => self.gather(worker, id),
        }
    }
}
