//! Module `mlops`: matrices that carry their dimensions, in the input and in the result.
//!
//! Integer matrix: `[n, n × n values]`. Float matrix: `[rows, cols, rows × cols values]`, row by row;
//! a batch is `[rows, cols, batch × rows × cols values]`.

/// The side of the convolution's filter.
const FILTER: usize = 5;

/// `matmul`, `matmul_loop`: B\[i\]\[j\] = Σₖ A\[i\]\[k\] · A\[j\]\[k\], that is A times its transpose, wrapping.
///
/// Shape: A and B are integer matrices of the same n. Limits: a buffer too small for its own n gives n = 0.
pub fn matmul(a: &[i64]) -> Vec<i64> {
    let room = a.len() - 1;
    let n = usize::try_from(a[0]).ok().filter(|&n| n.checked_mul(n).is_some_and(|square| square <= room));
    let n = n.unwrap_or(0);
    let mut b = vec![0; a.len()];
    b[0] = n as i64;
    for i in 0..n {
        for j in 0..n {
            let sum =
                (0..n).fold(0i64, |sum, k| sum.wrapping_add(a[1 + i * n + k].wrapping_mul(a[1 + j * n + k])));
            b[1 + i * n + j] = sum;
        }
    }
    b
}

/// Kernel `matmul_f`: C = A × B.
///
/// Shape: A is rows × k, B is k × cols, C is rows × cols; where the inner dimensions differ, the smaller counts.
pub fn matmul_f(a: &[f32], b: &[f32]) -> Vec<f32> {
    let (rows, a_cols, a) = parts(a);
    let (b_rows, cols, b) = parts(b);
    let mut c = vec![rows as f32, cols as f32];
    for i in 0..rows {
        for j in 0..cols {
            c.push((0..a_cols.min(b_rows)).fold(0.0, |sum, k| sum + a[i * a_cols + k] * b[k * cols + j]));
        }
    }
    c
}

/// Kernel `convolution_f`: C\[r\]\[c\] = Σ A\[r−k\]\[c−l\] · B\[2+k\]\[2+l\] over k, l in −2..=2; A is 0 beyond its edges.
///
/// Shape: A and C are rows × cols; B is a 5 × 5 float matrix (its dimensions are not looked at).
pub fn convolution(a: &[f32], filter: &[f32]) -> Vec<f32> {
    let (rows, cols, values) = parts(a);
    let weights = &filter[2..];
    let at = |row: isize, col: isize| {
        let inside = (0..rows as isize).contains(&row) && (0..cols as isize).contains(&col);
        if inside { values[row as usize * cols + col as usize] } else { 0.0 }
    };
    let mut c = vec![rows as f32, cols as f32];
    for row in 0..rows as isize {
        for col in 0..cols as isize {
            let mut sum = 0.0;
            for k in -2..=2 {
                for l in -2..=2 {
                    sum += at(row - k, col - l) * weights[(2 + k) as usize * FILTER + (2 + l) as usize];
                }
            }
            c.push(sum);
        }
    }
    c
}

/// Kernel `relu_2d_f`: what is not above 0 (NaN included) becomes 0; the dimensions stay.
pub fn relu(c: &[f32]) -> Vec<f32> {
    let (header, values) = c.split_at(2);
    let positive = values.iter().map(|&value| if value > 0.0 { value } else { 0.0 });
    header.iter().copied().chain(positive).collect()
}

/// Kernel `maxpool_f`: the largest of every `factor` × `factor` square.
///
/// Shape: D is ⌊rows / factor⌋ × ⌊cols / factor⌋; what is left over is dropped. Limits: factor ≥ 1.
pub fn maxpool(c: &[f32], factor: usize) -> Vec<f32> {
    let (rows, cols, values) = parts(c);
    let (out_rows, out_cols) = (rows / factor, cols / factor);
    let mut d = vec![out_rows as f32, out_cols as f32];
    for row in 0..out_rows {
        for col in 0..out_cols {
            let mut largest = values[row * factor * cols + col * factor];
            for k in 0..factor {
                for l in 0..factor {
                    let value = values[(row * factor + k) * cols + col * factor + l];
                    if value > largest {
                        largest = value;
                    }
                }
            }
            d.push(largest);
        }
    }
    d
}

