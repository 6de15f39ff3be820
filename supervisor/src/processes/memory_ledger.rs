//! The ledger of a device's memory: the contexts of processes, the leases and stacks of workers, weights.
//!
//! Memory counts as free once the process that held it is reaped. A thread that starts a process or grants a lease
//! blocks here until there is room.
//!
//! Processes of a device that they share through MPS are of one *epoch*: a fault ends it, and with it all of them. The
//! daemon serves no process before the last one is gone, so none of the next epoch starts before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::time::Duration;

use pappus_protocol::device_memory::lane_bytes;

use crate::config::DeviceConfig;
use crate::config::device::CONTEXT_BYTES;
use crate::ids::Epoch;
use crate::schedule::Size;
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// How often a thread that waits for a process looks whether the epoch of the process is over.
const LOOK: Duration = Duration::from_millis(20);

/// The ledger of one device.
#[derive(Debug)]
pub struct MemoryLedger {
    config: DeviceConfig,
    /// Of a GPU, once the first process said what its context takes.
    lease_bytes: OnceLock<u64>,
    /// Of a GPU, what the first process's context took.
    context_bytes: OnceLock<u64>,
    /// Held by the first process of a GPU while it starts.
    first: OrderedMutex<(), { rank::FIRST_PROCESS }>,
    /// Changes with the state locked.
    epoch: AtomicU64,
    state: OrderedMutex<State, { rank::DEVICE_MEMORY }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Processes that were started and are not reaped.
    processes: usize,
    /// Processes that compile, likewise.
    compiling: usize,
    /// Those of either kind that are of an epoch that is over.
    leaving: usize,
    contexts_bytes: u64,
    leases: usize,
    leases_bytes: u64,
    weights_bytes: u64,
    closing: bool,
}

/// The ledger at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Everything that Pappus may use.
    pub total_bytes: u64,
    /// Contexts of processes.
    pub context_bytes: u64,
    /// Stacks of workers' kernels.
    pub stack_bytes: u64,
    /// Leases of workers.
    pub lease_bytes: u64,
    /// Weights.
    pub weight_bytes: u64,
    /// The rest.
    pub free_bytes: u64,
}

/// A process's place in the ledger, until it is reaped.
#[derive(Debug)]
pub struct ProcessReservation {
    ledger: Arc<MemoryLedger>,
    epoch: Epoch,
    context_bytes: u64,
    /// It compiles a module and serves no domain.
    compiles: bool,
}

/// A worker's lease and stacks in the ledger, until its process is reaped.
#[derive(Debug)]
pub struct Lease {
    ledger: Arc<MemoryLedger>,
    /// Device memory for calls.
    pub bytes: u64,
}

impl MemoryLedger {
    /// Of a device that nothing uses yet.
    pub fn new(config: DeviceConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            lease_bytes: OnceLock::new(),
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

    /// Changes the state and tells those who wait.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// What processes that start now belong to.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch.load(Ordering::Acquire))
    }

    /// Ends an epoch; false if it is over already.
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
    fn wait(&self, has_room: impl Fn(&State) -> bool, take: impl FnOnce(&mut State)) -> Option<Epoch> {
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

    /// Room for one more process; none once the device closes.
    pub fn reserve_process(self: &Arc<Self>) -> Option<ProcessReservation> {
        let most = self.config.workers + self.config.standbys;
        let has_room = |state: &State| state.processes < most && state.leaving == 0;
        let epoch = self.wait(has_room, |state| state.processes += 1)?;
        Some(ProcessReservation { ledger: self.clone(), epoch, context_bytes: 0, compiles: false })
    }

    /// Room for a process that compiles a module, once no other does; none once the device closes. Its context
    /// counts from here on, before it is there.
    pub fn reserve_compiler(self: &Arc<Self>) -> Option<ProcessReservation> {
        let has_own_memory = self.config.kind.traits().has_own_memory;
        let context_bytes = match has_own_memory {
            false => 0,
            true => self.context_bytes.get().copied().unwrap_or(CONTEXT_BYTES),
        };
        let is_free = |state: &State| !has_own_memory || state.compiling == 0 && state.leaving == 0;
        let take = |state: &mut State| {
            state.compiling += 1;
            state.contexts_bytes += context_bytes;
        };
        let epoch = self.wait(is_free, take)?;
        Some(ProcessReservation { ledger: self.clone(), epoch, context_bytes, compiles: true })
    }

    /// A worker's lease, once its predecessor's is free; none once the device closes.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        let bytes = self.lease_bytes();
        // A lease of host memory is addresses only: a dying process holds nothing that the next one needs.
        let most = match self.config.kind.traits().has_own_memory {
            false => usize::MAX,
            true => self.leases_at_most(),
        };
        let take = |state: &mut State| {
            state.leases += 1;
            state.leases_bytes += bytes;
        };
        self.wait(|state| state.leases < most, take)?;
        Some(Lease { ledger: self.clone(), bytes })
    }

