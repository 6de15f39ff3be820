//! Slots of connections: one tenant cannot take all of them, and no tenant those of the operator.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::replies::Replies;
use crate::ids::TenantId;
use crate::limits::{MAX_ADMIN_CONNECTIONS, MAX_CONNECTIONS};
use crate::quota::{Limit, QuotaError};
use crate::refusal::{Reason, Refusable};
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::{Account, Grounds, Taken};

/// All connections.
#[derive(Debug)]
pub struct ConnectionSlots {
    table: OrderedMutex<SlotTable, { rank::CONNECTIONS }>,
    /// The most of clients.
    most: usize,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self::new(MAX_CONNECTIONS)
    }
}

#[derive(Debug, Default)]
struct SlotTable {
    last: u64,
    admins: usize,
    entries: HashMap<u64, ConnectionEntry>,
}

impl SlotTable {
    fn connections_of(&self, owner: Option<SlotOwner>) -> usize {
        self.entries.values().filter(|entry| entry.owner == owner).count()
    }
}

/// Whose places a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotOwner {
    /// A tenant's.
    Tenant(TenantId),
    /// Of a gateway's uid that has not said yet for whom it acts, or of the supervisor's own, which is no tenant.
    Gateway(u32),
}

/// One connection.
#[derive(Debug, Clone)]
pub struct ConnectionEntry {
    /// The connection's owner; none on the admin socket.
    pub owner: Option<SlotOwner>,
    /// Why.
    pub grounds: Grounds,
    /// Its peer's uid.
    pub uid: u32,
    /// Answers to it.
    pub replies: Weak<Replies>,
}

/// Why a connection has no place.
#[derive(Debug, thiserror::Error)]
pub enum NoSlot {
    /// The tenant has the most connections it may.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// All tenants together have the most connections.
    #[error("there are {0} connections, the most that this supervisor takes: try again later")]
    All(usize),
    /// One tenant has half of few.
    #[error(
        "this tenant has {0} connections, half of what this supervisor takes with the files that it may open: close some"
    )]
    Half(usize),
    /// The operator has.
    #[error(
        "there are {MAX_ADMIN_CONNECTIONS} connections on the admin socket, the most that it takes: close some"
    )]
    Admin,
}

impl Refusable for NoSlot {
    fn reason(&self) -> Reason {
        Reason::ResourceExhausted
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Quota(error) => error.retry_after_ms(),
            Self::All(_) | Self::Half(_) | Self::Admin => Some(1000),
        }
    }

    fn quota(&self) -> Option<Limit> {
        match self {
            Self::Quota(error) => Some(error.limit),
            // Of all tenants together.
            Self::All(_) | Self::Half(_) => Some(Limit::Connections),
            Self::Admin => None,
        }
    }
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
    /// Its place among the connections of its tenant or gateway; none on the admin socket.
    taken: OrderedMutex<Option<Taken>, { rank::CONNECTION_PLACE }>,
}

impl ConnectionSlots {
    /// So many connections of clients at most.
    pub fn new(most: usize) -> Self {
        Self { table: OrderedMutex::default(), most }
    }

