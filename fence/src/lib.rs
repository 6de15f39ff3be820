//! Kernels that cannot leave their window: PTX is rewritten so that every access to memory stays in 4 GiB of addresses, and
//! checked by a reader that trusts nothing of the rewriter. Pure: no GPU, no file. `docs/fence.md` says why that holds.

#![forbid(unsafe_code)]

pub mod check;

pub use check::{Checked, Unfenced, check};
