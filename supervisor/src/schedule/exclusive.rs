//! Calls that need the whole device.
//!
//! ```text
//! shared ──first in line, lanes empty──► preparing ──memory moved──► running ──answered──► restoring ──► shared
//! ```
//!
//! Where a fault hits the calls of all workers, suspects are such calls, too, but no memory moves for them:
//!
//! ```text
//! shared ──first in line, lanes empty──► alone ──over──► shared
//! ```
//!
//! They stand in a line of their own. Calls that came before the first of them run first; those that came
//! later wait until it is over.

use std::collections::VecDeque;

use super::scheduler::{Scheduler, State, Worker};
use super::types::{Action, CallId, Size, WorkerId};

/// Calls that need the whole device, and how far the first one is.
#[derive(Debug, Default)]
pub(super) struct Exclusive {
    /// Those that wait, oldest first; the one that is prepared for is still among them.
    line: VecDeque<CallId>,
    /// Those whose caller spent its budget: nobody waits for them.
    aside: Vec<CallId>,
    stage: Stage,
    /// Moves of memory that were decided.
    moves: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Leases are as always.
    #[default]
    Shared,
    /// The worker is being given everything.
    Preparing(CallId, WorkerId),
    /// It has the call.
    Running(WorkerId),
    /// It has the call, and its own memory.
    Alone(WorkerId),
    /// Everybody is being given their own again.
    Restoring,
}

impl Exclusive {
    /// Queued calls that came later than this one may not start; none says that all may.
    pub(super) fn barrier(&self) -> Option<CallId> {
        match self.stage {
            Stage::Shared => self.line.front().copied(),
            _ => Some(CallId(0)),
        }
    }

    /// A call waits, for the first time or again.
    pub(super) fn push(&mut self, id: CallId) {
        let at = self.line.partition_point(|first| *first < id);
        self.line.insert(at, id);
    }

    /// A call waits until its caller may start something again.
    pub(super) fn put_aside(&mut self, id: CallId) {
        self.aside.push(id);
    }

    fn next_move(&mut self) -> u64 {
        self.moves += 1;
        self.moves
    }

    /// Those that stand in line and may still be put aside.
    pub(super) fn waiting(&self) -> Vec<CallId> {
        let prepared = |id: &CallId| matches!(self.stage, Stage::Preparing(prepared, _) if prepared == *id);
        self.line.iter().copied().filter(|id| !prepared(id)).collect()
    }

    /// Those that were put aside.
    pub(super) fn aside(&self) -> Vec<CallId> {
        self.aside.clone()
    }

    /// A call does not wait any more; whether memory was moved for it in vain.
    pub(super) fn remove(&mut self, id: CallId) -> bool {
        self.line.retain(|waiting| *waiting != id);
        self.aside.retain(|waiting| *waiting != id);
        matches!(self.stage, Stage::Preparing(prepared, _) if prepared == id)
    }

    /// Whether any wait.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Whether the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        matches!(self.stage, Stage::Preparing(_, w) | Stage::Running(w) | Stage::Alone(w) if w == worker)
    }
}

impl<C: Clone> Scheduler<C> {
    /// Begins with the first call in line, once it is its turn and all lanes are empty.
    pub(super) fn try_whole(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        let (Stage::Shared, Some(&id)) = (self.exclusive.stage, self.exclusive.line.front()) else {
            return;
        };
        if self.table.get(id).is_some_and(|entry| self.holds(now_ns, entry.domain.caller)) {
            // What was prepared for it was in vain: its worker ended, and that spent the budget.
            self.exclusive.remove(id);
            self.exclusive.put_aside(id);
            return self.resume(now_ns, actions);
        }
        let came_before =
            |d: &super::scheduler::DomainState| !d.held && d.queue.front().is_some_and(|first| *first < id);
        if self.running() != 0 || self.domains.values().any(came_before) {
            return;
        }
        let Some((domain, size)) = self.table.get(id).map(|entry| (entry.domain, entry.size)) else { return };
        let is_exclusive = size == Size::Exclusive;
        let has = |state| self.workers.iter().position(|w| w.state == state);
        if let Some(worker) = has(State::Bound(domain)).or_else(|| has(State::Free)) {
            self.bind(now_ns, worker, domain);
            self.stand(domain);
            self.exclusive.stage = Stage::Preparing(id, worker);
            if is_exclusive {
                actions.push(Action::GiveAll { worker, nth: self.exclusive.next_move() });
            } else {
                self.exclusive.stage = Stage::Alone(worker);
                self.exclusive.line.pop_front();
                self.start(now_ns, worker, id, actions);
            }
        } else if !self.workers.iter().any(Worker::is_coming) {
            // All belong to others; the fresh process in the place of one of them is for this call.
            let idle = self.workers.iter().enumerate().min_by_key(|(_, w)| w.idle_since_ns);
            if let Some((worker, _)) = idle {
                self.hand_on(now_ns, worker, actions);
            }
        }
    }

    /// The worker has the memory of all.
    pub fn whole_ready(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if let Stage::Preparing(id, prepared) = self.exclusive.stage
            && prepared == worker
            // If it was killed meanwhile, its end gives everything back.
            && self.workers[worker].state != State::Absent
        {
            if self.table.get(id).is_some_and(|entry| self.holds(now_ns, entry.domain.caller)) {
                // Its caller spent the budget meanwhile, elsewhere.
                self.exclusive.remove(id);
                self.exclusive.put_aside(id);
                return self.give_back(actions);
            }
            self.exclusive.stage = Stage::Running(worker);
            self.exclusive.line.pop_front();
            self.start(now_ns, worker, id, actions);
        }
    }

    /// The call is over, or its worker is: everybody gets their own memory again.
    pub(super) fn give_back(&mut self, actions: &mut Vec<Action<C>>) {
        self.exclusive.stage = Stage::Restoring;
        actions.push(Action::GiveBack { nth: self.exclusive.next_move() });
    }

    /// As [`Scheduler::give_back`], if it was that worker's.
    pub(super) fn leave_whole(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if self.exclusive.stage == Stage::Alone(worker) {
            self.exclusive.stage = Stage::Shared;
            self.resume(now_ns, actions);
        } else if self.exclusive.is_for(worker) {
            self.give_back(actions);
        }
    }

    /// Everybody has their own memory again.
    pub fn whole_over(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        if self.exclusive.stage == Stage::Restoring {
            self.exclusive.stage = Stage::Shared;
            self.resume(now_ns, actions);
        }
    }

    /// Starts whatever may start, after something that held it up is gone.
    pub(super) fn resume(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        for worker in 0..self.workers.len() {
            self.feed(now_ns, worker, actions);
        }
        self.make_room(now_ns, actions);
        self.try_whole(now_ns, actions);
    }
}
