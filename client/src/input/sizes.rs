//! What is wrong with the sizes of inputs, in the words of the command line: a plan that fails names places of the
//! blueprint, which its caller may never have seen.

use std::fmt::Write;

use pappus_blueprint::{Amount, Blueprint, DType, Known, Role, WordRef, describe};

use super::Input;
use super::spec::Expected;
use crate::failure::Failure;

/// Words of an example that are written out.
const EXAMPLE_WORDS: u64 = 8;

/// An input, of this type where it is declared, is too short for a word that a size is computed from.
pub(super) fn no_word(input: &Input, declared: Option<DType>, index: u64) -> Failure {
    let (name, bytes) = (&input.name, input.bytes());
    let needed = index.saturating_add(1).saturating_mul(8);
    let words = match index {
        0 => "word 0 takes 8".to_owned(),
        last => format!("words 0 to {last} take {needed}"),
    };
    let numbers: Vec<String> =
        (1..=EXAMPLE_WORDS.min(index.saturating_add(1))).map(|n| n.to_string()).collect();
    let more = if index < EXAMPLE_WORDS { "" } else { ",…" };
    let example = match declared.unwrap_or(DType::U64) {
        dtype @ (DType::U64 | DType::I64) => {
            format!(", such as {name}={}:{}{more}", dtype.name(), numbers.join(","))
        }
        _ => String::new(),
    };
    Failure::Refused(format!("input {name:?} has {bytes} bytes; {words}{example}"))
}

/// Why there is no plan for these inputs.
pub(super) fn explain(blueprint: &Blueprint, known: &Known, error: pappus_blueprint::Error) -> Failure {
    let computed = computed_from(blueprint, known, &error.path);
    match unfit_input(blueprint, known) {
        Some(why) => Failure::Refused(why + &computed),
        None => pappus_blueprint::Error { message: error.message + &computed, ..error }.into(),
    }
}

/// The first input whose bytes are not those of the type and shape that the blueprint declares.
fn unfit_input(blueprint: &Blueprint, known: &Known) -> Option<String> {
    let description = describe(blueprint, known).ok()?;
    description.buffers.iter().filter(|buffer| buffer.role == Role::Input).find_map(|buffer| {
        let (dtype, bytes) = (buffer.dtype?, buffer.bytes.value()?);
        let width = dtype.bytes();
        let expected = match &buffer.shape {
            None if bytes.is_multiple_of(width) => return None,
            None => format!("a multiple of {width} ({})", dtype.name()),
            Some(dims) => {
                let dims: Vec<u64> = dims.iter().map(Amount::value).collect::<Option<_>>()?;
                let wanted = dims.iter().try_fold(width, |all, dim| all.checked_mul(*dim))?;
                if wanted == bytes {
                    return None;
                }
                format!("{wanted} ({}) with these inputs", Expected { dtype, shape: Some(dims) })
            }
        };
        Some(format!("input {:?} has {bytes} bytes, expected {expected}", buffer.name))
    })
}

