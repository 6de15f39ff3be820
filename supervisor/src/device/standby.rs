//! Processes that are ready to take a worker's slot. Each is kept by a thread of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pappus_shmem::{SharedWords, ValidatedMemfd};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::unusable::BringUpError;
use crate::function::CodeTarget;
use crate::ids::Epoch;
use crate::processes::confinement::Reached;
use crate::processes::launcher::Started;
use crate::processes::process_table::ProcessReservation;
use crate::sync::{OrderedGuard, OrderedMutex, OrderedRwLock, Waker, rank};

/// A process that said its greeting and serves no domain yet.
#[derive(Debug)]
pub(super) struct Ready {
    /// The process and its channels.
    pub(super) started: Started,
    /// The arena for inline bytes that it shares with the supervisor.
    pub(super) staging: ValidatedMemfd,
    /// The page over which its turns change hands.
    pub(super) turns: Arc<SharedWords>,
    /// What its machine code must be made for.
    pub(super) target: CodeTarget,
    /// Its place among the processes of the device.
    pub(super) reservation: ProcessReservation,
    /// True if it is made to be shared: it goes into no other slot.
    pub(super) shared: bool,
    /// The device's epoch when it was started.
    pub(super) epoch: Epoch,
    /// Which settings of the device it was made for.
    pub(super) edition: u64,
    /// Layers of its sandbox.
    pub(super) reached: Reached,
}

/// The standbys of a device.
#[derive(Debug)]
pub(super) struct Standbys {
    /// There are more than standbys are wanted, where more were once.
    slots: OrderedRwLock<Vec<Arc<Slot>>, { rank::STANDBYS }>,
    /// How many are wanted.
    wanted: AtomicUsize,
    /// Held while one is made.
    making: OrderedMutex<(), { rank::MAKING_STANDBY }>,
    /// How many are ready: those that are not made to be shared, then those that are.
    ready: [AtomicUsize; 2],
}

#[derive(Debug)]
struct Slot {
    ready: OrderedMutex<Option<Ready>, { rank::STANDBY }>,
    /// Wakes the keeper: its standby was taken, or the device closes.
    waker: Waker,
}

impl Standbys {
    /// Room for `count`.
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        let standbys = Self {
            slots: OrderedRwLock::default(),
            wanted: AtomicUsize::new(0),
            making: OrderedMutex::new(()),
            ready: Default::default(),
        };
        standbys.grow(count)?;
        standbys.resize(count);
        Ok(standbys)
    }

    /// Room for so many at least.
    pub(super) fn grow(&self, count: usize) -> std::io::Result<()> {
        let mut slots = self.slots.write();
        while slots.len() < count {
            slots.push(Arc::new(Slot { ready: OrderedMutex::new(None), waker: Waker::new()? }));
        }
        Ok(())
    }

    /// So many are wanted from now on: keepers look, also at those that were made for what is no more.
    pub(super) fn resize(&self, count: usize) {
        self.wanted.store(count, Ordering::Release);
        self.close();
    }

    /// True if a standby is wanted in a slot.
    pub(super) fn wants(&self, slot: usize) -> bool {
        slot < self.wanted.load(Ordering::Acquire)
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.read().clone()
    }

    fn slot(&self, slot: usize) -> Arc<Slot> {
        self.slots.read()[slot].clone()
    }

    /// Takes a ready standby for which the test is true.
    pub(super) fn take(&self, is_one: impl Fn(&Ready) -> bool) -> Option<Ready> {
        self.all().iter().find_map(|slot| {
            let ready = slot.ready.lock().take_if(|ready| is_one(ready))?;
            self.counter(&ready).fetch_sub(1, Ordering::Relaxed);
            slot.waker.wake();
            Some(ready)
        })
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready.iter().map(|ready| ready.load(Ordering::Relaxed)).sum()
    }

    /// How many are ready for slots of workers that no strangers share.
    pub(super) fn ready_for_domains(&self) -> usize {
        self.ready[0].load(Ordering::Relaxed)
    }

    fn counter(&self, ready: &Ready) -> &AtomicUsize {
        &self.ready[usize::from(ready.shared)]
    }

    /// Waits until no other one is made.
    pub(super) fn making(&self) -> OrderedGuard<'_, (), { rank::MAKING_STANDBY }> {
        self.making.lock()
    }

    /// Wakes the keepers: the device closes, or is set up otherwise.
    pub(super) fn close(&self) {
        self.all().iter().for_each(|slot| slot.waker.wake());
    }

    /// A standby is ready in a slot, unless its epoch is over: the thread that ended the epoch may have looked before the
    /// standby was there. The reply is a handle that tells when it ends.
    pub(super) fn offer(
        &self,
        slot: usize,
        ready: Ready,
        epoch: impl FnOnce() -> Epoch,
    ) -> Result<OwnedFd, BringUpError> {
        let slot = self.slot(slot);
        let pidfd = ready.started.process.pidfd()?;
        let own_epoch = ready.epoch;
        {
            let mut place = slot.ready.lock();
            self.counter(&ready).fetch_add(1, Ordering::Relaxed);
            *place = Some(ready);
        }
        let late = slot.ready.lock().take_if(|_| own_epoch != epoch());
        match late {
            None => Ok(pidfd),
            Some(late) => {
                self.counter(&late).fetch_sub(1, Ordering::Relaxed);
                Err(BringUpError::EpochOver)
            }
        }
    }

    /// Takes the standby out of a slot, if it is still there.
    pub(super) fn withdraw(&self, slot: usize) -> Option<Ready> {
        let ready = self.slot(slot).ready.lock().take();
        if let Some(ready) = &ready {
            self.counter(ready).fetch_sub(1, Ordering::Relaxed);
        }
        ready
    }

    /// True if a slot has a standby that is wanted there, made for this edition of the device's settings.
    pub(super) fn stays(&self, slot: usize, edition: u64) -> bool {
        self.wants(slot)
            && self.slot(slot).ready.lock().as_ref().is_some_and(|ready| ready.edition == edition)
    }

    /// Waits until a slot's keeper is woken, the process ends, or the time is over; true if the process ended.
    pub(super) fn wait(&self, slot: usize, pidfd: Option<&OwnedFd>, timeout: Option<Duration>) -> bool {
        let slot = self.slot(slot);
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let mut polled = vec![PollFd::new(&slot.waker, PollFlags::IN)];
        polled.extend(pidfd.map(|pidfd| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)));
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let ended = polled.get(1).is_some_and(|pidfd| !pidfd.revents().is_empty());
        slot.waker.clear();
        ended
    }
}
