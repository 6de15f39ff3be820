//! What a lane runs is a job: one call, or several of one function and caller that lie side by side along the dimension which
//! the function says is its batch. What waits in a queue when a lane is free for its first call goes together; only calls of functions
//! that say so wait for company before that. Each call stays a call of its own, with its deadline and its one answer; a job that
//! fails runs again call by call.

use super::asks::QueueKey;
use super::calls::Entry;
use super::limits::MAX_JOB_CALLS;
use super::quarantine::Use;
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Batch, Call, CallId, CallSpec, Job};
use crate::ids::WorkerId;

impl<C: Call> Scheduler<C> {
    /// The group that begins with a call that is first in its queue, with as many calls behind it as fit.
    pub(super) fn group_of(&self, first: CallId) -> Group {
        let now_ns = self.now_ns;
        let mut group = Group::of(first);
        let Some(entry) = self.calls.get(first) else { return group };
        // A caller that is careful has one call at a time.
        let is_careful = || self.budgets.is_careful(now_ns, entry.domain.caller);
        let may_join = || may_have_company(entry) && !is_careful() && !self.apart.holds(now_ns, entry.used());
        let Some(mut batch) = entry.batch.filter(|_| may_join()) else {
            return group;
        };
        let lane_bytes = match entry.queue {
            QueueKey::Shared(_) => self.shape.lane_bytes.min(self.shape.shared_lane_bytes),
            _ => self.shape.lane_bytes,
        };
        let most_bytes = lane_bytes.min(self.shape.memory_bytes / 2);
        let mut bytes = entry.memory_bytes;
        for id in self.queues.next_few(entry.queue, MAX_JOB_CALLS).skip_while(|id| *id != first).skip(1) {
            let Some((other, part)) = self.calls.get(id).and_then(|other| Some((other, other.batch?))) else {
                break;
            };
            bytes = bytes.saturating_add(other.memory_bytes);
            let Some(both) = batch.with(part).filter(|_| bytes <= most_bytes && is_alike(entry, other))
            else {
                break;
            };
            batch = both;
            group.others.push(id);
        }
        group
    }

    /// The job that a worker answers, and its lane; none if the worker has no job that begins with this call.
    pub fn running_job(&self, worker: WorkerId, id: CallId) -> Option<(Job<C>, u32)> {
        let (call, lane) = self.running_call(worker, id)?;
        let mut ids = self.workers[worker].job_in(lane);
        if ids.next() != Some(id) {
            return None;
        }
        let others = ids.map(|id| Some((id, self.calls.get(id)?.call.clone())));
        Some((Job { id, call: call.clone(), others: others.collect::<Option<_>>()? }, lane))
    }

    /// A job failed, or could not be handed over: this call of it runs again by itself. False if the call has to be answered: it
    /// was given up, its deadline passed, or it was in no job.
    pub(super) fn fell_apart(&mut self, worker: WorkerId, id: CallId) -> bool {
        let now_ns = self.now_ns;
        if self.running_call(worker, id).is_none() {
            return false;
        }
        let Some(entry) = self.calls.get_mut(id) else { return false };
        let is_over = entry.is_late(now_ns) || entry.detached;
        if is_over || !may_have_company(entry) || entry.batch.take().is_none() {
            return false;
        }
        let used = entry.used();
        self.apart.add(now_ns, used);
        self.begin_again(worker, id)
    }

    /// What a call brings that is to wait for company: not where the call has to run by itself, nor where the deadline leaves no time.
    pub(super) fn wants_company(&self, spec: &CallSpec, has_to_be_alone: bool) -> Option<Batch> {
        let batch = spec.batch.filter(|batch| batch.delay_ns > 0 && !has_to_be_alone)?;
        let used = Use { function: spec.function, caller: spec.domain.caller };
        let left_ns = spec.deadline_ns.saturating_sub(self.now_ns);
        // The other half of the time is for its work.
        let waits = batch.delay_ns <= left_ns / 2
            && !self.budgets.is_careful(self.now_ns, used.caller)
            && !self.apart.holds(self.now_ns, used);
        waits.then_some(batch)
    }

    /// A call that was accepted waits for company.
    pub(super) fn wait_for_company(&mut self, id: CallId, used: Use, batch: Batch) {
        self.calls.count(id);
        self.calls.move_to(id, self.now_ns.saturating_add(batch.delay_ns));
        if self.company.join(used, id, batch, self.now_ns) {
            self.end_company(used);
        }
    }

    /// True if a call that waits had company, which the call leaves.
    pub(super) fn leaves_company(&mut self, id: CallId, entry: &Entry<C>) -> bool {
        let has_company = || entry.batch.is_some_and(|batch| batch.delay_ns > 0);
        has_company() && !self.company.take(entry.used(), self.now_ns, |other| other == id).is_empty()
    }

    /// Calls of a function have waited for company: they stand in their queue from now on. True if there were some.
    pub(super) fn end_company(&mut self, used: Use) -> bool {
        let calls = self.company.take(used, self.now_ns, |_| true);
        let first = calls.first().and_then(|first| self.calls.get(*first));
        let first = first.map(|entry| (entry.queue, entry.domain, entry.weight_bytes));
        let Some((queue, domain, weight_bytes)) = first else { return false };
        let held = self.holds(used.caller);
        let room = self.queues.find_lane(queue, false, held, self.view());
        calls.into_iter().for_each(|id| self.enqueue(id));
        if let Some(worker) = room {
            self.feed(worker);
        }
        // Not all of them need be in one queue.
        self.resume();
        if weight_bytes > 0 {
            self.look_ahead_for(domain);
        }
        true
    }
}

/// True if a call may run beside others in its lane: nothing is to be found out about it.
fn may_have_company<C>(entry: &Entry<C>) -> bool {
    !entry.wants_all_lanes() && !entry.probe
}

/// True if calls of one queue can run in one job.
fn is_alike<C: Call>(first: &Entry<C>, other: &Entry<C>) -> bool {
    first.domain == other.domain
        && first.function == other.function
        && may_have_company(other)
        && first.call.is_like(&other.call)
}
