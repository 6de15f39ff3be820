//! What follows where calls need memory that is not free: it is gathered, and who waits for it is served in turn.

use super::asks::Ask;
use super::book::Short;
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Action, Call, CallId, Command, QueueKey};
use super::workers::State;
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// The first call of a worker's domain has a lane there, and not the memory.
    pub(super) fn wait_for_memory(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        short: Short,
        actions: &mut Vec<Action<C>>,
    ) {
        let Some((queue, domain)) = self.calls.get(id).map(|entry| (entry.queue, entry.domain)) else {
            return;
        };
        match short {
            Short::Line | Short::Crowded => {
                self.queues.asks.push(Ask::memory(queue));
                if self.queues.asks.memory() == Some(queue) && !self.exclusive.is_closed() {
                    if short == Short::Crowded {
                        self.book.crowded(now_ns);
                    }
                    self.gather(now_ns, worker, id, actions);
                }
            }
            Short::OwnLimit => {
                let Some(need) = self.need_of(worker, &Group::of(id)) else { return };
                let keep = self.book.lane_of(&self.workers, worker, need);
                self.take_back_own(now_ns, domain.caller, keep, actions);
                if self.give_up_own_weights(worker, need, actions) {
                    match self.exclusive.is_for(worker) {
                        true => self.advance(now_ns, actions),
                        false => self.feed(now_ns, worker, actions),
                    }
                }
            }
            Short::OwnerLimit(weights_bytes) => {
                let may_wait = domain.owner == domain.caller
                    && (self.take_back_own(now_ns, domain.caller, None, actions) || self.runs(domain.caller));
                if !may_wait {
                    self.refuse_weights(now_ns, id, weights_bytes, actions);
                }
            }
        }
    }

    /// Takes memory back from a caller's own lanes without calls but for one, so that its call fits into what it may have. True if
    /// something comes back.
    fn take_back_own(
        &mut self,
        now_ns: u64,
        caller: TenantId,
        keep: Option<(WorkerId, u32)>,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let comes = self.book.take_back_own(now_ns, &self.workers, caller, keep, &mut self.taken);
        self.tell_taken(actions);
        comes
    }

    /// Takes memory back for a call in a worker: from lanes without calls, then of weights, at last from residents whose
    /// processes take it.
    pub(super) fn gather(&mut self, now_ns: u64, worker: WorkerId, id: CallId, actions: &mut Vec<Action<C>>) {
        let Some(need) = self.need_of(worker, &Group::of(id)) else { return };
        let short = self.book.take_back_for(now_ns, &self.workers, worker, need, &mut self.taken);
        self.tell_taken(actions);
        let free = self.book.free_bytes();
        let short = short.saturating_sub(self.give_up_weights(short, actions));
        self.book.close(short > 0);
        if short > 0 && !self.book.awaits() && self.calls.in_processes() == 0 {
            self.dismiss_one(now_ns, Some(worker), actions);
        }
        // Weights that no process has are gone at once: nothing follows that would say so.
        if self.book.free_bytes() > free {
            self.memory_came(now_ns, actions);
        }
    }

    /// A process needs so much for itself. True if the process has it; else it asks again, when others gave some back. A worker's
    /// process is `urgent`; others wait until no call does.
    pub(super) fn context_wanted(
        &mut self,
        now_ns: u64,
        bytes: u64,
        urgent: bool,
        actions: &mut Vec<Action<C>>,
    ) -> bool {
        let waits = self.is_memory_awaited();
        if bytes <= self.book.free_bytes() && (urgent || !waits) {
            if urgent {
                self.residency.set_memory(true);
            }
            self.book.context_changed(0, bytes);
            return true;
        }
        if urgent {
            self.residency.set_memory(false);
        }
        if bytes > 0 && urgent && !waits {
            let short = self.book.take_back(now_ns, &self.workers, bytes, None, &mut self.taken);
            self.tell_taken(actions);
            let short = short.saturating_sub(self.give_up_weights(short, actions));
            if short > 0 && !self.book.awaits() {
                self.dismiss_one(now_ns, None, actions);
            }
        }
        false
    }

    pub(super) fn context_changed(
        &mut self,
        now_ns: u64,
        before: u64,
        now: u64,
        actions: &mut Vec<Action<C>>,
    ) {
        self.book.context_changed(before, now);
        if now < before {
            self.memory_came(now_ns, actions);
        }
    }

    /// Tells workers what they have to give back.
    pub(super) fn tell_taken(&mut self, actions: &mut Vec<Action<C>>) {
        for (worker, lanes) in self.taken.drain(..) {
            let to = self.workers.address(worker);
            actions.push(Action::Tell { to, command: Command::GiveBack { lanes } });
        }
    }

    /// Memory may be free that calls wait for.
    pub(super) fn memory_came(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        self.advance(now_ns, actions);
        self.serve_line(now_ns, actions);
    }

    /// A call of a caller ended: others may wait for the lane's memory.
    pub(super) fn serve_memory(&mut self, now_ns: u64, caller: TenantId, actions: &mut Vec<Action<C>>) {
        self.serve_line(now_ns, actions);
        self.feed_limited(now_ns, caller, actions);
    }

    /// What a caller with a limit of memory may start now, starts.
    pub(super) fn feed_limited(&mut self, now_ns: u64, caller: TenantId, actions: &mut Vec<Action<C>>) {
        if !self.book.is_limited(caller) {
            return;
        }
        for worker in WorkerId::first(self.workers.len()) {
            if self.workers[worker].serves(caller) || self.workers[worker].is_shared() {
                self.feed(now_ns, worker, actions);
            }
        }
    }

    /// Serves the line of those that wait for memory, as far as there is some.
    pub(super) fn serve_line(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        while let Some(queue) = self.queues.asks.memory().filter(|_| !self.exclusive.is_closed()) {
            let serves = State::Bound(queue.compartment());
            let serves = |worker: &WorkerId| self.workers[*worker].state == serves;
            let mut workers = WorkerId::first(self.workers.len()).filter(serves);
            let next = |worker| match queue {
                QueueKey::Of(_) => self.next_of(now_ns, worker),
                QueueKey::Shared(payer) => {
                    self.queues.next_shared_of(payer, &self.workers[worker], self.view())
                }
            };
            let found = workers.find_map(|worker| Some((worker, next(worker)?)));
            let Some((worker, id)) = found else {
                self.memory_served(queue);
                continue;
            };
            if self.start_waiting(now_ns, worker, id, actions) {
                self.feed(now_ns, worker, actions);
            } else if self.queues.asks.memory() == Some(queue) {
                return;
            }
        }
    }

    /// A queue's first call does not wait for memory any more.
    pub(super) fn memory_served(&mut self, queue: QueueKey) {
        self.queues.asks.remove(Ask::memory(queue));
        self.book.reopen();
    }
}
