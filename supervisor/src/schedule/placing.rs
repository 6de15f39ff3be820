//! Which call gets which worker: the queues of domains, and the lines in which domains wait for a worker.
//!
//! A worker serves one domain (owner, caller) at a time, not less than the domain's residency while others wait; who
//! gives way then is decided in `residency`.
//! Calls of a domain start by their deadlines (`domain_queue`); domains without a worker are served by the shares of
//! their callers (`domain_line`).

use std::collections::VecDeque;

use super::domain_line::DomainLine;
use super::domain_queue::{DomainQueue, Due};
use super::residency::{Residency, worth_least};
use super::types::{CallId, Domain, Shape, TenantShare};
use super::view::View;
use super::workers::{Worker, WorkerSet};
use crate::ids::{IdMap, TenantId, WorkerId};

/// Device time that a caller may be ahead of others while it keeps a worker that they wait for.
const OVERSTAY_NS: u64 = 1_000_000_000;

/// A resident that is its caller's only one is kept from further domains of others until it had no call for so long.
const IN_USE_NS: u64 = 1_000_000_000;
/// So many domains in line are looked at, from the first, for callers without a worker.
const NEEDY_LOOKED_AT: usize = 64;

/// The domains of one device that have calls or workers.
#[derive(Debug)]
pub(super) struct Placing {
    lanes: u32,
    workers_per_domain: usize,
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
    /// Whether it stands in [`Placing::waiting`].
    waits: bool,
    /// Its caller spent its budget: none of its calls start, and it stands in neither line.
    held: bool,
}

/// A search for workers for domains that wait, see [`Placing::next_to_bring`] and [`Placing::next_to_go`].
#[derive(Debug, Default)]
pub(super) struct Search {
    /// How many processes are still to be brought for domains without workers, and for others.
    to_bring: Option<(usize, usize)>,
    /// For how many of these residents are still to give way.
    to_go: Option<(usize, usize)>,
    /// How many residents may still give way.
    may_go: Option<usize>,
    /// For how many callers without a worker one is still to give way: see [`Placing::needy`].
    needy: Option<usize>,
}

impl Placing {
    /// Without domains.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            lanes: shape.lanes,
            workers_per_domain: shape.workers_per_domain,
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

    /// Whether a domain has calls or workers, and so knows whether its caller is held.
    pub(super) fn knows(&self, domain: Domain) -> bool {
        self.domains.contains_key(&domain)
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
        if blocked || view.exclusive.barrier(domain.caller).is_some() {
            return None;
        }
        let bound = state.map_or(WorkerSet::default(), |d| d.workers);
        let own = view.workers.of(bound);
        let own = own.filter(|(_, w)| w.has_room(all) && !self.must_leave(now_ns, w, view, residency));
        let own = own.max_by_key(|(_, w)| w.busy_lanes()).map(|(id, _)| id);
        let may_have_more = bound.len() < self.workers_per_domain;
        own.or_else(|| view.workers.first_free().filter(|_| may_have_more))
    }

    /// Whether a domain's caller may go on before the first domain that waits for a worker.
    fn goes_on(&self, worker: &Worker) -> bool {
        worker.served().is_some_and(|domain| self.unplaced.goes_before_first(domain.caller, 0))
    }

    /// Whether a busy worker takes no more calls: others have none, its domain had it long enough, longest of those
    /// whose callers had their share, and one may give way.
    fn must_leave(&self, now_ns: u64, worker: &Worker, view: View<'_>, residency: &Residency) -> bool {
        if self.unplaced.is_empty() || worker.is_idle() || self.ends_ns(worker, residency) > now_ns {
            return false;
        }
        let coming = residency.come_soon(view.workers);
        let missing = self.unplaced.len().saturating_sub(coming);
        if missing == 0 || view.workers.first_empty().is_some() || self.goes_on(worker) {
            return false;
        }
        let most = residency.may_go(now_ns, coming, missing).unwrap_or(0);
        let place = |worker: &Worker| (!self.is_one_of_several(worker), worker.bound_ns);
        let stays = |worker: &Worker| self.is_kept(worker) && self.needy() == 0;
        let before = |other: &Worker| {
            other.served().is_some() && place(other) < place(worker) && !self.goes_on(other) && !stays(other)
        };
        !stays(worker) && view.workers.busy().filter(|(_, other)| before(other)).take(most).count() < most
    }

    /// How many workers serve a caller.
    fn workers_of(&self, caller: TenantId) -> usize {
        let domains = self.of_caller.get(&caller).into_iter().flatten();
        domains.filter_map(|domain| self.domains.get(domain)).map(|d| d.workers.len()).sum()
    }

    /// How many callers without a worker have domains that wait.
    fn needy(&self) -> usize {
        if self.several_domains == 0 {
            // All of them.
            return self.unplaced.len();
        }
        let mut callers: Vec<TenantId> = Vec::new();
        for domain in self.unplaced.iter().take(NEEDY_LOOKED_AT) {
            if !callers.contains(&domain.caller) && self.workers_of(domain.caller) == 0 {
                callers.push(domain.caller);
            }
        }
        callers.len()
    }

