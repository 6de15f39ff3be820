//! The Prometheus endpoint: `GET /metrics` and nothing else. One request per connection, few connections, small
//! headers, little time: idle connections block the endpoint for seconds at most.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{BUCKETS, describe};

/// Connections that are served at the same time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 16;
/// From a connection's beginning to its end, also where the peer sends or reads slowly.
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
pub enum MetricsError {
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

/// Serves the metrics; must run inside the runtime and before any handle is made.
pub fn serve(address: SocketAddr) -> Result<(), MetricsError> {
    let listener = listen(address).map_err(|source| MetricsError::Listen { address, source })?;
    let handle = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    describe();
    tokio::spawn(keep_up(handle.clone()));
    tokio::spawn(accept(listener, handle));
    Ok(())
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

async fn accept(listener: TcpListener, handle: PrometheusHandle) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    // One that takes too long is cut off; a client that breaks HTTP is its own problem.
                    let _ = tokio::time::timeout(MAX_TIME, connection(stream, handle)).await;
                    drop(place);
                });
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection for metrics: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, handle: PrometheusHandle) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let answer = answer(&request, &handle);
        async { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, handle: &PrometheusHandle) -> Response<String> {
    let (status, text) = match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => (StatusCode::OK, handle.render()),
        ("/metrics", _) => (StatusCode::METHOD_NOT_ALLOWED, "GET it\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "there is /metrics and nothing else\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
