//! What `describe` says with little known, and with all.

use super::{launch, launch_as, with, with_steps};
use crate::{Known, describe, parse};

const WORD: &str = r#"{"FromInput": {"bufname": "cfg", "idx": 3}}"#;

fn known(inputs: &[(&str, u64)], words: &[(&str, u64, u64)]) -> Known {
    Known {
        inputs: inputs.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect(),
        weights: [].into(),
        words: words.iter().map(|&(name, index, value)| ((name.to_owned(), index), value)).collect(),
        free: [].into(),
    }
}

/// The buffer `B` of this size is described as `expect`.
fn check(sizing: &str, known: &Known, expect: &str) {
    let description =
        describe(&parse(with(&format!("\"B\": {sizing}"), "").as_bytes()).unwrap(), known).unwrap();
    assert_eq!(description.buffers[3].bytes.to_string(), expect);
    assert_eq!(description.buffers[3].bytes.value(), expect.parse().ok());
}

fn repeat(count: &str, body: &str) -> String {
    format!(r#"{{"Repeat": [{count}, [{body}]]}}"#)
}

#[test]
fn expressions_read_as_formulas() {
    let none = &known(&[], &[]);
    let (a, n) = (r#"{"Sizeof": "A"}"#, |n: u64| format!(r#"{{"Absolute": {n}}}"#));
    let op = |op: &str, a: &str, b: &str| format!(r#"{{"{op}": [{a}, {b}]}}"#);
    check(a, none, "sizeof(A)");
    check(WORD, none, "cfg[3]");
    check(r#"{"Sizeof": "W"}"#, none, "sizeof(W)");
    check(&op("CeilDiv", WORD, &n(32)), none, "ceil(cfg[3] / 32)");
    check(&op("Sum", &n(1), &op("Sum", a, &n(2))), none, "sizeof(A) + 3");
    check(&op("Sum", a, &op("Product", a, &n(2))), none, "3 × sizeof(A)");
    check(
        &op("Product", &op("Sum", a, &n(2)), &op("Sum", WORD, &n(4))),
        none,
        "4 × sizeof(A) + sizeof(A) × cfg[3] + 2 × cfg[3] + 8",
    );
    check(&op("Product", a, &n(0)), none, "0");
    check(&op("CeilDiv", &op("Product", a, &n(64)), &n(32)), none, "2 × sizeof(A)");
    check(
        &op("CeilDiv", &op("Sum", a, &n(31)), &op("Product", WORD, &n(2))),
        none,
        "ceil((sizeof(A) + 31) / (2 × cfg[3]))",
    );
    check(&op("Min", a, WORD), none, "min(sizeof(A), cfg[3])");
    check(&op("Min", a, a), none, "sizeof(A)");
    check(&op("Max", a, WORD), none, "max(sizeof(A), cfg[3])");
    check(&op("Sub", a, WORD), none, "(sizeof(A) − cfg[3])");
    check(
        &op("Product", &op("Sub", a, &op("Sum", WORD, &n(1))), &n(2)),
        none,
        "2 × (sizeof(A) − (cfg[3] + 1))",
    );
    check(
        &op("Sub", &op("Sum", &op("Product", a, &n(3)), &n(5)), &op("Sum", a, &n(5))),
        none,
        "2 × sizeof(A)",
    );
    check(&op("Sub", &op("Sum", a, &n(1)), &n(3)), none, "(sizeof(A) + 1 − 3)");
    check(&op("FloorDiv", &op("Sum", a, &n(31)), &n(32)), none, "floor((sizeof(A) + 31) / 32)");
    check(&op("FloorDiv", &op("Product", a, &n(64)), &n(32)), none, "2 × sizeof(A)");
    check(&op("Mod", &op("Product", a, &n(64)), &n(32)), none, "0");
    check(&op("Mod", &op("Product", a, &n(2)), &n(32)), none, "((2 × sizeof(A)) mod 32)");
    let partly = &known(&[("A", 100)], &[]);
    check(&op("Sum", a, &op("CeilDiv", a, &n(32))), partly, "104");
    check(&op("Product", a, WORD), partly, "100 × cfg[3]");
    check(&op("Product", a, WORD), &known(&[("A", 100)], &[("cfg", 3, 7)]), "700");
    for division in ["CeilDiv", "FloorDiv", "Mod"] {
        check(&op(division, a, WORD), &known(&[("A", 100)], &[("cfg", 3, 0)]), "sizeof(B)");
    }
    check(&op("Sub", a, WORD), &known(&[("A", 100)], &[("cfg", 3, 101)]), "sizeof(B)");
    check(&op("Mod", a, WORD), &known(&[("A", 100)], &[("cfg", 3, 7)]), "2");
}

#[test]
fn memory_is_aligned() {
    let blueprint = parse(with(r#""B": {"Sizeof": "A"}, "C": {"Absolute": 1}"#, "").as_bytes()).unwrap();
    let memory = |known: &Known| {
        let description = describe(&blueprint, known).unwrap();
        [description.unshared_pool_bytes.to_string(), description.weight_bytes.to_string()]
    };
    assert_eq!(
        memory(&known(&[], &[])),
        ["256 × ceil(sizeof(cfg) / 256) + 512 × ceil(sizeof(A) / 256) + 256", "256 × ceil(sizeof(W) / 256)"]
    );
    assert_eq!(memory(&known(&[("A", 300), ("cfg", 8)], &[]))[0], "1536");
}

#[test]
fn launches_are_counted_as_far_as_sizes_are_known() {
    let say = |flow: &str, known: &Known| {
        describe(&parse(with_steps(flow).as_bytes()).unwrap(), known).unwrap().launches.to_string()
    };
    let one = launch("");
    let three = [one.as_str(), &one, &one].join(",");
    let flow = [one.as_str(), &repeat(WORD, &three), &one].join(",");
    assert_eq!(say(&flow, &known(&[], &[])), "3 × cfg[3] + 2");
    assert_eq!(say(&flow, &known(&[], &[("cfg", 3, 10)])), "32");
    assert_eq!(say("", &known(&[], &[])), "0");
    let nested = repeat(WORD, &format!("{}, {one}", repeat(r#"{"Absolute": 4}"#, &repeat(WORD, &one))));
    assert_eq!(say(&nested, &known(&[], &[])), "cfg[3] + 4 × cfg[3] × cfg[3]");
    assert_eq!(say(r#"{"Fill": {"buffer": "B", "byte": 0}}"#, &known(&[], &[])), "0");
}

#[test]
fn a_long_description_is_cut() {
    let doubling = (0..500)
        .map(|i| format!(r#""b{}": {{"Product": [{{"Sizeof": "b{i}"}}, {{"Sizeof": "b{i}"}}]}}"#, i + 1));
    let doubling: Vec<String> = doubling.collect();
    let buffers = format!(
        r#""B": {{"Sizeof": "b500"}}, "b0": {{"Sum": [{WORD}, {{"Sizeof": "A"}}]}}, {}"#,
        doubling.join(",")
    );
    let description = describe(&parse(with(&buffers, "").as_bytes()).unwrap(), &Known::default()).unwrap();
    assert!(description.buffers.iter().all(|buffer| buffer.bytes.to_string().len() < 4096));
    let words: Vec<_> =
        (0..500).map(|i| repeat(&WORD.replace('3', &i.to_string()), &launch_as("", WORD))).collect();
    let description =
        describe(&parse(with_steps(&words.join(",")).as_bytes()).unwrap(), &Known::default()).unwrap();
    assert_eq!(description.launches.to_string(), "…");
}

#[test]
fn a_description_is_written_as_json() {
    let json = with_steps(&repeat(WORD, &launch(""))).replace(
        r#""weights""#,
        r#""types": {"B": {"dtype": "f32", "shape": [{"Absolute": 5}, {"Sizeof": "W"}]}}, "weights""#,
    );
    let description = describe(&parse(json.as_bytes()).unwrap(), &known(&[("A", 300)], &[])).unwrap();
    let json = serde_json::to_value(&description).unwrap();
    assert_eq!(json["launches"], "cfg[3]");
    let expected = serde_json::json!({"name": "B", "role": "buffer", "output": true, "bytes": 300,
        "dtype": "f32", "shape": [5, "sizeof(W)"]});
    assert_eq!(json["buffers"][3], expected);
}

#[test]
fn known_names_must_exist() {
    let blueprint = parse(with_steps(&repeat(WORD, &launch(""))).as_bytes()).unwrap();
    let check = |known: &Known, words: &str| {
        let error = describe(&blueprint, known).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(&known(&[("W", 1)], &[]), "a size for \"W\", expected an input");
    check(&known(&[], &[("cfg", 2, 1)]), "a value for word 2 of \"cfg\"");
    check(&Known { weights: [("A".to_owned(), 1)].into(), ..Known::default() }, "expected a weight");
}
