//! Which call gets which worker.

use super::scheduler::{DomainState, Scheduler, State, Worker};
use super::table::CallState;
use super::types::{Action, CallId, Domain, WorkerId};
use crate::limits::SETTLE_NS;

impl Worker {
    /// Whether one more call fits, or one that wants all lanes.
    fn has_room(&self, lanes: u32, all: bool) -> bool {
        match all {
            true => self.busy == 0,
            false => !self.closed && self.busy.count_ones() < lanes,
        }
    }
}

impl<C: Clone> Scheduler<C> {
    /// A worker that can take a call of `domain` at once: its own with a free lane (the fullest first,
    /// so that others stay idle), else one that belongs to nobody. Calls that wait go first.
    pub(super) fn find_lane(&self, now_ns: u64, domain: Domain, all: bool) -> Option<WorkerId> {
        let state = self.domains.get(&domain);
        let held = match state {
            Some(d) => d.held || !d.queue.is_empty(),
            None => self.holds(now_ns, domain.caller),
        };
        if held || self.exclusive.barrier().is_some() {
            return None;
        }
        let own = self.workers.iter().enumerate().filter(|(_, w)| {
            w.state == State::Bound(domain)
                && w.has_room(self.shape.lanes, all)
                && !self.must_leave(now_ns, w)
        });
        let own = own.max_by_key(|(_, w)| w.busy.count_ones()).map(|(id, _)| id);
        let may_have_more = state.is_none_or(|d| d.workers < self.shape.workers_per_domain);
        own.or_else(|| match may_have_more && self.may_bind(domain) {
            true => self.workers.iter().position(|w| w.state == State::Free),
            false => None,
        })
    }

    /// Whether a busy worker takes no more calls: its domain had it long enough and others have none.
    fn must_leave(&self, now_ns: u64, worker: &Worker) -> bool {
        worker.busy != 0
            && self.is_wanted(worker)
            && now_ns.saturating_sub(worker.bound_ns) >= self.shape.residency_ns
    }

    /// Gives a waiting call to a worker that has room for it.
    pub(super) fn start(&mut self, now_ns: u64, worker: WorkerId, id: CallId, actions: &mut Vec<Action<C>>) {
        let Some(entry) = self.table.get_mut(id) else { return };
        let domain = entry.domain;
        self.bind(now_ns, worker, domain);
        let Some(entry) = self.table.get_mut(id) else { return };
        let place = &mut self.workers[worker];
        let lane = place.busy.trailing_ones();
        place.busy |= 1 << lane;
        place.closed = entry.wants_all_lanes();
        entry.state = CallState::Running { worker, lane, overdue: false };
        entry.runs += 1;
        self.queued -= 1;
        self.queued_bytes -= entry.bytes;
        let (generation, alone, call) = (place.generation, entry.suspect, entry.call.clone());
        actions.push(Action::Start { worker, generation, lane, alone, id, call });
        self.turn(actions, |turns, orders| turns.has_work(now_ns, worker, orders));
        if self.budgets.is_careful(now_ns, domain.caller) {
            self.hold(domain.caller);
        }
    }

    /// Gives a worker that belongs to nobody to a domain.
    pub(super) fn bind(&mut self, now_ns: u64, worker: WorkerId, domain: Domain) {
        let place = &mut self.workers[worker];
        if place.state == State::Free {
            place.state = State::Bound(domain);
            place.bound_ns = now_ns;
            let d = self.domain_mut(now_ns, domain);
            d.workers += 1;
            if std::mem::take(&mut d.is_unplaced) {
                self.unplaced.retain(|unplaced| *unplaced != domain);
            }
        }
    }

    /// Puts a domain in line for a worker, if its calls need one and it may have one.
    pub(super) fn stand(&mut self, domain: Domain) {
        let Some(d) = self.domains.get_mut(&domain).filter(|d| !d.held && !d.queue.is_empty()) else {
            return;
        };
        if d.workers == 0 {
            if !std::mem::replace(&mut d.is_unplaced, true) {
                self.unplaced.push_back(domain);
            }
        } else if d.workers < self.shape.workers_per_domain && !std::mem::replace(&mut d.waits, true) {
            self.waiting.push_back(domain);
        }
    }

    /// Takes idle workers from other domains, as many as are needed and not coming already; the one
    /// idle longest goes first, none before its domain had it for its residency. A domain that has workers
    /// gets another only from one idle for as long.
    pub(super) fn make_room(&mut self, now_ns: u64, actions: &mut Vec<Action<C>>) {
        self.room_ns = None;
        self.make_room_within_limits(now_ns, actions);
        let residency_ns = self.shape.residency_ns;
        let coming = self.workers.iter().filter(|w| w.is_coming()).count();
        let (unplaced, wanted) = match self.exclusive.barrier() {
            None => {
                let unplaced = self.unplaced_within_limits();
                (unplaced, unplaced + usize::from(!self.waiting.is_empty()))
            }
            // Only for those that may start before the device is one call's.
            Some(_) => {
                let may = self
                    .unplaced
                    .iter()
                    .filter(|d| self.domains.get(d).is_some_and(|d| self.may_start(d)) && self.may_bind(**d));
                let count = may.count();
                (count, count)
            }
        };
        for nth in coming..wanted {
            let may_go_ns = |w: &Worker| {
                let since_ns = if nth < unplaced { w.bound_ns } else { w.bound_ns.max(w.idle_since_ns) };
                since_ns.saturating_add(residency_ns)
            };
            let idle = || {
                let all = self.workers.iter().enumerate();
                all.filter(|(_, w)| matches!(w.state, State::Bound(_)) && w.busy == 0)
            };
            let ripe = idle().filter(|(_, w)| may_go_ns(w) <= now_ns);
            let Some(worker) = ripe.min_by_key(|(_, w)| w.idle_since_ns).map(|(id, _)| id) else {
                let next_ns = idle().map(|(_, w)| may_go_ns(w)).min();
                self.room_ns = self.room_ns.into_iter().chain(next_ns).min();
                return;
            };
            self.hand_on(now_ns, worker, actions);
        }
    }

