//! Which call gets which worker: the queues of domains, and the lines in which domains wait for a worker.
//!
//! A worker serves one domain (owner, caller) at a time, not less than the domain's residency while others wait; which
//! one gives way then is found in `giving_way`.
//! Calls of a domain start by their deadlines (`domain_queue`); domains without a worker are served by the shares of
//! their callers (`domain_line`).

mod giving_way;

use std::collections::VecDeque;

use super::domain_line::DomainLine;
use super::domain_queue::{DomainQueue, Due};
use super::lane_shares;
use super::residency::Residency;
use super::types::{CallId, Domain, Shape, TenantShare};
use super::view::View;
use super::workers::{Worker, WorkerSet};
use crate::ids::{IdMap, TenantId, WorkerId};

/// The domains of one device that have calls or workers.
#[derive(Debug)]
pub(super) struct Placing {
    lanes: u32,
    workers_per_domain: usize,
    /// Several have the device at the same time: shares are kept by how many lanes each may use.
    shares_lanes: bool,
    domains: IdMap<Domain, DomainState>,
    /// Domains that have several workers.
    several_workers: usize,
    /// The domains of each caller.
    of_caller: IdMap<TenantId, Vec<Domain>>,
    /// Callers that have several domains.
    several_domains: usize,
    /// Domains with waiting calls and no worker.
    unplaced: DomainLine,
    /// Domains that have workers and may have more calls than those can take.
    waiting: VecDeque<Domain>,
    /// When a worker may be taken that a domain waits for.
    room_ns: Option<u64>,
    /// Since the last search a domain came whose caller has no worker, while others have several domains.
    needy_came: bool,
}

#[derive(Debug, Default)]
struct DomainState {
    queue: DomainQueue,
    workers: WorkerSet,
    /// Whether it stands in [`Placing::unplaced`].
    is_unplaced: bool,
    /// How often others came before it while it was the first there.
    passed_over: u32,
    /// Whether it stands in [`Placing::waiting`].
    waits: bool,
    /// Its caller spent its budget: none of its calls start, and it stands in neither line.
    held: bool,
}

