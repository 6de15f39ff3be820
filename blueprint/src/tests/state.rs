//! State: where blueprints may name it, its size, and its place in a plan.

use super::mistake;
use crate::{Blueprint, Role, Sizes, describe, parse};

/// An input `x`, state, a buffer `t` and an output `y`; `more` is written behind the outputs.
fn with(state: &str, more: &str) -> String {
    format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": ["x"], "weights": ["w"],
            "state": {{{state}}}, "buffers": {{"t": 512, "y": {{"Sizeof": "x"}}}}, "outputs": ["y"]{more},
            "control_flow": [{{"Copy": {{"from": "x", "to": "t", "bytes": 8}}}},
              {{"Copy": {{"from": "t", "to": "y", "bytes": 8}}}}]}}}}"#
    )
}

fn names<'a>(blueprint: &'a Blueprint, ids: &[crate::BufferId]) -> Vec<&'a str> {
    ids.iter().map(|id| &*blueprint.buffers()[id.index()].name).collect()
}

#[test]
fn state_goes_into_every_run_and_comes_out_of_it() {
    let types = r#", "types": {"kv": {"dtype": "f16", "shape": [4, 8]}}, "sizes": {"kv_bytes": {"Product": [4, 16]}}"#;
    let blueprint = parse(with(r#""kv": {"Size": "kv_bytes"}, "n": 8"#, types).as_bytes()).unwrap();
    assert_eq!(names(&blueprint, blueprint.inputs()), ["x", "kv", "n"]);
    assert_eq!(names(&blueprint, blueprint.outputs()), ["y", "kv", "n"]);
    assert_eq!(names(&blueprint, blueprint.brought()), ["x"]);
    assert_eq!(names(&blueprint, blueprint.returned()), ["y"]);
    assert_eq!(names(&blueprint, blueprint.state()), ["kv", "n"]);
    assert_eq!(blueprint.state_bytes(), [64, 8]);
    let role = |name: &str| blueprint.buffers()[blueprint.buffer_named(name).unwrap().index()].role;
    assert_eq!((role("kv"), role("w"), role("t")), (Role::State, Role::Weight, Role::Buffer));
    let plan = blueprint.plan(&Sizes { inputs: &[8, 64, 8], weights: &[4], words: &[], free: &[] }).unwrap();
    let place = |name: &str| plan.buffers[blueprint.buffer_named(name).unwrap().index()];
    assert_eq!((place("kv").bytes, place("n").bytes), (64, 8));
    assert_eq!(plan.output_shapes[1].as_ref().unwrap().dims, [4, 8]);
    let description = describe(&blueprint, &Default::default()).unwrap();
    assert!(description.buffers.iter().any(|buffer| buffer.role == Role::State && buffer.name == "n"));
    // Nothing names it, but for its type.
    assert_eq!(
        blueprint.warnings().iter().filter(|warning| warning.path == "blueprint.state.n").count(),
        1,
        "{:?}",
        blueprint.warnings()
    );
}

#[test]
fn nothing_else_lies_where_state_is() {
    let blueprint = parse(with(r#""kv": 1024"#, "").as_bytes()).unwrap();
    let plan =
        blueprint.plan(&Sizes { inputs: &[4096, 1024], weights: &[4], words: &[], free: &[] }).unwrap();
    let state = plan.buffers[blueprint.state()[0].index()];
    let others = (0..blueprint.buffers().len()).filter(|at| *at != blueprint.state()[0].index());
    let mut compared = 0;
    for other in others.map(|at| plan.buffers[at]).filter(|other| other.space == state.space) {
        assert!(other.offset + other.bytes <= state.offset || state.offset + state.bytes <= other.offset);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

#[test]
fn a_checked_call_shows_all_and_keeps_the_state_last() {
    let blueprint = parse(with(r#""kv": 64"#, "").as_bytes()).unwrap().checked().unwrap();
    assert_eq!(names(&blueprint, blueprint.returned()), ["y", "x", "t", "pappus.printed"]);
    assert_eq!(names(&blueprint, blueprint.outputs()).last(), Some(&"kv"));
}

#[test]
fn what_state_cannot_be_is_refused() {
    let refused = |state: &str, more: &str| {
        let why = mistake(&with(state, more));
        (why.path, why.message)
    };
    let (place, why) = refused(r#""kv": {"Sizeof": "x"}"#, "");
    assert!(place == "blueprint.state.kv" && why.contains("the same for every call"), "{place}: {why}");
    let (place, why) = refused(r#""x": 8"#, "");
    assert!(place == "blueprint.state.x" && why.contains("a second time"), "{place}: {why}");
    let json = with(r#""kv": 8"#, "").replace(r#""outputs": ["y"]"#, r#""outputs": ["y", "kv"]"#);
    let why = mistake(&json);
    assert!(why.path == "blueprint.outputs[1]" && why.message.contains("is state"), "{why}");
    let free = r#", "types": {"x": {"dtype": "u8", "shape": [{"Free": "n"}]}, "y": {"dtype": "u8", "shape": [{"Free": "n"}]},
        "kv": {"dtype": "u8", "shape": [8]}}"#;
    let (place, why) = refused(r#""kv": 8"#, &format!(r#"{free}, "batch": {{"dimension": "n", "most": 4}}"#));
    assert!(place == "blueprint.batch" && why.contains("without `state`"), "{place}: {why}");
    let (place, _) = refused(r#""kv": {"Free": "n"}"#, free);
    assert_eq!(place, "blueprint.state.kv");
    // A free dimension is one of an input.
    let (place, _) = refused(r#""kv": 8"#, r#", "types": {"kv": {"dtype": "u8", "shape": [{"Free": "n"}]}}"#);
    assert!(place.starts_with("blueprint.types.kv.shape[0]"), "{place}");
}
