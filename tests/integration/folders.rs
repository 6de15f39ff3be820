//! Functions of a folder: `pappus apply` makes what is registered equal to them, `pappus run` calls one without a supervisor that
//! stays.

use pappus_kernels::{artefact, config};
use serde_json::{Value, json};

use crate::fixture::{Ran, Supervisor};

/// Steps that run `vec_add` twice.
const TWICE: &str = r#"{"inputs": ["A", "B"], "steps": [
    {"name": "once", "function": "vec_add", "inputs": {"A": "A", "B": "B"}},
    {"name": "again", "function": "vec_add", "inputs": {"A": {"step": "once"}, "B": "B"}}],
    "outputs": {"C": {"step": "again"}}}"#;

/// Weights that are added to an input.
const BIASED: &str = r#"{"modules": [{"module_name": "m", "path": "built/linalg.wasm"}],
    "kernels": [{"module_name": "m", "kernel_name": "vec_add_f"}], "weight_files": {"W": "w.bin"},
    "blueprint": {"inputs": ["A"], "weights": ["W"], "buffers": {"C": {"Sizeof": "A"}}, "outputs": ["C"], "control_flow": [
      {"ExecKernel": ["vec_add_f", [{"Ptr": "A"}, {"Ptr": "W"}, {"Ptr": "C"}, {"I64": {"CeilDiv": [{"Sizeof": "A"}, 4]}}],
        {"grid_dim_x": {"CeilDiv": [{"Sizeof": "A"}, 1024]}, "block_dim_x": 256}]}]}}"#;

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A folder `all` with a function, one with weights, and a composition.
fn with_folder() -> Supervisor {
    let supervisor = Supervisor::start();
    supervisor.write("built/linalg.wasm", artefact("linalg.wasm").unwrap());
    supervisor.write("all/built/linalg.wasm", artefact("linalg.wasm").unwrap());
    supervisor.write("all/vec_add.json", config("vec_add").unwrap().replace("../built", "built"));
    supervisor.write("all/biased.json", BIASED);
    supervisor.write("all/w.bin", floats(&[1.0, 2.0]));
    supervisor.write("all/twice.json", TWICE);
    supervisor
}

const APPLY: [&str; 3] = ["apply", "-f", "all"];

#[test]
fn what_is_registered_becomes_what_the_folder_has() {
    let supervisor = with_folder();
    let apply = |more: &[&str]| supervisor.ok(&[&APPLY[..], more].concat());
    let dry = "added biased\nadded vec_add\nadded twice\n3 added, 0 replaced, 0 unchanged, 0 removed (dry run: nothing was done)\n";
    assert_eq!(apply(&["--dry-run"]), dry);
    assert_eq!(supervisor.ok(&["function", "list"]).lines().count(), 1);
    let done = apply(&[]);
    assert!(done.ends_with("3 added, 0 replaced, 0 unchanged, 0 removed\n"), "{done}");
    let call = ["invoke", "twice", "-i", "A=f32:1,2", "-i", "B=f32:10,20", "-o", "C=c.bin"];
    supervisor.ok(&call);
    assert_eq!(supervisor.read("c.bin"), floats(&[21.0, 42.0]));
    assert!(apply(&["--dry-run"]).starts_with("unchanged biased\nunchanged vec_add\nunchanged twice\n"));
    // Other weights of as many bytes; a composition and another function that the folder lacks.
    supervisor.write("all/w.bin", floats(&[3.0, 2.0]));
    std::fs::remove_file(supervisor.path("all/twice.json")).unwrap();
    supervisor.ok(&["function", "add", "extra", "all/vec_add.json"]);
    let changes = "removed twice\nreplaced biased\nunchanged vec_add\nremoved extra\n0 added, 1 replaced, 1 unchanged, 2 removed";
    assert_eq!(apply(&["--dry-run"]), format!("{changes} (dry run: nothing was done)\n"));
    assert_eq!(apply(&["--keep"]).lines().last(), Some("0 added, 1 replaced, 1 unchanged, 0 removed"));
    let told: Value = serde_json::from_str(&apply(&["--json"])).unwrap();
    assert_eq!(
        (&told["unchanged"], &told["removed"], &told["dry_run"]),
        (&json!(2), &json!(2), &json!(false))
    );
    assert_eq!(
        told["functions"][1],
        json!({"name": "biased", "registration": "unchanged", "file": "all/biased.json"})
    );
    supervisor.ok(&["invoke", "biased", "-i", "A=f32:1,2", "-o", "C=c.bin"]);
    assert_eq!(supervisor.read("c.bin"), floats(&[4.0, 4.0]));
    assert_eq!(supervisor.ok(&["function", "list"]).lines().count(), 3);
}

