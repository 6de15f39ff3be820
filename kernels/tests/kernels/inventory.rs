//! The tables of the crate, the folders and the configurations name the same things.

use std::collections::BTreeSet;
use std::fs;

use pappus_kernels::{ARTEFACTS, CONFIGS, artefact};
use serde_json::Value;

/// The variants of a module, by the end of their file names.
const VARIANTS: [&str; 4] = ["wasm", "ptx", "hsaco", "gfx942.hsaco"];

fn files(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Every string under `key`, at any depth.
fn launched(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| launched(value, names)),
        Value::Object(object) => {
            for (key, value) in object {
                if key == "ExecKernel" {
                    names.insert(value[0].as_str().unwrap().to_owned());
                }
                launched(value, names);
            }
        }
        _ => {}
    }
}

/// The stem and the kernels that a configuration lists, in either spelling.
fn listed(config: &Value) -> (String, BTreeSet<String>) {
    let path = config["module_path"].as_str().or_else(|| config["modules"][0]["path"].as_str()).unwrap();
    let stem = path.strip_prefix("../built/").unwrap().strip_suffix(".wasm").unwrap();
    let kernels = config["kernels"].as_array().unwrap();
    let name = |kernel: &Value| kernel["kernel_name"].as_str().or(kernel.as_str()).unwrap().to_owned();
    (stem.to_owned(), kernels.iter().map(name).collect())
}

#[test]
fn every_file_is_in_its_table() {
    let artefacts = ARTEFACTS.iter().map(|(file, _)| file.to_string()).chain(["TOOLCHAIN".to_owned()]);
    assert_eq!(artefacts.collect::<BTreeSet<_>>(), files("built"));
    let configs = CONFIGS.iter().map(|(name, _)| format!("{name}.json"));
    assert_eq!(configs.collect::<BTreeSet<_>>(), files("configs"));
}

#[test]
fn every_source_has_every_variant() {
    for source in files("c").iter().filter_map(|file| file.strip_suffix(".c")) {
        for variant in VARIANTS {
            assert!(artefact(&format!("{source}.{variant}")).is_some(), "{source}.{variant}");
        }
    }
}

#[test]
fn configurations_list_what_they_launch_and_every_variant_has_it() {
    for (name, json) in CONFIGS {
        let config: Value = serde_json::from_str(json).unwrap();
        let (stem, kernels) = listed(&config);
        let mut used = BTreeSet::new();
        launched(&config["blueprint"]["control_flow"], &mut used);
        assert_eq!(used, kernels, "{name}");
        for variant in VARIANTS {
            let bytes = artefact(&format!("{stem}.{variant}")).unwrap();
            for kernel in &kernels {
                let symbol = match variant {
                    "wasm" => kernel.clone(),
                    "ptx" => format!(".entry {kernel}("),
                    _ => format!("{kernel}.kd"),
                };
                assert!(contains(bytes, &symbol), "{name}: {kernel} in {stem}.{variant}");
            }
        }
    }
}

#[test]
fn artefacts_do_not_say_where_they_were_built() {
    for (file, bytes) in ARTEFACTS {
        for trace in [env!("CARGO_MANIFEST_DIR"), "clang version", "/tmp/"] {
            assert!(!contains(bytes, trace), "{file} contains {trace}");
        }
    }
}
