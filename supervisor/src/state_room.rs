//! Memory of a device for the states of sessions, which are there while they fit and else in arenas of the host.
//!
//! The first worker that a call of a session reaches makes the memory of the state and sends its descriptor, which the supervisor
//! keeps: so the state outlives the process, and other workers of the device map the same memory. It goes with its session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pappus_protocol::device_memory::GPU_PAGE_BYTES;

use crate::quota::Limit;
use crate::tenants::{Account, Taken};

/// What a device has for states.
#[derive(Debug)]
pub struct StateRoom {
    device: String,
    most_bytes: u64,
    taken_bytes: AtomicU64,
}

impl StateRoom {
    /// So many bytes of a device.
    pub fn new(device: &str, most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { device: device.to_owned(), most_bytes, taken_bytes: AtomicU64::new(0) })
    }

    /// What states take.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Takes room for a state, if there is so much, and a descriptor of its tenant's. Devices give memory in whole pages only: what is
    /// smaller than a page would take up far more than its tenant's quota counts, and is soon copied.
    fn take(self: &Arc<Self>, bytes: u64, account: &Arc<Account>) -> Option<TakenRoom> {
        if bytes < GPU_PAGE_BYTES {
            return None;
        }
        let bytes = bytes.checked_next_multiple_of(GPU_PAGE_BYTES)?;
        let charge = account.take(Limit::Descriptors, 1).ok()?;
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.most_bytes);
        let taken = self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| TakenRoom { room: self.clone(), bytes, _charge: charge })
    }
}

/// A part of a device's room, until it is dropped.
#[derive(Debug)]
pub struct TakenRoom {
    room: Arc<StateRoom>,
    bytes: u64,
    /// For the descriptor of the memory.
    _charge: Taken,
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.room.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where the state of a session is: in its arena, or in memory of a device from its first call on.
#[derive(Debug, Default)]
pub struct Home {
    /// True if a worker was asked to make the memory. Only one ever is: behind the first call the state is not zero any more.
    asked: AtomicBool,
    memory: OnceLock<DeviceMemory>,
}

/// Memory of a device with a state.
#[derive(Debug)]
pub struct DeviceMemory {
    descriptor: OwnedFd,
    taken: TakenRoom,
}

impl DeviceMemory {
    /// What workers map it by.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.taken.room.device
    }

    /// True if it is memory of the device with this room.
    pub fn is_in(&self, room: &Arc<StateRoom>) -> bool {
        Arc::ptr_eq(&self.taken.room, room)
    }
}

impl Home {
    /// The memory, if the state is on a device.
    pub fn memory(&self) -> Option<&DeviceMemory> {
        self.memory.get()
    }

    /// Room for the state of so many bytes of this tenant's, which its worker is to make; none if it stays where it is.
    pub fn ask(&self, room: &Arc<StateRoom>, bytes: u64, account: &Arc<Account>) -> Option<TakenRoom> {
        if self.asked.swap(true, Ordering::Relaxed) {
            return None;
        }
        room.take(bytes, account)
    }

    /// The state is in this memory from now on.
    pub fn settle(&self, descriptor: OwnedFd, taken: TakenRoom) {
        let _ = self.memory.set(DeviceMemory { descriptor, taken });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::limits::DEFAULT_DESCRIPTORS;
    use crate::tenants::Tenants;

    const PAGE: u64 = GPU_PAGE_BYTES;

    #[test]
    fn states_have_no_more_room_than_there_is_and_give_it_back() {
        let account = Tenants::default().account(TenantId::new(1));
        let room = StateRoom::new("cuda:0", 10 * PAGE);
        let (first, second, third) = (Home::default(), Home::default(), Home::default());
        let taken = first.ask(&room, 6 * PAGE, &account).unwrap();
        assert!(first.ask(&room, 1, &account).is_none(), "asked once");
        assert!(second.ask(&room, 4 * PAGE + 1, &account).is_none(), "a page more than there is");
        assert!(second.ask(&room, PAGE, &account).is_none(), "asked once, too");
        assert!(third.ask(&room, u64::MAX, &account).is_none());
        assert_eq!(room.taken_bytes(), 6 * PAGE);
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        first.settle(descriptor, taken);
        assert!(
            first.memory().unwrap().is_in(&room)
                && !first.memory().unwrap().is_in(&StateRoom::new("cuda:0", PAGE))
        );
        assert_eq!(first.memory().unwrap().device(), "cuda:0");
        assert_eq!(account.used(Limit::Descriptors), 1);
        drop(first);
        assert_eq!((room.taken_bytes(), account.used(Limit::Descriptors)), (0, 0));
        assert!(Home::default().ask(&room, 10 * PAGE, &account).is_some());
        assert_eq!(room.taken_bytes(), 0);
    }

    #[test]
    fn a_state_takes_whole_pages_and_a_descriptor_of_its_tenants() {
        let account = Tenants::default().account(TenantId::new(1));
        let room = StateRoom::new("cuda:0", 2 * PAGE);
        assert!(Home::default().ask(&room, PAGE - 1, &account).is_none(), "less than a page");
        let small = || Home::default().ask(&room, PAGE, &account);
        let both = [small().unwrap(), small().unwrap()];
        assert!(small().is_none());
        assert_eq!((room.taken_bytes(), account.used(Limit::Descriptors)), (2 * PAGE, 2));
        drop(both);
        let others = account.take(Limit::Descriptors, DEFAULT_DESCRIPTORS).unwrap();
        assert!(small().is_none(), "it stays in the host's memory");
        drop(others);
        assert!(small().is_some());
        assert_eq!((room.taken_bytes(), account.used(Limit::Descriptors)), (0, 0));
    }
}
