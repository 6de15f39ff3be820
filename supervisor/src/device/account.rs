//! What is taken of a device's memory: the contexts of processes, the leases and stacks of workers, weights.
//!
//! Nothing is counted as free before the process that had it is reaped. Whoever wants to start a process,
//! or to give one its lease, waits here until there is room.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pappus_protocol::Kind;

use crate::config::DeviceConfig;

/// Leases of GPUs are whole pages of their memory.
const GPU_PAGE_BYTES: u64 = 2 << 20;

/// The account of one device.
#[derive(Debug)]
pub struct Account {
    config: DeviceConfig,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Processes that were started and are not reaped.
    processes: usize,
    /// What the first process said that it takes for itself.
    context_bytes: Option<u64>,
    contexts_bytes: u64,
    leases: usize,
    leases_bytes: u64,
    weights_bytes: u64,
    closing: bool,
}

/// The account at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Snapshot {
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

/// A process's place in the account, until it is reaped.
#[derive(Debug)]
pub struct Seat {
    account: Arc<Account>,
    context_bytes: u64,
}

/// A worker's lease and stacks in the account, until its process is reaped.
#[derive(Debug)]
pub struct Lease {
    account: Arc<Account>,
    /// Device memory for calls.
    pub bytes: u64,
}

impl Account {
    /// Of a device that nothing uses yet.
    pub fn new(config: DeviceConfig) -> Arc<Self> {
        Arc::new(Self { config, state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Changes the state and tells those who wait.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until `has_room`, then takes it; none once the device closes.
    fn wait(&self, has_room: impl Fn(&State) -> bool, take: impl FnOnce(&mut State)) -> Option<()> {
        let mut state = self.state();
        while !state.closing && !has_room(&state) {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        if state.closing {
            return None;
        }
        take(&mut state);
        Some(())
    }

    /// Room for one more process; none once the device closes.
    pub fn seat(self: &Arc<Self>) -> Option<Seat> {
        let most = self.config.workers + self.config.standbys;
        self.wait(|state| state.processes < most, |state| state.processes += 1)?;
        Some(Seat { account: self.clone(), context_bytes: 0 })
    }

    /// A worker's lease, once its predecessor's is free; none once the device closes.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        let bytes = self.lease_bytes();
        // A lease of the CPU is addresses only: a dying process holds nothing that the next one needs.
        let most = match self.config.kind {
            Kind::Cpu => usize::MAX,
            Kind::Cuda => self.leases_at_most(),
        };
        let take = |state: &mut State| {
            state.leases += 1;
            state.leases_bytes += bytes;
        };
        self.wait(|state| state.leases < most, take)?;
        Some(Lease { account: self.clone(), bytes })
    }

    /// Bytes of one worker's lease.
    pub fn lease_bytes(&self) -> u64 {
        let config = &self.config;
        match config.kind {
            Kind::Cpu => config.lease_bytes(),
            Kind::Cuda => {
                let (workers, standbys) = (config.workers as u64, config.standbys as u64);
                // An estimate, before any worker said what its context takes.
                let Some(context) = self.state().context_bytes else { return config.lease_bytes() };
                let fixed = [
                    config.weights_bytes,
                    (workers + standbys).saturating_mul(context),
                    workers.saturating_mul(config.stack_bytes),
                ];
                let left = fixed.into_iter().fold(config.memory_bytes, u64::saturating_sub);
                // One more than there are workers, so that a replacement need not wait for a death.
                left / (workers + standbys.min(1)) / GPU_PAGE_BYTES * GPU_PAGE_BYTES
            }
        }
    }

    /// How many leases the memory is divided into.
    pub fn leases_at_most(&self) -> usize {
        match self.config.kind {
            Kind::Cpu => self.config.workers,
            Kind::Cuda => self.config.workers + self.config.standbys.min(1),
        }
    }

    /// Leases of processes that are not reaped.
    pub fn leases(&self) -> usize {
        self.state().leases
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.change(|state| state.closing = true);
    }

    /// What is taken now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let stack_bytes = self.config.stack_bytes.saturating_mul(state.leases as u64);
        let taken = [state.contexts_bytes, stack_bytes, state.leases_bytes, state.weights_bytes];
        Snapshot {
            total_bytes: self.config.memory_bytes,
            context_bytes: state.contexts_bytes,
            stack_bytes,
            lease_bytes: state.leases_bytes,
            weight_bytes: state.weights_bytes,
            free_bytes: taken.into_iter().fold(self.config.memory_bytes, u64::saturating_sub),
        }
    }
}

impl Seat {
    /// The process said what it takes for itself.
    pub fn measured(&mut self, context_bytes: u64) {
        let before = std::mem::replace(&mut self.context_bytes, context_bytes);
        self.account.change(|state| {
            state.context_bytes.get_or_insert(context_bytes);
            state.contexts_bytes = state.contexts_bytes - before + context_bytes;
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.account.change(|state| {
            state.processes -= 1;
            state.contexts_bytes -= self.context_bytes;
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.account.change(|state| {
            state.leases -= 1;
            state.leases_bytes -= self.bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(workers: usize, standbys: usize) -> Arc<Account> {
        Account::new(DeviceConfig {
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
            quantum: std::time::Duration::from_millis(5),
            scrub_calls: false,
        })
    }

    #[test]
    fn leases_leave_room_for_everything_else() {
        let account = gpu(4, 2);
        let mut seat = account.seat().unwrap();
        seat.measured(GIB / 2);
        // 100 - 20 - 6 × 0.5 - 4, for four workers and a replacement.
        assert_eq!(account.lease_bytes(), 73 * GIB / 5 / GPU_PAGE_BYTES * GPU_PAGE_BYTES);
        let leases: Vec<_> = (0..5).map(|_| account.lease().unwrap()).collect();
        let snapshot = account.snapshot();
        assert_eq!(snapshot.lease_bytes, 5 * leases[0].bytes);
        assert_eq!((snapshot.context_bytes, snapshot.stack_bytes), (GIB / 2, 5 * GIB));
        let taken = snapshot.context_bytes + snapshot.stack_bytes + snapshot.lease_bytes;
        assert_eq!(snapshot.free_bytes, 100 * GIB - taken);
        drop((leases, seat));
        assert_eq!(account.snapshot().free_bytes, 100 * GIB);
    }

    #[test]
    fn memory_that_does_not_even_hold_the_contexts_gives_no_lease() {
        let account = gpu(4, 0);
        account.seat().unwrap().measured(50 * GIB);
        assert_eq!(account.lease_bytes(), 0);
    }

    #[test]
    fn a_replacement_waits_until_its_predecessor_is_reaped() {
        let account = gpu(1, 0);
        let (seat, lease) = (account.seat().unwrap(), account.lease().unwrap());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| (account.seat().unwrap(), account.lease().unwrap()));
            assert!(!next.is_finished());
            assert_eq!(account.snapshot().lease_bytes, lease.bytes);
            drop((seat, lease));
            assert_eq!(next.join().unwrap().1.bytes, account.lease_bytes());
        });
    }

    #[test]
    fn nobody_waits_for_a_device_that_closes() {
        let account = gpu(1, 0);
        let _held = (account.seat(), account.lease());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| account.seat().is_none() && account.lease().is_none());
            account.close();
            assert!(next.join().unwrap());
        });
    }
}
