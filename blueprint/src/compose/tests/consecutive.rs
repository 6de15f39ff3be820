//! Compositions that are not linked: what the check finds, what callers are told, what calls run.

use serde_json::{Value, json};

use super::super::{Consecutive, Part, Source, as_used, consecutive, interface, names_others, steps};
use super::{Library, elementwise, function, launch, library};
use crate::arrays::{Declared, Dimension};
use crate::types::DType;
use crate::{Mistakes, parse};

/// `x` → `y`, of type u8 and shape `[4]`, and a function of another owner with the same names that takes f32.
fn functions() -> Library {
    let typed = json!({"dtype": "u8", "shape": [4]});
    let bytes = json!({
        "inputs": ["x"], "buffers": {"y": 4}, "outputs": ["y"], "types": {"x": typed, "y": typed},
        "control_flow": [launch("k", &[json!({"Ptr": "x"}), json!({"Ptr": "y"})])],
    });
    let f32s = |shape: Option<Vec<Dimension>>| Some(Declared { dtype: DType::F32, shape });
    let others = interface(&[("x", f32s(None))], &[("y", f32s(None))]);
    let others: Value = serde_json::from_slice(&others).unwrap();
    library(&[("bytes", function("k", bytes)), ("scale", elementwise("scale")), ("bob/scale", others)])
}

fn checked(composition: &Value) -> Result<Consecutive, Mistakes> {
    let library = functions();
    consecutive(composition.to_string().as_bytes(), |name| {
        Some(Part { config: library.get(name)?.to_string().into_bytes(), ..Part::default() })
    })
}

fn chain() -> Value {
    json!({
        "inputs": ["p"], "constants": {"k": {"dtype": "f32", "values": [1, 2]}},
        "steps": [
            {"name": "a", "function": "scale", "inputs": {"x": "p"}, "times": 3, "feed": {"y": "x"}},
            {"name": "b", "function": "bob/scale", "inputs": {"x": {"step": "a"}}, "each": {"items": 2, "inputs": ["x"]}},
            {"name": "c", "function": "bytes", "inputs": {"x": "q"}}],
        "outputs": {"r": {"step": "b", "output": "y"}, "s": {"step": "c"}, "t": "k"}
    })
}

#[test]
fn what_is_the_same_in_each_call_is_told_to_callers() {
    let mut chain = chain();
    chain["inputs"] = json!(["p", "q"]);
    assert!(names_others(chain.to_string().as_bytes()) && !names_others(b"{}"));
    let Consecutive { interface, functions } = checked(&chain).unwrap();
    assert_eq!(functions, ["scale", "bob/scale", "bytes"]);
    let blueprint = parse(&interface).unwrap_or_else(|why| panic!("{why}"));
    let declared = |name: &str| {
        let id = blueprint.buffers().iter().position(|buffer| buffer.name == name).unwrap();
        let shape = blueprint.buffers()[id].shape.as_ref().map(|dims| dims.len());
        (blueprint.buffers()[id].dtype.map(DType::name), shape)
    };
    assert_eq!((declared("p"), declared("q")), ((Some("f32"), Some(1)), (Some("u8"), Some(1))));
    assert_eq!(blueprint.free_dimensions().iter().map(|name| &**name).collect::<Vec<_>>(), ["p_0"]);
    assert_eq!((declared("r").0, declared("s")), (Some("f32"), (Some("u8"), Some(1))));
    assert_eq!(declared("t"), (Some("f32"), Some(1)));
    assert_eq!(blueprint.returned().len(), 3);
}

