//! A device as the rest of the supervisor sees it. Decisions come from its scheduler, behind a lock; the thread that
//! caused a decision carries it out (`commands`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::now_ns;
use tokio::sync::{Notify, watch};

use super::held::Held;
use super::reaper::Reaper;
use super::standby::Standbys;
use super::weights::WeightStore;
use super::worker_channel::WorkerChannel;
use crate::call::Call;
use crate::config::{DeviceConfig, Settings};
use crate::function::CodeTarget;
use crate::ids::{FunctionId, WorkerId};
use crate::metrics::DeviceMetrics;
use crate::processes::memory_ledger::MemoryLedger;
use crate::processes::mps::{Control, MpsTerminator};
use crate::schedule::events::{Allow, Cancel, Event, FunctionGone, SetPolicy, Submit, Tick};
use crate::schedule::{Action, CallId, Limits, NotNow, Scheduler, Shape, Terms};
use crate::store::StateDir;
use crate::sync::{OrderedGuard, OrderedMutex, rank};
use crate::tenants::QuotaError;

pub(super) type Actions = Vec<Action<Arc<Call>>>;

/// One device with its workers.
#[derive(Debug)]
pub struct Device {
    /// As configured.
    pub config: DeviceConfig,
    /// Counts what happens here.
    pub metrics: DeviceMetrics,
    /// Device memory.
    pub ledger: Arc<MemoryLedger>,
    /// Weights in its memory, if it has memory of its own.
    pub weights: Option<WeightStore>,
    /// Processes that could take a worker's slot.
    pub standbys: Standbys,
    /// Processes that serve no more.
    pub reaper: Reaper,
    scheduler: OrderedMutex<Scheduler<Arc<Call>>, { rank::SCHEDULER }>,
    /// Calls waiting and running; changed with the scheduler locked.
    load: AtomicU64,
    pub(super) slots: Vec<WorkerSlot>,
    pub(super) settings: watch::Receiver<Settings>,
    pub(super) store: Arc<StateDir>,
    /// What machine code must be made for, as far as workers said so.
    pub(super) targets: watch::Sender<Vec<CodeTarget>>,
    pub(super) clock: Notify,
    /// Numbers for workers that are scrubbed for another domain.
    pub(super) handovers: AtomicU64,
    /// When the clock looks next, as far as it knows; changed with the scheduler locked.
    clock_ns: AtomicU64,
    /// Ends processes of a device that they share through MPS.
    pub(super) mps: Option<Arc<MpsTerminator>>,
    /// When a fault ended all processes last.
    pub(super) epoch_ended: OrderedMutex<Option<Instant>, { rank::EPOCH }>,
    /// Workers that end are not replaced any more.
    closing: AtomicBool,
}

/// How a worker says that a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// Well.
    Done(&'a Done),
    /// With a fault.
    Failed(&'a FaultRef<'a>),
}

/// Why a device does not accept a call.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It needs more device memory than its caller may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// Its function is in quarantine, or the queue is full.
    #[error("{0}")]
    NotNow(NotNow),
}

/// One worker's slot.
#[derive(Debug)]
pub struct WorkerSlot {
    /// The process in it.
    pub channel: OrderedMutex<WorkerChannel, { rank::CHANNEL }>,
    /// Calls answered well.
    pub completed: AtomicU64,
    /// Processes that took the slot after the first.
    pub restarts: AtomicU64,
    /// Times that its processes were scrubbed for another domain.
    pub scrubs: AtomicU64,
    /// The lease that is its own.
    pub own_bytes: AtomicU64,
    /// Device memory for calls that its process was promised, which is more or less for a while.
    pub lease_bytes: AtomicU64,
    /// Device memory for calls that its process says it has.
    pub leased_bytes: AtomicU64,
}

/// Workers take turns where there are several.
pub(super) fn takes_turns(config: &DeviceConfig) -> bool {
    config.turns && config.workers > 1
}