#[test]
fn nothing_changes_where_something_is_wrong() {
    let supervisor = with_folder();
    let refused = |more: &[&str], words: &[&str]| {
        let Ran { code, stdout, stderr } = supervisor.pappus(&[&APPLY[..], more].concat());
        assert_eq!((code, stdout.as_str()), (3, ""), "{stderr}");
        words.iter().for_each(|words| assert!(stderr.contains(words), "{words}: {stderr}"));
    };
    supervisor.write("all/wrong.json", "{\n  \"blueprint\": 7}");
    supervisor.write("all/a b.json", BIASED);
    refused(&[], &["all/wrong.json:2:", "\"a b\" is no name of a function"]);
    assert_eq!(supervisor.ok(&["function", "list"]).lines().count(), 1);
    for file in ["wrong.json", "a b.json", "w.bin"] {
        std::fs::remove_file(supervisor.path("all").join(file)).unwrap();
    }
    refused(&[], &["weights \"W\" have no file", "all/biased.json"]);
    // An empty folder is more often a mistake than meant.
    for file in ["vec_add.json", "biased.json", "twice.json"] {
        std::fs::remove_file(supervisor.path("all").join(file)).unwrap();
    }
    supervisor.write("f.json", config("vec_add").unwrap().replace("../built", "built"));
    supervisor.ok(&["function", "add", "f", "f.json"]);
    refused(&[], &["to remove all that is registered, add --empty"]);
    assert_eq!(supervisor.ok(&[&APPLY[..], &["--empty"]].concat()).lines().next(), Some("removed f"));
}

#[test]
fn a_function_runs_without_a_supervisor_that_stays() {
    let supervisor = with_folder();
    let folder = supervisor.path("tmp");
    std::fs::create_dir(&folder).unwrap();
    let variables = [("PAPPUS_SOCKET", "absent"), ("TMPDIR", folder.to_str().unwrap())];
    let run = |args: &[&str]| {
        let ran = supervisor.pappus_with(&variables, &[&["run"], args].concat());
        // Nothing is left behind, however it ended.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        ran
    };
    let call = ["-i", "A=f32:1,2", "-i", "B=f32:10,20", "-o", "C=c.bin"];
    for (config, expected) in [("all/vec_add.json", [11.0, 22.0]), ("all/twice.json", [21.0, 42.0])] {
        let ran = run(&[&[config], &call[..]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(supervisor.read("c.bin"), floats(&expected));
    }
    let weighted = ["all/biased.json", "-i", "A=f32:1,2", "-o", "C=c.bin", "--json", "--weight", "W=v.bin"];
    let ran = run(&weighted);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("weights \"W\" have no file, v.bin"), "{}", ran.stderr);
    supervisor.write("v.bin", floats(&[5.0, 6.0]));
    let told: Value = serde_json::from_str(&run(&weighted).stdout).unwrap();
    assert_eq!((&told["function"], &told["device"]), (&json!("biased"), &json!("cpu")));
    assert_eq!(supervisor.read("c.bin"), floats(&[6.0, 8.0]));
    for (args, code, words) in [
        (&["all/vec_add.json"][..], 3, "input \"A\" of vec_add is missing"),
        (&["absent.json"], 3, "absent.json: "),
        (&["all/vec_add.json", "--device", "nonsense"], 3, "its log ends with"),
        (&["all/twice.json", "--weight", "W=v.bin"], 2, "--weight belongs to a function"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    }
}
