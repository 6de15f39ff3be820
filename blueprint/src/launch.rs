//! What a launch configuration may be: checked where it is constant when a blueprint is read, and
//! always when it is planned.

use crate::limits;

/// The keys of a launch configuration, in the order of its values.
pub(crate) const KEYS: [&str; 7] = [
    "grid_dim_x",
    "grid_dim_y",
    "grid_dim_z",
    "block_dim_x",
    "block_dim_y",
    "block_dim_z",
    "shared_mem_bytes",
];

/// Why a launch configuration cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("the value is {value}, expected {min} to {max}")]
    Value { value: u64, min: u64, max: u64 },
    #[error("a block of {0} threads, expected at most {max}", max = limits::BLOCK_THREADS)]
    Block(u64),
}

/// Checks the value of `KEYS[key]`.
pub(crate) fn check(key: usize, value: u64) -> Result<u32, LaunchError> {
    let (min, max) = match key {
        0..3 => (1, limits::GRID[key]),
        3..6 => (1, limits::BLOCK[key - 3]),
        _ => (0, limits::SHARED_BYTES),
    };
    if value < min || value > max {
        return Err(LaunchError::Value { value, min, max });
    }
    // Every `max` fits.
    Ok(value as u32)
}

/// Checks the threads of a block whose dimensions have been checked.
pub(crate) fn check_block(block: [u32; 3]) -> Result<(), LaunchError> {
    let threads: u64 = block.iter().copied().map(u64::from).product();
    if threads > limits::BLOCK_THREADS {
        return Err(LaunchError::Block(threads));
    }
    Ok(())
}
