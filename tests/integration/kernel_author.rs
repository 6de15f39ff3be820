//! Authors of kernels: `pappus kernel` outside of Pappus' own folders, and what their functions are told.

use std::path::Path;
use std::process::Command;

use pappus_kernels::authoring::TEMPLATES;
use pappus_kernels::bytes::to_elements;
use serde_json::Value;

use crate::fixture::{self, Ran, Supervisor};
use crate::programs::{program, workspace};

/// A kernel with a parameter of each kind, and a requirement.
const SOURCE: &str = r#"#include "pappus.h"

typedef struct {
    f32 factor;
    i32 offset;
    u64 more;
} numbers;

KERNEL(mixed, (const f32 *, in), (f32 *, out), (i64, n), (numbers, with), (f32, bias), (u8, twice))
{
    REQUIRE(BLOCK_WIDTH <= 256);
    REQUIRE(n % 2 == 0 && "100 % of \"pairs\"");
    FOR_EACH_X(i, n)
    {
        f32 value = in[i] * with.factor + (f32)with.offset + bias;
        out[i] = twice ? value + value : value;
    }
}
"#;

/// The arguments that it takes.
const ARGUMENTS: &str = r#"{"Ptr": "A"}, {"Ptr": "B"}, {"I64": {"CeilDiv": [{"Sizeof": "A"}, {"Absolute": 4}]}},
    {"Struct": {"size": 16, "align": 8, "fields": [{"offset": 0, "value": {"F32": 2}}, {"offset": 4, "value": {"I32": 1}}]}},
    {"F32": 0.5}, {"U8": 1}"#;

/// One in whose code the name of its file is.
const NAMED: &str =
    "KERNEL(named, (i64 *, out)) { FOR_EACH_X(i, 1) { out[i] = sizeof __FILE__ * 256 + __FILE__[0]; } }";

