//! Which processes of a device may start: how many there are, how many start or compile at the same time.
//!
//! What a process takes of the device's memory for itself stands in the scheduler's [book](crate::schedule) with all else that
//! takes some. A thread that starts a process blocks here until the book has it, and the memory counts until the process is
//! reaped.
//!
//! Processes that share a device through MPS belong to one *epoch*, which a fault ends together with all of them. No
//! process of the next epoch starts before the last one is gone: the daemon would not serve it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::time::Duration;

use pappus_protocol::Kind;

use crate::config::{DeviceConfig, DeviceSettings};
use crate::ids::Epoch;
use crate::limits::processors;
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// How often a thread that waits for a process looks whether the epoch of the process is over.
const LOOK: Duration = Duration::from_millis(20);

/// Processes of a GPU that start at the same time. Its driver makes contexts one after the other, and whatever else asks it
/// for something waits meanwhile: of four at a time beside 64 calls a second an H200 makes no more than of one (31 in 15 s), and
/// first calls of fresh processes take so long that their deadlines pass.
const STARTING: usize = 1;

/// Workers and standbys of a device that may start at the same time; on the CPU as many as there are processors, if those are more.
pub fn most_starting(kind: Kind) -> usize {
    match kind.traits().has_driver {
        true => STARTING,
        false => STARTING.max(processors()),
    }
}

/// The table of one device.
#[derive(Debug)]
pub struct ProcessTable {
    config: DeviceConfig,
    /// Everything that Pappus may use, and how many processes are kept ready: both may change.
    memory_bytes: AtomicU64,
    standbys: AtomicUsize,
    /// The most workers at any time so far: a lower ceiling does not end those beyond it at once.
    workers: AtomicUsize,
    most_starting: usize,
    /// Where memory of processes is written down.
    book: OnceLock<Box<dyn ContextBook>>,
    /// Of a GPU, what the first process's context took.
    context_bytes: OnceLock<u64>,
    /// Held by the first process of a GPU while it starts.
    first: OrderedMutex<(), { rank::FIRST_PROCESS }>,
    /// Changes with the state locked.
    epoch: AtomicU64,
    state: OrderedMutex<TableState, { rank::DEVICE_MEMORY }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TableState {
    /// Processes that were started and are not reaped.
    processes: usize,
    /// Started processes that have not greeted yet.
    starting: usize,
    /// Workers' slots that wait until other processes started.
    urgent: usize,
    /// Compilations that wait until other processes started.
    compiling: usize,
    /// Processes that belong to an epoch that is over.
    leaving: usize,
    closing: bool,
}

/// The book of who has what of a device's memory.
pub trait ContextBook: Send + Sync + std::fmt::Debug {
    /// Asks for a process's memory; true if the process has it from now on. A worker's process is `urgent`.
    fn take(&self, bytes: u64, urgent: bool) -> bool;

