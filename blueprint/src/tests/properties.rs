//! Random blueprints: nothing panics, and what is planned keeps its promises.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::interpreter::Interpreter;
use crate::limits::{BUFFER_ALIGN, EXPANDED_STEPS, SHARING_BUFFERS};
use crate::{Amount, Blueprint, Known, Plan, Sizes, Space, Step, describe, parse};

const INPUTS: [&str; 2] = ["cfg", "A"];
const BUFFERS: [&str; 3] = ["B", "C", "D"];

fn name(among: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(among)
}

fn any_name() -> impl Strategy<Value = &'static str> {
    name(&["cfg", "A", "W", "B", "C", "D"])
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![30 => 1..6u64, 20 => 1..200u64, 4 => Just(0), 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

/// A size; of the buffers it uses only those declared before buffer `before`, so there is no cycle.
fn sizing(before: usize) -> impl Strategy<Value = Value> {
    let names: Vec<&str> = ["cfg", "A", "W"].into_iter().chain(BUFFERS[..before].iter().copied()).collect();
    let leaf = prop_oneof![
        prop::sample::select(names).prop_map(|name| json!({"Sizeof": name})),
        number().prop_map(|n| json!({"Absolute": n})),
        Just(json!({"Free": "n"})),
        (name(&INPUTS), 0..5u64)
            .prop_map(|(bufname, idx)| json!({"FromInput": {"bufname": bufname, "idx": idx}})),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        prop_oneof![
            list.clone().prop_map(|list| json!({"Sum": list})),
            list.clone().prop_map(|list| json!({"Product": list})),
            list.clone().prop_map(|list| json!({"Min": list})),
            list.prop_map(|list| json!({"Max": list})),
            (inner.clone(), inner, name(&["CeilDiv", "FloorDiv", "Mod", "Sub"]))
                .prop_map(|(a, b, op)| json!({op: [a, b]})),
        ]
    })
}

fn argument() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        4 => any_name().prop_map(|name| json!({"Ptr": name})),
        1 => (any_name(), 0..9u64)
            .prop_map(|(name, n)| json!({"Ptr": {"buffer": name, "offset": {"Absolute": n}}})),
        1 => any_name().prop_map(|name| json!({"Sizeof": name})),
        1 => any::<i64>().prop_map(|n| json!({"Constant": n})),
        1 => any::<i32>().prop_map(|n| json!({"I32": n})),
        1 => sizing(BUFFERS.len()).prop_map(|size| json!({"U64": size})),
        1 => any::<i8>().prop_map(|n| json!({"I8": n})),
        1 => sizing(BUFFERS.len()).prop_map(|size| json!({"U16": size})),
        1 => any::<bool>().prop_map(|value| json!({"Bool": value})),
        1 => (-60000f64..60000.0).prop_map(|n| json!({"F16": n})),
        1 => any::<f32>().prop_filter("JSON has no others", |n| n.is_finite()).prop_map(|n| json!({"F32": n})),
    ];
    let fields = prop::collection::vec(scalar.clone(), 0..4).prop_map(|fields| {
        let fields: Vec<_> = fields
            .into_iter()
            .enumerate()
            .map(|(at, value)| json!({"offset": 8 * at, "value": value}))
            .collect();
        json!({"Struct": {"size": 8 * fields.len().max(1), "fields": fields}})
    });
    let map = (any_name(), 0..40u64, prop::option::of(0..4u64)).prop_map(|(name, last, outer)| {
        let (mut shape, mut sides) = (vec![json!({"Absolute": last})], vec![16]);
        if let Some(outer) = outer {
            shape.insert(0, json!({"Absolute": outer}));
            sides.insert(0, 2);
        }
        let strides = vec![json!({"Absolute": 32}); shape.len() - 1];
        json!({"TensorMap": {"buffer": name, "dtype": "u8", "shape": shape, "strides": strides, "box": sides}})
    });
    prop_oneof![6 => scalar, 1 => fields, 1 => map]
}

