//! What the gateway tells of itself and of functions, as JSON.

use serde_json::{Value, json};

use crate::callers::Caller;
use crate::model::{Model, Port};
use crate::statistics::{Counts, Tally};

/// Extensions of the protocol that are served.
pub const EXTENSIONS: [&str; 6] =
    ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "sequence", "statistics"];

/// The server itself.
pub fn server() -> Value {
    json!({ "name": "pappus", "version": pappus_version::VERSION, "extensions": EXTENSIONS })
}

/// What a function takes and gives.
pub fn metadata(model: &Model) -> Value {
    let port = |port: &Port| json!({ "name": port.name, "datatype": port.datatype(), "shape": port.shape });
    json!({
        "name": model.name,
        "versions": model.versions(),
        "platform": "pappus",
        "inputs": model.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": model.outputs.iter().map(port).collect::<Vec<_>>(),
    })
}

/// The same, as Triton's configuration of a model.
pub fn config(model: &Model) -> Value {
    let port = |port: &Port| json!({ "name": port.name, "data_type": format!("TYPE_{}", port.datatype()), "dims": port.shape });
    let mut config = json!({
        "name": model.name,
        "platform": "pappus",
        "backend": "pappus",
        "version_policy": { "specific": { "versions": model.versions } },
        "max_batch_size": 0,
        "input": model.inputs.iter().map(port).collect::<Vec<_>>(),
        "output": model.outputs.iter().map(port).collect::<Vec<_>>(),
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {},
    });
    if model.has_state {
        config["sequence_batching"] = json!({});
    }
    config
}

/// A function as entries of the index, one for each version.
pub fn entries(model: &Model) -> Vec<Value> {
    let entry = |version| json!({ "name": model.name, "version": version, "state": "READY", "reason": "" });
    model.versions().into_iter().map(entry).collect()
}

/// What was inferred with functions, by version.
pub fn statistics<'m>(caller: &Caller, models: impl IntoIterator<Item = &'m Model>, version: &str) -> Value {
    let of = |model: &Model| {
        let counted = caller.counts(model, version).into_iter();
        counted.map(|(version, counts)| of_version(&model.name, version, &counts)).collect::<Vec<_>>()
    };
    json!({ "model_stats": models.into_iter().flat_map(of).collect::<Vec<_>>() })
}

fn of_version(name: &str, version: u32, counts: &Counts) -> Value {
    let tally = |tally: Tally| json!({ "count": tally.count, "ns": tally.ns });
    json!({
        "name": name,
        "version": version.to_string(),
        "last_inference": counts.last_ms,
        "inference_count": counts.success.count,
        "execution_count": counts.success.count,
        "inference_stats": {
            "success": tally(counts.success),
            "fail": tally(counts.fail),
            "queue": tally(counts.queue),
            "compute_input": tally(counts.compute_input),
            "compute_infer": tally(counts.compute_infer),
            "compute_output": tally(counts.compute_output),
            "cache_hit": tally(Tally::default()),
            "cache_miss": tally(Tally::default()),
        },
        "batch_stats": [],
    })
}
