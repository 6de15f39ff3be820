//! Calls that wait for company: of functions that say how long a call may wait for others that would join its job. They stand in no
//! queue meanwhile, and in theirs all at once when the first of them has waited so long, or a job has no room for more.

use std::collections::HashMap;

use super::batch::Batch;
use super::limits::MAX_JOB_CALLS;
use super::quarantine::Use;
use super::types::CallId;

/// The calls of one device that wait for company.
#[derive(Debug, Default)]
pub(super) struct Company {
    gatherings: HashMap<Use, Gathering>,
    /// How long calls have waited, all together.
    waited_ns: u64,
}

/// Calls of one function by one caller.
#[derive(Debug, Default)]
struct Gathering {
    /// Each since when, and how many items it brings.
    calls: Vec<(CallId, u64, u64)>,
}

impl Company {
    /// How long calls have waited, all together, in nanoseconds.
    pub(super) fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// One more waits. True if a job has no room for more.
    pub(super) fn join(&mut self, used: Use, id: CallId, batch: Batch, now_ns: u64) -> bool {
        let calls = &mut self.gatherings.entry(used).or_default().calls;
        calls.push((id, now_ns, batch.items));
        let items = calls.iter().fold(0u64, |sum, (_, _, items)| sum.saturating_add(*items));
        items >= batch.most || calls.len() >= MAX_JOB_CALLS
    }

    /// Those of a function that wait no more, of which this is true; in the order in which they came.
    pub(super) fn take(&mut self, used: Use, now_ns: u64, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let Some(gathering) = self.gatherings.get_mut(&used) else { return Vec::new() };
        let taken: Vec<_> = gathering.calls.extract_if(.., |(id, ..)| is_one(*id)).collect();
        if gathering.calls.is_empty() {
            self.gatherings.remove(&used);
        }
        let waited = taken.iter().map(|(_, since_ns, _)| now_ns.saturating_sub(*since_ns));
        self.waited_ns += waited.sum::<u64>();
        taken.into_iter().map(|(id, ..)| id).collect()
    }
}
