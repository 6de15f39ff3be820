//! The kernel library on a GPU gives what plain Rust gives: bit for bit but for softmax.

use pappus_client::{Client, Invocation};
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::{linalg, mlops, module, vision};
use pappus_kernels::{cfg, configs};

use crate::fixture::Supervisor;
use crate::functions::{add_library, on_gpu};
use crate::gpu::Gpu;

/// Calls before a graph is made, while it is, and after.
const CALLS: usize = 6;

/// Numbers in −1..1 that look random and are the same in every run.
fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn matrix(seed: u64, rows: usize, cols: usize) -> Vec<f32> {
    [vec![rows as f32, cols as f32], floats(seed, rows * cols)].concat()
}

fn called(client: &mut Client, name: &str, inputs: &[(&str, Vec<u8>)], outputs: &[&str]) -> Vec<Vec<u8>> {
    let call =
        inputs.iter().fold(Invocation::new(name), |call, (input, bytes)| call.input(input, bytes.clone()));
    let call = outputs.iter().fold(call, |call, output| call.output(output));
    let answer = client.invoke(&call).unwrap_or_else(|error| panic!("{name}: {error}"));
    answer.outputs.iter().map(|output| output.inline.to_vec()).collect()
}

/// Every call gives these bytes.
fn gives(client: &mut Client, name: &str, inputs: &[(&str, Vec<u8>)], outputs: &[(&str, Vec<u8>)]) {
    let names: Vec<_> = outputs.iter().map(|(name, _)| *name).collect();
    for _ in 0..CALLS {
        let got = called(client, name, inputs, &names);
        for (got, (output, expected)) in got.iter().zip(outputs) {
            assert!(got == expected, "{name}: output {output} is not what the reference gives");
        }
    }
}

fn with_library(gpu: &Gpu) -> (Supervisor, Client) {
    let supervisor = on_gpu(gpu, "workers=1,lanes=4,memory=8GiB");
    let mut client = supervisor.client();
    for (name, _) in configs::CONFIGS {
        let ones = from_elements(&[1.0f32; 1000]);
        let weights: &[(&str, &[u8])] = if *name == "vec_add_constant" { &[("B", &ones)] } else { &[] };
        add_library(&mut client, name, weights);
    }
    (supervisor, client)
}

pub(crate) fn kernels_of_linalg_match_their_references(gpu: &Gpu) {
    let (_supervisor, mut client) = with_library(gpu);
    let shape @ (m, n, k) = (96, 64, 50);
    let words = from_elements(&cfg::product(m as u64, n as u64, k as u64));
    let (a, b) = (floats(1, m * k), floats(2, k * n));
    let inputs = [("cfg", words.clone()), ("A", from_elements(&a)), ("B", from_elements(&b))];
    gives(&mut client, "sgemm", &inputs, &[("C", from_elements(&linalg::sgemm(&a, &b, shape)))]);
    let integers = |values: &[f32]| -> Vec<i64> { values.iter().map(|v| (v * 1e6) as i64).collect() };
    let (a, b) = (integers(&a), integers(&b));
    let inputs = [("cfg", words), ("A", from_elements(&a)), ("B", from_elements(&b))];
    gives(&mut client, "matmul_tiled", &inputs, &[("C", from_elements(&linalg::matmul_i64(&a, &b, shape)))]);

    let (x, y) = (floats(3, 1000), floats(4, 1000));
    let inputs = [("A", from_elements(&x)), ("B", from_elements(&y))];
    gives(&mut client, "vec_add", &inputs, &[("C", from_elements(&linalg::vec_add(&x, &y)))]);
    let sum = linalg::vec_add(&x, &[1.0; 1000]);
    gives(&mut client, "vec_add_constant", &[("A", from_elements(&x))], &[("C", from_elements(&sum))]);
    let inputs = [("x", from_elements(&x)), ("y", from_elements(&y))];
    gives(&mut client, "axpy", &inputs, &[("y", from_elements(&linalg::axpy(&x, &y)))]);

    let n = 200;
    let mut a = floats(5, n * n);
    (0..n).for_each(|i| a[i * n + i] = n as f32);
    let (b, x) = (floats(6, n), floats(7, n));
    let inputs = [
        ("cfg", from_elements(&cfg::jacobi(3))),
        ("A", from_elements(&a)),
        ("b", from_elements(&b)),
        ("x", from_elements(&x)),
    ];
    gives(&mut client, "jacobi", &inputs, &[("x", from_elements(&linalg::jacobi(&a, &b, &x, 6)))]);

    let a: Vec<f32> = floats(8, 30 * 200).iter().map(|value| 20.0 * value).collect();
    let inputs = [("cfg", from_elements(&cfg::softmax(30, 200))), ("A", from_elements(&a))];
    let got = called(&mut client, "softmax", &inputs, &["B"]).remove(0);
    for (ours, theirs) in to_elements::<f32>(&got).iter().zip(linalg::softmax(&a, 200)) {
        assert!((ours - theirs).abs() <= 1e-5 * theirs + 1e-30, "{ours} is not {theirs}");
    }
}

pub(crate) fn kernels_of_mlops_match_their_references(gpu: &Gpu) {
    let (_supervisor, mut client) = with_library(gpu);
    for n in [2u64, 15, 33, gpu.or(128, 40)] {
        let a: Vec<i64> = [n as i64].into_iter().chain(0..(n * n) as i64).collect();
        let product = from_elements(&mlops::matmul(&a));
        let inputs = [("cfg", from_elements(&cfg::matmul(n))), ("A", from_elements(&a))];
        gives(&mut client, "matmul", &inputs, &[("B", product.clone())]);
        gives(&mut client, "matmul_loop", &inputs[1..], &[("B", product)]);
    }
    let (a, filter) = (matrix(1, 100, 100), matrix(2, 5, 5));
    let result = from_elements(&mlops::inference(&a, &filter));
    for repetitions in [1, 2, gpu.or(500, 5)] {
        let words = cfg::inference(100, 100, repetitions, 1);
        let inputs =
            [("cfg", from_elements(&words[..4])), ("A", from_elements(&a)), ("B", from_elements(&filter))];
        gives(&mut client, "inference", &inputs, &[("D", result.clone())]);
    }
    let a = [vec![40.0, 40.0], floats(3, 3 * 40 * 40)].concat();
    let inputs = [
        ("cfg", from_elements(&cfg::inference(40, 40, 2, 3))),
        ("A", from_elements(&a)),
        ("B", from_elements(&filter)),
    ];
    let result = from_elements(&mlops::inference_batched(&a, &filter, 3));
    gives(&mut client, "inference_batched", &inputs, &[("D", result)]);
}

pub(crate) fn kernels_of_vision_and_module_match_their_references(gpu: &Gpu) {
    let (_supervisor, mut client) = with_library(gpu);
    let (width, height) = (100, 70);
    let photo: Vec<u8> = floats(1, width * height * 3).iter().map(|v| (v * 127.0 + 128.0) as u8).collect();
    let picture = vision::picture(&photo, width);
    let inputs = [("cfg", from_elements(&cfg::picture(width as u64, height as u64))), ("photo", photo)];
    let outputs = [("drawing", picture.drawing), ("edges", picture.edges)];
    gives(&mut client, "picture", &inputs, &outputs);
    let values = [1i64, 12345, -7, 12345];
    let expected = from_elements(&module::check_then_write(&values));
    gives(&mut client, "check_then_write", &[("A", from_elements(&values))], &[("A", expected)]);
    gives(&mut client, "hello", &[], &[]);
}
