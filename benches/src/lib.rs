//! The numbers that Pappus promises, measured.
//!
//! Absolute times say more about a machine than about Pappus, so every promise is a *ratio* to a bare
//! floor (a pipe, the engine alone, native code) that the same run measures: A and B take turns in
//! short rounds, each round gives a ratio, and the median over the rounds counts.
//!
//! In reading order:
//! - [`report`]: figures with their targets, as a table and as JSON.
//! - [`machine`]: where it was measured.
//! - [`harness`]: rounds and percentiles; a supervisor of one's own; functions registered in it.
//! - [`kernels`]: kernels called without Pappus, as wasm and as native code.
//! - [`parts`]: what is measured, a file each.
//! - [`simulator`]: the scheduler against virtual devices in virtual time.
//! - [`bare`]: programs on a GPU without Pappus.
//! - [`gpu`]: what is measured on a GPU, a file each.

#![deny(unsafe_code)]

pub mod bare;
pub mod gpu;
pub mod harness;
pub mod kernels;
pub mod machine;
pub mod parts;
pub mod report;
pub mod simulator;

/// The result of measuring: whatever goes wrong ends the run and is printed.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;
