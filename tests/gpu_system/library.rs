//! The kernel library on a GPU gives what plain Rust gives: bit for bit but for softmax.

use pappus_client::{Client, Invocation};
use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::configs;
use pappus_kernels::reference::{linalg, mlops, module, vision};

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

/// An array that a call brings.
struct Input {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

fn input(name: &'static str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Input {
    Input { name, dtype, shape: shape.iter().map(|&dim| dim as u64).collect(), bytes }
}

fn f32s(name: &'static str, shape: &[usize], values: &[f32]) -> Input {
    input(name, "f32", shape, from_elements(values))
}

fn i64s(name: &'static str, shape: &[usize], values: &[i64]) -> Input {
    input(name, "i64", shape, from_elements(values))
}

fn called(client: &mut Client, name: &str, inputs: &[Input], outputs: &[&str]) -> Vec<Vec<u8>> {
    let call = inputs.iter().fold(Invocation::new(name), |call, Input { name, dtype, shape, bytes }| {
        call.input(name, bytes.clone()).typed(name, dtype, shape)
    });
    let call = outputs.iter().fold(call, |call, output| call.output(output));
    let answer = client.invoke(&call).unwrap_or_else(|error| panic!("{name}: {error}"));
    answer.outputs.iter().map(|output| output.inline.to_vec()).collect()
}

/// Every call gives these bytes.
fn gives(client: &mut Client, name: &str, inputs: &[Input], outputs: &[(&str, Vec<u8>)]) {
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
    let (a, b) = (floats(1, m * k), floats(2, k * n));
    let inputs = [f32s("A", &[m, k], &a), f32s("B", &[k, n], &b)];
    gives(&mut client, "sgemm", &inputs, &[("C", from_elements(&linalg::sgemm(&a, &b, shape)))]);
    let integers = |values: &[f32]| -> Vec<i64> { values.iter().map(|v| (v * 1e6) as i64).collect() };
    let (a, b) = (integers(&a), integers(&b));
    let inputs = [i64s("A", &[m, k], &a), i64s("B", &[k, n], &b)];
    gives(&mut client, "matmul_tiled", &inputs, &[("C", from_elements(&linalg::matmul_i64(&a, &b, shape)))]);

    let (x, y) = (floats(3, 1000), floats(4, 1000));
    let inputs = [f32s("A", &[1000], &x), f32s("B", &[1000], &y)];
    gives(&mut client, "vec_add", &inputs, &[("C", from_elements(&linalg::vec_add(&x, &y)))]);
    let sum = linalg::vec_add(&x, &[1.0; 1000]);
    gives(&mut client, "vec_add_constant", &[f32s("A", &[1000], &x)], &[("C", from_elements(&sum))]);
    let inputs = [f32s("x", &[1000], &x), f32s("y", &[1000], &y)];
    gives(&mut client, "axpy", &inputs, &[("y", from_elements(&linalg::axpy(&x, &y)))]);

    let n = 200;
    let mut a = floats(5, n * n);
    (0..n).for_each(|i| a[i * n + i] = n as f32);
    let (b, x) = (floats(6, n), floats(7, n));
    for steps in [0, 1, 6, 7] {
        let inputs = [
            f32s("A", &[n, n], &a),
            f32s("b", &[n], &b),
            f32s("x", &[n], &x),
            i64s("steps", &[1], &[steps as i64]),
        ];
        gives(&mut client, "jacobi", &inputs, &[("x", from_elements(&linalg::jacobi(&a, &b, &x, steps)))]);
    }

    let a: Vec<f32> = floats(8, 30 * 200).iter().map(|value| 20.0 * value).collect();
    let got = called(&mut client, "softmax", &[f32s("A", &[30, 200], &a)], &["B"]).remove(0);
    for (ours, theirs) in to_elements::<f32>(&got).iter().zip(linalg::softmax(&a, 200)) {
        assert!((ours - theirs).abs() <= 1e-5 * theirs + 1e-30, "{ours} is not {theirs}");
    }
}

pub(crate) fn kernels_of_mlops_match_their_references(gpu: &Gpu) {
    let (_supervisor, mut client) = with_library(gpu);
    for n in [2u64, 15, 33, gpu.or(128, 40)] {
        let a: Vec<i64> = [n as i64].into_iter().chain(0..(n * n) as i64).collect();
        let product = from_elements(&mlops::matmul(&a));
        let inputs = [i64s("A", &[a.len()], &a)];
        gives(&mut client, "matmul", &inputs, &[("B", product.clone())]);
        gives(&mut client, "matmul_loop", &inputs, &[("B", product)]);
    }
    let filter = matrix(2, 5, 5);
    let given = |a: &[f32], size: &[i64], times: i64| {
        let (a, filter) = (f32s("A", &[a.len()], a), f32s("B", &[filter.len()], &filter));
        [a, filter, i64s("size", &[size.len()], size), i64s("times", &[1], &[times])]
    };
    // Wide, high, and too small for anything to be pooled.
    for (rows, cols) in [(100, 100), (40, 130), (130, 40), (33, 1)] {
        let a = matrix(1, rows, cols);
        let result = from_elements(&mlops::inference(&a, &filter));
        for times in [1, 2, gpu.or(500, 5)] {
            let inputs = given(&a, &[rows as i64, cols as i64], times);
            gives(&mut client, "inference", &inputs, &[("D", result.clone())]);
        }
    }
    let a = [vec![40.0, 40.0], floats(3, 3 * 40 * 40)].concat();
    let inputs = given(&a, &[3, 40, 40], 2);
    let result = from_elements(&mlops::inference_batched(&a, &filter, 3));
    gives(&mut client, "inference_batched", &inputs, &[("D", result)]);
}

pub(crate) fn kernels_of_vision_and_module_match_their_references(gpu: &Gpu) {
    let (_supervisor, mut client) = with_library(gpu);
    let (width, height) = (100, 70);
    let photo: Vec<u8> = floats(1, width * height * 3).iter().map(|v| (v * 127.0 + 128.0) as u8).collect();
    let picture = vision::picture(&photo, width);
    let inputs = [input("photo", "u8", &[height, width, 3], photo)];
    let outputs = [("drawing", picture.drawing), ("edges", picture.edges)];
    gives(&mut client, "picture", &inputs, &outputs);
    let values = [1i64, 12345, -7, 12345];
    let expected = from_elements(&module::check_then_write(&values));
    gives(&mut client, "check_then_write", &[i64s("A", &[4], &values)], &[("A", expected)]);
    gives(&mut client, "hello", &[], &[]);
}
