//! HTTP: one request at a time on a connection, each with its limits.
//!
//! - [`routes`]: what a path names.
//! - [`body`]: bodies within limits, compressed or not.
//! - [`mod@json`]: requests in JSON, read within limits; [`infer`]: to inferences, and outputs back.
//! - [`pages`]: everything else that is told.
//!
//! ```text
//! head ──► route ──► caller by token ──► body ──► inference ──► answer
//! ```
//!
//! Whoever closes the connection, or lets a deadline pass, cancels the call: nothing of a request outlives the request.

pub mod body;
pub mod infer;
pub mod json;
pub mod pages;
pub mod routes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use self::body::Coding;
use self::json::NewRegion;
use self::routes::{Memory, Model, OfModel, Route};
use crate::callers::{Caller, Callers};
use crate::failure::{Failure, Kind, Result};
use crate::limits::{COMPRESS_FROM_BYTES, MAX_HEAD_BYTES};
use crate::memory;
use crate::metrics::Protocol;
use crate::models;
use crate::places::Guest;
use crate::traces::Origin;

/// Says how many bytes of a body are JSON.
const JSON_BYTES: &str = "inference-header-content-length";
/// Says how long a request may take, such as `500ms`.
const DEADLINE: &str = "pappus-deadline";

/// What all connections share.
#[derive(Debug)]
pub struct Http {
    /// Whoever may send requests.
    pub callers: Arc<Callers>,
    /// Memory for bodies.
    pub memory: Arc<memory::Memory>,
    /// Bytes of the largest body.
    pub max_body: usize,
}

/// An answer before it is compressed.
struct Told {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
    /// Memory that it has until it is sent.
    share: Option<memory::Share>,
}

