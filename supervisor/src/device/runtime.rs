//! A device as the rest of the supervisor sees it. Decisions come from its scheduler, behind a lock;
//! whoever caused a decision carries it out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pappus_proto::{Code, v1};
use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::to_worker::Configure;
use pappus_protocol::{FaultCode, now_ns};
use tokio::sync::{Notify, watch};

use super::answers;
use super::link::{Link, StartError};
use crate::call::Call;
use crate::config::{DeviceConfig, Settings};
use crate::metrics::DeviceMetrics;
use crate::registry::{CodeTarget, Registry};
use crate::schedule::{Action, CallId, Limits, Scheduler, Terms, WorkerId};

/// Lanes of a worker: the CPU device runs one call at a time.
pub const LANES: u32 = 1;

type Actions = Vec<Action<Arc<Call>>>;

/// One device with its workers.
#[derive(Debug)]
pub struct Device {
    /// As configured.
    pub config: DeviceConfig,
    /// Counts what happens here.
    pub metrics: DeviceMetrics,
    scheduler: Mutex<Scheduler<Arc<Call>>>,
    places: Vec<Place>,
    settings: watch::Receiver<Settings>,
    registry: std::sync::OnceLock<Arc<Registry>>,
    /// What machine code must be made for, as far as workers said so.
    targets: watch::Sender<Vec<CodeTarget>>,
    clock: Notify,
    /// Workers that end are not replaced any more.
    closing: AtomicBool,
}

/// How a worker says that a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// Well.
    Done(&'a Done),
    /// With a fault.
    Failed(&'a FaultRef<'a>),
}

/// One worker's place.
#[derive(Debug)]
pub struct Place {
    /// The process in it.
    pub link: Mutex<Link>,
    /// Calls answered well.
    pub completed: AtomicU64,
    /// Processes that took the place after the first.
    pub restarts: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Device {
    /// A device without any process yet.
    pub fn new(
        config: DeviceConfig,
        settings: watch::Receiver<Settings>,
        targets: watch::Sender<Vec<CodeTarget>>,
    ) -> std::io::Result<Self> {
        let place = || -> std::io::Result<Place> {
            Ok(Place {
                link: Mutex::new(Link::new(LANES)?),
                completed: AtomicU64::new(0),
                restarts: AtomicU64::new(0),
            })
        };
        Ok(Self {
            scheduler: Mutex::new(Scheduler::new(config.workers, LANES)),
            places: (0..config.workers).map(|_| place()).collect::<Result<_, _>>()?,
            metrics: DeviceMetrics::new(&config.name),
            settings,
            registry: std::sync::OnceLock::new(),
            targets,
            clock: Notify::new(),
            closing: AtomicBool::new(false),
            config,
        })
    }

    /// Says where functions come from; called once, before the first call.
    pub fn serve(&self, registry: Arc<Registry>) {
        let _ = self.registry.set(registry);
    }

    /// A worker's place.
    pub fn place(&self, worker: WorkerId) -> &Place {
        &self.places[worker]
    }

    /// A worker's link.
    pub fn link(&self, worker: WorkerId) -> MutexGuard<'_, Link> {
        lock(&self.places[worker].link)
    }

    /// What a fresh worker is told first.
    pub fn configure(&self) -> Configure {
        Configure {
            lease_bytes: self.config.lease_bytes(),
            poll_us: self.settings.borrow().poll_us,
            turns: false,
            scrub_calls: self.config.scrub_calls,
        }
    }

