//! Tests of the linker: small compositions over functions of one kernel each, random ones, and mistakes with their places.

mod consecutive;
mod mistakes;
mod numbers;
mod random;

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Linked, Part, link};
use crate::{Isolation, Mistakes};

/// Functions by name.
pub(super) type Library = HashMap<String, Value>;

/// A function over one kernel, called as its module is: the content of the module is its name.
pub(super) fn function(kernel: &str, blueprint: Value) -> Value {
    json!({"module_path": format!("{kernel}.wasm"), "kernels": [kernel], "blueprint": blueprint})
}

/// A launch of a kernel over these arguments, by one thread.
pub(super) fn launch(kernel: &str, arguments: &[Value]) -> Value {
    json!({"ExecKernel": [kernel, arguments, {"grid_dim_x": 1, "block_dim_x": 1}]})
}

/// `x` → `y`, both of type f32 and shape `[n]`: `kernel(x, y, n)`.
pub(super) fn elementwise(kernel: &str) -> Value {
    let typed = json!({"dtype": "f32", "shape": [{"Free": "n"}]});
    function(
        kernel,
        json!({
            "inputs": ["x"], "buffers": {"y": {"Product": [4, {"Free": "n"}]}}, "outputs": ["y"],
            "types": {"x": typed, "y": typed},
            "control_flow": [launch(kernel, &[json!({"Ptr": "x"}), json!({"Ptr": "y"}), json!({"I64": {"Free": "n"}})])],
        }),
    )
}

/// `a`, `b` → `y`, all of type f32 and shape `[n]`.
pub(super) fn binary(kernel: &str) -> Value {
    let typed = json!({"dtype": "f32", "shape": [{"Free": "n"}]});
    let pointers = ["a", "b", "y"].map(|name| json!({"Ptr": name}));
    function(
        kernel,
        json!({
            "inputs": ["a", "b"], "buffers": {"y": {"Product": [4, {"Free": "n"}]}}, "outputs": ["y"],
            "types": {"a": typed, "b": typed, "y": typed},
            "control_flow": [launch(kernel, &pointers)],
        }),
    )
}

pub(super) fn library(functions: &[(&str, Value)]) -> Library {
    functions.iter().map(|(name, function)| ((*name).to_owned(), function.clone())).collect()
}

/// Links a composition over these functions. Weights of one name have the same content.
pub(super) fn linked(library: &Library, composition: &str) -> Result<Linked, Mistakes> {
    link(composition.as_bytes(), |name| {
        let function = library.get(name)?;
        let config = function.to_string().into_bytes();
        let blueprint = crate::parse(&config).unwrap();
        let weights = blueprint.weights().iter().map(|id| blueprint.buffers()[id.index()].name.clone());
        Some(Part {
            modules: blueprint.modules().iter().map(|module| module.path.clone()).collect(),
            weights: weights.map(|name| (name, Some(16))).collect(),
            config,
        })
    })
}

pub(super) fn link_value(library: &Library, composition: &Value) -> Linked {
    linked(library, &composition.to_string()).unwrap_or_else(|why| panic!("{why}\nin {composition}"))
}

/// The linked function as JSON.
pub(super) fn document(linked: &Linked) -> Value {
    serde_json::from_slice(&linked.config).unwrap()
}

#[test]
fn a_chain_is_one_function_without_copies() {
    let steps: Vec<Value> = (0..30)
        .map(|at| {
            let from = match at {
                0 => json!("photo"),
                at => json!({"step": format!("s{}", at - 1)}),
            };
            json!({"name": format!("s{at}"), "function": "scale", "inputs": {"x": from}})
        })
        .collect();
    let composition = json!({"inputs": ["photo"], "steps": steps, "outputs": {"result": {"step": "s29"}}});
    let linked = link_value(&library(&[("scale", elementwise("scale"))]), &composition);
    let blueprint = &linked.blueprint;
    assert_eq!(blueprint.modules().len(), 1, "the module is shared");
    assert_eq!(linked.functions, ["scale"]);
    let names: Vec<_> = blueprint.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!((names[0], names[29], names.len()), ("step s0, kernel scale", "step s29, kernel scale", 30));
    let flow = document(&linked);
    let flow = flow["blueprint"]["control_flow"].as_array().unwrap();
    assert!(flow.iter().all(|action| action.get("ExecKernel").is_some()), "nothing is copied: {flow:?}");
    assert_eq!(blueprint.free_dimensions().iter().map(|name| &**name).collect::<Vec<_>>(), ["n"]);
    let plan = |n: u64| {
        let sizes = crate::Sizes { inputs: &[4 * n], weights: &[], words: &[], free: &[n] };
        blueprint.plan(&sizes).unwrap()
    };
    assert_eq!(plan(5).launches, 30);
    // Buffers of steps that are over are used again.
    let large = plan(1 << 20);
    assert!(large.pool_bytes < 31 * (4 << 20) / 4, "{} bytes", large.pool_bytes);
}

