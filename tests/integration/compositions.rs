//! Compositions: functions that are linked into one. What one call of it gives is what separate calls give, byte for byte.

use pappus_client::{Blob, Client, Code, Invocation, Result, v1};
use pappus_kernels::reference::vision;
use serde_json::{Value, json};

use crate::fixture::{Supervisor, until};
use crate::kit::{self, Function, fails, launch, ptr, refused};

/// A supervisor with room for pictures, and a client of it.
fn start() -> (Supervisor, Client) {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=1,memory=64MiB"]);
    let client = supervisor.client();
    (supervisor, client)
}

/// Registers a composition.
pub(crate) fn compose(
    client: &mut Client,
    name: &str,
    composition: &Value,
    replace: bool,
) -> Result<v1::FunctionInfo> {
    let config_sha256 = client.put_blob(Blob::Bytes(composition.to_string().as_bytes()))?.sha256;
    client.add_function(v1::AddFunction { name: name.into(), config_sha256, replace, ..Default::default() })
}

/// One call, with inputs of type u8.
pub(crate) fn call(
    client: &mut Client,
    name: &str,
    inputs: &[(&str, &[u8], &[u64])],
    outputs: &[&str],
) -> Result<Vec<Vec<u8>>> {
    let mut call = Invocation::new(name);
    for (input, bytes, shape) in inputs {
        call = call.input(input, bytes.to_vec()).typed(input, "u8", shape);
    }
    let call = outputs.iter().fold(call, |call, output| call.output(output));
    Ok(client.invoke(&call)?.outputs.iter().map(|output| output.inline.to_vec()).collect())
}

fn free(name: &str) -> Value {
    json!({"Free": name})
}

/// `x` → `y`, both u8[n]: the bytes of `x`, then the last one overwritten by `byte`.
pub(crate) fn marks(byte: i64) -> String {
    let typed = json!({"dtype": "u8", "shape": [free("n")]});
    let end = json!({"Ptr": {"buffer": "y", "offset": {"Sub": [free("n"), 1]}}});
    let steps = [
        launch("copy", &[ptr("x"), ptr("y"), json!({"I64": free("n")})]),
        launch("fill", &[end, json!({"I64": byte}), json!({"I64": 1})]),
    ];
    let function = Function {
        inputs: &["x"],
        buffers: &[("y", free("n"))],
        outputs: &["y"],
        types: &[("x", typed.clone()), ("y", typed)],
        steps: &steps,
        ..Function::default()
    };
    function.json()
}

pub(crate) fn add(client: &mut Client, name: &str, config: &str, replace: bool) -> Result<v1::FunctionInfo> {
    let variant = kit::wasm(client, kit::probes());
    let function = kit::parts(client, name, config, kit::module_of("probes", vec![variant]))?;
    client.add_function(v1::AddFunction { replace, ..function })
}

/// A step of a function from `x` to `y`.
pub(crate) fn step(name: &str, function: &str, from: Value) -> Value {
    json!({"name": name, "function": function, "inputs": {"x": from}})
}

pub(crate) fn of(step: &str) -> Value {
    json!({"step": step, "output": "y"})
}

/// Two steps of `marks`.
fn twice() -> Value {
    json!({"inputs": ["p"], "steps": [step("a", "marks", json!("p")), step("b", "marks", of("a"))], "outputs": {"y": of("b")}})
}

/// A function over one kernel of the library's pictures.
fn picture(
    client: &mut Client,
    name: &str,
    kernel: &str,
    channels: (u64, u64),
    arguments: &[Value],
    inputs: &[&str],
) {
    let pixels = |channels: u64| json!({"Product": [free("w"), free("h"), channels]});
    let typed = |channels: u64| match channels {
        1 => json!({"dtype": "u8", "shape": [free("h"), free("w")]}),
        channels => json!({"dtype": "u8", "shape": [free("h"), free("w"), channels]}),
    };
    let mut types = json!({"y": typed(channels.1)});
    for input in inputs {
        types[input] = typed(if *input == "edges" { 1 } else { channels.0 });
    }
    let side = |free: Value| json!({"CeilDiv": [free, 32]});
    let mut given: Vec<Value> = inputs.iter().map(|input| ptr(input)).collect();
    given.push(ptr("y"));
    given.extend_from_slice(arguments);
    let config = json!({
        "modules": [{"module_name": "vision", "path": "vision.wasm"}],
        "kernels": [{"module_name": "vision", "kernel_name": kernel}],
        "blueprint": {
            "inputs": inputs, "buffers": {"y": pixels(channels.1)}, "outputs": ["y"], "types": types,
            "control_flow": [{"ExecKernel": [kernel, given, {
                "grid_dim_x": side(json!({"Product": [free("w"), 3]})), "grid_dim_y": side(free("h")),
                "block_dim_x": 32, "block_dim_y": 32,
            }]}],
        },
    });
    let variant = kit::wasm(client, pappus_kernels::artefact("vision.wasm").unwrap());
    let module = kit::module_of("vision", vec![variant]);
    let function = kit::parts(client, name, &config.to_string(), module).unwrap();
    client.add_function(function).unwrap();
}

