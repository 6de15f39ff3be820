//! What follows where calls need memory that is not free: it is gathered, and who waits for it is served in turn.

use super::asks::{Ask, QueueKey};
use super::book::{Need, Short};
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Action, Call, CallId, Command};
use super::workers::State;
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// The first call of a worker's domain has a lane there, and not the memory.
    pub(super) fn wait_for_memory(&mut self, worker: WorkerId, id: CallId, short: Short) {
        let Some((queue, domain)) = self.calls.get(id).map(|entry| (entry.queue, entry.domain)) else {
            return;
        };
        match short {
            Short::Line | Short::Crowded => {
                let first = self.queues.asks.memory();
                self.queues.asks.push(Ask::Memory(queue));
                if self.queues.asks.memory() == Some(queue) && !self.queues.exclusive.is_closed() {
                    if short == Short::Crowded {
                        self.book.crowded(self.now_ns);
                    }
                    self.gather(worker, id);
                    // Who comes to the front may find enough, and nothing follows that would say so.
                    if first.is_some_and(|first| first != queue) && !self.book.awaits() {
                        self.serve_line();
                    }
                }
            }
            Short::OwnLimit => {
                let Some(need) = self.need_of(worker, &Group::of(id)) else { return };
                let comes = self.take_back_own(domain.caller, Some((worker, need)));
                let is_whole = self.queues.exclusive.is_for(worker);
                match self.give_up_own_weights(worker, need) {
                    true if is_whole => self.advance(),
                    true => self.feed(worker),
                    // Nobody else runs, and nothing of its caller's will be free: the device stays closed no longer.
                    false
                        if is_whole
                            && !comes
                            && !self.runs(domain.caller)
                            && !self.book.weights.loads_for(domain.caller) =>
                    {
                        let has_bytes = self.book.tenant_bytes(domain.caller, &self.workers);
                        let left_bytes =
                            self.book.most_bytes(domain.caller).unwrap_or(u64::MAX).saturating_sub(has_bytes);
                        let excess_bytes = self.book.excess_bytes(&self.workers, worker, need);
                        self.refuse_memory(id, true, has_bytes, left_bytes.saturating_add(excess_bytes));
                    }
                    false => {}
                }
            }
            Short::OwnerLimit(weights_bytes) => {
                let may_wait = domain.owner == domain.caller
                    && (self.take_back_own(domain.caller, None) || self.runs(domain.caller));
                if !may_wait {
                    let has_bytes =
                        self.book.bytes_of(domain.owner, &self.workers).saturating_add(weights_bytes);
                    let needs_bytes = self.calls.get(id).map_or(0, |entry| entry.weight_bytes);
                    self.refuse_memory(id, false, has_bytes, needs_bytes);
                }
            }
        }
    }

    /// Takes memory back from a caller's own lanes without calls, so that its call, which `wants` some in a worker, fits into what the
    /// caller may have. True if something comes back.
    fn take_back_own(&mut self, caller: TenantId, wants: Option<(WorkerId, Need)>) -> bool {
        let comes = self.book.take_back_own(self.now_ns, &self.workers, caller, wants);
        self.tell_taken();
        comes
    }

    /// Takes memory back for a call in a worker: from lanes without calls, then of weights, at last from residents whose
    /// processes take it.
    pub(super) fn gather(&mut self, worker: WorkerId, id: CallId) {
        let Some(need) = self.need_of(worker, &Group::of(id)) else { return };
        let short = self.book.take_back_for(self.now_ns, &self.workers, worker, need);
        let free = self.book.free_bytes();
        let short = self.reclaim(short, Some(worker), self.calls.in_processes() == 0);
        self.book.close(short > 0);
        // Weights that no process has are gone at once: nothing follows that would say so.
        if self.book.free_bytes() > free {
            self.memory_came();
        }
    }

    /// Lanes without calls are told what they give back; what is `short` even then weights give back that no call uses, and where nothing
    /// is on its way then, a resident does, `but` for one, if it may. Returns the bytes that weights do not give back.
    pub(super) fn reclaim(&mut self, short: u64, but: Option<WorkerId>, may_dismiss: bool) -> u64 {
        self.tell_taken();
        let short = short.saturating_sub(self.give_up_weights(short));
        if short > 0 && may_dismiss && !self.book.awaits() {
            self.dismiss_one(but);
        }
        short
    }

    /// A process needs so much for itself. True if the process has it; else it asks again soon. What workers or registrations wait for is
    /// `urgent`: for its memory the queue asks that waits first for a worker, in line with calls. Others wait until nobody asks.
    pub(super) fn context_wanted(&mut self, bytes: u64, urgent: bool) -> bool {
        let waits = self.is_memory_awaited();
        if bytes <= self.book.free_bytes() && (urgent || !waits) {
            self.book.context_changed(0, bytes);
            if urgent {
                let asks = self.asks_for_context();
                self.queues.residency.set_short_of(None);
                asks.into_iter().for_each(|(_, queue)| self.context_served(queue));
            }
            return true;
        }
        if urgent {
            let waits_for_process = || {
                let domain = self.queues.asks.iter().next().map(QueueKey::Of);
                domain.or_else(|| self.queues.asks.lanes().next().map(QueueKey::Shared))
            };
            // What processes keep comes back at the pace of residents, and no call waits for that.
            let asks = waits_for_process().filter(|_| bytes <= self.book.movable_bytes());
            let asked = self.asks_for_context().filter(|(_, asked)| asks != Some(*asked));
            self.queues.residency.set_short_of(Some((bytes, asks)));
            asked.into_iter().for_each(|(_, queue)| self.context_served(queue));
            if let Some(queue) = asks {
                self.queues.asks.push(Ask::Memory(queue));
            }
            if asks.is_some() && asks == self.queues.asks.memory() || asks.is_none() && !waits {
                self.gather_for_process(bytes, asks.is_some());
            }
        }
        false
    }

    /// Takes memory back for a process. Where a queue `asks` for it, other calls wait until the lanes gave enough.
    fn gather_for_process(&mut self, bytes: u64, asks: bool) {
        if bytes == 0 || self.queues.exclusive.is_closed() {
            return;
        }
        let short = self.book.take_back(self.now_ns, &self.workers, bytes, None);
        let short = self.reclaim(short, None, !asks || self.calls.in_processes() == 0);
        if asks {
            self.book.close(short > 0);
        }
    }

    /// A queue does not ask for the memory of a process any more.
    fn context_served(&mut self, queue: QueueKey) {
        self.asks_no_more(queue);
        // A payer's call may wait for memory in a shared worker that is there, too.
        self.feed_where(|worker| matches!(queue, QueueKey::Shared(_)) && worker.is_shared());
        self.serve_line();
    }

    /// How much memory of a process a queue asks for that waits for a worker.
    fn asks_for_context(&self) -> Option<(u64, QueueKey)> {
        let asks = self.queues.residency.context_for();
        asks.filter(|(_, queue)| self.queues.asks.has(Ask::Worker(*queue)))
    }

    pub(super) fn context_changed(&mut self, before: u64, now: u64) {
        self.book.context_changed(before, now);
        if now < before {
            self.memory_came();
        }
    }

    /// Tells workers what they have to give back.
    pub(super) fn tell_taken(&mut self) {
        for (worker, lanes) in self.book.take_told() {
            let to = self.workers.address(worker);
            self.actions.push(Action::Tell { to, command: Command::GiveBack { lanes } });
        }
    }

    /// Memory may be free that calls wait for.
    pub(super) fn memory_came(&mut self) {
        self.advance();
        self.serve_line();
    }

    /// What a caller with a limit of memory may start now, starts.
    pub(super) fn feed_limited(&mut self, caller: TenantId) {
        if self.book.most_bytes(caller).is_none() {
            return;
        }
        for worker in WorkerId::first(self.workers.len()) {
            if self.workers[worker].serves(caller) || self.workers[worker].is_shared() {
                self.feed(worker);
            }
        }
    }

    /// Serves the line of those that wait for memory, as far as there is some.
    pub(super) fn serve_line(&mut self) {
        while let Some(queue) = self.queues.asks.memory().filter(|_| !self.queues.exclusive.is_closed()) {
            let serves = State::Bound(queue.compartment());
            let serves = |worker: &WorkerId| self.workers[*worker].state == serves;
            let mut workers = WorkerId::first(self.workers.len()).filter(serves);
            let next = |worker| match queue {
                QueueKey::Shared(payer) => self.queues.next_shared_of(payer, &self.workers[worker]),
                _ => self.next_of(worker),
            };
            let found = workers.find_map(|worker| Some((worker, next(worker)?)));
            let Some((worker, id)) = found else {
                if let Some((bytes, _)) = self.asks_for_context().filter(|(_, asks)| *asks == queue) {
                    return self.gather_for_process(bytes, true);
                }
                self.memory_served(queue);
                continue;
            };
            if self.start_waiting(worker, id) {
                self.feed(worker);
            } else if self.queues.asks.memory() == Some(queue) {
                return;
            }
        }
    }

    /// A queue asks for no memory any more, wherever it stands in line.
    pub(super) fn asks_no_more(&mut self, queue: QueueKey) {
        match self.queues.asks.memory() == Some(queue) {
            true => self.memory_served(queue),
            false => _ = self.queues.asks.remove(Ask::Memory(queue)),
        }
    }

    /// The first queue in line does not wait for memory any more.
    pub(super) fn memory_served(&mut self, queue: QueueKey) {
        self.queues.asks.remove(Ask::Memory(queue));
        self.book.reopen();
    }
}
