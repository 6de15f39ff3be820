//! The `cfg` inputs of the functions: u64 words that the blueprints read with `FromInput`.

/// Threads along each side of a block in the functions that have one thread per element.
const BLOCK: u64 = 32;

/// Of `matmul` for an n × n matrix: [blocks along each side].
pub fn matmul(n: u64) -> [u64; 1] {
    [n.div_ceil(BLOCK)]
}

/// Of `inference` and `inference_batched`: [bytes of the output, blocks along each side of A,
/// of D, repetitions, batch]. `inference` does not look at the last.
pub fn inference(rows: u64, cols: u64, repetitions: u64, batch: u64) -> [u64; 5] {
    let output_bytes = 4 * (2 + batch * (rows / 2) * (cols / 2));
    // The format has one word for both sides of a grid: the longer one decides.
    let longer = rows.max(cols);
    [output_bytes, longer.div_ceil(BLOCK), (longer / 2).div_ceil(BLOCK).max(1), repetitions, batch]
}

/// Of `matmul_tiled` and `sgemm`, C (m × n) = A (m × k) B (k × n): [m, n, k].
pub fn product(m: u64, n: u64, k: u64) -> [u64; 3] {
    [m, n, k]
}

/// Of `jacobi`: [pairs of steps].
pub fn jacobi(step_pairs: u64) -> [u64; 1] {
    [step_pairs]
}

/// Of `softmax`: [rows, cols].
pub fn softmax(rows: u64, cols: u64) -> [u64; 2] {
    [rows, cols]
}

/// Of `picture`: [width, height] in pixels.
pub fn picture(width: u64, height: u64) -> [u64; 2] {
    [width, height]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_of_the_evaluation() {
        assert_eq!(inference(224, 224, 500, 1), [4 * (2 + 112 * 112), 7, 4, 500, 1]);
    }
}
