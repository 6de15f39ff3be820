//! The supervisor put together: opened, started, run until it is drained.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::config::{Config, ConfigError, DeviceConfig, DeviceRequest};
use crate::device::Device;
use crate::endpoint::{self, EndpointError};
use crate::processes::confinement::Confinement;
use crate::processes::launcher::{self, Launcher};
use crate::processes::meter::Meter;
use crate::processes::subreaper;
use crate::processes::survey::{self, SurveyError};
use crate::registry::{DeviceClass, Registry};
use crate::server::listen::Listener;
use crate::server::state::Doors;
use crate::server::{Server, listen};
use crate::service_manager::ServiceManager;
use crate::store::StateDir;
use crate::tenants::ledger::TooFewDescriptors;
use crate::tenants::{Machine, Tenants};

/// How long worker processes may take to be gone once everything is answered.
const JOIN_DRAINED: Duration = Duration::from_secs(5);
/// The same after a second signal.
const JOIN_ABORTED: Duration = Duration::from_millis(300);

/// How soon it is looked again whether calls can be made, at first and at most.
const READY_POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Why the supervisor could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] crate::store::StateError),
    /// Sockets, workers, threads.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A device that was asked for cannot be had.
    #[error(transparent)]
    Device(#[from] ConfigError),
    /// Too few descriptors.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The endpoint of operators.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The host does not permit what the configuration demands, or a survey of its devices failed.
    #[error(transparent)]
    Sandbox(#[from] SurveyError),
}

/// Runs until drained. `shutdown` asks for that; an `abort` after it ends at once.
pub async fn run(
    config: Config,
    mut manager: ServiceManager,
    shutdown: impl Future<Output = ()>,
    abort: impl Future<Output = ()>,
) -> Result<(), RunError> {
    // Before anything is opened: what lacks them fails in ways that say less.
    Machine::here(0).check_descriptors()?;
    // The lock on the state directory decides who is the supervisor, before anything else is touched.
    let state = Arc::new(StateDir::open(&config.state_dir)?);
    // From now on it does not end the process.
    let hangup = signal(SignalKind::hangup())?;
    let program = launcher::worker_program()?;
    let launcher = Arc::new(Launcher::new(program, Confinement::decide(config.sandbox))?);
    tokio::spawn(subreaper::reap_strays());
    let endpoint = config.metrics.map(endpoint::serve).transpose()?;
    let (settings, watched) = watch::channel(config.settings);
    let (targets_in, targets) = watch::channel(Vec::new());
    let found = find_devices(&launcher, config.devices.clone()).await?;
    let machine =
        Machine::here(found.iter().map(|device| device.workers + device.standbys).sum::<usize>() as u64);
    if let Some(too_little) = machine.check_descriptors()? {
        tracing::warn!("descriptors are few: {too_little}");
    }
    try_sandbox(&launcher, &found).await?;
    let classes = DeviceClass::of(&found, &launcher);
    let tenants = Arc::new(Tenants::new(config.tenants.clone(), state.names().clone(), machine));
    let registry = Arc::new(Registry::open(state.clone(), tenants, classes, targets)?);
    registry.tenants.keep_out(launcher.confinement().worker_uids());

    // Before any worker starts: a path that cannot be had ends the start at once.
    let clients = match manager.take_clients(&config.socket)? {
        Some(given) => Listener::kept(given, &config.socket)?,
        None => Listener::own(&config.socket, 0o666, &state)?,
    };
    let admins = Listener::own(&config.admin_socket, 0o600, &state)?;
    let sockets = vec![clients.file(), admins.file()];
    let mut devices = Vec::new();
    for device in found {
        let device = Arc::new(Device::new(device, watched.clone(), targets_in.clone(), state.clone())?);
        registry.charge(&device.config.name, &device.processes);
        device.start(&launcher)?;
        devices.push(device);
    }
    tokio::spawn(registry.clone().run_evictions());
    tracing::info!(socket = %config.socket.display(), "listening");
    let doors = Doors { sockets: sockets.clone(), service_manager: manager };
    let server = Server::new(registry, devices, state, settings, doors, config);
    let meters = Meter::all(&launcher, server.devices.iter().map(|device| &*device.config));
    if let Some(endpoint) = &endpoint {
        endpoint.tells_about(&server, &meters);
    }
    tokio::spawn(server.clone().run_trims());
    tokio::spawn(server.clone().run_moves());
    tokio::spawn(server.clone().run_idle_sessions());

    for device in &server.devices {
        let device = device.clone();
        tokio::spawn(async move { device.run_clock().await });
    }
    let accepting = [
        tokio::spawn(listen::accept(server.clone(), clients, false)),
        tokio::spawn(listen::accept(server.clone(), admins, true)),
    ];
    tokio::spawn(keep_told(server.clone()));
    let reloading = tokio::spawn(reload_on_hangup(server.clone(), hangup));
    let drain = async {
        tokio::select! {
            () = shutdown => server.drain().await,
            () = server.wait_drained() => {}
        }
    };
    let patience = tokio::select! {
        () = drain => {
            tracing::info!("drained");
            JOIN_DRAINED
        }
        () = abort => {
            tracing::warn!("ending at once: calls in flight get no answer");
            JOIN_ABORTED
        }
        () = server.run_gauges(), if endpoint.is_some() => JOIN_DRAINED,
    };
    accepting.iter().for_each(|task| task.abort());
    reloading.abort();
    // The last answers are on their way to the sockets already; no further client can connect. Clients see the end also where
    // a thread that hangs keeps this process, and the sockets with it.
    server.disconnect();
    sockets.iter().for_each(|socket| socket.remove());
    server.devices.iter().for_each(|device| device.close());
    let threads = server.devices.iter().flat_map(|device| device.take_threads());
    let threads = threads.chain(meters.iter().filter_map(|meter| meter.close())).collect();
    if !join_within(threads, patience).await {
        tracing::warn!("not all worker processes are gone: the kernel ends them with this one");
    }
    launcher.confinement().close();
    Ok(())
}

/// Waits for threads, at most this long; true if they ended.
async fn join_within(threads: Vec<JoinHandle<()>>, patience: Duration) -> bool {
    let (joined, all_joined) = oneshot::channel();
    // A thread of its own: those of the runtime may all be busy.
    let joining = std::thread::Builder::new().name("joining".to_owned()).spawn(move || {
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = joined.send(());
    });
    joining.is_ok() && matches!(tokio::time::timeout(patience, all_joined).await, Ok(Ok(())))
}

/// Tells the service manager that calls can be made, and then, as often as it asked for, that the supervisor works: socket
/// threads run, and the schedulers' locks can be had.
async fn keep_told(server: Arc<Server>) {
    if !server.service_manager.listens() {
        return;
    }
    let [mut pause, longest] = READY_POLL;
    while !server.is_ready() && !server.is_draining() {
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    if !server.is_draining() {
        server.service_manager.ready();
    }
    let Some(period) = server.service_manager.wants_to_hear_every() else { return };
    loop {
        server.devices.iter().for_each(|device| drop(device.status()));
        server.service_manager.alive();
        tokio::time::sleep(period).await;
    }
}

/// SIGHUP reads the configuration again; what is wrong is logged.
async fn reload_on_hangup(server: Arc<Server>, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        let server = server.clone();
        if let Ok(Err(why)) = tokio::task::spawn_blocking(move || server.reload()).await {
            tracing::warn!("SIGHUP: {why}");
        }
    }
}

/// Finds the devices to run on, and says what they are.
async fn find_devices(
    launcher: &Arc<Launcher>,
    requests: Vec<DeviceRequest>,
) -> Result<Vec<DeviceConfig>, RunError> {
    let launcher = launcher.clone();
    let found = tokio::task::spawn_blocking(move || survey::devices(&launcher, &requests)).await;
    let found = found.map_err(std::io::Error::other)??;
    for device in &found {
        let (name, description, workers) = (&device.name, &device.description, device.workers);
        tracing::info!(workers, lanes = device.lanes, turns = device.turns, "device {name}: {description}");
    }
    Ok(found)
}

/// Fails where workers of these devices would lack a layer that the configuration requires.
async fn try_sandbox(launcher: &Arc<Launcher>, devices: &[DeviceConfig]) -> Result<(), RunError> {
    let launcher = launcher.clone();
    let mut kinds: Vec<_> = devices.iter().map(|device| device.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let tried = tokio::task::spawn_blocking(move || survey::try_sandbox(&launcher, &kinds)).await;
    Ok(tried.map_err(std::io::Error::other)??)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_is_stuck_is_not_waited_for() {
        let (release, released) = mpsc::channel::<()>();
        // Ends when the sender is dropped.
        let stuck = || {
            std::thread::spawn(move || {
                let _ = released.recv();
            })
        };
        assert!(!join_within(vec![stuck()], Duration::from_millis(10)).await);
        drop(release);
        assert!(join_within(vec![std::thread::spawn(|| ())], Duration::from_secs(60)).await);
    }
}
