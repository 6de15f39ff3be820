//! Checked calls: strays are named with their line, buffers can be looked at, kernels print; for the function's owner
//! alone, and within bounds.

use pappus_client::{Code, Invocation, PRINTED, PRINTED_BYTES, npy};
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::{ARTEFACTS, CONFIGS};

use crate::fixture::{Ran, Supervisor};
use crate::house::{enter, house};
use crate::kit::{self, refused};

/// Two steps: `half` is an intermediate buffer; the second writes as far from its place as the input `step` says, and
/// prints what it reads.
const SOURCE: &str = r#"#include "pappus.h"

KERNEL(halve, (const f32 *, in), (f32 *, half), (i64, n))
{
    FOR_EACH_X(i, n) { half[i] = in[i] / 2; }
}

KERNEL(shift, (const f32 *, half), (f32 *, out), (i64, n), (i64, step))
{
    FOR_EACH_X(i, n)
    {
        pappus_print_i64("i", i);
        pappus_print_f64("half", half[i]);
        out[i + step] = half[i];
    }
}

KERNEL(flood, (const f32 *, in), (i64, n))
{
    FOR_EACH_X(i, 256)
    {
        for (i64 again = 0; again < 4000; ++again)
            pappus_print_i64("\033[2J a tenant wrote this", i + n);
    }
}
"#;

/// Where in it `shift` writes.
const LINE: &str = "mine.c:14";

fn configuration(steps: &[String]) -> String {
    let steps = steps.join(",");
    format!(
        r#"{{"module_path": "mine.wasm", "kernels": ["halve", "shift", "flood"], "blueprint": {{
            "inputs": ["A", "step"], "buffers": {{"half": {{"Sizeof": "A"}}, "C": {{"Sizeof": "A"}}}},
            "outputs": ["C"], "types": {{"A": {{"dtype": "f32"}}, "half": {{"dtype": "f32"}}, "C": {{"dtype": "f32"}}}},
            "control_flow": [{steps}]}}}}"#
    )
}

fn launch(kernel: &str, arguments: &str) -> String {
    format!(
        r#"{{"ExecKernel": ["{kernel}", [{arguments}, {{"I64": {{"FloorDiv": [{{"Sizeof": "A"}}, {{"Absolute": 4}}]}}}}
            {}], {{
            "grid_dim_x": {{"Absolute": 1}}, "grid_dim_y": {{"Absolute": 1}}, "grid_dim_z": {{"Absolute": 1}},
            "block_dim_x": {{"Absolute": 256}}, "block_dim_y": {{"Absolute": 1}}, "block_dim_z": {{"Absolute": 1}},
            "shared_mem_bytes": {{"Absolute": 0}}}}]}}"#,
        if kernel == "shift" { r#", {"U64": {"FromInput": {"bufname": "step", "idx": 0}}}"# } else { "" }
    )
}

