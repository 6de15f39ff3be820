//! HTTP for the operator of the gateway, on an address of its own: `GET /metrics` for Prometheus, and `/log`, which tells the log's level
//! and takes another. No token: the address is one that only operators reach.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tracing::Level;

use crate::log;
use crate::metrics::Metrics;

/// Prometheus' text format.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
/// Bytes of the longest name of a level, and a line's end.
const MAX_LEVEL_BYTES: usize = 16;

/// Answers one request.
pub async fn answer(metrics: Arc<Metrics>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, text) = match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET) => (StatusCode::OK, metrics.text()),
        ("/log", &Method::GET) => (StatusCode::OK, format!("{}\n", log::level())),
        ("/log", &Method::POST) => set_level(request.into_body()).await,
        ("/metrics" | "/log", _) => {
            (StatusCode::METHOD_NOT_ALLOWED, "GET it; /log takes POST, too\n".to_owned())
        }
        _ => (StatusCode::NOT_FOUND, "there are /metrics and /log and nothing else\n".to_owned()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

async fn set_level(body: Incoming) -> (StatusCode, String) {
    let read = Limited::new(body, MAX_LEVEL_BYTES).collect().await.ok();
    let level =
        read.and_then(|body| std::str::from_utf8(&body.to_bytes()).ok()?.trim().parse::<Level>().ok());
    match level {
        Some(level) => {
            log::set_level(level);
            tracing::info!("lines of level {level} and above are written from now on");
            (StatusCode::OK, format!("{}\n", log::level()))
        }
        None => {
            (StatusCode::BAD_REQUEST, "the body is no level: error, warn, info, debug or trace\n".to_owned())
        }
    }
}
