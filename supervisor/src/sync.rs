//! Locks that are taken in one order, what a poisoned lock means, and how a thread that polls is woken.
//!
//! # The order of locks
//!
//! A thread that holds a lock may take only locks of a higher rank. The ranks are the constants of [`rank`], in
//! order; two locks of one rank are never held together. Debug builds panic where this is broken, so the suites
//! find it; release builds do not check anything.
//!
//! # Poison
//!
//! A lock whose holder panicked is used as if it had not. What the locks of this crate protect is changed in steps
//! that do not panic halfway. A panic elsewhere ends one task or, in a worker's thread, one process, whose calls are
//! decided about; it must not stop the calls of all others.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Ranks of locks, lowest first: a lock is taken before those below it here. The locks of `concurrent` have none:
/// a thread that holds one of them takes no other lock.
pub mod rank {
    /// Who reads the configuration again: one at a time, so that the file that was there last is in force. Held while it is read.
    pub const RELOADS: u8 = 7;
    /// Permits of tenants for slow work.
    pub const SLOW_WORK: u8 = 8;
    /// Connections that wait for a socket thread.
    pub const FAIR_TURNS: u8 = 9;
    /// Arenas of one connection.
    pub const ARENAS: u8 = 10;
    /// Sessions of one tenant at one connection.
    pub const SESSIONS: u8 = 11;
    /// Weights that are in memory.
    pub const PACKED_WEIGHTS: u8 = 12;
    /// One content among them. Held while it is copied, on a thread that may wait.
    pub const PACKING: u8 = 13;
    /// The changes of what one tenant registered. Held while its files are written and removed, on threads that may wait.
    pub const TENANT_CHANGES: u8 = 14;
    /// Blobs that one connection handed over.
    pub const HANDED_BLOBS: u8 = 16;
    /// Functions in memory.
    pub const LOADED: u8 = 17;
    /// Parts of the registry by tenant.
    pub const REGISTRIES: u8 = 18;
    /// One tenant's registrations, as other threads see them.
    pub const PUBLISHED: u8 = 19;
    /// Who may call one function.
    pub const CALLERS: u8 = 20;
    /// Grants by tenant.
    pub const GRANTED: u8 = 21;
    /// Who is a tenant.
    pub const TENANT_RULES: u8 = 22;
    /// Tenants' accounts by number.
    pub const ACCOUNTS: u8 = 24;
    /// Accounts of gateways.
    pub const GATEWAYS: u8 = 25;
    /// Plans of one tenant.
    pub const PLANS: u8 = 26;
    /// Tenants that compile, or wait for it.
    pub const COMPILATIONS: u8 = 27;
    /// Compilations that failed.
    pub const FAILURES: u8 = 28;
    /// How one device is set up, and its threads. Held while threads are made.
    pub const DEVICE_SETUP: u8 = 29;
    /// The standby in one slot.
    pub const STANDBY: u8 = 30;
    /// The one standby of a device that is being made. Held while a process starts.
    pub const MAKING_STANDBY: u8 = 31;
    /// The one process of a GPU that measures its context.
    pub const FIRST_PROCESS: u8 = 32;
    /// The places of a device's standbys.
    pub const STANDBYS: u8 = 33;
    /// What devices measured last. Held while a thread is made.
    pub const READINGS: u8 = 34;
    /// Processes that are about to be gone.
    pub const DYING: u8 = 40;
    /// The channel to the process of one worker.
    pub const CHANNEL: u8 = 50;
    /// Which file a socket has.
    pub const SOCKET_FILE: u8 = 57;
    /// Where one call is, of several devices.
    pub const ROUTED: u8 = 58;
    /// Homes of domains. A call that ends says so here, also where a channel is held.
    pub const HOMES: u8 = 59;
    /// Decisions of one device.
    pub const SCHEDULER: u8 = 60;
    /// When the last epoch of a device ended.
    pub const EPOCH: u8 = 62;
    /// What processes of one device are made for.
    pub const MADE_FOR: u8 = 64;
    /// Weights in the memory of one device.
    pub const WEIGHTS: u8 = 70;
    /// What is taken of the memory of one device.
    pub const DEVICE_MEMORY: u8 = 80;
    /// The way to the thread that starts processes.
    pub const SPAWNER: u8 = 86;
    /// A process and its control groups.
    pub const MEMBERSHIP: u8 = 88;
    /// Control groups that are kept for processes to come.
    pub const CONTROL_GROUPS: u8 = 90;
    /// Control groups that could not be removed yet.
    pub const LEAVING_GROUPS: u8 = 91;
    /// Processes that this one has to reap.
    pub const CHILDREN: u8 = 92;
    /// Processes on their way into control groups.
    pub const JOINING: u8 = 94;
    /// Sessions of all tenants.
    pub const ALL_SESSIONS: u8 = 87;
    /// The calls of one session: a thread that drops a call passes the turn on, also with a worker's channel locked.
    pub const SESSION: u8 = 93;
    /// How a tenant's calls failed last: said where a call is answered, also with a worker's channel locked.
    pub const LAST_FAILURES: u8 = 95;
    /// Names of tenants: a thread that opens a tenant's files looks one up, also with a worker's channel locked.
    pub const NAMES: u8 = 96;
    /// Slots of connections: a thread that drops the last call of one ends its slot, also with a worker's channel locked.
    pub const CONNECTIONS: u8 = 97;
    /// Whose connection one is.
    pub const CONNECTION_PLACE: u8 = 98;
    /// Socket files of this supervisor.
    pub const BOUND: u8 = 99;
    /// Work on clients' descriptors: a thread that drops one may hold any other lock.
    pub const CLIENT_IO: u8 = 100;
    /// Whose calls are counted by name.
    pub const CALL_METRICS: u8 = 101;
    /// What one client has not read yet.
    pub const UNREAD: u8 = 102;
    /// Metrics as they were written last.
    pub const WRITTEN_METRICS: u8 = 103;
    /// How many lines were logged.
    pub const LOG: u8 = 104;
}

