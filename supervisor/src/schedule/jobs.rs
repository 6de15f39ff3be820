//! What a lane runs is a job: one call, or several of one function and caller that lie side by side along the dimension which
//! the function says is its batch. Nothing waits for company: what waits in a queue when a lane is free for its first call goes
//! together. Each call stays a call of its own, with its deadline and its one answer; a job that fails runs again call by call.

use super::calls::Entry;
use super::limits::{MAX_JOB_CALLS, MAX_JOB_REGIONS};
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Batch, Call, CallId, Job, QueueKey};
use crate::ids::WorkerId;
use crate::limits::STAGING_BYTES;

impl Batch {
    /// Both together; none if that is more than a job may have.
    fn with(self, other: Self) -> Option<Self> {
        let both = Self {
            items: self.items.checked_add(other.items)?,
            most: self.most.min(other.most),
            regions: self.regions + other.regions,
            staged_bytes: self.staged_bytes + other.staged_bytes,
        };
        let fits =
            both.items <= both.most && both.regions <= MAX_JOB_REGIONS && both.staged_bytes <= STAGING_BYTES;
        fits.then_some(both)
    }
}

impl<C: Call> Scheduler<C> {
    /// The group that begins with a call that is first in its queue, with as many calls behind it as fit.
    pub(super) fn group_of(&self, first: CallId) -> Group {
        let now_ns = self.now_ns;
        let mut group = Group::of(first);
        let Some(entry) = self.calls.get(first) else { return group };
        // A caller that is careful has one call at a time.
        let is_careful = || self.penalties.is_careful(now_ns, entry.domain.caller);
        let may_join = || may_have_company(entry) && !is_careful() && !self.apart.holds(now_ns, entry.used());
        let Some(mut batch) = entry.batch.filter(|_| may_join()) else {
            return group;
        };
        let lane_bytes = match entry.queue {
            QueueKey::Of(_) => self.shape.lane_bytes,
            QueueKey::Shared(_) => self.shape.lane_bytes.min(self.shape.shared_lane_bytes),
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
