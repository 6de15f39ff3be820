//! Bytes of bodies of all clients together. A body takes its bytes here before they are kept, and gives them back when its request is
//! over; where there are none left, the client is told to come back.
//!
//! A token has at most four times what it leaves free (the dynamic threshold of Choudhury and Hahne, "Dynamic queue length thresholds
//! for shared-memory packet switches", 1998): alone four fifths of all, and who comes then finds room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::failure::{Failure, Result};

/// A token may have so many times the bytes that are free then.
const TIMES_FREE: usize = 4;

/// All of it.
#[derive(Debug)]
pub struct Memory {
    used: AtomicUsize,
    most: usize,
}

impl Memory {
    /// So many bytes in all.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// Nothing yet, for one request of nobody in particular.
    pub fn share(self: &Arc<Self>) -> Share {
        self.share_of(&Owned::default())
    }

    /// Nothing yet, for one request of a token that has so much.
    pub fn share_of(self: &Arc<Self>, owned: &Owned) -> Share {
        Share { memory: self.clone(), owned: owned.clone(), bytes: AtomicUsize::new(0) }
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }
}

/// What all requests of one token have of it.
#[derive(Debug, Clone, Default)]
pub struct Owned(Arc<AtomicUsize>);

/// What one request has of it.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    owned: Owned,
    bytes: AtomicUsize,
}

impl Share {
    /// Takes so many bytes more, or fails.
    pub fn take(&self, bytes: usize) -> Result<()> {
        let (used, most) = (&self.memory.used, self.memory.most);
        let owned = self.owned.0.load(Ordering::Acquire).saturating_add(bytes);
        let fits = |used: usize| {
            let sum = used.checked_add(bytes)?;
            (owned <= most.checked_sub(sum)?.saturating_mul(TIMES_FREE)).then_some(sum)
        };
        match used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => {
                self.owned.0.fetch_add(bytes, Ordering::AcqRel);
                self.bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            Err(_) => Err(Failure::busy("the gateway has no memory left for this request: try again")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.owned.0.fetch_sub(bytes, Ordering::AcqRel);
        self.memory.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_took_comes_back_with_its_end() {
        let memory = Memory::new(100);
        let (one, two) = (memory.share(), memory.share());
        one.take(40).unwrap();
        one.take(30).unwrap();
        assert_eq!(two.take(40).unwrap_err().row().http, 503);
        assert!(two.take(usize::MAX).is_err());
        two.take(20).unwrap();
        drop(one);
        assert_eq!(memory.used(), 20);
        drop(two);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn who_has_much_leaves_room_to_others() {
        let (memory, greedy, other) = (Memory::new(100), Owned::default(), Owned::default());
        let many: Vec<Share> = (0..10).map(|_| memory.share_of(&greedy)).collect();
        assert_eq!(many.iter().filter(|share| share.take(10).is_ok()).count(), 8);
        let share = memory.share_of(&other);
        share.take(16).unwrap();
        assert!(many[0].take(1).is_err());
        drop(many);
        assert_eq!((memory.used(), greedy.0.load(Ordering::Acquire)), (16, 0));
    }
}
