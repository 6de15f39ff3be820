//! The library's functions as they are called: with arrays that say their shapes, and plain numbers; on the CPU device,
//! through the command.

use pappus_client::npy;
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::{linalg, mlops, vision};
use pappus_kernels::{ARTEFACTS, CONFIGS};

use crate::fixture::{Ran, Supervisor};

/// A supervisor with these functions.
fn with(functions: &[&str]) -> Supervisor {
    let supervisor = Supervisor::start();
    for (file, bytes) in ARTEFACTS.iter().filter(|(file, _)| file.ends_with(".wasm")) {
        supervisor.write(&format!("built/{file}"), bytes);
    }
    for (name, text) in CONFIGS.iter().filter(|(name, _)| functions.contains(name)) {
        let file = format!("configs/{name}.json");
        supervisor.write(&file, text);
        supervisor.ok(&["function", "add", name, &file]);
    }
    supervisor
}

/// A `.npy` file.
fn array(descr: &str, shape: &[u64], bytes: Vec<u8>) -> Vec<u8> {
    [npy::header(descr, shape), bytes].concat()
}

fn f32s(shape: &[u64], values: &[f32]) -> Vec<u8> {
    array("<f4", shape, from_elements(values))
}

fn i64s(shape: &[u64], values: &[i64]) -> Vec<u8> {
    array("<i8", shape, from_elements(values))
}

/// Calls with these files, whose first is `A`'s; the output goes to `out.npy`.
fn invoke(supervisor: &Supervisor, name: &str, inputs: &[(&str, Vec<u8>)], output: &str) -> Ran {
    let output = format!("{output}=out.npy");
    let given = inputs.iter().map(|(input, bytes)| {
        supervisor.write(&format!("{input}.npy"), bytes);
        format!("{input}={input}.npy")
    });
    let given: Vec<_> = given.collect();
    let inputs = given.iter().flat_map(|input| ["--input", input]);
    let args: Vec<_> = ["invoke", name].into_iter().chain(inputs).chain(["--output", &output]).collect();
    supervisor.pappus(&args)
}

#[track_caller]
fn gives(supervisor: &Supervisor, name: &str, inputs: &[(&str, Vec<u8>)], (output, wanted): (&str, Vec<u8>)) {
    let ran = invoke(supervisor, name, inputs, output);
    assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
    assert!(supervisor.read("out.npy") == wanted, "{name} gives another array");
}

#[track_caller]
fn refuses(supervisor: &Supervisor, name: &str, inputs: &[(&str, Vec<u8>)], words: &str) {
    let output = if name == "matmul" { "B" } else { "D" };
    let ran = invoke(supervisor, name, inputs, output);
    assert!(ran.code == 3 && ran.stderr.contains(words), "{name}: {}", ran.stderr);
}

/// Numbers that differ from their neighbours.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at * 37 % 101) as f32 / 8.0 - 6.0).collect()
}