impl Placing {
    /// Without domains.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            lanes: shape.lanes,
            workers_per_domain: shape.workers_per_domain,
            shares_lanes: shape.quantum_us.is_none(),
            domains: IdMap::default(),
            several_workers: 0,
            of_caller: IdMap::default(),
            several_domains: 0,
            unplaced: DomainLine::new(shape.residency_ns),
            waiting: VecDeque::new(),
            room_ns: None,
            needy_came: false,
        }
    }

    /// The device is set up otherwise.
    pub(super) fn resize(&mut self, shape: &Shape) {
        (self.lanes, self.workers_per_domain) = (shape.lanes, shape.workers_per_domain);
        self.unplaced.set_turn(shape.residency_ns);
        // Those that have workers may have more now.
        let waiting: Vec<_> =
            self.domains.iter().filter(|(_, d)| !d.workers.is_empty()).map(|(domain, _)| *domain).collect();
        waiting.into_iter().for_each(|domain| self.stand(domain));
    }

    /// A worker that can take a call of `domain` at once: its own with a free lane (the fullest first,
    /// so that others stay idle), else one that is free. Calls that wait go first; so do all others if the domain's
    /// caller is `held`, which is asked for a new domain.
    pub(super) fn find_lane(
        &self,
        now_ns: u64,
        domain: Domain,
        all: bool,
        held: impl FnOnce() -> bool,
        view: View<'_>,
        residency: &Residency,
    ) -> Option<WorkerId> {
        let state = self.domains.get(&domain);
        let blocked = match state {
            Some(d) => d.held || !d.queue.is_empty(),
            None => held(),
        };
        if blocked || view.exclusive.barrier(domain.caller).is_some() || !self.may_use_lane(domain, view) {
            return None;
        }
        let bound = state.map_or(WorkerSet::default(), |d| d.workers);
        let own = view.workers.of(bound);
        let own = own.filter(|(_, w)| w.has_room(all) && !self.must_leave(now_ns, w, view, residency));
        let own = own.max_by_key(|(_, w)| w.busy_lanes()).map(|(id, _)| id);
        let may_have_more = bound.len() < self.workers_per_domain;
        own.or_else(|| view.workers.first_free().filter(|_| may_have_more))
    }

    /// A domain, made if it has nothing yet; then `held` is asked whether its caller is.
    fn domain_mut(&mut self, domain: Domain, held: impl FnOnce() -> bool) -> &mut DomainState {
        self.domains.entry(domain).or_insert_with(|| {
            let of_caller = self.of_caller.entry(domain.caller).or_default();
            of_caller.push(domain);
            self.several_domains += usize::from(of_caller.len() == 2);
            DomainState { held: held(), ..DomainState::default() }
        })
    }

    /// A call waits, for the first time or again: of equal deadlines, none overtakes an older one.
    pub(super) fn enqueue(&mut self, domain: Domain, id: CallId, due: Due, held: impl FnOnce() -> bool) {
        self.domain_mut(domain, held).queue.push(id, due);
        self.stand(domain);
    }

    /// Whether calls of a domain wait.
    pub(super) fn has_queued(&self, domain: Domain) -> bool {
        self.domains.get(&domain).is_some_and(|d| !d.queue.is_empty())
    }

    /// How long the calls of a domain that wait before one with this deadline take at least, in all lanes that the
    /// domain could have; none if that is not known.
    pub(super) fn before_ns(&self, domain: Domain, deadline_ns: u64) -> Option<u64> {
        let queue = &self.domains.get(&domain)?.queue;
        let lanes = u64::from(self.lanes.max(1)) * self.workers_per_domain.max(1) as u64;
        Some(queue.before_ns(deadline_ns)? / lanes)
    }

    /// A caller used the device for so long.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        self.unplaced.charge(caller, used_ns);
    }

    /// What a caller is given of the device.
    pub(super) fn share_of(&self, caller: TenantId) -> TenantShare {
        self.unplaced.share_of(caller)
    }

    /// A caller is given this from now on.
    pub(super) fn set_share(&mut self, caller: TenantId, share: TenantShare) {
        self.unplaced.set_share(caller, share);
    }

    /// A call waits no more.
    pub(super) fn unqueue(&mut self, domain: Domain, id: CallId) {
        let Some(d) = self.domains.get_mut(&domain) else { return };
        d.queue.remove(id);
        self.drop_if_empty(domain);
    }

    /// Takes the waiting calls of a domain of which this is true.
    pub(super) fn take(&mut self, domain: Domain, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let Some(d) = self.domains.get_mut(&domain) else { return Vec::new() };
        let taken = d.queue.take(is_one);
        self.drop_if_empty(domain);
        taken
    }

    /// Whether any call waits that may start and came before this one, or at any time.
    pub(super) fn has_older(&self, before: Option<CallId>) -> bool {
        let is_older = |first: CallId| before.is_none_or(|before| first < before);
        self.domains.values().any(|d| !d.held && d.queue.oldest().is_some_and(is_older))
    }

    /// How many callers of those of which this is true have calls that wait and may start.
    pub(super) fn waiting_callers(&self, counts: impl Fn(TenantId) -> bool) -> u64 {
        let waits =
            |domain: &Domain| self.domains.get(domain).is_some_and(|d| !d.held && !d.queue.is_empty());
        let callers =
            self.of_caller.iter().filter(|(caller, domains)| counts(**caller) && domains.iter().any(waits));
        callers.count() as u64
    }

    /// A worker serves a domain from now on.
    pub(super) fn bound(&mut self, worker: WorkerId, domain: Domain, held: impl FnOnce() -> bool) {
        let d = self.domain_mut(domain, held);
        d.workers.set(worker, true);
        let is_second = d.workers.len() == 2;
        if std::mem::take(&mut d.is_unplaced) {
            self.unplaced.remove(domain);
        }
        self.several_workers += usize::from(is_second);
    }

    /// A worker serves it no more.
    pub(super) fn unbound(&mut self, worker: WorkerId, domain: Domain) {
        if let Some(d) = self.domains.get_mut(&domain) {
            d.workers.set(worker, false);
            self.several_workers -= usize::from(d.workers.len() == 1);
            self.stand(domain);
            self.drop_if_empty(domain);
        }
    }

    /// Puts a domain in line for a worker, if its calls need one and it may have one.
    pub(super) fn stand(&mut self, domain: Domain) {
        let Some(d) = self.domains.get_mut(&domain).filter(|d| !d.held && !d.queue.is_empty()) else {
            return;
        };
        if d.workers.is_empty() {
            if !std::mem::replace(&mut d.is_unplaced, true) {
                self.unplaced.push(domain);
                self.needy_came |= self.several_domains > 0 && self.workers_of(domain.caller) == 0;
            }
        } else if d.workers.len() < self.workers_per_domain && !std::mem::replace(&mut d.waits, true) {
            self.waiting.push_back(domain);
        }
    }

    /// Forgets a domain that has neither calls nor workers.
    fn drop_if_empty(&mut self, domain: Domain) {
        if !self.domains.get(&domain).is_some_and(|d| d.workers.is_empty() && d.queue.is_empty()) {
            return;
        }
        let Some(d) = self.domains.remove(&domain) else { return };
        if d.waits {
            self.waiting.retain(|waiting| *waiting != domain);
        }
        if d.is_unplaced {
            self.unplaced.remove(domain);
        }
        if let Some(all) = self.of_caller.get_mut(&domain.caller) {
            all.retain(|one| *one != domain);
            self.several_domains -= usize::from(all.len() == 1);
            if all.is_empty() {
                self.of_caller.remove(&domain.caller);
            }
        }
    }

    /// No call of a caller starts any more.
    pub(super) fn hold(&mut self, caller: TenantId) {
        let mut waited = false;
        for domain in self.of_caller.get(&caller).into_iter().flatten() {
            if let Some(d) = self.domains.get_mut(domain) {
                d.held = true;
                if std::mem::take(&mut d.is_unplaced) {
                    self.unplaced.remove(*domain);
                }
                waited |= std::mem::take(&mut d.waits);
            }
        }
        if waited {
            self.waiting.retain(|domain| domain.caller != caller);
        }
    }

    /// Calls of a caller may start again; whether it was held.
    pub(super) fn release(&mut self, caller: TenantId) -> bool {
        let mut freed: Vec<(Option<CallId>, Domain)> = Vec::new();
        for domain in self.of_caller.get(&caller).into_iter().flatten() {
            if let Some(d) = self.domains.get_mut(domain).filter(|d| d.held) {
                d.held = false;
                freed.push((d.queue.oldest(), *domain));
            }
        }
        // The one that waited longest first.
        freed.sort_unstable_by_key(|(first, _)| *first);
        freed.iter().for_each(|(_, domain)| self.stand(*domain));
        !freed.is_empty()
    }

    /// Whether a domain's first call waits for a worker only.
    fn may_start(&self, domain: Domain, view: View<'_>) -> bool {
        self.domains
            .get(&domain)
            .is_some_and(|d| d.queue.first(view.exclusive.barrier(domain.caller)).is_some())
            && self.may_use_lane(domain, view)
    }

    /// Whether what callers are given decides how many lanes each may use.
    pub(super) fn limits_lanes(&self) -> bool {
        self.shares_lanes && !self.unplaced.is_even()
    }

    /// Whether one more lane may be a domain's. Its first one always may, since the domains of a caller do not wait for each
    /// other.
    fn may_use_lane(&self, domain: Domain, view: View<'_>) -> bool {
        let busy = || view.workers.busy().map(|(_, worker)| worker);
        if !self.limits_lanes() || !busy().any(|worker| worker.served() == Some(domain)) {
            return true;
        }
        let caller = domain.caller;
        let used: u32 = busy().filter(|worker| worker.serves(caller)).map(Worker::busy_lanes).sum();
        let callers = busy().filter_map(Worker::served).map(|domain| domain.caller);
        let others = callers.filter(|other| *other != caller).map(|other| self.share_of(other));
        let lanes = self.lanes.saturating_mul(u32::try_from(self.workers_per_domain).unwrap_or(u32::MAX));
        used < lane_shares::most(lanes, self.share_of(caller), others)
    }

    /// The domain that a free worker should serve: one without workers, else one that has more calls than its workers
    /// can take. It is bound to it then.
    pub(super) fn next_for_free(&mut self, now_ns: u64, view: View<'_>) -> Option<Domain> {
        if let Some((first, domain)) = self.next_unplaced(now_ns, view) {
            self.unplaced.serve(domain);
            self.domains.get_mut(&first)?.passed_over += 1;
            let state = self.domains.get_mut(&domain)?;
            (state.is_unplaced, state.passed_over) = (false, 0);
            return Some(domain);
        }
        for _ in 0..self.waiting.len() {
            let domain = self.waiting.pop_front()?;
            let may_start = self.may_start(domain, view);
            let Some(d) = self.domains.get_mut(&domain) else {
                continue;
            };
            let may_have = d.workers.len() < self.workers_per_domain;
            d.waits = may_have && !may_start && !d.queue.is_empty();
            if d.waits {
                self.waiting.push_back(domain);
            } else if may_have && may_start {
                return Some(domain);
            }
        }
        None
    }

    /// The next call of the domain that a worker serves, if the worker has room for it: `wants_all` says whether a call
    /// wants all lanes. It waits until it is taken.
    pub(super) fn next_of(
        &self,
        now_ns: u64,
        worker: &Worker,
        wants_all: impl FnOnce(CallId) -> bool,
        view: View<'_>,
        residency: &Residency,
    ) -> Option<CallId> {
        if !worker.has_room(false) || self.must_leave(now_ns, worker, view, residency) {
            return None;
        }
        let domain = worker.served()?;
        if !self.may_use_lane(domain, view) {
            return None;
        }
        let queue = &self.domains.get(&domain).filter(|d| !d.held)?.queue;
        let first = queue.first(view.exclusive.barrier(domain.caller))?;
        if wants_all(first) && !worker.has_room(true) {
            return None;
        }
        Some(first)
    }

    /// The calls of a domain that are about to start, so many at most.
    pub(super) fn next_few(&self, domain: Domain, most: usize) -> impl Iterator<Item = CallId> + Clone {
        self.domains.get(&domain).into_iter().flat_map(move |d| d.queue.next_few(most))
    }

    /// A call of a domain that waited is in a worker.
    pub(super) fn started(&mut self, domain: Domain, id: CallId) {
        if let Some(d) = self.domains.get_mut(&domain) {
            d.queue.remove(id);
        }
    }

    /// How many domains without workers wait for one.
    pub(super) fn unplaced(&self) -> usize {
        self.unplaced.len()
    }

    /// Whether an idle worker may be wanted by domains without workers.
    pub(super) fn has_unplaced(&self) -> bool {
        !self.unplaced.is_empty()
    }

    /// Whether calls wait whose domains have workers, and may have more.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
#[path = "placing_tests.rs"]
mod tests;
