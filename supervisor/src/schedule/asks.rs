//! The line of asks: domains ask for a worker, for memory where they have one, or for the whole device; callers ask for a lane of a
//! shared worker. Callers are served by their shares (`share_line`), and the asks of one caller in the order in which they came.
//!
//! Free memory is reserved for the first queue that asks for some (`book`).
//!
//! While a domain asks for the whole device, only callers that had less of it than the domain's start calls ([`Asks::device`]): the others'
//! lanes run empty, and the device is the domain's next ([`Exclusive`]). So a call of either kind waits for the time that its caller is
//! ahead of others, however many calls of the other kind there are. The caller is charged for the whole device.

use std::collections::hash_map::Entry;

use super::share_line::{Front, ShareLine};
use super::types::{CallId, Compartment, Domain, TenantShare};
use crate::ids::{IdMap, TenantId, WorkerId};

/// The queue in which a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum QueueKey {
    /// Of a domain, for a worker of its own.
    Of(Domain),
    /// Of a payer, for a shared worker.
    Shared(TenantId),
    /// Of a domain, for the whole device.
    Whole(Domain),
}

impl QueueKey {
    /// Who pays for the calls that wait there.
    pub(super) fn payer(self) -> TenantId {
        match self {
            Self::Of(domain) | Self::Whole(domain) => domain.caller,
            Self::Shared(payer) => payer,
        }
    }

    /// The domain of all calls that wait there; none where calls of several may wait.
    pub(super) fn domain(self) -> Option<Domain> {
        match self {
            Self::Of(domain) | Self::Whole(domain) => Some(domain),
            Self::Shared(_) => None,
        }
    }

    /// Whose workers run them.
    pub(super) fn compartment(self) -> Compartment {
        self.domain().map_or(Compartment::Shared, Compartment::Of)
    }
}

/// Who waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ask {
    /// What a queue's calls wait for before they can start: a worker of their domain's, a lane of a shared one, or the whole device.
    Worker(QueueKey),
    /// Device memory for a queue's first call, or for the process that it waits for.
    Memory(QueueKey),
}

/// Kinds of asks, which are counted.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Worker,
    Lane,
    Memory,
    Device,
}

impl Ask {
    fn caller(self) -> TenantId {
        let (Self::Worker(queue) | Self::Memory(queue)) = self;
        queue.payer()
    }

    fn kind(self) -> Kind {
        match self {
            Self::Worker(QueueKey::Of(_)) => Kind::Worker,
            Self::Worker(QueueKey::Shared(_)) => Kind::Lane,
            Self::Worker(QueueKey::Whole(_)) => Kind::Device,
            Self::Memory(_) => Kind::Memory,
        }
    }
}

/// All asks of one device.
#[derive(Debug)]
pub(super) struct Asks {
    /// The place of each ask among those of its caller.
    line: ShareLine<(u64, Ask)>,
    places: IdMap<Ask, u64>,
    next_place: u64,
    /// How many asks there are of each kind.
    counts: [usize; 4],
    /// The weights of the callers that ask for lanes.
    lanes_weight: u32,
}

impl Asks {
    /// No asks. A domain has a worker for about so long.
    pub(super) fn new(turn_ns: u64) -> Self {
        Self {
            line: ShareLine::new(turn_ns, 0),
            places: IdMap::default(),
            next_place: 0,
            counts: [0; 4],
            lanes_weight: 0,
        }
    }

    /// A domain has a worker for about so long from now on.
    pub(super) fn set_turn(&mut self, turn_ns: u64) {
        self.line.set_quantum(turn_ns, 0);
    }

    /// A caller asks for something, behind its other asks. True if it did not before.
    pub(super) fn push(&mut self, ask: Ask) -> bool {
        let Entry::Vacant(entry) = self.places.entry(ask) else { return false };
        entry.insert(self.next_place);
        self.line.push(ask.caller(), (self.next_place, ask));
        self.next_place += 1;
        self.counts[ask.kind() as usize] += 1;
        if ask.kind() == Kind::Lane {
            self.lanes_weight += self.line.share_of(ask.caller()).weight;
        }
        true
    }

    /// A caller does not ask for it any more. True if it did.
    pub(super) fn remove(&mut self, ask: Ask) -> bool {
        if self.count(ask.kind()) == 0 {
            return false;
        }
        let Some(place) = self.places.remove(&ask) else { return false };
        self.line.remove(ask.caller(), (place, ask));
        self.counts[ask.kind() as usize] -= 1;
        if ask.kind() == Kind::Lane {
            self.lanes_weight -= self.line.share_of(ask.caller()).weight;
        }
        true
    }

    /// True if a caller asks for it.
    pub(super) fn has(&self, ask: Ask) -> bool {
        self.count(ask.kind()) > 0 && self.places.contains_key(&ask)
    }

    fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// True if anybody asks for anything.
    pub(super) fn has_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// True if a caller asks for the whole device.
    pub(super) fn has_device(&self) -> bool {
        self.count(Kind::Device) > 0
    }

    /// True if callers ask for lanes of shared workers.
    pub(super) fn has_lanes(&self) -> bool {
        self.count(Kind::Lane) > 0
    }

