//! The calls of one device: by id, and by the moment at which something must happen to them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Deref, DerefMut};

use slab::Slab;

use super::asks::QueueKey;
use super::limits::{DEADLINE_GRACE_NS, INSTALLATION, MAX_CALLS, SPARE_MOMENTS};
use super::quarantine::Use;
use super::retry::Attempts;
use super::types::{CallId, CallSpec, ResidentPrice, Sharing};
use crate::ids::{IdMap, TenantId, WorkerId};

/// Bits of a call's id that hold its slab index.
const INDEX_BITS: u32 = MAX_CALLS.trailing_zeros() + 1;

/// A call as the scheduler sees it.
#[derive(Debug)]
pub(super) struct Entry<C> {
    pub(super) call: C,
    /// What is known of it. It is never beside strangers again, once it took too long there; and its deadline is sooner once its
    /// client gave it up.
    spec: CallSpec,
    /// Where it waits.
    pub(super) queue: QueueKey,
    /// When something must happen to the call: at its deadline, unless the state asks for another moment.
    due_ns: u64,
    pub(super) state: CallState,
    pub(super) attempts: Attempts,
    /// True if the call's end decides whether its function is refused any longer.
    pub(super) probe: bool,
    /// True if the client gave the call up.
    pub(super) detached: bool,
    /// True if the call was in the way of others for too long: the process is ended.
    pub(super) overran: bool,
    /// True if a process is ended for the call's sake, and the caller paid for that.
    pub(super) paid: bool,
    /// True if the process did not have the function when the call started.
    pub(super) installs: bool,
    /// True if the call is counted among the waiting ones of its caller.
    counted: bool,
    /// When it was handed over.
    pub(super) started_ns: u64,
    /// When its worker ends it.
    pub(super) until_ns: u64,
    /// What the clock showed then by which calls are in the way of others.
    pub(super) started_clock_ns: u64,
    serial: u64,
}

impl<C> Deref for Entry<C> {
    type Target = CallSpec;

    fn deref(&self) -> &CallSpec {
        &self.spec
    }
}

impl<C> DerefMut for Entry<C> {
    fn deref_mut(&mut self) -> &mut CallSpec {
        &mut self.spec
    }
}

impl<C> Entry<C> {
    /// Whose use of which function it is.
    pub(super) fn used(&self) -> Use {
        Use { function: self.function, caller: self.domain.caller }
    }

    /// How long after its deadline it may still answer by itself. A process that installs a function cannot, and would be
    /// lost for the time that others took from it.
    pub(super) fn patience_ns(&self, now_ns: u64, price: ResidentPrice) -> u64 {
        let installed_ns = match self.installs {
            true => self.started_ns.saturating_add(INSTALLATION * price.function_ns),
            false => 0,
        };
        installed_ns.saturating_sub(now_ns).max(DEADLINE_GRACE_NS)
    }

    /// True if it may be in a worker beside strangers' calls, as far as it is no suspect.
    pub(super) fn may_share(&self) -> bool {
        self.sharing != Sharing::Never
    }

    /// True if the deadline of a call in a worker passed.
    pub(super) fn is_late(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns || matches!(self.state, CallState::Running { overdue: true, .. })
    }

    /// True if no other call may be on the device.
    pub(super) fn wants_device(&self) -> bool {
        matches!(self.queue, QueueKey::Whole(_))
    }

    /// By what the call stands in its queue: its deadline, but calls for the whole device go in the order in which they came.
    pub(super) fn order_ns(&self) -> u64 {
        if self.wants_device() { 0 } else { self.deadline_ns }
    }

    /// True if no other call may be in its worker.
    pub(super) fn wants_all_lanes(&self) -> bool {
        self.attempts.is_suspect() || self.wants_device()
    }
}

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallState {
    /// In its queue, or waiting for company.
    Queued,
    /// In a worker.
    Running {
        worker: WorkerId,
        lane: u32,
        /// True if the deadline passed; the next time something is due, the worker is killed.
        overdue: bool,
    },
    /// Its process is about to be gone.
    Lost,
    /// The process is gone, and the call's outputs are being cleared. At the call's next moment, the client is told that this takes
    /// too long.
    Clearing,
}

