//! The calls of one device: by id, and by the moment at which something must happen to them.

use slab::Slab;

use super::deadlines::Deadlines;
use super::quarantine::Use;
use super::types::{CallId, Domain, Size, Terms, WorkerId};

/// Bits of a call's id that hold its slab index.
const INDEX_BITS: u32 = 24;
/// Calls that there can be at once.
pub(super) const MAX_CALLS: u64 = 1 << (INDEX_BITS - 1);

/// A call as the scheduler sees it.
#[derive(Debug)]
pub(super) struct Entry<C> {
    pub(super) call: C,
    pub(super) domain: Domain,
    pub(super) function: u64,
    pub(super) bytes: u64,
    pub(super) deadline_ns: u64,
    pub(super) size: Size,
    pub(super) state: CallState,
    /// How often it was started.
    pub(super) runs: u8,
    /// A process ended while this call was in it: it runs alone from now on.
    pub(super) suspect: bool,
    /// It decides whether its function is refused any longer.
    pub(super) probe: bool,
    /// Nobody waits for its answer.
    pub(super) detached: bool,
    serial: u64,
}

impl<C> Entry<C> {
    /// Whose use of which function it is.
    pub(super) fn used(&self) -> Use {
        Use { function: self.function, caller: self.domain.caller }
    }

    /// Whether no other call may be on the device.
    pub(super) fn wants_device(&self, shared_faults: bool) -> bool {
        self.size == Size::Exclusive || self.suspect && shared_faults
    }

    /// Whether no other call may be in its worker.
    pub(super) fn wants_all_lanes(&self) -> bool {
        self.suspect || self.size != Size::Lane
    }
}

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallState {
    /// In its domain's queue.
    Queued,
    /// In a worker.
    Running {
        worker: WorkerId,
        lane: u32,
        /// The deadline passed; the next time something is due, the worker is killed.
        overdue: bool,
    },
    /// Its process is gone, and what it wrote is being cleared.
    Lost { overdue: bool },
}

/// All calls of a device.
#[derive(Debug)]
pub(super) struct Table<C> {
    entries: Slab<Entry<C>>,
    next_serial: u64,
    deadlines: Deadlines,
}

impl<C> Default for Table<C> {
    fn default() -> Self {
        Self { entries: Slab::new(), next_serial: 1, deadlines: Deadlines::default() }
    }
}

impl<C> Table<C> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A new call, which waits.
    pub(super) fn insert(&mut self, call: C, terms: Terms) -> CallId {
        let serial = self.next_serial;
        self.next_serial += 1;
        let Terms { domain, function, bytes, deadline_ns, size } = terms;
        let state = CallState::Queued;
        let entry = Entry {
            call,
            serial,
            domain,
            function,
            bytes,
            deadline_ns,
            size,
            state,
            runs: 0,
            suspect: false,
            probe: false,
            detached: false,
        };
        let id = CallId((serial << INDEX_BITS) | self.entries.insert(entry) as u64);
        self.deadlines.insert(deadline_ns, id);
        id
    }

    fn index(id: CallId) -> usize {
        (id.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    /// The call, unless it is over.
    pub(super) fn get(&self, id: CallId) -> Option<&Entry<C>> {
        self.entries.get(Self::index(id)).filter(|entry| entry.serial == id.0 >> INDEX_BITS)
    }

    /// As [`Table::get`], to change it.
    pub(super) fn get_mut(&mut self, id: CallId) -> Option<&mut Entry<C>> {
        self.entries.get_mut(Self::index(id)).filter(|entry| entry.serial == id.0 >> INDEX_BITS)
    }

    /// Forgets a call.
    pub(super) fn remove(&mut self, id: CallId) -> Option<Entry<C>> {
        self.get(id)?;
        let entry = self.entries.remove(Self::index(id));
        self.deadlines.remove(entry.deadline_ns, id);
        Some(entry)
    }

    /// The calls in a worker, oldest first.
    pub(super) fn running_in(&self, worker: WorkerId) -> Vec<CallId> {
        self.all(|entry| matches!(entry.state, CallState::Running { worker: w, .. } if w == worker))
    }

    /// The calls of which this is true, oldest first.
    pub(super) fn all(&self, is_one: impl Fn(&Entry<C>) -> bool) -> Vec<CallId> {
        let mut found: Vec<CallId> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_one(entry))
            .map(|(index, entry)| CallId((entry.serial << INDEX_BITS) | index as u64))
            .collect();
        found.sort_unstable();
        found
    }

    /// When something must happen to a call at the latest.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.next_ns()
    }

    /// Takes the moment of one call whose moment has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        self.deadlines.pop_due(now_ns)
    }

    /// Gives a call an earlier moment.
    pub(super) fn hasten(&mut self, id: CallId, at_ns: u64) {
        let Some(entry) = self.get_mut(id) else { return };
        let before_ns = std::mem::replace(&mut entry.deadline_ns, at_ns);
        self.deadlines.remove(before_ns, id);
        self.deadlines.insert(at_ns, id);
    }

    /// Gives a call whose moment was taken another one.
    pub(super) fn postpone(&mut self, id: CallId, by_ns: u64) {
        if let Some(entry) = self.get_mut(id) {
            entry.deadline_ns = entry.deadline_ns.saturating_add(by_ns);
            let at_ns = entry.deadline_ns;
            self.deadlines.insert(at_ns, id);
        }
    }
}
