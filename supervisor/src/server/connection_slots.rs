//! Who is connected: one tenant cannot take every place, and nobody the operator's.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::replies::Replies;
use crate::ids::TenantId;
use crate::limits::{MAX_ADMIN_CONNECTIONS, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_TENANT};
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::Grounds;

/// All connections.
#[derive(Debug, Default)]
pub struct ConnectionSlots(OrderedMutex<SlotTable, { rank::CONNECTIONS }>);

#[derive(Debug, Default)]
struct SlotTable {
    last: u64,
    admins: usize,
    /// By [`SlotOwner`].
    clients: HashMap<SlotOwner, usize>,
    entries: HashMap<u64, ConnectionEntry>,
}

/// Whose places a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotOwner {
    /// A tenant's.
    Tenant(TenantId),
    /// Of a gateway's uid that has not said yet for whom it acts.
    Gateway(u32),
}

/// One connection.
#[derive(Debug, Clone)]
pub struct ConnectionEntry {
    /// Whose it is; none on the admin socket.
    pub owner: Option<SlotOwner>,
    /// Why.
    pub grounds: Grounds,
    /// Its peer's uid.
    pub uid: u32,
    /// Answers to it.
    pub replies: Weak<Replies>,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
}

impl SlotTable {
    fn has_room(&self, owner: SlotOwner) -> bool {
        let mine = self.clients.get(&owner).copied().unwrap_or(0);
        mine < MAX_CONNECTIONS_PER_TENANT
    }

    fn enter(&mut self, owner: Option<SlotOwner>) {
        match owner {
            None => self.admins += 1,
            Some(owner) => *self.clients.entry(owner).or_default() += 1,
        }
    }

    fn leave(&mut self, owner: Option<SlotOwner>) {
        let Some(owner) = owner else {
            self.admins -= 1;
            return;
        };
        if let Some(mine) = self.clients.get_mut(&owner) {
            *mine -= 1;
            if *mine == 0 {
                self.clients.remove(&owner);
            }
        }
    }
}

impl ConnectionSlots {
    fn table(&self) -> OrderedGuard<'_, SlotTable, { rank::CONNECTIONS }> {
        self.0.lock()
    }

    /// A place for one more connection of this uid, if there is one; on the admin socket it has no owner.
    pub fn admit(self: &Arc<Self>, uid: u32, owner: Option<SlotOwner>) -> Option<ConnectionSlot> {
        let mut table = self.table();
        let room = match owner {
            None => table.admins < MAX_ADMIN_CONNECTIONS,
            Some(owner) => table.entries.len() - table.admins < MAX_CONNECTIONS && table.has_room(owner),
        };
        if !room {
            return None;
        }
        table.enter(owner);
        table.last += 1;
        let id = table.last;
        table
            .entries
            .insert(id, ConnectionEntry { owner, grounds: Grounds::Uid(uid), uid, replies: Weak::new() });
        Some(ConnectionSlot { slots: self.clone(), id })
    }

    /// Connections on both sockets.
    pub fn count(&self) -> usize {
        self.table().entries.len()
    }

    /// All connections.
    pub fn all(&self) -> Vec<ConnectionEntry> {
        self.table().entries.values().cloned().collect()
    }
}

impl ConnectionSlot {
    /// The connection can be found from now on.
    pub fn answers(&self, replies: &Arc<Replies>) {
        if let Some(entry) = self.slots.table().entries.get_mut(&self.id) {
            entry.replies = Arc::downgrade(replies);
        }
    }

    /// The connection as it stands in the table.
    pub fn entry(&self) -> Option<ConnectionEntry> {
        self.slots.table().entries.get(&self.id).cloned()
    }

    /// The connection acts for a tenant from now on; false if that has no place left.
    pub fn act_for(&self, tenant: TenantId, grounds: Grounds) -> bool {
        let mut table = self.slots.table();
        let owner = Some(SlotOwner::Tenant(tenant));
        let Some(before) = table.entries.get(&self.id).map(|entry| entry.owner) else { return false };
        if before != owner && !table.has_room(SlotOwner::Tenant(tenant)) {
            return false;
        }
        table.leave(before);
        table.enter(owner);
        if let Some(entry) = table.entries.get_mut(&self.id) {
            (entry.owner, entry.grounds) = (owner, grounds);
        }
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        if let Some(entry) = table.entries.remove(&self.id) {
            table.leave(entry.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_for_the_operator() {
        let connection_slots = Arc::new(ConnectionSlots::default());
        let mut slots = Vec::new();
        for tenant in 0.. {
            let before = slots.len();
            slots.extend(std::iter::from_fn(|| {
                connection_slots.admit(tenant, Some(SlotOwner::Tenant(TenantId::new(tenant))))
            }));
            let got = slots.len() - before;
            if got == 0 {
                break;
            }
            assert_eq!(got, MAX_CONNECTIONS_PER_TENANT.min(MAX_CONNECTIONS - before));
        }
        assert_eq!(connection_slots.count(), MAX_CONNECTIONS);
        let operator = connection_slots.admit(0, None);
        assert!(operator.is_some());
        drop((slots, operator));
        assert_eq!(connection_slots.count(), 0);
        assert!(connection_slots.table().clients.is_empty());
    }

    #[test]
    fn a_gateways_connections_count_for_its_tenant() {
        let connection_slots = Arc::new(ConnectionSlots::default());
        let grounds = Grounds::Token { gateway: 33, sha256: [1; 32] };
        let gateway = || connection_slots.admit(33, Some(SlotOwner::Gateway(33))).unwrap();
        let slots: Vec<_> = (0..MAX_CONNECTIONS_PER_TENANT).map(|_| gateway()).collect();
        assert!(connection_slots.admit(33, Some(SlotOwner::Gateway(33))).is_none());
        assert!(slots.iter().all(|place| place.act_for(TenantId::new(7), grounds)));
        let one_more = gateway();
        assert!(!one_more.act_for(TenantId::new(7), grounds) && one_more.act_for(TenantId::new(8), grounds));
        assert_eq!(
            connection_slots.all().iter().filter(|entry| entry.grounds == grounds).count(),
            slots.len() + 1
        );
        drop((slots, one_more));
        assert!(connection_slots.table().clients.is_empty());
    }
}
