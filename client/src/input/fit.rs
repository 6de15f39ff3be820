//! Checks inputs against the type and shape that the command line announces and the blueprint declares. Files that do
//! not say what they hold can only have the wrong length.

use pappus_blueprint::{Blueprint, Known, Role, describe};
use pappus_client::array::{Array, Wanted};

use super::Input;
use super::spec::Expected;
use crate::failure::{Failure, Result};

/// Checks that every array has the announced type, and all together the announced shape.
pub(super) fn as_announced(input: &Input, expected: &Expected) -> Result<()> {
    let bytes = input.bytes();
    let width = expected.dtype.bytes();
    for item in &input.items {
        let Some(array) = &item.array else { continue };
        let alone = input.items.len() == 1;
        let shape_differs = alone && expected.shape.as_ref().is_some_and(|shape| *shape != array.shape);
        if !array.element.is(expected.dtype) || shape_differs {
            return Err(mismatch(input, &item.source, array, &expected.to_string()));
        }
    }
    let wanted = expected.elements().map(|elements| elements.saturating_mul(width));
    let fits = wanted.map_or(bytes.is_multiple_of(width), |wanted| wanted == bytes);
    if !fits {
        let wanted = wanted.map_or_else(|| format!("a multiple of {width}"), |wanted| wanted.to_string());
        let message = format!("input {:?} has {bytes} bytes, expected {expected}: {wanted}", input.name);
        return Err(Failure::Refused(message));
    }
    Ok(())
}

/// Checks that arrays have the types that the blueprint declares for inputs, and the shapes if it declares several
/// dimensions. One dimension only says how many elements there are, however they are arranged.
pub(super) fn as_declared(blueprint: &Blueprint, known: &Known, inputs: &[Input]) -> Result<()> {
    if !inputs.iter().any(|input| input.items.iter().any(|item| item.array.is_some())) {
        return Ok(());
    }
    let description = describe(blueprint, known)?;
    for buffer in description.buffers.iter().filter(|buffer| buffer.role == Role::Input) {
        let (Some(mut wanted), Some(input)) =
            (Wanted::of(buffer), inputs.iter().find(|input| input.name == buffer.name))
        else {
            continue;
        };
        // How many elements there are is found out from the bytes, of files that do not say what they hold, too.
        wanted.dims.take_if(|dims| dims.len() < 2);
        for item in &input.items {
            let Some(array) = &item.array else { continue };
            let fits = match input.items.len() {
                1 => wanted.fits(array).is_ok(),
                _ => array.element.is(wanted.dtype),
            };
            if !fits {
                let declared = format!("{wanted} as the function declares it");
                return Err(mismatch(input, &item.source, array, &declared));
            }
        }
    }
    Ok(())
}

pub(super) fn mismatch(input: &Input, source: &str, array: &Array, expected: &str) -> Failure {
    Failure::Refused(format!("input {:?}: {source} holds {array}, expected {expected}", input.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pappus_client::npy;

    /// Opens `A=SPEC`, where `DIR` has arrays: `i64_22.npy` of 2 × 2, `f32_4.npy`, and `raw.bin` of 10 bytes.
    fn open(spec: &str) -> Result<Input> {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, header: &[u8], bytes: usize| {
            std::fs::write(dir.path().join(name), [header, &vec![0; bytes]].concat()).unwrap();
        };
        write("i64_22.npy", &npy::header("<i8", &[2, 2]), 32);
        write("f32_4.npy", &npy::header("<f4", &[4]), 16);
        write("raw.bin", b"", 10);
        Input::open("A", &spec.replace("DIR", dir.path().to_str().unwrap()).parse().unwrap(), None)
    }

    #[test]
    fn what_was_announced_must_be_there() {
        for fits in [
            "i64[2,2]:DIR/i64_22.npy",
            "i64:DIR/i64_22.npy",
            "u16[5]:DIR/raw.bin",
            "i64[8]:DIR/i64_22.npy,DIR/i64_22.npy",
        ] {
            open(fits).unwrap();
        }
        for (spec, words) in [
            ("i64[4]:DIR/i64_22.npy", "i64_22.npy holds i64[2,2], expected i64[4]"),
            ("u64[2,2]:DIR/i64_22.npy", "holds i64[2,2], expected u64[2,2]"),
            ("i64:DIR/i64_22.npy,DIR/f32_4.npy", "f32_4.npy holds f32[4], expected i64"),
            ("i64[9]:DIR/i64_22.npy,DIR/i64_22.npy", "64 bytes, expected i64[9]: 72"),
            ("f32:DIR/raw.bin", "10 bytes, expected f32: a multiple of 4"),
        ] {
            let why = open(spec).unwrap_err().to_string();
            assert!(why.starts_with("input \"A\"") && why.contains(words), "{why}");
        }
    }

    #[test]
    fn what_the_blueprint_declares_must_be_there() {
        let blueprint = |declared: &str| {
            let text = format!(
                r#"{{"module_path": "m.wasm", "kernels": [], "blueprint": {{"inputs": ["A"], "buffers": {{}},
                "outputs": ["A"], "types": {{"A": {declared}}}, "control_flow": []}}}}"#
            );
            pappus_blueprint::parse(text.as_bytes()).unwrap()
        };
        let learn = |declared: &str, spec: &str| {
            super::super::learn(&mut Known::default(), &blueprint(declared), &[open(spec).unwrap()])
        };
        let two = r#"{"Absolute": 2}"#;
        let square = format!(r#"{{"dtype": "i64", "shape": [{two}, {two}]}}"#);
        learn(r#"{"dtype": "i64"}"#, "DIR/i64_22.npy").unwrap();
        learn(&square, "DIR/i64_22.npy").unwrap();
        let why = learn(r#"{"dtype": "f32"}"#, "DIR/i64_22.npy").unwrap_err().to_string();
        assert!(why.contains("holds i64[2,2], expected f32 as the function declares it"), "{why}");
        let why = learn(&square, "i64:1,2,3,4").unwrap_err().to_string();
        assert!(
            why.contains("command line holds i64[4], expected i64[2,2] as the function declares it"),
            "{why}"
        );
        // A file without a declared type fits anything.
        learn(&square, "DIR/raw.bin").unwrap();
    }
}
