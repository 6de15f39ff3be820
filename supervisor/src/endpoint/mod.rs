//! The HTTP endpoint of operators: `GET /metrics` for Prometheus, `/healthz` and `/readyz` for an orchestrator, and nothing
//! else. One request per connection, few connections of each peer, small headers, little time: who holds connections open
//! has them closed, and keeps no other peer from an answer. It answers from before devices are looked for.
//!
//! - [`process`]: what the process itself takes.

mod process;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::metrics;
use crate::server::Server;
use crate::server::health::NotReady;

/// Connections that are served at the same time, of all peers and of one address; more are closed.
const MAX_CONNECTIONS: usize = 128;
const MAX_OF_ONE: usize = 16;
/// From a connection's beginning to the end of its request; to its own end, also where the peer reads slowly.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(1);
const MAX_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request that are kept, the least that hyper allows.
const MAX_REQUEST_BYTES: usize = 8192;
/// Header lines of a request.
const MAX_HEADERS: usize = 32;
/// How often recorded latencies are put into their buckets where nothing scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The text format's own.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be listened on.
    #[error(
        "cannot serve metrics on {address}: {source}; stop what listens there, or give another --metrics IP:PORT"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The recorder cannot be made or installed.
    #[error("cannot record metrics: {0}")]
    Recorder(#[from] BuildError),
}

/// What it answers from.
#[derive(Debug, Clone)]
pub struct Endpoint {
    recorder: PrometheusHandle,
    /// Once there is one.
    server: Arc<OnceLock<Arc<Server>>>,
}

/// Answers; must run inside the runtime and before any handle of a metric is made.
pub fn serve(address: SocketAddr) -> Result<Endpoint, EndpointError> {
    let listener = listen(address).map_err(|source| EndpointError::Listen { address, source })?;
    let recorder = PrometheusBuilder::new().set_buckets(&metrics::BUCKETS)?.install_recorder()?;
    metrics::describe();
    process::describe();
    tokio::spawn(keep_up(recorder.clone()));
    let endpoint = Endpoint { recorder, server: Arc::default() };
    tokio::spawn(accept(listener, endpoint.clone()));
    Ok(endpoint)
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn keep_up(handle: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        handle.run_upkeep();
    }
}

async fn accept(listener: TcpListener, endpoint: Endpoint) {
    // Each ends with its peer's address.
    let mut served = JoinSet::new();
    let mut peers: Vec<IpAddr> = Vec::new();
    loop {
        let accepted = tokio::select! {
            Some(ended) = served.join_next() => {
                // None panics.
                if let Some(at) = ended.ok().and_then(|ended| peers.iter().position(|peer| *peer == ended)) {
                    peers.swap_remove(at);
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let peer = peer.ip();
                let of_one = peers.iter().filter(|there| **there == peer).count();
                if peers.len() < MAX_CONNECTIONS && of_one < MAX_OF_ONE {
                    let endpoint = endpoint.clone();
                    peers.push(peer);
                    served.spawn(async move {
                        // One that takes too long is cut off; a client that breaks HTTP is its own problem.
                        let _ = tokio::time::timeout(MAX_TIME, connection(stream, endpoint)).await;
                        peer
                    });
                }
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection for metrics: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, endpoint: Endpoint) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let endpoint = endpoint.clone();
        async move { Ok::<_, Infallible>(endpoint.answer(&request).await) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_REQUEST_TIME)
        .max_buf_size(MAX_REQUEST_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

impl Endpoint {
    /// From now on this is the supervisor that it tells about.
    pub fn tells_about(&self, server: &Arc<Server>) {
        // Said once.
        let _ = self.server.set(server.clone());
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let (status, text) = match request.uri().path() {
            "/metrics" | "/healthz" | "/readyz" if !is_read => {
                (StatusCode::METHOD_NOT_ALLOWED, "GET it\n".to_owned())
            }
            "/metrics" => (StatusCode::OK, self.metrics().await),
            "/healthz" => self.health(),
            "/readyz" => readiness(&self.why_not_ready().await),
            _ => (
                StatusCode::NOT_FOUND,
                "there are /metrics, /healthz and /readyz and nothing else\n".to_owned(),
            ),
        };
        let mut response = Response::new(text);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }

    async fn metrics(&self) -> String {
        let reasons = self.why_not_ready().await;
        let holds = |name: &'static str| (name, reasons.iter().any(|reason| reason.name() == name));
        metrics::ready(NotReady::NAMES.into_iter().map(holds));
        process::export();
        self.recorder.render()
    }

    async fn why_not_ready(&self) -> Vec<NotReady> {
        match self.server.get() {
            Some(server) => server.why_not_ready().await,
            None => vec![NotReady::Starting],
        }
    }

    fn health(&self) -> (StatusCode, String) {
        match self.server.get().and_then(|server| server.stuck_for()) {
            None => (StatusCode::OK, "alive\n".to_owned()),
            Some(silence) => {
                let text = format!("nothing has been decided for {} s: start it again\n", silence.as_secs());
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        }
    }
}

/// Every reason in a line of its own.
fn readiness(reasons: &[NotReady]) -> (StatusCode, String) {
    match reasons {
        [] => (StatusCode::OK, "ready\n".to_owned()),
        reasons => {
            let text = reasons.iter().map(|reason| format!("{reason}\n")).collect();
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_line() {
        assert_eq!(readiness(&[]), (StatusCode::OK, "ready\n".to_owned()));
        let (status, text) = readiness(&[NotReady::Starting, NotReady::State("it is full".to_owned())]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("starting: ") && lines[1].ends_with("it is full"), "{text}");
    }
}
