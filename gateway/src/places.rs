//! Places for connections. Whoever sent no request yet with a token that the supervisor knows is a stranger: where all places are
//! taken, the stranger that came first gives its own up to the next connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// All places for one kind of connections.
#[derive(Debug)]
pub struct Places {
    most: u32,
    free: Arc<Semaphore>,
    /// By the order in which they came.
    strangers: Mutex<BTreeMap<u64, Arc<Guest>>>,
    came: AtomicU64,
}

/// Whoever is connected.
#[derive(Debug)]
pub struct Guest {
    places: Arc<Places>,
    nth: u64,
    is_known: AtomicBool,
    leaves: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    /// Who has it.
    pub guest: Arc<Guest>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// So many places.
    pub fn new(most: usize) -> Arc<Self> {
        let (free, most) = (Arc::new(Semaphore::new(most)), most as u32);
        Arc::new(Self { most, free, strangers: Mutex::default(), came: AtomicU64::new(0) })
    }

    /// A place, of a stranger where there is no other; none if there are no strangers either.
    pub async fn take(self: &Arc<Self>) -> Option<Place> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let (_, stranger) = self.strangers().pop_first()?;
                stranger.leaves.notify_one();
                self.free.clone().acquire_owned().await.ok()?
            }
        };
        let nth = self.came.fetch_add(1, Ordering::Relaxed);
        let (is_known, leaves) = (AtomicBool::new(false), Notify::new());
        let guest = Arc::new(Guest { places: self.clone(), nth, is_known, leaves });
        self.strangers().insert(nth, guest.clone());
        Some(Place { guest, _permit: permit })
    }

    /// Returns once nobody is connected any more.
    pub async fn all_free(&self) {
        // Closed never: the semaphore lives as long as this.
        let _none_left = self.free.acquire_many(self.most).await;
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Guest>>> {
        // The map is whole after every step.
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// The supervisor knows a token of this guest's.
    pub fn recognise(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            self.places.strangers().remove(&self.nth);
        }
    }

    /// Returns once another connection takes the place.
    pub async fn leaves(&self) {
        self.leaves.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.guest.places.strangers().remove(&self.guest.nth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn strangers_give_their_places_up_and_others_do_not() {
        let places = Places::new(2);
        let known = places.take().await.unwrap();
        known.guest.recognise();
        let stranger = places.take().await.unwrap();
        let leaves = async {
            stranger.guest.leaves().await;
            drop(stranger);
        };
        let given_up = async { tokio::join!(places.take(), leaves).0 };
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), given_up).await.unwrap().unwrap();
        next.guest.recognise();
        assert!(places.take().await.is_none(), "nobody here is a stranger");
        drop(known);
        let last = places.take().await.unwrap();
        drop((next, last));
        places.all_free().await;
        assert!(places.strangers().is_empty());
    }
}
