//! What is counted for whoever watches the gateway: inferences by model, under the names that Triton's dashboards know, and answers by
//! protocol and code. Written in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::failure::{Reason, Row, TABLE};
use crate::limits::MAX_COUNTED_MODELS;
use crate::model::Model;
use crate::statistics::{Counts, Statistics, Tally};

/// A protocol that requests come by.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// gRPC.
    Grpc,
}

/// Names of the protocols, at the places of their numbers.
const PROTOCOLS: [&str; 2] = ["http", "grpc"];

/// All counts.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By name and version; those of all tenants that have such a model are one. Inferences with known models look at once.
    models: RwLock<Models>,
    /// By protocol: answers that are no failure, then failures at their places in [`TABLE`].
    answers: [Answers; PROTOCOLS.len()],
}

#[derive(Debug, Default)]
struct Models {
    by_name: BTreeMap<String, BTreeMap<u32, Arc<OfModel>>>,
    count: usize,
}

impl Models {
    fn get(&self, model: &Model) -> Option<Arc<OfModel>> {
        self.by_name.get(model.base_name())?.get(&model.version).cloned()
    }
}

#[derive(Debug)]
struct Answers([AtomicU64; TABLE.len() + 1]);

impl Default for Answers {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Counts of one model.
#[derive(Debug, Default)]
pub struct OfModel {
    /// Inferences that ended.
    pub statistics: Statistics,
    pending: AtomicU64,
}

/// An inference that is under way.
#[derive(Debug)]
pub struct Pending(Arc<OfModel>);

impl Pending {
    /// The counts of its model.
    pub fn statistics(&self) -> &Statistics {
        &self.0.statistics
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// An inference with a model begins. Models beyond the bound are counted together, as `(others)`.
    pub fn begins(&self, model: &Model) -> Pending {
        let of = self.of(model);
        of.pending.fetch_add(1, Ordering::Relaxed);
        Pending(of)
    }

    fn of(&self, model: &Model) -> Arc<OfModel> {
        // The map is whole after every step: a lock whose holder panicked is good.
        if let Some(known) = self.models.read().unwrap_or_else(PoisonError::into_inner).get(model) {
            return known;
        }
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        // Another inference may have come first.
        if let Some(known) = models.get(model) {
            return known;
        }
        // No name of a function has parentheses.
        let (name, version) = match models.count < MAX_COUNTED_MODELS {
            true => (model.base_name(), model.version),
            false => ("(others)", 0),
        };
        let versions = models.by_name.entry(name.to_owned()).or_default();
        let before = versions.len();
        let of = versions.entry(version).or_default().clone();
        models.count += models.by_name[name].len() - before;
        of
    }

    /// A request was answered, with the failure of this name or with none.
    pub fn answered(&self, protocol: Protocol, failure: Option<&str>) {
        let of = |name: &str| TABLE.iter().position(|row| row.name == name).map(|at| at + 1);
        let at = failure.map_or(0, |name| of(name).unwrap_or_default());
        self.answers[protocol as usize].0[at].fetch_add(1, Ordering::Relaxed);
    }

    /// All of it, as Prometheus reads it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) {
        head(text, "pappus_build_info", "gauge", "Always 1; which build this is");
        line(text, "pappus_build_info", &[("version", pappus_version::VERSION)], 1);
        head(text, "pappus_gateway_requests_total", "counter", "Answers to requests, by protocol and code");
        for (protocol, answers) in PROTOCOLS.iter().zip(&self.answers) {
            let codes = ["OK"].into_iter().chain(TABLE.iter().map(|row: &Row| row.name));
            for (code, n) in codes.zip(&answers.0) {
                let n = n.load(Ordering::Relaxed);
                // Successes from the start; a failure once there was one.
                if n > 0 || code == "OK" {
                    line(text, "pappus_gateway_requests_total", &[("protocol", protocol), ("code", code)], n);
                }
            }
        }
        let counted: Vec<_> = {
            let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
            let all = models
                .by_name
                .iter()
                .flat_map(|(name, versions)| versions.iter().map(move |one| (name, one)));
            let counted = |(name, (version, of)): (&String, (&u32, &Arc<OfModel>))| {
                let labels = [name.clone(), version.to_string()];
                (labels, of.statistics.counts(), of.pending.load(Ordering::Relaxed))
            };
            all.map(counted).collect()
        };
        let each = |text: &mut String, name: &str, kind: &str, help: &str, value: &dyn Fn(&Counts) -> u64| {
            head(text, name, kind, help);
            for ([model, version], counts, _) in &counted {
                line(text, name, &[("model", model), ("version", version)], value(counts));
            }
        };
        each(text, "nv_inference_request_success", "counter", "Inferences that succeeded", &|c| {
            c.success.count
        });
        head(text, "nv_inference_request_failure", "counter", "Inferences that failed, by reason");
        for ([model, version], counts, _) in &counted {
            for (reason, n) in Reason::ALL.iter().zip(counts.reasons).filter(|(_, n)| *n > 0) {
                let labels = [("model", &**model), ("version", version), ("reason", reason.name())];
                line(text, "nv_inference_request_failure", &labels, n);
            }
        }
        each(text, "nv_inference_count", "counter", "Inferences that succeeded; a request is one", &|c| {
            c.success.count
        });
        each(text, "nv_inference_exec_count", "counter", "Executions of models; an inference is one", &|c| {
            c.success.count
        });
        let took = "Microseconds of inferences that succeeded,";
        let mut time = |name: &str, what: &str, tally: &dyn Fn(&Counts) -> Tally| {
            let name = format!("nv_inference_{name}_duration_us");
            each(text, &name, "counter", &format!("{took} {what}"), &|counts| tally(counts).ns / 1000);
        };
        time("request", "from their arrival to their answer", &|c| c.success);
        time("queue", "waiting for a worker", &|c| c.queue);
        time("compute_input", "copying inputs", &|c| c.compute_input);
        time("compute_infer", "running kernels", &|c| c.compute_infer);
        time("compute_output", "copying outputs", &|c| c.compute_output);
        head(text, "nv_inference_pending_request_count", "gauge", "Inferences that are under way");
        for ([model, version], _, pending) in &counted {
            line(
                text,
                "nv_inference_pending_request_count",
                &[("model", model), ("version", version)],
                *pending,
            );
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // A text takes everything.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    let labels: Vec<_> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
}

/// A value of a label: quotes, backslashes and ends of lines escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pappus_client::v1;

    use super::*;
    use crate::failure::Kind;

    fn model(number: u32) -> Model {
        Model::of(&v1::FunctionInfo { name: format!("f\"{number}"), number: 3, ..Default::default() })
    }

    #[test]
    fn inferences_are_counted_by_model_under_tritons_names() {
        let metrics = Metrics::default();
        let timings = v1::Timings { queued_ns: 5000, execute_ns: 7000, ..Default::default() };
        let pending = metrics.begins(&model(7));
        pending.statistics().succeeded(Duration::from_micros(20), &timings);
        pending
            .statistics()
            .failed(Duration::ZERO, Reason::of(Kind::Supervisor(pappus_client::Code::KernelFault)));
        let text = metrics.text();
        let labels = "model=\"f\\\"7\",version=\"3\"";
        for (series, value) in [
            ("nv_inference_request_success", 1),
            ("nv_inference_request_duration_us", 20),
            ("nv_inference_queue_duration_us", 5),
            ("nv_inference_compute_infer_duration_us", 7),
            ("nv_inference_pending_request_count", 1),
        ] {
            assert!(text.contains(&format!("{series}{{{labels}}} {value}\n")), "{series}: {text}");
        }
        assert!(text.contains(&format!("nv_inference_request_failure{{{labels},reason=\"BACKEND\"}} 1\n")));
        assert!(!text.contains("REJECTED"), "no series of what never was: {text}");
        drop(pending);
        assert!(metrics.text().contains(&format!("nv_inference_pending_request_count{{{labels}}} 0\n")));
    }

    #[test]
    fn models_beyond_the_bound_are_counted_together() {
        let metrics = Metrics::default();
        for number in 1..=MAX_COUNTED_MODELS as u32 + 2 {
            metrics.begins(&model(number)).statistics().succeeded(Duration::ZERO, &v1::Timings::default());
        }
        let text = metrics.text();
        assert!(text.contains("nv_inference_count{model=\"(others)\",version=\"0\"} 2\n"), "{text}");
        assert_eq!(text.matches("nv_inference_count{").count(), MAX_COUNTED_MODELS + 1);
    }

    #[test]
    fn first_inferences_with_one_model_at_once_are_counted_as_one_models() {
        let (metrics, begin) = (Metrics::default(), std::sync::Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begin.wait();
                    for number in 0..50 {
                        let pending = metrics.begins(&model(number));
                        pending.statistics().succeeded(Duration::ZERO, &v1::Timings::default());
                    }
                });
            }
        });
        let text = metrics.text();
        for number in 0..50 {
            let line = format!("nv_inference_count{{model=\"f\\\"{number}\",version=\"3\"}} 8\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn answers_are_counted_by_protocol_and_code() {
        let metrics = Metrics::default();
        metrics.answered(Protocol::Http, None);
        metrics.answered(Protocol::Grpc, Some("NOT_FOUND"));
        let text = metrics.text();
        for line in ["http\",code=\"OK\"} 1", "grpc\",code=\"OK\"} 0", "grpc\",code=\"NOT_FOUND\"} 1"] {
            assert!(
                text.contains(&format!("pappus_gateway_requests_total{{protocol=\"{line}\n")),
                "{line}: {text}"
            );
        }
    }
}
