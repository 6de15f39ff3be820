//! Every committed kernel on the interpreter, compared with the same kernel as wasm, which is what the CPU device runs:
//! after each launch, all memory is the same, byte for byte (a NaN is like any other). Wasm and not the same C compiled
//! for this processor, because that is what a call gives where there is no GPU, and because it needs no compiler.
//!
//! The tests of `pappus-kernels` run here once more, on a device that is three: wasm, gfx90a, gfx942. `random` adds
//! random shapes, grids and inputs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod device;
mod random;

#[path = "../../../../../kernels/tests/kernels/linalg.rs"]
mod linalg;
#[path = "../../../../../kernels/tests/kernels/math.rs"]
mod math;
#[path = "../../../../../kernels/tests/kernels/mlops.rs"]
mod mlops;
#[path = "../../../../../kernels/tests/kernels/module.rs"]
mod module;
#[path = "../../../../../kernels/tests/kernels/vision.rs"]
mod vision;

/// Arguments of each function of module `math`.
const SAMPLES: usize = 4_000;

/// Numbers that look random and are the same in every run (xorshift64*).
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

/// `count` integers over the whole range.
fn integers(seed: u64, count: usize) -> Vec<i64> {
    noise(seed).map(|word| word as i64).take(count).collect()
}

/// `count` floats in −1..1.
fn floats(seed: u64, count: usize) -> Vec<f32> {
    noise(seed).map(|word| (word >> 40) as f32 / (1 << 23) as f32 - 1.0).take(count).collect()
}
