//! Every mistake of a composition is told at once, with line and column.

use std::fmt::Write;

use serde_json::{Value, json};

use super::numbers::kinds;
use super::{Library, elementwise, function, launch, library, linked};
use crate::limits;

/// What is told of a composition, a line each.
#[track_caller]
fn told(library: &Library, composition: &str) -> String {
    linked(library, composition).map(|_| ()).unwrap_err().lines("")
}

/// A composition of one step of `scale` with these further keys.
fn with(step: &str) -> String {
    format!(
        r#"{{"inputs": ["p"], "steps": [{{"name": "a", "function": "scale", "inputs": {{"x": "p"}}{step}}}], "outputs": {{"y": {{"step": "a"}}}}}}"#
    )
}

#[track_caller]
fn is_told(composition: &str, words: &[&str]) {
    let told = told(&kinds(), composition);
    for words in words {
        assert!(told.contains(words), "{words:?} is not in\n{told}\nof {composition}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_with_their_places() {
    let composition = r#"{
  "inputs": ["p", "p"],
  "constants": {"k": {"dtype": "i64", "shape": [3], "values": [1, 2]}},
  "steps": [
    {"name": "a", "function": "scale", "inputs": {"x": "pp"}},
    {"name": "b", "function": "scael", "inputs": {"x": {"step": "a"}}},
    {"name": "c", "function": "scale", "inputs": {"z": {"step": "a", "output": "w"}}},
    {"name": "c", "function": "mix", "inputs": {"a": {"step": "d"}, "b": {"step": "zz"}}},
    {"name": "d", "function": "bob/scale", "inputs": {"x": "a"}, "tmies": 3}
  ],
  "outputs": {"p": {"step": "d"}, "o": {"step": "c", "output": "y"}}
}"#;
    is_told(
        composition,
        &[
            "2:19: at inputs[1]: \"p\" a second time",
            "at constants.k.values: 2 values, expected the 3 of its shape",
            "5:56: at steps[0].inputs.x: unknown \"pp\", did you mean \"p\"?",
            "6:31: at steps[1].function: there is no function \"scael\"",
            "at steps[2].inputs.z.output: \"scale\" has no output \"w\"; outputs: \"y\"",
            "at steps[2].inputs.z: \"scale\" has no input \"z\"; inputs: \"x\"",
            "at steps[2].inputs: nothing comes to input \"x\" of \"scale\"",
            "at steps[3].name: a second step \"c\"",
            "at steps[3].inputs.a.step: \"d\" is not an earlier step",
            "at steps[3].inputs.b.step: unknown step \"zz\"",
            "at steps[4].function: there is no function \"bob/scale\"",
            "at steps[4].inputs.x: \"a\" is a step, expected {\"step\": \"a\"}",
            "unknown key \"tmies\", did you mean \"times\"?",
            "at outputs.p: \"p\" is an input or another output",
        ],
    );
}

#[test]
fn types_and_shapes_that_do_not_fit_are_told_with_both() {
    let composition = r#"{"inputs": ["p", "q"],
      "constants": {"k": {"dtype": "i32", "values": [1, 2]}, "m": {"dtype": "f32", "shape": [1, 2], "values": [1, 2]}},
      "steps": [
        {"name": "a", "function": "grow", "inputs": {"x": "p"}},
        {"name": "b", "function": "mix", "inputs": {"a": {"step": "a"}, "b": "p"}},
        {"name": "c", "function": "scale", "inputs": {"x": "k"}},
        {"name": "d", "function": "scale", "inputs": {"x": "m"}},
        {"name": "e", "function": "counted", "inputs": {"x": "p", "k": {"step": "f"}}},
        {"name": "f", "function": "scale", "inputs": {"x": "q"}},
        {"name": "g", "function": "grow", "inputs": {"x": "q"}, "times": 2, "feed": {"y": "x"}}],
      "outputs": {"y": {"step": "a"}}}"#;
    let ordered = composition.replace(r#""k": {"step": "f"}"#, r#""k": {"step": "a"}"#);
    is_told(
        &ordered,
        &[
            "at steps[1].inputs.b: f32[n + 1] is wanted, f32[n] came",
            "at steps[2].inputs.x: f32[2] is wanted, i32[2] came",
            "at steps[3].inputs.x: f32[n] is wanted, f32[1, 2] came",
            "at steps[4].inputs.k: sizes of \"counted\" read word 1 of it, and another step computes it",
            "at steps[6].feed.y: output \"y\" cannot be input \"x\" of the next time",
        ],
    );
}

#[test]
fn each_and_times_are_bounded() {
    let items = |items: u64| with(&format!(r#", "each": {{"items": {items}, "inputs": ["x"]}}"#));
    assert!(linked(&kinds(), &items(3)).is_ok());
    for (step, words) in [
        (items(0), "at steps[0].each.items: the value is 0, expected 1 to 1024"),
        (items(u64::MAX), "expected 1 to 1024"),
        (with(r#", "each": {"items": 2, "inputs": []}"#), "at steps[0].each.inputs: no input"),
        (with(r#", "each": {"items": 2, "inputs": ["y"]}"#), "has no input \"y\""),
        (with(r#", "times": 0, "feed": {"y": "x"}"#), "at steps[0].times: the value is 0"),
        (with(r#", "times": 18446744073709551615, "feed": {"y": "x"}"#), "expected 1 to 1000000"),
        (with(r#", "times": 1000000, "feed": {"y": "x"}"#), "more steps than allowed"),
        (with(r#", "times": 2"#), "at steps[0].times: every time would be the same"),
        (with(r#", "feed": {"y": "x"}"#), "`feed` without `times`"),
        (with(r#", "times": 2, "feed": {"x": "x"}"#), "has no output \"x\""),
    ] {
        is_told(&step, &[words]);
    }
    let many: Vec<Value> = (0..5)
        .map(|at| {
            let each = json!({"items": 1000, "inputs": ["x"]});
            json!({"name": format!("s{at}"), "function": "scale", "inputs": {"x": "p"}, "each": each})
        })
        .collect();
    let composition = json!({"inputs": ["p"], "steps": many, "outputs": {}}).to_string();
    is_told(&composition, &["at steps: 5000 runs of functions in all, expected at most 4096"]);
}

/// Small texts that would become large ones end at a limit, with little done.
#[test]
fn what_would_blow_up_is_refused() {
    let mut library = kinds();
    let large = {
        let mut large = elementwise("large");
        let launch = large["blueprint"]["control_flow"][0].clone();
        large["blueprint"]["control_flow"] = vec![launch; 8000].into();
        large
    };
    library.insert("large".into(), large);
    let step = |at: usize, each: &str| {
        format!(r#"{{"name": "s{at}", "function": "large", "inputs": {{"x": "p"}}{each}}}"#)
    };
    let start = crate::tests::processor_time();
    let each = r#", "each": {"items": 1000, "inputs": ["x"]}"#;
    let text = format!(r#"{{"inputs": ["p"], "steps": [{}], "outputs": {{}}}}"#, step(0, each));
    let found = told(&library, &text);
    assert!(found.contains("at steps[0]: the linked function is longer than the 4194304 bytes"), "{found}");
    let mut steps = String::new();
    for at in 0..=limits::STEPS {
        write!(steps, "{}{}", if at > 0 { "," } else { "" }, step(at, "")).unwrap();
    }
    let text = format!(r#"{{"inputs": ["p"], "steps": [{steps}], "outputs": {{}}}}"#);
    let found = told(&library, &text);
    assert!(found.contains("at steps: one more entry, expected at most 1024"), "{found}");
    let spent = crate::tests::processor_time() - start;
    assert!(spent < std::time::Duration::from_secs(20), "{spent:?}");
    let long = format!(r#"{{"steps": [], "inputs": ["{}"]}}"#, "x".repeat(limits::COMPOSITION_BYTES));
    assert!(told(&library, &long).contains("bytes of JSON, expected at most 1048576"));
}

#[test]
fn what_is_no_composition_is_told_as_such() {
    for (text, words) in [
        ("{", "1:2: it is no JSON"),
        (r#"{"steps": []}"#, "at steps: no step, expected at least one"),
        (r#"{"steps": 5}"#, "1:11: at steps: found the number 5, expected a list"),
        (
            r#"{"inputs": ["a b"], "steps": [], "outputs": {}}"#,
            "\"a b\", expected 1 to 255 letters, digits, `_` and `-`",
        ),
    ] {
        is_told(text, &[words]);
    }
    let unused = with("").replace(r#"["p"]"#, r#"["p", "q"]"#);
    is_told(&unused, &["at inputs[1]: no step uses input \"q\""]);
}

/// `x` → `y`, without types: what comes to whom must be told by others.
fn untyped() -> Value {
    let steps = [launch("f", &[json!({"Ptr": "x"}), json!({"Ptr": "y"})])];
    function(
        "f",
        json!({"inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}}, "outputs": ["y"], "control_flow": steps}),
    )
}

#[test]
fn two_inputs_that_tell_the_type_of_one_output_are_both_checked() {
    let four = json!({"dtype": "f32", "shape": [4]});
    let pair = function(
        "g",
        json!({
            "inputs": ["a", "b"], "buffers": {"c": 16}, "outputs": ["c"], "types": {"a": four, "b": four, "c": four},
            "control_flow": [launch("g", &["a", "b", "c"].map(|name| json!({"Ptr": name})))],
        }),
    );
    let library = library(&[("f", untyped()), ("g", pair), ("h", elementwise("h"))]);
    let composition = json!({
        "inputs": ["x"],
        "steps": [
            {"name": "s", "function": "f", "inputs": {"x": "x"}},
            {"name": "t", "function": "g", "inputs": {"a": {"step": "s"}, "b": {"step": "s"}}},
            {"name": "u", "function": "h", "inputs": {"x": {"step": "t"}}}],
        "outputs": {"y": {"step": "u"}},
    });
    linked(&library, &composition.to_string()).unwrap();
    let wrong = composition.to_string().replacen("\"x\":{\"step\":\"t\"}", "\"x\":{\"step\":\"u\"}", 1);
    assert!(linked(&library, &wrong).is_err());
}

#[test]
fn what_each_time_brings_anew_tells_no_size() {
    let word = json!({"Product": [{"FromInput": {"bufname": "n", "idx": 0}}, 8]});
    let counts = function(
        "f",
        json!({
            "inputs": ["n"], "buffers": {"m": 8, "z": word}, "outputs": ["m"],
            "control_flow": [launch("f", &["n", "m", "z"].map(|name| json!({"Ptr": name})))],
        }),
    );
    let library = library(&[("f", counts)]);
    let composition = |times: &str| {
        format!(
            r#"{{"inputs": ["n"], "steps": [{{"name": "s", "function": "f", "inputs": {{"n": "n"}}{times}}}],
                "outputs": {{"m": {{"step": "s"}}}}}}"#
        )
    };
    linked(&library, &composition("")).unwrap();
    let why = linked(&library, &composition(r#", "times": 3, "feed": {"m": "n"}"#)).unwrap_err().to_string();
    assert!(why.contains("each time brings another"), "{why}");
}

#[test]
fn a_constant_that_many_outputs_have_is_there_once() {
    let library = library(&[("f", elementwise("f"))]);
    let outputs: Vec<String> = (0..100).map(|at| format!("\"o{at}\": \"c\"")).collect();
    let composition = format!(
        r#"{{"inputs": [], "constants": {{"c": {{"dtype": "f32", "values": [1, 2, 3, 4]}}}},
            "steps": [{{"name": "s", "function": "f", "inputs": {{"x": "c"}}}}],
            "outputs": {{"y": {{"step": "s"}}, {}}}}}"#,
        outputs.join(", ")
    );
    assert_eq!(linked(&library, &composition).unwrap().constants.len(), 16);
}

#[test]
fn bytes_that_no_call_would_check_must_be_known_to_fit() {
    let hundred = json!({"dtype": "f32", "shape": [100]});
    let fixed = function(
        "g",
        json!({
            "inputs": ["x"], "buffers": {"y": 400}, "outputs": ["y"], "types": {"x": hundred, "y": hundred},
            "control_flow": [launch("g", &["x", "y"].map(|name| json!({"Ptr": name})))],
        }),
    );
    // It changes its input in place, so that nothing declares what comes out of it.
    let in_place = function(
        "f",
        json!({"inputs": ["x"], "buffers": {}, "outputs": ["x"], "control_flow": [launch("f", &[json!({"Ptr": "x"})])]}),
    );
    let library = library(&[("f", in_place), ("g", fixed)]);
    let composition = r#"{"inputs": ["a"],
        "steps": [
            {"name": "s", "function": "f", "inputs": {"x": "a"}}, {"name": "t", "function": "g", "inputs": {"x": {"step": "s"}}}],
        "outputs": {"y": {"step": "t"}}}"#;
    let why = linked(&library, composition).unwrap_err().to_string();
    assert!(why.contains("f32[100] is wanted"), "{why}");
}

#[test]
fn dimensions_that_are_too_long_to_write_are_equal_to_none() {
    let power = |count: usize| json!({"CeilDiv": [{"Product": vec![json!({"Free": "n"}); count]}, 4]});
    let with = |name: &str, input: Value, output: Value| {
        let typed = |dim: Value| json!({"dtype": "u8", "shape": [{"Free": "n"}, dim]});
        let steps = [launch(name, &[json!({"Ptr": "x"}), json!({"Ptr": "y"})])];
        let bytes = json!({"Product": [{"Free": "n"}, output.clone()]});
        function(
            name,
            json!({"inputs": ["x"], "buffers": {"y": bytes}, "outputs": ["y"],
                "types": {"x": typed(input), "y": typed(output)}, "control_flow": steps}),
        )
    };
    let one =
        |count| library(&[("f", with("f", json!(1), power(9))), ("g", with("g", power(count), json!(1)))]);
    let composition = r#"{"inputs": ["x"],
        "steps": [
            {"name": "s", "function": "f", "inputs": {"x": "x"}}, {"name": "t", "function": "g", "inputs": {"x": {"step": "s"}}}],
        "outputs": {"y": {"step": "t"}}}"#;
    assert!(linked(&one(10), composition).is_err(), "n^9 and n^10");
}
