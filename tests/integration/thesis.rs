//! Configurations as the ancestors wrote them, in both spellings, through the command: they run unchanged and
//! give the values of plain Rust.

use pappus_kernels::artefact;
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::{mlops, module};

use crate::fixture::Supervisor;

/// The older spelling: one module by its path.
const OLD: &str = r#""module_path": "lib/mlops.hsaco", "kernels": [KERNELS]"#;
/// The newer one: modules by name.
const NEW: &str =
    r#""modules": [{"module_name": "mlops.hsaco", "path": "mlops.hsaco"}], "kernels": [KERNELS]"#;

/// A configuration in both spellings, each with the path that its module must have.
fn spellings(kernels: &[&str], blueprint: &str) -> [(String, &'static str); 2] {
    let plain: Vec<_> = kernels.iter().map(|kernel| format!(r#""{kernel}""#)).collect();
    let named = kernels
        .iter()
        .map(|kernel| format!(r#"{{"module_name": "mlops.hsaco", "kernel_name": "{kernel}"}}"#));
    let named: Vec<_> = named.collect();
    [(OLD, plain, "lib/mlops"), (NEW, named, "mlops")].map(|(head, kernels, path)| {
        let head = head.replace("KERNELS", &kernels.join(", "));
        (format!("{{ {head}, \"blueprint\": {blueprint} }}"), path)
    })
}

/// Writes configuration and module, and registers the function; the file that the configuration names is absent,
/// its wasm form lies beside it.
fn add(supervisor: &Supervisor, name: &str, config: &str, module: &str) {
    let stem = module.rsplit('/').next().unwrap();
    let wasm = artefact(&format!("{stem}.wasm")).unwrap();
    supervisor.write(&format!("{module}.wasm"), wasm);
    let file = format!("{name}.json");
    supervisor.write(&file, config);
    supervisor.ok(&["function", "add", name, &file]);
}

/// A launch of 32 × 32 blocks; the grid's sides and depth are sizes.
fn launch(kernel: &str, args: &str, side: &str, depth: &str) -> String {
    format!(
        r#"{{"ExecKernel": ["{kernel}", [{args}],
            {{"grid_dim_x": {side}, "grid_dim_y": {side}, "grid_dim_z": {depth},
              "block_dim_x": {{"Absolute": 32}}, "block_dim_y": {{"Absolute": 32}},
              "block_dim_z": {{"Absolute": 1}}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}"#
    )
}

fn word(index: u64) -> String {
    format!(r#"{{"FromInput": {{"bufname": "cfg", "idx": {index}}}}}"#)
}

const ONE: &str = r#"{"Absolute": 1}"#;

fn matmul() -> String {
    let args = r#"{"Ptr": "A"}, {"Sizeof": "A"}, {"Ptr": "B"}"#;
    format!(
        r#"{{"inputs": ["cfg", "A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{}]}}"#,
        launch("matmul_para", args, &word(0), ONE)
    )
}

/// The inference workload; its batched form passes `cfg` last and counts members along z.
fn inference(suffix: &str) -> String {
    let (cfg, depth) = match suffix {
        "" => ("", ONE.to_owned()),
        _ => (r#", {"Ptr": "cfg"}"#, word(4)),
    };
    let launches = [
        launch(
            &format!("convolution_f{suffix}"),
            &format!(r#"{{"Ptr": "C"}}, {{"Ptr": "A"}}, {{"Ptr": "B"}}{cfg}"#),
            &word(1),
            &depth,
        ),
        launch(&format!("relu_2d_f{suffix}"), &format!(r#"{{"Ptr": "C"}}{cfg}"#), &word(1), &depth),
        launch(
            &format!("maxpool_f{suffix}"),
            &format!(r#"{{"Ptr": "D"}}, {{"Ptr": "C"}}, {{"Constant": 2}}{cfg}"#),
            &word(2),
            &depth,
        ),
    ];
    format!(
        r#"{{"inputs": ["cfg", "A", "B"], "buffers": {{"C": {{"Sizeof": "A"}}, "D": {}}}, "outputs": ["D"],
            "control_flow": [{{"Repeat": [{}, [{}]]}}]}}"#,
        word(0),
        word(3),
        launches.join(",")
    )
}

/// What `matmul`'s callers put into `cfg`: blocks along each side.
fn matmul_words(n: u64) -> [u64; 1] {
    [n.div_ceil(32)]
}

/// What those of the inference workload did: bytes of the output, blocks along the longer side of A, of D, repetitions,
/// members of the batch.
fn inference_words(rows: u64, cols: u64, reps: u64, batch: u64) -> [u64; 5] {
    let longer = rows.max(cols);
    [4 * (2 + batch * (rows / 2) * (cols / 2)), longer.div_ceil(32), longer.div_ceil(64), reps, batch]
}

#[test]
fn matmul_of_2_to_15_in_both_spellings() {
    let supervisor = Supervisor::start();
    for ((config, module), name) in spellings(&["matmul_para"], &matmul()).iter().zip(["old", "new"]) {
        add(&supervisor, name, config, module);
        for n in 2..=15u64 {
            let a: Vec<i64> = [n as i64].into_iter().chain(0..(n * n) as i64).collect();
            supervisor.write("cfg.bin", from_elements(&matmul_words(n)));
            supervisor.write("a.bin", from_elements(&a));
            supervisor.ok(&[
                "invoke",
                name,
                "--input",
                "cfg=cfg.bin",
                "--input",
                "A=a.bin",
                "--output",
                "B=b.bin",
            ]);
            let result = to_elements::<i64>(&supervisor.read("b.bin"));
            assert_eq!(result, mlops::matmul(&a), "{name}, n = {n}");
        }
    }
    // By hand, so that the reference is not alone with itself: (0 1; 2 3) times its transpose.
    assert_eq!(mlops::matmul(&[2, 0, 1, 2, 3]), [2, 1, 3, 3, 13]);
}

#[test]
fn items_are_joined_wherever_they_are_split() {
    let supervisor = Supervisor::start();
    let [(config, module), _] = spellings(&["matmul_para"], &matmul());
    add(&supervisor, "matmul", &config, module);
    let a: Vec<i64> = [3].into_iter().chain(1..10).collect();
    let bytes = from_elements(&a);
    supervisor.write("cfg.bin", from_elements(&matmul_words(3)));
    // In whole numbers, at odd bytes, with an empty item, byte by byte.
    let cuts: [&[usize]; 5] = [&[8, 40], &[1], &[13, 14, 79], &[40, 40], &[1, 2, 3, 5, 7, 11, 33, 57]];
    for cuts in cuts {
        let ends = cuts.iter().copied().chain([bytes.len()]);
        let mut start = 0;
        let files = ends.enumerate().map(|(piece, end)| {
            let name = format!("piece{piece}.bin");
            supervisor.write(&name, &bytes[start..end]);
            start = end;
            name
        });
        let input = format!("A={}", files.collect::<Vec<_>>().join(","));
        supervisor.ok(&[
            "invoke",
            "matmul",
            "--input",
            "cfg=cfg.bin",
            "--input",
            &input,
            "--output",
            "B=b.bin",
        ]);
        let result = to_elements::<i64>(&supervisor.read("b.bin"));
        assert_eq!(result, mlops::matmul(&a), "cut at {cuts:?}");
    }
}

/// Runs inference for one configuration of sizes.
fn infer(supervisor: &Supervisor, name: &str, (rows, cols): (u64, u64), reps: u64, batch: u64) -> Vec<f32> {
    let matrix = mlops::counting(rows as usize, (cols * batch) as usize);
    // One rows/cols pair, then the members' values.
    let a = [&[rows as f32, cols as f32], &matrix[2..]].concat();
    supervisor.write("cfg.bin", from_elements(&inference_words(rows, cols, reps, batch)));
    supervisor.write("a.bin", from_elements(&a));
    supervisor.write("f.bin", from_elements(&mlops::counting(5, 5)));
    supervisor.ok(&[
        "invoke",
        name,
        "--input",
        "cfg=cfg.bin",
        "--input",
        "A=a.bin",
        "--input",
        "B=f.bin",
        "--output",
        "D=d.bin",
    ]);
    let result = to_elements(&supervisor.read("d.bin"));
    let expected = mlops::inference_batched(&a, &mlops::counting(5, 5), batch as usize);
    assert_eq!(result, expected, "{rows}×{cols}, {reps} times, batch {batch}");
    result
}

#[test]
fn inference_in_both_spellings() {
    let supervisor = Supervisor::start();
    let kernels = ["convolution_f", "relu_2d_f", "maxpool_f"];
    for ((config, module), name) in spellings(&kernels, &inference("")).iter().zip(["old", "new"]) {
        add(&supervisor, name, config, module);
        for reps in 1..=3 {
            infer(&supervisor, name, (8, 8), reps, 1);
        }
        infer(&supervisor, name, (40, 36), 1, 1);
    }
    // By hand, with the convolution's own index: of 2 × 2 values 0 to 3, the largest sum is that in the corner,
    // Σ in[1-k][1-l] · w[2+k][2+l] = 0·w[3][3] + 1·w[3][2] + 2·w[2][3] + 3·w[2][2] = 17 + 26 + 36.
    assert_eq!(infer(&supervisor, "old", (2, 2), 1, 1), [1.0, 1.0, 79.0]);
}

#[test]
fn batched_inference_gives_every_member_its_own() {
    let supervisor = Supervisor::start();
    let kernels = ["convolution_f_batched", "relu_2d_f_batched", "maxpool_f_batched"];
    let [old, new] = spellings(&kernels, &inference("_batched"));
    for ((config, module), name) in [old, new].iter().zip(["old", "new"]) {
        add(&supervisor, name, config, module);
        for batch in 1..=3 {
            for reps in 1..=3 {
                infer(&supervisor, name, (6, 8), reps, batch);
            }
        }
    }
}

const HELLO: &str = r#"{ "module_path": "module.hsaco", "kernels": ["hello_world"],
    "blueprint": {"inputs": [], "buffers": {}, "outputs": [], "control_flow": [LAUNCH]}}"#;
const CHECK: &str = r#"{ "module_path": "module.hsaco", "kernels": ["check_then_write"],
    "blueprint": {"inputs": ["A"], "buffers": {}, "outputs": ["A"], "control_flow": [LAUNCH]}}"#;

/// A launch of one thread.
fn single(kernel: &str, args: &str) -> String {
    launch(kernel, args, ONE, ONE).replace("32", "1")
}

#[test]
fn hello_world_and_check_then_write_from_a_registered_module() {
    let supervisor = Supervisor::start();
    supervisor.write("elsewhere/module.wasm", artefact("module.wasm").unwrap());
    supervisor.write("hello.json", HELLO.replace("LAUNCH", &single("hello_world", "")));
    let check = CHECK.replace("LAUNCH", &single("check_then_write", r#"{"Ptr": "A"}"#));
    supervisor.write("check.json", check);
    // Neither the file that is named nor another form of it is there, and nothing is registered yet.
    let ran = supervisor.pappus(&["function", "add", "hello", "hello.json"]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("pappus module add module"), "{}", ran.stderr);
    supervisor.ok(&["module", "add", "module", "elsewhere/module.wasm"]);
    supervisor.ok(&["function", "add", "hello", "hello.json"]);
    supervisor.ok(&["function", "add", "check", "check.json"]);
    assert!(supervisor.ok(&["invoke", "hello"]).contains("hello ran on cpu"));
    // In place: the input is the output.
    for first in [12345, 1] {
        let a = [first, 12345];
        supervisor.write("a.bin", from_elements(&a));
        supervisor.ok(&["invoke", "check", "--input", "A=a.bin", "--output", "A=out.bin"]);
        let result = to_elements::<i64>(&supervisor.read("out.bin"));
        assert_eq!(result, module::check_then_write(&a));
        // The caller's own bytes stay as they are.
        assert_eq!(supervisor.read("a.bin"), from_elements(&a));
    }
    assert_eq!(module::check_then_write(&[12345, 12345]), [98765, 12345]);
}
