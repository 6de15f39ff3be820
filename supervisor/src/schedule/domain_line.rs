//! The line of domains that wait for a worker: by the shares of their callers, and each caller's domains in the order in
//! which they came.

use std::collections::hash_map::Entry;

use super::share_line::{Front, ShareLine};
use super::types::{Domain, TenantShare};
use crate::ids::{IdMap, TenantId};

/// Domains that wait for a worker.
#[derive(Debug)]
pub(super) struct DomainLine {
    /// The place and the owner of each caller's domains.
    line: ShareLine<(u64, TenantId)>,
    places: IdMap<Domain, u64>,
    next_place: u64,
}

impl DomainLine {
    /// An empty line. A domain has a worker for about so long.
    pub(super) fn new(turn_ns: u64) -> Self {
        Self { line: ShareLine::new(turn_ns, 0), places: IdMap::default(), next_place: 0 }
    }

    /// A domain has a worker for about so long from now on.
    pub(super) fn set_turn(&mut self, turn_ns: u64) {
        self.line.set_quantum(turn_ns, 0);
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Those that wait, the next one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Domain> {
        self.line.iter().map(|(caller, (_, owner))| Domain { owner, caller })
    }

    /// A domain waits, behind others of its caller.
    pub(super) fn push(&mut self, domain: Domain) {
        let place = self.next_place;
        if let Entry::Vacant(entry) = self.places.entry(domain) {
            entry.insert(place);
            self.next_place += 1;
            self.line.push(domain.caller, (place, domain.owner));
        }
    }

    /// A domain waits no more.
    pub(super) fn remove(&mut self, domain: Domain) {
        if let Some(place) = self.places.remove(&domain) {
            self.line.remove(domain.caller, (place, domain.owner));
        }
    }

    /// A domain that waited gets a worker.
    pub(super) fn serve(&mut self, domain: Domain) {
        self.line.serve(domain.caller);
        self.remove(domain);
    }

    /// A caller used the device for so long. Where none waits, it may.
    pub(super) fn charge(&mut self, caller: TenantId, used_ns: u64) {
        if !self.is_empty() {
            self.line.charge(caller, used_ns);
        }
    }

    /// Where the line begins.
    pub(super) fn front(&self) -> Front {
        self.line.front()
    }

    /// Whether a caller that has a worker may go on before the first that waits: it had less, by more than so much.
    pub(super) fn goes_before(&self, front: Front, caller: TenantId, by_ns: u64) -> bool {
        self.line.goes_before(front, caller, by_ns)
    }

    /// How much others may have before a caller is next.
    pub(super) fn ahead_ns(&self, caller: TenantId) -> u64 {
        self.line.ahead_ns(caller)
    }

    /// Whether all callers are given the same.
    pub(super) fn is_even(&self) -> bool {
        self.line.is_even()
    }

    /// What a caller is given.
    pub(super) fn share_of(&self, caller: TenantId) -> TenantShare {
        self.line.share_of(caller)
    }

    /// A caller is given this from now on.
    pub(super) fn set_share(&mut self, caller: TenantId, share: TenantShare) {
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
        let mut line = DomainLine::new(10);
        [domain(5, 1), domain(4, 1), domain(2, 2)].into_iter().for_each(|domain| line.push(domain));
        line.push(domain(5, 1));
        assert_eq!(line.iter().collect::<Vec<_>>(), [domain(5, 1), domain(4, 1), domain(2, 2)]);
        line.serve(domain(5, 1));
        line.charge(TenantId::new(1), 3);
        assert_eq!(line.iter().collect::<Vec<_>>(), [domain(2, 2), domain(4, 1)]);
        line.remove(domain(2, 2));
        let goes_on = |caller| line.goes_before(line.front(), TenantId::new(caller), 0);
        assert!(goes_on(2) && !goes_on(1));
        line.remove(domain(4, 1));
        line.charge(TenantId::new(1), 1000);
        assert_eq!((line.len(), line.is_empty()), (0, true));
        line.push(domain(4, 1));
        line.push(domain(2, 2));
        assert_eq!(line.iter().next(), Some(domain(2, 2)), "what it had while none waited does not count");
        let batch = TenantShare { class: crate::schedule::Class::Batch, ..TenantShare::default() };
        line.set_share(TenantId::new(2), batch);
        assert_eq!((line.iter().next(), line.share_of(TenantId::new(2))), (Some(domain(4, 1)), batch));
    }
}
