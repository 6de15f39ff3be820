//! The line of asks: domains ask for a worker, or for memory where they have one; callers ask for a lane of a shared worker, or for
//! the whole device. Callers are served by their shares (`share_line`), and the asks of one caller in the order in which they came.
//!
//! Free memory is reserved for the first domain that asks for some (`book`).
//!
//! While a caller asks for the whole device, only callers that had less of it start calls ([`Asks::device`]):
//! the others' lanes run empty, and the device is this caller's next. So a call of either kind waits for the time that its
//! caller is ahead of others, however many calls of the other kind there are. The caller is charged for the whole device.

use std::collections::hash_map::Entry;

use super::share_line::{Front, ShareLine};
use super::types::{Domain, QueueKey, TenantShare};
use crate::ids::{IdMap, TenantId};

/// What a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    /// A worker for functions of this owner.
    Worker(TenantId),
    /// Device memory for the first call of functions of this owner; without one, for the first call that waits for a shared worker.
    Memory(Option<TenantId>),
    /// A lane of a shared worker.
    Lane,
    /// The whole device.
    Device,
}

impl What {
    fn memory_for(queue: QueueKey) -> Self {
        match queue {
            QueueKey::Of(domain) => Self::Memory(Some(domain.owner)),
            QueueKey::Shared(_) => Self::Memory(None),
        }
    }
}