/// The id of a call at a place of the slab.
fn id_of(serial: u64, index: usize) -> CallId {
    CallId((serial << INDEX_BITS) | index as u64)
}

/// All calls of a device.
#[derive(Debug)]
pub(super) struct Calls<C> {
    entries: Slab<Entry<C>>,
    next_serial: u64,
    moments: DueMoments,
    queued: u64,
    queued_bytes: u64,
    clearing: u64,
    /// Waiting calls of each caller: how many, and their inline bytes.
    waiting: IdMap<TenantId, (u64, u64)>,
}

impl<C> Default for Calls<C> {
    fn default() -> Self {
        let (entries, moments, waiting) = (Slab::new(), DueMoments::default(), IdMap::default());
        Self { entries, next_serial: 1, moments, queued: 0, queued_bytes: 0, clearing: 0, waiting }
    }
}

impl<C> Calls<C> {
    /// How many wait.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Inline bytes of those that wait.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// How many of a caller wait, and their inline bytes.
    pub(super) fn waiting_of(&self, caller: TenantId) -> (u64, u64) {
        self.waiting.get(&caller).copied().unwrap_or_default()
    }

    /// All that wait, oldest first.
    pub(super) fn waiting(&self) -> Vec<(CallId, &C)> {
        let waits = self.entries.iter().filter(|(_, entry)| entry.state == CallState::Queued);
        let mut waiting: Vec<_> = waits.map(|(at, entry)| (id_of(entry.serial, at), &entry.call)).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        waiting
    }

    /// The most device memory that a call needs, beside its weights or with them.
    pub(super) fn largest_bytes(&self, with_weights: bool) -> u64 {
        let weights = |entry: &Entry<C>| if with_weights { entry.weight_bytes } else { 0 };
        let needs = |entry: &Entry<C>| entry.memory_bytes.saturating_add(weights(entry));
        self.entries.iter().map(|(_, entry)| needs(entry)).max().unwrap_or(0)
    }

    /// A call does not start at once: the caller has one more that waits, until the deadline.
    pub(super) fn count(&mut self, id: CallId) {
        self.move_to(id, self.get(id).map_or(0, |entry| entry.deadline_ns));
        let Some(entry) = self.get_mut(id).filter(|entry| !entry.counted) else { return };
        entry.counted = true;
        let (caller, bytes) = (entry.domain.caller, entry.bytes);
        let (waiting, waiting_bytes) = self.waiting.entry(caller).or_default();
        *waiting += 1;
        *waiting_bytes += bytes;
    }

    /// A call waits no more, if it did.
    fn uncount(&mut self, caller: TenantId, bytes: u64) {
        let Some((waiting, waiting_bytes)) = self.waiting.get_mut(&caller) else { return };
        *waiting -= 1;
        *waiting_bytes -= bytes;
        if *waiting == 0 {
            self.waiting.remove(&caller);
        }
    }

    /// How many are in workers, or were until their process ended.
    pub(super) fn running(&self) -> u64 {
        self.entries.len() as u64 - self.queued
    }

    /// How many are in processes, of which some are about to be gone.
    pub(super) fn in_processes(&self) -> u64 {
        self.running() - self.clearing
    }

    /// A new call: [`Calls::started`] or [`Calls::count`] follows.
    pub(super) fn insert(
        &mut self,
        call: C,
        spec: CallSpec,
        queue: QueueKey,
        attempts: Attempts,
        probe: bool,
    ) -> CallId {
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = Entry {
            call,
            spec,
            serial,
            queue,
            due_ns: u64::MAX,
            state: CallState::Queued,
            attempts,
            probe,
            detached: false,
            overran: false,
            paid: false,
            installs: false,
            counted: false,
            started_ns: 0,
            until_ns: 0,
            started_clock_ns: 0,
        };
        self.queued += 1;
        self.queued_bytes += spec.bytes;
        id_of(serial, self.entries.insert(entry))
    }

