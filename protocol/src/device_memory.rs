//! How device memory is counted, as supervisor and workers must agree on it: in whole pages.

pub use crate::kind::{GPU_PAGE_BYTES, WASM_PAGE_BYTES};

/// The largest whole number of GPU pages in `bytes`.
pub const fn whole_gpu_pages(bytes: u64) -> u64 {
    bytes / GPU_PAGE_BYTES * GPU_PAGE_BYTES
}
