//! Faults that the ancestors had, each as a case that fails where the fault is.
//!
//! | nr | fault | here |
//! |---|---|---|
//! | 1 | batched outputs were those of member 0 | `fault_01_…` |
//! | 2 | `Sizeof` passed the address of a temporary | `fault_02_…` |
//! | 3 | an error path returned before clearing | `fault_03_…` |
//! | 4 | items of an input were joined one byte off | `fault_04_…`, more cuts in `thesis` |
//! | 5 | `FromInput` read past the end of an item | `fault_05_…` |
//! | 6 | kernels could write cached weights | `fault_06_…` |
//! | 7 | a kernel's printf forged the worker's reply | `fault_07_…`: here kernels import nothing that prints |
//! | 8 | a worker reached other tenants' contexts | `fault_08_…` |
//! | 9 | a worker's death took its queue along | `fault_09_…` |
//! | 10 | device malloc had no limit | does not apply: no allocator can be imported, and memory cannot grow (`fault_10_…` shows the refusals); on GPUs modules that call `malloc` are refused |
//! | 11 | memory requests were clamped silently | `fault_11_…`; a call beyond a lease has the device to itself, and one beyond that is refused |
//! | 12 | a fixed buffer was overrun; timeouts were successes | `fault_12_…` |
//! | 13 | `const` and ephemeral flags were ignored, ephemeral memory kept | `fault_13_…`: unknown keys are refused, buffers start as zeros |

use std::time::Duration;

use pappus_client::{Blob, Client, Code, Invocation, v1};
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference;
use serde_json::json;

use crate::fixture::{Supervisor, until};
use crate::kit::{self, Function, absolute, constant, launch, ptr, refused};

fn supervisor() -> (Supervisor, Client) {
    let supervisor = Supervisor::start();
    let client = supervisor.client();
    (supervisor, client)
}

fn outputs(client: &mut Client, call: &Invocation) -> Vec<u8> {
    client.invoke(call).unwrap().outputs[0].inline.to_vec()
}

#[test]
fn fault_01_batched_outputs_are_each_members_own() {
    let (_supervisor, mut client) = supervisor();
    kit::add_library(&mut client, "inference_batched");
    let filter = reference::mlops::counting(5, 5);
    // Members that differ in every value.
    let a: Vec<f32> = [4.0, 4.0].into_iter().chain((0..48).map(|v| v as f32)).collect();
    let call = Invocation::new("inference_batched")
        .input("A", from_elements(&a))
        .input("B", from_elements(&filter))
        .input("size", from_elements(&[3i64, 4, 4]))
        .input("times", from_elements(&[1i64]))
        .output("D");
    let result = to_elements::<f32>(&outputs(&mut client, &call));
    assert_eq!(result, reference::mlops::inference_batched(&a, &filter, 3));
    assert_ne!(result[2..6], result[6..10], "the control: the members' results differ");
}

#[test]
fn fault_02_sizeof_is_a_value_for_every_launch() {
    let (_supervisor, mut client) = supervisor();
    // Two launches with different sizes: a shared temporary would hold the last.
    let function = Function {
        inputs: &["a", "b"],
        buffers: &[("out", absolute(64))],
        outputs: &["out"],
        steps: &[
            launch("fill", &[ptr("out"), constant(1), json!({"Sizeof": "b"})]),
            launch("fill", &[ptr("out"), constant(2), json!({"Sizeof": "a"})]),
        ],
        ..Function::default()
    };
    function.add(&mut client, "f");
    let call = Invocation::new("f").input("a", vec![0; 3]).input("b", vec![0; 40]).output("out");
    let expected = [vec![2; 3], vec![1; 37], vec![0; 24]].concat();
    assert_eq!(outputs(&mut client, &call), expected);
}

