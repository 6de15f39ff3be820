//! The files of `tests/npy` as inputs: what is taken, and the bytes that are sent.

#[path = "../tests/npy_corpus.rs"]
mod npy_corpus;

use std::path::Path;

use pappus_blueprint::Known;
use serde_json::json;

use super::{Input, Spec, learn, plan};
use crate::failure::Result;
use crate::input::Source;
use npy_corpus::{corpus, types};

/// The bytes that would be sent.
fn sent(path: &Path, declared: &str) -> Result<Vec<u8>> {
    let text = json!({"module_path": "m.wasm", "kernels": [], "blueprint": {
        "inputs": ["A"], "buffers": {}, "outputs": ["A"], "types": types("A", declared), "control_flow": []}});
    let blueprint = pappus_blueprint::parse(text.to_string().as_bytes()).unwrap();
    let spec = Spec { expected: None, sources: vec![Source::File(path.to_owned())] };
    let input = Input::open("A", &spec, blueprint.input_type("A"))?;
    let mut bytes = vec![0; input.bytes() as usize];
    input.items[0].read(0, &mut bytes)?;
    let mut known = Known::default();
    learn(&mut known, &blueprint, &[input])?;
    plan(&blueprint, &known)?.unwrap();
    Ok(bytes)
}

#[test]
fn inputs_are_taken_as_the_corpus_says() {
    let (folder, cases) = corpus();
    assert!(cases.len() >= 60, "{}", cases.len());
    for case in &cases {
        let path = folder.join(case["file"].as_str().unwrap());
        for (declared, fits) in case["declared"].as_object().unwrap() {
            let sent = sent(&path, declared);
            let what = format!("{} as {declared}: {sent:?}", path.display());
            assert_eq!(sent.is_ok(), fits.as_bool().unwrap(), "{what}");
            let Ok(sent) = sent else { continue };
            let hex: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(case["sent"], hex, "{what}");
        }
    }
}