    /// Bytes of one worker's lease; on a GPU an estimate until the first process said what its context takes.
    pub fn lease_bytes(&self) -> u64 {
        self.lease_bytes.get().copied().unwrap_or_else(|| self.config.lease_bytes())
    }

    /// How much of the device a call with such a plan needs.
    pub fn size_of(&self, pool_bytes: u64) -> Size {
        let lease_bytes = self.lease_bytes();
        let lane_bytes = lane_bytes(self.config.kind, lease_bytes, self.config.lanes);
        if pool_bytes <= lane_bytes {
            Size::Lane
        } else if pool_bytes <= lease_bytes {
            Size::Wide
        } else {
            Size::Exclusive
        }
    }

    /// The most device memory that a call can have: that of all workers.
    pub fn largest_call_bytes(&self) -> u64 {
        let all = self.lease_bytes().saturating_mul(self.leases_at_most() as u64);
        self.config.kind.traits().max_lease_bytes.map_or(all, |most| all.min(most))
    }

    /// How many leases the memory is divided into.
    pub fn leases_at_most(&self) -> usize {
        self.config.division().leases()
    }

    /// Leases of processes that are not reaped.
    pub fn leases(&self) -> usize {
        self.state.lock().leases
    }

    /// What weights take now.
    pub fn set_weights(&self, bytes: u64) {
        self.state.lock().weights_bytes = bytes;
    }

    /// Waits for so long, or until the device closes; false then.
    pub fn pause(&self, time: Duration) -> bool {
        !self.state.lock().wait_timeout_while(&self.changed, time, |state| !state.closing).closing
    }

    /// Ends all waiting, and makes it fail from now on.
    pub fn close(&self) {
        self.change(|state| state.closing = true);
    }

    /// What is taken now.
    pub fn snapshot(&self) -> MemorySnapshot {
        let state = self.state.lock();
        let stack_bytes = self.config.stack_bytes.saturating_mul(state.leases as u64);
        let taken = [state.contexts_bytes, stack_bytes, state.leases_bytes, state.weights_bytes];
        MemorySnapshot {
            total_bytes: self.config.memory_bytes,
            context_bytes: state.contexts_bytes,
            stack_bytes,
            lease_bytes: state.leases_bytes,
            weight_bytes: state.weights_bytes,
            free_bytes: taken.into_iter().fold(self.config.memory_bytes, u64::saturating_sub),
        }
    }
}

impl ProcessReservation {
    /// The epoch of its process.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a fault ended its epoch: the process is of no use, and no other one is before it is gone.
    pub fn is_over(&self) -> bool {
        self.epoch != self.ledger.epoch()
    }

    /// How often to look whether it is, if that can happen.
    pub fn looks_every(&self) -> Option<Duration> {
        self.ledger.config.shared.then_some(LOOK)
    }

    /// The process said what it takes for itself.
    pub fn measured(&mut self, context_bytes: u64) {
        // What the first one measured holds for all: later ones see what others take meanwhile, too.
        let serves = self.ledger.config.kind.traits().has_own_memory && !self.compiles;
        let context_bytes = match serves {
            true => *self.ledger.context_bytes.get_or_init(|| context_bytes),
            false => context_bytes,
        };
        let before = std::mem::replace(&mut self.context_bytes, context_bytes);
        if serves {
            let lease = self
                .ledger
                .lease_bytes
                .get_or_init(|| self.ledger.config.division().lease_bytes(context_bytes));
            if *lease == 0 {
                let device = &self.ledger.config.name;
                tracing::error!(
                    device,
                    context_bytes,
                    "contexts, stacks and weights leave no memory for calls: give the device more memory or fewer workers"
                );
            }
        }
        self.ledger.change(|state| {
            state.contexts_bytes = state.contexts_bytes - before + context_bytes;
        });
    }
}

