//! The decisions of one device: its scheduler behind a lock, and what is known of it without the lock (how many calls
//! there are, and when its clock looks next).

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pappus_protocol::now_ns;
use tokio::sync::Notify;

use crate::call::Call;
use crate::config::DeviceConfig;
use crate::limits::SHARED_POOL_BYTES;
use crate::processes::process_table::most_starting;
use crate::schedule::events::{Event, SetPolicy};
use crate::schedule::limits::{CPU_CHANGE_NS, GPU_CHANGE_NS, SHARED_STUCK_NS};
use crate::schedule::{Action, Policy, ResidentPrice, Scheduler, Shape};
use crate::sync::{OrderedGuard, OrderedMutex, rank};

/// What is to be done, in the order in which it was decided. Whoever has something decided carries this out: what is
/// dropped is lost, and somebody waits for it.
#[derive(Debug, Default)]
pub(super) struct Actions(Vec<Action<Arc<Call>>>);

impl Actions {
    /// Takes what is to be done.
    pub(super) fn drain(&mut self) -> std::vec::Drain<'_, Action<Arc<Call>>> {
        self.0.drain(..)
    }

    /// True if no action is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody is left for whom it could be done.
    pub(super) fn discard(&mut self) {
        self.0.clear();
    }
}

impl From<Vec<Action<Arc<Call>>>> for Actions {
    fn from(actions: Vec<Action<Arc<Call>>>) -> Self {
        Self(actions)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        if !self.0.is_empty() && !std::thread::panicking() {
            tracing::error!("decisions are not carried out: {}", self.0.len());
            debug_assert!(false, "decisions are not carried out");
        }
    }
}

/// The scheduler with its lock held, and the list that takes its decisions.
#[derive(Debug)]
pub(super) struct Deciding<'a> {
    scheduler: &'a mut Scheduler<Arc<Call>>,
    actions: &'a mut Actions,
    now_ns: u64,
}

impl Deciding<'_> {
    /// Something happened.
    pub(super) fn handle<E: Event<Arc<Call>>>(&mut self, event: E) -> E::Reply {
        self.scheduler.handle(self.now_ns, event, &mut self.actions.0)
    }

    /// When the lock was taken.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

impl Deref for Deciding<'_> {
    type Target = Scheduler<Arc<Call>>;

    fn deref(&self) -> &Self::Target {
        self.scheduler
    }
}

/// The scheduler of one device.
#[derive(Debug)]
pub(super) struct Decisions {
    scheduler: OrderedMutex<Scheduler<Arc<Call>>, { rank::SCHEDULER }>,
    /// Calls waiting and running; changed with the scheduler locked.
    load: AtomicU64,
    /// Something is due earlier than the clock knows.
    earlier: Notify,
    /// When the clock looks next, as far as it knows; changed with the scheduler locked.
    clock_ns: AtomicU64,
    /// No process of the device gets ready.
    lost: AtomicBool,
    /// Calls wait on a device that is lost, or one is no longer lost.
    stranded: OnceLock<Arc<Notify>>,
    /// Time that a test lets pass in addition.
    #[cfg(test)]
    pub(super) passed_ns: AtomicU64,
}

/// What the scheduler of a device of this configuration is told of it.
pub fn shape(config: &DeviceConfig) -> Shape {
    let traits = config.kind.traits();
    let (change_ns, resident_price, shared_stuck_ns) = match traits.has_own_memory {
        // A barrier that some threads never reach ends for nothing that the worker does.
        true => (GPU_CHANGE_NS, ResidentPrice::GPU, SHARED_STUCK_NS),
        false => (CPU_CHANGE_NS, ResidentPrice::CPU, u64::MAX),
    };
    Shape {
        workers: config.workers,
        lanes: config.lanes,
        workers_per_domain: config.workers_per_domain,
        shared_workers: config.shared_workers,
        shared_lane_bytes: if traits.has_own_memory { SHARED_POOL_BYTES } else { u64::MAX },
        shared_limit_ns: config.shared_limit.as_nanos().min(u64::MAX.into()) as u64,
        shared_stuck_ns,
        quantum_us: config.takes_turns().then_some(config.quantum.as_micros().min(u32::MAX.into()) as u32),
        change_ns,
        residency_ns: config.min_residency.as_nanos().min(u64::MAX.into()) as u64,
        scrubs: config.scrub_switch,
        resident_price,
        shared_faults: config.under_mps,
        // That of the shared worker's slot is of no use to any other.
        standbys: (0..config.standbys).filter(|standby| !config.stands_by_shared(*standby)).count(),
        starting: most_starting(config.kind),
        memory_bytes: config.memory_bytes,
        page_bytes: traits.page_bytes,
        lane_bytes: traits.max_lease_bytes.map_or(u64::MAX, |most| traits.whole_pages(most)),
        weights_bytes: config.weights_bytes,
        weights_take_memory: traits.has_own_memory,
    }
}