    /// An idle worker is made ready for another domain: it gives way to a fresh process, or is scrubbed.
    pub(super) fn hand_on(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        self.unbind(worker);
        let place = &mut self.workers[worker];
        let generation = place.generation;
        if self.shape.scrubs && !place.tainted {
            place.state = State::Scrubbing { until_ns: now_ns.saturating_add(SETTLE_NS) };
            actions.push(Action::Scrub { worker, generation });
        } else {
            actions.push(Action::Replace { worker, generation });
        }
    }

    /// Whether a domain's first call waits for a worker only.
    fn may_start(&self, domain: &DomainState) -> bool {
        let barrier = self.exclusive.barrier();
        domain.queue.front().is_some_and(|first| barrier.is_none_or(|barrier| *first < barrier))
    }

    /// Takes a worker from its domain; the domain may become unplaced.
    pub(super) fn unbind(&mut self, worker: WorkerId) {
        let state = std::mem::replace(&mut self.workers[worker].state, State::Absent);
        let State::Bound(domain) = state else { return };
        let Some(d) = self.domains.get_mut(&domain) else {
            return;
        };
        d.workers -= 1;
        match d.workers == 0 && d.queue.is_empty() {
            true => self.drop_domain(domain),
            false => self.stand(domain),
        }
    }

    /// Forgets a domain that has neither calls nor workers.
    pub(super) fn drop_domain(&mut self, domain: Domain) {
        let Some(d) = self.domains.remove(&domain) else { return };
        if d.waits {
            self.waiting.retain(|waiting| *waiting != domain);
        }
        if d.is_unplaced {
            self.unplaced.retain(|unplaced| *unplaced != domain);
        }
    }

    /// The call that a worker which belongs to nobody should start with: of a domain without workers,
    /// else of one that has more calls than its workers can take.
    fn next_for_free(&mut self) -> Option<CallId> {
        let may = |d: &Domain| self.domains.get(d).is_some_and(|d| self.may_start(d)) && self.may_bind(*d);
        if let Some(at) = self.unplaced.iter().position(may) {
            let domain = self.unplaced.remove(at)?;
            let d = self.domains.get_mut(&domain)?;
            d.is_unplaced = false;
            return d.queue.pop_front();
        }
        for _ in 0..self.waiting.len() {
            let domain = self.waiting.pop_front()?;
            let Some(d) = self.domains.get(&domain) else {
                continue;
            };
            let may_have = d.workers < self.shape.workers_per_domain && self.may_bind(domain);
            let may_start = self.may_start(d);
            let d = self.domains.get_mut(&domain)?;
            d.waits = may_have && !may_start && !d.queue.is_empty();
            if d.waits {
                self.waiting.push_back(domain);
            } else if may_have && may_start {
                return d.queue.pop_front();
            }
        }
        None
    }

    /// Gives a worker with free lanes what it should do next.
    pub(super) fn feed(&mut self, now_ns: u64, worker: WorkerId, actions: &mut Vec<Action<C>>) {
        if self.workers[worker].state == State::Free {
            let Some(first) = self.next_for_free() else { return };
            self.start(now_ns, worker, first, actions);
        }
        let had_it_long = now_ns.saturating_sub(self.workers[worker].bound_ns) >= self.shape.residency_ns;
        if self.workers[worker].busy == 0 && had_it_long && !self.unplaced.is_empty() {
            self.make_room(now_ns, actions);
        }
        let State::Bound(domain) = self.workers[worker].state else {
            return;
        };
        while let Some(next) = self.next_of(now_ns, worker, domain) {
            self.start(now_ns, worker, next, actions);
        }
        // What is left may go to another worker that comes.
        self.stand(domain);
        if self.workers[worker].busy == 0 && !self.unplaced.is_empty() {
            self.make_room(now_ns, actions);
        }
    }

    /// Takes the first call of its domain's queue, if the worker has room for it.
    fn next_of(&mut self, now_ns: u64, worker: WorkerId, domain: Domain) -> Option<CallId> {
        let place = &self.workers[worker];
        if !place.has_room(self.shape.lanes, false) || self.must_leave(now_ns, place) {
            return None;
        }
        let barrier = self.exclusive.barrier();
        let queue = &mut self.domains.get_mut(&domain).filter(|d| !d.held)?.queue;
        let first = *queue.front()?;
        if barrier.is_some_and(|barrier| first > barrier) {
            return None;
        }
        let all = self.table.get(first)?.wants_all_lanes();
        if all && !place.has_room(self.shape.lanes, true) { None } else { queue.pop_front() }
    }
}
