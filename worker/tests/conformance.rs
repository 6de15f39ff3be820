//! The suite that every device passes, through the serving loop as the supervisor drives it.
//!
//! What needs a GPU is ignored here: `scripts/gpu-check conformance` runs each of those in a process of its own. AMD's GPUs
//! are looked like as well, by a library that runs kernels on the processor (`tests/amd`).

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "suite/cuda_modules.rs"]
mod cuda_modules;
#[path = "../../tests/amd/folder.rs"]
mod folder;
mod harness;
mod suite;

use suite::cpu::OnCpu;
use suite::cuda::OnCuda;
use suite::cuda_shared::OnSharedCuda;
use suite::hip::{Gfx90a, Gfx942, Machine, OnHip};

suite::conformance!(cpu, OnCpu<false>, [],
    leaks: local_memory, the_stack_pointer, shared_memory, parameters, after_faults);
suite::conformance!(interruptible_cpu, OnCpu<true>, [],
    leaks: local_memory, the_stack_pointer, shared_memory, parameters, after_faults);
suite::gpu_conformance!(cuda, OnCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]]);
suite::shared_conformance!(cuda_shared, OnSharedCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]]);
suite::gpu_conformance!(hip, OnHip<Machine>, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 conformance"]]);
// The same on a library that looks like HIP's.
suite::gpu_conformance!(gfx90a, OnHip<Gfx90a>, []);
suite::gpu_conformance!(gfx942, OnHip<Gfx942>, []);
