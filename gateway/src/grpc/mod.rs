//! gRPC: the service of the Open Inference Protocol, on connections that [`run`](crate::run) serves.
//!
//! - `metered`: bodies, counted as they come.
//! - [`codec`]: messages, looked through before they are decoded.
//! - `messages`: requests to inferences, and outputs back.
//! - `service`: what each method does.
//!
//! ```text
//! metadata ──► caller by token ──► body, counted ──► message, within its bounds ──► inference ──► answer
//! ```

pub mod codec;
mod messages;
mod metered;
mod service;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;

use self::metered::{Meter, Metered};
use self::service::Service;
use crate::callers::Callers;
use crate::failure::Failure;
use crate::generated::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::memory::Memory;

/// The end of the path of the method whose requests come one after the other for as long as the client likes.
const STREAM: &str = "/ModelStreamInfer";

/// What all connections share.
#[derive(Debug, Clone)]
pub struct Grpc {
    server: GrpcInferenceServiceServer<Service>,
    memory: Arc<Memory>,
}

impl Grpc {
    /// The service for these callers; a message has so many bytes at most.
    pub fn new(callers: Arc<Callers>, memory: Arc<Memory>, max_message: usize) -> Self {
        let server = GrpcInferenceServiceServer::new(Service::new(callers))
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(max_message)
            .max_encoding_message_size(usize::MAX);
        Self { server, memory }
    }

    /// Answers one request. It never fails: a failure is an answer, too.
    pub async fn serve(mut self, request: Request<Incoming>) -> Response<tonic::body::Body> {
        let meter = Meter::new(self.memory.clone());
        let in_time = !request.uri().path().ends_with(STREAM);
        let mut request = request.map(|body| Metered::new(body, meter.clone(), in_time));
        request.extensions_mut().insert(meter);
        match self.server.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// A failure as gRPC tells it.
fn status(failure: &Failure) -> Status {
    let row = failure.row();
    let mut status = Status::new(tonic::Code::from_i32(row.grpc), failure.text());
    if let Ok(name) = row.name.parse() {
        status.metadata_mut().insert("pappus-code", name);
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
