//! Sizes that have names of their own; and documents that are written again.

use serde_json::json;

use super::{launch, mistakes};
use crate::resolve::read_and_resolve;
use crate::write::Write;
use crate::{Known, Sizes, describe, parse};

/// A function with input `A`, these sizes, and buffer `B` of the size `b`.
fn with_sizes(sizes: &str) -> String {
    let flow = launch(r#"{"Ptr": "A"}, {"Ptr": "B"}, {"U64": {"Size": "a"}}"#);
    format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": ["A"], "sizes": {{{sizes}}},
            "buffers": {{"B": {{"Size": "b"}}, "C": {{"Size": "c"}}}}, "outputs": ["B"], "control_flow": [{flow}]}}}}"#
    )
}

#[test]
fn sizes_and_buffers_name_each_other_in_any_order() {
    let json = with_sizes(
        r#""c": {"Sum": [{"Sizeof": "B"}, {"Size": "a"}]}, "b": {"Product": [{"Size": "a"}, 2]}, "a": {"Sizeof": "A"}"#,
    );
    let blueprint = parse(json.as_bytes()).unwrap();
    let plan = blueprint.plan(&Sizes { inputs: &[5], weights: &[], words: &[], free: &[] }).unwrap();
    let bytes: Vec<u64> = plan.buffers.iter().map(|buffer| buffer.bytes).collect();
    assert_eq!(bytes, [5, 10, 15]);
}

#[test]
fn a_chain_of_sizes_may_be_longer_than_levels_of_one() {
    let chain: Vec<String> = (0..1000)
        .map(|at| format!(r#""s{at}": {{"Sum": [{{"Size": "s{}"}}, {{"Size": "s{}"}}]}}"#, at + 1, at + 1))
        .collect();
    let json = with_sizes(&format!(
        r#"{}, "s1000": 0, "a": {{"Size": "s0"}}, "b": {{"Sizeof": "A"}}, "c": 8"#,
        chain.join(", ")
    ));
    parse(json.as_bytes()).unwrap();
}

#[test]
fn mistakes_of_sizes_are_told() {
    let json = with_sizes(r#""a": {"Size": "b"}, "b": {"Sizeof": "B"}, "c": {"Size": "cc"}, "a": 1"#);
    let told = mistakes(&json).lines("");
    for words in [
        "at blueprint.sizes.c.Size: unknown size \"cc\", did you mean \"c\"?",
        "its size depends on itself (",
        "at blueprint.sizes.a: \"a\" a second time",
    ] {
        assert!(told.contains(words), "{words} is not in {told}");
    }
}

/// What is read and written again is the same function, and written a second time the same text.
#[test]
fn a_document_that_is_written_is_the_same_function() {
    let reference = include_str!("../../../docs/blueprint.md");
    let blocks = reference.split("```json\n").skip(1);
    let mut examples: Vec<String> =
        blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect();
    examples.push(with_sizes(r#""a": 4, "b": {"Size": "a"}, "c": 5"#));
    let odd = json!({
        "module_path": "a\"\\\n", "kernels": [], "blueprint": {"inputs": [], "buffers": {"é\u{1f600}": 1},
            "outputs": [], "control_flow": [{"Fill": {"buffer": "é\u{1f600}", "byte": 7}}]},
    });
    examples.push(odd.to_string().replace("\\n", ""));
    for example in examples {
        let (written, blueprint) = read_and_resolve(example.as_bytes()).unwrap();
        let mut text = String::new();
        written.write(&mut text);
        let (again, same) = read_and_resolve(text.as_bytes()).unwrap_or_else(|why| panic!("{why} in {text}"));
        let described = |blueprint| describe(blueprint, &Known::default()).unwrap();
        assert_eq!(described(&blueprint), described(&same), "{text}");
        assert_eq!(blueprint.items, same.items, "{text}");
        let mut second = String::new();
        again.write(&mut second);
        assert_eq!(text, second);
    }
}
