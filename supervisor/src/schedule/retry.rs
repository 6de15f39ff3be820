//! Calls whose process ended are run again: functions are pure, and a call that merely shared a worker
//! with a guilty one is owed its result.
//!
//! Each is a suspect. It goes to the front of its domain's queue and runs alone from then on; one that
//! runs alone when its process ends is guilty. Alone means that no other call is in its worker, and where faults
//! hit the calls of other workers, too, that none is on the device. A call that was never handed over is no suspect.

use super::scheduler::{Scheduler, State};
use super::table::CallState;
use super::types::{Action, CallId, Ended, Verdict, WorkerId};
use crate::limits::MAX_RUNS;

impl<C: Clone> Scheduler<C> {
    /// The process in `worker`'s place is gone, or takes no more calls: returns those that were in it,
    /// oldest first. Once nothing writes to their regions any more, [`Scheduler::buried`] decides about them.
    pub fn worker_gone(
        &mut self,
        now_ns: u64,
        worker: WorkerId,
        actions: &mut Vec<Action<C>>,
    ) -> Vec<(CallId, C)> {
        let charged = self.turn(actions, |turns, orders| turns.gone(now_ns, worker, orders));
        self.charge(worker, charged.unwrap_or(0));
        let served = self.served(worker);
        self.unbind(worker);
        (self.workers[worker].busy, self.workers[worker].closed) = (0, false);
        let mut lost = Vec::new();
        for id in self.table.running_in(worker) {
            let Some(entry) = self.table.get_mut(id) else { continue };
            let overdue = matches!(entry.state, CallState::Running { overdue: true, .. });
            entry.state = CallState::Lost { overdue };
            lost.push((id, entry.call.clone()));
        }
        // Not before: what it sets going looks for workers.
        if !self.shape.shared_faults {
            self.draw(now_ns, served, actions);
        }
        self.leave_whole(now_ns, worker, actions);
        if let Some(domain) = served {
            self.review(now_ns, domain.caller, actions);
        }
        lost
    }

    /// Nothing of a lost call is left: it waits again, or is over. `handed` says whether its process
    /// ever got it.
    pub fn buried(
        &mut self,
        now_ns: u64,
        id: CallId,
        handed: bool,
        actions: &mut Vec<Action<C>>,
    ) -> Option<(C, Ended)> {
        let entry = self.table.get_mut(id)?;
        let CallState::Lost { overdue } = entry.state else { return None };
        let ended = if overdue || entry.deadline_ns <= now_ns {
            Some(Ended::Deadline)
        } else if entry.detached {
            Some(Ended::Detached)
        } else if handed && (entry.suspect || entry.runs >= MAX_RUNS) {
            Some(Ended::Guilty)
        } else {
            None
        };
        if let Some(ended) = ended {
            let entry = self.table.remove(id)?;
            if ended == Ended::Guilty {
                if self.shape.shared_faults {
                    self.draw(now_ns, Some(entry.domain), actions);
                }
                self.judge(now_ns, &entry, Verdict::Fault, actions);
            } else {
                self.judge(now_ns, &entry, Verdict::Neither, actions);
            }
            self.try_whole(now_ns, actions);
            return Some((entry.call, ended));
        }
        match handed {
            true => entry.suspect = true,
            false => entry.runs -= 1,
        }
        entry.state = CallState::Queued;
        let domain = entry.domain;
        let wants_device = entry.wants_device(self.shape.shared_faults);
        self.queued += 1;
        self.queued_bytes += entry.bytes;
        if wants_device {
            self.line_up(now_ns, domain, id, actions);
            return None;
        }
        let queue = &mut self.domain_mut(now_ns, domain).queue;
        // Several that come back keep their order: none overtakes an older one.
        let at = queue.iter().take_while(|first| **first < id).count();
        queue.insert(at, id);
        self.stand(domain);
        for worker in 0..self.workers.len() {
            let state = self.workers[worker].state;
            if state == State::Free || state == State::Bound(domain) {
                self.feed(now_ns, worker, actions);
            }
        }
        self.make_room(now_ns, actions);
        self.try_whole(now_ns, actions);
        None
    }
}