/// A lock with a place in the order of locks.
#[derive(Debug, Default)]
pub struct OrderedMutex<T, const RANK: u8>(Mutex<T>);

impl<T, const RANK: u8> OrderedMutex<T, RANK> {
    /// Around a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes the lock, whether or not an earlier holder panicked.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds a lock of the same or of a higher rank.
    pub fn lock(&self) -> OrderedGuard<'_, T, RANK> {
        let held = RankHeld::<RANK>::new();
        OrderedGuard { guard: self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }
}

/// As [`OrderedMutex`], for one thread that writes or several that read.
#[derive(Debug, Default)]
pub struct OrderedRwLock<T, const RANK: u8>(RwLock<T>);

impl<T, const RANK: u8> OrderedRwLock<T, RANK> {
    /// Around a value.
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Takes the lock beside others that read, whether or not an earlier holder panicked.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds a lock of the same or of a higher rank.
    pub fn read(&self) -> OrderedReadGuard<'_, T, RANK> {
        let held = RankHeld::<RANK>::new();
        Ordered { guard: self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }

    /// Takes the lock alone, whether or not an earlier holder panicked.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds a lock of the same or of a higher rank.
    pub fn write(&self) -> OrderedWriteGuard<'_, T, RANK> {
        let held = RankHeld::<RANK>::new();
        Ordered { guard: self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }
}

/// Access to what a lock with a rank protects, through a guard of the standard library's.
#[derive(Debug)]
pub struct Ordered<G, const RANK: u8> {
    guard: G,
    held: RankHeld<RANK>,
}

/// Access to what an [`OrderedMutex`] protects.
pub type OrderedGuard<'a, T, const RANK: u8> = Ordered<MutexGuard<'a, T>, RANK>;

/// Access to what an [`OrderedRwLock`] protects, to read it.
pub type OrderedReadGuard<'a, T, const RANK: u8> = Ordered<RwLockReadGuard<'a, T>, RANK>;

/// The same, to change it.
pub type OrderedWriteGuard<'a, T, const RANK: u8> = Ordered<RwLockWriteGuard<'a, T>, RANK>;

impl<T, const RANK: u8> OrderedGuard<'_, T, RANK> {
    /// Gives the lock back until `changed` is notified.
    pub fn wait(self, changed: &Condvar) -> Self {
        let Self { guard, held } = self;
        Self { guard: changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }

    /// As [`OrderedGuard::wait`], again while `goes_on` is true and `time` is not over.
    pub fn wait_timeout_while(
        self,
        changed: &Condvar,
        time: Duration,
        mut goes_on: impl FnMut(&T) -> bool,
    ) -> Self {
        let Self { guard, held } = self;
        let waited = changed.wait_timeout_while(guard, time, |state| goes_on(state));
        Self { guard: waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0, held }
    }
}

impl<G: Deref, const RANK: u8> Deref for Ordered<G, RANK> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut, const RANK: u8> DerefMut for Ordered<G, RANK> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// That this thread holds a lock of a rank, or is about to.
#[derive(Debug)]
struct RankHeld<const RANK: u8>;