fn configuration(arguments: &str, threads: u32) -> String {
    format!(
        r#"{{"module_path": "mine.wasm", "kernels": ["mixed"], "blueprint": {{
            "inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"], "control_flow": [
            {{"ExecKernel": ["mixed", [{arguments}], {{
                "grid_dim_x": {{"Absolute": 1}}, "grid_dim_y": {{"Absolute": 1}}, "grid_dim_z": {{"Absolute": 1}},
                "block_dim_x": {{"Absolute": {threads}}}, "block_dim_y": {{"Absolute": 1}},
                "block_dim_z": {{"Absolute": 1}}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
    )
}

/// A supervisor, and in its folder the module of that source.
fn with_module() -> Supervisor {
    let supervisor = Supervisor::start();
    supervisor.write("mine.c", SOURCE);
    supervisor.ok(&["kernel", "build", "mine.c"]);
    supervisor
}

fn in_folder(folder: &Path, args: &[&str]) -> Ran {
    fixture::run(Command::new(program("pappus")).current_dir(folder).args(args))
}

#[test]
fn every_template_is_written_built_registered_and_called() {
    let supervisor = Supervisor::start();
    let expected: [&[f32]; 4] = [
        &[3.0, 5.0, 7.0, 9.0],
        &[10.0],
        &[7.0, 16.0],
        &[1.08, 1.08, 1.08, 1.08, 1.8, 1.08, 1.08, 1.08, 1.08],
    ];
    for (template, expected) in TEMPLATES.iter().zip(expected) {
        let name = template.name;
        let wrote = supervisor.ok(&["kernel", "new", name, "--template", name, "--output", "a folder"]);
        let commands: Vec<&str> = wrote.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert_eq!(commands.len(), 3, "{wrote}");
        // Exactly as they are told.
        let script = format!(
            "set -e\n{} >/dev/null\n{} >/dev/null\n{} >out.bin",
            commands[0], commands[1], commands[2]
        );
        let path = std::env::join_paths([program("pappus").parent().unwrap(), "/usr/bin".as_ref()]).unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).current_dir(supervisor.path("."));
        let ran = fixture::run(shell.env("PATH", path).env("PAPPUS_SOCKET", supervisor.socket()));
        assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
        let got = to_elements::<f32>(&supervisor.read("out.bin"));
        let near = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-5);
        assert!(got.len() == expected.len() && (near || name == "stencil"), "{name}: {got:?}");
        if name == "stencil" {
            // The heat is still there, but for edges, which count twice.
            assert!(got[4] > 1.7 && got[0] > 0.3 && got[1] > got[0], "{got:?}");
        }
        for end in ["wasm", "ptx", "sm_90.ptx", "hsaco", "gfx942.hsaco"] {
            assert!(supervisor.path(&format!("a folder/{name}.{end}")).is_file(), "{name}.{end}");
        }
        let checked = supervisor.ok(&["function", "check", &format!("a folder/{name}.json")]);
        assert!(
            !checked.contains("missing")
                && checked.contains(&format!("{name}.wasm: kernels and parameters fit"))
        );
    }
}

#[test]
fn nothing_that_exists_is_replaced_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mine.json");
    std::fs::write(&config, "precious").unwrap();
    let refused = in_folder(folder.path(), &["kernel", "new", "mine"]);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("mine.json exists: ") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "precious");
    assert!(!folder.path().join("mine.c").exists(), "both or none");
    let told = in_folder(folder.path(), &["kernel", "new", "mine", "--force", "--json"]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(
        (&told["source"], &told["commands"][0]),
        (&"mine.c".into(), &"pappus kernel build mine.c".into())
    );
    assert!(std::fs::read_to_string(&config).unwrap().contains("mine.wasm"));
    assert_eq!(in_folder(folder.path(), &["kernel", "new", "../up"]).code, 2);
}

#[test]
fn what_is_built_depends_on_the_source_alone() {
    let folder = tempfile::tempdir().unwrap();
    let build = |at: &str, command_from: &str, source: &str| {
        let home = folder.path().join(at);
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(
            home.join("mine.c"),
            format!(
                "{SOURCE}
{NAMED}
"
            ),
        )
        .unwrap();
        let ran = in_folder(&folder.path().join(command_from), &["kernel", "build", "--json", source]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        let files = told["files"].as_array().unwrap().clone();
        let names = ["mine.wasm", "mine.ptx", "mine.sm_90.ptx", "mine.hsaco", "mine.gfx942.hsaco"];
        assert_eq!(files.len(), names.len());
        names.map(|name| std::fs::read(home.join(name)).unwrap())
    };
    let here = build("here", "here", "mine.c");
    assert_eq!(build("far/away", "", "far/away/mine.c"), here);
}

#[test]
fn a_source_whose_name_begins_like_an_option_is_a_source() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["@mine", "-mine"] {
        std::fs::write(
            folder.path().join(format!("{name}.c")),
            NAMED.replace("KERNEL", "#include \"pappus.h\"\nKERNEL"),
        )
        .unwrap();
        let source = format!("{name}.c");
        let ran = in_folder(folder.path(), &["kernel", "build", "--target", "cpu", "--", &source]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(folder.path().join(format!("{name}.wasm")).is_file());
    }
    // Options in it would be read as those of the compiler.
    std::fs::write(folder.path().join("@options.c"), "--version").unwrap();
    let ran = in_folder(folder.path(), &["kernel", "build", "--target", "cpu", "@options.c"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("@options.c:1:"), "{}", ran.stderr);
}

/// A compiler that says who may look into the folder for its files, and never ends.
const ENDLESS: &str = "#!/bin/sh\nstat -c %a \"$TMPDIR\" >\"$SAYS\"\nexec cat \"$NEVER\"\n";

#[test]
fn a_signal_leaves_nothing_of_a_build_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for made in ["tools", "tmp"] {
        std::fs::create_dir(path(made)).unwrap();
    }
    for tool in ["tools/clang-19", "tools/wasm-ld-19"] {
        std::fs::write(path(tool), ENDLESS).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path(tool), executable).unwrap();
    }
    for pipe in ["says", "never"] {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, path(pipe), kind, mode, 0).unwrap();
    }
    std::fs::write(path("mine.c"), SOURCE).unwrap();
    let left = || std::fs::read_dir(path("tmp")).unwrap().count();
    let mut command = Command::new(program("pappus"))
        .current_dir(folder.path())
        .args(["kernel", "build", "--target", "cpu", "mine.c"])
        .env("PATH", std::env::join_paths([path("tools"), "/usr/bin".into(), "/bin".into()]).unwrap())
        .env("TMPDIR", path("tmp"))
        .env("SAYS", path("says"))
        .env("NEVER", path("never"))
        .spawn()
        .unwrap();
    // Once it can be read, the compiler runs.
    assert_eq!(std::fs::read_to_string(path("says")).unwrap().trim(), "700");
    assert_eq!(left(), 1);
    rustix::process::kill_process(rustix::process::Pid::from_child(&command), rustix::process::Signal::TERM)
        .unwrap();
    let ended = command.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15), "{ended}");
    assert_eq!(left(), 0);
}

