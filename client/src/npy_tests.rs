//! The files of `tests/npy` as weights: what is taken, and the bytes that are handed over.

#[path = "tests/npy_corpus.rs"]
mod npy_corpus;

use serde_json::{Value, json};

use super::Package;
use crate::npy::{self, Contents};
use crate::source::Source;
use npy_corpus::{corpus, types};

#[test]
fn weights_are_taken_as_the_corpus_says() {
    let (folder, cases) = corpus();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("f.json");
    let (mut taken, mut refused) = (0, 0);
    for case in &cases {
        let path = folder.join(case["file"].as_str().unwrap());
        for (declared, fits) in case["declared"].as_object().unwrap() {
            let text = json!({"module_path": "m.wasm", "kernels": [], "blueprint": {
                "inputs": [], "weights": ["W"], "buffers": {"C": {"Sizeof": "W"}}, "outputs": ["C"],
                "types": types("W", declared), "control_flow": []}});
            std::fs::write(&config, text.to_string()).unwrap();
            let read = Package::read(&config, &[("W".into(), path.clone())]);
            let what = format!("{} as {declared}: {read:?}", path.display());
            assert_eq!(read.is_ok(), fits.as_bool().unwrap(), "{what}");
            match read {
                Ok(package) => {
                    let sent = match npy::read(&Source::file(&path)).unwrap().0 {
                        Contents::Converted(bytes) => bytes,
                        Contents::Range(range) => {
                            std::fs::read(&path).unwrap()[range.offset as usize..].to_vec()
                        }
                    };
                    let hex: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
                    assert_eq!(case["sent"], hex, "{what}");
                    assert_eq!(package.weights()[0].data.unwrap().bytes, sent.len() as u64, "{what}");
                    taken += 1;
                }
                Err(why) => {
                    // Of a file that is what it should be, both types are named.
                    let said = why.to_string();
                    assert!(case["sent"].is_null() || said.contains(" came, "), "{said}");
                    refused += 1;
                }
            }
        }
    }
    assert!(cases.len() >= 60 && taken > 100 && refused > 200, "{} {taken} {refused}", cases.len());
}

#[test]
fn shapes_of_weights_are_computed_as_far_as_no_call_is_needed() {
    let (folder, _) = corpus();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("f.json");
    let read = |rows: Value, columns: Value| {
        let shape = json!([rows, columns]);
        let text = json!({"module_path": "m.wasm", "kernels": [], "blueprint": {
            "inputs": ["A"], "weights": ["W", "V"], "buffers": {}, "outputs": ["A"],
            "types": {"W": {"dtype": "f32", "shape": shape},
                      "A": {"dtype": "f32", "shape": [{"Free": "n"}]}}, "control_flow": []}});
        std::fs::write(&config, text.to_string()).unwrap();
        let of = |name: &str| folder.join(name);
        let weights = [("W".into(), of("matrix-le-rows.npy")), ("V".into(), of("vector-columns.npy"))];
        Package::read(&config, &weights).map(drop).map_err(|why| why.to_string())
    };
    // V has 12 bytes.
    let (three, two) = (json!({"CeilDiv": [{"Sizeof": "V"}, {"Absolute": 4}]}), json!({"Absolute": 2}));
    assert_eq!(read(two.clone(), three.clone()), Ok(()));
    let why = read(three, two.clone()).unwrap_err();
    assert!(why.contains("weights \"W\": f32[2,3] came, f32[3,2] is expected"), "{why}");
    // A call says what n is; the rest is known.
    assert_eq!(read(two.clone(), json!({"Free": "n"})), Ok(()));
    let why = read(json!({"Free": "n"}), two).unwrap_err();
    assert!(why.contains("f32[2,3] came, f32[n,2] is expected"), "{why}");
}
