//! What every function must compute: obvious, slow, readable. Sums are taken in the kernels' order
//! and without fused multiply-add, so results are equal bit for bit unless a page says otherwise.

pub mod linalg;
pub mod mlops;
pub mod module;
pub mod vision;
