//! The calls of one connection that have no answer yet, by the request ids of their client.
//!
//! A client may use an id again as soon as it is answered, while threads still hold the earlier call of that id:
//! they name the call by its handle as well, and never touch the later one.
//!
//! ```text
//!         open             placed: None
//! (free) ─────► waiting ─────────────────► at a device
//!    ▲             │                           │
//!    └─────────────┴──── close, take ◄─────────┘      placed after that: the place comes back, to be cancelled
//! ```

use std::collections::HashMap;

use super::sync::{Arc, Mutex};

/// A call without an answer.
#[derive(Debug)]
pub struct OpenCall<H, P> {
    /// Answers it.
    pub handle: Arc<H>,
    /// Where it waits or runs, once a device has it.
    pub place: Option<P>,
}

/// Why a call is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// As many are open as may be.
    TooMany,
    /// The id belongs to an open call.
    IdInUse,
}

/// The open calls of a connection, whose handles are `H` and whose places at devices are `P`.
#[derive(Debug)]
pub struct OpenCalls<H, P> {
    calls: Mutex<HashMap<u64, OpenCall<H, P>>>,
    limit: usize,
}

impl<H, P> OpenCalls<H, P> {
    /// None yet, and never more than `limit`.
    pub fn new(limit: usize) -> Self {
        Self { calls: Mutex::new(HashMap::new()), limit }
    }

    /// Opens a call whose handle `make` returns; it is asked only if the call may be opened.
    pub fn open(&self, request: u64, make: impl FnOnce() -> Arc<H>) -> Result<Arc<H>, OpenError> {
        self.with(|calls| {
            if calls.len() >= self.limit {
                return Err(OpenError::TooMany);
            }
            if calls.contains_key(&request) {
                return Err(OpenError::IdInUse);
            }
            let handle = make();
            calls.insert(request, OpenCall { handle: handle.clone(), place: None });
            Ok(handle)
        })
    }

    /// Notes where a call is. The place comes back if the call was closed or taken meanwhile: the
    /// thread that placed it cancels it there.
    pub fn placed(&self, request: u64, handle: &H, place: P) -> Option<P> {
        self.with(|calls| match calls.get_mut(&request) {
            Some(call) if std::ptr::eq(&*call.handle, handle) => {
                call.place = Some(place);
                None
            }
            _ => Some(place),
        })
    }

    /// A call is about to be answered: its id is free, unless a later call has it already.
    pub fn close(&self, request: u64, handle: &H) {
        self.with(|calls| {
            if calls.get(&request).is_some_and(|call| std::ptr::eq(&*call.handle, handle)) {
                calls.remove(&request);
            }
        });
    }

    /// Takes a call out, to end it: the caller cancels it at its place, if it has one.
    pub fn take(&self, request: u64) -> Option<OpenCall<H, P>> {
        self.with(|calls| calls.remove(&request))
    }

    /// True if no call is open.
    pub fn is_empty(&self) -> bool {
        self.with(|calls| calls.is_empty())
    }

    /// Takes all calls out: the client is gone.
    pub fn take_all(&self) -> Vec<OpenCall<H, P>> {
        self.with(|calls| calls.drain().map(|(_, call)| call).collect())
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<u64, OpenCall<H, P>>) -> T) -> T {
        change(&mut self.calls.lock())
    }
}
