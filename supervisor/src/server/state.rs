//! What all connections share, and what the requests of one connection are asked with.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pappus_protocol::to_worker::{DISCARD, STAGING_ARENA};
use tokio::sync::{Notify, Semaphore, watch};

use super::all_sessions::Sessions;
use super::connection_slots::ConnectionSlots;
use super::fair_turns::FairTurns;
use super::health::{Heartbeat, StateCheck};
use super::reader::BusyPolling;
use super::slow_work::SlowWork;
use super::socket_file::SocketFile;
use super::{intake, replies};
use crate::arena::Arena;
use crate::blocking::Whose;
use crate::client_fd;
use crate::client_io::ClientIo;
use crate::config::{Config, ConfigError, Settings};
use crate::device::Device;
use crate::ids::{Serials, TenantId};
use crate::limits::{MAX_REFUSED, processors, socket_threads};
use crate::log;
use crate::metrics::SocketMetrics;
use crate::quota::{Limit, QuotaError};
use crate::registry::{Handed, Registry};
use crate::routing::Router;
use crate::service_manager::ServiceManager;
use crate::store::StateDir;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Account, Taken};

/// How often draining looks whether everything is answered.
const DRAIN_POLL: Duration = Duration::from_millis(5);
/// How often memory is looked at that tenants gave back, and how much of it is given back to the system.
const TRIM_PERIOD: Duration = Duration::from_millis(200);
const TRIM_BYTES: u64 = 4 << 20;
/// How long clients have to read the last answers before the supervisor ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What all connections share.
#[derive(Debug)]
pub struct Server {
    /// What is registered.
    pub registry: Arc<Registry>,
    /// Where calls run.
    pub devices: Vec<Arc<Device>>,
    /// Chooses one of them for a call.
    pub router: Arc<Router<Device>>,
    /// When the supervisor started.
    pub started: Instant,
    /// Counters of the sockets.
    pub metrics: SocketMetrics,
    /// Who is connected.
    pub connection_slots: Arc<ConnectionSlots>,
    /// Connections that are read from without sleeping.
    pub polling: Arc<BusyPolling>,
    /// What it was started with.
    pub(super) config: Config,
    /// Calls may wait on a device that is lost.
    pub(super) stranded: Arc<Notify>,
    /// Permits for slow work.
    pub slow_work: SlowWork,
    /// Turns of connections on socket threads.
    pub fair_turns: Arc<FairTurns>,
    /// Turns of calls whose plans take long, on threads of their own.
    pub plan_turns: Arc<FairTurns>,
    /// Threads for clients' descriptors.
    pub client_io: ClientIo,
    /// Places for refused connections that wait to be closed.
    pub(super) refused: Arc<Semaphore>,
    settings: watch::Sender<Settings>,
    arenas: Serials,
    /// Sessions of all tenants.
    pub sessions: Sessions,
    /// Files of the sockets.
    pub(super) sockets: Vec<Arc<SocketFile>>,
    /// Who started the supervisor, and keeps its socket.
    pub service_manager: ServiceManager,
    /// Taken by whoever reads the configuration again.
    pub(super) reloads: OrderedMutex<(), { rank::RELOADS }>,
    draining: AtomicBool,
    drain_began: Notify,
    drained: Notify,
    /// Finds out if the state directory can be written.
    pub(super) state_check: Arc<StateCheck>,
    /// When every device last said how it is, as far as anybody asks.
    pub(super) heartbeat: Heartbeat,
}

/// How clients reach the supervisor.
#[derive(Debug)]
pub struct Doors {
    /// Files of the sockets.
    pub sockets: Vec<Arc<SocketFile>>,
    /// Who started the supervisor, and may keep the clients' socket.
    pub service_manager: ServiceManager,
}

/// One connection as its requests see it: tenant and rights.
#[derive(Debug)]
pub struct RequestCtx {
    /// What all connections share.
    pub server: Arc<Server>,
    /// The tenant's account.
    pub account: Arc<Account>,
    /// The uid of the process at the other end.
    pub uid: u32,
    /// True if the connection came through the admin socket.
    pub admin: bool,
    /// True if the connection may see every tenant's calls: on the admin socket, or of the supervisor's own
    /// user as itself.
    pub operator: bool,
    /// True if the connection may ask for the status and for nothing else.
    pub looks_on: bool,
    /// True if the connection is a gateway's that is no tenant: what comes without a tenant's token is refused, but
    /// for the status.
    pub nobody: bool,
    /// Bytes handed over for later registration.
    pub handed: Handed,
}

/// Turns of one kind at a time: where there are few processors, workers and clients need some of them.
fn turns_at_once() -> usize {
    (processors() / 2).clamp(1, socket_threads())
}

impl RequestCtx {
    /// Takes so much of a limit for the connection's requests.
    pub fn take(&self, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
        intake::take(&self.account, self.admin, limit, amount)
    }

    /// The party in fair turns: the connection's tenant, or the operator.
    pub fn sharer(&self) -> Option<TenantId> {
        (!self.admin).then_some(self.account.tenant)
    }

    /// Whose work its requests are.
    pub fn whose(&self) -> Whose {
        if self.admin { Whose::Operator } else { Whose::Tenant }
    }
}