    fn table(&self) -> OrderedGuard<'_, SlotTable, { rank::CONNECTIONS }> {
        self.table.lock()
    }

    /// A place for one more connection of this uid; on the admin socket it has no owner.
    pub fn admit(
        self: &Arc<Self>,
        uid: u32,
        owner: Option<SlotOwner>,
        account: &Arc<Account>,
    ) -> Result<ConnectionSlot, NoSlot> {
        let taken = owner.map(|_| account.take(Limit::Connections, 1)).transpose()?;
        let mut table = self.table();
        match owner {
            None if table.admins >= MAX_ADMIN_CONNECTIONS => return Err(NoSlot::Admin),
            Some(_) if table.entries.len() - table.admins >= self.most => {
                return Err(NoSlot::All(self.most));
            }
            Some(_) if self.most < MAX_CONNECTIONS && table.connections_of(owner) >= self.most / 2 => {
                return Err(NoSlot::Half(self.most / 2));
            }
            None => table.admins += 1,
            Some(_) => {}
        }
        table.last += 1;
        let id = table.last;
        table
            .entries
            .insert(id, ConnectionEntry { owner, grounds: Grounds::Uid(uid), uid, replies: Weak::new() });
        Ok(ConnectionSlot { slots: self.clone(), id, taken: OrderedMutex::new(taken) })
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

    /// The connection acts for a tenant from now on, if that has a place left.
    pub fn act_for(&self, account: &Arc<Account>, grounds: Grounds) -> Result<(), QuotaError> {
        let owner = Some(SlotOwner::Tenant(account.tenant));
        if self.entry().is_none_or(|entry| entry.owner != owner) {
            *self.taken.lock() = Some(account.take(Limit::Connections, 1)?);
        }
        if let Some(entry) = self.slots.table().entries.get_mut(&self.id) {
            (entry.owner, entry.grounds) = (owner, grounds);
        }
        Ok(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        if table.entries.remove(&self.id).is_some_and(|entry| entry.owner.is_none()) {
            table.admins -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_CONNECTIONS_PER_TENANT;
    use crate::tenants::Tenants;

    #[test]
    fn the_last_call_of_a_connection_may_go_while_a_channel_is_locked() {
        let (connection_slots, tenants) = (Arc::new(ConnectionSlots::default()), Tenants::default());
        let account = tenants.account(TenantId::new(1));
        let slot = connection_slots.admit(1, Some(SlotOwner::Tenant(account.tenant)), &account).unwrap();
        let channel = OrderedMutex::<(), { rank::CHANNEL }>::default();
        let locked = channel.lock();
        drop(slot);
        drop(locked);
        assert_eq!(connection_slots.count(), 0);
    }

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_for_the_operator() {
        let (connection_slots, tenants) = (Arc::new(ConnectionSlots::default()), Tenants::default());
        let mut slots = Vec::new();
        for uid in 0.. {
            let before = slots.len();
            let account = tenants.account(TenantId::new(uid));
            let owner = Some(SlotOwner::Tenant(account.tenant));
            slots.extend(std::iter::from_fn(|| connection_slots.admit(uid, owner, &account).ok()));
            let got = slots.len() - before;
            if got == 0 {
                break;
            }
            assert_eq!(got, MAX_CONNECTIONS_PER_TENANT.min(MAX_CONNECTIONS - before));
        }
        assert_eq!(connection_slots.count(), MAX_CONNECTIONS);
        let next = tenants.account(TenantId::new(u32::MAX - 1));
        let refused = connection_slots.admit(0, Some(SlotOwner::Tenant(next.tenant)), &next);
        assert!(matches!(refused, Err(NoSlot::All(MAX_CONNECTIONS))), "all together have as many as may be");
        assert_eq!(next.used(Limit::Connections), 0);
        let account = tenants.account(TenantId::new(0));
        let operator = connection_slots.admit(0, None, &account);
        assert!(operator.is_ok());
        drop((slots, operator));
        assert_eq!((connection_slots.count(), account.used(Limit::Connections)), (0, 0));
    }

    #[test]
    fn one_tenant_has_half_where_there_are_few() {
        let (few, tenants) = (Arc::new(ConnectionSlots::new(10)), Tenants::default());
        let mut slots = Vec::new();
        for tenant in [1, 2].map(TenantId::new) {
            let (account, owner) = (tenants.account(tenant), Some(SlotOwner::Tenant(tenant)));
            slots.extend((0..5).map(|_| few.admit(tenant.get(), owner, &account).unwrap()));
            assert!(matches!(
                few.admit(tenant.get(), owner, &account),
                Err(NoSlot::Half(5) | NoSlot::All(10))
            ));
        }
        let operator = few.admit(0, None, &tenants.account(TenantId::new(0)));
        assert!(operator.is_ok() && slots.len() == 10);
    }

    #[test]
    fn a_gateways_connections_count_for_its_tenant() {
        let (connection_slots, tenants) = (Arc::new(ConnectionSlots::default()), Tenants::default());
        let grounds = Grounds::Token { gateway: 33, sha256: [1; 32] };
        let own = tenants.gateway_account(33);
        let gateway = || connection_slots.admit(33, Some(SlotOwner::Gateway(33)), &own);
        let slots: Vec<_> = (0..MAX_CONNECTIONS_PER_TENANT).map(|_| gateway().unwrap()).collect();
        assert!(matches!(gateway(), Err(NoSlot::Quota(_))));
        let (seven, eight) = (tenants.account(TenantId::new(7)), tenants.account(TenantId::new(8)));
        assert!(slots.iter().all(|place| place.act_for(&seven, grounds).is_ok()));
        let one_more = gateway().unwrap();
        let why = one_more.act_for(&seven, grounds).unwrap_err();
        assert_eq!((why.limit, why.used), (Limit::Connections, MAX_CONNECTIONS_PER_TENANT as u64));
        assert!(one_more.act_for(&eight, grounds).is_ok());
        assert_eq!(
            connection_slots.all().iter().filter(|entry| entry.grounds == grounds).count(),
            slots.len() + 1
        );
        drop((slots, one_more));
        assert_eq!((seven.used(Limit::Connections), own.used(Limit::Connections)), (0, 0));
    }
}
