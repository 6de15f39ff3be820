//! `pappus-gateway`: parses, builds, runs, maps errors to exit codes.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use pappus_gateway::arguments::Arguments;
use pappus_gateway::callers::Callers;
use pappus_gateway::jwt::{Jwt, JwtError};
use pappus_gateway::log;
use pappus_gateway::run::{Listeners, Setup, listen, run};
use pappus_gateway::tls::{Tls, TlsError, TlsFiles};
use pappus_gateway::traces::Traces;
use pappus_gateway::upstream::Upstream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.man || arguments.completions.is_some() {
        return describe(arguments.completions);
    }
    let wanted = std::env::var("PAPPUS_LOG").unwrap_or_else(|_| "info".to_owned());
    let Ok(level) = wanted.parse::<tracing::Level>() else {
        eprintln!("error: PAPPUS_LOG = {wanted:?}: expected error, warn, info, debug or trace");
        return ExitCode::from(2);
    };
    let is_json = match std::env::var("PAPPUS_LOG_FORMAT").as_deref() {
        Ok("json") => true,
        Ok("text") | Err(_) => false,
        Ok(other) => {
            eprintln!("error: PAPPUS_LOG_FORMAT = {other:?}: expected text or json");
            return ExitCode::from(2);
        }
    };
    log::begin(level, is_json);
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a completion script, or the manual page.
fn describe(shell: Option<Shell>) -> ExitCode {
    let mut command = Arguments::command();
    // The generators panic where they cannot write; a pipe may close at any time.
    let mut text = Vec::new();
    match shell {
        Some(shell) => clap_complete::generate(shell, &mut command, "pappus-gateway", &mut text),
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

/// Why the gateway does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    #[error("cannot take signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Jwt(#[from] JwtError),
    #[error(
        "cannot send traces to {0}: {1}; --otlp takes the URL of a collector, such as http://localhost:4317"
    )]
    Traces(String, opentelemetry_otlp::ExporterBuildError),
    #[error("cannot listen on {0}: {1}; another address goes with {2}")]
    Listen(std::net::SocketAddr, std::io::Error, &'static str),
}

fn start(arguments: &Arguments) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("gateway")
        .build()
        .map_err(StartError::Threads)?;
    runtime.block_on(async {
        let http =
            listen(arguments.http).map_err(|error| StartError::Listen(arguments.http, error, "--http"))?;
        let grpc =
            listen(arguments.grpc).map_err(|error| StartError::Listen(arguments.grpc, error, "--grpc"))?;
        let metrics = arguments
            .metrics
            .map(|address| listen(address).map_err(|error| StartError::Listen(address, error, "--metrics")));
        let metrics = metrics.transpose()?;
        let traces = match &arguments.otlp {
            Some(url) => Traces::to(url).map_err(|why| StartError::Traces(url.clone(), why))?,
            None => Traces::default(),
        };
        let tls = tls(arguments)?;
        let jwt = arguments.jwt().map(Jwt::load).transpose()?;
        let mut ends = Ends::new().map_err(StartError::Signals)?;
        for (protocol, listener) in [("HTTP", &http), ("gRPC", &grpc)] {
            if let Ok(address) = listener.local_addr() {
                tracing::info!("serving {protocol} on {address}");
            }
        }
        let upstream =
            Upstream::new(arguments.socket.clone().unwrap_or_default(), arguments.connections.into());
        let callers = Callers::new(upstream, arguments.own_tenant, arguments.shared_memory, jwt, traces);
        let bytes = |size: bytesize::ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        let setup = Setup {
            callers: callers.clone(),
            max_body: bytes(arguments.max_body),
            memory: bytes(arguments.memory),
            tls: tls.clone(),
        };
        let mut again = signal(SignalKind::hangup()).map_err(StartError::Signals)?;
        let reloads = async {
            while again.recv().await.is_some() {
                match tls.iter().flatten().try_for_each(|one| one.reload()) {
                    Ok(()) => tracing::info!("certificates read again"),
                    Err(error) => tracing::error!("certificates stay as they were: {error}"),
                }
                match callers.reload() {
                    Ok(()) => tracing::info!("keys and tokens read again"),
                    Err(error) => tracing::error!("keys and tokens stay as they were: {error}"),
                }
            }
        };
        let (tell, told) = oneshot::channel();
        let signals = async {
            ends.next().await;
            tracing::info!("ending: requests that were accepted are answered; a second signal ends at once");
            let _ = tell.send(());
            ends.next().await;
        };
        tokio::select! {
            () = run(Listeners { http, grpc, metrics }, setup, async { drop(told.await) }) => {}
            () = signals => {}
            () = reloads => {}
        }
        // It waits for the collector, on a thread that may wait.
        let _ = tokio::task::spawn_blocking(move || callers.traces.end()).await;
        Ok(())
    })
}

/// TLS for HTTP and for gRPC, if it is asked for.
fn tls(arguments: &Arguments) -> Result<Option<[Arc<Tls>; 2]>, TlsError> {
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else { return Ok(None) };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_roots: arguments.client_ca.clone(),
    };
    let http = Tls::load(files.clone(), b"http/1.1")?;
    Ok(Some([Arc::new(http), Arc::new(Tls::load(files, b"h2")?)]))
}

/// The signals that end the program.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
