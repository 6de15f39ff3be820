//! The committed kernels: complete, of the right shape, and right.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod abi;
mod device;
mod inventory;
mod linalg;
mod math;
mod mlops;
mod module;
mod samples;
mod vision;

use samples::{floats, integers, noise};

/// Arguments of each function of module `math`.
const SAMPLES: usize = 200_000;
