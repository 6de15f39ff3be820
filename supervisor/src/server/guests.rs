//! Who is connected: one tenant cannot take every place, and nobody the operator's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::replies::Replies;
use crate::limits::{MAX_ADMIN_CONNECTIONS, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_TENANT};
use crate::tenants::{Grounds, Tenant};

/// All connections.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    last: u64,
    admins: usize,
    /// By [`Host`].
    clients: HashMap<Host, usize>,
    guests: HashMap<u64, Guest>,
}

/// Whose places a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Host {
    /// A tenant's.
    Tenant(Tenant),
    /// Of a gateway's uid that has not said yet for whom it acts.
    Gateway(u32),
}

/// One connection.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Whose it is; none on the admin socket.
    pub host: Option<Host>,
    /// Why.
    pub grounds: Grounds,
    /// Its peer's uid.
    pub uid: u32,
    /// Answers to it.
    pub replies: Weak<Replies>,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub struct Place {
    guests: Arc<Guests>,
    id: u64,
}

impl Book {
    fn has_room(&self, host: Host) -> bool {
        let mine = self.clients.get(&host).copied().unwrap_or(0);
        mine < MAX_CONNECTIONS_PER_TENANT
    }

    fn enter(&mut self, host: Option<Host>) {
        match host {
            None => self.admins += 1,
            Some(host) => *self.clients.entry(host).or_default() += 1,
        }
    }

    fn leave(&mut self, host: Option<Host>) {
        let Some(host) = host else {
            self.admins -= 1;
            return;
        };
        if let Some(mine) = self.clients.get_mut(&host) {
            *mine -= 1;
            if *mine == 0 {
                self.clients.remove(&host);
            }
        }
    }
}

impl Guests {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A place for one more connection of this uid, if there is one; on the admin socket it has no host.
    pub fn admit(self: &Arc<Self>, uid: u32, host: Option<Host>) -> Option<Place> {
        let mut book = self.book();
        let room = match host {
            None => book.admins < MAX_ADMIN_CONNECTIONS,
            Some(host) => book.guests.len() - book.admins < MAX_CONNECTIONS && book.has_room(host),
        };
        if !room {
            return None;
        }
        book.enter(host);
        book.last += 1;
        let id = book.last;
        book.guests.insert(id, Guest { host, grounds: Grounds::Uid(uid), uid, replies: Weak::new() });
        Some(Place { guests: self.clone(), id })
    }

    /// Connections on both sockets.
    pub fn count(&self) -> usize {
        self.book().guests.len()
    }

    /// All connections.
    pub fn all(&self) -> Vec<Guest> {
        self.book().guests.values().cloned().collect()
    }
}

impl Place {
    /// The connection can be found from now on.
    pub fn answers(&self, replies: &Arc<Replies>) {
        if let Some(guest) = self.guests.book().guests.get_mut(&self.id) {
            guest.replies = Arc::downgrade(replies);
        }
    }

    /// The connection as it stands in the book.
    pub fn guest(&self) -> Option<Guest> {
        self.guests.book().guests.get(&self.id).cloned()
    }

    /// The connection acts for a tenant from now on; false if that has no place left.
    pub fn act_for(&self, tenant: Tenant, grounds: Grounds) -> bool {
        let mut book = self.guests.book();
        let host = Some(Host::Tenant(tenant));
        let Some(before) = book.guests.get(&self.id).map(|guest| guest.host) else { return false };
        if before != host && !book.has_room(Host::Tenant(tenant)) {
            return false;
        }
        book.leave(before);
        book.enter(host);
        if let Some(guest) = book.guests.get_mut(&self.id) {
            (guest.host, guest.grounds) = (host, grounds);
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut book = self.guests.book();
        if let Some(guest) = book.guests.remove(&self.id) {
            book.leave(guest.host);
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
            places.extend(std::iter::from_fn(|| guests.admit(tenant, Some(Host::Tenant(tenant)))));
            let got = places.len() - before;
            if got == 0 {
                break;
            }
            assert_eq!(got, MAX_CONNECTIONS_PER_TENANT.min(MAX_CONNECTIONS - before));
        }
        assert_eq!(guests.count(), MAX_CONNECTIONS);
        let operator = guests.admit(0, None);
        assert!(operator.is_some());
        drop((places, operator));
        assert_eq!(guests.count(), 0);
        assert!(guests.book().clients.is_empty());
    }

    #[test]
    fn who_acts_for_a_tenant_takes_its_places() {
        let guests = Arc::new(Guests::default());
        let grounds = Grounds::Token { gateway: 33, sha256: [1; 32] };
        let gateway = || guests.admit(33, Some(Host::Gateway(33))).unwrap();
        let places: Vec<_> = (0..MAX_CONNECTIONS_PER_TENANT).map(|_| gateway()).collect();
        assert!(guests.admit(33, Some(Host::Gateway(33))).is_none());
        assert!(places.iter().all(|place| place.act_for(7, grounds)));
        let one_more = gateway();
        assert!(!one_more.act_for(7, grounds) && one_more.act_for(8, grounds));
        assert_eq!(guests.all().iter().filter(|guest| guest.grounds == grounds).count(), places.len() + 1);
        drop((places, one_more));
        assert!(guests.book().clients.is_empty());
    }
}
