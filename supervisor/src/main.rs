//! `pappus-supervisor`: parses, builds, runs, maps errors to exit codes.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use nix::sys::signal::SigSet;
use pappus_supervisor::config::{Config, ConfigError, Flags};
use pappus_supervisor::limits::{MAX_BLOCKING_THREADS, socket_threads};
use pappus_supervisor::log::Format;
use pappus_supervisor::run::run;
use pappus_supervisor::service_manager::ServiceManager;
use pappus_supervisor::{list_devices, log};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How long a thread without work stays. Work wakes the one that is idle longest, so that a few requests in a second keep
/// as many threads as come in this time.
const IDLE_THREADS: Duration = Duration::from_millis(100);
/// How long the process has after a second signal to end by itself.
const LAST_MOMENT: Duration = Duration::from_millis(700);

fn main() -> ExitCode {
    pappus_shmem::heap::keep_little();
    let flags = Flags::parse();
    if flags.man || flags.completions.is_some() {
        return describe(flags.completions);
    }
    let wanted = std::env::var("PAPPUS_LOG").unwrap_or_else(|_| "info".to_owned());
    let Ok(level) = wanted.parse::<tracing::Level>() else {
        eprintln!("error: PAPPUS_LOG = {wanted:?}: expected error, warn, info, debug or trace");
        return ExitCode::from(2);
    };
    let format = match std::env::var("PAPPUS_LOG_FORMAT").as_deref() {
        Ok("json") => Format::Json,
        Ok("text") | Err(_) => Format::Text,
        Ok(other) => {
            eprintln!("error: PAPPUS_LOG_FORMAT = {other:?}: expected text or json");
            return ExitCode::from(2);
        }
    };
    log::begin(level, format);
    if flags.list_devices {
        return list_devices(flags.json);
    }
    if flags.check {
        return check(flags);
    }
    let manager = match ServiceManager::from_environment() {
        Ok(manager) => manager,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut config = match Config::resolve(flags) {
        Ok(config) => config,
        Err(e) => return wrong(&e),
    };
    config.settings.log = level;
    match start(config, manager) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Says everything that is wrong with flags and file, a line each.
fn wrong(error: &ConfigError) -> ExitCode {
    error.to_string().lines().for_each(|line| eprintln!("error: {line}"));
    ExitCode::from(2)
}

/// Judges flags and file: nothing is opened, started or looked for.
fn check(flags: Flags) -> ExitCode {
    let config = match Config::resolve(flags) {
        Ok(config) => config,
        Err(e) => return wrong(&e),
    };
    let devices: Vec<_> = config.devices.iter().map(|device| device.text.as_str()).collect();
    let devices =
        if devices.is_empty() { "every GPU there is, else cpu".to_owned() } else { devices.join(" ") };
    let said = format!(
        "the configuration is right\n  socket     {}\n  admin      {}\n  state-dir  {}\n  devices    {devices}\n  tenants    {} \
         named, others {}\n",
        config.socket.display(),
        config.admin_socket.display(),
        config.state_dir.display(),
        config.tenants.tenants.len(),
        if config.tenants.accept_unknown { "accepted by their uid" } else { "refused" },
    );
    match std::io::stdout().write_all(said.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints a completion script, or the manual page.
fn describe(shell: Option<Shell>) -> ExitCode {
    let mut command = Flags::command();
    // The generators panic where they cannot write; a pipe may close at any time.
    let mut text = Vec::new();
    match shell {
        Some(shell) => clap_complete::generate(shell, &mut command, "pappus-supervisor", &mut text),
        None => {
            let page = Man::new(command).section("8").manual("Pappus");
            // Memory takes everything.
            let _ = page.render(&mut text);
        }
    }
    match std::io::stdout().write_all(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn list_devices(as_json: bool) -> ExitCode {
    let program = pappus_supervisor::processes::launcher::worker_program();
    let listed =
        program.and_then(|program| list_devices::run(&program, as_json, &mut std::io::stdout().lock()));
    match listed {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the list closed its end, having seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config, manager: ServiceManager) -> Result<(), Box<dyn std::error::Error>> {
    raise_descriptor_limit();
    // Signals must end the supervisor, even if its parent blocked them, which children inherit.
    SigSet::empty().thread_set_mask()?;
    let mut own_sockets = vec![config.admin_socket.clone()];
    // What a service manager listens on outlives this process.
    own_sockets.extend((!manager.has_clients()).then(|| config.socket.clone()));
    let (first, second) = hear_signals(own_sockets)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(socket_threads())
        .thread_keep_alive(IDLE_THREADS)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run(config, manager, heard(first), heard(second)));
    // What is still busy with a module, a blob or a client's descriptor ends with the process.
    runtime.shutdown_background();
    Ok(ended?)
}

/// Two signals to end. They are heard on a thread of their own, which nothing keeps busy: a moment after the second one
/// the process ends, also where threads are stuck. Its workers and compilers end with it, as if it were killed.
fn hear_signals(sockets: Vec<PathBuf>) -> std::io::Result<(oneshot::Receiver<()>, oneshot::Receiver<()>)> {
    let ((drain, first), (abort, second)) = (oneshot::channel(), oneshot::channel());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Termination::new()?
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(signals.next());
        let _ = drain.send(());
        runtime.block_on(signals.next());
        let _ = abort.send(());
        // The process ends meanwhile, if it can.
        runtime.block_on(async { tokio::time::sleep(LAST_MOMENT).await });
        // Nothing is logged here: the reader of the log may be what is stuck.
        sockets.iter().for_each(|socket| drop(std::fs::remove_file(socket)));
        std::process::exit(0);
    })?;
    Ok((first, second))
}

async fn heard(signal: oneshot::Receiver<()>) {
    if signal.await.is_err() {
        // Its thread panicked: no signal comes any more.
        std::future::pending().await
    }
}

/// SIGTERM and SIGINT alike.
struct Termination(Signal, Signal);

impl Termination {
    fn new() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

/// Every connection, arena and worker takes descriptors; the soft limit is meant for `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