impl Decisions {
    /// About a device of this configuration, without calls.
    pub(super) fn new(config: &DeviceConfig, policy: Policy) -> Self {
        let mut scheduler = Scheduler::new(shape(config));
        scheduler.handle(now_ns(), SetPolicy { policy }, &mut Actions::default().0);
        Self {
            scheduler: OrderedMutex::new(scheduler),
            load: AtomicU64::new(0),
            earlier: Notify::new(),
            clock_ns: AtomicU64::new(u64::MAX),
            lost: AtomicBool::new(false),
            stranded: OnceLock::new(),
            #[cfg(test)]
            passed_ns: AtomicU64::new(0),
        }
    }

    /// Sets who is told that calls wait on a lost device, or that a device is no longer lost.
    pub(super) fn tell_stranded(&self, notify: Arc<Notify>) {
        let _ = self.stranded.set(notify);
    }

    /// True if no process of the device gets ready.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Notes that no process gets ready, or that one did; true if that is new.
    pub(super) fn set_lost(&self, lost: bool) -> bool {
        let is_new = {
            // A decision comes before, or sees it.
            let _scheduler = self.scheduler.lock();
            self.lost.swap(lost, Ordering::Relaxed) != lost
        };
        if is_new {
            self.stranded.get().iter().for_each(|notify| notify.notify_one());
        }
        is_new
    }

    /// Calls waiting and running, as of the last decision; locks nothing.
    pub(super) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// The scheduler, to ask it something.
    pub(super) fn ask(&self) -> OrderedGuard<'_, Scheduler<Arc<Call>>, { rank::SCHEDULER }> {
        self.scheduler.lock()
    }

    #[cfg(not(test))]
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    #[cfg(test)]
    fn now_ns(&self) -> u64 {
        now_ns() + self.passed_ns.load(Ordering::Relaxed)
    }

    /// Events for the scheduler; what it decides is added to `actions`. Its clock is told if something is due earlier now.
    pub(super) fn decide<T>(&self, actions: &mut Actions, events: impl FnOnce(&mut Deciding<'_>) -> T) -> T {
        let mut scheduler = self.scheduler.lock();
        let outcome = events(&mut Deciding { scheduler: &mut scheduler, actions, now_ns: self.now_ns() });
        self.load.store(scheduler.queued() + scheduler.running(), Ordering::Relaxed);
        let next_ns = scheduler.next_deadline_ns();
        if next_ns.is_some_and(|next_ns| next_ns < self.clock_ns.load(Ordering::Relaxed)) {
            self.earlier.notify_one();
        }
        if self.is_lost() && scheduler.queued() > 0 {
            self.stranded.get().iter().for_each(|notify| notify.notify_one());
        }
        outcome
    }

    /// Waits until something is due, or is due earlier than it was: the scheduler is to be told the time. One task at
    /// a time.
    pub(super) async fn due(&self) {
        let next_ns = {
            let scheduler = self.scheduler.lock();
            let next_ns = scheduler.next_deadline_ns();
            self.clock_ns.store(next_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
            next_ns
        };
        let sleep = async {
            match next_ns {
                None => std::future::pending().await,
                Some(at_ns) => tokio::time::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns()))).await,
            }
        };
        tokio::select! {
            () = sleep => {}
            () = self.earlier.notified() => {}
        }
    }
}