#[test]
fn fault_03_nothing_is_left_after_an_error() {
    let (_supervisor, mut client) = supervisor();
    let fill = launch("fill", &[ptr("dirty"), constant(0xaa), constant(4096)]);
    let read = launch("copy", &[ptr("dirty"), ptr("out"), constant(4096)]);
    let buffers = [("dirty", absolute(4096)), ("out", absolute(4096))];
    for (name, steps) in [
        ("traps", &[fill.clone(), launch("trap", &[])][..]),
        ("late", &[fill.clone(), launch("spin", &[])]),
        ("strays", &[fill.clone(), launch("fill", &[ptr("dirty"), constant(1), constant(1 << 31)])]),
        ("reads", std::slice::from_ref(&read)),
        ("both", &[fill, read.clone()]),
    ] {
        let function = Function { buffers: &buffers, outputs: &["out"], steps, ..Function::default() };
        function.add(&mut client, name);
    }
    let call = |name| Invocation::new(name).output("out").deadline(Duration::from_millis(200));
    for (fails, code) in
        [("traps", Code::KernelFault), ("strays", Code::KernelFault), ("late", Code::DeadlineExceeded)]
    {
        refused(client.invoke(&call(fails)), code, "");
        assert_eq!(outputs(&mut client, &call("reads")), [0; 4096], "after {fails}");
    }
    // The control: within one call the fill is seen.
    assert_eq!(outputs(&mut client, &call("both")), [0xaa; 4096]);
    assert_eq!(outputs(&mut client, &call("reads")), [0; 4096]);
}

#[test]
fn fault_04_items_are_joined_without_gaps() {
    let (_supervisor, mut client) = supervisor();
    kit::add_copy(&mut client);
    let call = (0..100u8)
        .fold(Invocation::new("copy"), |call, item| call.input("in", vec![item; usize::from(item) % 4]));
    let expected: Vec<u8> = (0..100).flat_map(|item| vec![item; usize::from(item) % 4]).collect();
    assert_eq!(outputs(&mut client, &call.output("out")), expected);
}

#[test]
fn fault_05_words_are_read_inside_their_input() {
    let (_supervisor, mut client) = supervisor();
    let size = json!({"FromInput": {"bufname": "cfg", "idx": 1}});
    let function =
        Function { inputs: &["cfg"], buffers: &[("out", size)], outputs: &["out"], ..Function::default() };
    function.add(&mut client, "f");
    let words = from_elements(&[99u64, 8]);
    let call = |bytes: &[u8]| Invocation::new("f").input("cfg", bytes).output("out");
    for short in [0, 8, 15] {
        let error = refused(client.invoke(&call(&words[..short])), Code::InvalidArgument, "");
        assert!(error.place.contains("blueprint.buffers.out"), "{error}");
    }
    // An item behind it does not lend its bytes to another input, only to its own.
    assert_eq!(outputs(&mut client, &call(&words)), [0; 8]);
    let split = Invocation::new("f")
        .input("cfg", words[..11].to_vec())
        .input("cfg", words[11..].to_vec())
        .output("out");
    assert_eq!(outputs(&mut client, &split), [0; 8]);
}

#[test]
fn fault_06_kernels_cannot_write_weights() {
    let (_supervisor, mut client) = supervisor();
    let weights: &[(&str, &[u8])] = &[("w", b"constant")];
    for (name, step) in [
        ("write", launch("fill", &[ptr("w"), constant(1), constant(8)])),
        ("read", launch("copy", &[ptr("w"), ptr("out"), constant(8)])),
    ] {
        let function = Function {
            weights,
            buffers: &[("out", absolute(8))],
            outputs: &["out"],
            steps: &[step],
            ..Function::default()
        };
        function.add(&mut client, name);
    }
    let call = |name| Invocation::new(name).output("out");
    refused(client.invoke(&call("write")), Code::KernelFault, "");
    // The control: they can be read, and are as they were.
    assert_eq!(outputs(&mut client, &call("read")), b"constant");
}

#[test]
fn fault_07_nothing_that_prints_can_be_imported() {
    let (supervisor, mut client) = supervisor();
    let module = wat::parse_str(
        r#"(module (import "env" "memory" (memory 2)) (import "env" "printf" (func (param i32)))
            (data (i32.const 0) "__OK__"))"#,
    );
    let variant = kit::wasm(&mut client, &module.unwrap());
    refused(client.add_module("m", vec![variant]), Code::InvalidArgument, "printf");
    // And a worker's standard output leads nowhere.
    let stdout = format!("/proc/{}/fd/1", supervisor.worker_pids()[0]);
    assert_eq!(std::fs::read_link(stdout).unwrap().to_str(), Some("/dev/null"));
}

