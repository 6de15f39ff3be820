//! Packaged models of `scripts/gpu-check models`: what `bench_models.compare` found beside PyTorch, against its targets;
//! calls on eight lanes against one stream; eight tenants with a model each, alone and all at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pappus_blueprint::{Known, describe};
use pappus_client::Client;
use pappus_client::functions::Package;
use serde::Deserialize;

use super::bed::{Bed, Running};
use super::load::{self, Calls, Data, USUAL_ROUNDS, Wanted, jain};
use crate::Result;
use crate::report::{Report, Unit};

/// From where `scripts/gpu-check` runs: the packages, and what `bench_models.compare` found.
const FOLDER: &str = "target/gpu-models";
const FOUND: &str = "target/gpu-models.json";
/// A package's input, written by `bench_models.prepare`.
const INPUT: &str = "input.bin";

/// Differences of fp32 to eager PyTorch, relative to the largest value; of shorter types to those that PyTorch has itself.
const FP32_ERROR: f64 = 1e-4;
const SHORT_ERROR: f64 = 1.1;
/// Latency / that of eager PyTorch, by the start of the model's name; others are tenants only.
const OF_EAGER: [(&str, f64); 6] = [
    ("resnet18", 1.2),
    ("gpt", 1.0),
    ("mobilenet", 1.0),
    ("efficientnet", 1.0),
    ("convnext", 1.0),
    ("resnext50", 1.0),
];
/// … / that of eager PyTorch as a CUDA graph.
const OF_GRAPH: f64 = 2.0;
/// The geometric mean of that over all models.
const OF_GRAPHS: f64 = 1.2;
const OF_COMPILED: f64 = 1.1;

/// Models whose rate on lanes is measured.
const ON_LANES: [&str; 3] = ["resnet18-1-fp32", "resnet18-8-fp16", "gpt-bf16"];
/// Calls in flight there: on eight lanes, and on one, which so many keep busy.
const ON_EIGHT: usize = 16;
const ON_ONE: usize = 2;
const OF_ONE_STREAM: f64 = 2.0;
/// Calls in flight of each tenant.
const OF_TENANT: usize = 8;
const TOGETHER: f64 = 0.9;
/// Turns that the sum is measured with, too.
const LONG_QUANTUM: &str = "10ms";
/// There are many rates.
const LONGEST: Duration = Duration::from_secs(1);

/// What is known of a model from `bench_models.compare`.
#[derive(Debug, Default, Deserialize)]
struct Found {
    pappus_ns: Option<f64>,
    pappus_error: Option<f64>,
    eager_ns: Option<f64>,
    eager_benchmark_ns: Option<f64>,
    graph_ns: Option<f64>,
    eager_error: Option<f64>,
    compiled_ns: Option<f64>,
    compiled_error: Option<f64>,
    failed: Option<String>,
    compile_failed: Option<String>,
}

/// A package with its input.
#[derive(Debug)]
struct Model {
    name: String,
    package: Package,
    data: Data,
}

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    match std::fs::read(FOUND) {
        Ok(text) => {
            let found = serde_json::from_slice(&text);
            judge(report, &found.map_err(|e| format!("{FOUND}: {e}"))?);
        }
        Err(error) => report.skip(format!("{FOUND}: {error}: run scripts/gpu-check models")),
    }
    let models = models(Path::new(FOLDER))?;
    for name in ON_LANES {
        match models.iter().find(|model| model.name == name) {
            Some(model) => on_lanes(bed, report, model)?,
            None => {
                report.skip(format!("{name} has no package in {FOLDER}: run scripts/gpu-check models-build"))
            }
        }
    }
    tenants(bed, report, &models)
}

/// What was found beside PyTorch against what is promised.
fn judge(report: &mut Report, found: &BTreeMap<String, Found>) {
    let mut of_graphs = Vec::new();
    for (name, found) in found {
        if let Some(why) = &found.failed {
            report.fail(format!("{name}: {why}"));
        }
        if let Some(why) = &found.compile_failed {
            report.skip(format!("{name}, torch.compile: {why}"));
        }
        errors(report, name, found);
        of_graphs.extend(found.pappus_ns.zip(found.graph_ns).map(|(ours, graph)| ours / graph));
        let Some((_, of_eager)) = OF_EAGER.iter().find(|(start, _)| name.starts_with(start)) else {
            continue;
        };
        let Some(ours) = found.pappus_ns else { continue };
        report.info(format!("{name}, p50"), ours, Unit::Nanoseconds);
        if let Some(eager) = found.eager_ns {
            report.at_most(*of_eager, format!("{name}, p50 / eager PyTorch"), ours / eager, Unit::Ratio);
        }
        if let Some(eager) = found.eager_benchmark_ns {
            report.info(format!("{name}, p50 / eager with cuDNN's benchmark"), ours / eager, Unit::Ratio);
        }
        if let Some(graph) = found.graph_ns {
            report.at_most(OF_GRAPH, format!("{name}, p50 / CUDA graph"), ours / graph, Unit::Ratio);
        }
        if let Some(compiled) = found.compiled_ns {
            report.at_most(OF_COMPILED, format!("{name}, p50 / torch.compile"), ours / compiled, Unit::Ratio);
        }
    }
    if !of_graphs.is_empty() {
        let mean = (of_graphs.iter().map(|ratio| ratio.ln()).sum::<f64>() / of_graphs.len() as f64).exp();
        let what = format!("geometric mean of {} models, p50 / CUDA graph", of_graphs.len());
        report.at_most(OF_GRAPHS, what, mean, Unit::Ratio);
    }
}

