//! The whole system from outside on a machine with an NVIDIA GPU; `scripts/gpu-check system` runs every case in a
//! process of its own. `PAPPUS_TEST_DEVICE` names the GPU, `PAPPUS_BIN_DIR` where the programs are.
//!
//! - [`library`]: the kernel library computes there what plain Rust does.
//! - [`attacks`]: writing past a deadline, into code, and ends at a bad moment.
//! - [`faults`]: faults, hangs and kills beside neighbours.
//! - [`leaks`]: two users of one GPU.
//! - [`account`]: memory, as `status` and as the driver tell it.
//! - [`several`]: several GPUs.
//! - [`functions`]: what they are made of; the rest is shared with the other integration tests.
#![forbid(unsafe_code)]
// The exception for tests covers functions marked as such; everything here is one, helpers included.
#![allow(clippy::unwrap_used)]

#[path = "../integration/fixture.rs"]
#[allow(dead_code, reason = "used in part")]
mod fixture;
#[path = "../integration/kit.rs"]
#[allow(dead_code, reason = "used in part")]
mod kit;
#[path = "../integration/programs.rs"]
#[allow(dead_code, reason = "used in part")]
mod programs;

mod account;
mod attacks;
mod faults;
mod functions;
mod leaks;
mod library;
mod several;
