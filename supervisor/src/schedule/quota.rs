//! How many workers one caller may have at the same time, whichever domains they serve. Only callers with a
//! limit cost anything here.

use super::scheduler::{Scheduler, State, Worker};
use super::types::{Action, Domain, WorkerId};

impl<C: Clone> Scheduler<C> {
    /// A caller may have so many workers from now on, or as many as there are. Those it has too many stay with
    /// their domains.
    pub fn allow(&mut self, caller: u32, most: Option<usize>) {
        match most {
            Some(most) => drop(self.caps.insert(caller, most)),
            None if self.caps.is_empty() => {}
            None => drop(self.caps.remove(&caller)),
        }
    }

    /// Callers with a limit.
    pub fn limited(&self) -> Vec<u32> {
        self.caps.keys().copied().collect()
    }

    /// How many workers serve a caller.
    pub fn workers_of(&self, caller: u32) -> usize {
        let serves =
            |worker: &&Worker| matches!(worker.state, State::Bound(domain) if domain.caller == caller);
        self.workers.iter().filter(serves).count()
    }

    /// The workers that serve a domain.
    pub fn serving(&self, domain: Domain) -> Vec<WorkerId> {
        let serves = |(_, worker): &(usize, &Worker)| worker.state == State::Bound(domain);
        self.workers.iter().enumerate().filter(serves).map(|(id, _)| id).collect()
    }

    /// Starts what may start now, after limits changed.
    pub fn limits_changed(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        self.resume(now_ns, actions);
    }

    /// Whether a domain's caller may have one more worker.
    pub(super) fn may_bind(&self, domain: Domain) -> bool {
        self.caps.get(&domain.caller).is_none_or(|most| self.workers_of(domain.caller) < *most)
    }

    /// Whether any domain without workers could have one that is `worker` now: those of callers that have as many
    /// as they may can only have their own.
    pub(super) fn is_wanted(&self, worker: &Worker) -> bool {
        if self.caps.is_empty() {
            return !self.unplaced.is_empty();
        }
        let own = |d: &Domain| matches!(worker.state, State::Bound(domain) if domain.caller == d.caller);
        self.unplaced.iter().any(|d| self.may_bind(*d) || own(d))
    }

    /// Domains without workers that may have one.
    pub(super) fn unplaced_within_limits(&self) -> usize {
        match self.caps.is_empty() {
            true => self.unplaced.len(),
            false => self.unplaced.iter().filter(|d| self.may_bind(**d)).count(),
        }
    }

    /// Where a caller has as many workers as it may, and one of its domains has calls and none of them: an idle
    /// one gives way, the one idle longest first, none before its domain had it for its residency.
    pub(super) fn make_room_within_limits(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        if self.caps.is_empty() || self.exclusive.barrier().is_some() {
            return;
        }
        let mut at = 0;
        while let Some(domain) = self.unplaced.get(at).copied() {
            at += 1;
            let over = |most: &usize| self.workers_of(domain.caller) >= *most && *most > 0;
            if !self.caps.get(&domain.caller).is_some_and(over) {
                continue;
            }
            let idle = || {
                self.workers.iter().enumerate().filter(|(_, worker)| {
                    worker.busy == 0 && matches!(worker.state, State::Bound(d) if d.caller == domain.caller)
                })
            };
            let may_go_ns = |worker: &Worker| worker.bound_ns.saturating_add(self.shape.residency_ns);
            let ripe = idle().filter(|(_, worker)| may_go_ns(worker) <= now_ns);
            match ripe.min_by_key(|(_, worker)| worker.idle_since_ns).map(|(worker, _)| worker) {
                Some(worker) => self.hand_on(now_ns, worker, actions),
                None => {
                    let next_ns = idle().map(|(_, worker)| may_go_ns(worker)).min();
                    self.room_ns = self.room_ns.into_iter().chain(next_ns).min();
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