impl Device {
    /// A device without any process yet.
    pub fn new(
        config: DeviceConfig,
        settings: watch::Receiver<Settings>,
        targets: watch::Sender<Vec<CodeTarget>>,
        store: Arc<StateDir>,
    ) -> std::io::Result<Self> {
        let slot = || -> std::io::Result<WorkerSlot> {
            Ok(WorkerSlot {
                channel: OrderedMutex::new(WorkerChannel::new()?),
                completed: AtomicU64::new(0),
                restarts: AtomicU64::new(0),
                scrubs: AtomicU64::new(0),
                own_bytes: AtomicU64::new(0),
                lease_bytes: AtomicU64::new(0),
                leased_bytes: AtomicU64::new(0),
            })
        };
        let shape = Shape {
            workers: config.workers,
            lanes: config.lanes,
            workers_per_domain: config.workers_per_domain,
            quantum_us: takes_turns(&config).then(|| config.quantum.as_micros().min(u32::MAX.into()) as u32),
            residency_ns: config.min_residency.as_nanos().min(u64::MAX.into()) as u64,
            scrubs: config.scrub_switch,
            shared_faults: config.shared,
        };
        let mut scheduler = Scheduler::new(shape);
        let policy = settings.borrow().policy();
        scheduler.handle(now_ns(), SetPolicy { policy }, &mut Actions::new());
        let ledger = MemoryLedger::new(config.clone());
        let has_own_memory = config.kind.traits().has_own_memory;
        let weights = has_own_memory.then(|| WeightStore::new(config.weights_bytes, ledger.clone()));
        Ok(Self {
            ledger,
            weights,
            standbys: Standbys::new(config.standbys)?,
            reaper: Reaper::new()?,
            scheduler: OrderedMutex::new(scheduler),
            load: AtomicU64::new(0),
            slots: (0..config.workers).map(|_| slot()).collect::<Result<_, _>>()?,
            metrics: DeviceMetrics::new(&config.name),
            settings,
            store,
            targets,
            clock: Notify::new(),
            handovers: AtomicU64::new(1),
            clock_ns: AtomicU64::new(u64::MAX),
            mps: config.shared.then(|| MpsTerminator::start(Control::new())).transpose()?,
            epoch_ended: OrderedMutex::new(None),
            closing: AtomicBool::new(false),
            config,
        })
    }

    /// A worker's slot on the device.
    pub fn slot(&self, worker: WorkerId) -> &WorkerSlot {
        &self.slots[worker.get()]
    }

