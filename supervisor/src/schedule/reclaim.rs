//! What follows where calls need memory that is not free: it is gathered, and who waits for it is served in turn.

use super::book::Short;
use super::jobs::Group;
use super::residency::is_worth_less;
use super::scheduler::Scheduler;
use super::types::{Action, Call, CallId, Command, QueueKey, WhyGone};
use super::workers::{State, Worker};
use crate::ids::{TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// A call that does not wait yet starts in a worker that has room for it, or waits for memory.
    pub(super) fn start_or_wait(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        id: CallId,
        actions: &mut Vec<Action<C>>,
    ) {
        let Some(queue) = self.calls.get(id).map(|entry| entry.queue) else { return };
        if let QueueKey::Of(domain) = queue {
            self.bind(now_ns, worker, domain, actions);
        }
        match self.fit(now_ns, worker, queue, &Group::of(id), actions) {
            Ok(fit) => self.start(now_ns, worker, fit, &Group::of(id), actions),
            Err(short) => {
                self.enqueue(now_ns, id);
                self.wait_for_memory(now_ns, worker, id, short, actions);
            }
        }
    }

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
                self.slots.ask_for_memory(queue);
                if self.slots.next_for_memory() == Some(queue) && !self.exclusive.is_closed() {
                    if short == Short::Crowded {
                        self.book.crowded(now_ns);
                    }
                    self.gather(now_ns, worker, id, actions);
                }
            }
            Short::OwnLimit => {
                let Some(need) = self.need_of(worker, id) else { return };
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
    fn gather(&mut self, now_ns: u64, worker: WorkerId, id: CallId, actions: &mut Vec<Action<C>>) {
        let Some(need) = self.need_of(worker, id) else { return };
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

    /// Of the workers without processes on their way that may go, the one that is worth least.
    pub(super) fn worth_least(
        &self,
        now_ns: u64,
        may_go: impl Fn(WorkerId, &Worker) -> bool,
    ) -> Option<WorkerId> {
        let all = self.workers.iter().filter(|(id, worker)| may_go(*id, worker));
        let least = all.reduce(|best, one| if is_worth_less(now_ns, one.1, best.1) { one } else { best });
        least.map(|(worker, _)| worker)
    }

    /// The resident that is worth least leaves, which frees the memory of its process.
    pub(super) fn dismiss_one(&mut self, now_ns: u64, but: Option<WorkerId>, actions: &mut Vec<Action<C>>) {
        if self.workers.iter().any(|(_, worker)| worker.dismissed) {
            return;
        }
        let may_go = |id, worker: &Worker| Some(id) != but && worker.is_idle() && self.may_leave(id);
        if let Some(worker) = self.worth_least(now_ns, may_go) {
            self.unbind(worker, WhyGone::MemoryWanted);
            self.workers[worker].dismissed = true;
            self.tell(worker, Command::Leave, actions);
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

    /// A call of a caller ended: its lane's memory may be what others wait for.
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
        while let Some(queue) = self.slots.next_for_memory().filter(|_| !self.exclusive.is_closed()) {
            let serves = State::Bound(queue.compartment());
            let serves = |worker: &WorkerId| self.workers[*worker].state == serves;
            let mut workers = WorkerId::first(self.workers.len()).filter(serves);
            let next = |worker| match queue {
                QueueKey::Of(_) => self.next_of(now_ns, worker),
                QueueKey::Shared(payer) => {
                    self.slots.next_shared_of(payer, &self.workers[worker], self.view())
                }
            };
            let found = workers.find_map(|worker| Some((worker, next(worker)?)));
            let Some((worker, id)) = found else {
                self.memory_served(queue);
                continue;
            };
            match self.fit_group(now_ns, worker, queue, id, actions) {
                Ok((fit, group)) => {
                    self.slots.serve(queue.payer());
                    self.memory_served(queue);
                    self.take_from_queue(&group);
                    self.start(now_ns, worker, fit, &group, actions);
                    // Its next call asks again, if it needs more.
                    self.feed(now_ns, worker, actions);
                }
                Err(short @ (Short::OwnLimit | Short::OwnerLimit(_))) => {
                    self.memory_served(queue);
                    self.wait_for_memory(now_ns, worker, id, short, actions);
                    if self.calls.get(id).is_none() {
                        // It was refused: the next one of its domain may have what it needs.
                        self.feed(now_ns, worker, actions);
                    }
                }
                Err(short @ (Short::Line | Short::Crowded)) => {
                    return self.wait_for_memory(now_ns, worker, id, short, actions);
                }
            }
        }
    }

    /// A queue's first call does not wait for memory any more.
    fn memory_served(&mut self, queue: QueueKey) {
        self.slots.withdraw_memory_ask(queue);
        self.book.reopen();
    }

    /// Goes on with the call that the device is prepared for, if the memory that it waited for is there.
    pub(super) fn advance(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let Some((id, worker)) = self.exclusive.prepared() else { return };
        let Some(domain) = self.workers[worker].served() else {
            // It is killed, and its end is the end of this.
            return;
        };
        let Some(need) = self.need_of(worker, id) else { return };
        if self.holds(now_ns, domain.caller) {
            // Its caller spent the budget meanwhile, elsewhere.
            self.slots.withdraw_device_ask(domain.caller);
            return self.reopen_to_all(now_ns, actions);
        }
        if self.book.excess_bytes(&self.workers, worker, need) > 0 {
            return self.wait_for_memory(now_ns, worker, id, Short::OwnLimit, actions);
        }
        match self.fit_whole(worker, id, actions) {
            Ok(fit) => {
                self.book.reopen();
                self.exclusive.run();
                self.list_whole(now_ns, domain.caller);
                self.start(now_ns, worker, fit, &Group::of(id), actions);
            }
            Err(short @ Short::OwnerLimit(_)) => self.wait_for_memory(now_ns, worker, id, short, actions),
            Err(_) => self.gather(now_ns, worker, id, actions),
        }
    }
}
