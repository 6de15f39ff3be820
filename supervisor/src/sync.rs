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
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Ranks of locks, lowest first: a lock is taken before those below it here.
pub mod rank {
    /// Slots of connections.
    pub const CONNECTIONS: u8 = 10;
    /// Turns of tenants to be served.
    pub const REQUEST_TURNS: u8 = 12;
    /// Arenas of one connection.
    pub const ARENAS: u8 = 14;
    /// Tenants' accounts by number.
    pub const ACCOUNTS: u8 = 20;
    /// Plans of one tenant.
    pub const PLANS: u8 = 22;
    /// Functions that leave.
    pub const LEAVING_FUNCTIONS: u8 = 24;
    /// What is registered.
    pub const INDEX: u8 = 26;
    /// Compilations that failed, and those that wait.
    pub const COMPILATIONS: u8 = 28;
    /// The standby in one slot.
    pub const STANDBY: u8 = 30;
    /// The one process of a GPU that measures its context.
    pub const FIRST_PROCESS: u8 = 32;
    /// Processes that are about to be gone.
    pub const DYING: u8 = 40;
    /// The channel to the process of one worker.
    pub const CHANNEL: u8 = 50;
    /// Decisions of one device.
    pub const SCHEDULER: u8 = 60;
    /// When the last epoch of a device ended.
    pub const EPOCH: u8 = 62;
    /// Weights in the memory of one device.
    pub const WEIGHTS: u8 = 70;
    /// What is taken of the memory of one device.
    pub const DEVICE_MEMORY: u8 = 80;
    /// Control groups of worker processes.
    pub const CONTROL_GROUP: u8 = 90;
    /// Processes that this one has to reap.
    pub const CHILDREN: u8 = 92;
    /// Invocations of one connection without an answer.
    pub const OPEN_CALLS: u8 = 100;
    /// What one client has not read yet.
    pub const UNREAD: u8 = 102;
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
        let held = Held::<RANK>::new();
        OrderedGuard { guard: self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }
}

/// Access to what an [`OrderedMutex`] protects.
#[derive(Debug)]
pub struct OrderedGuard<'a, T, const RANK: u8> {
    guard: MutexGuard<'a, T>,
    held: Held<RANK>,
}

impl<T, const RANK: u8> OrderedGuard<'_, T, RANK> {
    /// Gives the lock back until `changed` is notified.
    pub fn wait(self, changed: &Condvar) -> Self {
        let Self { guard, held } = self;
        Self { guard: changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()), held }
    }

    /// As [`OrderedGuard::wait`], for as long as `goes_on` says so and `time` is not over.
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

impl<T, const RANK: u8> Deref for OrderedGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for OrderedGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// That this thread holds a lock of a rank, or is about to.
#[derive(Debug)]
struct Held<const RANK: u8>;

#[cfg(debug_assertions)]
std::thread_local! {
    /// One bit for each rank of which this thread holds a lock.
    static RANKS: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

impl<const RANK: u8> Held<RANK> {
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
impl<const RANK: u8> Drop for Held<RANK> {
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
