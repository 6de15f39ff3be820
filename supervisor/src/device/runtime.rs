//! A device as the rest of the supervisor sees it, put together from its components. Decisions come from its scheduler;
//! the thread that caused a decision carries it out (`commands`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pappus_protocol::now_ns;
use tokio::sync::{Notify, watch};

use super::commands::CommandRunner;
use super::decisions::{Actions, Deciding, Decisions};
use super::device_book::DeviceBook;
use super::ending::Completer;
use super::quota;
use super::reaper::{Dying, Home, Reaper, Remains};
use super::setup::{MadeFor, Setup};
use super::shared_fault::EpochGuard;
use super::standby::{Ready, Standbys};
use super::status::{DeviceStatus, StatusView};
use super::unwritten::Unwritten;
use super::weights::taken_by;
use super::worker_events::WorkerEvents;
use super::worker_slots::WorkerSlots;
use crate::call::{Call, WhyApart};
use crate::config::{DeviceConfig, Settings};
use crate::function::CodeTarget;
use crate::ids::{Epoch, FunctionId, TenantId, WorkerId};
use crate::limits::{MAX_TENANTS_SHOWN, processors};
use crate::metrics::DeviceMetrics;
use crate::processes::mps::{Control, MpsTerminator};
use crate::processes::process_table::ProcessTable;
use crate::schedule::budget::Budget;
use crate::schedule::events::{
    Adopt, Allow, Cancel, FunctionGone, SetPolicy, SetShare, SettingsChanged, Submit, Tick, Uninstall,
    Withdraw,
};
use crate::schedule::quarantine::{Quarantined, Use};
use crate::schedule::{
    CallId, CallSpec, Compartment, Domain, Limits, MemorySnapshot, NotNow, TenantShare, Withdrawn,
};
use crate::state_room::StateRoom;
use crate::store::StateDir;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Limit, QuotaError, Tenants};

/// One device with its workers.
#[derive(Debug)]
pub struct Device {
    /// As configured.
    pub config: Arc<DeviceConfig>,
    /// Counts what happens here.
    pub metrics: Arc<DeviceMetrics>,
    /// Device memory.
    pub processes: Arc<ProcessTable>,
    /// Room for states of sessions.
    pub states: Arc<StateRoom>,
    /// The slots of its workers.
    pub slots: Arc<WorkerSlots>,
    /// Processes that could take a worker's slot.
    pub(super) standbys: Standbys,
    /// Processes that serve no more.
    pub(super) reaper: Reaper,
    pub(super) decisions: Arc<Decisions>,
    pub(super) commands: Arc<CommandRunner>,
    pub(super) events: WorkerEvents,
    pub(super) completer: Arc<Completer>,
    pub(super) epochs: EpochGuard,
    settings: watch::Receiver<Settings>,
    /// Ends processes of a device that they share through MPS.
    pub(super) mps: Option<Arc<MpsTerminator>>,
    /// How it is set up.
    pub(super) setup: OrderedMutex<Setup, { rank::DEVICE_SETUP }>,
    /// What its processes are made for.
    pub(super) made_for: Arc<OrderedMutex<MadeFor, { rank::MADE_FOR }>>,
    /// Lanes of a process that is made now.
    pub(super) lanes: AtomicU32,
    /// How many workers there can be at the same time.
    pub(super) workers: AtomicUsize,
    /// Workers that end are not replaced any more.
    closing: AtomicBool,
}

/// Why a device does not accept a call.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It needs more device memory than its caller may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// It needs more than the device has, which has less than it had a moment ago.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The weights of its function need more than there is for weights.
    #[error(transparent)]
    WeightsTooLarge(#[from] WeightsTooLarge),
    /// It runs beside strangers only, and may not be there.
    #[error("{0}")]
    NotShared(WhyApart),
    /// Its function is in quarantine, or the queue is full.
    #[error("{0}")]
    NotNow(NotNow),
}

/// A call needs more device memory than a device has for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the call needs {needs} bytes of device memory, weights of its function included, and the device has at most {most} for \
     one call now"
)]
pub struct TooLarge {
    /// Bytes that it needs.
    pub needs: u64,
    /// Bytes that there are.
    pub most: u64,
}

/// Weights need more of a device's memory than it keeps for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "its weights take {needs} bytes of device memory, the device keeps {most} for weights: give them more with weights=SIZE"
)]
pub struct WeightsTooLarge {
    /// Bytes that they take.
    pub needs: u64,
    /// Bytes that there are.
    pub most: u64,
}

