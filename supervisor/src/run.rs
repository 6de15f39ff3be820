//! The supervisor put together: opened, started, run until it is drained.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Config;
use crate::device::{Device, process, thread};
use crate::metrics;
use crate::registry::Registry;
use crate::registry::compile::Compiler;
use crate::registry::state::StateDir;
use crate::server::{Server, listen};

/// Why the supervisor could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] crate::registry::state::StateError),
    /// Sockets, workers, threads.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The metrics endpoint.
    #[error("cannot serve metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// Runs until drained. `shutdown` asks for that; an `abort` after it ends at once.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()>,
    abort: impl Future<Output = ()>,
) -> Result<(), RunError> {
    // The lock on the state directory decides who is the supervisor, before anything else is touched.
    let state = StateDir::open(&config.state_dir)?;
    let program = process::worker_program()?;
    if let Some(address) = config.metrics {
        metrics::serve(address)?;
    }
    let (settings, watched) = watch::channel(config.settings);
    let (fingerprint_in, fingerprint) = watch::channel(None);
    let target =
        process::Target { kind: pappus_protocol::Kind::Cpu, uuid: String::new(), lanes: 1, numa_node: None };
    let compiler = Compiler { program: program.clone(), target };
    let registry = Arc::new(Registry::open(state, compiler, fingerprint)?);

    let mut devices = Vec::new();
    let mut threads = Vec::new();
    for device in config.devices {
        let device = Arc::new(Device::new(device, watched.clone(), fingerprint_in.clone())?);
        device.serve(registry.clone());
        threads.extend(thread::spawn(&device, &program)?);
        devices.push(device);
    }
    let server = Server::new(registry, devices, settings);
    let clients = listen::bind(&config.socket, 0o666)?;
    let admins = listen::bind(&config.admin_socket, 0o600)?;
    tracing::info!(socket = %config.socket.display(), "listening");

    for device in &server.devices {
        let device = device.clone();
        tokio::spawn(async move { device.run_clock().await });
    }
    let accepting = [
        tokio::spawn(server.clone().accept(clients, false)),
        tokio::spawn(server.clone().accept(admins, true)),
    ];
    let drain = async {
        tokio::select! {
            () = shutdown => server.drain().await,
            () = server.wait_drained() => {}
        }
    };
    tokio::select! {
        () = drain => tracing::info!("drained"),
        () = abort => tracing::warn!("ending at once: calls in flight get no answer"),
        () = server.run_gauges(), if config.metrics.is_some() => {}
    }
    accepting.iter().for_each(|task| task.abort());
    // The last answers are on their way to the sockets already; now nobody can come any more.
    let _ = std::fs::remove_file(&config.socket);
    let _ = std::fs::remove_file(&config.admin_socket);
    server.devices.iter().for_each(|device| device.close());
    let joined = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join())));
    let _ = joined.await;
    Ok(())
}