/// The words of inputs that a place of the blueprint is the first to read.
fn computed_from(blueprint: &Blueprint, known: &Known, place: &str) -> String {
    let mut text = String::new();
    for WordRef { input, index } in blueprint.words_first_read_in(place) {
        let name = &blueprint.buffers()[blueprint.inputs()[*input as usize].index()].name;
        text += if text.is_empty() { ", computed from " } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{name}[{index}]");
        if let Some(value) = known.words.get(&(name.clone(), *index)) {
            let _ = match i64::try_from(*value) {
                Ok(value) => write!(text, " = {value}"),
                // Who wrote a negative number finds it again.
                Err(_) => write!(text, " = {value} (or {})", value.cast_signed()),
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Result;

    /// Plans a function with these declarations for inputs as typed.
    fn plan(declared: &str, inputs: &[(&str, &str)]) -> Result<bool> {
        let names: Vec<String> = inputs.iter().map(|(name, _)| format!("{name:?}")).collect();
        let text = format!(
            r#"{{"module_path": "m.wasm", "kernels": [], "blueprint": {{"inputs": [{}], "outputs": [], {declared},
            "control_flow": []}}}}"#,
            names.join(", ")
        );
        let blueprint = pappus_blueprint::parse(text.as_bytes()).unwrap();
        let inputs = inputs.iter().map(|(name, spec)| Input::open(name, &spec.parse().unwrap(), None));
        let mut known = Known::default();
        super::super::learn(&mut known, &blueprint, &inputs.collect::<Result<Vec<_>>>()?)?;
        Ok(super::super::plan(&blueprint, &known)?.is_some())
    }

    fn why(declared: &str, inputs: &[(&str, &str)]) -> String {
        plan(declared, inputs).unwrap_err().to_string()
    }

    #[test]
    fn an_input_of_the_wrong_size_is_named_with_what_is_expected() {
        let as_a = r#""buffers": {}, "types": {"B": {"dtype": "f32",
            "shape": [{"CeilDiv": [{"Sizeof": "A"}, {"Absolute": 4}]}]}}"#;
        assert!(plan(as_a, &[("A", "f32:1,2,3"), ("B", "f32:1,2,3")]).unwrap());
        assert_eq!(
            why(as_a, &[("A", "f32:1,2,3"), ("B", "f32:1,2")]),
            "input \"B\" has 8 bytes, expected 12 (f32[3]) with these inputs"
        );
        let plain = r#""buffers": {}, "types": {"A": {"dtype": "f32"}}"#;
        assert_eq!(
            why(plain, &[("A", "text:abc")]),
            "input \"A\" has 3 bytes, expected a multiple of 4 (f32)"
        );
    }

    #[test]
    fn a_word_that_is_not_there_is_asked_for() {
        let declared =
            |index| format!(r#""buffers": {{"C": {{"FromInput": {{"bufname": "cfg", "idx": {index}}}}}}}"#);
        assert!(plan(&declared(0), &[("cfg", "u64:1")]).unwrap());
        for (index, expected) in [
            (0, "input \"cfg\" has 4 bytes; word 0 takes 8, such as cfg=u64:1"),
            (2, "input \"cfg\" has 4 bytes; words 0 to 2 take 24, such as cfg=u64:1,2,3"),
            (99, "input \"cfg\" has 4 bytes; words 0 to 99 take 800, such as cfg=u64:1,2,3,4,5,6,7,8,…"),
        ] {
            assert_eq!(why(&declared(index), &[("cfg", "u32:1")]), expected);
        }
        // In numbers of the type that the function takes.
        for (dtype, example) in [("i64", ", such as cfg=i64:1"), ("f32", "")] {
            let typed = format!(r#"{}, "types": {{"cfg": {{"dtype": "{dtype}"}}}}"#, declared(0));
            let expected = format!("input \"cfg\" has 4 bytes; word 0 takes 8{example}");
            assert_eq!(why(&typed, &[("cfg", "text:four")]), expected);
        }
        // Numbers of another type are told as such.
        let typed = format!(r#"{}, "types": {{"cfg": {{"dtype": "i64"}}}}"#, declared(0));
        let of_another = why(&typed, &[("cfg", "i32:3")]);
        assert!(
            of_another.ends_with("holds i32[1], expected i64 as the function declares it"),
            "{of_another}"
        );
    }

    #[test]
    fn a_size_that_cannot_be_names_the_words_it_is_computed_from() {
        let word = r#"{"FromInput": {"bufname": "cfg", "idx": 0}}"#;
        let buffer = format!(r#""buffers": {{"C": {word}}}"#);
        let text = why(&buffer, &[("cfg", "u64:0xffffffffffff")]);
        assert!(text.ends_with(", computed from cfg[0] = 281474976710655"), "{text}");
        let typed = format!(r#""buffers": {{}}, "types": {{"A": {{"dtype": "u8", "shape": [{word}]}}}}"#);
        assert_eq!(
            why(&typed, &[("cfg", "u64:3"), ("A", "u8:1,2")]),
            "input \"A\" has 2 bytes, expected 3 (u8[3]) with these inputs, computed from cfg[0] = 3"
        );
    }
}