#[test]
fn shapes_of_matrices_and_pictures_come_with_them() {
    let supervisor = with(&["sgemm", "matmul_tiled", "softmax", "picture", "jacobi"]);
    let shape @ (m, n, k) = (40, 35, 33);
    let (a, b) = (values(m * k), values(k * n));
    let [left, right, product] = [[m, k], [k, n], [m, n]].map(|dims| [dims[0] as u64, dims[1] as u64]);
    let inputs = [("A", f32s(&left, &a)), ("B", f32s(&right, &b))];
    let wanted = f32s(&product, &linalg::sgemm(&a, &b, shape));
    gives(&supervisor, "sgemm", &inputs, ("C", wanted));
    let whole = |values: &[f32]| -> Vec<i64> { values.iter().map(|value| (value * 8.0) as i64).collect() };
    let (a, b) = (whole(&a), whole(&b));
    let inputs = [("A", i64s(&left, &a)), ("B", i64s(&right, &b))];
    let wanted = i64s(&product, &linalg::matmul_i64(&a, &b, shape));
    gives(&supervisor, "matmul_tiled", &inputs, ("C", wanted));
    // What B has too many of, A has too few of.
    let ran = invoke(&supervisor, "matmul_tiled", &[("A", i64s(&left, &a)), ("B", i64s(&[35, 33], &b))], "C");
    let words = "i64[k,n] is wanted with k = 33, which came before; i64[35,33] came";
    assert!(ran.code == 3 && ran.stderr.contains(words), "{}", ran.stderr);

    let ran = invoke(&supervisor, "softmax", &[("A", f32s(&[30, 44], &values(30 * 44)))], "B");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let (got, header) = (supervisor.read("out.npy"), npy::header("<f4", &[30, 44]));
    assert!(got.starts_with(&header));
    for (ours, theirs) in
        to_elements::<f32>(&got[header.len()..]).iter().zip(linalg::softmax(&values(30 * 44), 44))
    {
        assert!((ours - theirs).abs() <= 1e-5 * theirs + 1e-30, "{ours} is not {theirs}");
    }

    let (width, height) = (50, 37);
    let photo: Vec<u8> = (0..width * height * 3).map(|at| (at * 91 % 256) as u8).collect();
    let edges = vision::picture(&photo, width).edges;
    let photo = array("|u1", &[height as u64, width as u64, 3], photo);
    gives(&supervisor, "picture", &[("photo", photo)], ("edges", array("|u1", &[37, 50], edges)));

    let mut a = values(33 * 33);
    (0..33).for_each(|at| a[at * 33 + at] = 200.0);
    let (b, x) = (values(33), vec![0.5; 33]);
    for steps in [0, 1, 4, 5] {
        let inputs = [
            ("A", f32s(&[33, 33], &a)),
            ("b", f32s(&[33], &b)),
            ("x", f32s(&[33], &x)),
            ("steps", i64s(&[], &[steps as i64])),
        ];
        gives(&supervisor, "jacobi", &inputs, ("x", f32s(&[33], &linalg::jacobi(&a, &b, &x, steps))));
    }
}

#[test]
fn matrices_that_start_with_their_dimensions_are_held_to_them() {
    let supervisor = with(&["matmul", "inference", "inference_batched"]);
    let a: Vec<i64> = [33].into_iter().chain(0..33 * 33).collect();
    gives(&supervisor, "matmul", &[("A", i64s(&[1090], &a))], ("B", i64s(&[1090], &mlops::matmul(&a))));
    for (a, words) in [
        (&[2, 1, 2, 3][..], "has 32 bytes, expected 40 (i64[5]) with these inputs, computed from A[0] = 2"),
        (&[1, 1, 1], "has 24 bytes, expected 16 (i64[2])"),
        (&[-1, 1], "at blueprint."),
    ] {
        refuses(&supervisor, "matmul", &[("A", i64s(&[a.len() as u64], a))], words);
    }

    let filter = mlops::counting(5, 5);
    let given = |a: &[f32], size: &[i64]| {
        let a = f32s(&[a.len() as u64], a);
        let size = i64s(&[size.len() as u64], size);
        [("A", a), ("B", f32s(&[27], &filter)), ("size", size), ("times", i64s(&[1], &[2]))]
    };
    for (rows, cols) in [(70, 33), (33, 70), (9, 1)] {
        let a = mlops::counting(rows, cols);
        let wanted = mlops::inference(&a, &filter);
        let wanted = f32s(&[wanted.len() as u64], &wanted);
        gives(&supervisor, "inference", &given(&a, &[rows as i64, cols as i64]), ("D", wanted));
    }
    let a = [vec![12.0, 40.0], values(3 * 12 * 40)].concat();
    let wanted = mlops::inference_batched(&a, &filter, 3);
    let wanted = f32s(&[wanted.len() as u64], &wanted);
    gives(&supervisor, "inference_batched", &given(&a, &[3, 12, 40]), ("D", wanted));
    refuses(&supervisor, "inference_batched", &given(&a, &[2, 12, 40]), "expected 3848 (f32[962])");
    refuses(&supervisor, "inference", &given(&a, &[12, 40]), "expected 1928 (f32[482])");
    refuses(&supervisor, "inference", &given(&a, &[12]), ", such as size=i64:1,2");
}