impl Server {
    /// A server over what is there.
    pub fn new(
        registry: Arc<Registry>,
        devices: Vec<Arc<Device>>,
        state: Arc<StateDir>,
        settings: watch::Sender<Settings>,
        doors: Doors,
        config: Config,
    ) -> Arc<Self> {
        let stranded = Arc::new(Notify::new());
        devices.iter().for_each(|device| device.tell_stranded(stranded.clone()));
        let all = devices.clone();
        let router = Arc::new(Router::new(devices.clone()));
        let routes = router.clone();
        registry.on_eviction(move |function| {
            routes.forget(function);
            all.iter().for_each(|device| device.uninstall(function));
        });
        client_fd::prepare();
        let connections = registry.tenants.ledger().connections();
        Arc::new(Self {
            registry,
            router,
            devices,
            settings,
            started: Instant::now(),
            connection_slots: Arc::new(ConnectionSlots::new(connections)),
            polling: Arc::default(),
            slow_work: SlowWork::default(),
            fair_turns: FairTurns::new(turns_at_once()),
            plan_turns: FairTurns::new(turns_at_once()),
            client_io: ClientIo::default(),
            refused: Arc::new(Semaphore::new(MAX_REFUSED)),
            config,
            stranded,
            metrics: SocketMetrics::new(),
            arenas: Serials::default(),
            sessions: Sessions::default(),
            sockets: doors.sockets,
            service_manager: doors.service_manager,
            reloads: OrderedMutex::default(),
            draining: AtomicBool::new(false),
            drain_began: Notify::new(),
            drained: Notify::new(),
            state_check: StateCheck::of(state),
            heartbeat: Heartbeat::default(),
        })
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connection_slots.count()
    }

    /// Current settings.
    pub fn settings(&self) -> Settings {
        *self.settings.borrow()
    }

    /// Changes settings, all or none; returns the new settings.
    pub fn change_settings(
        &self,
        change: &HashMap<String, String>,
    ) -> Result<HashMap<String, String>, ConfigError> {
        let mut pairs: Vec<_> = change.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        pairs.sort_unstable();
        self.modify_settings(|settings| {
            pairs.iter().try_for_each(|(name, value)| settings.set(name, value))
        })?;
        Ok(self.settings().values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Checks that settings of the configuration can be put in force.
    pub(super) fn check_settings(&self, given: &[(&'static str, String)]) -> Result<(), ConfigError> {
        let mut wanted = self.settings();
        wanted.give(given)?;
        wanted.check()
    }

    /// Puts settings of the configuration in force.
    pub(super) fn give_settings(&self, given: &[(&'static str, String)]) -> Result<(), ConfigError> {
        self.modify_settings(|settings| settings.give(given))
    }

    /// Changes settings, all or none.
    fn modify_settings(
        &self,
        change: impl FnOnce(&mut Settings) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut outcome = Ok(());
        let changed = self.settings.send_if_modified(|settings| {
            let mut wanted = *settings;
            outcome = change(&mut wanted).and_then(|()| wanted.check());
            let news = outcome.is_ok() && wanted != *settings;
            if news {
                *settings = wanted;
            }
            news
        });
        outcome?;
        if changed {
            log::set_level(self.settings().log);
            tracing::info!("settings are now {:?}", self.settings().values());
            self.devices.iter().for_each(|device| device.reconfigure());
        }
        Ok(())
    }

    /// A name for an arena, never used twice. The client sees the name, which reveals nothing about other
    /// clients.
    pub fn next_arena(&self) -> u64 {
        loop {
            let id = self.arenas.next();
            if ![STAGING_ARENA.get(), DISCARD.get()].contains(&id) {
                return id;
            }
        }
    }

    /// No further call names an arena: workers forget it.
    pub fn forget_arena(&self, arena: &Arena) {
        arena.close();
        self.devices.iter().for_each(|device| device.close_arena(arena.id));
    }

    /// True if invocations are refused because the supervisor is about to end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Returns once invocations are refused.
    pub async fn wait_draining(&self) {
        // Made before the look: a drain that begins in between is noticed.
        let began = self.drain_began.notified();
        if !self.is_draining() {
            began.await;
        }
    }

    /// Refuses new invocations and returns when all accepted ones are answered.
    pub async fn drain(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            let calls = self.registry.tenants.ledger().accepted();
            tracing::info!("draining: {calls} calls are waited for; a second signal ends at once");
            self.service_manager.stopping();
            self.drain_began.notify_waiters();
        }
        self.sessions.drain(self.settings().session_grace).await;
        let busy =
            || self.registry.tenants.ledger().accepted() > 0 || self.devices.iter().any(|d| d.load() > 0);
        while busy() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        // Who reads slowly gets what is left, too.
        let until = Instant::now() + LAST_ANSWERS;
        while replies::unread() > 0 && Instant::now() < until {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }

    /// Ends all connections.
    pub fn disconnect(&self) {
        let all = self.connection_slots.all();
        all.iter().filter_map(|entry| entry.replies.upgrade()).for_each(|replies| replies.close());
    }

    /// Lets the supervisor end; called when it is drained.
    pub fn end(&self) {
        self.drained.notify_one();
    }

    /// Returns once the supervisor may end.
    pub async fn wait_drained(&self) {
        self.drained.notified().await;
    }

    /// Gives memory back to the system where tenants held much of it and do not any more.
    pub async fn run_trims(self: Arc<Self>) {
        let held = || {
            let ledger = self.registry.tenants.ledger();
            [Limit::RequestBytes, Limit::AnswerBytes, Limit::PlanBytes]
                .map(|limit| ledger.used(limit))
                .iter()
                .sum()
        };
        let mut most: u64 = 0;
        loop {
            tokio::time::sleep(TRIM_PERIOD).await;
            most = most.max(held());
            if most.saturating_sub(held()) > TRIM_BYTES {
                // It waits for the allocator's locks: not on a thread for sockets.
                let _ = tokio::task::spawn_blocking(pappus_shmem::heap::trim).await;
                most = held();
            }
        }
    }
}
