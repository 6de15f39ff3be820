//! What the demo runs, and what must come of it according to plain Rust.

use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::{cfg, photo, reference};

use super::pictures;
use crate::failure::Result;

/// The side of the integer matrices.
const MATMUL_SIDE: u64 = 128;
/// The side of the picture that the CNN looks at.
const CNN_SIDE: u64 = 224;
/// The CNN's filter compares a pixel with the 24 around it: it adds up to zero, so that even surfaces vanish. With
/// weights in sixteenths and whole shades of gray every sum is exact, whatever a device's order of additions.
const CNN_CENTRE: f32 = 24.0 / 16.0;
const CNN_AROUND: f32 = -1.0 / 16.0;
/// Devices may fuse multiplications with additions: sums of 25 products may differ in their last bits.
const CNN_TOLERANCE: f32 = 1e-5;

/// A function with inputs and what they must give.
pub(super) struct Workload {
    pub(super) function: &'static str,
    pub(super) title: String,
    pub(super) inputs: Vec<(&'static str, Vec<u8>)>,
    pub(super) expected: Vec<Expected>,
}

/// What an output must be.
pub(super) struct Expected {
    pub(super) output: &'static str,
    pub(super) bytes: Vec<u8>,
    /// The largest relative difference of f32 elements; without one, every bit counts.
    tolerance: Option<f32>,
}

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
        inputs: vec![("cfg", from_elements(&cfg::matmul(MATMUL_SIDE))), ("A", from_elements(&a))],
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
            ("cfg", from_elements(&cfg::inference(CNN_SIDE, CNN_SIDE, 1, 1))),
            ("A", from_elements(&a)),
            ("B", from_elements(&filter)),
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
        inputs: vec![("cfg", from_elements(&cfg::picture(photo::WIDTH, photo::HEIGHT))), ("photo", rgb)],
        expected: vec![exact("drawing", result.drawing), exact("edges", result.edges)],
    })
}

impl Expected {
    /// Says how well `got` agrees; an error where it does not.
    pub(super) fn compare(&self, got: &[u8]) -> std::result::Result<String, String> {
        if self.bytes == got {
            return Ok("the same bits as plain Rust".into());
        }
        let Some(tolerance) = self.tolerance else {
            let at = self.bytes.iter().zip(got).position(|(expected, got)| expected != got);
            return Err(format!("differs from plain Rust at byte {}", at.unwrap_or(got.len())));
        };
        let (expected, got) = (to_elements::<f32>(&self.bytes), to_elements::<f32>(got));
        let pairs = expected.iter().zip(&got);
        let differences = pairs.map(|(expected, got)| (expected - got).abs() / expected.abs().max(1.0));
        // NaN must not pass, and `max` would skip it.
        let worst =
            differences.map(|next| if next.is_nan() { f32::INFINITY } else { next }).fold(0.0, f32::max);
        let verdict = format!("differs from plain Rust by at most {worst:.1e}, allowed {tolerance:.0e}");
        if expected.len() == got.len() && worst <= tolerance { Ok(verdict) } else { Err(verdict) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_fails_the_comparison() {
        let floats = Expected { output: "D", bytes: from_elements(&[1.0f32, 2.0]), tolerance: Some(1e-5) };
        assert!(floats.compare(&from_elements(&[1.0f32, 2.000_001])).is_ok());
        for wrong in [&[1.0f32, 2.1][..], &[1.0], &[f32::NAN, 2.0], &[1.0, f32::NAN], &[1.0, f32::INFINITY]] {
            assert!(floats.compare(&from_elements(wrong)).is_err(), "{wrong:?}");
        }
        let bits = Expected { tolerance: None, ..floats };
        assert!(bits.compare(&bits.bytes).is_ok());
        assert!(bits.compare(&bits.bytes[1..]).is_err());
        assert!(bits.compare(&[]).is_err());
    }

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
            let inputs: Vec<_> = workload.inputs.iter().map(|(name, _)| *name).collect();
            let outputs: Vec<_> = workload.expected.iter().map(|expected| expected.output).collect();
            assert_eq!((names(blueprint.inputs()), names(blueprint.outputs())), {
                let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
                (owned(inputs), owned(outputs))
            });
        }
    }
}
