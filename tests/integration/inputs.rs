//! What `pappus invoke` takes as inputs and outputs beside plain files: arrays that say what they hold, numbers, stdin
//! and pipes; and what it says of them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use pappus_client::npy;
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::{artefact, config};
use serde_json::Value;

use crate::fixture::{Ran, Supervisor};
use crate::programs::program;

/// `vec_add`: C = A + B, of f32.
fn with_vec_add() -> Supervisor {
    let supervisor = Supervisor::start();
    supervisor.write("built/linalg.wasm", artefact("linalg.wasm").unwrap());
    supervisor.write("configs/vec_add.json", config("vec_add").unwrap());
    supervisor.ok(&["function", "add", "vec_add", "configs/vec_add.json"]);
    supervisor
}

/// `pappus invoke vec_add` with these arguments and this stdin; how it ended, and the bytes it printed.
fn invoke(supervisor: &Supervisor, args: &[&str], stdin: &[u8]) -> (Ran, Vec<u8>) {
    let mut child = Command::new(program("pappus"))
        .current_dir(supervisor.path("."))
        .env("PAPPUS_SOCKET", supervisor.socket())
        .args(["invoke", "vec_add"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // What is refused early reads nothing.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    let ran = Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    (ran, output.stdout)
}

fn refused(supervisor: &Supervisor, args: &[&str], words: &str) {
    let (ran, _) = invoke(supervisor, args, b"");
    assert_eq!(ran.code, 3, "{args:?}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
}

#[test]
fn numbers_are_inputs() {
    let supervisor = with_vec_add();
    let args = ["--input", "A=f32:1,2.5,-3", "--input", "B=f32[3]:1,1,1", "--output", "C=c.bin"];
    let (ran, _) = invoke(&supervisor, &args, b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(to_elements::<f32>(&supervisor.read("c.bin")), [2.0, 3.5, -2.0]);
}

#[test]
fn stdin_is_an_input_and_stdout_an_output_and_nothing_else_is_in_it() {
    let supervisor = with_vec_add();
    let a = from_elements(&[1f32, 2.0]);
    let args = ["--input", "A=-", "--input", "B=f32:10,20", "--output", "C=-"];
    // Raw bytes, and a NumPy file.
    for stdin in [a.clone(), [npy::header("<f4", &[2]), a].concat()] {
        let (ran, stdout) = invoke(&supervisor, &args, &stdin);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(to_elements::<f32>(&stdout), [11.0, 22.0]);
        assert!(ran.stderr.contains("C → stdout") && ran.stderr.contains("ran on cpu"), "{}", ran.stderr);
    }
}

#[test]
fn pipes_with_a_name_are_inputs_and_outputs() {
    let supervisor = with_vec_add();
    let (from, to) = (supervisor.path("from"), supervisor.path("to"));
    pipe(&from);
    pipe(&to);
    let sum = std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&from, from_elements(&[1f32, 2.0])).unwrap());
        let sum = scope.spawn(|| std::fs::read(&to).unwrap());
        let args = ["--input", "A=from", "--input", "B=f32:3,4", "--output", "C=to"];
        let (ran, _) = invoke(&supervisor, &args, b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        sum.join().unwrap()
    });
    assert_eq!(to_elements::<f32>(&sum), [4.0, 6.0]);
}

#[test]
fn arrays_that_are_not_what_was_announced_are_refused_with_both() {
    let supervisor = with_vec_add();
    supervisor.write("a.npy", [npy::header("<f8", &[2, 2]), vec![0; 32]].concat());
    let b = ["--input", "B=f32:1,2,3,4,5,6,7,8"];
    let with = |a: &'static str| [&["--input", a][..], &b].concat();
    refused(&supervisor, &with("A=f32:a.npy"), "a.npy holds f64[2,2], expected f32");
    refused(&supervisor, &with("A=f64[4]:a.npy"), "a.npy holds f64[2,2], expected f64[4]");
    // What the function declares counts where nothing is announced.
    refused(&supervisor, &with("A=a.npy"), "a.npy holds f64[2,2], expected f32 as the function declares it");
    supervisor.write("a.npy", [npy::header("<f4", &[2, 4]), vec![0; 32]].concat());
    for fits in ["A=a.npy", "A=f32:a.npy", "A=f32[2,4]:a.npy"] {
        let (ran, _) = invoke(&supervisor, &with(fits), b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
}

#[test]
fn files_that_hold_no_plain_numbers_are_refused() {
    let supervisor = with_vec_add();
    let dict = |header: &str| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        bytes
    };
    for (header, words) in [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n", "expected plain numbers"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }\n", "20 bytes of data, but there are 16"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", "12 bytes of data, but there are 16"),
    ] {
        supervisor.write("a.npy", dict(header));
        refused(&supervisor, &["--input", "A=a.npy", "--input", "B=f32:1,2,3,4"], words);
    }
}

#[test]
fn arrays_of_another_order_are_turned() {
    let supervisor = with_vec_add();
    // [[1, 2], [3, 4]], with the most significant bytes first, and column by column.
    let header = "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 2), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend([1f32, 3.0, 2.0, 4.0].map(f32::to_be_bytes).concat());
    supervisor.write("a.npy", &bytes);
    let rest = ["--input", "B=f32:0,0,0,0", "--output", "C=-"];
    // From a file, and from a pipe.
    for (input, stdin) in [("A=a.npy", &b""[..]), ("A=-", &bytes)] {
        let (ran, sum) = invoke(&supervisor, &[&["--input", input], &rest[..]].concat(), stdin);
        assert_eq!(sum, [1f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat(), "{}", ran.stderr);
    }
}

#[test]
fn what_is_sent_is_said() {
    let supervisor = with_vec_add();
    supervisor.write("a.npy", [npy::header("<f4", &[2]), vec![0; 8]].concat());
    supervisor.write("b.bin", [0; 8]);
    let args = ["--input", "A=a.npy", "--input", "B=b.bin"];
    let (ran, _) = invoke(&supervisor, &args, b"");
    assert!(ran.stdout.contains("A ← a.npy: f32[2], 8 bytes"), "{}", ran.stdout);
    assert!(ran.stdout.contains("B ← b.bin: 8 bytes"), "{}", ran.stdout);
    let (ran, _) = invoke(&supervisor, &[&args[..], &["--json"]].concat(), b"");
    let value: Value = serde_json::from_str(&ran.stdout).unwrap();
    let item = &value["inputs"][0]["items"][0];
    assert_eq!((&item["dtype"], &item["shape"][0], &item["bytes"]), (&"f32".into(), &2.into(), &8.into()));
    assert_eq!((&value["inputs"][1]["name"], &value["inputs"][1]["bytes"]), (&"B".into(), &8.into()));
    assert_eq!(value["inputs"][1]["items"][0]["dtype"], Value::Null);
}

/// A pipe that nothing reads any more.
fn closed_pipe() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

/// A reader that goes away early is no error, and no second line about it is printed.
#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let supervisor = with_vec_add();
    let big = supervisor.write("big.bin", vec![0; 4 << 20]);
    let big = big.to_str().unwrap();
    let (a, b) = (format!("A={big}"), format!("B={big}"));
    let invoke = ["invoke", "vec_add", "--input", &a, "--input", &b, "--output", "C=-"];
    for args in [&["status"][..], &["--help"], &["completions", "bash"], &["token"], &invoke] {
        let output = Command::new(program("pappus"))
            .current_dir(supervisor.path("."))
            .env("PAPPUS_SOCKET", supervisor.socket())
            .args(args)
            .stdin(Stdio::null())
            .stdout(closed_pipe())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
    // The supervisor's own lists, too.
    let output = Command::new(program("pappus-supervisor"))
        .arg("--list-devices")
        .stdout(closed_pipe())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("roken pipe") && output.status.success(), "{stderr}");
}

/// What was begun is done to its end, whoever reads how far it is.
#[test]
fn applying_a_folder_goes_on_where_nobody_reads() {
    let supervisor = with_vec_add();
    let config = config("vec_add").unwrap();
    for name in ["a", "b", "c"] {
        supervisor.write(&format!("all/{name}.json"), config.replace("../built", "built"));
    }
    supervisor.write("all/built/linalg.wasm", artefact("linalg.wasm").unwrap());
    let status = Command::new(program("pappus"))
        .current_dir(supervisor.path("."))
        .env("PAPPUS_SOCKET", supervisor.socket())
        .args(["apply", "-f", "all"])
        .stdout(closed_pipe())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    let list = supervisor.ok(&["function", "list"]);
    assert!(["a", "b", "c"].iter().all(|name| list.lines().any(|line| line.starts_with(name))), "{list}");
}

/// A closed stderr costs an error its words, not its exit code.
#[test]
fn a_closed_stderr_keeps_the_exit_code() {
    let supervisor = Supervisor::start();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = Command::new(program("pappus"))
        .env("PAPPUS_SOCKET", supervisor.socket())
        .args(["function", "show", "nothing"])
        .stdin(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