fn errors(report: &mut Report, name: &str, found: &Found) {
    let Some(ours) = found.pappus_error else { return };
    if name.ends_with("fp32") {
        report.at_most(FP32_ERROR, format!("{name}, largest difference to eager"), ours, Unit::Relative);
        return;
    }
    report.info(format!("{name}, difference to fp32"), ours, Unit::Relative);
    let theirs = found.compiled_error.map(|error| (error, "torch.compile's"));
    if let Some((error, whose)) = theirs.or(found.eager_error.map(|error| (error, "eager's"))) {
        report.at_most(SHORT_ERROR, format!("{name}, … / {whose}"), ours / error, Unit::Ratio);
    }
}

/// All packages of a folder whose calls stand by themselves, by name.
fn models(folder: &Path) -> Result<Vec<Model>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}: run scripts/gpu-check models-build", folder.display()))?;
    let paths: std::io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.retain(|path| path.join("function.json").is_file());
    paths.sort();
    paths.iter().filter_map(|path| Model::read(path).transpose()).collect()
}

impl Model {
    /// A package that keeps state is none of them: its session would be full after so many calls. Nor is a package for any number of
    /// items, which `models-together` measures.
    fn read(path: &Path) -> Result<Option<Self>> {
        let package = Package::read(path, &[])?;
        if !package.blueprint().state().is_empty() {
            return Ok(None);
        }
        let input = path.join(INPUT);
        let bytes = std::fs::read(&input).map_err(|e| {
            format!("{}: {e}: `python3 -m bench_models.prepare {FOLDER}` writes it", input.display())
        })?;
        let blueprint = package.blueprint();
        let only = |kind, ids: &[_]| match ids {
            [id] => Ok(*id),
            _ => Err(format!("{}: {} {kind}, expected one", path.display(), ids.len())),
        };
        let name = blueprint.buffers()[only("inputs", blueprint.inputs())?.index()].name.clone();
        let inputs = [(name.clone(), bytes.len() as u64)].into();
        let known = describe(blueprint, &Known { inputs, ..Known::default() })?;
        let output = &known.buffers[only("outputs", blueprint.outputs())?.index()];
        let Some(size) = output.bytes.value() else { return Ok(None) };
        let output = Some((output.name.clone(), usize::try_from(size)?));
        let data = Data { inputs: vec![(name, bytes)], output, wanted: Wanted::Any };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Some(Self { name, package, data }))
    }

    /// Registers it and calls it once: what later calls must answer.
    fn add(&self, client: &mut Client) -> Result<Data> {
        self.package.add(client, &self.name, true, &mut |_| ())?;
        let calls = Calls::with(client, &self.name, self.data.clone(), 1)?;
        load::call(client, &calls.calls[0])?;
        Ok(Data { wanted: Wanted::Bytes(calls.first_output()?), ..self.data.clone() })
    }
}

/// Calls a second of each tenant's model, all of them at once.
fn rates(
    bed: &Bed,
    running: &Running,
    tenants: &[(usize, &Model, Data)],
    in_flight: usize,
) -> Result<Vec<f64>> {
    let measured = bed.measured.min(LONGEST);
    let counted = load::at_once(tenants.len(), USUAL_ROUNDS, measured, |nth| {
        let (tenant, model, data) = &tenants[nth];
        let mut client = load::connect(running, *tenant)?;
        let calls = Calls::with(&mut client, &model.name, data.clone(), in_flight)?;
        Ok((client, calls))
    })?;
    Ok(counted.iter().map(|latencies| latencies.len() as f64 / measured.as_secs_f64()).collect())
}

/// Eight lanes against one, each with calls enough.
fn on_lanes(bed: &Bed, report: &mut Report, model: &Model) -> Result<()> {
    let rate = |lanes: usize, in_flight: usize| -> Result<f64> {
        let running = bed.start(&format!("workers=1,lanes={lanes},memory=32GiB"))?;
        let data = model.add(&mut running.connect()?)?;
        Ok(rates(bed, &running, &[(0, model, data)], in_flight)?[0])
    };
    let (one, eight) = (rate(1, ON_ONE)?, rate(8, ON_EIGHT)?);
    let name = &model.name;
    report.info(format!("{name}, one lane, {ON_ONE} in flight"), one, Unit::PerSecond);
    report.info(format!("{name}, 8 lanes, {ON_EIGHT} in flight"), eight, Unit::PerSecond);
    report.at_least(OF_ONE_STREAM, format!("{name}, 8 lanes / one"), eight / one, Unit::Ratio);
    Ok(())
}