#[test]
fn a_photo_pipeline_gives_what_separate_calls_give() {
    let (_supervisor, mut client) = start();
    let i64_of = |size: Value| json!({"I64": size});
    let sides = [i64_of(free("w")), i64_of(free("h"))];
    let samples = [i64_of(json!({"Product": [free("w"), 3]})), i64_of(free("h"))];
    let rows = [sides[0].clone(), sides[1].clone(), json!({"I64": 3})];
    picture(&mut client, "rows", "gaussian_rows", (3, 3), &rows, &["x"]);
    picture(&mut client, "columns", "gaussian_columns", (3, 3), &samples, &["x"]);
    picture(&mut client, "gray", "rgb_to_gray", (3, 1), &sides, &["x"]);
    picture(&mut client, "sobel", "sobel", (1, 1), &sides, &["x"]);
    picture(&mut client, "ink", "ink_outlines", (3, 3), &sides, &["x", "edges"]);
    let composition = json!({
        "inputs": ["photo"],
        "steps": [
            step("rows", "rows", json!("photo")),
            step("columns", "columns", of("rows")),
            step("gray", "gray", of("columns")),
            step("edges", "sobel", of("gray")),
            {"name": "ink", "function": "ink", "inputs": {"x": "photo", "edges": of("edges")}},
        ],
        "outputs": {"drawing": of("ink"), "edges": of("edges")},
    });
    let added = compose(&mut client, "drawing", &composition, false).unwrap();
    assert_eq!((added.inputs, added.modules.len()), (vec!["photo".to_owned()], 1));
    let (width, height) = (41, 23);
    let photo: Vec<u8> = (0..width * height * 3).map(|at| (at * at / 7 + at) as u8).collect();
    let shape = [height as u64, width as u64, 3];
    let found = call(&mut client, "drawing", &[("photo", &photo, &shape)], &["drawing", "edges"]).unwrap();
    let mut one = |name: &str, x: &[u8], shape: &[u64]| {
        call(&mut client, name, &[("x", x, shape)], &["y"]).unwrap().remove(0)
    };
    let smooth = one("rows", &photo, &shape);
    let smooth = one("columns", &smooth, &shape);
    let gray = one("gray", &smooth, &shape);
    let edges = one("sobel", &gray, &shape[..2]);
    assert!(found[1] == edges, "the edges differ");
    let inputs: [(&str, &[u8], &[u64]); 2] = [("x", &photo, &shape), ("edges", &edges, &shape[..2])];
    let ink = call(&mut client, "ink", &inputs, &["y"]).unwrap().remove(0);
    assert!(found[0] == ink, "the drawing differs");
    // Neither is wrong in the same way.
    let smooth = vision::gaussian_columns(&vision::gaussian_rows(&photo, width, 3), width * 3);
    let edges = vision::sobel(&vision::rgb_to_gray(&smooth), width);
    assert!(found[1] == edges && found[0] == vision::ink_outlines(&photo, &edges));
}

#[test]
fn thirty_steps_are_one_call() {
    let (_supervisor, mut client) = start();
    for at in 0..30 {
        add(&mut client, &format!("f{at}"), &marks(at), false).unwrap();
    }
    let source = |at: i64| if at == 0 { json!("p") } else { of(&format!("s{}", at - 1)) };
    let steps: Vec<Value> =
        (0..30).map(|at| step(&format!("s{at}"), &format!("f{at}"), source(at))).collect();
    let composition =
        json!({"inputs": ["p"], "steps": steps, "outputs": {"early": of("s3"), "y": of("s29")}});
    compose(&mut client, "chain", &composition, false).unwrap();
    let found = call(&mut client, "chain", &[("p", &[7; 5], &[5])], &["early", "y"]).unwrap();
    let mut x = vec![7; 5];
    for at in 0..30 {
        x = call(&mut client, &format!("f{at}"), &[("x", &x, &[5])], &["y"]).unwrap().remove(0);
    }
    assert_eq!(found, [vec![7, 7, 7, 7, 3], x]);
}