#[test]
fn what_the_compiler_says_names_the_authors_file_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("mine.c"), text).unwrap();
    let build = |more: &[&str]| in_folder(folder.path(), &[&["kernel", "build", "mine.c"], more].concat());
    let check = |ran: Ran, code: i32, words: &[&str]| {
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(words.iter().all(|words| ran.stderr.contains(words)), "{}", ran.stderr);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    };
    write("#include \"pappus.h\"\nKERNEL(k, (i64, n)) { n = m; }\n");
    check(build(&[]), 3, &["mine.c:2:", "undeclared", "error: mine.c for cpu: clang"]);
    write("#include \"pappus.h\"\nf32 gammaf(f32);\nKERNEL(k, (f32 *, x)) { x[0] = gammaf(x[0]); }\n");
    check(build(&["--target", "cpu"]), 3, &["undefined symbol: gammaf", "mine.c for cpu: wasm-ld"]);
    write("#include \"pappus.h\"\nKERNEL(k, (i64, n)) { i64 unused; (void)n; }\n");
    check(build(&["--strict"]), 3, &["unused variable"]);
    write("int nothing;\n");
    check(build(&[]), 3, &["mine.c: no kernel in it"]);
    check(build(&["--target", "sm_1"]), 2, &["sm_70"]);
    check(build(&["absent.c"]), 3, &["absent.c: No such file"]);
    // Of what passes, a warning is shown once.
    write("#include \"pappus.h\"\nKERNEL(k, (i64, n)) { i64 unused; (void)n; }\n");
    let passes = build(&[]);
    assert_eq!(
        (passes.code, passes.stderr.matches("unused variable 'unused'").count()),
        (0, 1),
        "{}",
        passes.stderr
    );
}

/// Names of CUDA's, each with a part of what the error says to write instead.
const CUDA: [(&str, &str); 6] = [
    ("out[threadIdx.x] = 0;", "FOR_EACH_X(x, n)"),
    ("out[blockIdx.x * blockDim.x] = 0;", "BLOCK_WIDTH"),
    ("__syncthreads();", "BARRIER()"),
    ("__shared__ f32 part[2]; out[0] = part[0];", "SHARED type name[N]"),
    ("out[0] = sqrtf(out[0]);", "f32_sqrt(x)"),
    ("atomicAdd(out, 1);", "--template reduction"),
];

#[test]
fn a_name_of_cuda_s_is_an_error_that_says_what_to_write_instead() {
    let folder = tempfile::tempdir().unwrap();
    let build = |body: &str, target: &str| {
        let source = format!("#include \"pappus.h\"\nKERNEL(k, (f32 *, out)) {{\n    {body}\n}}\n");
        std::fs::write(folder.path().join("cuda.c"), source).unwrap();
        in_folder(folder.path(), &["kernel", "build", "cuda.c", "--target", target])
    };
    for target in ["cpu", "sm_70", "gfx90a"] {
        for (body, instead) in CUDA {
            // Of this one the compiler for NVIDIA GPUs has a definition of its own.
            if target == "sm_70" && body.starts_with("__syncthreads") {
                continue;
            }
            let refused = build(body, target);
            assert_eq!(refused.code, 3, "{body}");
            let place = refused.stderr.lines().find(|line| line.contains(instead));
            assert!(place.is_some_and(|line| line.contains("cuda.c:3:")), "{target}: {}", refused.stderr);
        }
        // The control: what it says to write is taken.
        assert_eq!(build("FOR_EACH_X(i, 1) { out[i] = f32_sqrt(out[i]); }", target).code, 0);
    }
}

#[test]
fn without_a_compiler_the_packages_are_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.c"), SOURCE).unwrap();
    let packages = [("cpu,gfx90a", "clang-19 lld-19 llvm-19"), ("sm_90,sm_120", "clang-20 (any later")];
    for (targets, packages) in packages {
        let mut command = Command::new(program("pappus"));
        command.current_dir(folder.path()).env("PATH", folder.path());
        let ran = fixture::run(command.args(["kernel", "build", "mine.c", "--target", targets]));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("apt-get install -y {packages}")), "{}", ran.stderr);
    }
}

