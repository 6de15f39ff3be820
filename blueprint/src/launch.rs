//! What a launch configuration may be: checked where it is constant when a blueprint is read, and
//! always when it is planned.

use crate::limits;

/// The keys of a launch configuration, in the order of its values.
pub(crate) const KEYS: [&str; 10] = [
    "grid_dim_x",
    "grid_dim_y",
    "grid_dim_z",
    "block_dim_x",
    "block_dim_y",
    "block_dim_z",
    "shared_mem_bytes",
    "cluster_dim_x",
    "cluster_dim_y",
    "cluster_dim_z",
];

/// What each is where it is left out; the first of a grid and of a block never is.
pub(crate) const DEFAULTS: [u64; 10] = [1, 1, 1, 1, 1, 1, 0, 1, 1, 1];

/// Why a launch configuration cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("the value is {value}, expected {min} to {max}")]
    Value { value: u64, min: u64, max: u64 },
    #[error("a block of {0} threads, expected at most {max}", max = limits::BLOCK_THREADS)]
    Block(u64),
    #[error("a cluster of {0} blocks, expected at most {max}", max = limits::CLUSTER_BLOCKS)]
    Cluster(u64),
    #[error("a grid of {grid} blocks in clusters of {cluster}, expected a multiple")]
    Grid { grid: u32, cluster: u32 },
}

/// Checks the value of `KEYS[key]`.
pub(crate) fn check(key: usize, value: u64) -> Result<u32, LaunchError> {
    let (min, max) = match key {
        0..3 => (1, limits::GRID[key]),
        3..6 => (1, limits::BLOCK[key - 3]),
        6 => (0, limits::SHARED_BYTES),
        _ => (1, limits::CLUSTER_BLOCKS),
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

/// Checks a cluster whose dimensions have been checked: its blocks, and that whole ones make up the grid.
pub(crate) fn check_cluster(grid: [u32; 3], cluster: [u32; 3]) -> Result<(), LaunchError> {
    let blocks: u64 = cluster.iter().copied().map(u64::from).product();
    if blocks > limits::CLUSTER_BLOCKS {
        return Err(LaunchError::Cluster(blocks));
    }
    let uneven = grid.into_iter().zip(cluster).find(|(grid, cluster)| !grid.is_multiple_of(*cluster));
    match uneven {
        Some((grid, cluster)) => Err(LaunchError::Grid { grid, cluster }),
        None => Ok(()),
    }
}
