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
use suite::cuda_shared::OnSharedCuda;
use suite::hip::{Gfx90a, Gfx942, Machine, OnHip};

suite::gpu_leaks!(cuda, OnCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]]);
suite::shared_leaks!(cuda_shared, OnSharedCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check leaks"]]);
suite::gpu_leaks!(hip, OnHip<Machine>, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 leaks"]]);
suite::gpu_leaks!(gfx90a, OnHip<Gfx90a>, []);
/// What has code objects of its own there; ends of workers are the same.
mod gfx942 {
    use super::*;
    suite::conformance!(@tests [] OnHip<Gfx942>,
        leaks_between_calls: the_pool_with_its_tails, module_variables, the_constant_bank;
        leaks_on_chip: nothing_is_left_between_calls_that_are_scrubbed,
            nothing_is_left_for_the_next_domain_of_a_scrubbed_worker, nothing_is_left_by_a_worker_that_ended
    );
}