impl Device {
    /// A device without any process yet.
    pub fn new(
        config: DeviceConfig,
        settings: watch::Receiver<Settings>,
        targets: watch::Sender<Vec<CodeTarget>>,
        store: Arc<StateDir>,
    ) -> std::io::Result<Self> {
        let processes = ProcessTable::new(config.clone());
        let config = Arc::new(config);
        let metrics = Arc::new(DeviceMetrics::new(&config.name));
        let slots = Arc::new(WorkerSlots::new(config.workers)?);
        let decisions = Arc::new(Decisions::new(&config, settings.borrow().policy()));
        let commands = Arc::new(CommandRunner {
            config: config.clone(),
            metrics: metrics.clone(),
            settings: settings.clone(),
            store,
            slots: slots.clone(),
            decisions: decisions.clone(),
            handovers: AtomicU64::new(1),
        });
        let book = DeviceBook { decisions: decisions.clone(), commands: Arc::downgrade(&commands) };
        processes.keep_in(Box::new(book));
        // The first process: what its machine code must be made for is known once it is there.
        slots.want(WorkerId::new(0));
        let made_for = Arc::new(OrderedMutex::new(MadeFor::new(&config)));
        let events = WorkerEvents {
            made_for: made_for.clone(),
            metrics: metrics.clone(),
            processes: processes.clone(),
            slots: slots.clone(),
            decisions: decisions.clone(),
            commands: commands.clone(),
            targets,
        };
        let completer = Arc::new(Completer {
            config: config.clone(),
            metrics: metrics.clone(),
            slots: slots.clone(),
            decisions: decisions.clone(),
            commands: commands.clone(),
        });
        let epochs = EpochGuard::new(config.clone(), decisions.clone(), slots.clone(), processes.clone());
        Ok(Self {
            standbys: Standbys::new(config.standbys)?,
            reaper: Reaper::new()?,
            mps: config.under_mps.then(|| MpsTerminator::start(Control::new()?)).transpose()?,
            setup: OrderedMutex::new(Setup::new(&config)),
            lanes: config.lanes.into(),
            workers: config.workers.into(),
            made_for,
            closing: AtomicBool::new(false),
            states: StateRoom::new(&config.name, config.states_bytes),
            config,
            metrics,
            processes,
            slots,
            decisions,
            commands,
            events,
            completer,
            epochs,
            settings,
        })
    }

    /// How long a worker's thread spins before it blocks. On two cores or fewer the spinning would
    /// take the processor from the very process it waits for.
    pub(super) fn spin(&self) -> Duration {
        let us = if processors() > 2 { self.settings.borrow().poll_us } else { 0 };
        Duration::from_micros(us.into())
    }

    /// What processes are made for now.
    pub(super) fn made_for(&self) -> MadeFor {
        *self.made_for.lock()
    }

    /// Calls waiting and running, as of the last decision; locks nothing.
    pub fn load(&self) -> u64 {
        self.decisions.load()
    }

    /// Accepts a call, or says why not. An accepted call is answered exactly once. With `unwritten`,
    /// its worker is told when the [`Burst`](super::burst::Burst) that it belongs to is released.
    pub fn submit(
        &self,
        call: Arc<Call>,
        inline_bytes: u64,
        unwritten: Option<&mut Unwritten>,
    ) -> Result<CallId, SubmitError> {
        let settings = *self.settings.borrow();
        let account = call.reply.account().clone();
        let limits = Limits {
            calls: settings.queue_calls,
            bytes: settings.queue_bytes,
            own_calls: account.most(Limit::QueuedCalls),
            own_bytes: account.most(Limit::QueuedBytes),
        };
        let accepted = self.take_in(call, inline_bytes, unwritten, |deciding, call, spec| {
            deciding.handle(Submit { call, spec, limits })
        });
        accepted.map_err(|why| match why {
            SubmitError::NotNow(NotNow::OwnCalls(used)) => {
                account.exceeds(Limit::QueuedCalls, limits.own_calls, used, 1).into()
            }
            SubmitError::NotNow(NotNow::OwnBytes(used)) => {
                account.exceeds(Limit::QueuedBytes, limits.own_bytes, used, inline_bytes).into()
            }
            why => why,
        })
    }

    /// Accepts a call that waited on another device.
    pub fn adopt(&self, withdrawn: Withdrawn<Arc<Call>>) -> Result<CallId, SubmitError> {
        let Withdrawn { call, bytes, attempts } = withdrawn;
        self.take_in(call, bytes, None, |deciding, call, spec| {
            deciding.handle(Adopt { call, spec, attempts })
        })
    }

