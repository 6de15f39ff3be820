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

use super::asks::Ask;
use super::book::Short;
use super::scheduler::Scheduler;
use super::starting::Group;
use super::types::{Call, CallId, Compartment, QueueKey};
use super::workers::State;
use crate::defences::Defence;
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

impl<C: Call> Scheduler<C> {
    /// A caller asks for the whole device as long as calls of it need that and may start. True if it asks since now.
    pub(super) fn list_whole(&mut self, caller: TenantId) -> bool {
        match self.exclusive.first_of(caller).is_some() && !self.holds(caller) {
            true => self.queues.asks.push(Ask::device(caller)),
            false => {
                self.queues.asks.remove(Ask::device(caller));
                false
            }
        }
    }

    /// A call that needs the whole device waits for it, or for its caller's budget.
    pub(super) fn line_up(&mut self, caller: TenantId, id: CallId) {
        self.calls.count(id);
        self.exclusive.push(caller, id);
        self.list_whole(caller);
        self.note_contention();
        // Another one may have waited until this one was no longer running.
        self.try_exclusive();
    }

    /// Begins with the next call for the whole device, once all lanes are empty; with another one, where that call is refused.
    pub(super) fn try_exclusive(&mut self) {
        if !self.exclusive.waits() || std::mem::replace(&mut self.is_beginning, true) {
            return;
        }
        while !self.exclusive.is_closed()
            && self.calls.in_processes() == 0
            && !self.queues.memory_goes_first(self.view())
            && let Some((caller, _)) = self.queues.asks.device()
        {
            if !self.begin(caller) {
                break;
            }
        }
        self.is_beginning = false;
    }

    /// Begins with the first call of a caller for the whole device. True if another one may be next.
    fn begin(&mut self, caller: TenantId) -> bool {
        let Some(id) = self.exclusive.first_of(caller) else { return false };
        let Some(domain) = self.calls.get(id).map(|entry| entry.domain) else { return false };
        if self.holds(caller) {
            // The preparation was in vain: the worker ended, and that spent the caller's budget.
            self.queues.asks.remove(Ask::device(caller));
            self.resume();
            return true;
        }
        let has = |state| self.workers.iter().find(|(_, w)| w.state == state).map(|(worker, _)| worker);
        if let Some(worker) = has(State::Bound(Compartment::Of(domain))).or_else(|| has(State::Free)) {
            if self.workers[worker].state == State::Free {
                self.bind(worker, domain);
            }
            self.queues.join_line(QueueKey::Of(domain));
            self.book.reopen();
            self.queues.asks.serve(caller);
            self.exclusive.begin(self.now_ns, caller, id, worker);
            self.advance();
            return true;
        }
        if self.workers.coming() == 0 {
            // Where all belong to others, the fresh process in the slot of one of them is for this call.
            match self.workers.first_empty() {
                Some(empty) => self.bring(empty),
                None => {
                    let worker = self.worth_least(|id, _| self.may_leave(id));
                    let caller = worker.and_then(|worker| self.hand_on(worker));
                    self.feed_callers(caller);
                }
            }
        }
        false
    }

    /// A worker has no call for the whole device any more, if it had one.
    pub(super) fn leave_device(&mut self, worker: WorkerId) {
        if !self.exclusive.is_for(worker) {
            return;
        }
        // Its domain had everything: a domain that waits for a worker need not wait for its residency.
        self.workers[worker].bound_ns = 0;
        self.reopen_to_all();
    }

    /// The device is no one call's any more: its caller is charged, and whose turn it is starts.
    pub(super) fn reopen_to_all(&mut self) {
        if let Some((caller, since_ns)) = self.exclusive.end() {
            // Where there are no turns, callers are charged for each of their lanes.
            let lanes = if self.turns.is_some() { 1 } else { u64::from(self.shape.lanes) };
            let had_ns = self.now_ns.saturating_sub(since_ns).saturating_mul(lanes);
            // Without charges it is the same caller's again.
            if !Defence::WholeDevice.is_off() {
                self.queues.asks.charge_device(caller, had_ns);
            }
        }
        self.serve_line();
        self.resume();
    }

    /// A call does not wait any more. One for the whole device `held_up` others, which may start.
    pub(super) fn waits_no_more(&mut self, held_up: bool) {
        match held_up {
            true if self.exclusive.is_in_vain() => self.reopen_to_all(),
            true => self.resume(),
            false => {}
        }
    }

    /// Goes on with the call that the device is prepared for, if the memory that it waited for is there.
    pub(super) fn advance(&mut self) {
        let Some((id, worker)) = self.exclusive.prepared() else { return };
        let Some(domain) = self.workers[worker].served() else {
            // The worker is killed, and with its end this ends.
            return;
        };
        let group = Group::of(id);
        let Some(need) = self.need_of(worker, &group) else { return };
        if self.holds(domain.caller) {
            // Its caller spent the budget meanwhile, elsewhere.
            self.queues.asks.remove(Ask::device(domain.caller));
            return self.reopen_to_all();
        }
        if self.book.excess_bytes(&self.workers, worker, need) > 0 {
            return self.wait_for_memory(worker, id, Short::OwnLimit);
        }
        match self.fit(worker, &group) {
            Ok(fit) => {
                self.book.reopen();
                self.exclusive.run();
                self.list_whole(domain.caller);
                self.start(worker, fit, &group);
            }
            Err(short @ Short::OwnerLimit(_)) => self.wait_for_memory(worker, id, short),
            Err(_) => self.gather(worker, id),
        }
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