    /// The channel to the process in a worker's slot.
    pub fn channel(&self, worker: WorkerId) -> OrderedGuard<'_, WorkerChannel, { rank::CHANNEL }> {
        self.slots[worker.get()].channel.lock()
    }

    /// Whether a worker's slot has no process.
    pub fn lacks_workers(&self) -> bool {
        self.slots.iter().any(|slot| slot.channel.lock().pid().is_none())
    }

    /// How long a worker's thread spins before it blocks. On two cores or fewer the spinning would
    /// take the processor from the very process it waits for.
    pub fn spin(&self) -> std::time::Duration {
        static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        let us = if cores > 2 { self.settings.borrow().poll_us } else { 0 };
        std::time::Duration::from_micros(us.into())
    }

    /// Calls waiting and running, as of the last decision; locks nothing.
    pub fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// The scheduler, to ask it something.
    pub(super) fn ask(&self) -> OrderedGuard<'_, Scheduler<Arc<Call>>, { rank::SCHEDULER }> {
        self.scheduler.lock()
    }

    /// Accepts a call, or says why not. An accepted call is answered exactly once. With `held`,
    /// [`Device::release`] must follow.
    pub fn submit(
        &self,
        call: Arc<Call>,
        inline_bytes: u64,
        held: Option<&mut Held>,
    ) -> Result<CallId, SubmitError> {
        let settings = *self.settings.borrow();
        let limits = Limits { calls: settings.queue_calls, bytes: settings.queue_bytes };
        let mut actions = Actions::new();
        let size = self.ledger.size_of(call.plan.pool_bytes);
        let (domain, deadline_ns) = (call.domain, call.deadline_ns);
        let function = call.function.id;
        let terms = Terms { domain, function, bytes: inline_bytes, deadline_ns, size };
        let outcome = self.decide(|scheduler| {
            let (caller, now_ns) = (domain.caller, now_ns());
            let most = self.workers_allowed(call.reply.account(), size)?;
            scheduler.handle(now_ns, Allow { caller, most }, &mut actions);
            Ok::<_, QuotaError>(scheduler.handle(now_ns, Submit { call, terms, limits }, &mut actions))
        });
        let id = outcome?.map_err(|why| {
            self.metrics.rejected.increment(1);
            if matches!(why, NotNow::Quarantined(_)) {
                self.metrics.quarantines.increment(1);
            }
            SubmitError::NotNow(why)
        })?;
        self.carry_out(&mut actions, held);
        Ok(id)
    }

    /// The most device memory that a call can have: that of all workers.
    pub fn largest_call_bytes(&self) -> u64 {
        self.ledger.largest_call_bytes()
    }

    /// Events for the scheduler. Its clock is told if something is due earlier now.
    pub(super) fn decide<T>(&self, events: impl FnOnce(&mut Scheduler<Arc<Call>>) -> T) -> T {
        let mut scheduler = self.scheduler.lock();
        let outcome = events(&mut scheduler);
        self.load.store(scheduler.queued() + scheduler.running(), Ordering::Relaxed);
        let next_ns = scheduler.next_deadline_ns();
        if next_ns.is_some_and(|next_ns| next_ns < self.clock_ns.load(Ordering::Relaxed)) {
            self.clock.notify_one();
        }
        outcome
    }

    /// One event, and what follows from it.
    pub(super) fn handle<E: Event<Arc<Call>>>(&self, event: E) -> E::Reply {
        let mut actions = Actions::new();
        let reply = self.decide(|scheduler| scheduler.handle(now_ns(), event, &mut actions));
        self.carry_out(&mut actions, None);
        reply
    }

    /// Takes a waiting call back; returns it unless it runs or is over.
    pub fn cancel(&self, id: CallId) -> Option<Arc<Call>> {
        self.handle(Cancel { id })
    }

    /// Tells all workers to forget an arena.
    pub fn close_arena(&self, arena: u64) {
        self.every_channel(|channel| channel.close_arena(arena));
    }

    /// Tells all workers to forget a function.
    pub fn uninstall(&self, function: FunctionId) {
        self.every_channel(|channel| channel.uninstall(function));
        if let Some(weights) = &self.weights {
            weights.forget(function);
        }
        self.handle(FunctionGone { function });
    }

    pub(super) fn every_channel(&self, mut tell: impl FnMut(&mut WorkerChannel)) {
        WorkerId::first(self.slots.len()).for_each(|worker| tell(&mut self.channel(worker)));
    }

    /// Watches deadlines for as long as the supervisor runs.
    pub async fn run_clock(&self) {
        loop {
            let next = {
                let scheduler = self.scheduler.lock();
                let next = scheduler.next_deadline_ns();
                self.clock_ns.store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
                next
            };
            let sleep = async {
                match next {
                    None => std::future::pending().await,
                    Some(at) => {
                        let left = at.saturating_sub(now_ns());
                        tokio::time::sleep(std::time::Duration::from_nanos(left)).await;
                    }
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.clock.notified() => {}
            }
            self.handle(Tick {});
        }
    }

    /// Ends all workers for good.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        for worker in WorkerId::first(self.slots.len()) {
            let channel = self.channel(worker);
            channel.kill_any();
            channel.wake();
        }
        self.ledger.close();
        self.standbys.close();
        self.reaper.wake();
    }

    /// Whether processes that end are not replaced any more.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
