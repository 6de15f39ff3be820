//! A device as the rest of the supervisor sees it. Decisions come from its scheduler, behind a lock;
//! whoever caused a decision carries it out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::now_ns;
use tokio::sync::{Notify, watch};

use super::memory_rebalance::Whole;
use super::reaper::Reaper;
use super::standby::Standbys;
use super::weights::WeightStore;
use super::worker_channel::{Start, StartError, WorkerChannel};
use super::write_coalescing::Held;
use crate::call::{Call, Outcome, SpentBudget};
use crate::config::{DeviceConfig, Settings};
use crate::function::CodeTarget;
use crate::metrics::DeviceMetrics;
use crate::processes::memory_ledger::MemoryLedger;
use crate::processes::mps::{Control, MpsTerminator};
use crate::schedule::{Action, CallId, Limits, NotNow, Scheduler, Shape, Terms, Verdict, WorkerId};
use crate::store::StateDir;
use crate::tenants::QuotaError;

pub(super) type Actions = Vec<Action<Arc<Call>>>;

/// A call whose process is gone.
pub type Lost = (CallId, Arc<Call>);

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
    /// Processes that could take a worker's place.
    pub standbys: Standbys,
    /// Processes that serve no more.
    pub reaper: Reaper,
    pub(super) scheduler: Mutex<Scheduler<Arc<Call>>>,
    pub(super) slots: Vec<WorkerSlot>,
    pub(super) whole: Mutex<Whole>,
    pub(super) settings: watch::Receiver<Settings>,
    store: Arc<StateDir>,
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
    pub(super) epoch_ended: Mutex<Option<Instant>>,
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