    /// How many domains ask for a worker.
    pub(super) fn domains(&self) -> usize {
        self.count(Kind::Worker)
    }

    /// The weights of the callers that ask for lanes of shared workers.
    pub(super) fn lanes_weight(&self) -> u32 {
        self.lanes_weight
    }

    /// Who stands before whom, and what each is given.
    pub(super) fn line(&self) -> &ShareLine<(u64, Ask)> {
        &self.line
    }

    /// What is asked for of one kind, the next one first.
    fn of(&self, kind: Kind) -> impl Iterator<Item = (TenantId, QueueKey)> {
        let line = (self.count(kind) > 0).then(|| self.line.iter());
        line.into_iter().flatten().filter(move |(_, (_, ask))| ask.kind() == kind).map(
            |(caller, (_, ask))| {
                let (Ask::Worker(queue) | Ask::Memory(queue)) = ask;
                (caller, queue)
            },
        )
    }

    /// Domains that ask for a worker, the next one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Domain> {
        self.of(Kind::Worker).filter_map(|(_, queue)| queue.domain())
    }

    /// The first queue that asks for memory, for its first call or for its process.
    pub(super) fn memory(&self) -> Option<QueueKey> {
        self.of(Kind::Memory).next().map(|(_, queue)| queue)
    }

    /// The callers that ask for lanes of shared workers, the next one first.
    pub(super) fn lanes(&self) -> impl Iterator<Item = TenantId> {
        self.of(Kind::Lane).map(|(caller, _)| caller)
    }

    /// The same, as far as they had less than the first one with so much more.
    pub(super) fn lanes_near(&self, more_ns: u64) -> impl Iterator<Item = TenantId> {
        let first = self.lanes().next().map(|first| self.line.place_of(first).later(more_ns));
        self.lanes().take_while(move |payer| first.is_some_and(|front| self.line.goes_before(front, *payer)))
    }

    /// The domain to which the whole device goes next, and where its caller stands in line.
    pub(super) fn device(&self) -> Option<(Domain, Front)> {
        let (caller, queue) = self.of(Kind::Device).next()?;
        Some((queue.domain()?, self.line.place_of(caller)))
    }

    /// The caller whose domain is the first that asks for a worker, and where it stands in line.
    pub(super) fn first(&self) -> Option<(TenantId, Front)> {
        let (caller, _) = self.of(Kind::Worker).next()?;
        Some((caller, self.line.place_of(caller)))
    }

    /// What a caller asked for is given to it now: those that come begin where it does.
    pub(super) fn serve(&mut self, caller: TenantId) {
        self.line.serve(caller);
    }

    /// A caller used the device for so long. Where nobody asks, it may.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        if self.has_any() {
            self.line.charge(caller, used_ns);
        }
    }

    /// A caller had the whole device for so long, which kept all others from it.
    pub(super) fn charge_device(&mut self, caller: TenantId, used_ns: u64) {
        self.line.charge(caller, used_ns);
    }

    /// A caller is given this from now on.
    pub(super) fn set_share(&mut self, caller: TenantId, share: TenantShare) {
        if self.has(Ask::Worker(QueueKey::Shared(caller))) {
            self.lanes_weight = self.lanes_weight - self.line.share_of(caller).weight + share.weight;
        }
        self.line.set_share(caller, share);
    }
}

/// Whose the whole device is; calls of all workers may run where it is nobody's. Where a fault hits the calls of all workers, suspects
/// have it, too.
///
/// ```text
/// nobody's ──its caller is next, lanes empty──► prepared: others give memory back ──there is enough──► it runs ──over──► nobody's
/// ```
#[derive(Debug, Default)]
pub(super) struct Exclusive(Option<Served>);

/// Whose the device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Served {
    domain: Domain,
    worker: WorkerId,
    since_ns: u64,
    /// The call, until the worker has it: others give memory back for it. Meanwhile it is still in its queue.
    prepared: Option<CallId>,
}

