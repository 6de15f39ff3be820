//! Kernels that cannot leave their window: PTX is rewritten so that every access to memory stays in 4 GiB of addresses, and
//! checked by a reader that trusts nothing of the rewriter. Pure: no GPU, no file. `docs/fence.md` says why that holds.
//!
//! Parsers on crates.io (`ptx-parser`, `ptx-90-parser`, `singe-ptx`) are of one author each, years old or alphas, and model
//! each instruction, so a new modifier is an error; ZLUDA's is not published there and loses text. A reader of tokens is small.

#![forbid(unsafe_code)]

pub mod read;
mod refused;
pub mod rewrite;
pub mod window;

pub use refused::{Position, Refused};
pub use rewrite::{Fenced, Variable, fence, reasons};
