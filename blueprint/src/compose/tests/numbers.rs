//! What a linked function computes, beside what separate calls of its steps' functions do: by kernels that read all that they
//! are given and change all that they may.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Library, binary, elementwise, function, launch, library, link_value};
use crate::blueprint::{FieldValue, Item, Step};
use crate::size::{SizeId, Values};
use crate::tests::interpreter::Interpreter;
use crate::{Array, Blueprint, BufferId, DType, Role, Sizes, parse};

/// Bytes, and what they are, if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) typed: Option<(DType, Vec<u64>)>,
    pub(super) bytes: Vec<u8>,
}

impl Data {
    /// An array of numbers that depend on `seed`.
    pub(super) fn new(dtype: DType, shape: &[u64], seed: u64) -> Self {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 0x85eb) >> 7) as u8 | 1;
        Self { typed: Some((dtype, shape.to_vec())), bytes: (0..bytes).map(byte).collect() }
    }

    pub(super) fn words(words: &[u64]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Self { typed: Some((DType::I64, vec![words.len() as u64])), bytes }
    }
}

/// A call of a function with all of its weights being these bytes.
pub(super) fn call(blueprint: &Blueprint, inputs: &[&Data], constants: &[u8]) -> Vec<Data> {
    let sizes: Vec<u64> = inputs.iter().map(|input| input.bytes.len() as u64).collect();
    let array = |at: usize| {
        let (dtype, shape) = inputs[at].typed.as_ref()?;
        Some(Array { dtype: *dtype, shape })
    };
    let free = blueprint.bind(&sizes, array).unwrap_or_else(|why| panic!("{why:?}"));
    let words = blueprint.words().iter().map(|word| {
        let bytes = &inputs[word.input as usize].bytes[8 * word.index as usize..][..8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    });
    let words: Vec<u64> = words.collect();
    let weight = |id: &BufferId| match blueprint.buffers()[id.index()].name.as_str() {
        "constants" => constants.to_vec(),
        _ => (0..16).collect(),
    };
    let weights: Vec<Vec<u8>> = blueprint.weights().iter().map(weight).collect();
    let weight_bytes: Vec<u64> = weights.iter().map(|weight| weight.len() as u64).collect();
    let sizes = Sizes { inputs: &sizes, weights: &weight_bytes, words: &words, free: &free };
    let plan = blueprint.plan(&sizes).unwrap();
    for at in 0..inputs.len() {
        array(at).iter().for_each(|array| blueprint.check_planned(&plan, at, array).unwrap());
    }
    // Buffers that share memory hold what they would hold in bytes of their own.
    let interpreter = Interpreter::new(blueprint, sizes);
    assert_eq!(interpreter.overlap(&plan), None);
    interpreter.run(&plan).unwrap();
    let values = blueprint.sizes.evaluate(&sizes.leaves());
    let mut buffers: Vec<Vec<u8>> = blueprint
        .buffers()
        .iter()
        .map(|buffer| vec![0; values.known(buffer.size).unwrap() as usize])
        .collect();
    for (buffer, bytes) in buffers.iter_mut().zip(inputs.iter().map(|input| &input.bytes).chain(&weights)) {
        buffer.clone_from(bytes);
    }
    let mut machine = Machine { blueprint, values, buffers };
    machine.steps(0, blueprint.steps.len());
    let outputs = blueprint.outputs().iter().zip(plan.output_shapes);
    let outputs = outputs.map(|(id, shape)| Data {
        typed: shape.map(|shape| (shape.dtype, shape.dims)),
        bytes: machine.buffers[id.index()].clone(),
    });
    outputs.collect()
}

/// Executes a blueprint over buffers that share no memory.
struct Machine<'a> {
    blueprint: &'a Blueprint,
    values: Values<'a>,
    buffers: Vec<Vec<u8>>,
}