    /// Settings changed: workers are told.
    pub fn reconfigure(&self) {
        for worker in 0..self.places.len() {
            self.link(worker).configure(self.configure());
        }
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

    /// Accepts a call, or says why not. An accepted call is answered exactly once.
    pub fn submit(&self, call: Arc<Call>, inline_bytes: u64) -> Result<CallId, Box<v1::Error>> {
        let settings = *self.settings.borrow();
        let limits = Limits { calls: settings.queue_calls, bytes: settings.queue_bytes };
        let mut actions = Actions::new();
        let now = now_ns();
        let (outcome, wake_clock) = {
            let mut scheduler = lock(&self.scheduler);
            let before = scheduler.next_deadline_ns();
            let terms = Terms { domain: call.domain, bytes: inline_bytes, deadline_ns: call.deadline_ns };
            let outcome = scheduler.submit(now, call, terms, limits, &mut actions);
            (outcome, before.is_none_or(|before| terms.deadline_ns < before))
        };
        let id = outcome.map_err(|full| {
            self.metrics.rejected.increment(1);
            let message = format!("device {} is full: {full}; try again later", self.config.name);
            Box::new(v1::Error::new(Code::ResourceExhausted, message).retry(100))
        })?;
        if wake_clock {
            self.clock.notify_one();
        }
        self.perform(actions);
        Ok(id)
    }

    /// Takes a waiting call back; returns it unless it runs or is over.
    pub fn cancel(&self, id: CallId) -> Option<Arc<Call>> {
        lock(&self.scheduler).cancel(id)
    }

    /// Carries decisions out, and those that follow from them.
    pub fn perform(&self, actions: Actions) {
        let mut work = actions;
        let mut next = Actions::new();
        while !work.is_empty() {
            for action in work.drain(..) {
                match action {
                    Action::Start { worker, generation, lane, id, call } => {
                        self.start(worker, generation, lane, id, &call, &mut next);
                    }
                    Action::Expired(call) => {
                        self.metrics.failed.increment(1);
                        call.asker.answer(answers::expired());
                    }
                    Action::Kill { worker, generation, call } => {
                        let pid = self.link(worker).pid();
                        let (function, domain) = (&call.function.record.name, call.domain);
                        tracing::warn!(
                            function,
                            ?domain,
                            worker,
                            pid,
                            "a call is overdue: killing its worker"
                        );
                        self.link(worker).kill(generation);
                    }
                    Action::Replace { worker, generation } => self.link(worker).hang_up(generation),
                }
            }
            std::mem::swap(&mut work, &mut next);
        }
    }

    fn start(
        &self,
        worker: WorkerId,
        generation: u64,
        lane: u32,
        id: CallId,
        call: &Call,
        next: &mut Actions,
    ) {
        let Some(registry) = self.registry.get() else {
            return;
        };
        call.started_ns.store(now_ns(), Ordering::Relaxed);
        let started = self.link(worker).start(registry.state(), generation, lane, id, call);
        match started {
            // The calls of a process that is gone are answered where its end is seen.
            Ok(()) | Err(StartError::Gone) => {}
            Err(StartError::Refused(error)) => {
                self.metrics.failed.increment(1);
                call.asker.answer(v1::response::Body::Error(*error));
                lock(&self.scheduler).finished(now_ns(), worker, id, next);
            }
            Err(StartError::Broken(error)) => {
                tracing::error!(worker, "a worker does not take a call: {error}");
                self.link(worker).kill(generation);
            }
        }
    }

    /// A worker answered a call: the lane's next call is started before the client is answered.
    pub fn finish(&self, worker: WorkerId, id: CallId, outcome: Outcome<'_>) -> Result<(), &'static str> {
        let (call, lane) = match lock(&self.scheduler).running_call(worker, id) {
            Some((call, lane)) => (call.clone(), lane),
            None => return Err("it answered a call that it does not have"),
        };
        let body = match outcome {
            Outcome::Done(timings) => {
                // Before the lane's next call can use the staging range.
                let staged = self.take_staged(worker, lane, &call);
                let inline = staged.map_err(|_| "its staging memory does not read")?;
                self.places[worker].completed.fetch_add(1, Ordering::Relaxed);
                self.metrics.completed.increment(1);
                answers::invoked(&call, &self.config.name, timings, inline)
            }
            Outcome::Failed(fault) => {
                if fault.code == FaultCode::Load {
                    // What could not be loaded is tried afresh by the next call.
                    self.link(worker).uninstall(call.function.id);
                }
                self.metrics.failed.increment(1);
                let (function, domain) = (&call.function.record.name, call.domain);
                tracing::debug!(function, ?domain, worker, code = ?fault.code, "a call failed: {}", fault.message);
                answers::failed(&call, fault)
            }
        };
        let mut actions = Actions::new();
        lock(&self.scheduler).finished(now_ns(), worker, id, &mut actions);
        self.perform(actions);
        call.asker.answer(body);
        self.metrics.seconds.record((now_ns() - call.arrived_ns) as f64 * 1e-9);
        Ok(())
    }

    fn take_staged(&self, worker: WorkerId, lane: u32, call: &Call) -> std::io::Result<Vec<Vec<u8>>> {
        let staged = call.outputs.iter().zip(call.function.blueprint.outputs());
        staged
            .filter(|(target, _)| target.arena.get() == pappus_protocol::to_worker::STAGING_ARENA)
            .map(|(target, id)| {
                self.link(worker).take_staged(lane, target, call.plan.buffers[id.index()].bytes)
            })
            .collect()
    }

    /// A fresh process is ready for calls.
    pub fn worker_ready(&self, worker: WorkerId, generation: u64, target: &CodeTarget) {
        self.targets.send_if_modified(|known| target.learn(known));
        let mut actions = Actions::new();
        lock(&self.scheduler).worker_ready(now_ns(), worker, generation, &mut actions);
        self.perform(actions);
    }

    /// A process ended: its calls are answered. Returns how many there were.
    pub fn worker_gone(&self, worker: WorkerId, ended: &str) -> usize {
        let lost = lock(&self.scheduler).worker_gone(worker);
        for (call, overdue) in &lost {
            self.metrics.failed.increment(1);
            call.zero_outputs();
            call.asker.answer(answers::lost(*overdue, ended));
        }
        lost.len()
    }

    /// Tells all workers to forget an arena.
    pub fn close_arena(&self, arena: u64) {
        (0..self.places.len()).for_each(|worker| self.link(worker).close_arena(arena));
    }

    /// Tells all workers to forget a function.
    pub fn uninstall(&self, function: u64) {
        (0..self.places.len()).for_each(|worker| self.link(worker).uninstall(function));
    }

    /// Watches deadlines for as long as the supervisor runs.
    pub async fn run_clock(&self) {
        loop {
            let next = lock(&self.scheduler).next_deadline_ns();
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
        }
    }

    /// Ends all workers for good.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        for worker in 0..self.places.len() {
            self.link(worker).kill_any();
        }
    }