#[test]
fn its_calls_run_what_is_written() {
    let mut chain = chain();
    chain["inputs"] = json!(["p", "q"]);
    let read = steps(chain.to_string().as_bytes()).unwrap();
    assert_eq!((read.inputs.len(), read.constants.len(), read.steps.len()), (2, 1, 3));
    let [a, b, c] = &read.steps[..] else { panic!("{read:?}") };
    assert!(matches!(a.inputs[..], [(ref name, Source::Input(0))] if name == "x"));
    assert_eq!((a.times, &a.feed[..]), (3, &[("y".to_owned(), "x".to_owned())][..]));
    assert!(matches!(b.inputs[..], [(_, Source::Output { step: 0, output: None })]));
    let items = b.each.as_ref().unwrap();
    assert_eq!((items.count, &items.inputs[..], &*b.function), (2, &["x".to_owned()][..], "bob/scale"));
    assert!(matches!(c.inputs[..], [(_, Source::Input(1))]));
    assert!(matches!(read.outputs[0].1, Source::Output { step: 1, output: Some(ref name) } if name == "y"));
    assert!(matches!(read.outputs[2].1, Source::Constant(0)));
    assert_eq!(read.constants[0].bytes, [1f32, 2.0].map(f32::to_le_bytes).concat());
}

#[test]
fn mistakes_are_told_with_their_places() {
    let mut wrong = chain();
    wrong["steps"][1]["inputs"] = json!({"z": {"step": "a"}});
    let told = checked(&wrong).unwrap_err().lines("");
    for words in [
        "at steps[1].inputs.z: \"bob/scale\" has no input \"z\"; inputs: \"x\"",
        "at steps[2].inputs.x: unknown \"q\"",
    ] {
        assert!(told.contains(words), "{words:?} is not in\n{told}");
    }
    let mut mixed = chain();
    mixed["steps"][2]["inputs"] = json!({"x": {"step": "b"}});
    let told = checked(&mixed).unwrap_err().lines("");
    assert!(told.contains("at steps[2].inputs.x: u8 is wanted, f32 came"), "{told}");
    mixed["steps"][2]["function"] = json!("eve/bytes");
    let told = checked(&mixed).unwrap_err().lines("");
    assert!(told.contains("at steps[2].function: there is no function \"eve/bytes\""), "{told}");
}

#[test]
fn a_function_that_is_elsewhere_is_known_by_its_use() {
    let mut chain = chain();
    chain["inputs"] = json!(["p", "q"]);
    chain["steps"][1]["inputs"] = json!({"x": {"step": "a"}, "z": "k"});
    chain["outputs"]["u"] = json!({"step": "b", "output": "z"});
    let text = chain.to_string();
    let part = as_used(text.as_bytes(), "bob/scale").unwrap();
    let blueprint = parse(&part.config).unwrap_or_else(|why| panic!("{why}"));
    let names = |ids: &[crate::BufferId]| -> Vec<String> {
        ids.iter().map(|id| blueprint.buffers()[id.index()].name.clone()).collect()
    };
    assert_eq!(names(blueprint.inputs()), ["x", "z"]);
    // An input that the function changes is an output, too.
    assert_eq!(names(blueprint.outputs()), ["y", "z"]);
    let library = functions();
    let found = consecutive(text.as_bytes(), |name| match name {
        "bob/scale" => as_used(text.as_bytes(), name),
        name => Some(Part { config: library.get(name)?.to_string().into_bytes(), ..Part::default() }),
    });
    assert!(found.is_ok(), "{:?}", found.map(|_| ()));
}

#[test]
fn the_shape_of_an_input_is_asked_for_where_a_call_has_to_bring_one() {
    let of = |dims: &[Dimension]| Some(Declared { dtype: DType::U8, shape: Some(dims.to_vec()) });
    let (free, computed, two) = (Dimension::Free(0), Dimension::Computed, Dimension::Fixed(2));
    let inputs = [("a", of(&[free, computed, two])), ("b", of(&[computed, two])), ("c", of(&[two]))];
    let text = interface(&inputs, &[("y", of(&[computed]))]);
    let read: Value = serde_json::from_slice(&text).unwrap();
    let types = &read["blueprint"]["types"];
    assert_eq!(types["a"]["shape"], json!([{"Free": "a_0"}, {"Free": "a_1"}, {"Absolute": 2}]));
    assert_eq!((&types["b"]["shape"], &types["c"]["shape"]), (&Value::Null, &json!([{"Absolute": 2}])));
    assert_eq!(
        (&types["y"]["shape"], &read["blueprint"]["buffers"]["y"]),
        (&Value::Null, &json!({"Absolute": 0}))
    );
    parse(&text).unwrap_or_else(|why| panic!("{why}"));
}
