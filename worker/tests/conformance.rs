//! The suite that every device passes, through the serving loop as the supervisor drives it.
//!
//! What needs a GPU is ignored here: `scripts/gpu-check conformance` runs each of those in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "suite/cuda_lanes.rs"]
mod cuda_lanes;
#[path = "suite/cuda_modules.rs"]
mod cuda_modules;
mod harness;
mod suite;

use suite::cpu::OnCpu;
use suite::cuda::OnCuda;
use suite::hip::OnHip;

suite::conformance!(cpu, OnCpu, [],
    leaks: local_memory, the_stack_pointer, shared_memory, parameters, after_faults);
suite::conformance!(cuda, OnCuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]],);
suite::conformance!(hip, OnHip, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 conformance"]],);