#[test]
fn weights_of_equal_content_and_type_are_one() {
    let typed = json!({"dtype": "f32", "shape": [4]});
    let blueprint = |steps: Value| {
        json!({
            "inputs": ["x"], "weights": ["W"], "buffers": {"y": 16}, "outputs": ["y"],
            "types": {"x": typed, "W": typed, "y": typed}, "control_flow": steps,
        })
    };
    let named = |kernel: &str| {
        let pointers = ["x", "W", "y"].map(|name| json!({"Ptr": name}));
        function(kernel, blueprint(json!([launch(kernel, &pointers)])))
    };
    let library = library(&[("f", named("f")), ("g", named("g"))]);
    let composition = json!({
        "inputs": ["x"],
        "steps": [
            {"name": "one", "function": "f", "inputs": {"x": "x"}},
            {"name": "two", "function": "f", "inputs": {"x": {"step": "one"}}},
            {"name": "three", "function": "g", "inputs": {"x": {"step": "two", "output": "y"}}},
        ],
        "outputs": {"y": {"step": "three"}},
    });
    let linked = link_value(&library, &composition);
    assert_eq!(linked.weights.len(), 1);
    assert_eq!(linked.weights[0].of, Some((0, 0)));
    assert_eq!(linked.modules.len(), 2);
}

#[test]
fn a_composition_is_told_from_a_function() {
    for (text, is) in [
        (r#"{"inputs": [], "steps": []}"#, true),
        (r#" {"$schema": "x", "steps": 5, "#, true),
        (r#"{"blueprint": {"steps": 1}, "kernels": []}"#, false),
        (r#"{"steps": [], "blueprint": {}}"#, false),
        (r#"[{"steps": []}]"#, false),
        ("", false),
        ("steps", false),
        ("\u{feff}{\"steps\": []}", true),
    ] {
        assert_eq!(super::is_composition(text.as_bytes()), is, "{text}");
    }
}

#[test]
fn what_was_linked_can_be_a_step() {
    let mut library = library(&[("scale", elementwise("scale"))]);
    let step = |name: &str, function: &str, from: Value| json!({"name": name, "function": function, "inputs": {"x": from}});
    let composition = json!({
        "inputs": ["x"],
        "steps": [step("a", "scale", json!("x")), step("b", "scale", json!({"step": "a"}))],
        "outputs": {"y": {"step": "b"}},
    });
    let inner = document(&link_value(&library, &composition));
    library.insert("twice".into(), inner);
    let outer = json!({
        "inputs": ["x"],
        "steps": [step("first", "twice", json!("x")), step("second", "scale", json!({"step": "first"}))],
        "outputs": {"y": {"step": "second"}},
    });
    let linked = link_value(&library, &outer);
    let names: Vec<_> = linked.blueprint.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(
        names,
        ["step first, step a, kernel scale", "step first, step b, kernel scale", "step second, kernel scale"]
    );
}

#[test]
fn what_one_function_says_of_shared_workers_holds_for_the_whole() {
    let mut library = library(&[("open", elementwise("open")), ("apart", elementwise("apart"))]);
    let step = |name: &str, from: Value| json!({"name": name, "function": name, "inputs": {"x": from}});
    let composition = json!({
        "inputs": ["x"],
        "steps": [step("open", json!("x")), step("apart", json!({"step": "open"}))],
        "outputs": {"y": {"step": "apart"}},
    });
    assert_eq!(link_value(&library, &composition).blueprint.isolation(), Isolation::Auto);
    library.get_mut("open").unwrap()["isolation"] = json!("shared");
    assert_eq!(link_value(&library, &composition).blueprint.isolation(), Isolation::Shared);
    library.get_mut("apart").unwrap()["isolation"] = json!("process");
    assert_eq!(link_value(&library, &composition).blueprint.isolation(), Isolation::Process);
}