impl Drop for ProcessReservation {
    fn drop(&mut self) {
        self.ledger.change(|state| {
            match self.compiles {
                true => state.compiling -= 1,
                false => state.processes -= 1,
            }
            state.leaving -= usize::from(self.is_over());
            state.contexts_bytes -= self.context_bytes;
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ledger.change(|state| {
            state.leases -= 1;
            state.leases_bytes -= self.bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use pappus_protocol::Kind;
    use pappus_protocol::device_memory::GPU_PAGE_BYTES;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(workers: usize, standbys: usize) -> Arc<MemoryLedger> {
        MemoryLedger::new(DeviceConfig {
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
            memory_bytes: 100 * GIB,
            weights_bytes: 20 * GIB,
            stack_bytes: GIB,
            turns: true,
            may_slice: false,
            early_turns: false,
            quantum: std::time::Duration::from_millis(5),
            scrub_calls: false,
            min_residency: std::time::Duration::from_millis(100),
            scrub_switch: false,
            shared: false,
        })
    }

    #[test]
    fn no_process_starts_before_all_of_the_earlier_epoch_are_gone() {
        let ledger = gpu(2, 0);
        let (first, second, compiling) = (
            ledger.reserve_process().unwrap(),
            ledger.reserve_process().unwrap(),
            ledger.reserve_compiler().unwrap(),
        );
        assert!(ledger.end_epoch(Epoch::new(0)) && !ledger.end_epoch(Epoch::new(0)), "once");
        assert!(first.is_over() && compiling.is_over());
        let (sender, reservations) = std::sync::mpsc::channel();
        let waits = ledger.clone();
        let thread = std::thread::spawn(move || sender.send(waits.reserve_process().unwrap()).unwrap());
        drop(first);
        drop(compiling);
        assert_eq!(ledger.state.lock().leaving, 1);
        assert!(reservations.try_recv().is_err(), "the second one is still there");
        drop(second);
        let next = reservations.recv().unwrap();
        thread.join().unwrap();
        assert!((next.epoch(), next.is_over()) == (Epoch::new(1), false));
        // One of the new epoch does not count as one that leaves.
        drop(next);
        assert_eq!(ledger.state.lock().leaving, 0);
    }

    #[test]
    fn leases_leave_room_for_everything_else() {
        let ledger = gpu(4, 2);
        let mut reservation = ledger.reserve_process().unwrap();
        reservation.measured(GIB / 2);
        // 100 - 20 - 7 × 0.5 - 4, for four workers and a replacement.
        assert_eq!(ledger.lease_bytes(), 145 * GIB / 2 / 5 / GPU_PAGE_BYTES * GPU_PAGE_BYTES);
        let leases: Vec<_> = (0..5).map(|_| ledger.lease().unwrap()).collect();
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.lease_bytes, 5 * leases[0].bytes);
        assert_eq!((snapshot.context_bytes, snapshot.stack_bytes), (GIB / 2, 5 * GIB));
        let taken = snapshot.context_bytes + snapshot.stack_bytes + snapshot.lease_bytes;
        assert_eq!(snapshot.free_bytes, 100 * GIB - taken);
        // Eight lanes share a lease; more than that needs the whole worker, and more than a lease the device.
        let lease = leases[0].bytes;
        let lane = lease / 8 / GPU_PAGE_BYTES * GPU_PAGE_BYTES;
        let sizes = [lane, lane + 1, lease, lease + 1].map(|bytes| ledger.size_of(bytes));
        assert_eq!(sizes, [Size::Lane, Size::Wide, Size::Wide, Size::Exclusive]);
        assert_eq!(ledger.largest_call_bytes(), 5 * lease);
        drop((leases, reservation));
        assert_eq!(ledger.snapshot().free_bytes, 100 * GIB);
    }

    #[test]
    fn memory_that_does_not_even_hold_the_contexts_gives_no_lease() {
        let ledger = gpu(4, 0);
        ledger.reserve_process().unwrap().measured(50 * GIB);
        assert_eq!(ledger.lease_bytes(), 0);
    }

    #[test]
    fn a_replacement_waits_until_its_predecessor_is_reaped() {
        let ledger = gpu(1, 0);
        let (reservation, lease) = (ledger.reserve_process().unwrap(), ledger.lease().unwrap());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| (ledger.reserve_process().unwrap(), ledger.lease().unwrap()));
            assert!(!next.is_finished());
            assert_eq!(ledger.snapshot().lease_bytes, lease.bytes);
            drop((reservation, lease));
            assert_eq!(next.join().unwrap().1.bytes, ledger.lease_bytes());
        });
    }

    #[test]
    fn one_module_is_compiled_at_a_time_and_its_context_counts() {
        let ledger = gpu(2, 0);
        ledger.reserve_process().unwrap().measured(GIB);
        let mut first = ledger.reserve_compiler().unwrap();
        assert_eq!(ledger.snapshot().context_bytes, GIB, "before it says what it takes");
        first.measured(GIB / 2);
        let lease = ledger.lease_bytes();
        let leases = [ledger.lease(), ledger.lease()];
        assert!(ledger.snapshot().free_bytes >= GIB / 2, "there is room beside all workers");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| ledger.reserve_compiler().is_some());
            assert!(!next.is_finished());
            assert_eq!(ledger.snapshot().context_bytes, GIB / 2);
            drop(first);
            assert!(next.join().unwrap());
        });
        assert_eq!((ledger.snapshot().context_bytes, ledger.lease_bytes()), (0, lease));
        drop(leases);
    }

    #[test]
    fn reservations_end_when_their_device_closes() {
        let ledger = gpu(1, 0);
        let _held = (ledger.reserve_process(), ledger.lease());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| ledger.reserve_process().is_none() && ledger.lease().is_none());
            assert!(ledger.pause(Duration::ZERO), "the control");
            ledger.close();
            assert!(next.join().unwrap());
            assert!(!ledger.pause(Duration::from_secs(3600)));
        });
    }
}
