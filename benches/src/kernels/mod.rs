//! Kernels called without Pappus.
//!
//! - [`cases`]: which kernels, on what.
//! - [`wasm`]: as the CPU device calls them, in this process.
//! - [`native`]: compiled for this processor.

pub mod cases;
pub mod native;
pub mod wasm;
