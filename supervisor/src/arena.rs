//! Memory that workers map for the calls of one tenant: shared with a client, or the state of a session.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::client_memfd::ClientMemfd;
use crate::quota::{Limit, QuotaError};
use crate::state_room::{DeviceMemory, Home, StateRoom, TakenRoom};
use crate::tenants::{Account, Taken};

/// An arena of one tenant. It never changes tenant and dies with its connection.
#[derive(Debug)]
pub struct Arena {
    /// Its name towards workers, never used twice.
    pub id: u64,
    /// Its memory.
    pub memfd: ClientMemfd,
    closed: AtomicBool,
    account: Arc<Account>,
    /// The arena's share of its tenant's mapped bytes, charged once a call names the arena.
    pinned: OnceLock<Taken>,
    /// Of a session's state, where that is.
    home: Option<Home>,
}

impl Arena {
    /// An open arena, whose bytes are charged to this limit.
    pub fn new(
        id: u64,
        memfd: ClientMemfd,
        account: &Arc<Account>,
        limit: Limit,
    ) -> Result<Self, QuotaError> {
        Self::with(id, memfd, account, limit, None)
    }

    fn with(
        id: u64,
        mut memfd: ClientMemfd,
        account: &Arc<Account>,
        limit: Limit,
        home: Option<Home>,
    ) -> Result<Self, QuotaError> {
        memfd.charge(account.take(limit, memfd.bytes())?);
        account.arena_opened();
        let (closed, account) = (AtomicBool::new(false), account.clone());
        Ok(Self { id, memfd, closed, account, pinned: OnceLock::new(), home })
    }

    /// An arena with the state of a session.
    pub fn state(id: u64, memfd: ClientMemfd, account: &Arc<Account>) -> Result<Self, QuotaError> {
        Self::with(id, memfd, account, Limit::SessionBytes, Some(Home::default()))
    }

    /// The memory of the device that has the session's state.
    pub fn device_memory(&self) -> Option<&DeviceMemory> {
        self.home.as_ref().and_then(Home::memory)
    }

    /// The same where it is another device's than the one with this room.
    pub fn memory_elsewhere(&self, room: &Arc<StateRoom>) -> Option<&DeviceMemory> {
        self.device_memory().filter(|memory| !memory.is_in(room))
    }

    /// Room on a device for the session's state, which its worker is to make there; none if the state stays where it is.
    pub fn ask_for_room(&self, room: &Arc<StateRoom>) -> Option<TakenRoom> {
        self.home.as_ref()?.ask(room, self.memfd.bytes(), &self.account)
    }

    /// The session's state is in this memory from now on.
    pub fn settle(&self, descriptor: OwnedFd, taken: TakenRoom) {
        if let Some(home) = &self.home {
            home.settle(descriptor, taken);
        }
    }

    /// Workers are about to map it, as long as it is open.
    pub fn pin(&self, account: &Arc<Account>) -> Result<(), QuotaError> {
        if self.pinned.get().is_none() {
            // If another call did so meanwhile, what was taken twice is given back.
            let _ = self.pinned.set(account.take(Limit::PinnedBytes, self.memfd.bytes())?);
        }
        Ok(())
    }

    /// No further call may name it. To be called before workers are told to forget it.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.account.arena_closed();
        }
    }

    /// True if the client closed the arena: a worker that maps it for a waiting call must unmap it after that
    /// call.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.close();
    }
}