fn halve_and_shift() -> Vec<String> {
    vec![
        launch("halve", r#"{"Ptr": "A"}, {"Ptr": "half"}"#),
        launch("shift", r#"{"Ptr": "half"}, {"Ptr": "C"}"#),
    ]
}

/// A supervisor with the function `mine` of these steps, built with these options.
fn with(steps: &[String], options: &[&str]) -> Supervisor {
    let supervisor = Supervisor::start();
    supervisor.write("mine.c", SOURCE);
    supervisor.ok(&[&["kernel", "build", "--target", "cpu", "mine.c"], options].concat());
    supervisor.write("mine.json", configuration(steps));
    supervisor.ok(&["function", "add", "mine", "mine.json"]);
    supervisor
}

fn invoke(supervisor: &Supervisor, step: &str, more: &[&str]) -> Ran {
    let step = format!("step=i64:{step}");
    let call = ["invoke", "mine", "--input", "A=f32:2,4,6,8", "--input", &step, "--output", "C=c.bin"];
    supervisor.pappus(&[&call, more].concat())
}

#[test]
fn a_stray_access_names_kernel_buffer_index_and_line() {
    let supervisor = with(&halve_and_shift(), &["--debug"]);
    let ran = invoke(&supervisor, "1", &["--checked"]);
    let words = format!("kernel `shift` writes 4 bytes at C[4], behind the end of C (f32[4]), at {LINE}");
    assert!(ran.code == 4 && ran.stderr.contains("KERNEL_FAULT"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&words), "{}", ran.stderr);
    // What it printed up to there.
    assert!(ran.stderr.contains("i: 3\nhalf: 4.0"), "{}", ran.stderr);
    // The control: an ordinary call does not notice.
    let ran = invoke(&supervisor, "1", &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(to_elements::<f32>(&supervisor.read("c.bin")), [0.0, 1.0, 2.0, 3.0]);
    // Nothing strays.
    let ran = invoke(&supervisor, "0", &["--checked"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(to_elements::<f32>(&supervisor.read("c.bin")), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn without_debug_information_the_place_is_a_byte_and_how_to_get_the_line_is_said() {
    let supervisor = with(&halve_and_shift(), &[]);
    let ran = invoke(&supervisor, "-1", &["--checked"]);
    let words = "kernel `shift` writes 4 bytes at C[-1], before the start of C (f32[4]), at byte ";
    assert!(ran.code == 4 && ran.stderr.contains(words), "{}", ran.stderr);
    assert!(ran.stderr.contains("--debug"), "{}", ran.stderr);
}

#[test]
fn modules_with_debug_information_depend_on_their_source_alone() {
    let supervisor = Supervisor::start();
    let build = |folder: &str, more: &[&str]| {
        let source = supervisor.write(&format!("{folder}/mine.c"), SOURCE);
        supervisor.ok(&[&["kernel", "build", "--target", "cpu", source.to_str().unwrap()], more].concat());
        supervisor.read(&format!("{folder}/mine.wasm"))
    };
    let debug = build("here", &["--debug"]);
    assert!(debug == build("far/away", &["--debug"]), "two builds of one source differ");
    assert!(debug.len() > build("here", &[]).len(), "there is nothing to find lines by");
    assert!(!debug.windows(9).any(|bytes| bytes == b"/include/"), "it tells where headers lay");
}

#[test]
fn every_buffer_can_be_looked_at() {
    let supervisor = with(&halve_and_shift(), &[]);
    let dumps = ["--dump", "half=half.npy", "--dump", "A=a.bin", "--dump", "step=step.bin"];
    let ran = invoke(&supervisor, "0", &dumps);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let half = [npy::header("<f4", &[4]), from_elements(&[1f32, 2.0, 3.0, 4.0])].concat();
    assert!(supervisor.read("half.npy") == half, "not what `halve` made");
    assert_eq!(to_elements::<f32>(&supervisor.read("a.bin")), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(supervisor.read("step.bin"), [0; 8]);
    assert!(ran.stdout.contains("half → half.npy: "), "{}", ran.stdout);
    let ran = invoke(&supervisor, "0", &["--dump", "quarter=q.bin"]);
    assert!(ran.code == 3 && ran.stderr.contains("half"), "{}", ran.stderr);
    let ran = invoke(&supervisor, "0", &["--dump", "step=step.npy"]);
    assert!(ran.code == 3 && ran.stderr.contains("does not say what \"step\" holds"), "{}", ran.stderr);
}

#[test]
fn what_kernels_print_is_shown_in_checked_calls_alone() {
    let supervisor = with(&halve_and_shift(), &[]);
    let lines = "i: 0\nhalf: 1.0\ni: 1\nhalf: 2.0\ni: 2\nhalf: 3.0\ni: 3\nhalf: 4.0\n";
    let ran = invoke(&supervisor, "0", &["--checked"]);
    assert!(ran.code == 0 && ran.stderr.contains(lines), "{}", ran.stderr);
    let ran = invoke(&supervisor, "0", &[]);
    assert!(ran.code == 0 && !ran.stderr.contains("half: "), "{}", ran.stderr);
}

#[test]
fn a_flood_of_printing_is_bounded_and_reaches_its_owner_alone() {
    let supervisor = with(&[launch("flood", r#"{"Ptr": "A"}"#)], &[]);
    let ran = invoke(&supervisor, "0", &["--checked"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("?[2J a tenant wrote this: 4\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains(" more, for which there is no room\n"), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'), "it reaches the terminal as it is");
    let bytes = ran.stderr.len() as u64;
    assert!((PRINTED_BYTES / 2..2 * PRINTED_BYTES).contains(&bytes), "{bytes} bytes");
    assert!(!supervisor.log().contains("a tenant wrote this"));
}

#[test]
fn only_the_owner_may_call_a_function_checked() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let [mut alice, mut bob] = ["alice", "bob"].map(|name| enter(&supervisor, name));
    kit::add_copy(&mut alice);
    alice.grant("copy", "bob").unwrap();
    let call = |name: &str| Invocation::new(name).input("in", &b"works"[..]).output("out");
    let checked = alice.invoke(&call("copy").output("in").output(PRINTED).checked()).unwrap();
    let bytes = |name: &str| &checked.outputs.iter().find(|output| output.name == name).unwrap().inline;
    assert_eq!((&bytes("out")[..], &bytes("in")[..]), (&b"works"[..], &b"works"[..]));
    assert!(bytes(PRINTED).iter().all(|byte| *byte == 0) && bytes(PRINTED).len() as u64 == PRINTED_BYTES);
    // She made the checked version: it is there, and not for him.
    let words = "only its owner may call it checked";
    refused(bob.invoke(&call("alice/copy").checked()), Code::PermissionDenied, words);
    refused(bob.invoke(&call("copy").checked()), Code::NotFound, "");
    refused(bob.invoke(&call("alice/nothing").checked()), Code::NotFound, "");
    // The control: he may call it otherwise, and has no more outputs then than before.
    assert_eq!(bob.invoke(&call("alice/copy")).unwrap().outputs.len(), 1);
    refused(alice.invoke(&call("copy").output("in")), Code::InvalidArgument, "in");
}

#[test]
fn the_checked_version_is_of_the_function_that_is_there_now() {
    let supervisor = with(&halve_and_shift(), &[]);
    let shown = |ran: Ran| (ran.code, ran.stderr.contains("half: 1.0"));
    assert_eq!(shown(invoke(&supervisor, "0", &["--checked"])), (0, true));
    supervisor.write("mine.json", configuration(&halve_and_shift()[..1]));
    supervisor.ok(&["function", "add", "mine", "mine.json", "--replace"]);
    assert_eq!(shown(invoke(&supervisor, "0", &["--checked"])), (0, false));
    supervisor.ok(&["function", "remove", "mine"]);
    let ran = invoke(&supervisor, "0", &["--checked"]);
    assert!(ran.code != 0 && ran.stderr.contains("NOT_FOUND"), "{}", ran.stderr);
}

#[test]
fn checked_calls_wait_for_a_place_in_memory_and_are_charged_for() {
    let supervisor = house(&[("alice", "loaded-functions = 1\n")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let call = Invocation::new("copy").input("in", &b"works"[..]).output("out");
    alice.invoke(&call).unwrap();
    refused(alice.invoke(&call.clone().checked()), Code::ResourceExhausted, "loaded-functions");
    alice.invoke(&call).unwrap();
}

#[test]
fn the_library_computes_the_same_when_it_is_checked() {
    let supervisor = Supervisor::start();
    for (file, bytes) in ARTEFACTS.iter().filter(|(file, _)| file.ends_with(".wasm")) {
        supervisor.write(&format!("built/{file}"), bytes);
    }
    let values: Vec<f32> = (0..32 * 32).map(|at| (at * 37 % 101) as f32 / 8.0 - 6.0).collect();
    let f32s = |shape: &[u64]| {
        let count = shape.iter().product::<u64>() as usize;
        [npy::header("<f4", shape), from_elements(&values[..count])].concat()
    };
    let i64s = |shape: &[u64]| {
        // The first is how many rows `matmul` has.
        let values =
            (0..shape.iter().product::<u64>() as i64).map(|at| if at == 0 { 32 } else { at * 7 % 13 - 5 });
        let values: Vec<i64> = values.collect();
        [npy::header("<i8", shape), from_elements(&values)].concat()
    };
    let square = [32, 32];
    for (name, inputs, output) in [
        ("vec_add", vec![("A", f32s(&[700])), ("B", f32s(&[700]))], "C"),
        ("sgemm", vec![("A", f32s(&square)), ("B", f32s(&square))], "C"),
        ("matmul", vec![("A", i64s(&[1 + 32 * 32]))], "B"),
        ("matmul_tiled", vec![("A", i64s(&square)), ("B", i64s(&square))], "C"),
        ("softmax", vec![("A", f32s(&square))], "B"),
    ] {
        let config = CONFIGS.iter().find(|(known, _)| *known == name).unwrap().1;
        let file = format!("configs/{name}.json");
        supervisor.write(&file, config);
        supervisor.ok(&["function", "add", name, &file]);
        let given: Vec<_> = inputs
            .iter()
            .map(|(input, bytes)| {
                supervisor.write(&format!("{input}.npy"), bytes);
                format!("{input}={input}.npy")
            })
            .collect();
        let run = |file: &str, more: &[&str]| {
            let output = format!("{output}={file}");
            let inputs = given.iter().flat_map(|input| ["--input", input]);
            let args: Vec<_> = ["invoke", name, "--output", &output]
                .into_iter()
                .chain(inputs)
                .chain(more.iter().copied())
                .collect();
            supervisor.ok(&args);
            supervisor.read(file)
        };
        assert!(run("plain.npy", &[]) == run("checked.npy", &["--checked"]), "{name} gives another array");
    }
}