impl Exclusive {
    /// True if no other call starts: the device is one call's, or is being prepared for it.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_some()
    }

    /// The caller whose the device is.
    pub(super) fn caller(&self) -> Option<TenantId> {
        self.0.map(|served| served.domain.caller)
    }

    /// True if the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        self.0.is_some_and(|served| served.worker == worker)
    }

    /// The call that the device is prepared for, and where it is to run.
    pub(super) fn prepared(&self) -> Option<(CallId, WorkerId)> {
        self.0.and_then(|served| Some((served.prepared?, served.worker)))
    }

    /// From now on the device is prepared for a domain's call in a worker.
    pub(super) fn begin(&mut self, now_ns: u64, domain: Domain, id: CallId, worker: WorkerId) {
        self.0 = Some(Served { domain, worker, since_ns: now_ns, prepared: Some(id) });
    }

    /// The call that the device was prepared for is in its worker.
    pub(super) fn run(&mut self) {
        self.0.iter_mut().for_each(|served| served.prepared = None);
    }

    /// The call is over, its worker is, or it gave up: the device is nobody's. Whose it was, and since when.
    pub(super) fn end(&mut self) -> Option<(TenantId, u64)> {
        self.0.take().map(|served| (served.domain.caller, served.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(owner: u32, caller: u32) -> Domain {
        Domain { owner: TenantId::new(owner), caller: TenantId::new(caller) }
    }

    fn worker(domain: Domain) -> Ask {
        Ask::Worker(QueueKey::Of(domain))
    }

    fn lane(payer: TenantId) -> Ask {
        Ask::Worker(QueueKey::Shared(payer))
    }

    #[test]
    fn callers_take_turns_and_their_domains_keep_their_order() {
        let mut asks = Asks::new(10);
        [domain(5, 1), domain(4, 1), domain(2, 2)].into_iter().for_each(|domain| {
            asks.push(worker(domain));
        });
        asks.push(worker(domain(5, 1)));
        assert_eq!(asks.iter().collect::<Vec<_>>(), [domain(5, 1), domain(4, 1), domain(2, 2)]);
        asks.serve(TenantId::new(1));
        asks.remove(worker(domain(5, 1)));
        asks.charge(TenantId::new(1), 3);
        assert_eq!(asks.iter().collect::<Vec<_>>(), [domain(2, 2), domain(4, 1)]);
        asks.remove(worker(domain(2, 2)));
        let goes_on = |caller| asks.line().goes_before(asks.first().unwrap().1, TenantId::new(caller));
        assert!(goes_on(2) && !goes_on(1));
        asks.remove(worker(domain(4, 1)));
        asks.charge(TenantId::new(1), 1000);
        assert_eq!(asks.domains(), 0);
        asks.push(worker(domain(4, 1)));
        asks.push(worker(domain(2, 2)));
        assert_eq!(asks.iter().next(), Some(domain(2, 2)), "what it had while none waited does not count");
        let batch = TenantShare { class: crate::schedule::Class::Batch, ..TenantShare::default() };
        asks.set_share(TenantId::new(2), batch);
        assert_eq!((asks.iter().next(), asks.line().share_of(TenantId::new(2))), (Some(domain(4, 1)), batch));
    }

    #[test]
    fn while_one_asks_for_the_device_only_those_that_had_less_go_before_it() {
        let mut asks = Asks::new(10);
        let [alice, bob, carol] = [1, 2, 3].map(TenantId::new);
        let device = |caller| Ask::Worker(QueueKey::Whole(Domain { owner: caller, caller }));
        let next = |asks: &Asks| asks.device().map(|(domain, _)| domain.caller);
        let goes_before = |asks: &Asks, caller| asks.line().goes_before(asks.device().unwrap().1, caller);
        assert_eq!(next(&asks), None);
        asks.push(device(alice));
        assert!(!goes_before(&asks, bob) && !goes_before(&asks, alice));
        asks.serve(alice);
        asks.charge_device(alice, 5);
        assert!(goes_before(&asks, bob) && !goes_before(&asks, alice));
        asks.charge(bob, 5);
        assert!(!goes_before(&asks, bob) && goes_before(&asks, carol));
        // Whoever had nothing is next.
        asks.push(device(carol));
        assert_eq!(next(&asks), Some(carol));
        // They stand in no line for workers.
        assert_eq!((asks.domains(), asks.iter().count()), (0, 0));
        assert!(asks.first().is_none(), "none asks for one");
        assert!(asks.remove(device(carol)) && !asks.remove(device(carol)));
        assert_eq!(next(&asks), Some(alice));
    }

    #[test]
    fn lanes_of_shared_workers_are_for_who_had_less() {
        let mut asks = Asks::new(10);
        let [alice, bob] = [1, 2].map(TenantId::new);
        asks.push(worker(domain(9, 1)));
        [alice, bob, alice].into_iter().for_each(|caller| {
            asks.push(lane(caller));
        });
        assert_eq!(asks.lanes().collect::<Vec<_>>(), [alice, bob]);
        asks.charge(alice, 5);
        assert_eq!(asks.lanes().next(), Some(bob));
        [bob, bob].into_iter().for_each(|caller| {
            asks.remove(lane(caller));
        });
        assert_eq!((asks.lanes().collect::<Vec<_>>(), asks.domains()), (vec![alice], 1));
        asks.remove(lane(alice));
        assert!(!asks.has_lanes() && asks.lanes().next().is_none() && asks.has_any());
    }

    #[test]
    fn memory_is_for_who_had_less() {
        let mut asks = Asks::new(10);
        let [alice, bob] = [QueueKey::Of(domain(1, 1)), QueueKey::Shared(TenantId::new(2))];
        [alice, bob, alice].into_iter().for_each(|queue| {
            asks.push(Ask::Memory(queue));
        });
        assert_eq!((asks.memory(), asks.has(Ask::Memory(bob)), asks.domains()), (Some(alice), true, 0));
        asks.charge(alice.payer(), 5);
        assert_eq!(asks.memory(), Some(bob));
        assert!(asks.first().is_none(), "they stand in no line for workers");
        [bob, bob].into_iter().for_each(|queue| {
            asks.remove(Ask::Memory(queue));
        });
        assert_eq!((asks.memory(), asks.has(Ask::Memory(bob))), (Some(alice), false));
    }
}
