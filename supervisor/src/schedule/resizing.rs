//! A device that is set up otherwise while it serves: workers, lanes, memory, turns, residency.
//!
//! ```text
//! fewer workers  ──► residents beyond the ceiling, the one worth least first ─┐  take no more calls, and leave
//! other lanes    ──► processes of before, one after the other ────────────────┘  once they are idle
//! less memory    ──► taken back from lanes without calls, then of weights; what runs ends first
//! all else       ──► from now on
//! ```
//!
//! Nothing that runs is ended, and no call that waits is given up: a domain whose worker leaves waits for another one
//! like any that has none.

use super::scheduler::Scheduler;
use super::types::{Call, Command, Shape, WhyGone};
use super::workers::{State, Worker};
use crate::ids::WorkerId;

impl<C: Call> Scheduler<C> {
    /// The device is set up otherwise. Every process that is ready from now on has as many lanes as this says. No call
    /// that is there may need more than the memory that is left for one.
    pub(super) fn resize(&mut self, to: Shape, remakes: bool) {
        let lanes = to.lanes.clamp(1, 64);
        let remakes = remakes || lanes != self.shape.lanes;
        // Turns stay, or are never taken; one worker, which takes none, says no quantum.
        let quantum_us = self.shape.quantum_us.and(to.quantum_us.or(self.shape.quantum_us));
        self.shape = Shape { lanes, quantum_us, ..to };
        self.workers.resize(to.workers, lanes);
        self.book.resize(self.workers.len(), to.memory_bytes);
        self.queues.resize(&self.shape);
        if let (Some(turns), Some(quantum_us)) = (&mut self.turns, quantum_us) {
            turns.resize(self.workers.len(), quantum_us);
        }
        for (_, worker) in self.workers.iter_mut() {
            worker.retires = false;
            worker.outdated |= remakes && !matches!(worker.state, State::Empty | State::Absent);
        }
        self.resizing = true;
        self.memory_came();
        self.resume();
    }

    /// Goes on with what a change began. Called after every event until it is done.
    pub(super) fn go_on_resizing(&mut self) {
        self.choose_retiring();
        let mut left = false;
        for id in WorkerId::first(self.workers.len()) {
            let worker = &self.workers[id];
            let may_leave = worker.retires && worker.is_idle() && !self.queues.exclusive.is_for(id);
            if may_leave && matches!(worker.state, State::Free | State::Bound(_)) {
                self.unbind(id, WhyGone::SettingsChanged);
                let is_beyond = self.workers.excess() > 0;
                self.workers[id].dismissed = is_beyond;
                self.tell(id, Command::Leave);
                left = true;
            }
        }
        self.shed();
        if left {
            // Its domain may have calls that wait.
            self.resume();
        }
        let goes = |worker: &Worker| !matches!(worker.state, State::Empty | State::Absent);
        let waits = |worker: &Worker| worker.retires || worker.outdated && goes(worker);
        let is_done = self.workers.excess() == 0
            && self.book.deficit_bytes() == 0
            && !self.workers.iter().any(|(_, worker)| waits(worker));
        self.resizing = !is_done;
    }

    /// Says which residents take no more calls: those beyond the ceiling, and one of before. Where processes are on
    /// their way, as many of them go first.
    fn choose_retiring(&mut self) {
        let coming =
            self.workers.iter().filter(|(_, worker)| worker.is_coming() && !worker.dismissed).count();
        let retiring = |of: &Self| of.workers.iter().filter(|(_, worker)| worker.retires).count();
        let is_there =
            |worker: &Worker| matches!(worker.state, State::Free | State::Bound(_)) && !worker.retires;
        let missing = self.workers.excess().saturating_sub(coming + retiring(self));
        for _ in 0..missing {
            self.retire_one(|of, id, worker| of.may_leave(id) && is_there(worker));
        }
        if coming == 0 && retiring(self) == 0 {
            self.retire_one(|_, _, worker| is_there(worker) && worker.outdated);
        }
    }

    /// Of these residents the one that is worth least takes no more calls: one without calls, if there is one.
    fn retire_one(&mut self, is_one: impl Fn(&Self, WorkerId, &Worker) -> bool) {
        let idle = self.worth_least(|id, worker| is_one(self, id, worker) && worker.is_idle());
        if let Some(worker) = idle.or_else(|| self.worth_least(|id, worker| is_one(self, id, worker))) {
            self.workers[worker].retires = true;
        }
    }

    /// Takes memory back that the device has no more.
    fn shed(&mut self) {
        if self.book.deficit_bytes() > 0 {
            let short = self.book.take_back(self.now_ns, &self.workers, 0, None);
            self.reclaim(short, None, self.calls.in_processes() == 0);
        }
        // Weights that no process has are gone at once.
        if self.book.deficit_bytes() == 0 {
            self.memory_came();
        }
    }
}
