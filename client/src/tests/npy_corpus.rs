//! The files of `tests/npy`, and what is declared of them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The folder with every file, and the cases.
pub(crate) fn corpus() -> (PathBuf, Vec<Value>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/npy");
    let cases = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    (folder, cases)
}

/// `f32[2,3]`, or `-`, as a blueprint declares it of `name`.
pub(crate) fn types(name: &str, declared: &str) -> Value {
    let (dtype, dims) = declared.split_once('[').unwrap_or((declared, ""));
    let dims = dims.trim_end_matches(']').split(',').filter(|dim| !dim.is_empty());
    let dims: Vec<Value> = dims.map(|dim| json!({"Absolute": dim.parse::<u64>().unwrap()})).collect();
    match declared {
        "-" => json!({}),
        _ if declared.contains('[') => json!({name: {"dtype": dtype, "shape": dims}}),
        _ => json!({name: {"dtype": dtype}}),
    }
}
