//! What follows where a call leaves its lane: it ended, it took too long in a shared worker, or its process is gone.

use super::calls::CallState;
use super::limits::CLEAR_NS;
use super::scheduler::Scheduler;
use super::types::{Call, CallId, Domain, Ended, Loss, Sharing, Verdict};
use super::workers::State;
use crate::ids::WorkerId;

/// What becomes of a call that a worker ended because its time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlast {
    /// It had not been there for too long, or its deadline has passed: it fails.
    Fails,
    /// It begins again in a worker of its domain.
    BeginsAgain,
    /// It had its part of a worker that strangers share, and may be in no other.
    HadItsPart,
}

impl<C: Call> Scheduler<C> {
    pub(super) fn finished(&mut self, worker: WorkerId, id: CallId, verdict: Verdict) -> Option<C> {
        // Before anything else gets the device.
        let had_device = self.queues.exclusive.is_for(worker);
        self.leave_lane(worker, id, verdict == Verdict::Well)?;
        let entry = self.calls.remove(id)?;
        self.judge(&entry, verdict);
        if !self.budgets.is_empty() {
            self.review(entry.domain.caller);
        }
        self.fill_lane(worker, entry.domain, entry.weight_bytes > 0);
        if had_device {
            self.leave_device(worker);
        }
        Some(entry.call)
    }

    /// A call leaves its lane, and its payer is charged: the worker says how long a call was on the device that `ended_well`. None if the
    /// worker has no such call.
    fn leave_lane(&mut self, worker: WorkerId, id: CallId, ended_well: bool) -> Option<()> {
        let (_, lane) = self.running_call(worker, id)?;
        let entry = self.calls.get(id)?;
        let (payer, started_ns) = (entry.domain.caller, entry.started_ns);
        let (function, has_weights) = (entry.function, entry.weight_bytes > 0);
        self.workers.take(worker, id, lane, self.now_ns);
        if !self.workers[worker].has_call_in(lane) {
            // The calls of a job had the time together.
            self.book.ended(worker, lane);
            self.charge_job(worker, payer, started_ns, ended_well);
            if !ended_well {
                let now_ns = self.now_ns;
                self.turn(|turns| turns.failed(now_ns, worker, now_ns.saturating_sub(started_ns)));
            }
            if self.workers[worker].is_shared() {
                self.weigh_everybody();
            }
        }
        if has_weights {
            self.book.weights.end(function);
        }
        Some(())
    }

    /// What a call of a domain leaves behind in a worker is for those that wait: its lane, its memory, its weights.
    fn fill_lane(&mut self, worker: WorkerId, domain: Domain, had_weights: bool) {
        let now_ns = self.now_ns;
        self.serve_line();
        self.feed_limited(domain.caller);
        if had_weights && domain.owner != domain.caller {
            // Its weights may give way to calls of their owner.
            self.feed_limited(domain.owner);
        }
        self.feed(worker);
        if self.workers[worker].is_idle() {
            self.turn(|turns| turns.idle(now_ns, worker));
            self.lanes_are_free();
        }
    }

    /// A worker ended a call whose time was over. One of a shared worker, which has more time elsewhere, begins again in a worker of its
    /// domain.
    pub(super) fn outlasted(&mut self, worker: WorkerId, id: CallId) -> Outlast {
        let (now_ns, limit_ns) = (self.now_ns, self.shape.shared_limit_ns);
        let Some(entry) = self.calls.get(id) else { return Outlast::Fails };
        let was_long = now_ns.saturating_sub(entry.started_ns) >= limit_ns;
        if !self.workers[worker].is_shared() || !was_long || entry.is_late(now_ns) || entry.detached {
            return Outlast::Fails;
        }
        let (used, sharing) = (entry.used(), entry.sharing);
        if self.running_call(worker, id).is_none() {
            return Outlast::Fails;
        }
        self.unshared.add(now_ns, used);
        if sharing == Sharing::Only {
            return Outlast::HadItsPart;
        }
        if let Some(entry) = self.calls.get_mut(id) {
            entry.sharing = Sharing::Never;
        }
        match self.begin_again(worker, id) {
            true => Outlast::BeginsAgain,
            false => Outlast::Fails,
        }
    }

    /// A call that its worker did not end well waits again, without a stain. False if the worker has no such call.
    pub(super) fn begin_again(&mut self, worker: WorkerId, id: CallId) -> bool {
        let Some(entry) = self.calls.get(id) else { return false };
        let (domain, had_weights) = (entry.domain, entry.weight_bytes > 0);
        if self.leave_lane(worker, id, false).is_none() {
            return false;
        }
        if let Some(entry) = self.calls.get_mut(id) {
            entry.attempts.moved_out();
        }
        self.wait_again(id);
        self.review(domain.caller);
        self.fill_lane(worker, domain, had_weights);
        true
    }

    /// A call that was in a worker waits again. What had the device for itself has it again.
    fn wait_again(&mut self, id: CallId) {
        let Some(entry) = self.calls.get(id) else { return };
        let alone = entry.attempts.is_suspect();
        let queue = if entry.wants_device() { entry.queue } else { self.queue_of(entry, alone) };
        self.calls.waits_again(id, queue);
        self.enqueue(id);
        self.feed_where(|worker| {
            worker.state == State::Free || worker.state == State::Bound(queue.compartment())
        });
        self.make_room();
        // Who waits for memory may be next, since this call waits behind.
        self.memory_came();
    }

    pub(super) fn buried(&mut self, id: CallId, loss: Loss) -> Option<(C, Ended)> {
        let now_ns = self.now_ns;
        let entry = self.calls.get_mut(id)?;
        if !matches!(entry.state, CallState::Lost | CallState::Clearing) {
            return None;
        }
        let late = entry.deadline_ns <= now_ns;
        let overran = std::mem::take(&mut entry.overran) && loss == Loss::InIt && !entry.detached;
        let ended = entry.attempts.lost(loss, late, entry.detached);
        if let Some(ended) = if overran { Some(Ended::Overran) } else { ended } {
            let entry = self.calls.remove(id)?;
            if ended == Ended::Guilty {
                if entry.may_share() {
                    self.unshared.add_for_good(now_ns, entry.used());
                }
                if self.shape.shared_faults {
                    self.draw(entry.domain.caller);
                }
                self.judge(&entry, Verdict::Fault);
            } else {
                self.left_open(&entry, loss, ended);
                self.judge(&entry, Verdict::Neither);
            }
            self.memory_came();
            return Some((entry.call, ended));
        }
        self.wait_again(id);
        None
    }

    pub(super) fn clearing(&mut self, id: CallId) -> Option<u64> {
        let entry = self.calls.get(id).filter(|entry| entry.state == CallState::Lost)?;
        let until_ns = entry.deadline_ns.max(self.now_ns.saturating_add(CLEAR_NS));
        self.calls.clears(id, until_ns);
        // No process has it any more: who waits for memory may be next.
        self.memory_came();
        Some(until_ns)
    }
}