#[test]
fn a_step_runs_for_each_item_and_a_number_of_times() {
    let (_supervisor, mut client) = start();
    // Each time the last byte goes, and a mark takes the place of the one before it.
    let typed = |dim: Value| json!({"dtype": "u8", "shape": [dim]});
    let turn = Function {
        inputs: &["x"],
        buffers: &[("y", free("n"))],
        outputs: &["y"],
        types: &[("x", typed(free("n"))), ("y", typed(free("n")))],
        steps: &[
            json!({"Copy": {"from": "x", "to": "y", "to_offset": 1, "bytes": {"Sub": [free("n"), 1]}}}),
            json!({"Copy": {"from": "x", "from_offset": {"Sub": [free("n"), 1]}, "to": "y"}}),
        ],
        ..Function::default()
    };
    add(&mut client, "turn", &turn.json(), false).unwrap();
    let mut composition = json!({
        "inputs": ["rows"],
        "steps": [{"name": "turn", "function": "turn", "inputs": {"x": "rows"}, "each": {"items": 3, "inputs": ["x"]},
            "times": 2, "feed": {"y": "x"}}],
        "outputs": {"y": of("turn")},
    });
    compose(&mut client, "turned", &composition, false).unwrap();
    let rows: Vec<u8> = (1..=12).collect();
    let turned = |client: &mut Client| call(client, "turned", &[("rows", &rows, &[3, 4])], &["y"]);
    assert_eq!(turned(&mut client).unwrap()[0], [3, 4, 1, 2, 7, 8, 5, 6, 11, 12, 9, 10]);
    composition["steps"][0]["times"] = json!(1);
    compose(&mut client, "turned", &composition, true).unwrap();
    assert_eq!(turned(&mut client).unwrap()[0], [4, 1, 2, 3, 8, 5, 6, 7, 12, 9, 10, 11]);
    let two_rows = [("rows", &rows[..8], &[2, 4][..])];
    refused(call(&mut client, "turned", &two_rows, &["y"]), Code::InvalidArgument, "u8[3,");
}

#[test]
fn bytes_of_one_step_do_not_reach_the_next_call() {
    let (_supervisor, mut client) = start();
    // Shows its buffer as it is before it is written: zero bytes in every call.
    let leaky = Function {
        inputs: &["x"],
        buffers: &[("seen", json!(64)), ("y", json!(64))],
        outputs: &["y"],
        types: &[
            ("x", json!({"dtype": "u8", "shape": [free("n")]})),
            ("y", json!({"dtype": "u8", "shape": [64]})),
        ],
        steps: &[
            launch("copy", &[ptr("seen"), ptr("y"), json!({"I64": 64})]),
            launch("fill", &[ptr("seen"), json!({"I64": 0x5a}), json!({"I64": 64})]),
        ],
        ..Function::default()
    };
    add(&mut client, "leaky", &leaky.json(), false).unwrap();
    let dirty = |times: u64| {
        json!({
            "inputs": ["p"],
            "steps": [step("a", "leaky", json!("p")),
                {"name": "b", "function": "leaky", "inputs": {"x": of("a")}, "times": times, "feed": {"y": "x"}}],
            "outputs": {"a": of("a"), "b": of("b")},
        })
    };
    for times in [1, 3] {
        compose(&mut client, "twice", &dirty(times), true).unwrap();
        for _ in 0..2 {
            let found = call(&mut client, "twice", &[("p", &[1; 64], &[64])], &["a", "b"]).unwrap();
            assert_eq!(found, [[0; 64], [0; 64]]);
        }
    }
    // The control: within one run of a step the same kernels show what was written.
    let mut shown = leaky;
    let steps = [shown.steps, shown.steps].concat();
    shown.steps = &steps;
    add(&mut client, "shows", &shown.json(), false).unwrap();
    let found = call(&mut client, "shows", &[("x", &[1; 64], &[64])], &["y"]).unwrap();
    assert_eq!(found, [[0x5a; 64]]);
}