fn action() -> impl Strategy<Value = Value> {
    let dim = || prop_oneof![4 => (1..9u64).prop_map(|n| json!({"Absolute": n})), 1 => sizing(BUFFERS.len())];
    let launch =
        (prop::collection::vec(argument(), 0..4), dim(), dim()).prop_map(|(arguments, grid, block)| {
            let one = json!({"Absolute": 1});
            json!({"ExecKernel": ["k", arguments, {"grid_dim_x": grid, "grid_dim_y": one, "grid_dim_z": one,
            "block_dim_x": block, "block_dim_y": one, "block_dim_z": one,
            "shared_mem_bytes": {"Absolute": 0}}]})
        });
    let writable = || name(&["cfg", "A", "B", "C", "D"]);
    let copy =
        (any_name(), writable(), 0..3u64, 5..8u64, 0..5u64).prop_map(|(from, to, at, to_at, bytes)| {
            json!({"Copy": {"from": from, "from_offset": {"Absolute": at}, "to": to,
            "to_offset": {"Absolute": to_at}, "bytes": {"Absolute": bytes}}})
        });
    let fill = (writable(), any::<u8>())
        .prop_map(|(buffer, byte)| json!({"Fill": {"buffer": buffer, "byte": byte}}));
    prop_oneof![4 => launch, 1 => copy, 1 => fill].prop_recursive(3, 12, 4, move |inner| {
        (dim(), prop::collection::vec(inner, 0..4)).prop_map(|(count, body)| json!({"Repeat": [count, body]}))
    })
}

fn function() -> impl Strategy<Value = Value> {
    (sizing(0), sizing(1), sizing(2), prop::collection::vec(action(), 0..5)).prop_map(|(b, c, d, steps)| {
        // In the document a size may come before what it uses.
        json!({"module_path": "m", "kernels": ["k"], "blueprint": {"inputs": INPUTS, "weights": ["W"],
            "buffers": {"D": d, "C": c, "B": b}, "outputs": ["A", "D"], "control_flow": steps,
            "types": {"A": {"dtype": "u8", "shape": [{"Free": "n"}]}}}})
    })
}

/// The naive expansion: recursion over the JSON, with what the plan should have counted.
fn naive_launches(actions: &Value, value: &impl Fn(&Value) -> u64) -> u64 {
    let actions = actions.as_array().unwrap();
    let count = |action: &Value| match (&action["ExecKernel"], &action["Repeat"]) {
        (Value::Array(_), _) => 1,
        (_, Value::Array(repeat)) => match value(&repeat[0]) {
            0 => 0,
            times => times * naive_launches(&repeat[1], value),
        },
        _ => 0,
    };
    actions.iter().map(count).sum()
}

/// Evaluates a size the naive way.
fn naive_size(size: &Value, function: &Value, leaf: &impl Fn(&str, Option<u64>) -> u64) -> u64 {
    let (kind, of) = size.as_object().unwrap().iter().next().unwrap();
    let inner = |size: &Value| naive_size(size, function, leaf);
    match kind.as_str() {
        "Absolute" => of.as_u64().unwrap(),
        "Sizeof" => match &function["blueprint"]["buffers"][of.as_str().unwrap()] {
            Value::Null => leaf(of.as_str().unwrap(), None),
            size => inner(size),
        },
        "Free" => leaf("A", None),
        "FromInput" => leaf(of["bufname"].as_str().unwrap(), of["idx"].as_u64()),
        "Sum" => of.as_array().unwrap().iter().map(inner).sum(),
        "Product" => of.as_array().unwrap().iter().map(inner).product(),
        "Min" => of.as_array().unwrap().iter().map(inner).min().unwrap(),
        "Max" => of.as_array().unwrap().iter().map(inner).max().unwrap(),
        "CeilDiv" => inner(&of[0]).div_ceil(inner(&of[1])),
        "FloorDiv" => inner(&of[0]) / inner(&of[1]),
        "Mod" => inner(&of[0]) % inner(&of[1]),
        "Sub" => inner(&of[0]) - inner(&of[1]),
        other => panic!("{other}"),
    }
}

