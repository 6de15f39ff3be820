//! The HTTP endpoint of operators: `GET /metrics` for Prometheus, `/healthz` and `/readyz` for an orchestrator, and nothing
//! else. One request per connection, small headers, little time: who holds connections open has them closed, and keeps no
//! other from an answer. Where all places are taken, the connection that has been there longest makes way for a new one: a
//! peer chooses its addresses, so none has places by its name. It answers from before devices are looked for.
//!
//! - [`acceptor`]: the listening socket.
//! - [`process`]: what the process itself takes.

mod acceptor;
mod process;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use self::acceptor::Acceptor;
use crate::metrics;
use crate::processes::meter::Meter;
use crate::server::Server;
use crate::server::health::NotReady;
use crate::sync::{OrderedMutex, rank};

/// Connections that are served at the same time.
const MAX_CONNECTIONS: usize = 128;
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
    /// The metrics that were written last. They are written by one request at a time: who asks often, or on many connections,
    /// takes no more than one processor.
    written: Arc<Last>,
    /// Once there is one.
    server: Arc<OnceLock<Arc<Server>>>,
    /// What know the readings of its devices.
    meters: Arc<OnceLock<Vec<Arc<Meter>>>>,
}

/// A text that was written last, and when that began.
#[derive(Debug)]
struct Last {
    /// Who has it writes.
    turn: Semaphore,
    text: OrderedMutex<Option<(Instant, String)>, { rank::WRITTEN_METRICS }>,
}

impl Default for Last {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), text: OrderedMutex::default() }
    }
}

impl Last {
    /// The text as it was at this moment or later: as another request wrote it meanwhile, or written now.
    async fn since(&self, asked: Instant, write: impl AsyncFnOnce() -> String) -> String {
        // It is never closed.
        let _turn = self.turn.acquire().await;
        if let Some((_, text)) = self.text.lock().as_ref().filter(|(began, _)| *began >= asked) {
            return text.clone();
        }
        let began = Instant::now();
        let text = write().await;
        *self.text.lock() = Some((began, text.clone()));
        text
    }
}

/// Answers; must run inside the runtime and before any handle of a metric is made.
pub fn serve(address: SocketAddr) -> Result<Endpoint, EndpointError> {
    let listener = Acceptor::listen(address).map_err(|source| EndpointError::Listen { address, source })?;
    let recorder = PrometheusBuilder::new().set_buckets(&metrics::BUCKETS)?.install_recorder()?;
    metrics::describe();
    process::describe();
    tokio::spawn(keep_up(recorder.clone()));
    let endpoint =
        Endpoint { recorder, written: Arc::default(), server: Arc::default(), meters: Arc::default() };
    tokio::spawn(accept(listener, endpoint.clone()));
    Ok(endpoint)
}

async fn keep_up(handle: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        handle.run_upkeep();
    }
}

