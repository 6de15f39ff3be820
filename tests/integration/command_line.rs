//! What people type and scripts read: short options and other names of commands, numbers in JSON, pictures, what is said of a
//! registration, a deadline and a first call, and what a shell completes.

use std::process::Command;

use pappus_kernels::{artefact, config, photo};
use serde_json::{Value, json};

use crate::fixture::{self, Ran, Supervisor};
use crate::kit;
use crate::programs::program;

/// With `vec_add` and the picture pipeline, registered from files.
fn with_functions() -> Supervisor {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=1,memory=64MiB"]);
    for (name, module) in [("vec_add", "linalg.wasm"), ("picture", "vision.wasm")] {
        supervisor.write(&format!("built/{module}"), artefact(module).unwrap());
        supervisor.write(&format!("configs/{name}.json"), config(name).unwrap());
    }
    supervisor
}

fn refused(supervisor: &Supervisor, args: &[&str], words: &str) {
    let Ran { code, stdout, stderr } = supervisor.pappus(args);
    assert_eq!((code, stdout.as_str()), (3, ""), "{args:?}: {stderr}");
    assert!(stderr.contains(words), "{args:?}: {stderr}");
}

#[test]
fn a_registration_says_what_it_did() {
    let supervisor = with_functions();
    let add = ["function", "add", "f", "configs/vec_add.json"];
    assert!(supervisor.ok(&add).starts_with("added function f: "));
    assert!(supervisor.ok(&add).starts_with("unchanged function f: "));
    // An unchanged one is not in the way of itself.
    assert!(supervisor.ok(&[&add[..], &["--replace"]].concat()).starts_with("unchanged function f: "));
    let other = ["function", "add", "f", "configs/picture.json", "--replace"];
    assert!(supervisor.ok(&other).starts_with("replaced function f (version 2): "));
    let told: Value = serde_json::from_str(&supervisor.ok(&[&other[..], &["--json"]].concat())).unwrap();
    assert_eq!(told["registration"], "unchanged");
    let module = ["module", "add", "m", "built/linalg.wasm"];
    assert!(supervisor.ok(&module).starts_with("added module m: "));
    assert!(supervisor.ok(&module).starts_with("unchanged module m: "));
    // Of other answers it is no part.
    let shown: Value = serde_json::from_str(&supervisor.ok(&["function", "show", "f", "--json"])).unwrap();
    assert_eq!(shown["registration"], Value::Null);
}

#[test]
fn commands_and_options_have_short_names() {
    let supervisor = with_functions();
    supervisor.ok(&["function", "add", "f", "configs/vec_add.json"]);
    supervisor.ok(&["module", "add", "m", "built/linalg.wasm"]);
    supervisor.ok(&["invoke", "f", "-i", "A=f32:1,2", "-i", "B=f32:3,4", "-o", "C=c.bin"]);
    assert_eq!(supervisor.read("c.bin"), [4f32, 6.0].map(f32::to_le_bytes).concat());
    supervisor.ok(&["function", "check", "configs/vec_add.json", "-i", "A=f32[2]", "-i", "B=f32[2]"]);
    for (short, long) in [(["function", "ls"], ["function", "list"]), (["module", "ls"], ["module", "list"])]
    {
        assert_eq!(supervisor.ok(&short), supervisor.ok(&long));
    }
    supervisor.ok(&["function", "rm", "f"]);
    supervisor.ok(&["module", "rm", "m"]);
    assert!(!supervisor.ok(&["function", "ls"]).contains("vec_add"));
    assert_eq!(supervisor.ok(&["version"]), supervisor.ok(&["--version"]));
    assert_eq!(supervisor.ok(&["invoke", "-h"]).lines().next(), Some("Call a function"));
}

