//! Arrays that come with calls: free dimensions take their values from them, what does not fit is refused with what is
//! wanted and what came, and everyone who may call a function is told what it takes.

use pappus_client::v1::dimension::Elements;
use pappus_client::{Client, Code, Invocation, Result, npy, v1};
use serde_json::{Value, json};

use crate::fixture::Supervisor;
use crate::house::{enter, house, token};
use crate::kit::{self, Function, ptr, refused};

/// `x`: u8[n,2], `m`: u8[CeilDiv(n, 2)] → `y`: u8[n,2], a copy of `x` whose bytes are computed from `n`.
fn config() -> String {
    let n = json!({"Free": "n"});
    let bytes = json!({"Product": [n, {"Absolute": 2}]});
    let copied = kit::launch("copy", &[ptr("x"), ptr("y"), json!({"I64": bytes})]);
    let function = Function {
        inputs: &["x", "m"],
        buffers: &[("y", bytes)],
        outputs: &["y"],
        steps: &[copied],
        ..Function::default()
    };
    let mut config: Value = serde_json::from_str(&function.json()).unwrap();
    let pairs = json!({"dtype": "u8", "shape": [n, {"Absolute": 2}]});
    let half = json!({"dtype": "u8", "shape": [{"CeilDiv": [n, {"Absolute": 2}]}]});
    config["blueprint"]["types"] = json!({"x": pairs, "m": half, "y": pairs});
    config.to_string()
}

fn add(client: &mut Client) -> v1::FunctionInfo {
    let variant = kit::wasm(client, kit::probes());
    let function = kit::parts(client, "pairs", &config(), kit::module_of("probes", vec![variant])).unwrap();
    client.add_function(function).unwrap()
}

/// Calls with an `x` of these bytes and shape, and an `m` of these.
fn call(client: &mut Client, x: &[u8], shape: &[u64], m: &[u8]) -> Result<v1::Invoked> {
    let call = Invocation::new("pairs").input("x", x).typed("x", "u8", shape).input("m", m).output("y");
    client.invoke(&call)
}

#[test]
fn shapes_come_with_the_call_and_are_sizes() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client);
    for (n, m) in [(3u8, &[0; 2][..]), (0, &[]), (2, &[0]), (3, &[0; 2])] {
        let x: Vec<u8> = (0..2 * n).collect();
        let answer = call(&mut client, &x, &[n.into(), 2], m).unwrap();
        let y = &answer.outputs[0];
        assert_eq!((&y.inline[..], &*y.dtype, &y.shape[..]), (&x[..], "u8", &[n.into(), 2][..]));
    }
    // Bytes tell a dimension that is the only free one.
    let call = Invocation::new("pairs").input("x", vec![7; 6]).input("m", vec![1; 2]).output("y");
    assert_eq!(client.invoke(&call).unwrap().outputs[0].shape, [3, 2]);
    // The type of an input may be said where nothing of it is free.
    let typed = Invocation::new("pairs")
        .input("x", vec![1, 2])
        .typed("x", "u8", &[1, 2])
        .input("m", vec![9])
        .typed("m", "u8", &[1])
        .output("y");
    assert_eq!(client.invoke(&typed).unwrap().outputs[0].inline[..], [1, 2]);
}