#[test]
fn fault_08_a_worker_maps_only_what_its_calls_named() {
    let (supervisor, mut client) = supervisor();
    kit::add_copy(&mut client);
    let mut named = client.open_arena(4096).unwrap();
    let other = client.open_arena(4096).unwrap();
    let input = named.store(b"abc").unwrap();
    let output = named.alloc(3).unwrap();
    let call = Invocation::new("copy").input("in", input).output_to("out", output);
    client.invoke(&call).unwrap();
    let pid = supervisor.worker_pids()[0];
    let mapped = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        maps.lines().filter(|line| line.contains("memfd:pappus-arena")).count()
    };
    // The one that the call named, not the other one of the same client.
    assert_eq!(mapped(), 1);
    client.close_arena(other).unwrap();
    client.close_arena(named).unwrap();
    until("it is unmapped", || mapped() == 0);
}

#[test]
fn fault_09_the_queue_outlives_its_worker() {
    let (supervisor, mut client) = supervisor();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let waiting = [(); 10].map(|()| client.send_invocation(&copy).unwrap());
    until("they wait", || supervisor.device().queued == 10);
    supervisor.kill_call();
    kit::fails(&mut client, spin, Code::WorkerLost);
    for id in waiting {
        let answer = client.wait_invoked(id).unwrap();
        assert_eq!(&answer.outputs[0].inline[..], b"abc");
    }
}

#[test]
fn fault_10_kernels_get_no_memory_beyond_the_plan() {
    let (_supervisor, mut client) = supervisor();
    let kernel = |body: &str| {
        format!(
            r#"(module (import "env" "memory" (memory 2)) {body}
                (func (export "k") (param i32 i32 i64 i64) (drop (memory.grow (i32.const 1)))))"#
        )
    };
    for (body, words) in
        [("", "memory.grow"), (r#"(import "env" "malloc" (func (param i32) (result i32)))"#, "malloc")]
    {
        let variant = kit::wasm(&mut client, &wat::parse_str(kernel(body)).unwrap());
        refused(client.add_module("m", vec![variant]), Code::InvalidArgument, words);
    }
}

#[test]
fn fault_11_memory_is_never_clamped() {
    let (_supervisor, mut client) = supervisor();
    let function = Function { buffers: &[("out", absolute((16 << 20) + 1))], ..Function::default() };
    function.add(&mut client, "f");
    let error = refused(client.invoke(&Invocation::new("f")), Code::OutOfMemory, "16777216");
    assert!(error.message.contains("16777472"), "{error}");
}

#[test]
fn fault_12_requests_have_bounds_and_timeouts_are_failures() {
    let (_supervisor, mut client) = supervisor();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    refused(kit::copied(&mut client, &vec![1; (1 << 20) + 1]), Code::InvalidArgument, "inline bytes");
    let late = Invocation::new("spin").deadline(Duration::from_millis(10));
    refused(client.invoke(&late), Code::DeadlineExceeded, "");
    kit::works(&mut client);
}

#[test]
fn fault_13_unknown_keys_are_refused_and_buffers_start_as_zeros() {
    let (_supervisor, mut client) = supervisor();
    let flagged = Function::default().json().replace(r#""inputs""#, r#""ephemeral": ["tmp"], "inputs""#);
    let config_sha256 = client.put_blob(Blob::Bytes(flagged.as_bytes())).unwrap().sha256;
    let added = client.add_function(v1::AddFunction {
        name: "flagged".into(),
        config_sha256,
        ..v1::AddFunction::default()
    });
    refused(added, Code::InvalidArgument, "ephemeral");
    let step = launch("copy", &[ptr("tmp"), ptr("out"), constant(256)]);
    let dirty = launch("fill", &[ptr("tmp"), constant(1), constant(256)]);
    let function = Function {
        buffers: &[("tmp", absolute(256)), ("out", absolute(256))],
        outputs: &["out"],
        steps: &[step, dirty],
        ..Function::default()
    };
    function.add(&mut client, "f");
    let call = Invocation::new("f").output("out");
    for _ in 0..3 {
        assert_eq!(outputs(&mut client, &call), [0; 256]);
    }
}
