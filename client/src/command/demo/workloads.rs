//! The functions that the demo runs, and the outputs that plain Rust computes for them.

use pappus_kernels::bytes::from_elements;
use pappus_kernels::{photo, reference};

use super::expected::Expected;
use super::{Input, Workload, pictures};
use crate::failure::Result;

/// The side of the integer matrices.
const MATMUL_SIDE: u64 = 128;
/// The side of the picture that the CNN looks at.
const CNN_SIDE: u64 = 224;
/// The CNN's filter compares a pixel with the 24 around it: it adds up to zero, so that even surfaces vanish. With
/// weights in sixteenths and whole shades of gray every sum is exact in any order of additions.
const CNN_CENTRE: f32 = 24.0 / 16.0;
const CNN_AROUND: f32 = -1.0 / 16.0;
/// Devices may fuse multiplications with additions: sums of 25 products may differ in their last bits.
const CNN_TOLERANCE: f32 = 1e-5;

/// All workloads, small ones first.
pub(super) fn all() -> Result<Vec<Workload>> {
    Ok(vec![matmul(), cnn()?, picture()?])
}

fn matmul() -> Workload {
    let values = (0..MATMUL_SIDE * MATMUL_SIDE).map(|at| (at * 37 % 101) as i64 - 50);
    let a: Vec<i64> = [MATMUL_SIDE as i64].into_iter().chain(values).collect();
    Workload {
        function: "matmul",
        title: format!("matmul: A × Aᵀ, {MATMUL_SIDE}×{MATMUL_SIDE} i64"),
        inputs: vec![Input::new("A", "i64", &[a.len() as u64], from_elements(&a))],
        expected: vec![Expected {
            output: "B",
            bytes: from_elements(&reference::mlops::matmul(&a)),
            tolerance: None,
        }],
    }
}

fn cnn() -> Result<Workload> {
    let (a, filter) = (pictures::centre(CNN_SIDE)?, edge_filter());
    Ok(Workload {
        function: "inference",
        title: format!(
            "inference: 5×5 edge filter, ReLU, max-pool, the photograph's centre, {CNN_SIDE}×{CNN_SIDE} f32"
        ),
        inputs: vec![
            Input::new("A", "f32", &[a.len() as u64], from_elements(&a)),
            Input::new("B", "f32", &[filter.len() as u64], from_elements(&filter)),
            Input::new("size", "i64", &[2], from_elements(&[CNN_SIDE; 2])),
            Input::new("times", "i64", &[1], from_elements(&[1u64])),
        ],
        expected: vec![Expected {
            output: "D",
            bytes: from_elements(&reference::mlops::inference(&a, &filter)),
            tolerance: Some(CNN_TOLERANCE),
        }],
    })
}

/// A 5 × 5 float matrix.
fn edge_filter() -> Vec<f32> {
    let mut filter = vec![CNN_AROUND; 2 + 25];
    filter[..2].fill(5.0);
    filter[2 + 12] = CNN_CENTRE;
    filter
}

fn picture() -> Result<Workload> {
    let rgb = pictures::photo()?;
    let result = reference::vision::picture(&rgb, photo::WIDTH as usize);
    let exact = |output, bytes| Expected { output, bytes, tolerance: None };
    Ok(Workload {
        function: "picture",
        title: format!("picture: smooth, find edges, draw, {}×{} RGB", photo::WIDTH, photo::HEIGHT),
        inputs: vec![Input::new("photo", "u8", &[photo::HEIGHT, photo::WIDTH, 3], rgb)],
        expected: vec![exact("drawing", result.drawing), exact("edges", result.edges)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_filter_adds_up_to_zero() {
        assert_eq!(edge_filter()[2..].iter().sum::<f32>(), 0.0);
    }

    #[test]
    fn every_workload_is_a_function_that_comes_with_pappus() {
        for workload in all().unwrap() {
            let config = pappus_kernels::config(workload.function).unwrap();
            let blueprint = pappus_blueprint::parse(config.as_bytes()).unwrap();
            let names = |ids: &[pappus_blueprint::BufferId]| -> Vec<String> {
                ids.iter().map(|id| blueprint.buffers()[id.index()].name.clone()).collect()
            };
            let inputs: Vec<_> = workload.inputs.iter().map(|input| input.name).collect();
            let outputs: Vec<_> = workload.expected.iter().map(|expected| expected.output).collect();
            assert_eq!((names(blueprint.inputs()), names(blueprint.outputs())), {
                let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
                (owned(inputs), owned(outputs))
            });
        }
    }
}
