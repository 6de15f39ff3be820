//! Bytes of bodies of all clients together. A body takes its bytes here before they are kept, and gives them back when its request is
//! over; where there are none left, the client is told to come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::failure::{Failure, Result};

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

    /// Nothing yet, for one request.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: self.clone(), bytes: AtomicUsize::new(0) }
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }
}

/// What one request has of it.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    bytes: AtomicUsize,
}

impl Share {
    /// Takes so many bytes more, or fails.
    pub fn take(&self, bytes: usize) -> Result<()> {
        let (used, most) = (&self.memory.used, self.memory.most);
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        match used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => {
                self.bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            Err(_) => Err(Failure::busy("the gateway has no memory left for this request: try again")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(*self.bytes.get_mut(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_took_comes_back_with_its_end() {
        let memory = Memory::new(10);
        let (one, two) = (memory.share(), memory.share());
        one.take(4).unwrap();
        one.take(3).unwrap();
        assert_eq!(two.take(4).unwrap_err().row().http, 503);
        assert!(two.take(usize::MAX).is_err());
        two.take(3).unwrap();
        drop(one);
        assert_eq!(memory.used(), 3);
        drop(two);
        assert_eq!(memory.used(), 0);
    }
}