#[test]
fn devices_are_listed_and_shown() {
    let supervisor = Supervisor::start();
    let list = supervisor.ok(&["device", "list"]);
    assert!(list.starts_with("DEVICE") && list.contains("\ncpu "), "{list}");
    let listed: Value = serde_json::from_str(&supervisor.ok(&["device", "ls", "--json"])).unwrap();
    let shown: Value = serde_json::from_str(&supervisor.ok(&["device", "show", "cpu", "--json"])).unwrap();
    assert_eq!((&listed["devices"][0]["name"], &shown["name"]), (&json!("cpu"), &json!("cpu")));
    assert!(supervisor.ok(&["device", "show", "cpu"]).contains("STANDBYS"));
    refused(&supervisor, &["device", "show", "cuda:7"], "no device \"cuda:7\", expected one of [\"cpu\"]");
}

#[test]
fn numbers_of_an_output_are_part_of_the_object() {
    let supervisor = with_functions();
    supervisor.ok(&["function", "add", "f", "configs/vec_add.json"]);
    let call = ["invoke", "f", "-i", "A=f32:1,inf", "-i", "B=f32:0.5,1", "-o", "C=-", "--json"];
    let ran = supervisor.pappus(&call);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["outputs"][0]["values"], json!([1.5, "inf"]));
    assert_eq!((&told["outputs"][0]["shape"], &told["outputs"][0]["dtype"]), (&json!([2]), &json!("f32")));
    // The control: without --json the bytes are all that stdout has.
    let mut plain = Command::new(program("pappus"));
    plain.args(&call[..8]).env("PAPPUS_SOCKET", supervisor.socket());
    assert_eq!(plain.output().unwrap().stdout, [1.5f32, f32::INFINITY].map(f32::to_le_bytes).concat());
    // What has no type has no numbers.
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    let copy = ["invoke", "copy", "-i", "in=text:abc", "-o", "out=-", "--json"];
    refused(&supervisor, &copy, "with --json stdout is one JSON object");
}

#[test]
fn pictures_go_in_and_out() {
    let supervisor = with_functions();
    supervisor.ok(&["function", "add", "picture", "configs/picture.json"]);
    supervisor.write("photo.png", photo::PNG);
    let outputs = ["-o", "drawing=drawing.png", "-o", "edges=edges.png"];
    let said = supervisor.ok(&[&["invoke", "picture", "-i", "photo=photo.png"], &outputs[..]].concat());
    let (width, height) = (photo::WIDTH, photo::HEIGHT);
    assert!(said.contains(&format!("photo ← photo.png: u8[{height},{width},3], ")), "{said}");
    // What was written is read again, as what it is.
    let again = supervisor.pappus(&["invoke", "picture", "-i", "photo=edges.png"]);
    assert_eq!(again.code, 3);
    assert!(again.stderr.contains(&format!("u8[{height},{width}]")), "{}", again.stderr);
    supervisor.ok(&["invoke", "picture", "-i", "photo=drawing.png"]);
    // Other pictures and archives are refused by their names, before anything runs.
    supervisor.write("photo.jpg", b"\xff\xd8\xff");
    supervisor.write("photos.npz", b"PK\x03\x04");
    refused(&supervisor, &["invoke", "picture", "-i", "photo=photo.jpg"], "photo.jpg: a JPEG picture");
    refused(
        &supervisor,
        &["invoke", "picture", "-i", "photo=photos.npz"],
        "photos.npz: an archive of arrays",
    );
    let to_jpeg = ["invoke", "picture", "-i", "photo=photo.png", "-o", "edges=edges.jpeg"];
    refused(&supervisor, &to_jpeg, "edges.jpeg: output \"edges\" is not written in this form");
    supervisor.ok(&["function", "add", "f", "configs/vec_add.json"]);
    let floats = ["invoke", "f", "-i", "A=f32:1", "-i", "B=f32:1", "-o", "C=c.png"];
    refused(&supervisor, &floats, "output \"C\" is f32[1]: write a .npy file");
}

