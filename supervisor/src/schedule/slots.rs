//! Which call gets which worker: the queues of domains, and the lines in which domains wait for a worker.
//!
//! A worker serves one domain (owner, caller) at a time, not less than the domain's residency while others wait; which
//! one gives way then is found in `eviction`.
//! Calls of a domain start by their deadlines (`domain_queue`); domains without a worker are served by the shares of
//! their callers, and so are callers that need the whole device (`asks`). Calls that may be in a worker beside strangers' wait for a
//! lane of a `shared` worker.

mod eviction;
mod shared;

use std::collections::VecDeque;

use self::shared::SharedQueues;
use super::asks::Asks;
use super::domain_queue::DomainQueue;
use super::lane_shares;
use super::residency::Residency;
use super::share_line::Front;
use super::types::{CallId, Compartment, Domain, QueueKey, Shape, TenantShare};
use super::view::View;
use super::workers::{Worker, WorkerSet};
use crate::ids::{IdMap, TenantId, WorkerId};

/// The domains of one device that have calls or workers.
#[derive(Debug)]
pub(super) struct Slots {
    lanes: u32,
    workers_per_domain: usize,
    /// Several have the device at the same time: shares are kept by how many lanes each may use.
    shares_lanes: bool,
    domains: IdMap<Domain, DomainState>,
    /// Domains that have several workers.
    several_workers: usize,
    /// The domains of each caller.
    of_caller: IdMap<TenantId, Vec<Domain>>,
    /// Domains with waiting calls and no worker, and callers that need the whole device.
    asks: Asks,
    /// Domains that have workers and may have more calls than those can take.
    waiting: VecDeque<Domain>,
    /// Calls that wait for a shared worker.
    shared: SharedQueues,
    /// When a worker may be taken that a domain waits for.
    room_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct DomainState {
    queue: DomainQueue,
    workers: WorkerSet,
    /// True if it asks for a worker in [`Slots::asks`].
    is_unplaced: bool,
    /// True if it stands in [`Slots::waiting`].
    waits: bool,
    /// True if its caller spent its budget: none of its calls start, and it stands in no line.
    held: bool,
}

impl Slots {
    /// Without domains.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            lanes: shape.lanes,
            workers_per_domain: shape.workers_per_domain,
            shares_lanes: shape.quantum_us.is_none(),
            domains: IdMap::default(),
            several_workers: 0,
            of_caller: IdMap::default(),
            asks: Asks::new(shape.residency_ns),
            waiting: VecDeque::new(),
            shared: SharedQueues::default(),
            room_ns: None,
        }
    }

    /// The device is set up otherwise.
    pub(super) fn resize(&mut self, shape: &Shape) {
        (self.lanes, self.workers_per_domain) = (shape.lanes, shape.workers_per_domain);
        self.asks.set_turn(shape.residency_ns);
        // Those that have workers may have more now.
        let waiting: Vec<_> =
            self.domains.iter().filter(|(_, d)| !d.workers.is_empty()).map(|(domain, _)| *domain).collect();
        waiting.into_iter().for_each(|domain| self.join_line(domain));
    }

    /// A worker that can take a call at once which would wait in this queue: its own with a free lane (the fullest first,
    /// so that others stay idle), else one that is free. Calls that wait go first; so do all others if the call's
    /// payer is `held`, which is asked for a new queue.
    pub(super) fn find_lane(
        &self,
        now_ns: u64,
        queue: QueueKey,
        all: bool,
        held: impl FnOnce() -> bool,
        view: View<'_>,
        residency: &Residency,
    ) -> Option<WorkerId> {
        let domain = match queue {
            QueueKey::Of(domain) => domain,
            QueueKey::Shared(payer) => return self.find_shared_lane(payer, held, view),
        };
        let state = self.domains.get(&domain);
        let blocked = match state {
            Some(d) => d.held || !d.queue.is_empty(),
            None => held(),
        };
        if blocked
            || !self.goes_before(self.asks.device(), domain.caller, None, view)
            || !self.may_use_lane(domain, view)
        {
            return None;
        }
        let bound = state.map_or(WorkerSet::default(), |d| d.workers);
        let own = view.workers.of(bound);
        let own = own.filter(|(_, w)| w.has_room(all) && !self.must_leave(now_ns, w, view, residency));
        let own = own.max_by_key(|(_, w)| w.busy_lanes()).map(|(id, _)| id);
        let may_have_more = bound.len() < self.workers_per_domain;
        own.or_else(|| view.workers.first_free().filter(|_| may_have_more))
    }

    /// The same for a call that may be in a worker beside those of others.
    fn find_shared_lane(
        &self,
        payer: TenantId,
        held: impl FnOnce() -> bool,
        view: View<'_>,
    ) -> Option<WorkerId> {
        if self.asks.has_lanes()
            || self.shared.is_blocked(payer, held)
            || !self.goes_before(self.asks.device(), payer, None, view)
        {
            return None;
        }
        let shared = view.workers.shared().map(|worker| (worker, &view.workers[worker]));
        let has_room = shared.filter(|(_, worker)| worker.is_shared() && worker.has_room(false));
        has_room.max_by_key(|(_, worker)| worker.busy_lanes()).map(|(worker, _)| worker)
    }

    /// A domain, made if it has nothing yet; then `held` is asked whether its caller is.
    fn domain_mut(&mut self, domain: Domain, held: impl FnOnce() -> bool) -> &mut DomainState {
        self.domains.entry(domain).or_insert_with(|| {
            self.of_caller.entry(domain.caller).or_default().push(domain);
            DomainState { held: held(), ..DomainState::default() }
        })
    }

    /// A call waits, for the first time or again, which is over at its deadline and takes so long at least.
    pub(super) fn enqueue(
        &mut self,
        queue: QueueKey,
        id: CallId,
        (deadline_ns, takes_ns): (u64, u64),
        held: impl FnOnce() -> bool,
    ) {
        match queue {
            QueueKey::Of(domain) => {
                self.domain_mut(domain, held).queue.push(id, deadline_ns, takes_ns);
                self.join_line(domain);
            }
            QueueKey::Shared(payer) => self.shared.push(payer, id, deadline_ns, held, &mut self.asks),
        }
    }

    /// True if calls of a compartment wait.
    pub(super) fn has_queued(&self, compartment: Compartment) -> bool {
        match compartment {
            Compartment::Of(domain) => self.domains.get(&domain).is_some_and(|d| !d.queue.is_empty()),
            Compartment::Shared => self.asks.has_lanes(),
        }
    }

    /// How long the calls of a domain that wait before one with this deadline take at least, in all lanes that the
    /// domain could have; none if that is not known, as in a queue for a shared worker.
    pub(super) fn before_ns(&self, queue: QueueKey, deadline_ns: u64) -> Option<u64> {
        let QueueKey::Of(domain) = queue else { return None };
        let queue = &self.domains.get(&domain)?.queue;
        let lanes = u64::from(self.lanes.max(1)) * self.workers_per_domain.max(1) as u64;
        Some(queue.before_ns(deadline_ns)? / lanes)
    }

    /// A caller used the device for so long.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        self.asks.charge(caller, used_ns);
    }

    /// A caller had the whole device for so long.
    pub(super) fn charge_device(&mut self, caller: TenantId, used_ns: u64) {
        self.asks.charge_device(caller, used_ns);
    }

    /// A caller has calls that need the whole device. True if it did not ask for it before.
    pub(super) fn ask_for_device(&mut self, caller: TenantId) -> bool {
        self.asks.push_device(caller)
    }

    /// A caller asks for the whole device no more, or may not now. True if it did.
    pub(super) fn withdraw_device_ask(&mut self, caller: TenantId) -> bool {
        self.asks.remove_device(caller)
    }

    /// The caller to which the whole device goes next, if one asks for it.
    pub(super) fn next_for_device(&self) -> Option<TenantId> {
        self.asks.device().map(|(caller, _)| caller)
    }

    /// A caller has the memory or the whole device that it asked for: those that come begin where it does.
    pub(super) fn serve(&mut self, caller: TenantId) {
        self.asks.serve(caller);
    }

    /// A queue's first call waits for memory.
    pub(super) fn ask_for_memory(&mut self, queue: QueueKey) {
        self.asks.push_memory(queue);
    }

    /// A queue's first call does not wait for memory any more.
    pub(super) fn withdraw_memory_ask(&mut self, queue: QueueKey) {
        self.asks.remove_memory(queue);
    }

    /// The first queue whose first call waits for memory.
    pub(super) fn next_for_memory(&self) -> Option<QueueKey> {
        self.asks.memory()
    }

    /// Payers whose calls wait for a lane of a shared worker, the next one first.
    pub(super) fn next_for_lanes(&self) -> impl Iterator<Item = TenantId> {
        self.asks.lanes()
    }

    /// The weights of the payers whose calls wait for a lane of a shared worker.
    pub(super) fn lanes_weight(&self) -> u32 {
        self.asks.lanes_weight()
    }

    /// True if a payer's calls wait for a lane of a shared worker.
    pub(super) fn asks_for_lane(&self, payer: TenantId) -> bool {
        self.asks.has_lane(payer)
    }

    /// True if a domain's first call waits for memory.
    pub(super) fn waits_for_memory(&self, domain: Domain) -> bool {
        self.asks.has_memory(QueueKey::Of(domain))
    }

    /// True if a caller's call may start, if the whole `device` is asked for: its caller had less than the one that asks, or is that one
    /// and the call waited and came before those for the device.
    fn goes_before(
        &self,
        device: Option<(TenantId, Front)>,
        caller: TenantId,
        waited: Option<CallId>,
        view: View<'_>,
    ) -> bool {
        if view.exclusive.is_closed() {
            return false;
        }
        let Some((asks, front)) = device else { return true };
        let came_before =
            || waited.is_some_and(|id| view.exclusive.first_of(caller).is_some_and(|first| id < first));
        self.asks.goes_before(front, caller) || asks == caller && came_before()
    }

    /// What a caller is given of the device.
    pub(super) fn share_of(&self, caller: TenantId) -> TenantShare {
        self.asks.share_of(caller)
    }

    /// A caller is given this from now on.
    pub(super) fn set_share(&mut self, caller: TenantId, share: TenantShare) {
        self.asks.set_share(caller, share);
    }

    /// A call with this deadline waits no more.
    pub(super) fn unqueue(&mut self, queue: QueueKey, id: CallId, deadline_ns: u64) {
        self.started(queue, id, deadline_ns);
        if self.is_empty(queue) {
            self.asks.remove_memory(queue);
        }
        if let QueueKey::Of(domain) = queue {
            self.drop_if_empty(domain);
        }
    }

    /// True if no call waits in a queue that may start.
    fn is_empty(&self, queue: QueueKey) -> bool {
        match queue {
            QueueKey::Of(domain) => self.domains.get(&domain).is_none_or(|d| d.queue.is_empty()),
            QueueKey::Shared(payer) => self.shared.first(payer).is_none(),
        }
    }

    /// Takes the waiting calls of a queue of which this is true.
    pub(super) fn take(&mut self, queue: QueueKey, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let domain = match queue {
            QueueKey::Of(domain) => domain,
            QueueKey::Shared(payer) => {
                let taken = self.shared.take(payer, is_one, &mut self.asks);
                if self.is_empty(queue) {
                    self.asks.remove_memory(queue);
                }
                return taken;
            }
        };
        let Some(d) = self.domains.get_mut(&domain) else { return Vec::new() };
        let taken = d.queue.take(is_one);
        self.drop_if_empty(domain);
        taken
    }

    /// A worker serves a domain from now on.
    pub(super) fn bound(&mut self, worker: WorkerId, domain: Domain, held: impl FnOnce() -> bool) {
        let d = self.domain_mut(domain, held);
        d.workers.set(worker, true);
        let is_second = d.workers.len() == 2;
        if std::mem::take(&mut d.is_unplaced) {
            self.asks.remove(domain);
        }
        self.several_workers += usize::from(is_second);
    }

    /// A worker serves it no more.
    pub(super) fn unbound(&mut self, worker: WorkerId, domain: Domain) {
        if let Some(d) = self.domains.get_mut(&domain) {
            d.workers.set(worker, false);
            self.several_workers -= usize::from(d.workers.len() == 1);
            self.join_line(domain);
            self.drop_if_empty(domain);
        }
    }

    /// Puts a domain in line for a worker, if its calls need one and it may have one.
    pub(super) fn join_line(&mut self, domain: Domain) {
        let Some(d) = self.domains.get_mut(&domain).filter(|d| !d.held && !d.queue.is_empty()) else {
            return;
        };
        if d.workers.is_empty() {
            if !std::mem::replace(&mut d.is_unplaced, true) {
                self.asks.push(domain);
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
        self.asks.remove_memory(QueueKey::Of(domain));
        if d.waits {
            self.waiting.retain(|waiting| *waiting != domain);
        }
        if d.is_unplaced {
            self.asks.remove(domain);
        }
        if let Some(all) = self.of_caller.get_mut(&domain.caller) {
            all.retain(|one| *one != domain);
            if all.is_empty() {
                self.of_caller.remove(&domain.caller);
            }
        }
    }

    /// No call of a caller starts any more.
    pub(super) fn hold(&mut self, caller: TenantId) {
        self.shared.hold(caller, &mut self.asks);
        self.asks.remove_memory(QueueKey::Shared(caller));
        let mut waited = false;
        for domain in self.of_caller.get(&caller).into_iter().flatten() {
            self.asks.remove_memory(QueueKey::Of(*domain));
            if let Some(d) = self.domains.get_mut(domain) {
                d.held = true;
                if std::mem::take(&mut d.is_unplaced) {
                    self.asks.remove(*domain);
                }
                waited |= std::mem::take(&mut d.waits);
            }
        }
        if waited {
            self.waiting.retain(|domain| domain.caller != caller);
        }
    }

    /// Calls of a caller may start again. True if it was held.
    pub(super) fn release(&mut self, caller: TenantId) -> bool {
        let mut freed: Vec<Domain> = Vec::new();
        for domain in self.of_caller.get(&caller).into_iter().flatten() {
            if let Some(d) = self.domains.get_mut(domain).filter(|d| d.held) {
                d.held = false;
                freed.push(*domain);
            }
        }
        freed.iter().for_each(|domain| self.join_line(*domain));
        self.shared.release(caller, &mut self.asks) | !freed.is_empty()
    }

    /// True if a domain's first call waits for a worker only, if the whole `device` is asked for.
    fn may_start(&self, domain: Domain, device: Option<(TenantId, Front)>, view: View<'_>) -> bool {
        let first = self.domains.get(&domain).and_then(|d| d.queue.first());
        first.is_some()
            && self.goes_before(device, domain.caller, first, view)
            && self.may_use_lane(domain, view)
    }

    /// True if what callers are given decides how many lanes each may use.
    pub(super) fn limits_lanes(&self) -> bool {
        self.shares_lanes && !self.asks.is_even()
    }

    /// True if one more lane may be a domain's. Its first one always may, since the domains of a caller do not wait for each
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
    pub(super) fn next_for_free(&mut self, view: View<'_>) -> Option<Domain> {
        if let Some(domain) = self.next_unplaced(view) {
            self.asks.serve(domain.caller);
            self.asks.remove(domain);
            self.domains.get_mut(&domain)?.is_unplaced = false;
            return Some(domain);
        }
        let device = self.asks.device();
        for _ in 0..self.waiting.len() {
            let domain = self.waiting.pop_front()?;
            let may_start = self.may_start(domain, device, view);
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

    /// The next call of a queue for shared workers, if a worker has room for it.
    pub(super) fn next_shared_of(&self, payer: TenantId, worker: &Worker, view: View<'_>) -> Option<CallId> {
        let first = self.shared.first(payer).filter(|_| worker.has_room(false))?;
        self.goes_before(self.asks.device(), payer, Some(first), view).then_some(first)
    }

    /// The next call of all whom a worker serves, if the worker has room for it: `wants_all` says whether a call
    /// wants all lanes. It waits until it is taken.
    pub(super) fn next_of(
        &self,
        now_ns: u64,
        worker: &Worker,
        wants_all: impl FnOnce(CallId) -> bool,
        view: View<'_>,
        residency: &Residency,
    ) -> Option<CallId> {
        if !worker.has_room(false) {
            return None;
        }
        if worker.is_shared() {
            return self.asks.lanes().find_map(|payer| self.next_shared_of(payer, worker, view));
        }
        if self.must_leave(now_ns, worker, view, residency) {
            return None;
        }
        let domain = worker.served()?;
        let first = self.domains.get(&domain).filter(|d| !d.held)?.queue.first()?;
        if !self.goes_before(self.asks.device(), domain.caller, Some(first), view)
            || !self.may_use_lane(domain, view)
        {
            return None;
        }
        if wants_all(first) && !worker.has_room(true) {
            return None;
        }
        Some(first)
    }

    /// The calls of a domain that are about to start, so many at most.
    pub(super) fn next_few(&self, queue: QueueKey, most: usize) -> impl Iterator<Item = CallId> + Clone {
        let calls = match queue {
            QueueKey::Of(domain) => self.domains.get(&domain).map(|d| &d.queue),
            QueueKey::Shared(payer) => self.shared.calls_of(payer),
        };
        calls.into_iter().flat_map(move |calls| calls.next_few(most))
    }

    /// A call that waited, with this deadline, is in a worker.
    pub(super) fn started(&mut self, queue: QueueKey, id: CallId, deadline_ns: u64) {
        match queue {
            QueueKey::Of(domain) => {
                if let Some(d) = self.domains.get_mut(&domain) {
                    d.queue.remove(id, deadline_ns);
                }
            }
            QueueKey::Shared(payer) => self.shared.remove(payer, id, deadline_ns, &mut self.asks),
        }
    }

    /// True if an idle worker may be wanted by domains without workers.
    pub(super) fn has_unplaced(&self) -> bool {
        self.asks.domains() > 0
    }

    /// True if anybody asks for anything.
    pub(super) fn has_asks(&self) -> bool {
        self.asks.has_any()
    }

    /// True if anybody asks for a worker or for the whole device.
    pub(super) fn is_wanted_outside(&self) -> bool {
        self.has_unplaced() || self.asks.has_device()
    }

    /// True if calls wait whose domains have workers, and may have more.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