    fn index(id: CallId) -> usize {
        (id.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    /// The call, unless it is over.
    pub(super) fn get(&self, id: CallId) -> Option<&Entry<C>> {
        self.entries.get(Self::index(id)).filter(|entry| entry.serial == id.0 >> INDEX_BITS)
    }

    /// As [`Calls::get`], to change it; what it waits for is changed by the methods below.
    pub(super) fn get_mut(&mut self, id: CallId) -> Option<&mut Entry<C>> {
        self.entries.get_mut(Self::index(id)).filter(|entry| entry.serial == id.0 >> INDEX_BITS)
    }

    /// A call that waited is in a worker, where its function is installed first or was there: at this moment, when the clock by which
    /// calls are in the way of others shows so much. The worker ends the call, and before its deadline it is looked for when it is stuck.
    pub(super) fn started(
        &mut self,
        id: CallId,
        worker: WorkerId,
        lane: u32,
        installs: bool,
        [now_ns, clock_ns, until_ns, stuck_ns]: [u64; 4],
    ) {
        let Some(entry) = self.get_mut(id) else { return };
        (entry.started_ns, entry.started_clock_ns, entry.until_ns) = (now_ns, clock_ns, until_ns);
        entry.installs = installs;
        entry.state = CallState::Running { worker, lane, overdue: false };
        entry.attempts.started();
        let (caller, bytes, due_ns) = (entry.domain.caller, entry.bytes, entry.deadline_ns.min(stuck_ns));
        if std::mem::take(&mut entry.counted) {
            self.uncount(caller, bytes);
        }
        self.queued -= 1;
        self.queued_bytes -= bytes;
        self.move_to(id, due_ns);
    }

    /// What a lost call wrote is being cleared, which may take until then.
    pub(super) fn clears(&mut self, id: CallId, until_ns: u64) {
        let Some(entry) = self.get_mut(id) else { return };
        if entry.state != CallState::Lost {
            return;
        }
        entry.state = CallState::Clearing;
        self.clearing += 1;
        self.move_to(id, until_ns);
    }

    /// A call that was in a worker waits again, in this queue.
    pub(super) fn waits_again(&mut self, id: CallId, queue: QueueKey) {
        let Some(entry) = self.get_mut(id) else { return };
        entry.queue = queue;
        let (before, bytes) = (std::mem::replace(&mut entry.state, CallState::Queued), entry.bytes);
        self.queued += 1;
        self.queued_bytes += bytes;
        self.clearing -= u64::from(before == CallState::Clearing);
    }

    /// Forgets a call.
    pub(super) fn remove(&mut self, id: CallId) -> Option<Entry<C>> {
        self.get(id)?;
        let entry = self.entries.remove(Self::index(id));
        self.tidy_moments();
        if entry.counted {
            self.uncount(entry.domain.caller, entry.bytes);
        }
        match entry.state {
            CallState::Queued => {
                self.queued -= 1;
                self.queued_bytes -= entry.bytes;
            }
            CallState::Clearing => self.clearing -= 1,
            CallState::Running { .. } | CallState::Lost => {}
        }
        Some(entry)
    }

    /// When something must happen to a call at the latest.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.moments.next_ns()
    }

    /// Takes the moment of one call whose moment has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        let due = self.moments.pop_due(now_ns);
        self.tidy_moments();
        due
    }

    /// Forgets moments of calls that are over, or have others.
    fn tidy_moments(&mut self) {
        let Self { entries, moments, .. } = self;
        let holds = |at_ns, id: CallId| {
            let entry = entries.get(Self::index(id));
            entry.is_some_and(|entry| entry.serial == id.0 >> INDEX_BITS && entry.due_ns == at_ns)
        };
        moments.tidy(entries.len(), holds);
    }

    /// Gives a call another moment.
    pub(super) fn move_to(&mut self, id: CallId, at_ns: u64) {
        let Some(entry) = self.get_mut(id).filter(|entry| entry.due_ns != at_ns) else { return };
        entry.due_ns = at_ns;
        self.moments.insert(at_ns, id);
        self.tidy_moments();
    }

    /// Gives a call whose moment was taken another one.
    pub(super) fn postpone(&mut self, id: CallId, by_ns: u64) {
        let due_ns = self.get(id).map_or(0, |entry| entry.due_ns);
        self.move_to(id, due_ns.saturating_add(by_ns));
    }