impl Machine<'_> {
    fn value(&self, id: SizeId) -> u64 {
        self.values.known(id).unwrap()
    }

    fn steps(&mut self, mut at: usize, end: usize) {
        while at < end {
            let mut next = at + 1;
            match self.blueprint.steps[at] {
                Step::Launch { kernel, dims, list } => self.launch(kernel, dims, list),
                Step::Copy { from, from_offset, to, to_offset, bytes } => {
                    let source = &self.buffers[from.index()][self.value(from_offset) as usize..];
                    let bytes = bytes.map_or(source.len(), |bytes| self.value(bytes) as usize);
                    let source = source[..bytes].to_vec();
                    let offset = self.value(to_offset) as usize;
                    self.buffers[to.index()][offset..offset + bytes].copy_from_slice(&source);
                }
                Step::Fill { buffer, offset, bytes, byte } => {
                    let (offset, bytes) =
                        (self.value(offset) as usize, bytes.map(|bytes| self.value(bytes) as usize));
                    let all = &mut self.buffers[buffer.index()][offset..];
                    let bytes = bytes.unwrap_or(all.len());
                    all[..bytes].fill(byte);
                }
                Step::Repeat { count, body } => {
                    next += body as usize;
                    (0..self.value(count)).for_each(|_| self.steps(at + 1, next));
                }
            }
            at = next;
        }
    }

    /// A kernel changes all bytes of the buffers, depending on bytes, name and numbers.
    fn launch(&mut self, kernel: u32, dims: [SizeId; 10], list: u32) {
        let mut hash = 17u64;
        let mut mix = |value: u64| hash = (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(9);
        self.blueprint.kernels[kernel as usize].symbol.bytes().for_each(|byte| mix(byte.into()));
        dims.iter().for_each(|dim| mix(self.values.known(*dim).unwrap()));
        let list = self.blueprint.lists[list as usize].clone();
        let mut pointers = Vec::new();
        for item in &self.blueprint.items[list.start as usize..list.end as usize] {
            match *item {
                Item::Field { value: FieldValue::Pointer { buffer, offset }, .. } => {
                    mix(self.values.known(offset).unwrap());
                    pointers.push(buffer);
                }
                Item::Field { value: FieldValue::Size { size, .. }, .. } => {
                    mix(self.values.known(size).unwrap())
                }
                Item::Field { value: FieldValue::Bits(bits), .. } => mix(bits),
                Item::Field { value: FieldValue::TensorMap(_), .. } | Item::Param { .. } => {}
            }
        }
        for buffer in &pointers {
            self.buffers[buffer.index()].iter().for_each(|byte| mix((*byte).into()));
        }
        for buffer in pointers {
            if self.blueprint.buffers[buffer.index()].role != Role::Weight {
                for byte in &mut self.buffers[buffer.index()] {
                    hash = hash.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    *byte = byte.wrapping_mul(3) ^ (hash >> 33) as u8;
                }
            }
        }
    }
}

