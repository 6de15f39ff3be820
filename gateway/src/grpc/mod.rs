//! gRPC: the service of the Open Inference Protocol, on connections that [`run`](crate::run) serves.
//!
//! - `metered`: bodies, counted as they come.
//! - [`codec`]: messages, looked through before they are decoded.
//! - `messages`: requests to inferences, and outputs back.
//! - `sent`: answers on their way.
//! - `service`: what each method does.
//!
//! ```text
//! metadata ──► caller by token ──► body, counted ──► message, within its bounds ──► inference ──► answer
//! ```

pub mod codec;
mod messages;
mod metered;
mod sent;
mod service;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Request, Response};
use tonic::Status;
use tonic::codegen::Service as _;

use self::metered::{Comes, Meter, Metered};
pub use self::sent::Answers;
use self::service::Service;
use crate::callers::Callers;
use crate::failure::Failure;
use crate::generated::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::memory::Memory;
use crate::metrics::Protocol;
use crate::places::Guest;

/// The metadata that names a failure as the table of failures does.
const CODE: &str = "pappus-code";
/// The method whose requests come one after the other for as long as the client likes.
const STREAM: &str = "ModelStreamInfer";
/// Methods beside it that are for tenants alone.
const OF_TENANTS: [&str; 7] = [
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "ModelInfer",
];
/// Those of shared memory, where there is any.
const OF_SHARED_MEMORY: [&str; 3] =
    ["SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"];

/// What all connections share.
#[derive(Debug, Clone)]
pub struct Grpc {
    server: GrpcInferenceServiceServer<Service>,
    callers: Arc<Callers>,
    memory: Arc<Memory>,
}

impl Grpc {
    /// The service for these callers; a message has so many bytes at most.
    pub fn new(callers: Arc<Callers>, memory: Arc<Memory>, max_message: usize) -> Self {
        // Compressed messages are not taken: tonic expands a whole one before anything of it can be counted. None are sent, as by Triton:
        // every client of gRPC's C++ core offers to take them, and some of its releases hand on what they did not expand, now and then,
        // where an answer comes whole (grpc/grpc#42823).
        let server = GrpcInferenceServiceServer::new(Service::new(callers.clone()))
            .max_decoding_message_size(max_message)
            .max_encoding_message_size(usize::MAX);
        Self { server, callers, memory }
    }

    /// Answers one request. It never fails: a failure is an answer, too.
    pub async fn serve(self, request: Request<Incoming>, answers: Answers) -> Response<tonic::body::Body> {
        let callers = self.callers.clone();
        let response = self.answer(request, answers).await;
        // A failure is in the headers: nothing of a body was sent yet.
        let code = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let failure = code(CODE).or(code("grpc-status").filter(|status| *status != "0"));
        callers.metrics.answered(Protocol::Grpc, failure);
        response
    }

    async fn answer(mut self, request: Request<Incoming>, answers: Answers) -> Response<tonic::body::Body> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let streams = method == STREAM;
        let has_tenant = streams
            || OF_TENANTS.contains(&method)
            || (self.callers.has_shared_memory() && OF_SHARED_MEMORY.contains(&method));
        // Whose it is, before any of its body is read.
        let caller = match has_tenant {
            true => match self
                .callers
                .enter(request.headers().get(AUTHORIZATION).map(|value| value.as_bytes()))
                .await
            {
                Ok(caller) => {
                    request.extensions().get::<Arc<Guest>>().inspect(|guest| guest.recognise(caller.key));
                    Some(caller)
                }
                Err(failure) => return status(&failure).into_http(),
            },
            false => None,
        };
        let owned = caller.as_ref().map(|caller| caller.memory().clone()).unwrap_or_default();
        let meter = Meter::new(self.memory.clone(), owned, answers.way());
        let comes = match (streams, has_tenant) {
            (true, _) => Comes::InMessages,
            (false, true) => Comes::Once,
            (false, false) => Comes::FromAnyone,
        };
        let mut request = request.map(|body| Metered::new(body, meter.clone(), comes));
        request.extensions_mut().insert(meter.clone());
        // A stream has a place for each message, not while nothing comes.
        if let Some(caller) = caller.filter(|_| !streams) {
            request.extensions_mut().insert(Arc::new(caller));
        }
        match self.server.call(request).await {
            Ok(response) => {
                if !streams {
                    meter.sends();
                }
                response.map(|body| tonic::body::Body::new(meter.sent(body)))
            }
            Err(never) => match never {},
        }
    }
}

/// A failure as gRPC tells it.
fn status(failure: &Failure) -> Status {
    let row = failure.row();
    let mut status = Status::new(tonic::Code::from_i32(row.grpc), failure.text());
    if let Ok(name) = row.name.parse() {
        status.metadata_mut().insert(CODE, name);
    }
    if let Some(Ok(after)) = failure.retry_after_ms.map(|after_ms| after_ms.to_string().parse()) {
        status.metadata_mut().insert("grpc-retry-pushback-ms", after);
    }
    status
}

/// How long the request may take, by its header `grpc-timeout`.
fn timeout(value: Option<&[u8]>) -> Result<Option<Duration>, Failure> {
    let Some(value) = value else { return Ok(None) };
    let parsed = || {
        let text = std::str::from_utf8(value).ok()?;
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let count: u64 = digits.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    };
    parsed().map(Some).ok_or_else(|| Failure::invalid("it is no time of gRPC").at("grpc-timeout"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::TABLE;

    #[test]
    fn timeouts_are_those_of_grpc() {
        let of = |value: &str| timeout(Some(value.as_bytes()));
        assert_eq!(of("100m").unwrap(), Some(Duration::from_millis(100)));
        assert_eq!(of("99999999H").unwrap(), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout(None).unwrap(), None);
        for wrong in ["", "m", "100", "100s", "-1m", "100000000m", "1 m"] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_failure_has_a_status() {
        for row in TABLE {
            let told = status(&Failure::new(row.kind, "why"));
            assert!(told.code() != tonic::Code::Unknown && told.message() == "why", "{row:?}");
            assert_eq!(told.metadata().get("pappus-code").unwrap(), row.name);
        }
    }
}