/// Bytes that have their memory until the client has taken them.
struct Held {
    bytes: Bytes,
    _share: memory::Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Told {
    fn new(bytes: impl Into<Bytes>, kind: &'static str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Self { status: StatusCode::OK, headers, bytes: bytes.into(), share: None }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string(), "application/json")
    }

    /// Nothing but that it is so.
    fn yes() -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), bytes: Bytes::new(), share: None }
    }

    fn failure(failure: &Failure) -> Self {
        let row = failure.row();
        let mut value = json!({ "error": failure.text(), "code": row.name });
        if !failure.place.is_empty() {
            value["place"] = failure.place.clone().into();
        }
        let mut told = Self::json(&value);
        told.status = StatusCode::from_u16(row.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(after_ms) = failure.retry_after_ms {
            told.headers.insert(RETRY_AFTER, HeaderValue::from(after_ms.div_ceil(1000)));
        }
        if failure.kind == Kind::Unauthenticated {
            told.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        told
    }
}

impl Http {
    /// Answers one request. It never fails: a failure is an answer, too.
    pub async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let coding = accepted_coding(request.headers());
        let route = Route::of(request.uri().path());
        let allowed = route.as_ref().map(Route::method);
        let answer = self.answer(route, request).await;
        self.callers
            .metrics
            .answered(Protocol::Http, answer.as_ref().err().map(|failure| failure.row().name));
        let told = answer.unwrap_or_else(|failure| Told::failure(&failure));
        let Told { status, mut headers, mut bytes, share } = told;
        if let Some(coding) = coding.filter(|_| bytes.len() >= COMPRESS_FROM_BYTES)
            && let Ok(smaller) = body::shrink(coding, &bytes)
        {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            bytes = smaller.into();
        }
        if let Some(share) = share {
            bytes = Bytes::from_owner(Held { bytes, _share: share });
        }
        if status == StatusCode::METHOD_NOT_ALLOWED
            && let Some(method) = allowed
        {
            headers.insert(ALLOW, HeaderValue::from_static(method));
        }
        let mut response = Response::new(Full::new(bytes));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    async fn answer(&self, route: Option<Route>, request: Request<Incoming>) -> Result<Told> {
        let route = route.ok_or_else(|| {
            Failure::new(
                Kind::NoRoute,
                "no such route: v2/models/NAME/infer calls a function, v2/repository/index lists them",
            )
        })?;
        let method = route.method();
        if request.method() != method {
            return Err(Failure::new(Kind::Method, format!("this route is for {method}")));
        }
        match route {
            Route::Live => Ok(Told::json(&json!({ "live": true }))),
            Route::Ready => match self.callers.is_ready().await {
                true => Ok(Told::json(&json!({ "ready": true }))),
                false => Err(Failure::new(
                    Kind::Supervisor(pappus_client::Code::Unavailable),
                    "the supervisor is not there, or takes no calls",
                )),
            },
            Route::Server => Ok(Told::json(&pages::server())),
            // Nothing can be registered; clients say that nothing is before they begin.
            Route::CudaMemory(memory) => no_memory(&memory, "memory of a device is the supervisor's alone"),
            Route::SystemMemory(memory) if !self.callers.has_shared_memory() => {
                no_memory(&memory, "this gateway takes no shared memory (--shared-memory)")
            }
            route => {
                let (head, body) = request.into_parts();
                let authorization = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
                let caller = match self.callers.enter(authorization).await {
                    Ok(caller) => {
                        head.extensions.get::<Arc<Guest>>().inspect(|guest| guest.recognise(caller.key));
                        caller
                    }
                    Err(failure) => {
                        body::skip(&head.headers, body).await;
                        return Err(failure);
                    }
                };
                match route {
                    Route::Model(model, OfModel::Infer) => {
                        self.infer(&caller, &model, &head.headers, body).await
                    }
                    Route::SystemMemory(memory) => self.regions(&caller, memory, &head.headers, body).await,
                    route => about(&caller, route).await,
                }
            }
        }
    }

    async fn regions(
        &self,
        caller: &Caller,
        memory: Memory,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<Told> {
        match memory {
            Memory::Status(name) => {
                let regions = caller.own_regions().await?.list(&name);
                let told = regions.iter().map(|(name, region)| {
                    json!({ "name": name, "key": region.key, "offset": region.offset, "byte_size": region.bytes })
                });
                Ok(Told::json(&told.collect()))
            }
            Memory::Register(name) => {
                let body =
                    body::read(headers, body, &self.memory.share_of(caller.memory()), MAX_HEAD_BYTES).await?;
                let region: NewRegion = serde_json::from_slice(&body)
                    .map_err(|why| Failure::invalid(why.to_string()).at("body"))?;
                let regions = caller.own_regions().await?;
                regions.register(&name, &region.key, region.offset, region.byte_size)?;
                Ok(Told::yes())
            }
            Memory::Unregister(name) => {
                caller.own_regions().await?.unregister(&name);
                Ok(Told::yes())
            }
        }
    }

    async fn infer(
        &self,
        caller: &Caller,
        model: &Model,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<Told> {
        let json_bytes = json_bytes(headers)?;
        let by_header = deadline(headers)?;
        let share = self.memory.share_of(caller.memory());
        let body = body::read(headers, body, &share, self.max_body).await?;
        let mut parsed = infer::parse(caller, model, &body, json_bytes, &share).await?;
        drop(body);
        parsed.asked.deadline = by_header.or(parsed.asked.deadline);
        let mut origin = Origin::of(|name| headers.get(name)?.to_str().ok());
        origin.named(parsed.id());
        parsed.asked.origin = origin;
        let answer = |inferred| infer::answer(&parsed, &inferred, &share);
        let answer = crate::infer::infer(caller, &parsed.asked, &share, answer).await?;
        let mut told = match answer.json_bytes {
            None => Told::new(answer.bytes, "application/json"),
            Some(bytes) => {
                let mut told = Told::new(answer.bytes, "application/octet-stream");
                told.headers.insert(JSON_BYTES, HeaderValue::from(bytes));
                told
            }
        };
        told.share = Some(share);
        Ok(told)
    }
}

/// What is told of shared memory where there is none.
fn no_memory(memory: &Memory, why: &str) -> Result<Told> {
    match memory {
        Memory::Status(_) => Ok(Told::json(&json!([]))),
        Memory::Unregister(_) => Ok(Told::yes()),
        Memory::Register(_) => Err(Failure::unsupported(format!("{why}: send the bytes"))),
    }
}

/// What is told of functions.
async fn about(caller: &Caller, route: Route) -> Result<Told> {
    Ok(match route {
        Route::Index => {
            let all = models::list(caller).await?;
            Told::json(&all.iter().flat_map(pages::entries).collect())
        }
        Route::AllStatistics => {
            let all = models::list(caller).await?;
            Told::json(&pages::statistics(caller, &all, ""))
        }
        // What is registered is loaded when it is called.
        Route::Load(name) => {
            models::look(caller, &name, "").await?;
            Told::yes()
        }
        Route::Unload(_) => {
            return Err(Failure::unsupported(
                "functions are loaded and unloaded by the supervisor, as they are called",
            ));
        }
        Route::Model(Model { name, version }, what) => {
            let model = models::look(caller, &name, &version).await?;
            match what {
                OfModel::Config => Told::json(&pages::config(&model)),
                OfModel::Ready => Told::json(&json!({ "name": name, "ready": true })),
                OfModel::Statistics => Told::json(&pages::statistics(caller, [&*model], &version)),
                OfModel::Metadata | OfModel::Infer => Told::json(&pages::metadata(&model)),
            }
        }
        Route::Live | Route::Ready | Route::Server | Route::SystemMemory(_) | Route::CudaMemory(_) => {
            Told::yes()
        }
    })
}

fn json_bytes(headers: &HeaderMap) -> Result<Option<usize>> {
    let Some(value) = headers.get(JSON_BYTES) else { return Ok(None) };
    let bytes = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    match bytes {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(Failure::invalid("it is no number of bytes").at("Inference-Header-Content-Length")),
    }
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let deadline = value.to_str().ok().and_then(|text| humantime::parse_duration(text).ok());
    match deadline {
        Some(deadline) if !deadline.is_zero() => Ok(Some(deadline)),
        _ => Err(Failure::invalid("it is no time such as 500ms").at("Pappus-Deadline")),
    }
}

/// The coding in which the client takes answers: gzip or deflate.
fn accepted_coding(headers: &HeaderMap) -> Option<Coding> {
    let accepted = headers.get(ACCEPT_ENCODING)?.to_str().ok()?;
    accepted.split(',').take(16).find_map(|one| match one.split_once(';') {
        // Refused by its weight.
        Some((_, weight)) if ["q=0", "q=0.0"].contains(&weight.trim()) => None,
        Some((name, _)) => Coding::named(name),
        None => Coding::named(one),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        headers
    }

    #[test]
    fn headers_are_what_they_should_be_or_refused() {
        assert_eq!(json_bytes(&headers(JSON_BYTES, "12")).unwrap(), Some(12));
        for wrong in ["", "-1", "1x", "99999999999999999999999"] {
            assert_eq!(json_bytes(&headers(JSON_BYTES, wrong)).unwrap_err().row().http, 400);
        }
        assert_eq!(deadline(&headers(DEADLINE, "500ms")).unwrap(), Some(Duration::from_millis(500)));
        for wrong in ["", "0s", "5", "soon"] {
            assert_eq!(deadline(&headers(DEADLINE, wrong)).unwrap_err().row().http, 400);
        }
        for (accepted, coding) in [
            ("gzip", Some(Coding::Gzip)),
            ("br, deflate;q=0.5", Some(Coding::Deflate)),
            ("gzip;q=0", None),
            ("br", None),
        ] {
            assert_eq!(accepted_coding(&headers("accept-encoding", accepted)), coding, "{accepted}");
        }
    }
}
