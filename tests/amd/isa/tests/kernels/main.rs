//! Every committed kernel on the interpreter, compared with the same kernel as wasm, which is what the CPU device runs:
//! after each launch, all memory is the same, byte for byte (a NaN is like any other). Wasm and not the same C compiled
//! for this processor, because that is what a call gives where there is no GPU, and because it needs no compiler.
//!
//! The tests of `pappus-kernels` run here once more, on a device that is three: wasm, gfx90a, gfx942. `random` adds
//! random shapes, grids and inputs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod device;
mod random;

#[path = "../../../../../kernels/tests/kernels/linalg.rs"]
mod linalg;
#[path = "../../../../../kernels/tests/kernels/math.rs"]
mod math;
#[path = "../../../../../kernels/tests/kernels/mlops.rs"]
mod mlops;
#[path = "../../../../../kernels/tests/kernels/module.rs"]
mod module;
#[path = "../../../../../kernels/tests/kernels/samples.rs"]
mod samples;
#[path = "../../../../../kernels/tests/kernels/vision.rs"]
mod vision;

use samples::{floats, integers, noise};

/// Arguments of each function of module `math`.
const SAMPLES: usize = 4_000;
