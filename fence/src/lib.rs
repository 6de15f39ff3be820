//! Kernels that cannot leave their window: PTX is rewritten so that every access to memory stays in 4 GiB of addresses, and
//! checked by a reader that trusts nothing of the rewriter. Pure: no GPU, no file. `docs/fence.md` says why that holds.
//!
//! In the order of a text's way:
//!
//! - [`read`]: source text → a tree of instructions; what the reader does not know is refused by line.
//! - [`rewrite`]: the tree → fenced text, and the variables that lie in the window from then on.
//! - [`window`]: what a window is to a kernel: constants of rewriter and worker.
//! - [`Refused`]: why a text cannot be fenced: the place, the kernel, the instruction.
//! - [`mod@check`]: fenced text → accepted or not. The checker uses nothing of the modules above.
//!
//! Whoever hands a text to the driver's compiler checks that very text, in the process that hands it over. [`fence()`] does not
//! check what it returns: a text that was checked elsewhere is a text that somebody says was checked.
//!
//! Parsers of others that were looked at on crates.io in November 2026: `ptx-parser` 0.1.6, `ptx-syntax` 0.5.0 (which was
//! `ptx-90-parser`), `singe-ptx` 0.1.0-alpha.7. None has a first stable release, and the fence needs little of a syntax tree: which
//! operand is an address, and what is written.

#![forbid(unsafe_code)]

pub mod check;
pub mod read;
mod refused;
pub mod rewrite;
pub mod window;

pub use check::{Checked, Unfenced, check};
pub use refused::{Position, Refused};
pub use rewrite::{Fenced, Variable, fence, reasons};