    /// Whether a worker is kept from further domains of callers that have one: it is its caller's only one, which asks for no
    /// other, and those in line are of no higher class. Otherwise who has many domains, with a small call in each, would have all workers go
    /// round among them.
    fn is_kept(&self, worker: &Worker) -> bool {
        let Some(caller) = worker.served().map(|domain| domain.caller) else { return false };
        let Some(first) = self.unplaced.iter().next() else { return false };
        let asks = |domain: &Domain| self.domains.get(domain).is_some_and(|d| d.is_unplaced);
        self.workers_of(caller) == 1
            && !self.of_caller.get(&caller).into_iter().flatten().any(asks)
            && self.share_of(caller).class <= self.share_of(first.caller).class
    }

    /// Whether the domain of a worker has others.
    fn is_one_of_several(&self, worker: &Worker) -> bool {
        self.several_workers > 0
            && worker
                .served()
                .and_then(|domain| self.domains.get(&domain))
                .is_some_and(|d| d.workers.len() > 1)
    }

    /// When an idle worker may give way to a domain that has none, or to one that has some and more calls than those can
    /// take. What is used again and again is not taken from a domain for another's second worker, nor while another
    /// domain has a second one, nor from a caller that had less than the one that waits, by more than a residency.
    fn gives_way_ns(&self, worker: &Worker, for_unplaced: bool, residency: &Residency) -> u64 {
        let several = self.several_workers > 0;
        let had_less = |domain: Domain| self.unplaced.goes_before_first(domain.caller, residency.least_ns());
        let stays = !for_unplaced
            || several && !self.is_one_of_several(worker)
            || worker.served().is_some_and(had_less);
        let ends_ns = residency.ends_ns(worker, !for_unplaced);
        if stays { ends_ns.max(residency.stays_ns(worker)) } else { ends_ns }
    }

    /// A domain, made if it has nothing yet; `held` says whether its caller is.
    fn domain_mut(&mut self, domain: Domain, held: bool) -> &mut DomainState {
        self.domains.entry(domain).or_insert_with(|| {
            let of_caller = self.of_caller.entry(domain.caller).or_default();
            of_caller.push(domain);
            self.several_domains += usize::from(of_caller.len() == 2);
            DomainState { held, ..DomainState::default() }
        })
    }

