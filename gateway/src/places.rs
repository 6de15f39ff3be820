//! Places for connections. Whoever sent no request yet with a token that the supervisor knows is a stranger, and so is whoever has more
//! connections with that token than one may keep: where all places are taken, the stranger that came first gives its own up to the next
//! connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What stands for a token: its SHA-256; zeros for the program's own user.
pub type Key = [u8; 32];

/// All places for one kind of connections.
#[derive(Debug)]
pub struct Places {
    most: u32,
    /// Of one token, those that are kept.
    most_kept: usize,
    free: Arc<Semaphore>,
    guests: Mutex<Guests>,
    came: AtomicU64,
}

#[derive(Debug, Default)]
struct Guests {
    /// By the order in which they came.
    strangers: BTreeMap<u64, Arc<Guest>>,
    /// How many others there are of each token.
    known: HashMap<Key, usize>,
}

/// Whoever is connected.
#[derive(Debug)]
pub struct Guest {
    places: Arc<Places>,
    nth: u64,
    /// Whose connection it is, once it is no stranger's.
    whose: OnceLock<Key>,
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
    /// Places without guests.
    pub fn new(most: usize, most_kept: usize) -> Arc<Self> {
        let (free, most) = (Arc::new(Semaphore::new(most)), most as u32);
        Arc::new(Self { most, most_kept, free, guests: Mutex::default(), came: AtomicU64::new(0) })
    }

    /// A place, of a stranger where there is no other; none if there are no strangers either.
    pub async fn take(self: &Arc<Self>) -> Option<Place> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let (_, stranger) = self.guests().strangers.pop_first()?;
                stranger.leaves.notify_one();
                self.free.clone().acquire_owned().await.ok()?
            }
        };
        let nth = self.came.fetch_add(1, Ordering::Relaxed);
        let guest =
            Arc::new(Guest { places: self.clone(), nth, whose: OnceLock::new(), leaves: Notify::new() });
        self.guests().strangers.insert(nth, guest.clone());
        Some(Place { guest, _permit: permit })
    }

    /// Returns once nobody is connected any more.
    pub async fn all_free(&self) {
        // Closed never: the semaphore lives as long as this.
        let _none_left = self.free.acquire_many(self.most).await;
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        // The maps are whole after every step.
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// The supervisor knows a token of this guest's.
    pub fn recognise(&self, token: Key) {
        if self.whose.get().is_some() {
            return;
        }
        let mut guests = self.places.guests();
        // One that gives its place up already stays a stranger.
        if !guests.strangers.contains_key(&self.nth) {
            return;
        }
        let kept = guests.known.entry(token).or_default();
        if *kept < self.places.most_kept {
            *kept += 1;
            guests.strangers.remove(&self.nth);
            let _ = self.whose.set(token);
        }
    }

    /// Returns once another connection takes the place.
    pub async fn leaves(&self) {
        self.leaves.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = self.guest.places.guests();
        guests.strangers.remove(&self.guest.nth);
        if let Some(token) = self.guest.whose.get()
            && let Some(kept) = guests.known.get_mut(token)
        {
            *kept -= 1;
            if *kept == 0 {
                guests.known.remove(token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn strangers_give_their_places_up_and_others_do_not() {
        let places = Places::new(2, 1);
        let known = places.take().await.unwrap();
        known.guest.recognise([1; 32]);
        let stranger = places.take().await.unwrap();
        let leaves = async {
            stranger.guest.leaves().await;
            drop(stranger);
        };
        let given_up = async { tokio::join!(places.take(), leaves).0 };
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), given_up).await.unwrap().unwrap();
        next.guest.recognise([2; 32]);
        assert!(places.take().await.is_none(), "nobody here is a stranger");
        drop(known);
        let last = places.take().await.unwrap();
        drop((next, last));
        places.all_free().await;
        let guests = places.guests();
        assert!(guests.strangers.is_empty() && guests.known.is_empty());
    }

    #[tokio::test]
    async fn one_token_keeps_no_more_than_its_part() {
        let places = Places::new(5, 3);
        let mut all = Vec::new();
        for _ in 0..5 {
            let place = places.take().await.unwrap();
            (0..2).for_each(|_| place.guest.recognise([1; 32]));
            all.push(place);
        }
        // The last two are strangers: the first of them gives its place up to another token's.
        let stranger = all.remove(3);
        let leaves = async {
            stranger.guest.leaves().await;
            stranger.guest.recognise([1; 32]);
            drop(stranger);
        };
        let other = async { tokio::join!(places.take(), leaves).0 };
        let other = tokio::time::timeout(std::time::Duration::from_secs(60), other).await.unwrap().unwrap();
        other.guest.recognise([2; 32]);
        assert_eq!(places.guests().strangers.len(), 1);
        // The control: where one of those that are kept leaves, another connection of the token is kept.
        drop(all.remove(0));
        all.last().unwrap().guest.recognise([1; 32]);
        assert!(places.guests().strangers.is_empty());
        assert_eq!(places.guests().known[&[1; 32]], 3);
    }
}
