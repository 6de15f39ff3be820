//! Numbers to test kernels with.

/// Numbers that look random and are the same in every run (xorshift64*).
pub(crate) fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

/// `count` integers over the whole range.
pub(crate) fn integers(seed: u64, count: usize) -> Vec<i64> {
    noise(seed).map(|word| word as i64).take(count).collect()
}

/// `count` floats in −1..1.
pub(crate) fn floats(seed: u64, count: usize) -> Vec<f32> {
    noise(seed).map(|word| (word >> 40) as f32 / (1 << 23) as f32 - 1.0).take(count).collect()
}