/// What separate calls of the steps' functions compute: every call has bytes of its own.
pub(super) fn separately(
    library: &Library,
    composition: &Value,
    inputs: &HashMap<String, Data>,
) -> Vec<Data> {
    let mut outputs: HashMap<(String, String), Data> = HashMap::new();
    let constant = |written: &Value| {
        let values: Vec<u64> =
            written["values"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        Data::words(&values)
    };
    let find = |source: &Value, outputs: &HashMap<(String, String), Data>| match source.as_str() {
        Some(name) => inputs.get(name).cloned().unwrap_or_else(|| constant(&composition["constants"][name])),
        None => {
            let (step, output) = (source["step"].as_str().unwrap(), source["output"].as_str().unwrap());
            outputs[&(step.to_owned(), output.to_owned())].clone()
        }
    };
    for step in composition["steps"].as_array().unwrap() {
        let blueprint = parse(library[step["function"].as_str().unwrap()].to_string().as_bytes()).unwrap();
        let names = |ids: &[BufferId]| -> Vec<String> {
            ids.iter().map(|id| blueprint.buffers()[id.index()].name.clone()).collect()
        };
        let (ins, outs) = (names(blueprint.inputs()), names(blueprint.outputs()));
        let given: Vec<Data> = ins.iter().map(|name| find(&step["inputs"][name], &outputs)).collect();
        let items = step["each"]["items"].as_u64();
        let mut results: Vec<Vec<Data>> = Vec::new();
        for item in 0..items.unwrap_or(1) {
            let mut own = given.clone();
            for (name, data) in ins.iter().zip(&mut own) {
                let each = step["each"]["inputs"].as_array();
                if each.is_some_and(|each| each.iter().any(|other| other == name)) {
                    let size = data.bytes.len() / items.unwrap() as usize;
                    data.bytes = data.bytes[item as usize * size..][..size].to_vec();
                    data.typed = data.typed.take().map(|(dtype, shape)| (dtype, shape[1..].to_vec()));
                }
            }
            for _ in 1..step["times"].as_u64().unwrap_or(1) {
                let out = call(&blueprint, &own.iter().collect::<Vec<_>>(), &[]);
                for (output, input) in step["feed"].as_object().unwrap() {
                    let from = outs.iter().position(|name| name == output).unwrap();
                    let to = ins.iter().position(|name| name == input.as_str().unwrap()).unwrap();
                    own[to].bytes.clone_from(&out[from].bytes);
                }
            }
            results.push(call(&blueprint, &own.iter().collect::<Vec<_>>(), &[]));
        }
        for (nth, name) in outs.iter().enumerate() {
            let first = &results[0][nth];
            let typed = first.typed.clone().map(|(dtype, shape)| match items {
                Some(items) => (dtype, [vec![items], shape].concat()),
                None => (dtype, shape),
            });
            let bytes = results.iter().flat_map(|out| out[nth].bytes.clone()).collect();
            outputs.insert((step["name"].as_str().unwrap().to_owned(), name.clone()), Data { typed, bytes });
        }
    }
    composition["outputs"].as_object().unwrap().values().map(|source| find(source, &outputs)).collect()
}

/// Links a composition and compares its call with separate calls.
#[track_caller]
pub(super) fn same(library: &Library, composition: &Value, inputs: &[(&str, Data)]) -> Vec<Data> {
    let linked = link_value(library, composition);
    let by_name: HashMap<String, Data> =
        inputs.iter().map(|(name, data)| ((*name).to_owned(), data.clone())).collect();
    let given: Vec<&Data> = composition["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| &by_name[name.as_str().unwrap()])
        .collect();
    let found = call(&linked.blueprint, &given, &linked.constants);
    let wanted = separately(library, composition, &by_name);
    let text = String::from_utf8(linked.config.clone()).unwrap();
    assert_eq!(found.len(), wanted.len());
    let sources = composition["outputs"].as_object().unwrap().values();
    for ((found, wanted), source) in found.iter().zip(&wanted).zip(sources) {
        assert_eq!(found.bytes, wanted.bytes, "{composition}\nlinked: {text}");
        // Of an input that no step gets nothing is declared.
        if source.is_string() && found.typed.is_none() {
            continue;
        }
        assert!(wanted.typed.is_none() || found.typed == wanted.typed, "{found:?} {wanted:?}\n{composition}");
    }
    found
}

/// Functions of many kinds: all over f32 arrays with a free dimension.
pub(super) fn kinds() -> Library {
    let n = json!({"Free": "n"});
    let typed = |dim: &Value| json!({"dtype": "f32", "shape": [dim]});
    let bytes = |dim: &Value| json!({"Product": [4, dim]});
    let ptr = |name: &str| json!({"Ptr": name});
    let in_place = function(
        "in_place",
        json!({
            "inputs": ["x"], "buffers": {"y": bytes(&n)}, "outputs": ["x", "y"],
            "types": {"x": typed(&n), "y": typed(&n)},
            "control_flow": [launch("in_place", &[ptr("x"), ptr("y")])],
        }),
    );
    let keep = function(
        "keep",
        json!({
            "inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}, "t": 8}, "outputs": ["y"],
            "types": {"x": typed(&n), "y": typed(&n)},
            "control_flow": [{"Copy": {"from": "x", "to": "y"}}, launch("keep", &[ptr("t"), ptr("y")])],
        }),
    );
    let longer = json!({"Sum": [n, 1]});
    let grow = function(
        "grow",
        json!({
            "inputs": ["x"], "buffers": {"y": bytes(&longer)}, "outputs": ["y"],
            "types": {"x": typed(&n), "y": typed(&longer)},
            "control_flow": [launch("grow", &[ptr("x"), ptr("y"), json!({"I64": longer})])],
        }),
    );
    // As kernels were described before dimensions could be free.
    let elements = |name: &str| json!({"CeilDiv": [{"Sizeof": name}, 4]});
    let old = function(
        "old",
        json!({
            "inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}}, "outputs": ["y"],
            "types": {"x": typed(&elements("x")), "y": typed(&elements("x"))},
            "control_flow": [{"Repeat": [2, [launch("old", &[ptr("x"), ptr("y"), json!({"Sizeof": "x"})])]]}],
        }),
    );
    let weighed = function(
        "weighed",
        json!({
            "inputs": ["x"], "weights": ["W"], "buffers": {"y": {"Size": "all"}}, "outputs": ["y"],
            "sizes": {"all": bytes(&n)}, "types": {"x": typed(&n), "y": typed(&n)},
            "control_flow": [launch("weighed", &[ptr("x"), ptr("W"), ptr("y")])],
        }),
    );
    // `k` is in sizes alone: the device does not need its bytes.
    let k = json!({"FromInput": {"bufname": "k", "idx": 1}});
    let counted = function(
        "counted",
        json!({
            "inputs": ["x", "k"], "buffers": {"y": bytes(&n)}, "outputs": ["y"],
            "types": {"x": typed(&n), "y": typed(&n), "k": {"dtype": "i64", "shape": [2]}},
            "control_flow": [{"Repeat": [k, [launch("counted", &[ptr("x"), ptr("y"), json!({"I64": k})])]]}],
        }),
    );
    library(&[
        ("scale", elementwise("scale")),
        ("mix", binary("mix")),
        ("in_place", in_place),
        ("keep", keep),
        ("grow", grow),
        ("old", old),
        ("weighed", weighed),
        ("counted", counted),
    ])
}

fn of(step: &str, output: &str) -> Value {
    json!({"step": step, "output": output})
}

#[test]
fn an_input_of_several_steps_is_what_it_was_for_each() {
    let composition = json!({
        "inputs": ["p"],
        "steps": [
            {"name": "a", "function": "scale", "inputs": {"x": "p"}},
            {"name": "b", "function": "in_place", "inputs": {"x": "p"}},
            {"name": "c", "function": "mix", "inputs": {"a": "p", "b": "p"}},
            {"name": "d", "function": "mix", "inputs": {"a": of("b", "x"), "b": of("b", "y")}},
        ],
        "outputs": {"one": of("a", "y"), "two": of("b", "x"), "three": of("c", "y"), "four": of("d", "y"), "five": "p",
            "six": of("a", "y")},
    });
    let out = same(&kinds(), &composition, &[("p", Data::new(DType::F32, &[9], 1))]);
    let [five, four, one, six, three, two] = [0, 1, 2, 3, 4, 5].map(|at| &out[at].bytes);
    // The control: functions change what they get, so that these are all different.
    assert!(one != two && two != five && three != four);
    assert_eq!(one, six);
}

#[test]
fn a_step_runs_for_each_item() {
    let composition = json!({
        "inputs": ["p", "q"],
        "steps": [
            {"name": "a", "function": "mix", "inputs": {"a": "p", "b": "q"}, "each": {"items": 3, "inputs": ["a"]}},
            {"name": "b", "function": "in_place", "inputs": {"x": of("a", "y")}, "each": {"items": 3, "inputs": ["x"]},
                "times": 2, "feed": {"x": "x"}},
        ],
        "outputs": {"y": of("a", "y"), "z": of("b", "x")},
    });
    let inputs = [("p", Data::new(DType::F32, &[3, 5], 1)), ("q", Data::new(DType::F32, &[5], 2))];
    let out = same(&kinds(), &composition, &inputs);
    assert_eq!(out[0].typed, Some((DType::F32, vec![3, 5])));
    assert_ne!(out[0].bytes[..20], out[0].bytes[20..40]);
}

#[test]
fn a_step_runs_a_number_of_times() {
    let run = |times: u64| {
        let composition = json!({
            "inputs": ["p", "q"],
            "steps": [{"name": "a", "function": "mix", "inputs": {"a": "p", "b": "q"}, "times": times, "feed": {"y": "a"}}],
            "outputs": {"y": of("a", "y"), "same": "q"},
        });
        same(
            &kinds(),
            &composition,
            &[("p", Data::new(DType::F32, &[6], 1)), ("q", Data::new(DType::F32, &[6], 2))],
        )
    };
    let all: Vec<Vec<Data>> = (1..4).map(run).collect();
    // In the order of their names: `same`, `y`.
    assert!(all[0][1] != all[1][1] && all[1][1] != all[2][1]);
    assert_eq!(all[0][0], all[2][0]);
}

#[test]
fn constants_are_arrays_and_sizes() {
    let composition = |k: u64| {
        json!({
            "inputs": ["p"],
            "constants": {"k": {"dtype": "i64", "values": [9, k]}},
            "steps": [{"name": "a", "function": "counted", "inputs": {"x": "p", "k": "k"}}],
            "outputs": {"y": of("a", "y"), "k2": "k"},
        })
    };
    let data = || [("p", Data::new(DType::F32, &[4], 1))];
    let library = kinds();
    let [two, three] = [2, 3].map(|k| same(&library, &composition(k), &data()));
    assert_ne!(two[1], three[1]);
    assert_eq!(two[0], Data::words(&[9, 2]));
    let linked = link_value(&library, &composition(2));
    assert_eq!((linked.blueprint.words().len(), linked.constants.len()), (0, 16));
}

#[test]
fn free_dimensions_flow_through_computed_ones() {
    let steps: Vec<Value> = (0..20)
        .map(|at| {
            let from = if at == 0 { json!("p") } else { of(&format!("s{}", at - 1), "y") };
            let function = ["grow", "scale", "old"][at % 3];
            json!({"name": format!("s{at}"), "function": function, "inputs": {"x": from}})
        })
        .collect();
    let composition = json!({"inputs": ["p"], "steps": steps, "outputs": {"y": of("s19", "y")}});
    let out = same(&kinds(), &composition, &[("p", Data::new(DType::F32, &[3], 1))]);
    assert_eq!(out[0].typed, Some((DType::F32, vec![10])));
}

#[test]
fn a_free_dimension_may_turn_out_to_be_another_or_a_number() {
    let mut library = kinds();
    library.insert(
        "four".into(),
        serde_json::from_str(&elementwise("four").to_string().replace(r#"{"Free":"n"}"#, "4")).unwrap(),
    );
    let mut composition = json!({
        "inputs": ["p", "q"],
        "steps": [
            {"name": "a", "function": "scale", "inputs": {"x": "p"}},
            {"name": "b", "function": "scale", "inputs": {"x": "q"}},
            {"name": "c", "function": "mix", "inputs": {"a": of("a", "y"), "b": of("b", "y")}},
        ],
        "outputs": {"y": of("c", "y")},
    });
    let inputs = [("p", Data::new(DType::F32, &[4], 1)), ("q", Data::new(DType::F32, &[4], 2))];
    same(&library, &composition, &inputs);
    assert_eq!(link_value(&library, &composition).blueprint.free_dimensions().len(), 1);
    let four = json!({"name": "d", "function": "four", "inputs": {"x": of("c", "y")}});
    composition["steps"].as_array_mut().unwrap().push(four);
    composition["outputs"] = json!({"y": of("d", "y")});
    same(&library, &composition, &inputs);
    assert_eq!(link_value(&library, &composition).blueprint.free_dimensions().len(), 0);
}
