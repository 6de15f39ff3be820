//! Which domain without workers is next, and which worker gives way to it: a busy one takes no more calls, or an idle one is
//! taken from its domain. For how long a domain keeps its worker is decided in `residency`.

use super::super::residency::{Residency, worth_least};
use super::super::share_line::Front;
use super::super::types::Domain;
use super::super::view::View;
use super::super::workers::Worker;
use super::Placing;
use crate::ids::{TenantId, WorkerId};

/// Device time that a caller may be ahead of others while it keeps a worker that they wait for.
const OVERSTAY_NS: u64 = 1_000_000_000;

/// A resident that is its caller's only one is kept from further domains of others until it had no call for so long.
const IN_USE_NS: u64 = 1_000_000_000;
/// So many domains in line are looked at, from the first, for callers without a worker and for calls that may be in time.
const LOOKED_AT: usize = 64;
/// So often others may come before the first domain in line.
const PASSES: u32 = 16;

/// A search for workers for domains that wait, see [`Placing::next_to_bring`] and [`Placing::next_to_go`].
#[derive(Debug, Default)]
pub(in super::super) struct Search {
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
    /// Whether a domain's caller may go on before the first domain that waits for a worker, where the line begins there.
    fn goes_on(&self, front: Front, worker: &Worker) -> bool {
        worker.served().is_some_and(|domain| self.unplaced.goes_before(front, domain.caller, 0))
    }

    /// Whether a busy worker takes no more calls: others have none, its domain had it long enough, longest of those
    /// whose callers had their share, and one may give way.
    pub(super) fn must_leave(
        &self,
        now_ns: u64,
        worker: &Worker,
        view: View<'_>,
        residency: &Residency,
    ) -> bool {
        if self.unplaced.is_empty() || worker.is_idle() || self.ends_ns(worker, residency) > now_ns {
            return false;
        }
        let coming = residency.come_soon(view.workers);
        let missing = self.unplaced.len().saturating_sub(coming);
        let front = self.unplaced.front();
        let is_filled = view.workers.first_empty().is_some() && !residency.is_stuck(now_ns);
        if missing == 0 || is_filled || self.goes_on(front, worker) {
            return false;
        }
        let most = residency.may_go(now_ns, coming, missing).unwrap_or(0);
        let place = |worker: &Worker| (!self.is_one_of_several(worker), worker.bound_ns);
        let stays = |worker: &Worker| self.is_kept(worker) && self.needy() == 0;
        let before = |other: &Worker| {
            other.served().is_some()
                && place(other) < place(worker)
                && !self.goes_on(front, other)
                && !stays(other)
        };
        !stays(worker) && view.workers.busy().filter(|(_, other)| before(other)).take(most).count() < most
    }

    /// How many workers serve a caller.
    pub(super) fn workers_of(&self, caller: TenantId) -> usize {
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
        for domain in self.unplaced.iter().take(LOOKED_AT) {
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
    fn gives_way_ns(&self, front: Front, worker: &Worker, for_unplaced: bool, residency: &Residency) -> u64 {
        let (ends_ns, stays_ns) = (residency.ends_ns(worker, !for_unplaced), residency.stays_ns(worker));
        let several = self.several_workers > 0;
        let least_ns = residency.least_ns();
        let had_less = |domain: Domain| self.unplaced.goes_before(front, domain.caller, least_ns);
        let stays = || {
            !for_unplaced
                || several && !self.is_one_of_several(worker)
                || worker.served().is_some_and(had_less)
        };
        if stays_ns > ends_ns && stays() { stays_ns } else { ends_ns }
    }

    /// The first of the domains without workers, and the next one. That is the first, or another of its class: callers that have no
    /// worker come first, and among equals the first domain that has a call which can meet its deadline. Where hundreds wait for
    /// few workers, the call of the one that has waited longest is about to expire. None is passed over again and again.
    pub(super) fn next_unplaced(&self, now_ns: u64, view: View<'_>) -> Option<(Domain, Domain)> {
        let first = self.unplaced.iter().find(|d| self.may_start(*d, view))?;
        let is_in_time = |d: &Domain| self.domains.get(d).is_some_and(|d| d.queue.is_in_time(now_ns));
        let is_needy = |d: &Domain| self.several_domains == 0 || self.workers_of(d.caller) == 0;
        let was_passed_over = |d: &Domain| self.domains.get(d).is_some_and(|d| d.passed_over >= PASSES);
        if was_passed_over(&first) || is_needy(&first) && is_in_time(&first) {
            return Some((first, first));
        }
        let class = self.share_of(first.caller).class;
        let may_be = |d: &Domain| self.share_of(d.caller).class == class && self.may_start(*d, view);
        let looked_at: Vec<Domain> = self.unplaced.iter().take(LOOKED_AT).filter(may_be).collect();
        let needy = || looked_at.iter().filter(|d| is_needy(d));
        let best = needy().find(|d| is_in_time(d)).or_else(|| needy().next());
        Some((first, *best.or_else(|| looked_at.iter().find(|d| is_in_time(d))).unwrap_or(&first)))
    }

    /// Whether an idle worker was its domain's long enough and others may want it.
    pub(in super::super) fn may_go(&self, now_ns: u64, worker: &Worker, residency: &Residency) -> bool {
        worker.is_idle() && self.has_unplaced() && self.ends_ns(worker, residency) <= now_ns
    }

    /// Whether an idle worker that [may go](Self::may_go) goes at any pace: its caller had far more than those that wait. At the pace of
    /// residents that give way one after the other, those that happen to be idle then would go in its place for ever. While slots are
    /// empty and processes come there, it stays: those that wait get theirs as soon.
    pub(in super::super) fn overstays(
        &self,
        now_ns: u64,
        worker: &Worker,
        view: View<'_>,
        residency: &Residency,
    ) -> bool {
        self.is_far_ahead(worker)
            && !(view.workers.first_empty().is_some() && residency.fills_slots(now_ns))
            && self.missing(view, residency.come_soon(view.workers)).0 > 0
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
    pub(in super::super) fn search(&mut self) -> Search {
        (self.room_ns, self.needy_came) = (None, false);
        Search::default()
    }

    /// Whether another worker is needed that is not coming already.
    pub(in super::super) fn next_to_bring(&self, search: &mut Search, view: View<'_>) -> bool {
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
    pub(in super::super) fn next_to_go(
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
        let front = self.unplaced.front();
        let ends_ns = |w: &Worker| match self.gives_way_ns(front, w, for_unplaced, residency) {
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
            false => {
                let wants = self.waiting.iter().any(|domain| self.may_use_lane(*domain, view));
                (self.unplaced.len(), usize::from(wants))
            }
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
    pub(in super::super) fn is_searched(&self, now_ns: u64) -> bool {
        self.has_unplaced() && !self.needy_came && self.room_ns.is_some_and(|at_ns| at_ns > now_ns)
    }

    /// The same, but for a worker that just has no call any more, which does not give way yet, either.
    pub(in super::super) fn is_searched_but_for(
        &mut self,
        now_ns: u64,
        worker: &Worker,
        residency: &Residency,
    ) -> bool {
        if !self.is_searched(now_ns) {
            return false;
        }
        let ends_ns = self.gives_way_ns(self.unplaced.front(), worker, true, residency);
        self.room_ns = self.room_ns.into_iter().chain([ends_ns]).min();
        ends_ns > now_ns
    }

    /// When a search may find a worker that it did not find before.
    pub(in super::super) fn next_ns(&self) -> Option<u64> {
        self.room_ns
    }
}
