//! All of it put together: two addresses, connections within limits, and an end that lets requests finish.
//!
//! ```text
//! accept ──no place, and no stranger who gives one up──► closed
//!    └──► a connection: its client may not stall ──told to end──► its requests finish, then it closes ──too late──► closed
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

use crate::callers::Callers;
use crate::endpoint;
use crate::grpc::{Answers, Grpc};
use crate::http::Http;
use crate::limits::{
    ANSWER_TIME, DRAIN_TIME, HEAD_TIME, MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_HEADERS, MAX_KEPT_PER_TOKEN,
    MAX_RESETS, MAX_STREAMS, MAX_WATCHERS, STALL_TIME, WINDOW_BYTES,
};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::patient_io::PatientIo;
use crate::places::{Guest, Places};
use crate::tls::Tls;

/// Pause after an accept that failed, for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// How often a silent HTTP/2 client is asked whether it is there.
const ASK_AGAIN: Duration = Duration::from_secs(20);
/// Bytes that every HTTP/2 client begins with; hyper waits for them without a limit.
const PREFACE_BYTES: usize = 24;

/// Where the gateway listens.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For gRPC.
    pub grpc: TcpListener,
    /// For those who watch, where that is asked for.
    pub metrics: Option<TcpListener>,
}

/// What the gateway is set up with.
#[derive(Debug)]
pub struct Setup {
    /// Whoever may send requests.
    pub callers: Arc<Callers>,
    /// Bytes of the largest body.
    pub max_body: usize,
    /// Bytes of all bodies together.
    pub memory: usize,
    /// TLS for HTTP, and for gRPC; none where connections are plain.
    pub tls: Option<[Arc<Tls>; 2]>,
}

/// Listens on an address.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `end` is over, and then until what was accepted is answered.
pub async fn run(listeners: Listeners, setup: Setup, end: impl Future<Output = ()>) {
    let callers = setup.callers;
    let memory = Memory::new(setup.memory);
    let http = Arc::new(Http { callers: callers.clone(), memory: memory.clone(), max_body: setup.max_body });
    let grpc = Grpc::new(callers, memory, setup.max_body);
    let (ending, ends) = watch::channel(false);
    let watched = watched(listeners.metrics, http.callers.metrics.clone(), ends.clone());
    let places = [(); 2].map(|()| Places::new(MAX_CONNECTIONS, MAX_KEPT_PER_TOKEN));
    let [tls_http, tls_grpc] = match setup.tls {
        None => [None, None],
        Some(both) => both.map(Some),
    };
    let serves_http = {
        let ends = ends.clone();
        accept(listeners.http, places[0].clone(), move |stream, guest| {
            let (http, tls, ends) = (http.clone(), tls_http.clone(), ends.clone());
            async move {
                let answer = move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(guest.clone());
                    http.clone().serve(request)
                };
                match encrypted(tls, stream).await {
                    Some(Stream::Plain(stream)) => serve_http(stream, ends, answer).await,
                    Some(Stream::Tls(stream)) => serve_http(*stream, ends, answer).await,
                    None => {}
                }
            }
        })
    };
    let serves_grpc = accept(listeners.grpc, places[1].clone(), move |stream, guest| {
        let (grpc, tls, ends) = (grpc.clone(), tls_grpc.clone(), ends.clone());
        async move {
            match encrypted(tls, stream).await {
                Some(Stream::Plain(stream)) => serve_grpc(grpc, stream, guest, ends).await,
                Some(Stream::Tls(stream)) => serve_grpc(grpc, *stream, guest, ends).await,
                None => {}
            }
        }
    });
    tokio::select! {
        () = serves_http => {}
        () = serves_grpc => {}
        () = watched => {}
        () = end => {}
    }
    // The listeners are closed. Connections finish what they began.
    let _ = ending.send(true);
    let all_closed = async {
        for places in places {
            places.all_free().await;
        }
    };
    if tokio::time::timeout(DRAIN_TIME, all_closed).await.is_err() {
        tracing::warn!("requests go on for longer than {DRAIN_TIME:?}: they are given up");
    }
}

/// Answers those who watch, for ever.
async fn watched(listener: Option<TcpListener>, metrics: Arc<Metrics>, ends: watch::Receiver<bool>) {
    let Some(listener) = listener else { return std::future::pending().await };
    accept(listener, Places::new(MAX_WATCHERS, MAX_WATCHERS), move |stream, _| {
        let (metrics, ends) = (metrics.clone(), ends.clone());
        serve_http(stream, ends, move |request| endpoint::answer(metrics.clone(), request))
    })
    .await;
}

/// Accepts connections for ever, each with a task and a place.
async fn accept<F>(listener: TcpListener, places: Arc<Places>, serve: impl Fn(TcpStream, Arc<Guest>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = places.take().await else {
                    tracing::warn!(%peer, "there are as many connections as there may be: closing one more");
                    continue;
                };
                // Answers are whole: waiting for more to send only delays them.
                let _ = stream.set_nodelay(true);
                let serves = serve(stream, place.guest.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = serves => {}
                        () = place.guest.leaves() => tracing::debug!(%peer, "a stranger gives its place up"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection, as bytes are read from it.
enum Stream {
    /// As they come.
    Plain(TcpStream),
    /// Decrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection, with TLS where that is asked for; none if the client does not agree.
async fn encrypted(tls: Option<Arc<Tls>>, stream: TcpStream) -> Option<Stream> {
    let Some(tls) = tls else { return Some(Stream::Plain(stream)) };
    match tls.accept(stream).await {
        Ok(stream) => Some(Stream::Tls(Box::new(stream))),
        Err(error) => {
            tracing::debug!("a connection without TLS: {error}");
            None
        }
    }
}

/// Returns once the gateway is told to end.
async fn ended(ends: &mut watch::Receiver<bool>) {
    // Nobody tells any more: it ends, too.
    let _ = ends.wait_for(|ends| *ends).await.map(drop);
}

async fn serve_http<S, F>(
    stream: S,
    mut ends: watch::Receiver<bool>,
    answer: impl Fn(Request<Incoming>) -> F + Send,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send,
{
    let io = TokioIo::new(PatientIo::new(stream, STALL_TIME));
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = ended(&mut ends) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!("a connection ended: {error}");
    }
}

async fn serve_grpc<S>(grpc: Grpc, stream: S, guest: Arc<Guest>, mut ends: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(PatientIo::new(stream, STALL_TIME).beginning_with(PREFACE_BYTES));
    let answers = Answers::default();
    let of_service = answers.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(guest.clone());
        let (grpc, answers) = (grpc.clone(), of_service.clone());
        async move { Ok::<_, Infallible>(grpc.serve(request, answers).await) }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(ASK_AGAIN)
        .keep_alive_timeout(STALL_TIME)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = answers.stalled(ANSWER_TIME) => {
            tracing::debug!("a client took nothing of an answer for {ANSWER_TIME:?}");
            return;
        }
        () = ended(&mut ends) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!("a connection ended: {error}");
    }
}
