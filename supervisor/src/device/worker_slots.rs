//! The slots of a device's workers: the channel to the process in each, and what is counted of it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::unwritten::Unwritten;
use super::worker_channel::WorkerChannel;
use crate::ids::WorkerId;
use crate::limits::MAX_WORKERS;
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// One worker's slot.
#[derive(Debug)]
pub(super) struct WorkerSlot {
    /// The process in it.
    channel: OrderedMutex<WorkerChannel, { rank::CHANNEL }>,
    /// Calls answered well.
    pub(super) completed: AtomicU64,
    /// Processes that took the slot after the first.
    pub(super) restarts: AtomicU64,
    /// How often a process of the slot was scrubbed for another domain.
    pub(super) scrubs: AtomicU64,
    /// True if a process is wanted in the slot, and its thread was not told yet.
    wanted: AtomicBool,
}

impl WorkerSlot {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            channel: OrderedMutex::new(WorkerChannel::new()?),
            completed: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            scrubs: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
        })
    }
}

/// The slots of one device.
#[derive(Debug)]
pub struct WorkerSlots {
    /// One after the other.
    slots: [OnceLock<WorkerSlot>; MAX_WORKERS],
    /// How many the scheduler knows: there may be more already.
    known: AtomicUsize,
    /// Slots in which a process is wanted and not there yet.
    pending: AtomicUsize,
}

impl WorkerSlots {
    /// So many, without processes.
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        let slots = Self {
            slots: [const { OnceLock::new() }; MAX_WORKERS],
            known: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
        };
        slots.grow(count)?;
        slots.open(count);
        Ok(slots)
    }

    /// The scheduler knows so many at least from now on. They are there already.
    pub(super) fn open(&self, count: usize) {
        self.known.fetch_max(count, Ordering::Relaxed);
    }

    /// There are so many at least from now on. One thread at a time.
    pub(super) fn grow(&self, count: usize) -> std::io::Result<()> {
        for slot in self.slots.iter().take(count).filter(|slot| slot.get().is_none()) {
            let _ = slot.set(WorkerSlot::new()?);
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &WorkerSlot> {
        self.slots.iter().map_while(OnceLock::get)
    }

    /// The workers whose slots these are, as far as the scheduler knows them.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        WorkerId::first(self.known.load(Ordering::Relaxed))
    }

    /// A worker's slot.
    pub(super) fn slot(&self, worker: WorkerId) -> &WorkerSlot {
        match self.slots[worker.get()].get() {
            Some(slot) => slot,
            None => unreachable!("a worker has its slot before it is known"),
        }
    }

    /// The channel to the process in a worker's slot.
    pub(super) fn channel(&self, worker: WorkerId) -> OrderedGuard<'_, WorkerChannel, { rank::CHANNEL }> {
        self.slot(worker).channel.lock()
    }

    /// One channel after the other.
    pub(super) fn each_channel(&self, mut tell: impl FnMut(&mut WorkerChannel)) {
        self.all().for_each(|slot| tell(&mut slot.channel.lock()));
    }

    /// Tells a slot's thread that a process is wanted.
    pub(super) fn want(&self, worker: WorkerId) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.slot(worker).wanted.store(true, Ordering::Release);
        self.channel(worker).wake();
    }

    /// True if a process is wanted in a slot; asked by the slot's thread, and true once for each
    /// [`Self::want`].
    pub(super) fn take_wanted(&self, worker: WorkerId) -> bool {
        self.slot(worker).wanted.swap(false, Ordering::Acquire)
    }

    /// A process that was wanted is there.
    pub(super) fn arrived(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if a process is wanted and not there yet.
    pub(super) fn lacks_process(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// True if no slot has a process.
    pub(super) fn have_no_process(&self) -> bool {
        self.all().all(|slot| slot.channel.lock().pid().is_none())
    }

    /// Calls answered well, by all workers.
    pub(super) fn completed(&self) -> u64 {
        self.all().map(|slot| slot.completed.load(Ordering::Relaxed)).sum()
    }

    /// Writes what workers wait for. After a panic, the next release writes to those that are left.
    pub(super) fn release(&self, unwritten: &mut Unwritten) {
        while let Some(worker) = unwritten.pop() {
            self.channel(worker).write();
        }
    }

    /// Ends all processes.
    pub(super) fn close(&self) {
        self.each_channel(|channel| {
            channel.kill_any();
            channel.wake();
        });
    }
}
