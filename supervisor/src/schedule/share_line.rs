//! Who is next where tenants share a device: classes first, then weights, by device time.
//!
//! - **Classes** come one before the other: `latency`, `normal`, `batch`. None starves: while a lower class waits, it is
//!   owed a twentieth of what higher classes are charged, and with a whole quantum owed the class is next. The debt is
//!   two quanta at most; device time that the class had beyond is deducted.
//! - **Within a class** tenants are served by start-time fair queueing ([`FairLine`]): what a tenant used, divided by its
//!   weight, is added to its tag, and the smallest tag is next. A tenant that wanted nothing for a while is owed no more
//!   for that time than a credit.
//!
//! A tenant is charged for time that others waited for; where it is alone, it may have all there is.

use super::fair_line::FairLine;
use super::limits::{LONGEST_QUANTUM_NS, OWED_SHARE};
use super::types::{Class, TenantShare};
use crate::ids::{IdMap, TenantId};

/// What tenants have in line: items of `K`, each tenant's smallest first.
#[derive(Debug)]
pub(super) struct ShareLine<K> {
    /// By class, the highest first.
    lines: [FairLine<K>; Class::ALL.len()],
    /// What each class is owed.
    owed_ns: [i64; Class::ALL.len()],
    /// So much makes a class next.
    quantum_ns: i64,
    /// Tenants that differ from others.
    shares: IdMap<TenantId, TenantShare>,
    len: usize,
}

/// Where a line begins: what many tenants are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Front {
    /// The class that is next, and its smallest tag.
    first: (usize, u64),
    /// True if that class is next because it is owed.
    is_owed: bool,
}

impl Front {
    /// The same if the first in line had so much more.
    pub(super) fn later(self, more_ns: u64) -> Self {
        let (class, tag_ns) = self.first;
        Self { first: (class, tag_ns.saturating_add(more_ns)), ..self }
    }
}

/// What of a turn counts as a quantum.
fn counted(turn_ns: u64) -> i64 {
    i64::try_from(turn_ns).unwrap_or(i64::MAX).clamp(1, LONGEST_QUANTUM_NS)
}

impl<K: Ord + Copy> ShareLine<K> {
    /// An empty line whose turns last about so long; so much device time is a tenant owed at most.
    pub(super) fn new(quantum_ns: u64, credit_ns: u64) -> Self {
        Self {
            lines: Class::ALL.map(|_| FairLine::new(credit_ns)),
            owed_ns: Default::default(),
            quantum_ns: counted(quantum_ns),
            shares: IdMap::default(),
            len: 0,
        }
    }

    /// Turns last about so long from now on, and so much is a tenant owed at most.
    pub(super) fn set_quantum(&mut self, quantum_ns: u64, credit_ns: u64) {
        self.quantum_ns = counted(quantum_ns);
        self.lines.iter_mut().for_each(|line| line.set_credit(credit_ns));
    }

    /// How much is in line.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is in line.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if all tenants are given the same.
    pub(super) fn is_even(&self) -> bool {
        self.shares.is_empty()
    }

    /// What a tenant is given.
    pub(super) fn share_of(&self, tenant: TenantId) -> TenantShare {
        self.shares.get(&tenant).copied().unwrap_or_default()
    }

    /// A tenant is given this from now on.
    pub(super) fn set_share(&mut self, tenant: TenantId, share: TenantShare) {
        let before = self.share_of(tenant);
        if before == share {
            return;
        }
        match share == TenantShare::default() {
            true => drop(self.shares.remove(&tenant)),
            false => drop(self.shares.insert(tenant, share)),
        }
        if before.class != share.class {
            let moved: Vec<K> = self.lines[before.class as usize].take(tenant).collect();
            moved
                .into_iter()
                .for_each(|item| self.lines[share.class as usize].push(tenant, item, share.weight));
        }
    }

    /// Something of a tenant waits.
    pub(super) fn push(&mut self, tenant: TenantId, item: K) {
        let share = self.share_of(tenant);
        self.lines[share.class as usize].push(tenant, item, share.weight);
        self.len += 1;
    }

    /// It waits no more, if it did.
    pub(super) fn remove(&mut self, tenant: TenantId, item: K) {
        let class = self.share_of(tenant).class as usize;
        self.len -= usize::from(self.lines[class].remove(tenant, item));
    }

    /// The class that is next.
    fn next_class(&self) -> Option<usize> {
        let waits = |class: &usize| self.lines[*class].first().is_some();
        let owed = |class: &usize| self.owed_ns[*class] >= self.quantum_ns;
        let classes = 0..self.lines.len();
        let is_owed = classes.clone().filter(|class| waits(class) && owed(class));
        is_owed.max_by_key(|class| self.owed_ns[*class]).or_else(|| classes.clone().find(waits))
    }

    /// What is next, and whose it is.
    pub(super) fn first(&self) -> Option<(TenantId, K)> {
        let first = self.lines[self.next_class()?].first()?;
        Some((first.caller, first.id))
    }

    /// All that is in line, the next one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, K)> {
        let next = self.next_class();
        let others = (0..self.lines.len()).filter(move |class| Some(*class) != next);
        next.into_iter().chain(others).flat_map(|class| self.lines[class].iter())
    }

    /// A tenant is served: newcomers of its class begin at the same tag.
    pub(super) fn serve(&mut self, tenant: TenantId) {
        let class = self.share_of(tenant).class;
        self.lines[class as usize].serve(tenant, self.quantum_ns.unsigned_abs());
    }

    /// A tenant had the device for so long while others waited.
    pub(super) fn charge(&mut self, tenant: TenantId, used_ns: u64) {
        let share = self.share_of(tenant);
        let class = share.class as usize;
        self.lines[class].charge(tenant, used_ns / u64::from(share.weight.max(1)));
        let used_ns = i64::try_from(used_ns).unwrap_or(i64::MAX);
        if self.lines[..class].iter().any(|higher| higher.first().is_some()) {
            let least_ns = -(OWED_SHARE * self.quantum_ns);
            self.owed_ns[class] = self.owed_ns[class].saturating_sub(used_ns).max(least_ns);
        }
        for lower in class + 1..self.lines.len() {
            if self.lines[lower].first().is_some() {
                let owed_ns = self.owed_ns[lower].saturating_add(used_ns / OWED_SHARE);
                self.owed_ns[lower] = owed_ns.min(2 * self.quantum_ns);
            }
        }
    }

    /// How much others of its class may have before a tenant is next.
    pub(super) fn ahead_ns(&self, tenant: TenantId) -> u64 {
        let line = &self.lines[self.share_of(tenant).class as usize];
        line.tag_ns(tenant).saturating_sub(line.clock_ns())
    }

    /// Where the line would begin if a tenant were first.
    pub(super) fn place_of(&self, tenant: TenantId) -> Front {
        let class = self.share_of(tenant).class as usize;
        let first = (class, self.lines[class].tag_ns(tenant));
        Front { first, is_owed: self.owed_ns[class] >= self.quantum_ns }
    }

    /// True if a tenant that is served may go on before what is first in line: it had less.
    pub(super) fn goes_before(&self, front: Front, tenant: TenantId) -> bool {
        let (next, first_ns) = front.first;
        let class = self.share_of(tenant).class as usize;
        match class == next {
            true => self.lines[class].tag_ns(tenant) < first_ns,
            false => class < next && !front.is_owed,
        }
    }
}

#[cfg(test)]
#[path = "share_line_tests.rs"]
mod tests;
