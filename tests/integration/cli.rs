//! The `pappus` command as scripts and people use it: exit codes, JSON, NumPy files, checking without a supervisor.

use std::process::Command;

use pappus_client::npy;
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::{artefact, config, reference};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{self, Ran, Supervisor};
use crate::kit::{self, Function, absolute, launch};
use crate::programs::program;

/// Matmul, registered from files, with its input for a 3 × 3 matrix.
fn with_matmul() -> (Supervisor, Vec<i64>) {
    let supervisor = Supervisor::start();
    supervisor.write("built/mlops.wasm", artefact("mlops.wasm").unwrap());
    supervisor.write("configs/matmul.json", config("matmul").unwrap());
    let a: Vec<i64> = [3].into_iter().chain(1..10).collect();
    supervisor.write("a.bin", from_elements(&a));
    supervisor.ok(&["function", "add", "matmul", "configs/matmul.json"]);
    (supervisor, a)
}

fn json(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

#[test]
fn exit_codes_tell_failures_apart() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_kernel(&mut client, "trap", "trap", &[]);
    kit::add_spin(&mut client);
    let check = |args: &[&str], code: i32, words: &str| {
        let Ran { code: got, stderr, .. } = supervisor.pappus(args);
        assert_eq!(got, code, "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        if code > 2 {
            assert!(stderr.starts_with("error: ") && stderr.trim_end().lines().count() == 1, "{stderr}");
        }
    };
    check(&["status"], 0, "");
    check(&["stauts"], 2, "status");
    check(&["invoke", "trap", "--repeat", "0"], 2, "repeat");
    check(&["invoke", "nobody"], 3, "NOT_FOUND");
    check(&["function", "add", "f", "absent.json"], 3, "absent.json");
    check(&["invoke", "trap"], 4, "KERNEL_FAULT");
    check(&["invoke", "spin", "--deadline", "20ms"], 4, "DEADLINE_EXCEEDED");
    check(&["--socket", "absent", "status"], 5, "pappus-supervisor");
    // Another program's socket.
    let path = supervisor.path("stranger");
    let stranger = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(stranger.accept()));
        check(&["--socket", "stranger", "status"], 5, "");
    });
}

#[test]
fn json_has_the_shapes_of_the_protocol() {
    let (supervisor, _) = with_matmul();
    let status = json(&supervisor.ok(&["status", "--json"]));
    assert_eq!((&status["functions"], &status["draining"]), (&1.into(), &false.into()));
    assert_eq!(status["devices"][0]["workers"][0]["restarts"], 0);
    let list = json(&supervisor.ok(&["function", "list", "--json"]));
    assert_eq!(list["functions"][0]["name"], "matmul");
    assert_eq!(list["functions"][0]["modules"][0]["name"], "mlops.wasm");
    let table = supervisor.ok(&["function", "list"]);
    assert!(table.contains("MODULES") && table.lines().nth(1).unwrap().ends_with("mlops.wasm"), "{table}");
    let show = json(&supervisor.ok(&["function", "show", "matmul", "--json"]));
    assert_eq!((&show["inputs"][0], &show["outputs"][0]["dtype"]), (&"A".into(), &"i64".into()));
    assert_eq!(show["config"]["blueprint"]["outputs"][0], "B");
    let module = json(&supervisor.ok(&["module", "add", "m", "built/mlops.wasm", "--json"]));
    assert_eq!(module["variants"][0]["format"], "wasm");
    assert!(module["variants"][0]["kernels"].as_array().unwrap().contains(&"matmul_para".into()));
    // Wasm itself does not tell parameters: `pappus kernel build` wrote down what they are.
    let details = module["variants"][0]["details"].as_array().unwrap();
    let relu = details.iter().find(|kernel| kernel["name"] == "relu_2d_f").unwrap();
    assert_eq!(
        relu["params"],
        serde_json::json!([{"name": "C", "offset": 0, "bytes": 8, "type": "pointer"}])
    );
    assert_eq!(show["found"][0]["variants"][0]["details"][0]["name"], module["variants"][0]["kernels"][0]);
    let modules = json(&supervisor.ok(&["module", "list", "--json"]));
    assert_eq!(modules["modules"][0]["name"], "m");
    let check = json(&supervisor.ok(&["function", "check", "configs/matmul.json", "--json"]));
    assert_eq!(check["kernels"][0]["arguments"][0], "pointer");
    assert_eq!((&check["valid"], &check["launches"]), (&true.into(), &1.into()));
    supervisor.ok(&["module", "remove", "m"]);
    supervisor.ok(&["function", "remove", "matmul"]);
    assert_eq!(json(&supervisor.ok(&["function", "list", "--json"]))["functions"], Value::Array(vec![]));
}

