//! Calls that need the whole device: all other lanes are empty while one runs. Where a fault hits the calls of all workers,
//! suspects are such calls, too.
//!
//! ```text
//! nobody's ──its caller is next, lanes empty──► prepared: others give memory back ──there is enough──► it runs ──over──► nobody's
//! ```
//!
//! When it is a caller's turn is decided where all callers ask for something (`asks`); what memory the call gets, and from
//! whom, where that is decided for all calls (`book`).

use std::collections::BTreeSet;

use super::types::CallId;
use crate::ids::{IdMap, TenantId, WorkerId};

/// Calls that need the whole device, and whose it is.
#[derive(Debug, Default)]
pub(super) struct Exclusive {
    /// Those that wait, of each caller; the one that the device is prepared for is still among them.
    waiting: IdMap<TenantId, BTreeSet<CallId>>,
    /// Whose the device is; calls of all workers may run where it is nobody's.
    served: Option<Served>,
}

/// Whose the device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Served {
    caller: TenantId,
    worker: WorkerId,
    since_ns: u64,
    /// The call, until the worker has it: others give memory back for it.
    prepared: Option<CallId>,
}

impl Exclusive {
    /// True if no other call starts: the device is one call's, or is being prepared for it.
    pub(super) fn is_closed(&self) -> bool {
        self.served.is_some()
    }

    /// The caller whose the device is.
    pub(super) fn caller(&self) -> Option<TenantId> {
        self.served.map(|served| served.caller)
    }

    /// True if calls wait.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The call of a caller that came first.
    pub(super) fn first_of(&self, caller: TenantId) -> Option<CallId> {
        self.waiting.get(&caller)?.first().copied()
    }

    /// A call waits, for the first time or again.
    pub(super) fn push(&mut self, caller: TenantId, id: CallId) {
        self.waiting.entry(caller).or_default().insert(id);
    }

    /// A call does not wait any more.
    pub(super) fn remove(&mut self, caller: TenantId, id: CallId) {
        let Some(calls) = self.waiting.get_mut(&caller) else { return };
        calls.remove(&id);
        if calls.is_empty() {
            self.waiting.remove(&caller);
        }
    }

    /// Takes out the calls of a caller of which this is true.
    pub(super) fn take(&mut self, caller: TenantId, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let calls = self.waiting.get(&caller).into_iter().flatten();
        let taken: Vec<CallId> = calls.copied().filter(|id| is_one(*id)).collect();
        taken.iter().for_each(|id| self.remove(caller, *id));
        taken
    }

    /// True if the device was prepared for a call that does not wait any more: [`Exclusive::end`] follows.
    pub(super) fn is_in_vain(&self) -> bool {
        let waits = |caller, id| self.waiting.get(&caller).is_some_and(|calls| calls.contains(&id));
        self.served.is_some_and(|served| served.prepared.is_some_and(|id| !waits(served.caller, id)))
    }

    /// True if the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        self.served.is_some_and(|served| served.worker == worker)
    }

    /// The call that the device is prepared for, and where it is to run.
    pub(super) fn prepared(&self) -> Option<(CallId, WorkerId)> {
        self.served.and_then(|served| Some((served.prepared?, served.worker)))
    }

    /// From now on the device is prepared for a caller's call in a worker.
    pub(super) fn begin(&mut self, now_ns: u64, caller: TenantId, id: CallId, worker: WorkerId) {
        self.served = Some(Served { caller, worker, since_ns: now_ns, prepared: Some(id) });
    }

    /// The call that the device was prepared for is in its worker.
    pub(super) fn run(&mut self) {
        if let Some(served) = &mut self.served
            && let (caller, Some(id)) = (served.caller, served.prepared.take())
        {
            self.remove(caller, id);
        }
    }

    /// The call is over, its worker is, or it gave up: the device is nobody's. Whose it was, and since when.
    pub(super) fn end(&mut self) -> Option<(TenantId, u64)> {
        self.served.take().map(|served| (served.caller, served.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_prepared_for_a_call_that_waits_and_no_other() {
        let (caller, worker) = (TenantId::new(1), WorkerId::new(1));
        let mut exclusive = Exclusive::default();
        [8, 7].into_iter().for_each(|id| exclusive.push(caller, CallId(id)));
        assert_eq!(exclusive.first_of(caller), Some(CallId(7)));
        exclusive.begin(5, caller, CallId(7), worker);
        assert!(exclusive.is_closed() && exclusive.is_for(worker));
        assert_eq!(exclusive.prepared(), Some((CallId(7), worker)));
        assert_eq!(exclusive.take(caller, |id| id == CallId(8)), [CallId(8)]);
        assert!(!exclusive.is_in_vain());
        assert_eq!(exclusive.take(caller, |_| true), [CallId(7)]);
        assert!(exclusive.is_in_vain() && !exclusive.waits());
        assert_eq!(exclusive.end(), Some((caller, 5)));
        exclusive.push(caller, CallId(9));
        exclusive.begin(6, caller, CallId(9), worker);
        exclusive.run();
        assert_eq!((exclusive.prepared(), exclusive.is_in_vain()), (None, false));
        assert_eq!((exclusive.caller(), exclusive.waits()), (Some(caller), false));
        assert_eq!((exclusive.end(), exclusive.end()), (Some((caller, 6)), None));
    }
}
