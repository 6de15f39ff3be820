//! Which call gets which worker: the queues in which calls wait, and the lines in which queues wait for a worker.
//!
//! A queue is a domain's (owner, caller), for workers of its own or for the whole device, or a payer's for lanes of shared workers. A
//! worker of a domain's serves that domain alone, not less than the domain's residency while others wait; which one gives way then is
//! found in `eviction`. Calls of a queue start by their deadlines (`domain_queue`). Domains without a worker are served by the shares of
//! their callers, and so are payers whose calls wait for a lane, and domains that need the whole device (`asks`).

mod eviction;

use super::asks::{Ask, Asks, Exclusive, QueueKey};
use super::domain_queue::DomainQueue;
use super::residency::Residency;
use super::share_line::Front;
use super::types::{CallId, Compartment, Domain, Shape, TenantShare};
use super::workers::{Worker, WorkerSet, Workers};
use crate::ids::{IdMap, TenantId, WorkerId};

/// The queues of one device that have calls or workers.
#[derive(Debug)]
pub(super) struct Queues {
    shape: Shape,
    queues: IdMap<QueueKey, Queue>,
    /// Domains that have several workers.
    several_workers: usize,
    /// The queues of each caller.
    of_caller: IdMap<TenantId, Vec<QueueKey>>,
    /// The one line of all that anybody asks for.
    pub(super) asks: Asks,
    pub(super) exclusive: Exclusive,
    pub(super) residency: Residency,
    /// When a worker may be taken that a domain waits for.
    room_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    calls: DomainQueue,
    /// The domain's workers; none where the calls wait for shared ones.
    workers: WorkerSet,
    /// True if the caller spent its budget: no call of the queue starts, and the queue stands in no line.
    held: bool,
}

/// The state of others that queues are looked at beside.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now_ns: u64,
    pub(super) workers: &'a Workers,
}

/// How many of so many lanes a tenant may use, beside others that have calls. Where several have the device at the same time
/// (`turns=off`, MPS), nobody's calls wait for another's there, so that shares are kept by how many of them run.
///
/// Of the lanes that a domain could have, those of the heaviest tenant with calls may all be used, and of another one as many
/// as its weight is a part of that; beside a higher class it is one lane. One lane is every domain's, so that none starves.
/// Where all shares are the same, all lanes are everybody's. A call in a lane is charged for the time that it takes, so
/// tenants that fill what they may use have device time by their weights.
fn most_lanes(lanes: u32, own: TenantShare, others: impl Iterator<Item = TenantShare>) -> u32 {
    let mut heaviest = own.weight.max(1);
    for other in others {
        // A higher class comes first.
        if other.class < own.class {
            return 1;
        }
        if other.class == own.class {
            heaviest = heaviest.max(other.weight);
        }
    }
    let part = u64::from(lanes) * u64::from(own.weight) / u64::from(heaviest);
    u32::try_from(part).unwrap_or(lanes).clamp(1, lanes.max(1))
}