async fn accept(listener: Acceptor, endpoint: Endpoint) {
    let mut places = Places::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                places.serve(stream, &endpoint);
                // Clients that are here already go first: whoever has asked is answered before a newcomer can take the
                // place.
                tokio::task::yield_now().await;
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection for metrics: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Connections that are served, in the order in which they came.
#[derive(Debug, Default)]
struct Places(VecDeque<AbortHandle>);

impl Places {
    /// Serves a connection, in the place of the one that came first if all are taken.
    fn serve(&mut self, stream: TcpStream, endpoint: &Endpoint) {
        self.0.retain(|served| !served.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            self.0.pop_front().iter().for_each(AbortHandle::abort);
        }
        // One that takes too long is cut off; a client that breaks HTTP is its own problem.
        let served = tokio::time::timeout(MAX_TIME, connection(stream, endpoint.clone()));
        self.0.push_back(tokio::spawn(served).abort_handle());
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
    /// From now on this is the supervisor that it tells about, and these are the meters of the devices.
    pub fn tells_about(&self, server: &Arc<Server>, meters: &[Arc<Meter>]) {
        // Said once.
        let _ = self.server.set(server.clone());
        let _ = self.meters.set(meters.to_vec());
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let (status, text) = match request.uri().path() {
            "/metrics" | "/healthz" | "/readyz" if !is_read => {
                (StatusCode::METHOD_NOT_ALLOWED, "GET it\n".to_owned())
            }
            "/metrics" => (StatusCode::OK, self.written.since(Instant::now(), || self.metrics()).await),
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
        let mut text = self.recorder.render();
        if let Some(server) = self.server.get() {
            metrics::calls::write(server.settings().metrics_of, &mut text);
        }
        let readings: Vec<_> = self.meters.get().into_iter().flatten().flat_map(Meter::scrape).collect();
        metrics::readings::write(&readings, &mut text);
        text
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
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::net::{self, AddressFamily, SocketType};

    use super::*;

    fn endpoint() -> Endpoint {
        let recorder = PrometheusBuilder::new().build_recorder().handle();
        Endpoint { recorder, written: Arc::default(), server: Arc::default(), meters: Arc::default() }
    }

    /// A connection from this address of the loopback network.
    fn from(peer: &str, to: SocketAddr) -> Client {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &format!("{peer}:0").parse::<SocketAddr>().unwrap()).unwrap();
        net::connect(&socket, &to).unwrap();
        socket.into()
    }

    /// What is answered to a request; nothing if the connection is closed instead.
    fn ask(path: &str, to: SocketAddr) -> String {
        let (mut client, mut text) = (from("127.0.0.1", to), String::new());
        let _ = client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let _ = client.read_to_string(&mut text);
        text
    }

    /// What probes are answered while so many connections, from many addresses of this machine, send half a request or nothing.
    fn probed_beside(stalled: usize, to: SocketAddr) -> Vec<String> {
        let hold = |nth: usize| {
            let mut client = from(&format!("127.0.0.{}", 2 + nth % 250), to);
            if nth.is_multiple_of(2) {
                client.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
            }
            client
        };
        let held: Vec<_> = (0..stalled).map(hold).collect();
        let answers = ["/healthz", "/readyz", "/metrics"].map(|path| ask(path, to));
        drop(held);
        answers.to_vec()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connections_that_stall_keep_no_probe_from_an_answer() {
        let listener = Acceptor::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let to = listener.address();
        tokio::spawn(accept(listener, endpoint()));
        for stalled in [64, MAX_CONNECTIONS, 3 * MAX_CONNECTIONS] {
            let answers = tokio::task::spawn_blocking(move || probed_beside(stalled, to)).await.unwrap();
            assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 ")), "{stalled}: {answers:?}");
        }
        // The control: where who came first keeps its place, the same connections keep probes out.
        let listener = Acceptor::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let to = listener.address();
        tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(place) = places.clone().try_acquire_owned() {
                    // Nothing that stalls is cut off while the probes come.
                    tokio::spawn(async move {
                        std::future::pending::<()>().await;
                        drop((place, stream));
                    });
                }
            }
        });
        let answers = tokio::task::spawn_blocking(move || probed_beside(MAX_CONNECTIONS, to)).await.unwrap();
        assert!(answers.iter().all(String::is_empty), "{answers:?}");
    }

    #[tokio::test]
    async fn metrics_that_many_ask_for_at_once_are_written_twice() {
        let (last, let_go, count) = (Last::default(), tokio::sync::Notify::new(), AtomicUsize::new(0));
        let ask = || {
            last.since(Instant::now(), async || {
                let_go.notified().await;
                format!("{}", count.fetch_add(1, Ordering::Relaxed))
            })
        };
        let mut first = std::pin::pin!(ask());
        assert!(futures_poll(&mut first).is_none(), "it writes");
        let mut others: Vec<_> = (0..50).map(|_| Box::pin(ask())).collect();
        assert!(others.iter_mut().all(|other| futures_poll(other).is_none()), "they wait for it");
        let_go.notify_one();
        assert_eq!(first.await, "0");
        // The first page was begun before the others asked.
        let_go.notify_one();
        for other in others {
            assert_eq!(other.await, "1");
        }
        let_go.notify_one();
        assert_eq!(ask().await, "2", "who asks later is told later");
    }

    /// What a future has become when it is asked once.
    fn futures_poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn every_reason_has_a_line() {
        assert_eq!(readiness(&[]), (StatusCode::OK, "ready\n".to_owned()));
        let (status, text) = readiness(&[NotReady::Starting, NotReady::State("it is full".to_owned())]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("starting: ") && lines[1].ends_with("it is full"), "{text}");
    }
}
