//! No byte of a call is found by another on a GPU: between two calls of one worker, and between two workers.
//! Controls run the same probes where nothing is cleared. A place where even they find nothing is reported as
//! "not observed", and its probe is kept.
//!
//! AMD's GPUs are looked like as well (`tests/amd`): there, every control finds something.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "suite/cuda_leaks.rs"]
mod cuda_leaks;
#[path = "../../tests/amd/folder.rs"]
mod folder;
mod harness;
mod suite;

use suite::cuda::OnCuda;
use suite::hip::{Gfx90a, Gfx942, Machine, OnHip};

suite::gpu_leaks!(cuda, OnCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]]);
suite::gpu_leaks!(hip, OnHip<Machine>, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 leaks"]]);
suite::gpu_leaks!(gfx90a, OnHip<Gfx90a>, []);
suite::gpu_leaks!(gfx942, OnHip<Gfx942>, []);
