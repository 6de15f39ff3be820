//! Who is connected: one tenant cannot take every place, and nobody the operator's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::limits::{MAX_ADMIN_CONNECTIONS, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_TENANT};
use crate::registry::Tenant;

/// All connections, counted.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    admins: usize,
    clients: usize,
    tenants: HashMap<Tenant, usize>,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub struct Place {
    guests: Arc<Guests>,
    /// None on the admin socket.
    tenant: Option<Tenant>,
}

impl Guests {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A place for one more connection, if there is one.
    pub fn admit(self: &Arc<Self>, tenant: Tenant, admin: bool) -> Option<Place> {
        let mut counts = self.counts();
        if admin {
            if counts.admins >= MAX_ADMIN_CONNECTIONS {
                return None;
            }
            counts.admins += 1;
        } else {
            let mine = counts.tenants.get(&tenant).copied().unwrap_or(0);
            if counts.clients >= MAX_CONNECTIONS || mine >= MAX_CONNECTIONS_PER_TENANT {
                return None;
            }
            counts.clients += 1;
            counts.tenants.insert(tenant, mine + 1);
        }
        Some(Place { guests: self.clone(), tenant: (!admin).then_some(tenant) })
    }

    /// Connections on both sockets.
    pub fn count(&self) -> usize {
        let counts = self.counts();
        counts.admins + counts.clients
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.guests.counts();
        let Some(tenant) = self.tenant else {
            counts.admins -= 1;
            return;
        };
        counts.clients -= 1;
        if let Some(mine) = counts.tenants.get_mut(&tenant) {
            *mine -= 1;
            if *mine == 0 {
                counts.tenants.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_for_the_operator() {
        let guests = Arc::new(Guests::default());
        let mut places = Vec::new();
        for tenant in 0.. {
            let before = places.len();
            places.extend(std::iter::from_fn(|| guests.admit(tenant, false)));
            let got = places.len() - before;
            if got == 0 {
                break;
            }
            assert_eq!(got, MAX_CONNECTIONS_PER_TENANT.min(MAX_CONNECTIONS - before));
        }
        assert_eq!(guests.count(), MAX_CONNECTIONS);
        assert!(guests.admit(0, true).is_some());
        places.clear();
        assert_eq!(guests.count(), 0);
        assert!(guests.counts().tenants.is_empty());
    }
}
