//! Processes of workers: they come, serve a domain, are handed on to another one, and go.

use super::calls::CallState;
use super::limits::SETTLE_NS;
use super::residency;
use super::scheduler::Scheduler;
use super::types::{Action, Call, CallId, Command, Compartment, Domain, KillReason, WhyGone};
use super::workers::{State, Worker};
use crate::ids::{Generation, TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    pub(super) fn ready(&mut self, worker: WorkerId, generation: Generation) {
        self.workers.arrive(self.now_ns, worker, generation);
        self.book.arrived(worker, generation, self.shape.lanes);
        if self.workers.is_for_shared(worker) {
            self.workers.set_state(worker, State::Bound(Compartment::Shared));
            self.bring_shared();
        }
        self.tell(worker, Command::Configure);
        self.hand_out(worker);
    }

    /// A worker is nobody's: who needs one has it. Another process may start, or be taken from a domain, since this one is there.
    fn hand_out(&mut self, worker: WorkerId) {
        self.feed(worker);
        if self.workers.first_empty().is_some() && self.queues.wants_workers(self.view()) {
            self.make_room();
        }
    }

    pub(super) fn taint(&mut self, worker: WorkerId) {
        self.workers[worker].tainted = true;
    }

    pub(super) fn scrubbed(&mut self, worker: WorkerId) -> bool {
        let asked = matches!(self.workers[worker].state, State::Scrubbing { .. });
        if asked {
            self.workers.free(self.now_ns, worker);
            let generation = self.workers[worker].generation;
            self.book.weights.worker_gone(worker, generation);
            self.book.weights.reaped(worker, generation);
            self.memory_came();
            self.hand_out(worker);
        }
        asked
    }

    pub(super) fn gone(&mut self, worker: WorkerId) -> Vec<(CallId, C)> {
        let now_ns = self.now_ns;
        self.book.weights.worker_gone(worker, self.workers[worker].generation);
        let served = self.workers[worker].served();
        // Where faults hit the calls of all, nobody knows under whom it ended.
        self.book.gone(worker, served.filter(|_| !self.shape.shared_faults).map(|domain| domain.caller));
        self.unbind(worker, WhyGone::Ended);
        let emptied = self.refill(worker);
        let mut lost = Vec::new();
        let mut domains = Vec::new();
        let mut charged_lanes = 0u64;
        for id in self.workers.take_all(worker) {
            let Some(entry) = self.calls.get_mut(id) else { continue };
            if entry.weight_bytes > 0 {
                self.book.weights.end(entry.function);
            }
            let CallState::Running { lane, .. } = entry.state else { continue };
            entry.state = CallState::Lost;
            lost.push((id, entry.call.clone()));
            let (domain, started_ns) = (entry.domain, entry.started_ns);
            // The calls of a job had the time together.
            if charged_lanes >> lane & 1 == 0 {
                self.charge_job(worker, domain.caller, started_ns, false);
            }
            charged_lanes |= 1 << lane;
            domains.push(domain);
        }
        // Those whose calls were there pay for a shared worker's turn.
        self.turn(|turns| turns.gone(now_ns, worker));
        self.leave_device(worker);
        if served.is_some() {
            self.lanes_are_free();
        }
        // Calls elsewhere may have waited for what these had.
        domains.extend(served);
        domains.sort_unstable();
        domains.dedup();
        for domain in domains {
            self.review(domain.caller);
            self.feed_limited(domain.caller);
            // No call there uses weights any more, which may give way to calls of their owner.
            self.feed_limited(domain.owner);
        }
        if emptied {
            // Until now the slot counted as one that gets a process. The domain may go to a free worker instead.
            self.resume();
        }
        lost
    }

    pub(super) fn reaped(&mut self, worker: WorkerId, generation: Generation, from_outside: bool) {
        let ended_under = self.book.reaped(worker, generation);
        self.book.weights.reaped(worker, generation);
        if let Some(caller) = ended_under {
            match from_outside {
                false => self.draw(caller),
                true => self.review(caller),
            }
        }
        self.memory_came();
    }

    pub(super) fn epoch_ended(&mut self) {
        for worker in WorkerId::first(self.workers.len()) {
            if self.workers[worker].state != State::Empty {
                self.unbind(worker, WhyGone::Ended);
            }
        }
    }

    /// Gives a free worker to a domain.
    pub(super) fn bind(&mut self, worker: WorkerId, domain: Domain) {
        let now_ns = self.now_ns;
        let held = self.holds(domain.caller);
        self.queues.bound(worker, domain, held);
        self.workers.set_state(worker, State::Bound(Compartment::Of(domain)));
        self.workers[worker].bound_ns = now_ns;
        self.book.came_to(now_ns, &self.workers, worker, domain.caller);
        self.tell_taken();
    }

    /// Takes a worker from its domain; no process of the slot takes calls until one is ready again.
    pub(super) fn unbind(&mut self, worker: WorkerId, why: WhyGone) {
        self.workers[worker].retires = false;
        if self.workers[worker].state == State::Empty {
            return;
        }
        if let State::Bound(compartment) = self.workers.set_state(worker, State::Absent) {
            self.workers[worker].last_gone = Some(why);
            if let Compartment::Of(domain) = compartment {
                self.queues.unbound(worker, domain);
            }
        }
    }

    /// The process in a slot is gone. True if the slot stays empty; else another process is wanted there.
    pub(super) fn refill(&mut self, worker: WorkerId) -> bool {
        let slot = &mut self.workers[worker];
        if slot.state == State::Empty {
            return false;
        }
        let dismissed = std::mem::take(&mut slot.dismissed);
        let emptied = !self.workers.is_for_shared(worker) && (dismissed || self.workers.excess() > 0);
        match emptied {
            true => {
                self.workers.set_state(worker, State::Empty);
            }
            false => self.actions.push(Action::Bring { worker }),
        }
        emptied
    }

    /// True if a worker's process may leave for good: it is there, and no shared worker's.
    pub(super) fn may_leave(&self, worker: WorkerId) -> bool {
        let is_there = matches!(self.workers[worker].state, State::Free | State::Bound(_));
        is_there && !self.workers.is_for_shared(worker)
    }

    /// Processes are wanted in all slots of shared workers.
    pub(super) fn bring_shared(&mut self) {
        for worker in self.workers.shared() {
            if self.workers[worker].state == State::Empty {
                self.bring(worker);
            }
        }
    }

    /// A process is wanted in an empty slot.
    pub(super) fn bring(&mut self, worker: WorkerId) {
        self.workers.set_state(worker, State::Absent);
        self.actions.push(Action::Bring { worker });
    }

    /// An idle worker is made ready for another domain: it gives way to a fresh process, or is scrubbed. The returned caller has
    /// less memory then, and calls of it may start: [`Scheduler::feed_limited`] must follow.
    pub(super) fn hand_on(&mut self, worker: WorkerId) -> Option<TenantId> {
        let now_ns = self.now_ns;
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::SlotWanted);
        let scrubs = self.shape.scrubs && !self.workers[worker].tainted;
        if scrubs {
            let until_ns = now_ns.saturating_add(SETTLE_NS);
            self.workers.set_state(worker, State::Scrubbing { until_ns });
            self.queues.residency.scrubs(now_ns, &self.workers[worker]);
        } else {
            self.queues.residency.replaces(now_ns);
        }
        self.tell(worker, if scrubs { Command::Scrub } else { Command::Leave });
        served.map(|domain| domain.caller)
    }

    /// A worker takes no more calls until a fresh process is in its slot.
    pub(super) fn kill(&mut self, worker: WorkerId, why: KillReason<C>) {
        let served = self.workers[worker].served();
        self.unbind(worker, WhyGone::Killed);
        self.actions.push(Action::Kill { worker, generation: self.workers[worker].generation, why });
        if let Some(domain) = served {
            self.draw(domain.caller);
        }
    }

    /// Of the workers without processes on their way that may go, the one that is worth least.
    pub(super) fn worth_least(&self, may_go: impl Fn(WorkerId, &Worker) -> bool) -> Option<WorkerId> {
        let all = self.workers.iter().filter(|(id, worker)| may_go(*id, worker));
        residency::worth_least(self.now_ns, |_| 0, all).ok()
    }

    /// The resident that is worth least leaves, which frees the memory of its process.
    pub(super) fn dismiss_one(&mut self, but: Option<WorkerId>) {
        if self.workers.iter().any(|(_, worker)| worker.dismissed) {
            return;
        }
        let may_go = |id, worker: &Worker| Some(id) != but && worker.is_idle() && self.may_leave(id);
        if let Some(worker) = self.worth_least(may_go) {
            self.unbind(worker, WhyGone::MemoryWanted);
            self.workers[worker].dismissed = true;
            self.tell(worker, Command::Leave);
        }
    }
}
