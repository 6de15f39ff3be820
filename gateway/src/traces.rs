//! Traces of inferences, for OpenTelemetry (OTLP over gRPC), off unless asked for: a span for the inference, with its client's context
//! (W3C `traceparent`) as parent, and one in it for each stage that the supervisor timed.
//!
//! The supervisor measures how long each stage took, not when it began: the stages are laid end to end, and end where the answer came.

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use pappus_client::v1::Timings;

use crate::failure::Failure;
use crate::limits::{MAX_REQUEST_ID_BYTES, MAX_TRACE_BYTES};

/// What a request says of where it comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The name of the request in logs; empty without one that fits.
    pub request_id: String,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl Origin {
    /// From the headers of a request, by name.
    pub fn of<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut origin = Self::default();
        origin.named(header("x-request-id").unwrap_or_default());
        let short = |name| header(name).filter(|text| text.len() <= MAX_TRACE_BYTES).map(str::to_owned);
        (origin.traceparent, origin.tracestate) = (short("traceparent"), short("tracestate"));
        origin
    }

    /// The same under this name, if it had none, and the name fits: visible ASCII.
    pub fn named(&mut self, id: &str) {
        let fits = id.len() <= MAX_REQUEST_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic());
        if self.request_id.is_empty() && fits {
            id.clone_into(&mut self.request_id);
        }
    }
}

impl Extractor for Origin {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.traceparent.as_deref(),
            "tracestate" => self.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Where traces go, if anywhere.
#[derive(Debug, Default)]
pub struct Traces(Option<(SdkTracerProvider, SdkTracer)>);

impl Traces {
    /// To a collector at this address, such as `http://localhost:4317`. Must run in the runtime. The standard variables
    /// `OTEL_TRACES_SAMPLER` and `OTEL_BSP_…` hold.
    pub fn to(address: &str) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(address).build()?;
        let version = KeyValue::new("service.version", pappus_version::VERSION);
        let resource =
            Resource::builder().with_service_name("pappus-gateway").with_attribute(version).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self::by(provider))
    }

    fn by(provider: SdkTracerProvider) -> Self {
        let tracer = provider.tracer("pappus-gateway");
        Self(Some((provider, tracer)))
    }

    /// An inference with this model begins.
    pub fn begins(&self, origin: &Origin, model: &str) -> Traced {
        let Some((_, tracer)) = &self.0 else { return Traced(None) };
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), origin);
        let mut span = tracer
            .span_builder(format!("infer {model}"))
            .with_kind(SpanKind::Server)
            .start_with_context(tracer, &parent);
        span.set_attribute(KeyValue::new("pappus.model", model.to_owned()));
        if !origin.request_id.is_empty() {
            span.set_attribute(KeyValue::new("pappus.request_id", origin.request_id.clone()));
        }
        Traced(Some((tracer.clone(), Context::new().with_span(span))))
    }

    /// Sends what was not sent yet.
    pub fn end(&self) {
        if let Some((provider, _)) = &self.0
            && let Err(why) = provider.shutdown()
        {
            tracing::warn!("the last traces were not sent: {why}");
        }
    }
}

/// One inference, whose span ends with this.
#[derive(Debug)]
pub struct Traced(Option<(SdkTracer, Context)>);

impl Traced {
    /// It succeeded just now, with these timings.
    pub fn succeeded(&self, timings: &Timings) {
        let Some((tracer, context)) = &self.0 else { return };
        let mut at = SystemTime::now() - Duration::from_nanos(timings.total_ns);
        let stages = [
            ("queued", timings.queued_ns),
            ("copy in", timings.copy_in_ns),
            ("execute", timings.execute_ns),
            ("copy out", timings.copy_out_ns),
            ("clear", timings.clear_ns),
        ];
        for (name, ns) in stages {
            let mut stage = tracer.span_builder(name).with_start_time(at).start_with_context(tracer, context);
            at += Duration::from_nanos(ns);
            stage.end_with_timestamp(at);
        }
        context.span().set_status(Status::Ok);
    }

    /// It failed.
    pub fn failed(&self, failure: &Failure) {
        let Some((_, context)) = &self.0 else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new("pappus.code", failure.row().name));
        span.set_status(Status::error(failure.text()));
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::InMemorySpanExporter;

    use super::*;

    fn origin(pairs: &'static [(&'static str, &'static str)]) -> Origin {
        Origin::of(|name| pairs.iter().find(|(header, _)| *header == name).map(|(_, value)| *value))
    }

    #[test]
    fn a_span_has_its_clients_context_and_the_stages_in_it() {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let traces = Traces::by(provider);
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let from = origin(&[
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-request-id", "r-7"),
        ]);
        let traced = traces.begins(&from, "f");
        traced.succeeded(&Timings { queued_ns: 10, execute_ns: 20, total_ns: 30, ..Timings::default() });
        drop(traced);
        traces.begins(&origin(&[("traceparent", "nonsense")]), "g").failed(&Failure::busy("no room"));
        let spans = exporter.get_finished_spans().unwrap();
        let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
        let whole = named("infer f");
        assert_eq!(parent.split('-').nth(1), Some(&*whole.span_context.trace_id().to_string()));
        assert_eq!(parent.split('-').nth(2), Some(&*whole.parent_span_id.to_string()));
        let ran = named("execute");
        assert_eq!(ran.parent_span_id, whole.span_context.span_id());
        assert_eq!(ran.end_time.duration_since(ran.start_time).unwrap(), Duration::from_nanos(20));
        assert_eq!(named("queued").end_time, named("copy in").start_time);
        assert!(
            whole
                .attributes
                .iter()
                .any(|a| a.key.as_str() == "pappus.request_id" && a.value.as_str() == "r-7")
        );
        let failed = named("infer g");
        assert!(matches!(&failed.status, Status::Error { description } if description.contains("no room")));
        assert_ne!(failed.span_context.trace_id(), whole.span_context.trace_id());
    }

    #[test]
    fn nothing_is_made_where_traces_are_off() {
        let traced = Traces::default().begins(&origin(&[("x-request-id", "r")]), "f");
        assert!(traced.0.is_none());
    }

    #[test]
    fn a_name_that_does_not_fit_is_none() {
        assert_eq!(origin(&[("x-request-id", "a b")]).request_id, "");
        let mut named = origin(&[("x-request-id", "é")]);
        named.named("from-the-body");
        named.named("later");
        assert_eq!(named.request_id, "from-the-body");
        named = Origin::default();
        named.named(&"x".repeat(MAX_REQUEST_ID_BYTES + 1));
        assert_eq!(named.request_id, "");
    }
}