    /// A call's client gave it up: the call has to be over by then, if not before.
    pub(super) fn shorten(&mut self, id: CallId, deadline_ns: u64) {
        let Some(entry) = self.get_mut(id) else { return };
        entry.deadline_ns = entry.deadline_ns.min(deadline_ns);
        let due_ns = entry.due_ns.min(deadline_ns);
        self.move_to(id, due_ns);
    }
}

/// Moments in `CLOCK_MONOTONIC` nanoseconds, the earliest first. Nearly every call is over long before its moment, and of two that come
/// one after the other the later one mostly has the later moment: a heap takes such a moment in at once, and a call that is over leaves
/// it there until it comes to the top, or until there are more of these than of others.
///
/// The owner says which moments still hold, after each change: see
/// [`DueMoments::tidy`].
#[derive(Debug, Default)]
struct DueMoments(BinaryHeap<Reverse<(u64, CallId)>>);

impl DueMoments {
    /// Something must happen to a call then.
    fn insert(&mut self, at_ns: u64, call: CallId) {
        self.0.push(Reverse((at_ns, call)));
    }

    /// The earliest moment.
    fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes one call whose moment has come.
    fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        let due = *self.0.peek().filter(|Reverse((at_ns, _))| *at_ns <= now_ns)?;
        // After a change to another moment and back, a call has the moment twice.
        while self.0.peek() == Some(&due) {
            self.0.pop();
        }
        Some(due.0.1)
    }

    /// Some moments may not hold any more, which is asked of them; there are so many calls. From now on the earliest one does.
    fn tidy(&mut self, calls: usize, holds: impl Fn(u64, CallId) -> bool) {
        while let Some(Reverse((at_ns, call))) = self.0.peek()
            && !holds(*at_ns, *call)
        {
            self.0.pop();
        }
        if self.0.len() > 2 * calls + SPARE_MOMENTS {
            let mut all = std::mem::take(&mut self.0).into_vec();
            all.retain(|Reverse((at_ns, call))| holds(*at_ns, *call));
            all.sort_unstable();
            // A call may have the same moment several times.
            all.dedup();
            self.0 = all.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// A call has this moment, whether it had one or not.
        Set(u64, u64),
        Remove(u64),
        PopDue(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..20u64, 0..20u64).prop_map(|(call, at_ns)| Step::Set(call, at_ns)),
            2 => (0..20u64).prop_map(Step::Remove),
            1 => (0..20u64).prop_map(Step::PopDue),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn moments_are_those_of_a_set(steps in steps()) {
            let (mut moments, mut set, mut held) = (DueMoments::default(), BTreeSet::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(call, at_ns) => {
                        if let Some(before_ns) = held.insert(CallId(call), at_ns) {
                            set.remove(&(before_ns, CallId(call)));
                        }
                        set.insert((at_ns, CallId(call)));
                        moments.insert(at_ns, CallId(call));
                    }
                    Step::Remove(call) => {
                        if let Some(at_ns) = held.remove(&CallId(call)) {
                            set.remove(&(at_ns, CallId(call)));
                        }
                    }
                    Step::PopDue(now_ns) => {
                        let due = set.first().copied().filter(|(at_ns, _)| *at_ns <= now_ns);
                        prop_assert_eq!(moments.pop_due(now_ns), due.map(|(_, call)| call));
                        if let Some(due) = due {
                            set.remove(&due);
                            // What was taken holds no more, until the call has another.
                            held.remove(&due.1);
                        }
                    }
                }
                moments.tidy(held.len(), |at_ns, call| held.get(&call) == Some(&at_ns));
                prop_assert_eq!(moments.next_ns(), set.first().map(|(at_ns, _)| *at_ns));
                prop_assert!(moments.0.len() <= 2 * held.len() + SPARE_MOMENTS);
            }
        }
    }

    #[test]
    fn few_moments_are_kept_of_calls_that_are_over() {
        let (mut moments, first) = (DueMoments::default(), CallId(0));
        moments.insert(1, first);
        for call in 1..100_000 {
            moments.insert(2, CallId(call));
            moments.tidy(1, |_, call| call == first);
        }
        assert!(moments.0.len() <= SPARE_MOMENTS + 2, "{}", moments.0.len());
        assert_eq!(moments.next_ns(), Some(1));
    }
}