#[test]
fn arguments_that_a_kernel_does_not_take_are_refused_on_the_cpu_device() {
    let supervisor = with_module();
    supervisor.write("mine.json", configuration(ARGUMENTS, 256));
    supervisor.ok(&["function", "add", "mine", "mine.json"]);
    let shown = supervisor.ok(&["module", "show", "./mine.wasm"]);
    assert!(
        shown.contains("  mixed(8 pointer in, 8 pointer out, 8 integer n, 16 struct with, 4 float bias, 1 integer twice)\n"),
        "{shown}"
    );
    let of = |from: &str, to: &str| ARGUMENTS.replacen(from, to, 1);
    for (arguments, words) in [
        (of(r#", {"U8": 1}"#, ""), "kernel `mixed` takes 6 arguments, the blueprint passes 5"),
        (
            of(r#"{"Ptr": "A"}"#, r#"{"I64": 7}"#),
            "kernel `mixed`, argument 1 \"in\": the kernel takes 8 bytes (pointer), the blueprint passes an i64 of 8 bytes",
        ),
        (
            of(r#"{"I64": {"CeilDiv": [{"Sizeof": "A"}, {"Absolute": 4}]}}"#, r#"{"Ptr": "A"}"#),
            "kernel `mixed`, argument 3 \"n\": the kernel takes 8 bytes (integer), the blueprint passes a pointer of 8 bytes",
        ),
        (
            of(r#"{"F32": 0.5}"#, r#"{"F64": 0.5}"#),
            "kernel `mixed`, argument 5 \"bias\": the kernel takes 4 bytes (float), the blueprint passes an f64 of 8 bytes",
        ),
        (
            of(r#"{"F32": 0.5}"#, r#"{"I32": 1}"#),
            "kernel `mixed`, argument 5 \"bias\": the kernel takes 4 bytes (float), the blueprint passes an i32 of 4 bytes",
        ),
        (
            of(r#""size": 16"#, r#""size": 8"#),
            "kernel `mixed`, argument 4 \"with\": the kernel takes 16 bytes (struct), the blueprint passes a struct of 8 bytes",
        ),
    ] {
        supervisor.write("wrong.json", configuration(&arguments, 256));
        let ran = supervisor.pappus(&["function", "add", "wrong", "wrong.json"]);
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("INVALID_ARGUMENT") && ran.stderr.contains(words),
            "{words}: {}",
            ran.stderr
        );
        // The line of the argument, or of the list that is too short.
        assert!(
            [3, 4, 5].iter().any(|line| ran.stderr.contains(&format!("wrong.json:{line}:"))),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(": at blueprint.control_flow[0].ExecKernel[1]"), "{}", ran.stderr);
        let ran = supervisor.pappus(&["function", "check", "wrong.json"]);
        assert!(ran.code == 3 && ran.stderr.contains("kernel `mixed`"), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("wrong.json:") && ran.stderr.contains(": at blueprint."),
            "{}",
            ran.stderr
        );
    }
    // A module that tells nothing, as all did before, is taken as it is: the same bytes without their first section.
    let module = supervisor.read("mine.wasm");
    let end = 10 + usize::from(module[9]);
    assert!(module[9] < 0x80 && module[8] == 0 && module[11..].starts_with(b"pappus.kernels"));
    supervisor.write("mine.wasm", [&module[..8], &module[end..]].concat());
    for end in ["ptx", "sm_90.ptx", "hsaco", "gfx942.hsaco"] {
        std::fs::remove_file(supervisor.path(&format!("mine.{end}"))).unwrap();
    }
    supervisor.ok(&["function", "add", "wrong", "wrong.json"]);
}

#[test]
fn what_a_launch_does_not_satisfy_is_in_the_error() {
    let supervisor = with_module();
    supervisor.write("mine.json", configuration(ARGUMENTS, 256));
    supervisor.write("wide.json", configuration(ARGUMENTS, 512));
    for name in ["mine", "wide"] {
        supervisor.ok(&["function", "add", name, &format!("{name}.json")]);
    }
    let call = |name: &str, numbers: &str| {
        supervisor.pappus(&["invoke", name, "--input", &format!("A=f32:{numbers}"), "--output", "B=b.bin"])
    };
    let wide = call("wide", "1,2");
    assert_eq!(wide.code, 4, "{}", wide.stderr);
    let words = "kernel `mixed` at mine.c:11: requires BLOCK_WIDTH <= 256";
    assert!(wide.stderr.contains("KERNEL_FAULT") && wide.stderr.contains(words), "{}", wide.stderr);
    let odd = call("mine", "1,2,3");
    let words = r#"mine.c:12: requires n % 2 == 0 && "100 % of \"pairs\"""#;
    assert!(odd.code == 4 && odd.stderr.contains(words), "{}", odd.stderr);
    // The control: the same function, and nothing of what failed is left.
    let good = call("mine", "1,2");
    assert_eq!(good.code, 0, "{}", good.stderr);
    assert_eq!(to_elements::<f32>(&supervisor.read("b.bin")), [7.0, 11.0]);
}

#[test]
fn the_manual_s_kernel_builds_and_fails_as_it_says() {
    let manual = std::fs::read_to_string(workspace().join("kernels/README.md")).unwrap();
    let (source, behind) = manual.split_once("```c\n").unwrap().1.split_once("```").unwrap();
    let words = behind.split("``").find(|words| words.contains("requires BLOCK_WIDTH")).unwrap();
    let supervisor = Supervisor::start();
    supervisor.write("reverse.c", source);
    supervisor.ok(&["kernel", "build", "--strict", "--target", "cpu", "reverse.c"]);
    for (name, threads) in [("right", 256), ("wrong", 512)] {
        let config =
            configuration(r#"{"Ptr": "A"}, {"I64": 3}"#, threads).replace("mine.wasm", "reverse.wasm");
        supervisor
            .write("reverse.json", config.replace("mixed", "reverse_blocks").replace(r#"["B"]"#, r#"["A"]"#));
        supervisor.ok(&["function", "add", name, "reverse.json"]);
    }
    let call = |name| supervisor.pappus(&["invoke", name, "--input", "A=f32:1,2,3", "--output", "A=a.bin"]);
    assert_eq!(call("right").code, 0);
    assert_eq!(to_elements::<f32>(&supervisor.read("a.bin")), [3.0, 2.0, 1.0]);
    let wrong = call("wrong");
    assert!(wrong.code == 4 && wrong.stderr.contains(words), "{}: {words}", wrong.stderr);
}

/// A supervisor with the function `mine` of one kernel, which does this.
fn with_kernel(text: &str, arguments: &str) -> Supervisor {
    let supervisor = Supervisor::start();
    let memory = r#"(import "env" "memory" (memory 1))"#;
    let module =
        format!("(module {memory} (func (export \"mixed\") (param i32 i32 i64 i64) {text} unreachable))");
    supervisor.write("mine.wasm", wat::parse_str(module).unwrap());
    supervisor.write("mine.json", configuration(arguments, 1));
    supervisor.ok(&["function", "add", "mine", "mine.json"]);
    supervisor
}

/// The error of a call.
fn failed(supervisor: &Supervisor, input: &str) -> String {
    let ran = supervisor.pappus(&["invoke", "mine", "--input", input]);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    ran.stderr
}

/// The mark of a reason, as a kernel leaves it.
const MARK: &str = "(i64.store (i32.const 8) (i64.const 0x3a45524955514552))";

#[test]
fn whatever_a_kernel_leaves_as_a_reason_is_cut_and_printable() {
    let told = |text: &str| failed(&with_kernel(text, ""), "A=u64:0");
    let filled =
        |byte: u8| format!("{MARK} (memory.fill (i32.const 16) (i32.const {byte}) (i32.const 60000))");
    // No end: as long as a reason may be.
    let endless = told(&filled(b'x'));
    assert_eq!(endless.matches('x').count(), 192 + endless.matches("mixed").count(), "{endless}");
    // Nothing to read: the trap's own words.
    for silent in [filled(0x1b), filled(0xff), filled(0), String::new()] {
        let told = told(&silent);
        assert!(told.contains("kernel `mixed` trapped: ") && told.contains("unreachable"), "{told}");
    }
    let odd = "(i64.store (i32.const 16) (i64.const 0x0041_0a1b_5b42_ff43))";
    assert!(told(&format!("{MARK} {odd}")).contains("kernel `mixed` at C B[  A"));
}

#[test]
fn a_reason_is_of_the_call_that_ends_by_it() {
    // The text is `secret`.
    let leaves = format!("{MARK} (i64.store (i32.const 16) (i64.const 0x0000_7465_7263_6573))");
    let input = "(i64.load (i32.wrap_i64 (i64.load (local.get 0))))";
    // A kernel that leaves a reason and ends well, and one that ends without a word.
    let either = format!("(if (i64.ne {input} (i64.const 0)) (then {leaves} (return)))");
    let supervisor = with_kernel(&either, r#"{"Ptr": "A"}"#);
    supervisor.ok(&["invoke", "mine", "--input", "A=u64:1"]);
    let told = failed(&supervisor, "A=u64:0");
    assert!(!told.contains("secret") && told.contains("unreachable"), "{told}");
    // The control.
    assert!(failed(&with_kernel(&leaves, ""), "A=u64:0").contains("kernel `mixed` at secret"));
}

#[test]
fn the_committed_kernels_are_what_their_sources_give() {
    let mut check = Command::new(workspace().join("scripts/kernels"));
    check.arg("check").env("PAPPUS_BIN_DIR", program("pappus").parent().unwrap());
    let ran = fixture::run(&mut check);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}