/// All asks of one device.
#[derive(Debug)]
pub(super) struct Asks {
    /// The place of each ask among those of its caller.
    line: ShareLine<(u64, What)>,
    places: IdMap<(TenantId, What), u64>,
    next_place: u64,
    /// How many asks there are of each kind.
    for_workers: usize,
    for_memory: usize,
    for_lanes: usize,
    for_device: usize,
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
            for_workers: 0,
            for_memory: 0,
            for_lanes: 0,
            for_device: 0,
            lanes_weight: 0,
        }
    }

    /// A domain has a worker for about so long from now on.
    pub(super) fn set_turn(&mut self, turn_ns: u64) {
        self.line.set_quantum(turn_ns, 0);
    }

    /// True if a caller asks for the whole device.
    pub(super) fn has_device(&self) -> bool {
        self.for_device > 0
    }

    /// How many domains ask for a worker.
    pub(super) fn domains(&self) -> usize {
        self.for_workers
    }

    /// Domains that ask for a worker, the next one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Domain> {
        self.line.iter().filter_map(|(caller, (_, what))| match what {
            What::Worker(owner) => Some(Domain { owner, caller }),
            What::Memory(_) | What::Lane | What::Device => None,
        })
    }

    /// The first queue whose first call asks for memory.
    pub(super) fn memory(&self) -> Option<QueueKey> {
        if self.for_memory == 0 {
            return None;
        }
        self.line.iter().find_map(|(caller, (_, what))| match what {
            What::Memory(Some(owner)) => Some(QueueKey::Of(Domain { owner, caller })),
            What::Memory(None) => Some(QueueKey::Shared(caller)),
            What::Worker(_) | What::Lane | What::Device => None,
        })
    }

    /// True if a queue's first call asks for memory.
    pub(super) fn has_memory(&self, queue: QueueKey) -> bool {
        self.for_memory > 0 && self.places.contains_key(&(queue.payer(), What::memory_for(queue)))
    }

    /// True if callers ask for lanes of shared workers.
    pub(super) fn has_lanes(&self) -> bool {
        self.for_lanes > 0
    }

    /// The callers that ask for lanes of shared workers, the next one first.
    pub(super) fn lanes(&self) -> impl Iterator<Item = TenantId> {
        let asks = if self.has_lanes() { Some(self.line.iter()) } else { None };
        asks.into_iter().flatten().filter(|(_, (_, what))| *what == What::Lane).map(|(caller, _)| caller)
    }

    /// True if a caller asks for a lane of a shared worker.
    pub(super) fn has_lane(&self, caller: TenantId) -> bool {
        self.has_lanes() && self.places.contains_key(&(caller, What::Lane))
    }

    /// The weights of those that do.
    pub(super) fn lanes_weight(&self) -> u32 {
        self.lanes_weight
    }

    /// A caller asks for a lane of a shared worker.
    pub(super) fn push_lane(&mut self, caller: TenantId) {
        if self.add(caller, What::Lane) {
            self.for_lanes += 1;
            self.lanes_weight += self.share_of(caller).weight;
        }
    }

    /// A caller does not ask for a lane of a shared worker any more.
    pub(super) fn remove_lane(&mut self, caller: TenantId) {
        if self.has_lanes() && self.take(caller, What::Lane) {
            self.for_lanes -= 1;
            self.lanes_weight -= self.share_of(caller).weight;
        }
    }

    /// The caller to which the whole device goes next, and where it stands in line.
    pub(super) fn device(&self) -> Option<(TenantId, Front)> {
        if !self.has_device() {
            return None;
        }
        let (caller, _) = self.line.iter().find(|(_, (_, what))| *what == What::Device)?;
        Some((caller, self.line.place_of(caller)))
    }

    /// True if anybody asks for anything.
    pub(super) fn has_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// A domain asks for a worker, behind other asks of its caller.
    pub(super) fn push(&mut self, domain: Domain) {
        self.for_workers += usize::from(self.add(domain.caller, What::Worker(domain.owner)));
    }

    /// A caller asks for the whole device. True if it did not before.
    pub(super) fn push_device(&mut self, caller: TenantId) -> bool {
        let is_new = self.add(caller, What::Device);
        self.for_device += usize::from(is_new);
        is_new
    }

    /// A queue's first call asks for memory.
    pub(super) fn push_memory(&mut self, queue: QueueKey) {
        self.for_memory += usize::from(self.add(queue.payer(), What::memory_for(queue)));
    }

    /// It does not ask for memory any more.
    pub(super) fn remove_memory(&mut self, queue: QueueKey) {
        if self.for_memory > 0 {
            self.for_memory -= usize::from(self.take(queue.payer(), What::memory_for(queue)));
        }
    }

    fn add(&mut self, caller: TenantId, what: What) -> bool {
        let Entry::Vacant(entry) = self.places.entry((caller, what)) else { return false };
        entry.insert(self.next_place);
        self.line.push(caller, (self.next_place, what));
        self.next_place += 1;
        true
    }

    /// A domain asks no more.
    pub(super) fn remove(&mut self, domain: Domain) {
        self.for_workers -= usize::from(self.take(domain.caller, What::Worker(domain.owner)));
    }

    /// A caller does not ask for the whole device any more. True if it did.
    pub(super) fn remove_device(&mut self, caller: TenantId) -> bool {
        let asked = self.take(caller, What::Device);
        self.for_device -= usize::from(asked);
        asked
    }

    fn take(&mut self, caller: TenantId, what: What) -> bool {
        let Some(place) = self.places.remove(&(caller, what)) else { return false };
        self.line.remove(caller, (place, what));
        true
    }

    /// What a caller asked for is given to it now: those that come begin where it does.
    pub(super) fn serve(&mut self, caller: TenantId) {
        self.line.serve(caller);
    }

    /// A caller used the device for so long. Where nobody asks, it may.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        if !self.places.is_empty() {
            self.line.charge(caller, used_ns);
        }
    }

    /// A caller had the whole device for so long, which kept all others from it.
    pub(super) fn charge_device(&mut self, caller: TenantId, used_ns: u64) {
        self.line.charge(caller, used_ns);
    }

    /// The caller whose domain is the first that asks for a worker, and where it stands in line.
    pub(super) fn first(&self) -> Option<(TenantId, Front)> {
        let (caller, _) = match self.for_device + self.for_memory + self.for_lanes {
            0 => self.line.first()?,
            _ => self.line.iter().find(|(_, (_, what))| matches!(what, What::Worker(_)))?,
        };
        Some((caller, self.line.place_of(caller)))
    }

    /// True if a caller had less than what is first in a line.
    pub(super) fn goes_before(&self, front: Front, caller: TenantId) -> bool {
        self.line.goes_before(front, caller)
    }

    /// How much others may have before a caller is next.
    pub(super) fn ahead_ns(&self, caller: TenantId) -> u64 {
        self.line.ahead_ns(caller)
    }

    /// True if all callers are given the same.
    pub(super) fn is_even(&self) -> bool {
        self.line.is_even()
    }

    /// What a caller is given.
    pub(super) fn share_of(&self, caller: TenantId) -> TenantShare {
        self.line.share_of(caller)
    }

    /// A caller is given this from now on.
    pub(super) fn set_share(&mut self, caller: TenantId, share: TenantShare) {
        if self.has_lane(caller) {
            self.lanes_weight = self.lanes_weight - self.share_of(caller).weight + share.weight;
        }
        self.line.set_share(caller, share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(owner: u32, caller: u32) -> Domain {
        Domain { owner: TenantId::new(owner), caller: TenantId::new(caller) }
    }

    #[test]
    fn callers_take_turns_and_their_domains_keep_their_order() {
        let mut asks = Asks::new(10);
        [domain(5, 1), domain(4, 1), domain(2, 2)].into_iter().for_each(|domain| asks.push(domain));
        asks.push(domain(5, 1));
        assert_eq!(asks.iter().collect::<Vec<_>>(), [domain(5, 1), domain(4, 1), domain(2, 2)]);
        asks.serve(TenantId::new(1));
        asks.remove(domain(5, 1));
        asks.charge(TenantId::new(1), 3);
        assert_eq!(asks.iter().collect::<Vec<_>>(), [domain(2, 2), domain(4, 1)]);
        asks.remove(domain(2, 2));
        let goes_on = |caller| asks.goes_before(asks.first().unwrap().1, TenantId::new(caller));
        assert!(goes_on(2) && !goes_on(1));
        asks.remove(domain(4, 1));
        asks.charge(TenantId::new(1), 1000);
        assert_eq!(asks.domains(), 0);
        asks.push(domain(4, 1));
        asks.push(domain(2, 2));
        assert_eq!(asks.iter().next(), Some(domain(2, 2)), "what it had while none waited does not count");
        let batch = TenantShare { class: crate::schedule::Class::Batch, ..TenantShare::default() };
        asks.set_share(TenantId::new(2), batch);
        assert_eq!((asks.iter().next(), asks.share_of(TenantId::new(2))), (Some(domain(4, 1)), batch));
    }

    #[test]
    fn while_one_asks_for_the_device_only_those_that_had_less_go_before_it() {
        let mut asks = Asks::new(10);
        let [alice, bob, carol] = [1, 2, 3].map(TenantId::new);
        let next = |asks: &Asks| asks.device().map(|(caller, _)| caller);
        let goes_before = |asks: &Asks, caller| asks.goes_before(asks.device().unwrap().1, caller);
        assert_eq!(next(&asks), None);
        asks.push_device(alice);
        assert!(!goes_before(&asks, bob) && !goes_before(&asks, alice));
        asks.serve(alice);
        asks.charge_device(alice, 5);
        assert!(goes_before(&asks, bob) && !goes_before(&asks, alice));
        asks.charge(bob, 5);
        assert!(!goes_before(&asks, bob) && goes_before(&asks, carol));
        // Whoever had nothing is next.
        asks.push_device(carol);
        assert_eq!(next(&asks), Some(carol));
        // They stand in no line for workers.
        assert_eq!((asks.domains(), asks.iter().count()), (0, 0));
        assert!(asks.first().is_none(), "none asks for one");
        assert!(asks.remove_device(carol) && !asks.remove_device(carol));
        assert_eq!(next(&asks), Some(alice));
    }

    #[test]
    fn lanes_of_shared_workers_are_for_who_had_less() {
        let mut asks = Asks::new(10);
        let [alice, bob] = [1, 2].map(TenantId::new);
        asks.push(domain(9, 1));
        [alice, bob, alice].into_iter().for_each(|caller| asks.push_lane(caller));
        assert_eq!(asks.lanes().collect::<Vec<_>>(), [alice, bob]);
        asks.charge(alice, 5);
        assert_eq!(asks.lanes().next(), Some(bob));
        [bob, bob].into_iter().for_each(|caller| asks.remove_lane(caller));
        assert_eq!((asks.lanes().collect::<Vec<_>>(), asks.domains()), (vec![alice], 1));
        asks.remove_lane(alice);
        assert!(!asks.has_lanes() && asks.lanes().next().is_none() && asks.has_any());
    }

    #[test]
    fn memory_is_for_who_had_less() {
        let mut asks = Asks::new(10);
        let [alice, bob] = [QueueKey::Of(domain(1, 1)), QueueKey::Shared(TenantId::new(2))];
        [alice, bob, alice].into_iter().for_each(|queue| asks.push_memory(queue));
        assert_eq!((asks.memory(), asks.has_memory(bob), asks.domains()), (Some(alice), true, 0));
        asks.charge(alice.payer(), 5);
        assert_eq!(asks.memory(), Some(bob));
        assert!(asks.first().is_none(), "they stand in no line for workers");
        [bob, bob].into_iter().for_each(|queue| asks.remove_memory(queue));
        assert_eq!((asks.memory(), asks.has_memory(bob)), (Some(alice), false));
    }
}