#[test]
fn what_does_not_fit_is_refused_with_both() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client);
    let mut check = |what: &dyn Fn(Invocation) -> Invocation, place: &str, words: &str| {
        let call = Invocation::new("pairs").input("x", vec![1; 6]).input("m", vec![1; 2]).output("y");
        let error = refused(client.invoke(&what(call)), Code::InvalidArgument, words);
        assert_eq!(error.place, format!("input {place}"), "{error}");
    };
    check(
        &|_| Invocation::new("pairs").input("x", vec![1; 5]).input("m", vec![1; 2]).output("y"),
        "x",
        "u8[n,2] is wanted, 5 bytes came: no n has so many",
    );
    check(&|call| call.typed("x", "u8", &[2, 3]), "x", "u8[n,2] is wanted, u8[2,3] came");
    check(&|call| call.typed("x", "u8", &[6]), "x", "u8[n,2] is wanted, u8[6] came");
    check(&|call| call.typed("x", "i8", &[3, 2]), "x", "u8[n,2] is wanted, i8[3,2] came");
    check(&|call| call.typed("x", "u8", &[4, 2]), "x", "u8[4,2] takes 8 bytes, 6 came");
    check(&|call| call.typed("x", "float", &[3, 2]), "x", "unknown name");
    check(&|call| call.typed("x", "u8", &[1; 33]), "x", "33 dimensions, expected at most 32");
    check(&|call| call.typed("x", "u8", &[u64::MAX, 2]), "x", "18446744073709551615 elements");
    check(
        &|call| call.typed("x", "u8", &[1 << 40, 1 << 40]),
        "x",
        "takes 18446744073709551615 bytes, 6 came",
    );
    let good = |call: Invocation| call.typed("x", "u8", &[3, 2]);
    check(&|call| good(call).typed("m", "u8", &[1, 2]), "m", "u8[…] is wanted, u8[1,2] came");
    check(&|call| good(call).typed("m", "u8", &[3]), "m", "u8[3] takes 3 bytes, 2 came");
    // A computed dimension is told as a number.
    let call =
        Invocation::new("pairs").input("x", vec![1; 6]).typed("x", "u8", &[3, 2]).input("m", vec![1; 3]);
    let error = client.invoke(&call.typed("m", "u8", &[3]));
    refused(error, Code::InvalidArgument, "u8[2] is wanted, u8[3] came");
    call_works(&mut client);
}

fn call_works(client: &mut Client) {
    assert_eq!(call(client, b"works!", &[3, 2], &[1; 2]).unwrap().outputs[0].inline, "works!");
}

fn elements(shape: &Option<v1::DeclaredShape>) -> Vec<Elements> {
    let dimensions = &shape.as_ref().unwrap().dimensions;
    dimensions.iter().map(|dimension| dimension.elements.clone().unwrap()).collect()
}

#[test]
fn whoever_may_call_is_told_what_a_function_takes() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    add(&mut alice);
    alice.grant("pairs", "bob").unwrap();
    let pairs = [Elements::Free("n".into()), Elements::Fixed(2)];
    let mut own = alice.list_functions().unwrap();
    own.push(alice.show_function("pairs").unwrap());
    let granted = bob.list_functions().unwrap();
    for (function, formula) in own.iter().map(|f| (f, "ceil(n / 2)")).chain(granted.iter().map(|f| (f, ""))) {
        assert_eq!(function.inputs, ["x", "m"]);
        let [x, m] = &function.input_types[..] else { panic!("{function:?}") };
        assert_eq!((&*x.dtype, &elements(&x.shape)[..]), ("u8", &pairs[..]));
        assert_eq!((&*m.dtype, &elements(&m.shape)[..]), ("u8", &[Elements::Computed(formula.into())][..]));
        let [y] = &function.outputs[..] else { panic!("{function:?}") };
        assert_eq!((&*y.dtype, &elements(&y.shape)[..]), ("u8", &pairs[..]));
    }
    let x = |shape: &[u64]| Invocation::new("alice/pairs").input("x", vec![7; 4]).typed("x", "u8", shape);
    let answer = bob.invoke(&x(&[2, 2]).input("m", vec![1]).output("y")).unwrap();
    assert_eq!((&answer.outputs[0].inline[..], &answer.outputs[0].shape[..]), (&[7; 4][..], &[2, 2][..]));
    let error = bob.invoke(&x(&[1, 4]).input("m", vec![1]));
    refused(error, Code::InvalidArgument, "u8[n,2] is wanted, u8[1,4] came");

    // The command takes shapes from files, and writes them.
    supervisor.write("bob", token("bob"));
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(supervisor.path("bob"), permissions).unwrap();
    supervisor.write("x.npy", [npy::header("|u1", &[2, 2]), vec![1, 2, 3, 4]].concat());
    let invoke = |x: &str| {
        let inputs = ["invoke", "alice/pairs", "--token-file", "bob", "--input", x, "--input", "m=u8:1"];
        supervisor.pappus(&[&inputs[..], &["--output", "y=y.npy"]].concat())
    };
    let ran = invoke("x=x.npy");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(supervisor.read("y.npy"), supervisor.read("x.npy"));
    let ran = invoke("x=u8[1,4]:1,2,3,4");
    assert!(ran.stderr.contains("u8[n,2] is wanted, u8[1,4] came"), "{}", ran.stderr);
}