fn check_plan(blueprint: &Blueprint, sizes: &Sizes<'_>, plan: &Plan) {
    assert_eq!(plan.pool_bytes % BUFFER_ALIGN, 0);
    for word in blueprint.words() {
        assert!((word.index + 1) * 8 <= sizes.inputs[word.input as usize]);
    }
    let weights = blueprint.weight_layout(sizes.weights).unwrap();
    for space in [Space::Pool, Space::Weights] {
        let end = if space == Space::Pool { plan.pool_bytes } else { weights.total };
        let mut live: Vec<_> = plan.buffers.iter().filter(|at| at.space == space).collect();
        assert!(live.iter().all(|at| at.offset % BUFFER_ALIGN == 0 && at.offset + at.bytes <= end));
        live.retain(|at| at.bytes > 0);
        live.sort_by_key(|at| at.offset);
        let own_bytes: u64 = live.iter().map(|at| at.bytes.next_multiple_of(BUFFER_ALIGN)).sum();
        if space == Space::Weights || own_bytes == plan.pool_bytes {
            assert!(live.windows(2).all(|pair| pair[0].offset + pair[0].bytes <= pair[1].offset));
        } else {
            assert!(plan.pool_bytes < own_bytes, "buffers share memory");
        }
    }
    for relocation in &plan.params.relocations {
        let end = if relocation.space == Space::Pool { plan.pool_bytes } else { weights.total };
        assert!(relocation.addend <= end && (relocation.slot as usize) < plan.params.slots.len());
    }
    for map in &plan.params.tensor_maps {
        let end = if map.at.space == Space::Pool { plan.pool_bytes } else { weights.total };
        let reached: u64 = map.shape.iter().zip(&map.strides).map(|(dim, stride)| (dim - 1) * stride).sum();
        let row = map.shape.last().unwrap() * map.dtype.bytes();
        assert!(map.at.offset + reached + row <= end && map.slot as usize + 16 <= plan.params.slots.len());
    }
    let (mut launches, mut steps) = (0, 0);
    for step in plan.expanded() {
        steps += 1;
        match step {
            Step::Launch { grid, block, cluster, params, .. } => {
                launches += 1;
                assert!(grid.iter().zip(cluster).all(|(grid, side)| grid.is_multiple_of(*side)));
                assert!(!grid.contains(&0) && block.iter().product::<u32>() <= 1024);
                let params = &plan.params.params[params.start as usize..params.end as usize];
                let end = |param: &crate::Param| param.slot + param.bytes.div_ceil(8);
                assert!(params.iter().all(|param| end(param) as usize <= plan.params.slots.len()));
            }
            Step::Copy { from, to, bytes } => {
                let end = if from.space == Space::Pool { plan.pool_bytes } else { weights.total };
                assert!(*bytes > 0 && from.offset + bytes <= end && to + bytes <= plan.pool_bytes);
                assert!(from.space == Space::Weights || from.offset.abs_diff(*to) >= *bytes);
            }
            Step::Fill { offset, bytes, .. } => assert!(*bytes > 0 && offset + bytes <= plan.pool_bytes),
            Step::Repeat { .. } => panic!("not expanded"),
        }
    }
    assert_eq!((launches, steps), (plan.launches, plan.expanded_steps));
    assert!(steps <= EXPANDED_STEPS + SHARING_BUFFERS as u64);
    if plan.pool_bytes > 0 && steps <= 10_000 {
        assert_eq!(Interpreter::new(blueprint, *sizes).overlap(plan), None);
    }
}

/// Changes one place of a JSON document; `seed` says which and how.
fn mutate(value: &mut Value, seed: u64) {
    let next = seed / 7;
    match value {
        Value::Array(list) if !list.is_empty() && !seed.is_multiple_of(7) => {
            let at = next as usize % list.len();
            match seed % 7 {
                1 => list.push(list[at].clone()),
                2 => drop(list.remove(at)),
                _ => mutate(&mut list[at], next / 5),
            }
        }
        Value::Object(map) if !map.is_empty() && !seed.is_multiple_of(7) => {
            let key = map.keys().nth(next as usize % map.len()).unwrap().clone();
            match seed % 7 {
                1 => drop(map.insert(format!("{key}x"), map[&key].clone())),
                2 => drop(map.remove(&key)),
                _ => mutate(&mut map[&key], next / 5),
            }
        }
        leaf => {
            let choices = [
                json!(null),
                json!(u64::MAX),
                json!(-1),
                json!(0.5),
                json!("A"),
                json!(""),
                json!([]),
                json!({}),
            ];
            *leaf = choices[next as usize % choices.len()].clone();
        }
    }
}