/// One worker's place.
#[derive(Debug)]
pub struct WorkerSlot {
    /// The process in it.
    pub link: Mutex<WorkerChannel>,
    /// Calls answered well.
    pub completed: AtomicU64,
    /// Processes that took the place after the first.
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

/// One worker has nobody to take turns with.
pub(super) fn takes_turns(config: &DeviceConfig) -> bool {
    config.turns && config.workers > 1
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
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
                link: Mutex::new(WorkerChannel::new()?),
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
            turns: takes_turns(&config),
            residency_ns: config.min_residency.as_nanos().min(u64::MAX.into()) as u64,
            scrubs: config.scrub_switch,
            shared_faults: config.shared,
        };
        let mut scheduler = Scheduler::new(shape);
        scheduler.set_policy(now_ns(), settings.borrow().policy(), &mut Actions::new());
        let ledger = MemoryLedger::new(config.clone());
        let has_own_memory = config.kind.traits().has_own_memory;
        let weights = has_own_memory.then(|| WeightStore::new(config.weights_bytes, ledger.clone()));
        Ok(Self {
            ledger,
            weights,
            standbys: Standbys::new(config.standbys)?,
            reaper: Reaper::new()?,
            scheduler: Mutex::new(scheduler),
            slots: (0..config.workers).map(|_| slot()).collect::<Result<_, _>>()?,
            whole: Mutex::default(),
            metrics: DeviceMetrics::new(&config.name),
            settings,
            store,
            targets,
            clock: Notify::new(),
            handovers: AtomicU64::new(1),
            clock_ns: AtomicU64::new(u64::MAX),
            mps: config.shared.then(|| MpsTerminator::start(Control::new())).transpose()?,
            epoch_ended: Mutex::new(None),
            closing: AtomicBool::new(false),
            config,
        })
    }

    /// A worker's slot on the device.
    pub fn slot(&self, worker: WorkerId) -> &WorkerSlot {
        &self.slots[worker]
    }

    /// A worker's link.
    pub fn link(&self, worker: WorkerId) -> MutexGuard<'_, WorkerChannel> {
        lock(&self.slots[worker].link)
    }

    /// Whether a worker's place has no process.
    pub fn lacks_workers(&self) -> bool {
        self.slots.iter().any(|slot| lock(&slot.link).pid().is_none())
    }

    /// How long a worker's thread spins before it blocks. On two cores or fewer the spinning would
    /// take the processor from the very process it waits for.
    pub fn spin(&self) -> std::time::Duration {
        static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        let us = if cores > 2 { self.settings.borrow().poll_us } else { 0 };
        std::time::Duration::from_micros(us.into())
    }

    /// Calls waiting and running.
    pub fn load(&self) -> u64 {
        let scheduler = lock(&self.scheduler);
        scheduler.queued() + scheduler.running()
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
            scheduler.allow(domain.caller, self.workers_allowed(call.reply.account(), size)?);
            Ok::<_, QuotaError>(scheduler.submit(now_ns(), call, terms, limits, &mut actions))
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

    /// An event for the scheduler. Its clock is told if something is due earlier now.
    pub(super) fn decide<T>(&self, event: impl FnOnce(&mut Scheduler<Arc<Call>>) -> T) -> T {
        let mut scheduler = lock(&self.scheduler);
        let outcome = event(&mut scheduler);
        let next_ns = scheduler.next_deadline_ns();
        if next_ns.is_some_and(|next_ns| next_ns < self.clock_ns.load(Ordering::Relaxed)) {
            self.clock.notify_one();
        }
        outcome
    }

    /// Takes a waiting call back; returns it unless it runs or is over.
    pub fn cancel(&self, id: CallId) -> Option<Arc<Call>> {
        let mut actions = Actions::new();
        let call = self.decide(|scheduler| scheduler.cancel(now_ns(), id, &mut actions));
        self.perform(actions);
        call
    }

    /// Carries decisions out, and those that follow from them.
    pub fn perform(&self, mut actions: Actions) {
        self.carry_out(&mut actions, None);
    }

    /// The same; with `held`, workers are told of their calls by [`Device::release`] at the latest.
    pub(super) fn carry_out(&self, work: &mut Actions, mut held: Option<&mut Held>) {
        let mut next = Actions::new();
        while !work.is_empty() {
            for action in work.drain(..) {
                match action {
                    Action::Start { worker, generation, lane, alone, id, call } => {
                        let start = Start { worker, generation, lane, alone, id };
                        self.start(start, &call, &mut next, held.as_deref_mut());
                    }
                    Action::Expired { call, budget_ns } => {
                        self.metrics.failed.increment(1);
                        let per_minute = self.settings.borrow().fault_budget;
                        let budget = budget_ns.map(|left_ns| SpentBudget { left_ns, per_minute });
                        self.complete(&call, Outcome::Expired { budget });
                    }
                    Action::Refused { call, refusal } => {
                        self.metrics.failed.increment(1);
                        self.metrics.quarantines.increment(1);
                        self.complete(&call, Outcome::Quarantined(refusal));
                    }
                    Action::Kill { worker, generation, call } => self.kill(worker, generation, call),
                    Action::Turn { generation, order } => {
                        let quantum_us = self.config.quantum.as_micros().min(u32::MAX.into()) as u32;
                        self.link(order.worker()).turn(generation, order, quantum_us);
                    }
                    Action::GiveAll { worker, nth } => self.give_all(worker, nth),
                    Action::GiveBack { nth } => self.give_back(nth),
                    Action::Replace { worker, generation } => self.link(worker).hang_up(generation),
                    Action::Scrub { worker, generation } => self.scrub(worker, generation),
                }
            }
            std::mem::swap(work, &mut next);
        }
    }

    fn kill(&self, worker: WorkerId, generation: u64, overdue: Option<Arc<Call>>) {
        let pid = self.link(worker).pid();
        match overdue {
            Some(call) => {
                let (function, owner, caller) = call.names();
                let why = match call.reply.is_over() {
                    true => "a call that was given up does not end",
                    false => "a call is overdue",
                };
                tracing::warn!(function, owner, caller, worker, pid, "{why}: killing its worker");
            }
            None => tracing::warn!(
                worker,
                pid,
                "a worker without calls keeps its turn, or does not forget a tenant: killing it"
            ),
        }
        self.link(worker).kill(generation);
    }

    fn start(&self, start: Start, call: &Arc<Call>, next: &mut Actions, held: Option<&mut Held>) {
        let worker = start.worker;
        let weights = self.weights.as_ref();
        let reserved = self.reserve_weights(worker, call);
        let started = reserved.map_err(|error| StartError::Refused(error.into())).and_then(|given_up| {
            given_up.iter().for_each(|function| self.every_link(|link| link.uninstall(*function)));
            let mut link = self.link(worker);
            let started = link.start(&self.store, weights, start, call);
            if held.is_none() {
                link.write();
            }
            if let Some(weights) = weights {
                weights.settled(&call.function, worker);
            }
            started
        });
        if let Some(held) = held
            && held.add(worker, call)
        {
            self.release(held);
        }
        match started {
            Ok(evicted) => {
                for function in evicted {
                    self.every_link(|link| link.uninstall(function));
                }
            }
            // The calls of a process that is gone run again, which is decided where its end is seen.
            Err(StartError::Gone) => {}
            Err(StartError::Refused(error)) => {
                self.metrics.failed.increment(1);
                self.complete(call, Outcome::Refused(error));
                self.decide(|scheduler| {
                    scheduler.finished(now_ns(), worker, start.id, Verdict::Neither, next)
                });
            }
            Err(StartError::Broken(error)) => {
                tracing::error!(worker, "a worker does not take a call: {error}");
                // It may be the call that nothing can take: it counts as handed over.
                call.started_ns.store(now_ns(), Ordering::Relaxed);
                self.link(worker).kill(start.generation);
            }
        }
    }

    /// Answers a call that ended by itself.
    pub(super) fn complete(&self, call: &Call, outcome: Outcome) {
        call.reply.complete(call, &self.config.name, outcome);
    }

    /// Tells all workers to forget an arena.
    pub fn close_arena(&self, arena: u64) {
        self.every_link(|link| link.close_arena(arena));
    }

    /// Tells all workers to forget a function.
    pub fn uninstall(&self, function: u64) {
        self.every_link(|link| link.uninstall(function));
        if let Some(weights) = &self.weights {
            weights.forget(function);
        }
        lock(&self.scheduler).forget_function(function);
    }

    fn every_link(&self, mut tell: impl FnMut(&mut WorkerChannel)) {
        (0..self.slots.len()).for_each(|worker| tell(&mut self.link(worker)));
    }

    /// Watches deadlines for as long as the supervisor runs.
    pub async fn run_clock(&self) {
        loop {
            // Before the scheduler is locked: whoever moves memory locks them the other way round.
            let whole = lock(&self.whole).deadline_ns;
            let next = {
                let scheduler = lock(&self.scheduler);
                let next = [scheduler.next_deadline_ns(), whole].into_iter().flatten().min();
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
            let mut actions = Actions::new();
            lock(&self.scheduler).expire(now_ns(), &mut actions);
            self.perform(actions);
            self.whole_expire(now_ns());
        }
    }

    /// Ends all workers for good.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        for worker in 0..self.slots.len() {
            self.link(worker).kill_any();
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