    fn take_in(
        &self,
        call: Arc<Call>,
        bytes: u64,
        unwritten: Option<&mut Unwritten>,
        event: impl FnOnce(&mut Deciding<'_>, Arc<Call>, CallSpec) -> Result<CallId, NotNow>,
    ) -> Result<CallId, SubmitError> {
        let mut actions = Actions::default();
        let (domain, deadline_ns, memory_bytes) = (call.domain, call.deadline_ns, call.plan.pool_bytes);
        let traits = self.config.kind.traits();
        let (function, weight_bytes) = (call.function.id, taken_by(&call.function, traits.has_own_memory));
        let stack_bytes = call.function.stack_bytes(self.config.kind, &self.config.arch);
        let share = call.reply.account().share();
        let sharing = call.sharing(&self.config, weight_bytes).map_err(SubmitError::NotShared)?;
        let spec = CallSpec {
            domain,
            function,
            bytes,
            deadline_ns,
            memory_bytes,
            stack_bytes,
            weight_bytes,
            sharing,
            batch: call.batch(),
        };
        let outcome = self.decisions.decide(&mut actions, |deciding| {
            let most = self.processes.largest_call_bytes();
            if weight_bytes > self.config.weights_bytes {
                let most = self.config.weights_bytes;
                return Err(SubmitError::WeightsTooLarge(WeightsTooLarge { needs: weight_bytes, most }));
            }
            let beside_bytes = if traits.has_own_memory { weight_bytes } else { 0 };
            let needs = memory_bytes.saturating_add(beside_bytes);
            if needs > most {
                // It has less since the call was routed here, or the weights do not fit beside the call.
                return Err(SubmitError::TooLarge(TooLarge { needs, most }));
            }
            let (caller, owner) = (call.reply.account(), &call.function.account);
            let needs = memory_bytes.next_multiple_of(traits.page_bytes);
            quota::check(caller, || deciding.weights().used_by(domain.caller), needs)?;
            deciding.handle(SetShare { tenant: domain.caller, share });
            deciding.handle(Allow { tenant: domain.caller, most_bytes: quota::most_bytes(caller) });
            if weight_bytes > 0 && domain.owner != domain.caller {
                deciding.handle(Allow { tenant: domain.owner, most_bytes: quota::most_bytes(owner) });
            }
            Ok(event(deciding, call, spec))
        });
        // Other calls may start by the tenant's rules, also where this one is refused.
        self.commands.carry_out(&mut actions, unwritten);
        let id = outcome?.map_err(|why| {
            self.metrics.rejected.increment(1);
            if matches!(why, NotNow::Quarantined(_)) {
                self.metrics.quarantines.increment(1);
            }
            SubmitError::NotNow(why)
        })?;
        Ok(id)
    }

    /// Calls that wait, oldest first.
    pub fn waiting(&self) -> Vec<(CallId, Arc<Call>)> {
        let scheduler = self.decisions.ask();
        scheduler.waiting().into_iter().map(|(id, call)| (id, call.clone())).collect()
    }

    /// Takes a call that waits, which is to wait elsewhere; none if it does not wait any more.
    pub fn withdraw(&self, id: CallId) -> Option<Withdrawn<Arc<Call>>> {
        self.commands.handle(Withdraw { id })
    }

    /// How many calls of a tenant wait, and their inline bytes.
    pub fn waiting_of(&self, tenant: TenantId) -> (u64, u64) {
        self.decisions.ask().waiting_of(tenant)
    }

    /// Who is told when calls wait here though the device is lost, and when it is no longer lost.
    pub fn tell_stranded(&self, notify: Arc<Notify>) {
        self.decisions.tell_stranded(notify);
    }

    /// Takes a waiting call back; returns it unless it runs or is over.
    pub fn cancel(&self, id: CallId) -> Option<Arc<Call>> {
        self.commands.handle(Cancel { id })
    }

    /// Tells all workers to forget an arena.
    pub fn close_arena(&self, arena: u64) {
        self.slots.each_channel(|channel| channel.close_arena(arena));
    }

    /// Tells all workers to forget a function.
    pub fn uninstall(&self, function: FunctionId) {
        self.commands.handle(FunctionGone { function });
    }

    /// Tells the workers of one domain to forget a function.
    pub fn uninstall_for(&self, function: FunctionId, domain: Domain) {
        self.commands.handle(Uninstall { domain, function });
    }

    /// The functions that workers have which serve a caller, or were told to load, and whether one has the weights, too.
    pub fn warm_for(&self, caller: TenantId) -> HashMap<FunctionId, bool> {
        let serving: Vec<_> = {
            let scheduler = self.decisions.ask();
            let serves = |worker: &WorkerId| match scheduler.resident(*worker).serves {
                Some(Compartment::Of(domain)) => domain.caller == caller,
                Some(Compartment::Shared) => true,
                None => false,
            };
            self.slots.workers().filter(serves).collect()
        };
        let mut warm = HashMap::new();
        for worker in serving {
            for (function, weights) in self.slots.channel(worker).installed() {
                *warm.entry(function).or_default() |= weights;
            }
        }
        warm
    }

    /// Settings changed: workers are told.
    pub fn reconfigure(&self) {
        let policy = self.settings.borrow().policy();
        self.commands.handle(SetPolicy { policy });
        self.commands.handle(SettingsChanged {});
    }

    /// Limits of tenants changed.
    pub fn quotas_changed(&self, tenants: &Tenants) {
        let mut actions = quota::changed(&self.decisions, tenants);
        self.commands.carry_out(&mut actions, None);
    }

    /// Device memory that a tenant holds.
    pub fn held_bytes(&self, tenant: TenantId) -> u64 {
        quota::held_bytes(&self.decisions, tenant)
    }

    /// Watches deadlines for as long as the supervisor runs.
    pub async fn run_clock(&self) {
        loop {
            self.decisions.due().await;
            self.commands.handle(Tick {});
        }
    }

    /// A process of an epoch failed, and all with it: they are ended, standbys too.
    pub(super) fn end_epoch(&self, epoch: Epoch, worker: WorkerId) {
        let mut actions = Actions::default();
        let is_first = self.epochs.end(epoch, worker, self.is_closing(), &mut actions);
        self.commands.carry_out(&mut actions, None);
        if !is_first {
            return;
        }
        while let Some(ready) = self.standbys.take(|_| true) {
            self.standbys_changed();
            ready.started.process.kill_now();
            let why = Some("another process failed".to_owned());
            self.reaper.take(self, Dying::unused(ready.started.process, ready.reservation, why));
        }
    }

    /// Ends all workers for good.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.slots.close();
        self.processes.close();
        self.standbys.close();
        self.reaper.wake();
    }