/// One tenant for each model, with default settings: first one by one, then together.
fn tenants(bed: &Bed, report: &mut Report, models: &[Model]) -> Result<()> {
    let running = bed.start("")?;
    let mut tenants = Vec::new();
    for (nth, model) in models.iter().enumerate() {
        let tenant = nth + 1;
        tenants.push((tenant, model, model.add(&mut load::connect(&running, tenant)?)?));
    }
    let mut alone = Vec::new();
    for tenant in tenants.chunks(1) {
        alone.extend(rates(bed, &running, tenant, OF_TENANT)?);
    }
    let together = |running: &Running| -> Result<Vec<f64>> {
        let rates = rates(bed, running, &tenants, OF_TENANT)?;
        Ok(rates.iter().zip(&alone).map(|(together, alone)| together / alone).collect())
    };
    let shares = together(&running)?;
    for ((model, alone), share) in models.iter().zip(&alone).zip(&shares) {
        let name = &model.name;
        report.info(format!("{name}, a tenant alone, {OF_TENANT} in flight"), *alone, Unit::PerSecond);
        report.info(format!("{name}, … beside the others / alone"), *share, Unit::Ratio);
    }
    let what = format!("{} tenants, a model each, sum of rates / alone", models.len());
    report.at_least(TOGETHER, what, shares.iter().sum(), Unit::Ratio);
    report.info("… Jain's index of these shares", jain(&shares), Unit::Ratio);
    let change = [("quantum".to_owned(), LONG_QUANTUM.to_owned())].into();
    let mut admin = running.admin()?;
    let device = admin.status()?.devices.first().map(|device| device.name.clone()).unwrap_or_default();
    admin.set_device(&device, change)?;
    let what = format!("… with turns of {LONG_QUANTUM}");
    report.info(what, together(&running)?.iter().sum::<f64>(), Unit::Ratio);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn what_was_found_is_judged_by_network_and_type() {
        let found = r#"{
            "resnet18-1-fp32": {"pappus_ns": 115, "eager_ns": 100, "graph_ns": 50, "compiled_ns": 100, "pappus_error": 2e-4},
            "gpt-bf16": {"pappus_ns": 115, "eager_ns": 100, "pappus_error": 0.01, "eager_error": 0.02,
                         "compile_failed": "took too long"},
            "dense-fp32": {"pappus_ns": 9, "eager_ns": 1, "graph_ns": 20, "pappus_error": 1e-6},
            "convolutional-fp32": {"failed": "no memory"}
        }"#;
        let mut report = Report::new(Machine::describe());
        report.begin("m");
        judge(&mut report, &serde_json::from_str(found).unwrap());
        let judged: Vec<_> =
            report.figures().iter().filter_map(|figure| Some((figure.what.as_str(), figure.ok?))).collect();
        assert_eq!(
            judged,
            [
                ("dense-fp32, largest difference to eager", true),
                ("gpt-bf16, … / eager's", true),
                ("gpt-bf16, p50 / eager PyTorch", false),
                ("resnet18-1-fp32, largest difference to eager", false),
                ("resnet18-1-fp32, p50 / eager PyTorch", true),
                ("resnet18-1-fp32, p50 / CUDA graph", false),
                ("resnet18-1-fp32, p50 / torch.compile", false),
                ("geometric mean of 2 models, p50 / CUDA graph", true),
            ]
        );
        let json = report.to_json().unwrap();
        assert!(report.has_failed() && json.contains("convolutional-fp32: no memory"), "{json}");
        assert!(json.contains("gpt-bf16, torch.compile: took too long"), "{json}");
    }

    #[test]
    fn a_package_without_its_input_says_who_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(models(&folder.path().join("absent")).unwrap_err().to_string().contains("models-build"));
        let package = folder.path().join("m");
        std::fs::create_dir(&package).unwrap();
        let config = r#"{"modules": [{"module_name": "m", "path": "m"}],
            "kernels": [{"module_name": "m", "kernel_name": "k"}],
            "blueprint": {"inputs": ["A"], "buffers": {"B": {"Sizeof": "A"}}, "outputs": ["B"], "control_flow": []}}"#;
        std::fs::write(package.join("function.json"), config).unwrap();
        let why = models(folder.path()).unwrap_err().to_string();
        assert!(why.contains("m/input.bin") && why.contains("bench_models.prepare"), "{why}");
        std::fs::write(package.join(INPUT), [0; 24]).unwrap();
        let found = models(folder.path()).unwrap();
        assert_eq!(found[0].name, "m");
        assert_eq!(found[0].data.output, Some(("B".to_owned(), 24)));
    }
}
