//! Module `linalg`: plain row-major arrays; sizes are parameters.

/// `matmul_tiled` and kernel `matmul_i64`: C = A B, wrapping.
///
/// Shape: A is m × k, B is k × n, C is m × n.
pub fn matmul_i64(a: &[i64], b: &[i64], (m, n, k): (usize, usize, usize)) -> Vec<i64> {
    let element = |row: usize, col: usize| {
        (0..k).fold(0i64, |sum, i| sum.wrapping_add(a[row * k + i].wrapping_mul(b[i * n + col])))
    };
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

/// `sgemm`: C = A B (the function's α is 1 and its β is 0).
///
/// Shape: A is m × k, B is k × n, C is m × n.
pub fn sgemm(a: &[f32], b: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let element = |row: usize, col: usize| (0..k).fold(0.0, |sum, i| sum + a[row * k + i] * b[i * n + col]);
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

/// `vec_add`, `vec_add_constant`: C\[i\] = A\[i\] + B\[i\]; A, B and C are of one length.
pub fn vec_add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `axpy`: y\[i\] = 2 x\[i\] + y\[i\]; x and y are of one length.
pub fn axpy(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| 2.0 * x + y).collect()
}

/// `jacobi`: `steps` of Jacobi's method for A x = b, x'\[i\] = x\[i\] + (b\[i\] − Σⱼ A\[i\]\[j\] x\[j\]) / A\[i\]\[i\].
///
/// Shape: x and b have n elements; A is n × n, **column by column**. The function takes steps in pairs.
/// Limits: converges where A is diagonally dominant; a zero on the diagonal divides by zero.
pub fn jacobi(a_columns: &[f32], b: &[f32], x: &[f32], steps: usize) -> Vec<f32> {
    let n = b.len();
    let step = |x: Vec<f32>| {
        let row = |i: usize| (0..n).fold(0.0, |sum, j| sum + a_columns[j * n + i] * x[j]);
        (0..n).map(|i| x[i] + (b[i] - row(i)) / a_columns[i * n + i]).collect()
    };
    (0..steps).fold(x.to_vec(), |x, _| step(x))
}

/// `softmax`: B\[r\]\[c\] = e^(A\[r\]\[c\] − m) / Σ e^(A\[r\]\[·\] − m), m the row's maximum.
///
/// Shape: rows × `cols`. Limits: finite values. The kernel has its own exponential and sums in
/// parallel: compare with a relative tolerance of 10⁻⁵ above 10⁻³⁰.
pub fn softmax(a: &[f32], cols: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers = row.iter().map(|value| f64::from(value - largest).exp()).collect::<Vec<_>>();
        let sum = powers.iter().sum::<f64>();
        powers.into_iter().map(move |power| (power / sum) as f32)
    };
    a.chunks_exact(cols).flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_hand() {
        // (1 2 3) (1; 2; 3) = 14, and (1; 2) (3 4) = (3 4; 6 8)
        assert_eq!(matmul_i64(&[1, 2, 3], &[1, 2, 3], (1, 1, 3)), [14]);
        assert_eq!(matmul_i64(&[i64::MAX], &[2], (1, 1, 1)), [-2]);
        assert_eq!(sgemm(&[1.0, 2.0], &[3.0, 4.0], (2, 2, 1)), [3.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn vectors_by_hand() {
        assert_eq!(vec_add(&[1.0, 2.0], &[0.5, -2.0]), [1.5, 0.0]);
        assert_eq!(axpy(&[1.0, 2.0], &[0.5, -2.0]), [2.5, 2.0]);
    }

    #[test]
    fn jacobi_by_hand_and_in_the_limit() {
        // 2x + y = 3, 4y = 4 from (0, 0): first (1.5, 1), then (1, 1), which is the solution.
        let (a_columns, b) = ([2.0, 0.0, 1.0, 4.0], [3.0, 4.0]);
        assert_eq!(jacobi(&a_columns, &b, &[0.0, 0.0], 1), [1.5, 1.0]);
        assert_eq!(jacobi(&a_columns, &b, &[0.0, 0.0], 2), [1.0, 1.0]);
    }

    #[test]
    fn softmax_by_hand() {
        assert_eq!(softmax(&[7.0, 7.0, 0.0, -1000.0], 2), [0.5, 0.5, 1.0, 0.0]);
    }
}