    /// Its calls and workers now.
    pub fn status(&self) -> DeviceStatus {
        let Self { metrics, processes, slots, decisions, .. } = self;
        StatusView { metrics, processes, slots, decisions }.status()
    }

    /// What is taken of its memory.
    pub fn memory(&self) -> MemorySnapshot {
        self.decisions.ask().memory()
    }

    /// A standby for a worker's slot, for good.
    pub(super) fn take_standby(&self, worker: WorkerId) -> Option<Ready> {
        let shared = self.config.makes_shared(worker.get());
        loop {
            let ready = self.standbys.take(|ready| ready.shared == shared)?;
            self.standbys_changed();
            if ready.edition == self.made_for().edition {
                return Some(ready);
            }
            self.reaper.take(self, Dying::unused(ready.started.process, ready.reservation, None));
        }
    }

    /// Other standbys are ready than before.
    pub(super) fn standbys_changed(&self) {
        self.commands.standbys_changed(&self.standbys);
    }

    /// Standbys that are ready.
    pub fn standbys_ready(&self) -> usize {
        self.standbys.ready()
    }

    /// Functions that are refused here, and budgets that are not whole.
    pub fn refusals(&self) -> (Vec<Quarantined>, Vec<Budget>) {
        let scheduler = self.decisions.ask();
        let now_ns = now_ns();
        (scheduler.quarantined(now_ns), scheduler.budgets(now_ns))
    }

    /// Uses of functions that keep out of shared workers, and for how many nanoseconds; none until the function is replaced.
    pub fn kept_apart(&self) -> Vec<(Use, Option<u64>)> {
        let now_ns = now_ns();
        let mut kept = self.decisions.ask().kept_apart(now_ns);
        kept.iter_mut().for_each(|(_, until_ns)| *until_ns = until_ns.map(|ns| ns.saturating_sub(now_ns)));
        kept
    }

    /// Device time by tenant, with what each is given. Of very many tenants, some are left out.
    pub fn device_times(&self) -> Vec<(TenantId, u64, TenantShare)> {
        self.decisions.ask().device_times(MAX_TENANTS_SHOWN)
    }

    /// How long calls have waited for others of their function, all together, in nanoseconds.
    pub fn waited_for_company_ns(&self) -> u64 {
        self.decisions.ask().waited_for_company_ns()
    }

    /// Device time that one tenant used.
    pub fn device_time_of(&self, tenant: TenantId) -> u64 {
        self.decisions.ask().device_time_of(tenant)
    }

    pub(super) fn set_lost(&self, lost: bool) {
        if self.decisions.is_lost() != lost && self.decisions.set_lost(lost) {
            match lost {
                true => tracing::error!(
                    device = self.config.name,
                    "no worker gets ready: calls go to other devices"
                ),
                false => tracing::info!(device = self.config.name, "a worker is ready again"),
            }
        }
    }

    /// True if processes that end are not replaced any more.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

impl Home for Device {
    fn is_closing(&self) -> bool {
        Device::is_closing(self)
    }

    fn reaped(&self, remains: Remains) {
        self.events.reaped(remains);
    }
}