#[test]
fn the_command_shows_and_takes_shapes() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    add(&mut client);
    let show = supervisor.ok(&["function", "show", "pairs"]);
    assert!(show.starts_with("function pairs: x: u8[n, 2], m: u8[ceil(n / 2)] → y: u8[n, 2]\n"), "{show}");
    let value: Value =
        serde_json::from_str(&supervisor.ok(&["function", "show", "pairs", "--json"])).unwrap();
    assert_eq!(value["input_types"][0], json!({"dtype": "u8", "shape": ["n", 2]}));
    assert_eq!(value["input_types"][1]["shape"], json!([{"computed": "ceil(n / 2)"}]));
    supervisor.write("pairs.json", config());
    let check = supervisor.ok(&["function", "check", "pairs.json"]);
    assert!(check.contains("u8[n, 2]") && check.contains("2 × n"), "{check}");
    let check = supervisor.ok(&["function", "check", "pairs.json", "--input", "x=u8[3,2]:1,2,3,4,5,6"]);
    assert!(check.contains("u8[3, 2]"), "{check}");

    supervisor.write("raw.bin", [1, 2, 3, 4]);
    let invoke = |x: &str| {
        supervisor
            .pappus(&["invoke", "pairs", "--input", x, "--input", "m=u8:1", "--output", "y=y.npy", "--json"])
    };
    for x in ["x=u8[2,2]:raw.bin", "x=raw.bin"] {
        let ran = invoke(x);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(answer["outputs"][0]["shape"], json!([2, 2]));
        assert_eq!(supervisor.read("y.npy"), [npy::header("|u1", &[2, 2]), vec![1, 2, 3, 4]].concat());
    }
    supervisor.write("odd.bin", [1, 2, 3]);
    for (x, words) in [
        (
            "x=odd.bin",
            "input \"x\" does not say its shape: u8[n,2] is wanted, 3 bytes came: no n has so many",
        ),
        ("x=u8[1,4]:raw.bin", "u8[n,2] is wanted, u8[1,4] came"),
        ("x=u16[1,2]:raw.bin", "input \"x\" is given as u16, expected u8[n,2] as the function declares it"),
    ] {
        let ran = invoke(x);
        assert!(ran.code == 3 && ran.stderr.contains(words), "{x}: {}", ran.stderr);
    }
}

#[test]
fn a_function_of_small_arguments_runs() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    for (argument, expected) in [
        (json!({"I8": -2}), 0xfe),
        (json!({"U16": 513}), 513),
        (json!({"F16": -1.5}), 0xbe00),
        (json!({"BF16": 1}), 0x3f80),
        (json!({"Bool": true}), 1),
    ] {
        let function = Function {
            buffers: &[("out", kit::absolute(8))],
            outputs: &["out"],
            steps: &[kit::launch("store", &[ptr("out"), argument])],
            ..Function::default()
        };
        function.replace(&mut client, "store").unwrap();
        let answer = client.invoke(&Invocation::new("store").output("out")).unwrap();
        assert_eq!(answer.outputs[0].inline[..], u64::to_le_bytes(expected));
    }
}