proptest! {

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes).is_err());
    }

    #[test]
    fn damaged_json_does_not_panic(function in function(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut json = serde_json::to_vec(&function).unwrap();
        let at = at.index(json.len());
        json[at] = byte;
        let _ = parse(&json);
        let _ = parse(&json[..at]);
    }

    #[test]
    fn mutated_functions_do_not_panic(
        mut function in function(),
        seeds in prop::collection::vec(any::<u64>(), 1..4),
        words in prop::collection::vec(number(), 10),
    ) {
        for seed in seeds {
            mutate(&mut function, seed);
        }
        let json = serde_json::to_vec(&function).unwrap();
        match parse(&json) {
            Err(found) => {
                for error in found.iter() {
                    prop_assert!(!error.message.is_empty() && error.position.is_some(), "{}", error);
                }
            }
            Ok(blueprint) => {
                let inputs = vec![64; blueprint.inputs().len()];
                let weights = vec![9; blueprint.weights().len()];
                let free = vec![64; blueprint.free_dimensions().len()];
                let words = &words[..blueprint.words().len().min(10)];
                let sizes = Sizes { inputs: &inputs, weights: &weights, words, free: &free };
                if let Ok(plan) = blueprint.plan(&sizes) {
                    check_plan(&blueprint, &sizes, &plan);
                }
                describe(&blueprint, &Known::default()).unwrap();
            }
        }
    }

    #[test]
    fn plans_keep_their_promises(
        function in function(),
        inputs in [32..200u64, 32..3000u64],
        weight in number(),
        words in prop::collection::vec(number(), 10),
    ) {
        let json = serde_json::to_vec(&function).unwrap();
        let Ok(blueprint) = parse(&json) else { return Ok(()) };
        let weights = [weight];
        let free = [inputs[1]];
        let sizes =
            Sizes { inputs: &inputs, weights: &weights, words: &words[..blueprint.words().len()], free: &free };
        let Ok(plan) = blueprint.plan(&sizes) else { return Ok(()) };
        check_plan(&blueprint, &sizes, &plan);
        prop_assert_eq!(&blueprint.plan(&sizes).unwrap(), &plan);
        prop_assert_eq!(&parse(&json).unwrap().plan(&sizes).unwrap(), &plan);

        let leaf = |name: &str, index: Option<u64>| {
            let id = blueprint.buffer_named(name).unwrap();
            match index {
                None => plan.buffers[id.index()].bytes,
                Some(index) => {
                    let is_read = |word: &&crate::WordRef| word.input == id.0 && word.index == index;
                    words[blueprint.words().iter().position(|word| is_read(&word)).unwrap()]
                }
            }
        };
        for (buffer, placement) in blueprint.buffers().iter().zip(&plan.buffers) {
            let size = naive_size(&json!({"Sizeof": buffer.name}), &function, &leaf);
            prop_assert_eq!(size, placement.bytes);
        }
        let value = |size: &Value| naive_size(size, &function, &leaf);
        prop_assert_eq!(naive_launches(&function["blueprint"]["control_flow"], &value), plan.launches);

        // What is described with everything known is what is planned.
        let known = Known {
            inputs: [("cfg".to_owned(), inputs[0]), ("A".to_owned(), inputs[1])].into(),
            weights: [("W".to_owned(), weight)].into(),
            words: blueprint.words().iter().zip(&words).map(|(word, &value)| {
                ((INPUTS[word.input as usize].to_owned(), word.index), value)
            }).collect::<HashMap<_, _>>(),
            free: [("n".to_owned(), inputs[1])].into(),
        };
        let description = describe(&blueprint, &known).unwrap();
        prop_assert_eq!(description.pool_bytes.value(), Some(plan.pool_bytes));
        prop_assert_eq!(description.launches.value().unwrap_or(plan.launches), plan.launches);
        let sizes: Vec<_> = description.buffers.iter().map(|buffer| &buffer.bytes).map(Amount::value).collect();
        let planned: Vec<_> = plan.buffers.iter().map(|at| Some(at.bytes)).collect();
        prop_assert_eq!(sizes, planned);
    }
}