#[test]
fn a_shortened_deadline_is_said() {
    let supervisor = Supervisor::with(&["--max-deadline", "2s", "--default-deadline", "1s"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    let call = ["invoke", "copy", "-i", "in=text:abc"];
    let said = |deadline: &str| supervisor.ok(&[&call[..], &["--deadline", deadline]].concat());
    assert!(
        said("1h").contains("deadline: 2s in place of 1h: the supervisor's max-deadline"),
        "{}",
        said("1h")
    );
    assert!(!said("2s").contains("deadline:") && !supervisor.ok(&call).contains("deadline:"));
    let told: Value = serde_json::from_str(&supervisor.ok(&[&call[..], &["--json"]].concat())).unwrap();
    assert_eq!(told["deadline_ns"], 1_000_000_000);
    // A call whose deadline passes is told how long that was, and what it was to be.
    kit::add_spin(&mut client);
    let late = supervisor.pappus(&["invoke", "spin", "--deadline", "1h"]);
    assert_eq!(late.code, 4);
    for words in ["the deadline of 2s passed", "(1h were asked for: ", "give the call a longer one"] {
        assert!(late.stderr.contains(words), "{}", late.stderr);
    }
    assert!(late.stderr.matches("spin").count() <= 1, "the kernel is named once: {}", late.stderr);
}

#[test]
fn a_kernel_that_failed_is_named_once() {
    let supervisor = Supervisor::start();
    kit::add_kernel(&mut supervisor.client(), "trap", "trap", &[]);
    let failed = supervisor.pappus(&["invoke", "trap"]);
    assert!(failed.stderr.starts_with("error: kernel `trap` trapped: "), "{}", failed.stderr);
    assert_eq!(failed.stderr.matches("trap`").count(), 1, "{}", failed.stderr);
}

#[test]
fn loading_is_called_so() {
    let supervisor = with_functions();
    supervisor.ok(&["function", "add", "f", "configs/vec_add.json"]);
    let call = ["invoke", "f", "-i", "A=f32:1", "-i", "B=f32:1"];
    let first = supervisor.ok(&call);
    assert!(first.contains("\n  loading ") && !first.contains("other"), "{first}");
    let hot = supervisor.ok(&call);
    assert!(hot.contains("\n  other ") && !hot.contains("loading"), "{hot}");
}

/// What the program offers behind a command line that ends with what was typed.
fn offered(supervisor: &Supervisor, words: &[&str]) -> Vec<String> {
    let mut shell = Command::new(program("pappus"));
    shell.env("COMPLETE", "fish").env("PAPPUS_SOCKET", supervisor.socket());
    let ran = fixture::run(shell.args(["--", "pappus"]).args(words));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn shells_complete_names_that_the_supervisor_tells() {
    let supervisor = with_functions();
    supervisor.ok(&["function", "add", "vec_add", "configs/vec_add.json"]);
    supervisor.ok(&["function", "add", "vec_two", "configs/vec_add.json"]);
    supervisor.ok(&["module", "add", "linalg", "built/linalg.wasm"]);
    assert_eq!(offered(&supervisor, &["invoke", "vec_"]), ["vec_add", "vec_two"]);
    assert_eq!(offered(&supervisor, &["function", "show", "vec_t"]), ["vec_two"]);
    assert_eq!(offered(&supervisor, &["module", "show", "l"]), ["linalg"]);
    assert_eq!(offered(&supervisor, &["device", "show", "c"]), ["cpu"]);
    assert_eq!(offered(&supervisor, &["drai"]), ["drain"]);
    // Nobody waits at a prompt for a supervisor that is not there.
    let path = supervisor.path("nobody");
    let mut shell = Command::new(program("pappus"));
    shell.env("COMPLETE", "fish").env("PAPPUS_SOCKET", path).args(["--", "pappus", "invoke", "vec_"]);
    let ran = fixture::run(&mut shell);
    assert_eq!((ran.code, ran.stdout.trim()), (0, ""), "{}", ran.stderr);
}

#[test]
fn a_configuration_is_a_regular_file_of_limited_size() {
    let supervisor = Supervisor::start();
    let pipe = supervisor.path("pipe.json");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    for path in ["/dev/zero", "pipe.json"] {
        refused(&supervisor, &["function", "check", path], "not a regular file");
        refused(&supervisor, &["function", "add", "f", path], "not a regular file");
    }
    supervisor.write("large.json", vec![b' '; (4 << 20) + 1]);
    refused(&supervisor, &["function", "check", "large.json"], "it has more than 4194304 bytes");
}
