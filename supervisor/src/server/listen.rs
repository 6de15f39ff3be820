//! The two sockets: binding, accepting, draining.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};

use super::connection;
use super::connection_slots::{ConnectionSlots, SlotOwner};
use super::handshake::{self, Arrival};
use super::reader::BusyPolling;
use super::replies;
use super::slow_work::SlowWork;
use crate::config::{ConfigError, Settings};
use crate::device::Device;
use crate::metrics::SocketMetrics;
use crate::registry::Registry;
use crate::router::Router;

/// How often draining looks whether everything is answered.
const DRAIN_POLL: Duration = Duration::from_millis(5);
/// How long clients have to read the last answers before the supervisor ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all connections share.
#[derive(Debug)]
pub struct Server {
    /// What is registered.
    pub registry: Arc<Registry>,
    /// Where calls run.
    pub devices: Vec<Arc<Device>>,
    /// Chooses one of them for a call.
    pub router: Router,
    /// When the supervisor started.
    pub started: Instant,
    /// Counters of the sockets.
    pub metrics: SocketMetrics,
    /// Who is connected.
    pub connection_slots: Arc<ConnectionSlots>,
    /// Connections that are read from without sleeping.
    pub polling: Arc<BusyPolling>,
    /// Where the tenants are configured.
    pub(super) config_file: Option<PathBuf>,
    /// Permits for slow work.
    pub slow_work: SlowWork,
    settings: watch::Sender<Settings>,
    arenas: AtomicU64,
    draining: AtomicBool,
    drained: Notify,
}

/// Logs that a connection was refused, at most once a second: whoever is refused may come again at once.
fn refused(uid: u32, pid: Option<i32>, admin: bool, why: &str) {
    static SAID: Mutex<(Option<Instant>, u64)> = Mutex::new((None, 0));
    let mut said = SAID.lock().unwrap_or_else(|e| e.into_inner());
    said.1 += 1;
    if said.0.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
        let refused = std::mem::take(&mut said.1);
        tracing::warn!(uid, pid, admin, refused, "refusing a connection: {why}");
        said.0 = Some(Instant::now());
    }
}

/// Binds a socket path for whoever may reach its directory. A stale socket is replaced; a path that is
/// something else, or that somebody listens on, is not touched.
pub fn bind(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    let taken =
        |why: &str| std::io::Error::new(std::io::ErrorKind::AddrInUse, format!("{}: {why}", path.display()));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(taken("is there and is no socket")),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(taken("another process listens there: stop it, or give this one another path"));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot listen on {}: {e}", path.display())))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(listener)
}

impl Server {
    /// A server over what is there.
    pub fn new(
        registry: Arc<Registry>,
        devices: Vec<Arc<Device>>,
        settings: watch::Sender<Settings>,
        config_file: Option<PathBuf>,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry,
            router: Router::new(devices.clone()),
            devices,
            settings,
            started: Instant::now(),
            connection_slots: Arc::default(),
            polling: Arc::default(),
            slow_work: SlowWork::default(),
            config_file,
            metrics: SocketMetrics::new(),
            arenas: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            drained: Notify::new(),
        })
    }

    /// Accepts connections until dropped.
    pub async fn accept(self: Arc<Self>, listener: UnixListener, admin: bool) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.clone().admit(stream, admin);
                    // Those who are here already go first: many of a flood leave at once, and with them
                    // their places.
                    tokio::task::yield_now().await;
                }
                Err(e) => {
                    tracing::warn!("cannot accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(self: Arc<Self>, stream: UnixStream, admin: bool) {
        let Ok(peer) = stream.peer_cred() else { return };
        let uid = peer.uid();
        let standing = match self.registry.tenants.judge(uid, admin) {
            Ok(standing) => standing,
            Err(why) => {
                refused(uid, peer.pid(), admin, &why.to_string());
                return handshake::turn_away(&stream, why);
            }
        };
        let owner = match &standing.tenant {
            _ if admin => None,
            Some(account) => Some(SlotOwner::Tenant(account.tenant)),
            None => Some(SlotOwner::Gateway(uid)),
        };
        let Some(slot) = self.connection_slots.admit(uid, owner) else {
            refused(uid, peer.pid(), admin, "there are too many");
            return;
        };
        let Ok(socket) = stream.into_std() else { return };
        self.metrics.connections.increment(1);
        tokio::spawn(async move {
            let arrival = Arrival { uid, standing, admin, slot };
            if let Err(e) = connection::serve(self, socket.into(), arrival).await {
                tracing::warn!(uid, "cannot serve a connection: {e}");
            }
        });
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connection_slots.count()
    }

    /// Current settings.
    pub fn settings(&self) -> Settings {
        *self.settings.borrow()
    }

    /// Changes settings, all or none; returns what they are now.
    pub fn change_settings(
        &self,
        change: &HashMap<String, String>,
    ) -> Result<HashMap<String, String>, ConfigError> {
        let mut outcome = Ok(());
        let changed = self.settings.send_if_modified(|settings| {
            let mut wanted = *settings;
            outcome = change
                .iter()
                .try_for_each(|(name, value)| wanted.set(name, value))
                .and_then(|()| wanted.check());
            let news = outcome.is_ok() && wanted != *settings;
            if news {
                *settings = wanted;
            }
            news
        });
        outcome?;
        if changed {
            tracing::info!(?change, "settings changed");
            self.devices.iter().for_each(|device| device.reconfigure());
        }
        Ok(self.settings().values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// A name for an arena, never used twice.
    pub fn next_arena(&self) -> u64 {
        self.arenas.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether invocations are refused because the supervisor is about to end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Refuses new invocations and returns when all accepted ones are answered.
    pub async fn drain(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            tracing::info!("draining");
        }
        let busy = || self.registry.tenants.accepted() > 0 || self.devices.iter().any(|d| d.load() > 0);
        while busy() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        // Who reads slowly gets what is left, too.
        let until = Instant::now() + LAST_ANSWERS;
        while replies::unread() > 0 && Instant::now() < until {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }

    /// Lets the supervisor end; called when it is drained.
    pub fn end(&self) {
        self.drained.notify_one();
    }

    /// Returns once the supervisor may end.
    pub async fn wait_drained(&self) {
        self.drained.notified().await;
    }

    /// Exports what changes without an event of its own.
    pub async fn run_gauges(&self) {
        loop {
            for device in &self.devices {
                let status = device.status();
                device.metrics.queued.set(status.queued as f64);
                device.metrics.running.set(status.running as f64);
                let (quarantined, budgets) = device.refusals();
                device.metrics.quarantined.set(quarantined.len() as f64);
                let spent = budgets.iter().filter(|budget| budget.left == 0).count();
                device.metrics.spent_budgets.set(spent as f64);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