impl Queues {
    /// Without calls.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            shape: *shape,
            queues: IdMap::default(),
            several_workers: 0,
            of_caller: IdMap::default(),
            asks: Asks::new(shape.residency_ns),
            exclusive: Exclusive::default(),
            residency: Residency::new(shape),
            room_ns: None,
        }
    }

    /// The device is set up otherwise.
    pub(super) fn resize(&mut self, shape: &Shape) {
        self.shape = *shape;
        self.asks.set_turn(shape.residency_ns);
        self.residency.resize(shape);
    }

    fn of(&self, domain: Domain) -> Option<&Queue> {
        self.queues.get(&QueueKey::Of(domain))
    }

    /// The next call of a queue.
    pub(super) fn first_of(&self, queue: QueueKey) -> Option<CallId> {
        self.queues.get(&queue)?.calls.first()
    }

    /// A worker that can take a call at once which would wait in this queue: of the queue's own or of the shared ones the fullest with a
    /// free lane, so that others stay idle; else, for a domain, one that is free. Calls that wait go first; so do all others if the
    /// call's payer is `held`.
    pub(super) fn find_lane(
        &self,
        queue: QueueKey,
        all: bool,
        held: bool,
        view: View<'_>,
    ) -> Option<WorkerId> {
        let state = self.queues.get(&queue);
        let is_first = state.is_none_or(|q| !q.held && q.calls.is_empty());
        if held || !is_first || !self.goes_before(self.asks.device(), queue.payer(), None) {
            return None;
        }
        if let QueueKey::Shared(_) = queue {
            let shared = view.workers.shared().map(|worker| (worker, &view.workers[worker]));
            let has_room = shared.filter(|(_, w)| w.is_shared() && w.has_room(false));
            let fullest = has_room.max_by_key(|(_, w)| w.busy_lanes()).map(|(worker, _)| worker);
            return fullest.filter(|_| !self.asks.has_lanes());
        }
        let QueueKey::Of(domain) = queue else { return None };
        if !self.may_use_lane(domain, view) {
            return None;
        }
        let bound = state.map_or(WorkerSet::default(), |q| q.workers);
        let own = view.workers.of(bound);
        let own = own.filter(|(_, w)| w.has_room(all) && !self.must_leave(w, view));
        let own = own.max_by_key(|(_, w)| w.busy_lanes()).map(|(id, _)| id);
        let may_have_more = bound.len() < self.shape.workers_per_domain;
        own.or_else(|| view.workers.first_free().filter(|_| may_have_more))
    }

    /// A queue, made if there is none yet for a caller that is `held`, or not.
    fn queue_mut(&mut self, queue: QueueKey, held: bool) -> &mut Queue {
        self.queues.entry(queue).or_insert_with(|| {
            self.of_caller.entry(queue.payer()).or_default().push(queue);
            Queue { held, ..Queue::default() }
        })
    }

    /// A call waits, for the first time or again, which is over at its deadline and takes so long at least.
    pub(super) fn enqueue(
        &mut self,
        queue: QueueKey,
        id: CallId,
        (deadline_ns, takes_ns): (u64, u64),
        held: bool,
    ) {
        self.queue_mut(queue, held).calls.push(id, deadline_ns, takes_ns);
        self.join_line(queue);
    }

    /// True if calls of a compartment wait.
    pub(super) fn has_queued(&self, compartment: Compartment) -> bool {
        match compartment {
            Compartment::Of(domain) => self.of(domain).is_some_and(|q| !q.calls.is_empty()),
            Compartment::Shared => self.asks.has_lanes(),
        }
    }

    /// How long the calls of a domain that wait before one with this deadline take at least, in all lanes that the
    /// domain could have; none if that is not known, as in a queue for a shared worker.
    pub(super) fn before_ns(&self, queue: QueueKey, deadline_ns: u64) -> Option<u64> {
        let QueueKey::Of(domain) = queue else { return None };
        let lanes = u64::from(self.shape.lanes.max(1)) * self.shape.workers_per_domain.max(1) as u64;
        Some(self.of(domain)?.calls.before_ns(deadline_ns)? / lanes)
    }

    /// True if a domain's first call, or its process, waits for memory.
    pub(super) fn waits_for_memory(&self, domain: Domain) -> bool {
        self.asks.has(Ask::Memory(QueueKey::Of(domain)))
    }

    /// True if a call that waits for memory goes before those that wait for the whole device.
    pub(super) fn memory_goes_first(&self) -> bool {
        let device = self.asks.device();
        self.asks.memory().is_some_and(|queue| self.goes_before(device, queue.payer(), self.first_of(queue)))
    }

    /// True if a caller's call may start although another call asks for the whole `device`: that one's caller had more; or both are
    /// of one caller, and the call `waited` and is the older one.
    fn goes_before(&self, device: Option<(Domain, Front)>, caller: TenantId, waited: Option<CallId>) -> bool {
        if self.exclusive.is_closed() {
            return false;
        }
        let Some((asks, front)) = device else { return true };
        let first = || self.first_of(QueueKey::Whole(asks));
        let came_before = || waited.is_some_and(|id| first().is_some_and(|first| id < first));
        self.asks.line().goes_before(front, caller) || asks.caller == caller && came_before()
    }

    /// A call waits no more that stood in its queue by this moment.
    pub(super) fn unqueue(&mut self, queue: QueueKey, id: CallId, order_ns: u64) {
        self.started(queue, id, order_ns);
        self.tidy(queue);
    }

    /// Takes the waiting calls of a queue of which this is true.
    pub(super) fn take(&mut self, queue: QueueKey, is_one: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let Some(q) = self.queues.get_mut(&queue) else { return Vec::new() };
        let taken = q.calls.take(is_one);
        self.tidy(queue);
        taken
    }

    /// A worker serves a domain from now on.
    pub(super) fn bound(&mut self, worker: WorkerId, domain: Domain, held: bool) {
        let q = self.queue_mut(QueueKey::Of(domain), held);
        q.workers.set(worker, true);
        let is_second = q.workers.len() == 2;
        self.asks.remove(Ask::Worker(QueueKey::Of(domain)));
        self.several_workers += usize::from(is_second);
    }

    /// A worker serves it no more.
    pub(super) fn unbound(&mut self, worker: WorkerId, domain: Domain) {
        let queue = QueueKey::Of(domain);
        if let Some(q) = self.queues.get_mut(&queue) {
            q.workers.set(worker, false);
            self.several_workers -= usize::from(q.workers.len() == 1);
            self.join_line(queue);
            self.tidy(queue);
        }
    }

    /// Puts a queue in line for a worker, if its calls need one and it may have one.
    pub(super) fn join_line(&mut self, queue: QueueKey) {
        let q = self.queues.get(&queue).filter(|q| !q.held && !q.calls.is_empty());
        if q.is_some_and(|q| q.workers.is_empty()) {
            self.asks.push(Ask::Worker(queue));
        }
    }

    /// True if a domain that has workers has more calls than these take, and may have another worker.
    pub(super) fn wants_more(&self, domain: Domain) -> bool {
        let has_fewer = |has: usize| 0 < has && has < self.shape.workers_per_domain;
        self.of(domain).is_some_and(|q| !q.held && !q.calls.is_empty() && has_fewer(q.workers.len()))
    }

    /// Domains whose workers are busy and that want more of them.
    fn wanting(&self, view: View<'_>) -> impl Iterator<Item = Domain> {
        let busy = (self.shape.workers_per_domain > 1).then(|| view.workers.busy());
        let served = busy.into_iter().flatten().filter_map(|(_, worker)| worker.served());
        served.filter(|domain| self.wants_more(*domain))
    }

    /// True if any domain wants a worker, or a further one.
    pub(super) fn wants_workers(&self, view: View<'_>) -> bool {
        self.has_unplaced() || self.wanting(view).next().is_some()
    }

    /// Forgets what a queue without calls asks for, and the queue if it has no workers, either.
    fn tidy(&mut self, queue: QueueKey) {
        let Some(q) = self.queues.get(&queue).filter(|q| q.calls.is_empty()) else { return };
        self.asks.remove(Ask::Memory(queue));
        if !q.workers.is_empty() {
            return;
        }
        self.asks.remove(Ask::Worker(queue));
        self.queues.remove(&queue);
        if let Some(all) = self.of_caller.get_mut(&queue.payer()) {
            all.retain(|one| *one != queue);
            if all.is_empty() {
                self.of_caller.remove(&queue.payer());
            }
        }
    }

    /// No call of a caller starts any more. True if the caller asked for the whole device.
    pub(super) fn hold(&mut self, caller: TenantId) -> bool {
        let mut asked = false;
        for queue in self.of_caller.get(&caller).into_iter().flatten() {
            self.asks.remove(Ask::Memory(*queue));
            asked |= self.asks.remove(Ask::Worker(*queue)) && matches!(queue, QueueKey::Whole(_));
            if let Some(q) = self.queues.get_mut(queue) {
                q.held = true;
            }
        }
        asked
    }

    /// Calls of a caller may start again. True if it was held.
    pub(super) fn release(&mut self, caller: TenantId) -> bool {
        let mut freed: Vec<QueueKey> = Vec::new();
        for queue in self.of_caller.get(&caller).into_iter().flatten() {
            if let Some(q) = self.queues.get_mut(queue).filter(|q| q.held) {
                q.held = false;
                freed.push(*queue);
            }
        }
        freed.iter().for_each(|queue| self.join_line(*queue));
        !freed.is_empty()
    }

    /// True if a domain's first call needs no more than a worker to start.
    fn may_start(&self, domain: Domain, device: Option<(Domain, Front)>, view: View<'_>) -> bool {
        let first = self.first_of(QueueKey::Of(domain));
        first.is_some() && self.goes_before(device, domain.caller, first) && self.may_use_lane(domain, view)
    }

    /// True if what callers are given decides how many lanes each may use.
    pub(super) fn limits_lanes(&self) -> bool {
        self.shape.quantum_us.is_none() && !self.asks.line().is_even()
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
        let others = callers.filter(|other| *other != caller).map(|other| self.asks.line().share_of(other));
        let lanes =
            self.shape.lanes.saturating_mul(u32::try_from(self.shape.workers_per_domain).unwrap_or(u32::MAX));
        used < most_lanes(lanes, self.asks.line().share_of(caller), others)
    }

    /// The domain that a free worker should serve, and is bound to then: a domain without workers, else one with more calls than
    /// its workers can take, whose caller had less than others or whose call waited longest.
    pub(super) fn next_for_free(&mut self, view: View<'_>) -> Option<Domain> {
        let device = self.asks.device();
        let unplaced = self.asks.iter().find(|domain| self.may_start(*domain, device, view));
        if let Some(domain) = unplaced {
            self.asks.serve(domain.caller);
            self.asks.remove(Ask::Worker(QueueKey::Of(domain)));
            return Some(domain);
        }
        let others = self.wanting(view).filter(|domain| self.may_start(*domain, device, view));
        let has = |domain: Domain| self.of(domain).map_or(0, |q| q.workers.len());
        others.min_by_key(|domain| {
            (self.asks.line().ahead_ns(domain.caller), has(*domain), self.first_of(QueueKey::Of(*domain)))
        })
    }

    /// The next call of a queue for shared workers, if a worker has room for it.
    pub(super) fn next_shared_of(&self, payer: TenantId, worker: &Worker) -> Option<CallId> {
        let device = worker.has_room(false).then(|| self.asks.device())?;
        self.first_shared_of(payer, device)
    }

    /// The first calls of those who are next in line for shared workers, so many at most, and had hardly more than the first.
    pub(super) fn close_behind(&self, most: usize, more_ns: u64) -> impl Iterator<Item = CallId> {
        let device = self.asks.device();
        let near = self.asks.lanes_near(more_ns).take(most);
        near.filter_map(move |payer| self.first_shared_of(payer, device))
    }

    /// The same where a worker has room for it, beside who is first in line for the whole `device`.
    fn first_shared_of(&self, payer: TenantId, device: Option<(Domain, Front)>) -> Option<CallId> {
        let first = self.queues.get(&QueueKey::Shared(payer)).filter(|q| !q.held)?.calls.first();
        first.filter(|_| self.goes_before(device, payer, first))
    }

    /// The next call of all whom a worker serves, if the worker has room for it. It waits until it is taken.
    pub(super) fn next_of(&self, worker: &Worker, view: View<'_>) -> Option<CallId> {
        if !worker.has_room(false) {
            return None;
        }
        if worker.is_shared() {
            let device = self.asks.device();
            return self.asks.lanes().find_map(|payer| self.first_shared_of(payer, device));
        }
        if self.must_leave(worker, view) {
            return None;
        }
        let domain = worker.served()?;
        let first = self.of(domain).filter(|q| !q.held)?.calls.first()?;
        let may_start = self.goes_before(self.asks.device(), domain.caller, Some(first))
            && self.may_use_lane(domain, view);
        may_start.then_some(first)
    }

    /// The calls of a queue that are about to start, so many at most.
    pub(super) fn next_few(&self, queue: QueueKey, most: usize) -> impl Iterator<Item = CallId> + Clone {
        self.queues.get(&queue).into_iter().flat_map(move |q| q.calls.next_few(most))
    }

    /// A call that waited, and stood in its queue by this moment, is in a worker.
    pub(super) fn started(&mut self, queue: QueueKey, id: CallId, order_ns: u64) {
        if let Some(q) = self.queues.get_mut(&queue) {
            q.calls.remove(id, order_ns);
            if q.workers.is_empty() {
                self.tidy(queue);
            }
        }
    }

    /// True if an idle worker may be wanted by domains without workers.
    pub(super) fn has_unplaced(&self) -> bool {
        self.asks.domains() > 0
    }

    /// True if anybody asks for a worker or for the whole device.
    pub(super) fn is_wanted_outside(&self) -> bool {
        self.has_unplaced() || self.asks.has_device()
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