#[cfg(debug_assertions)]
std::thread_local! {
    /// One bit for each rank of the locks that this thread holds.
    static RANKS: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

impl<const RANK: u8> RankHeld<RANK> {
    #[cfg(debug_assertions)]
    fn new() -> Self {
        let held = RANKS.get();
        assert!(held >> RANK == 0, "a lock of rank {RANK} is taken by a thread that holds {held:#b}");
        RANKS.set(held | 1 << RANK);
        Self
    }

    #[cfg(not(debug_assertions))]
    fn new() -> Self {
        Self
    }
}

#[cfg(debug_assertions)]
impl<const RANK: u8> Drop for RankHeld<RANK> {
    fn drop(&mut self) {
        RANKS.set(RANKS.get() & !(1 << RANK));
    }
}

/// Wakes a thread that polls: readable from [`Waker::wake`] to [`Waker::clear`]. Never blocks.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Not woken yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable; how often it was woken does not count.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Another handle on the same one.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn locks() -> (OrderedMutex<u8, 1>, OrderedMutex<u8, 2>) {
        (OrderedMutex::new(1), OrderedMutex::new(2))
    }

    #[test]
    fn locks_are_taken_in_ascending_order() {
        let (low, high) = locks();
        for _ in 0..2 {
            let mut first = low.lock();
            *first += *high.lock();
        }
        // Given back in any order.
        let (first, second) = (low.lock(), high.lock());
        drop(first);
        assert_eq!(*second, 2);
        drop(second);
        assert_eq!(*low.lock(), 5);
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "a lock of rank 1 is taken"))]
    fn the_wrong_order_panics_in_debug_builds() {
        let (low, high) = locks();
        let _second = high.lock();
        let _first = low.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank 1 is taken")]
    fn two_locks_of_one_rank_panic_in_debug_builds() {
        let ((one, _), (other, _)) = (locks(), locks());
        let _one = one.lock();
        let _other = other.lock();
    }

    #[test]
    fn a_lock_whose_holder_panicked_is_still_taken() {
        let (low, _) = locks();
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = low.lock();
                panic!("the test's own panic");
            });
            assert!(holder.join().is_err());
        });
        assert_eq!(*low.lock(), 1);
    }

    #[test]
    fn readers_share_a_lock_and_a_writer_has_it_alone() {
        let lock = OrderedRwLock::<u8, 2>::new(1);
        let low = OrderedMutex::<u8, 1>::new(2);
        std::thread::scope(|scope| {
            let (_first, seen) = (low.lock(), lock.read());
            assert_eq!(scope.spawn(|| *lock.read()).join().unwrap(), *seen);
        });
        let mut written = lock.write();
        *written += *OrderedMutex::<u8, 3>::new(2).lock();
        drop(written);
        assert_eq!(*lock.read(), 3);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_for_readers_has_its_place_in_the_order() {
        type Lock = OrderedRwLock<(), 2>;
        let orders: [fn(&Lock); 4] = [
            // Another thread that waits to write in between would block both for ever.
            |lock| drop((lock.read(), lock.read())),
            |lock| drop((lock.write(), Lock::default().write())),
            |lock| drop((OrderedMutex::<(), 3>::default().lock(), lock.read())),
            |lock| drop((OrderedMutex::<(), 3>::default().lock(), lock.write())),
        ];
        for order in orders {
            let broken = std::thread::spawn(move || order(&Lock::default())).join();
            let why = broken.unwrap_err().downcast::<String>().unwrap();
            assert!(why.contains("a lock of rank 2 is taken"), "{why}");
        }
    }

    #[test]
    fn a_lock_whose_writer_panicked_is_still_taken() {
        let lock = OrderedRwLock::<u8, 1>::new(1);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let _held = lock.write();
                panic!("the test's own panic");
            });
            assert!(writer.join().is_err());
        });
        *lock.write() += 1;
        assert_eq!(*lock.read(), 2);
    }

    #[test]
    fn a_lock_is_given_back_while_its_holder_waits() {
        let (lock, changed) = (OrderedMutex::<bool, 1>::new(false), Condvar::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut set = lock.lock();
                while !*set {
                    set = set.wait(&changed);
                }
            });
            *lock.lock() = true;
            changed.notify_all();
        });
    }

    #[test]
    fn a_waker_is_readable_until_it_is_cleared() {
        let waker = Waker::new().unwrap();
        let other = waker.try_clone().unwrap();
        let readable =
            || poll(&mut [PollFd::new(&other, PollFlags::IN)], Some(&Timespec::default())).unwrap();
        assert_eq!(readable(), 0);
        waker.wake();
        waker.wake();
        assert_eq!(readable(), 1);
        waker.clear();
        assert_eq!(readable(), 0);
    }
}