    /// Whether processes that end are not replaced any more.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// As `status` shows it.
    pub fn status(&self) -> v1::DeviceStatus {
        let (queued, running, busy) = {
            let scheduler = lock(&self.scheduler);
            let busy: Vec<_> = (0..self.places.len()).map(|w| scheduler.busy_lanes(w)).collect();
            (scheduler.queued(), scheduler.running(), busy)
        };
        let workers = busy.into_iter().enumerate().map(|(worker, busy)| {
            let place = &self.places[worker];
            v1::WorkerStatus {
                pid: self.link(worker).pid().unwrap_or(0),
                state: match busy {
                    None => "starting",
                    Some(0) => "idle",
                    Some(_) => "busy",
                }
                .to_owned(),
                completed: place.completed.load(Ordering::Relaxed),
                restarts: place.restarts.load(Ordering::Relaxed),
                busy_lanes: busy.unwrap_or(0),
                ..Default::default()
            }
        });
        v1::DeviceStatus {
            name: self.config.name.clone(),
            kind: self.config.kind.name().to_owned(),
            memory_bytes: self.config.memory_bytes,
            lease_bytes: self.config.lease_bytes(),
            queued,
            running,
            completed: self.places.iter().map(|p| p.completed.load(Ordering::Relaxed)).sum(),
            failed: self.metrics.failed_so_far(),
            workers: workers.collect(),
            ..Default::default()
        }
    }
}