    /// A call waits, for the first time or again: of equal deadlines, none overtakes an older one.
    pub(super) fn enqueue(&mut self, domain: Domain, id: CallId, due: Due, held: bool) {
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
    pub(super) fn bound(&mut self, worker: WorkerId, domain: Domain, held: bool) {
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
    }

    /// A domain of the same class that waits behind the first one, whose caller has workers while that of this one has none.
    fn needier_than(&self, first: Domain, view: View<'_>) -> Option<Domain> {
        if self.several_domains == 0 || self.workers_of(first.caller) == 0 {
            return None;
        }
        let class = self.share_of(first.caller).class;
        self.unplaced.iter().take(NEEDY_LOOKED_AT).find(|d| {
            self.workers_of(d.caller) == 0
                && self.share_of(d.caller).class == class
                && self.may_start(*d, view)
        })
    }

    /// The domain that a free worker should serve: one without workers, else one that has more calls than its workers
    /// can take. It is bound to it then.
    pub(super) fn next_for_free(&mut self, view: View<'_>) -> Option<Domain> {
        let next = self.unplaced.iter().find(|d| self.may_start(*d, view));
        let next = next.map(|first| self.needier_than(first, view).unwrap_or(first));
        if let Some(domain) = next {
            self.unplaced.serve(domain);
            self.domains.get_mut(&domain)?.is_unplaced = false;
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

    /// Whether an idle worker may be wanted by domains without workers.
    pub(super) fn has_unplaced(&self) -> bool {
        !self.unplaced.is_empty()
    }

    /// Whether calls wait whose domains have workers, and may have more.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether an idle worker was its domain's long enough and others may want it.
    pub(super) fn may_go(&self, now_ns: u64, worker: &Worker, residency: &Residency) -> bool {
        worker.is_idle() && self.has_unplaced() && self.ends_ns(worker, residency) <= now_ns
    }

    /// Whether an idle worker that [may go](Self::may_go) goes at any pace: its caller had far more than those that wait. At the pace of
    /// residents that give way one after the other, those that happen to be idle then would go in its place for ever.
    pub(super) fn overstays(&self, worker: &Worker, view: View<'_>, residency: &Residency) -> bool {
        self.is_far_ahead(worker) && self.missing(view, residency.come_soon(view.workers)).0 > 0
    }

    /// Whether a worker's caller had far more than those that wait.
    fn is_far_ahead(&self, worker: &Worker) -> bool {
        worker.served().is_some_and(|domain| self.unplaced.ahead_ns(domain.caller) > OVERSTAY_NS)
    }

    /// When a domain need not keep its worker any longer, for one that has none: where its caller is far ahead, whatever the pace. Those
    /// that happen to be idle would have used up the pace before a worker that is busy comes to its end.
    fn ends_ns(&self, worker: &Worker, residency: &Residency) -> u64 {
        match self.is_far_ahead(worker) {
            true => worker.bound_ns.saturating_add(residency.least_ns()),
            false => residency.ends_ns(worker, false),
        }
    }

    /// Begins a search for idle workers that make room for domains that wait.
    pub(super) fn search(&mut self) -> Search {
        (self.room_ns, self.needy_came) = (None, false);
        Search::default()
    }

    /// Whether another worker is needed that is not coming already.
    pub(super) fn next_to_bring(&self, search: &mut Search, view: View<'_>) -> bool {
        let (unplaced, others) =
            search.to_bring.get_or_insert_with(|| self.missing(view, view.workers.coming()));
        let open = if *unplaced > 0 { unplaced } else { others };
        let found = *open > 0;
        *open -= usize::from(found);
        found
    }

    /// The next worker that makes room: it is taken from its domain before the search goes on. As many are found as
    /// are needed and not coming already, at the pace of `residency`; of those that are idle the one that is worth
    /// least goes first, none before its domain had it for its residency. A domain that has workers gets another only
    /// from one idle for as long. One whose domain `waits` for memory stays.
    pub(super) fn next_to_go(
        &mut self,
        now_ns: u64,
        search: &mut Search,
        view: View<'_>,
        residency: &Residency,
        waits: impl Fn(Domain) -> bool,
    ) -> Option<WorkerId> {
        let come_soon = residency.come_soon(view.workers);
        let (unplaced, others) = search.to_go.get_or_insert_with(|| self.missing(view, come_soon));
        let missing = *unplaced + *others;
        if missing == 0 {
            return None;
        }
        if search.may_go.is_none() {
            let may_go = residency.may_go(now_ns, come_soon, missing);
            if let Err(next_ns) = may_go {
                self.room_ns = self.room_ns.into_iter().chain(next_ns).min();
            }
            search.may_go = Some(may_go.unwrap_or(0));
        }
        search.may_go = Some(search.may_go?.checked_sub(1)?);
        let for_unplaced = *unplaced > 0;
        *(if for_unplaced { unplaced } else { others }) -= 1;
        let needy = search.needy.get_or_insert_with(|| self.needy());
        let for_further = for_unplaced && *needy == 0;
        *needy = needy.saturating_sub(1);
        let ends_ns = |w: &Worker| match self.gives_way_ns(w, for_unplaced, residency) {
            ends_ns if for_further && self.is_kept(w) => {
                ends_ns.max(w.idle_since_ns.saturating_add(IN_USE_NS))
            }
            ends_ns => ends_ns,
        };
        let may_go = |w: &Worker| w.served().is_some_and(|domain| !waits(domain));
        let found = worth_least(now_ns, ends_ns, view.idle(may_go));
        if found.is_err() {
            search.to_go = Some((0, 0));
        }
        self.found(found)
    }

    /// How many workers are missing: for domains without any, for which so many `come_soon`, and for others.
    fn missing(&self, view: View<'_>, come_soon: usize) -> (usize, usize) {
        let (unplaced, others) = match view.exclusive.has_barrier() {
            false => (self.unplaced.len(), usize::from(!self.waiting.is_empty())),
            // Only for those that may start before the device is one call's.
            true => (self.unplaced.iter().filter(|d| self.may_start(*d, view)).count(), 0),
        };
        let coming = view.workers.coming();
        let for_others = (unplaced + others).saturating_sub(coming) - unplaced.saturating_sub(coming);
        (unplaced.saturating_sub(come_soon), for_others)
    }

    /// Notes when a worker may go, if none may now.
    fn found(&mut self, found: Result<WorkerId, Option<u64>>) -> Option<WorkerId> {
        if let Err(next_ns) = found {
            self.room_ns = self.room_ns.into_iter().chain(next_ns).min();
        }
        found.ok()
    }

    /// Whether a search for domains without workers just found that none may go before a later moment. What changes that
    /// is followed by a search of its own.
    pub(super) fn is_searched(&self, now_ns: u64) -> bool {
        self.has_unplaced() && !self.needy_came && self.room_ns.is_some_and(|at_ns| at_ns > now_ns)
    }

    /// The same, but for a worker that just has no call any more, which does not give way yet, either.
    pub(super) fn is_searched_but_for(
        &mut self,
        now_ns: u64,
        worker: &Worker,
        residency: &Residency,
    ) -> bool {
        if !self.is_searched(now_ns) {
            return false;
        }
        let ends_ns = self.gives_way_ns(worker, true, residency);
        self.room_ns = self.room_ns.into_iter().chain([ends_ns]).min();
        ends_ns > now_ns
    }

    /// When a search may find a worker that it did not find before.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.room_ns
    }
}

#[cfg(test)]
#[path = "placing_tests.rs"]
mod tests;