    /// A process has `now` bytes in place of `before`, whether or not there are so many.
    fn change(&self, before: u64, now: u64);
}

/// A process's place in the table, until it is reaped.
#[derive(Debug)]
pub struct ProcessReservation {
    table: Arc<ProcessTable>,
    epoch: Epoch,
    context_bytes: u64,
    /// It compiles a module and serves no domain.
    compiles: bool,
    /// It serves, and has not greeted yet.
    starts: bool,
}

impl ProcessTable {
    /// Of a device that nothing uses yet.
    pub fn new(config: DeviceConfig) -> Arc<Self> {
        Arc::new(Self {
            most_starting: most_starting(config.kind),
            memory_bytes: config.memory_bytes.into(),
            standbys: config.standbys.into(),
            workers: config.workers.into(),
            config,
            book: OnceLock::new(),
            context_bytes: OnceLock::new(),
            first: OrderedMutex::default(),
            epoch: AtomicU64::new(0),
            state: OrderedMutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Until it is known what a context takes, processes of a GPU start one after the other, holding this: two that
    /// start together would each measure both.
    pub fn until_measured(&self) -> Option<OrderedGuard<'_, (), { rank::FIRST_PROCESS }>> {
        if !self.config.kind.traits().has_own_memory || self.context_bytes.get().is_some() {
            return None;
        }
        let first = self.first.lock();
        self.context_bytes.get().is_none().then_some(first)
    }

    /// The device is set up otherwise.
    pub fn resize(&self, settings: &DeviceSettings) {
        self.memory_bytes.store(settings.memory_bytes, Ordering::Relaxed);
        self.standbys.store(settings.standbys, Ordering::Relaxed);
        self.workers.fetch_max(settings.workers, Ordering::Relaxed);
        // Who waits for room looks again.
        self.change(|_| ());
    }

    /// From now on memory of processes is written down there.
    pub fn keep_in(&self, book: Box<dyn ContextBook>) {
        let _ = self.book.set(book);
    }

    /// Changes the state and tells those who wait.
    fn change(&self, change: impl FnOnce(&mut TableState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// A process that had `before` bytes for itself has `now`.
    fn change_context(&self, before: u64, now: u64) {
        if let Some(book) = self.book.get().filter(|_| before != now) {
            book.change(before, now);
        }
    }

    /// Everything that Pappus may use.
    pub fn total_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// What a process takes before it does anything: as the first one did, or an estimate.
    pub fn context_bytes(&self) -> u64 {
        self.context_bytes.get().copied().unwrap_or_else(|| self.config.context_estimate())
    }

    /// Waits until there is memory for one more process, and takes it; none once the device closes. It is as urgent as what waits
    /// for it to start.
    fn take_context(&self, urgent: bool) -> Option<u64> {
        let bytes = self.context_bytes();
        loop {
            let urgent = {
                let state = self.state.lock();
                if state.closing {
                    return None;
                }
                urgent || state.urgent > 0
            };
            match self.book.get() {
                // Before the first process said what it takes, nothing is lent.
                Some(book) if bytes > 0 && self.context_bytes.get().is_some() => {
                    if book.take(bytes, urgent) {
                        return Some(bytes);
                    }
                }
                _ => {
                    self.change_context(0, bytes);
                    return Some(bytes);
                }
            }
            self.pause(LOOK);
        }
    }

    /// What processes that start now belong to.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch.load(Ordering::Acquire))
    }

    /// Ends an epoch; false if it was over already.
    pub fn end_epoch(&self, epoch: Epoch) -> bool {
        let mut state = self.state.lock();
        if self.epoch() != epoch {
            return false;
        }
        self.epoch.store(epoch.get() + 1, Ordering::Release);
        state.leaving = state.processes + state.compiling;
        true
    }

    /// Waits until `has_room`, then takes it: the epoch of who took it. None once the device closes.
    fn wait(
        &self,
        has_room: impl Fn(&TableState) -> bool,
        take: impl FnOnce(&mut TableState),
    ) -> Option<Epoch> {
        let mut state = self.state.lock();
        while !state.closing && !has_room(&state) {
            state = state.wait(&self.changed);
        }
        if state.closing {
            return None;
        }
        take(&mut state);
        Some(self.epoch())
    }

    /// Room for one more process, which is `urgent` if a worker's slot waits for it, once few others start; none once the
    /// device closes. Its context counts from here on, before it is there.
    pub fn reserve_process(self: &Arc<Self>, urgent: bool) -> Option<ProcessReservation> {
        let most = || self.workers.load(Ordering::Relaxed) + self.standbys.load(Ordering::Relaxed);
        let has_room = |state: &TableState| {
            state.processes < most() && state.starting < self.most_starting && state.leaving == 0
        };
        let take = |state: &mut TableState| {
            state.processes += 1;
            state.starting += 1;
        };
        let waits = |change: fn(&mut usize)| urgent.then(|| change(&mut self.state.lock().urgent));
        waits(|urgent| *urgent += 1);
        let epoch = self.wait(has_room, take);
        waits(|urgent| *urgent -= 1);
        let mut reservation = ProcessReservation {
            table: self.clone(),
            epoch: epoch?,
            context_bytes: 0,
            compiles: false,
            starts: true,
        };
        reservation.context_bytes = self.take_context(urgent)?;
        Some(reservation)
    }

    /// Room for a process that compiles a module, once no other does; none once the device closes. Its context
    /// counts from here on, before it is there.
    pub fn reserve_compiler(self: &Arc<Self>) -> Option<ProcessReservation> {
        let has_own_memory = self.config.kind.traits().has_own_memory;
        let is_free = |state: &TableState| !has_own_memory || state.compiling == 0 && state.leaving == 0;
        let epoch = self.wait(is_free, |state| state.compiling += 1)?;
        let mut reservation = ProcessReservation {
            table: self.clone(),
            epoch,
            context_bytes: 0,
            compiles: true,
            starts: false,
        };
        reservation.context_bytes = self.take_context(true)?;
        Some(reservation)
    }

    /// The most device memory that a call can have.
    pub fn largest_call_bytes(&self) -> u64 {
        self.largest_call_of(self.total_bytes(), self.standbys.load(Ordering::Relaxed))
    }

    /// The same with other settings.
    pub fn largest_call_of(&self, memory_bytes: u64, standbys: usize) -> u64 {
        self.config.largest_call_of(memory_bytes, standbys, self.context_bytes())
    }

    /// Waits for so long; false if the device closes before.
    pub fn pause(&self, time: Duration) -> bool {
        !self.state.lock().wait_timeout_while(&self.changed, time, |state| !state.closing).closing
    }

    /// Ends all waiting, and makes it fail from now on.
    pub fn close(&self) {
        self.change(|state| state.closing = true);
    }
}

impl ProcessReservation {
    /// The epoch of its process.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if a fault ended the process's epoch: the process is of no use, and blocks the next epoch until
    /// it is gone.
    pub fn is_over(&self) -> bool {
        self.epoch != self.table.epoch()
    }

    /// How often to look whether the epoch is over, if epochs end.
    pub fn looks_every(&self) -> Option<Duration> {
        self.table.config.under_mps.then_some(LOOK)
    }

    /// The process greeted, and reported the bytes of its context.
    pub fn measured(&mut self, context_bytes: u64) {
        // The first process's measurement holds for all: later ones would count other processes' memory as
        // well.
        let context_bytes = context_bytes.min(self.table.total_bytes());
        let serves = self.table.config.kind.traits().has_own_memory && !self.compiles;
        let context_bytes = match serves {
            true => *self.table.context_bytes.get_or_init(|| context_bytes),
            false => context_bytes,
        };
        let before = std::mem::replace(&mut self.context_bytes, context_bytes);
        let started = std::mem::take(&mut self.starts);
        self.table.change_context(before, context_bytes);
        self.table.change(|state| state.starting -= usize::from(started));
    }
}

impl Drop for ProcessReservation {
    fn drop(&mut self) {
        // Whoever may start then finds the memory.
        self.table.change_context(self.context_bytes, 0);
        self.table.change(|state| {
            match self.compiles {
                true => state.compiling -= 1,
                false => state.processes -= 1,
            }
            state.starting -= usize::from(self.starts);
            state.leaving -= usize::from(self.is_over());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(workers: usize, standbys: usize) -> Arc<ProcessTable> {
        ProcessTable::new(DeviceConfig {
            name: "cuda:0".into(),
            kind: Kind::Cuda,
            uuid: "GPU-1".into(),
            arch: "sm_90".into(),
            driver: "580".into(),
            description: "NVIDIA H200".into(),
            numa_node: None,
            workers,
            lanes: 8,
            standbys,
            workers_per_domain: 1,
            shared_workers: 0,
            shared_limit: std::time::Duration::from_millis(10),
            interruptible: false,
            memory_bytes: 100 * GIB,
            there_bytes: u64::MAX,
            states_bytes: 0,
            weights_bytes: 20 * GIB,
            stack_bytes: GIB,
            turns: true,
            quantum: std::time::Duration::from_millis(5),
            scrub_calls: false,
            min_residency: std::time::Duration::from_millis(100),
            scrub_switch: false,
            under_mps: false,
        })
    }

    #[test]
    fn no_process_starts_before_all_of_the_earlier_epoch_are_gone() {
        let table = gpu(2, 0);
        let mut first = table.reserve_process(true).unwrap();
        first.measured(GIB);
        let (second, compiling) = (table.reserve_process(true).unwrap(), table.reserve_compiler().unwrap());
        assert!(table.end_epoch(Epoch::new(0)) && !table.end_epoch(Epoch::new(0)), "once");
        assert!(first.is_over() && compiling.is_over());
        let (sender, reservations) = std::sync::mpsc::channel();
        let waits = table.clone();
        let thread = std::thread::spawn(move || sender.send(waits.reserve_process(true).unwrap()).unwrap());
        drop(first);
        drop(compiling);
        assert_eq!(table.state.lock().leaving, 1);
        assert!(reservations.try_recv().is_err(), "the second one is still there");
        drop(second);
        let next = reservations.recv().unwrap();
        thread.join().unwrap();
        assert!((next.epoch(), next.is_over()) == (Epoch::new(1), false));
        // One of the new epoch does not count as one that leaves.
        drop(next);
        assert_eq!(table.state.lock().leaving, 0);
    }

    /// Notes what contexts take, and says no so often.
    #[derive(Debug, Default)]
    struct Noted {
        bytes: AtomicU64,
        refusals: AtomicU64,
    }

    impl ContextBook for Arc<Noted> {
        fn take(&self, bytes: u64, _: bool) -> bool {
            let left = self.refusals.load(Ordering::Relaxed);
            self.refusals.store(left.saturating_sub(1), Ordering::Relaxed);
            if left == 0 {
                self.change(0, bytes);
            }
            left == 0
        }

        fn change(&self, before: u64, now: u64) {
            self.bytes.fetch_add(now, Ordering::Relaxed);
            self.bytes.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// The same as [`gpu`], with its book.
    fn noted(workers: usize, standbys: usize) -> (Arc<ProcessTable>, Arc<Noted>) {
        let (table, book) = (gpu(workers, standbys), Arc::new(Noted::default()));
        table.keep_in(Box::new(book.clone()));
        (table, book)
    }

    impl Noted {
        fn bytes(&self) -> u64 {
            self.bytes.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn contexts_count_from_before_they_are_there_until_their_process_is_reaped() {
        let (table, book) = noted(4, 1);
        let estimate = table.config.context_estimate();
        let mut first = table.reserve_process(true).unwrap();
        assert_eq!(book.bytes(), estimate);
        first.measured(GIB);
        // The first process's measurement holds for all.
        let mut second = table.reserve_process(false).unwrap();
        second.measured(5 * GIB);
        assert_eq!(book.bytes(), 2 * GIB);
        // Beside the process that runs it there are a standby and a compiler.
        assert_eq!(table.largest_call_bytes(), 97 * GIB);
        drop((first, second));
        assert_eq!(book.bytes(), 0);
    }

    #[test]
    fn a_replacement_waits_until_a_predecessor_is_reaped() {
        let table = gpu(1, 0);
        let reservation = table.reserve_process(true).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| table.reserve_process(true).is_some());
            assert!(!next.is_finished());
            drop(reservation);
            assert!(next.join().unwrap());
        });
    }

    #[test]
    fn one_process_starts_at_a_time() {
        let table = gpu(8, 0);
        let reserve = || table.reserve_process(true).unwrap();
        let mut first = reserve();
        std::thread::scope(|scope| {
            let next = scope.spawn(reserve);
            assert!(!next.is_finished());
            first.measured(GIB);
            let second = next.join().unwrap();
            let next = scope.spawn(reserve);
            assert!(!next.is_finished());
            // One that never greeted starts no more.
            drop(second);
            let third = next.join().unwrap();
            assert_eq!((table.state.lock().starting, third.starts), (STARTING, true));
        });
        drop(first);
        assert_eq!(table.state.lock().starting, 0);
    }

    #[test]
    fn one_module_is_compiled_at_a_time_and_its_context_counts() {
        let (table, book) = noted(2, 0);
        table.reserve_process(true).unwrap().measured(GIB);
        let mut first = table.reserve_compiler().unwrap();
        assert_eq!(book.bytes(), GIB, "before it says what it takes");
        first.measured(GIB / 2);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| table.reserve_compiler().is_some());
            assert!(!next.is_finished());
            assert_eq!(book.bytes(), GIB / 2);
            drop(first);
            assert!(next.join().unwrap());
        });
        assert_eq!(book.bytes(), 0);
    }

    #[test]
    fn memory_of_processes_is_asked_for_until_it_is_there() {
        let (table, book) = noted(2, 0);
        // The first one need not ask.
        book.refusals.store(2, Ordering::Relaxed);
        let mut first = table.reserve_process(true).unwrap();
        first.measured(GIB);
        assert_eq!(book.refusals.load(Ordering::Relaxed), 2);
        let reservation = table.reserve_process(true).unwrap();
        assert_eq!((book.refusals.load(Ordering::Relaxed), book.bytes()), (0, 2 * GIB));
        drop(reservation);
        assert_eq!(book.bytes(), GIB);
    }

    /// Has memory for what is urgent only.
    #[derive(Debug)]
    struct ForUrgent;

    impl ContextBook for ForUrgent {
        fn take(&self, _: u64, urgent: bool) -> bool {
            urgent
        }

        fn change(&self, _: u64, _: u64) {}
    }

    #[test]
    fn a_standby_that_waits_for_memory_is_as_urgent_as_who_waits_for_it_to_start() {
        let table = gpu(2, 1);
        table.reserve_process(true).unwrap().measured(GIB);
        table.keep_in(Box::new(ForUrgent));
        std::thread::scope(|scope| {
            let standby = scope.spawn(|| table.reserve_process(false));
            while table.state.lock().starting == 0 {
                std::thread::yield_now();
            }
            assert!(!standby.is_finished(), "the control");
            let worker = scope.spawn(|| table.reserve_process(true));
            let mut standby = standby.join().unwrap().unwrap();
            standby.measured(GIB);
            worker.join().unwrap().unwrap();
        });
        assert_eq!(table.state.lock().urgent, 0);
    }

    #[test]
    fn reservations_end_when_their_device_closes() {
        let table = gpu(1, 0);
        let _held = table.reserve_process(true);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| table.reserve_process(true).is_none());
            assert!(table.pause(Duration::ZERO), "the control");
            table.close();
            assert!(next.join().unwrap());
            assert!(!table.pause(Duration::from_secs(3600)));
        });
    }
}