#[test]
fn mistakes_are_told_with_file_line_and_column() {
    let (supervisor, mut client) = start();
    add(&mut client, "marks", &marks(1), false).unwrap();
    let wide = marks(1)
        .replace("\"u8\"", "\"u16\"")
        .replace(r#""y":{"Free":"n"}"#, r#""y":{"Product":[2,{"Free":"n"}]}"#);
    add(&mut client, "wide", &wide, false).unwrap();
    let text = r#"{"inputs": ["p"], "steps": [
  {"name": "a", "function": "marks", "inputs": {"x": "p"}},
  {"name": "b", "function": "wide", "inputs": {"x": {"step": "a"}}},
  {"name": "c", "function": "mraks", "inputs": {"x": "p"}}],
"outputs": {"y": {"step": "b"}}}"#;
    supervisor.write("c.json", text);
    let ran = supervisor.pappus(&["function", "add", "c", "c.json"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    for words in [
        "c.json:3:53: at steps[1].inputs.x: u16[n] is wanted, u8[n] came",
        "c.json:4:29: at steps[2].function: there is no function \"mraks\"",
    ] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    refused(client.show_function("c"), Code::NotFound, "");
    // The same without a supervisor, from files beside it.
    supervisor.write("marks.json", marks(1));
    supervisor.write("wide.json", wide);
    supervisor.write("probes.wasm", kit::probes());
    let ran = supervisor.pappus(&["function", "check", "c.json"]);
    assert!(
        ran.code != 0 && ran.stderr.contains("c.json:3:53: at steps[1].inputs.x: u16[n] is wanted"),
        "{ran:?}"
    );
    supervisor.write("twice.json", twice().to_string());
    let ran = supervisor.pappus(&["function", "check", "twice.json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("step b, kernel fill") && ran.stdout.contains("launches: 4"),
        "{}",
        ran.stdout
    );
    let itself = compose(&mut client, "marks", &twice(), true);
    refused(itself, Code::InvalidArgument, "`marks` would run itself");
}

#[test]
fn a_kernel_that_fails_is_named_with_its_step() {
    let (_supervisor, mut client) = start();
    let typed = json!({"dtype": "u8", "shape": [free("n")]});
    let traps = Function {
        inputs: &["x"],
        buffers: &[("y", free("n"))],
        outputs: &["y"],
        types: &[("x", typed.clone()), ("y", typed)],
        steps: &[launch("trap", &[])],
        ..Function::default()
    };
    add(&mut client, "traps", &traps.json(), false).unwrap();
    add(&mut client, "marks", &marks(1), false).unwrap();
    let composition = json!({
        "inputs": ["p"], "steps": [step("a", "marks", json!("p")), step("bad", "traps", of("a"))], "outputs": {"y": of("bad")},
    });
    compose(&mut client, "c", &composition, false).unwrap();
    let failed = call(&mut client, "c", &[("p", &[1; 4], &[4])], &["y"]);
    refused(failed, Code::KernelFault, "step bad, kernel trap");
}

#[test]
fn a_replaced_step_is_in_the_compositions_that_run_it() {
    let (mut supervisor, mut client) = start();
    add(&mut client, "marks", &marks(1), false).unwrap();
    compose(&mut client, "twice", &twice(), false).unwrap();
    let outer = json!({"inputs": ["q"], "steps": [{"name": "t", "function": "twice", "inputs": {"p": "q"}}],
        "outputs": {"y": of("t")}});
    compose(&mut client, "outer", &outer, false).unwrap();
    let said = |client: &mut Client, name: &str, input: &str| {
        call(client, name, &[(input, &[9; 3], &[3])], &["y"]).map(|mut found| found.remove(0)[2])
    };
    assert_eq!(said(&mut client, "twice", "p").unwrap(), 1);
    add(&mut client, "marks", &marks(2), true).unwrap();
    assert_eq!(said(&mut client, "marks", "x").unwrap(), 2);
    assert_eq!(said(&mut client, "twice", "p").unwrap(), 2);
    assert_eq!(said(&mut client, "outer", "q").unwrap(), 2);
    // What no longer fits is named, and nothing is replaced.
    let narrow = marks(3).replace(r#""x":{"dtype":"u8""#, r#""x":{"dtype":"u16""#);
    let error = refused(add(&mut client, "marks", &narrow, true), Code::InvalidArgument, "no longer fit");
    assert!(
        error.message.contains("twice: ") && error.message.contains("u16[n] is wanted, u8[n] came"),
        "{error:?}"
    );
    assert_eq!(said(&mut client, "marks", "x").unwrap(), 2);
    for function in ["marks", "twice"] {
        refused(client.remove_function(function), Code::InvalidArgument, "is a step of");
    }
    supervisor.kill9();
    supervisor.restart();
    let mut client = supervisor.client();
    assert_eq!(said(&mut client, "outer", "q").unwrap(), 2);
    add(&mut client, "marks", &marks(4), true).unwrap();
    assert_eq!(said(&mut client, "outer", "q").unwrap(), 4);
    for function in ["outer", "twice", "marks"] {
        client.remove_function(function).unwrap();
    }
    assert!(client.list_functions().unwrap().is_empty());
    // What a connection handed over goes with it.
    drop(client);
    until("its bytes are gone", || {
        let blobs = std::fs::read_dir(supervisor.tenant_dir().join("blobs")).unwrap();
        blobs.filter(|blob| blob.as_ref().is_ok_and(|blob| blob.path().is_file())).count() == 0
    });
}

#[test]
fn accepted_calls_finish_with_the_old_steps() {
    let (supervisor, mut client) = start();
    kit::add_spin(&mut client);
    add(&mut client, "marks", &marks(1), false).unwrap();
    compose(&mut client, "twice", &twice(), false).unwrap();
    let invocation = || Invocation::new("twice").input("p", vec![9; 3]).typed("p", "u8", &[3]).output("y");
    assert_eq!(client.invoke(&invocation()).unwrap().outputs[0].inline[2], 1);
    // The only worker is busy, so the next call waits.
    let deadline = std::time::Duration::from_millis(300);
    let spin = client.send_invocation(&Invocation::new("spin").deadline(deadline)).unwrap();
    supervisor.until_running();
    let waiting = client.send_invocation(&invocation()).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    add(&mut client, "marks", &marks(2), true).unwrap();
    fails(&mut client, spin, Code::DeadlineExceeded);
    assert_eq!(client.wait_invoked(waiting).unwrap().outputs[0].inline[2], 1);
    assert_eq!(client.invoke(&invocation()).unwrap().outputs[0].inline[2], 2);
}

#[test]
fn a_step_names_the_current_version_or_one_by_its_number() {
    let (_supervisor, mut client) = start();
    add(&mut client, "marks", &marks(1), false).unwrap();
    let steps = |pinned: &str| {
        let steps = [step("a", "marks", json!("p")), step("b", pinned, json!("p"))];
        json!({"inputs": ["p"], "steps": steps, "outputs": {"now": of("a"), "then": of("b")}})
    };
    refused(
        compose(&mut client, "both", &steps("marks:live"), false),
        Code::InvalidArgument,
        "may name another version",
    );
    refused(compose(&mut client, "both", &steps("marks@2"), false), Code::InvalidArgument, "no function");
    compose(&mut client, "both", &steps("marks@1"), false).unwrap();
    let ends = |client: &mut Client, name: &str| {
        let outputs = call(client, name, &[("p", &[7, 7], &[2])], &["now", "then"]).unwrap();
        [outputs[0][1], outputs[1][1]]
    };
    assert_eq!(ends(&mut client, "both"), [1, 1]);
    add(&mut client, "marks", &marks(2), true).unwrap();
    add(&mut client, "marks", &marks(3), true).unwrap();
    assert_eq!(ends(&mut client, "both"), [3, 1]);
    // What a step names by its number stays, though two newer ones are kept.
    add(&mut client, "marks", &marks(4), true).unwrap();
    assert_eq!(client.show_function("marks").unwrap().kept, [1, 3]);
    refused(client.remove_function("marks@1"), Code::InvalidArgument, "is a step of both");
    client.use_version("marks@3").unwrap();
    assert_eq!(ends(&mut client, "both"), [3, 1]);
    // A version of a composition that is kept stays as it was linked; once it is current its steps are what they are now.
    compose(&mut client, "both", &steps("marks"), true).unwrap();
    client.use_version("marks@4").unwrap();
    assert_eq!((ends(&mut client, "both"), ends(&mut client, "both@1")), ([4, 4], [3, 1]));
    client.use_version("both@1").unwrap();
    assert_eq!((ends(&mut client, "both"), ends(&mut client, "both@2")), ([4, 1], [4, 4]));
    refused(compose(&mut client, "both", &steps("both@2"), true), Code::InvalidArgument, "would run itself");
    refused(client.remove_function("marks"), Code::InvalidArgument, "is a step of both");
    client.remove_function("both").unwrap();
    client.remove_function("marks").unwrap();
    assert!(client.list_functions().unwrap().is_empty());
}