#[test]
fn repeated_calls_show_how_latencies_are_distributed() {
    let (supervisor, _) = with_matmul();
    let args = ["invoke", "matmul", "--input", "A=a.bin", "--repeat", "5", "--json"];
    let ran = json(&supervisor.ok(&args));
    assert_eq!((&ran["calls"], &ran["device"]), (&5.into(), &"cpu".into()));
    assert_eq!((&ran["outputs"][0]["bytes"], &ran["outputs"][0]["shape"][0]), (&80.into(), &10.into()));
    for stage in ["queued_ns", "execute_ns", "total_ns", "round_trip_ns"] {
        let of = |quantile: &str| ran["latency"][stage][quantile].as_u64().unwrap();
        assert!(of("min") <= of("p50") && of("p50") <= of("max"), "{ran}");
    }
    assert!(ran["timings"]["total_ns"].as_u64().unwrap() > 0);
    assert_eq!(supervisor.device().completed, 5);
}

#[test]
fn numpy_files_go_in_and_out() {
    let (supervisor, a) = with_matmul();
    let array = [npy::header("<i8", &[10]), from_elements(&a)].concat();
    supervisor.write("a.npy", array);
    supervisor.ok(&["invoke", "matmul", "--input", "A=a.npy", "--output", "B=b.npy"]);
    let header = npy::header("<i8", &[10]);
    let result = supervisor.read("b.npy");
    assert!(result.starts_with(b"\x93NUMPY") && result.starts_with(&header));
    assert_eq!(to_elements::<i64>(&result[header.len()..]), reference::mlops::matmul(&a));
    let ran = supervisor.pappus(&["invoke", "matmul", "--output", "B=absent/b.npy", "--input", "A=a.npy"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("output \"B\" cannot be written: absent/b.npy: "), "{}", ran.stderr);
    // A file that only looks like one.
    supervisor.write("broken.npy", &b"\x93NUMPY\x01\x00\xff\xff{"[..]);
    let ran = supervisor.pappus(&["invoke", "matmul", "--input", "A=broken.npy"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("broken.npy"), "{}", ran.stderr);
}

#[test]
fn checking_needs_neither_supervisor_nor_modules_nor_sizes() {
    let (supervisor, _) = with_matmul();
    std::fs::remove_file(supervisor.path("built/mlops.wasm")).unwrap();
    let check = |args: &[&str]| {
        let all = [&["--socket", "absent", "function", "check"], args].concat();
        supervisor.pappus(&all)
    };
    let ran = check(&["configs/matmul.json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for words in ["a valid function", "sizeof(A)", "missing: module mlops.wasm: looked for"] {
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
    let sized = check(&["configs/matmul.json", "--input", "A=128KiB"]);
    assert!(sized.stdout.contains("131072 (128.0 KiB)"), "{}", sized.stdout);
    // Too short for the word it needs.
    supervisor.write("short.bin", [1; 7]);
    let short = check(&["configs/matmul.json", "--input", "A=short.bin"]);
    assert_eq!(short.code, 3, "{}{}", short.stdout, short.stderr);
    assert!(short.stderr.contains(", such as A=i64:1"), "{}", short.stderr);
    supervisor.write("broken.json", config("matmul").unwrap().replace("Sizeof", "SizeOf"));
    let broken = check(&["broken.json"]);
    assert_eq!(broken.code, 3);
    assert!(
        broken.stderr.contains("broken.json:") && broken.stderr.contains(": at blueprint."),
        "{}",
        broken.stderr
    );
    assert!(broken.stderr.contains("did you mean \"Sizeof\"?"), "{}", broken.stderr);
    // An editor's byte order mark; a name that turns the text around; a number that no size is.
    let text = config("vec_add").unwrap();
    supervisor.write("bom.json", [b"\xef\xbb\xbf", text.as_bytes()].concat());
    assert_eq!(check(&["bom.json"]).code, 0);
    supervisor.write("turned.json", text.replace("\"A\"", "\"\\u202eA\""));
    let turned = check(&["turned.json"]);
    assert!(turned.code == 3 && turned.stderr.contains(r#""\u{202e}A""#), "{}", turned.stderr);
    assert!(!turned.stderr.contains('\u{202e}') && !turned.stdout.contains('\u{202e}'), "{}", turned.stderr);
    supervisor.write("large.json", text.replace("256", "18446744073709551616"));
    let large = check(&["large.json"]);
    assert!(large.stderr.contains("the value is 18446744073709551616, expected 0 to"), "{}", large.stderr);
}

#[test]
fn checking_opens_module_files_that_are_there() {
    let (supervisor, _) = with_matmul();
    let check = |words: &str| {
        let ran = supervisor.pappus(&["function", "check", "configs/matmul.json"]);
        assert_eq!(ran.code, 3, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    };
    supervisor.write("built/mlops.wasm", artefact("vision.wasm").unwrap());
    check("has no kernel `matmul_para`");
    supervisor.write("built/mlops.wasm", b"\0asm");
    check("mlops.wasm: no WebAssembly");
    supervisor.write("built/mlops.wasm", artefact("mlops.wasm").unwrap());
    supervisor.write(
        "built/mlops.ptx",
        ".visible .entry matmul_para(.param .u64 a, .param .f32 b, .param .u64 c) {}",
    );
    check("mlops.ptx: kernel `matmul_para`, argument 2: the kernel takes 4 bytes (float)");
    supervisor.write("built/mlops.ptx", artefact("mlops.ptx").unwrap());
    let found = json(&supervisor.ok(&["function", "check", "configs/matmul.json", "--json"]));
    assert_eq!(found["modules"][0]["checked"], "kernels and parameters");
    assert_eq!(
        (&found["modules"][1]["checked"], &found["missing_modules"]),
        (&"kernels and parameters".into(), &Value::Array(vec![]))
    );
}

#[test]
fn a_configuration_may_name_its_schema() {
    let (supervisor, _) = with_matmul();
    let text = config("matmul").unwrap().replacen('{', r#"{"$schema": "../docs/blueprint.schema.json","#, 1);
    supervisor.write("configs/with.json", text);
    supervisor.ok(&["function", "check", "configs/with.json"]);
    supervisor.ok(&["function", "add", "with", "configs/with.json"]);
}

#[test]
fn readiness_is_an_exit_code() {
    let supervisor = Supervisor::start();
    supervisor.worker_pids();
    assert_eq!(supervisor.ok(&["status", "--ready"]), "");
    let unreachable = supervisor.pappus(&["--socket", "absent", "status", "--ready"]);
    assert_eq!(unreachable.code, 5, "{}", unreachable.stderr);
    // A call that runs holds the draining up.
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    client.send_invocation(&pappus_client::Invocation::new("spin")).unwrap();
    supervisor.until_running();
    supervisor.terminate();
    fixture::until("it drains", || supervisor.status().draining);
    let ran = supervisor.pappus(&["status", "--ready"]);
    assert_eq!((ran.code, ran.stderr.contains("draining")), (6, true), "{}", ran.stderr);
    assert!(supervisor.ok(&["status"]).contains("\nDRAINING: "));
}

#[test]
fn a_supervisor_that_is_stopped_does_not_keep_a_command() {
    let supervisor = Supervisor::start();
    let stat = format!("/proc/{}/stat", supervisor.pid());
    fixture::signal(supervisor.pid(), Signal::STOP);
    fixture::until("it is stopped", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    let commands: [&[&str]; 4] = [
        &["status", "--ready"],
        &["invoke", "f", "--deadline", "1ms"],
        &["status", "--patience", "10ms"],
        &["function", "add", "f", "absent.json", "--patience", "10ms"],
    ];
    std::thread::scope(|scope| {
        for command in commands {
            let supervisor = &supervisor;
            scope.spawn(move || {
                let Ran { code, stderr, .. } = supervisor.pappus(command);
                assert_eq!(code, 5, "{command:?}: {stderr}");
                assert!(stderr.contains("does not answer") && stderr.lines().count() == 1, "{stderr}");
            });
        }
    });
    fixture::signal(supervisor.pid(), Signal::CONT);
    supervisor.ok(&["status", "--patience", "1m"]);
}

#[test]
fn a_token_can_be_written_to_a_file_of_its_own() {
    use std::os::unix::fs::PermissionsExt;
    let supervisor = Supervisor::start();
    let said = supervisor.ok(&["token", "--output", "acme.token"]);
    assert!(said.starts_with("token-sha256 = \""), "{said}");
    let mode = std::fs::metadata(supervisor.path("acme.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let first = supervisor.read("acme.token");
    let again = supervisor.pappus(&["token", "--output", "acme.token"]);
    assert_eq!(again.code, 3);
    assert!(again.stderr.contains("--force"), "{}", again.stderr);
    assert_eq!(supervisor.read("acme.token"), first);
    supervisor.ok(&["token", "--output", "acme.token", "--force"]);
    assert_ne!(supervisor.read("acme.token"), first);
}

#[test]
fn large_configurations_are_quick() {
    let supervisor = Supervisor::start();
    let step = launch("trap", &[]);
    let steps = vec![step.clone(); 4000];
    let large = Function { steps: &steps, ..Function::default() };
    let text = large.json();
    assert!(text.len() > 600_000, "{} bytes", text.len());
    supervisor.write("large.json", text);
    let repeat = serde_json::json!({"Repeat": [absolute(70_000), [step]]});
    let many = Function { steps: &[repeat], ..Function::default() };
    supervisor.write("many.json", many.json());
    for (file, launches) in [("large.json", 4000), ("many.json", 70_000)] {
        // Seconds of processor time, far more than a program that is not optimised needs; the kernel ends it then.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "ulimit -t 10; exec \"$@\"", "sh"]).arg(program("pappus"));
        shell.args(["function", "check", file, "--json"]).current_dir(supervisor.path(""));
        let ran = fixture::run(shell.env("PAPPUS_SOCKET", supervisor.socket()));
        assert_eq!(ran.code, 0, "{file}: {}", ran.stderr);
        assert_eq!(json(&ran.stdout)["launches"], launches);
    }
}

#[test]
fn seventy_thousand_launches_run() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let step = launch("store", &[kit::ptr("out"), kit::constant(7)]);
    let function = Function {
        buffers: &[("out", absolute(8))],
        outputs: &["out"],
        steps: &[serde_json::json!({"Repeat": [absolute(70_000), [step]]})],
        ..Function::default()
    };
    function.add(&mut client, "many");
    supervisor.ok(&["invoke", "many", "--output", "out=out.bin"]);
    assert_eq!(supervisor.read("out.bin"), 7u64.to_le_bytes());
}

#[test]
fn help_has_examples_and_shells_have_completions() {
    let supervisor = Supervisor::start();
    for command in [
        &["--help"][..],
        &["invoke", "--help"],
        &["function", "add", "--help"],
        &["function", "check", "--help"],
        &["module", "add", "--help"],
        &["completions", "--help"],
        &["settings", "--help"],
        &["package", "tune", "--help"],
    ] {
        let help = supervisor.ok(command);
        assert!(help.contains("Example") && help.contains("\n  pappus "), "{help}");
    }
    assert!(supervisor.ok(&["--help"]).contains("Exit codes:"));
    for (shell, words) in [
        ("bash", "-F _clap_complete_pappus pappus"),
        ("zsh", "#compdef pappus"),
        ("fish", "--command pappus"),
    ] {
        // What they complete is asked of the program: tests/integration/command_line.rs.
        let script = supervisor.ok(&["completions", shell]);
        assert!(script.contains(words) && script.contains("COMPLETE"), "{shell}: {script}");
    }
}

/// A Python that has `pappus.package` as far as `import` goes, and writes down how it was called.
const PYTHON: &str = r#"#!/bin/sh
[ "$1" = -c ] && exit 0
printf '%s\n' "token=$PAPPUS_TOKEN_FILE" "$@"
exit 3
"#;

#[test]
fn packages_are_tuned_by_a_python_that_can() {
    let supervisor = Supervisor::start();
    supervisor.write("python", PYTHON);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(supervisor.path("python"), executable).unwrap();
    supervisor.write("without", "#!/bin/sh\necho 'No module named pappus' >&2\nexit 1\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(supervisor.path("without"), executable).unwrap();
    let run = |python: &str, args: &[&str]| {
        let path = supervisor.path(python);
        supervisor.pappus_with(&[("PAPPUS_PYTHON", path.to_str().unwrap())], args)
    };

    let ran =
        run("python", &["package", "tune", "--device", "cuda:1", "--json", "--token-file", "t", "m.pappus"]);
    // Its exit code is the command's.
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let said: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(
        said[..7],
        ["token=t", "-m", "pappus.package", "tune", "--device=cuda:1", "--repeat=30", "--json"]
    );
    assert_eq!((said[7], said[9]), ("--pappus", "--socket"));
    assert_eq!(std::path::Path::new(said[8]).file_name().unwrap(), "pappus");
    assert_eq!((said[10], &said[11..]), (supervisor.socket().to_str().unwrap(), &["--", "m.pappus"][..]));

    for (python, why) in
        [("without", "does not have it (No module named pappus)"), ("absent", "cannot be run")]
    {
        let ran = run(python, &["package", "tune", "m.pappus"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(why) && ran.stderr.contains("-m pip install ./python"), "{}", ran.stderr);
    }
}

#[test]
fn weights_come_from_files_named_in_either_place() {
    let supervisor = Supervisor::start();
    supervisor.write("probes.wasm", kit::probes());
    let function = Function {
        weights: &[("w", b"")],
        buffers: &[("out", absolute(4))],
        outputs: &["out"],
        steps: &[launch("copy", &[kit::ptr("w"), kit::ptr("out"), kit::constant(4)])],
        ..Function::default()
    };
    let text = function.json();
    supervisor.write("plain.json", &text);
    supervisor.write("named.json", text.replacen('{', r#"{"weight_files": {"w": "w1.bin"},"#, 1));
    supervisor.write("w1.bin", b"one.");
    supervisor.write("w2.bin", b"two.");
    let ran = supervisor.pappus(&["function", "add", "plain", "plain.json"]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("--weight w=FILE"), "{}", ran.stderr);
    for (name, config, more, expected) in [
        ("plain", "plain.json", &["--weight", "w=w2.bin"][..], b"two."),
        ("named", "named.json", &[], b"one."),
        ("other", "named.json", &["--weight", "w=w2.bin"], b"two."),
    ] {
        supervisor.ok(&[&["function", "add", name, config], more].concat());
        supervisor.ok(&["invoke", name, "--output", "out=out.bin"]);
        assert_eq!(supervisor.read("out.bin"), expected);
    }
}