/// `inference`: convolution, ReLU, 2 × 2 max-pool. Repetitions repeat the same work, so any number
/// of them from 1 gives this result.
pub fn inference(a: &[f32], filter: &[f32]) -> Vec<f32> {
    maxpool(&relu(&convolution(a, filter)), 2)
}

/// `inference_batched`: [`inference`] of every matrix of a batch, with one filter.
pub fn inference_batched(a: &[f32], filter: &[f32], batch: usize) -> Vec<f32> {
    let (rows, cols, _) = parts(a);
    let mut d = vec![(rows / 2) as f32, (cols / 2) as f32];
    for member in a[2..].chunks_exact(rows * cols).take(batch) {
        let matrix = [&a[..2], member].concat();
        d.extend_from_slice(&inference(&matrix, filter)[2..]);
    }
    d
}

/// The input of the published evaluation: values 0, 1, 2, … after the dimensions.
pub fn counting(rows: usize, cols: usize) -> Vec<f32> {
    let values = (0..rows * cols).map(|value| value as f32);
    [rows as f32, cols as f32].into_iter().chain(values).collect()
}

/// Rows, columns and values of a float matrix.
fn parts(matrix: &[f32]) -> (usize, usize, &[f32]) {
    (matrix[0] as usize, matrix[1] as usize, &matrix[2..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matmul_is_a_times_its_transpose() {
        // (1 2; 3 4) (1 3; 2 4) = (5 11; 11 25)
        assert_eq!(matmul(&[2, 1, 2, 3, 4]), [2, 5, 11, 11, 25]);
    }

    #[test]
    fn matmul_of_a_buffer_that_overstates_itself_is_empty() {
        assert_eq!(matmul(&[3, 1, 2, 3, 4]), [0; 5]);
        assert_eq!(matmul(&[i64::MAX, 1]), [0, 0]);
        assert_eq!(matmul(&[-1, 1]), [0, 0]);
    }

    #[test]
    fn matmul_f_by_hand() {
        assert_eq!(matmul_f(&[1.0, 2.0, 1.0, 2.0], &[2.0, 1.0, 3.0, 4.0]), [1.0, 1.0, 11.0]);
    }

    #[test]
    fn convolution_with_a_delta_moves_the_picture() {
        // The only weight is at k = −1, l = 0: every row becomes the one below it.
        let mut filter = counting(5, 5).iter().map(|_| 0.0).collect::<Vec<f32>>();
        filter[2 + FILTER + 2] = 1.0;
        let a = [2.0, 2.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(convolution(&a, &filter), [2.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    fn relu_and_maxpool_by_hand() {
        let c = [2.0, 3.0, -1.0, 2.0, f32::NAN, 4.0, -5.0, 6.0];
        assert_eq!(relu(&c), [2.0, 3.0, 0.0, 2.0, 0.0, 4.0, 0.0, 6.0]);
        assert_eq!(
            maxpool(&c[..2].iter().chain(&[1.0, 2.0, 9.0, 4.0, 3.0, 9.0]).copied().collect::<Vec<_>>(), 2),
            [1.0, 1.0, 4.0]
        );
    }

    #[test]
    fn every_member_of_a_batch_has_its_own_result() {
        let filter = counting(5, 5);
        let mut batch = counting(4, 4);
        batch.extend((0..16).map(|value| (2 * value) as f32));
        let result = inference_batched(&batch, &filter, 2);
        let first = inference(&counting(4, 4), &filter);
        assert_eq!(result[..6], first);
        let doubled = first[2..].iter().map(|value| 2.0 * value).collect::<Vec<_>>();
        assert_eq!(result[6..], doubled);
    }
}
