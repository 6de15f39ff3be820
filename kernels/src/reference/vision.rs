//! Module `vision`: 8-bit pictures, row by row, channels interleaved. Pixels beyond an edge are
//! those of the edge.

/// What `picture` gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// RGB: smoothed colours under ink outlines.
    pub drawing: Vec<u8>,
    /// One channel: the outlines.
    pub edges: Vec<u8>,
}

/// `picture`: smooth, find the edges of the brightness, darken the smooth colours along them.
///
/// Shape: `rgb` and `drawing` are height × width × 3, `edges` is height × width.
pub fn picture(rgb: &[u8], width: usize) -> Picture {
    let smooth = gaussian_columns(&gaussian_rows(rgb, width, 3), 3 * width);
    let edges = sobel(&rgb_to_gray(&smooth), width);
    Picture { drawing: ink_outlines(&smooth, &edges), edges }
}

/// Kernel `rgb_to_gray`: (77 R + 150 G + 29 B + 128) / 256.
pub fn rgb_to_gray(rgb: &[u8]) -> Vec<u8> {
    let luma = |pixel: &[u8; 3]| {
        let [red, green, blue] = pixel.map(u32::from);
        ((77 * red + 150 * green + 29 * blue + 128) / 256) as u8
    };
    rgb.as_chunks().0.iter().map(luma).collect()
}

/// Kernel `gaussian_rows`: every sample and its neighbours of the same channel to the left and right,
/// weighted 1 4 6 4 1 and rounded.
pub fn gaussian_rows(samples: &[u8], width: usize, channels: usize) -> Vec<u8> {
    let at = |row: usize, col: isize, channel: usize| {
        let col = col.clamp(0, width as isize - 1) as usize;
        u32::from(samples[(row * width + col) * channels + channel])
    };
    let sample = |index: usize| {
        let (pixel, channel) = (index / channels, index % channels);
        let (row, col) = (pixel / width, (pixel % width) as isize);
        weigh([-2, -1, 0, 1, 2].map(|offset| at(row, col + offset, channel)))
    };
    (0..samples.len()).map(sample).collect()
}

/// Kernel `gaussian_columns`: the same upwards and downwards; `stride` samples make a row.
pub fn gaussian_columns(samples: &[u8], stride: usize) -> Vec<u8> {
    let height = (samples.len() / stride) as isize;
    let at = |row: isize, col: usize| u32::from(samples[row.clamp(0, height - 1) as usize * stride + col]);
    let sample = |index: usize| {
        let (row, col) = ((index / stride) as isize, index % stride);
        weigh([-2, -1, 0, 1, 2].map(|offset| at(row + offset, col)))
    };
    (0..samples.len()).map(sample).collect()
}

/// Kernel `sobel`: the length of the gradient, √(gx² + gy²), rounded down and at most 255.
pub fn sobel(gray: &[u8], width: usize) -> Vec<u8> {
    let height = gray.len() / width;
    let at = |row: isize, col: isize| {
        let row = row.clamp(0, height as isize - 1) as usize;
        let col = col.clamp(0, width as isize - 1) as usize;
        i32::from(gray[row * width + col])
    };
    let length = |index: usize| {
        let (row, col) = ((index / width) as isize, (index % width) as isize);
        let across = |row| at(row, col + 1) - at(row, col - 1);
        let down = |col| at(row + 1, col) - at(row - 1, col);
        let gx = across(row - 1) + 2 * across(row) + across(row + 1);
        let gy = down(col - 1) + 2 * down(col) + down(col + 1);
        // A cast from float to integer stops at 255 by itself.
        ((gx * gx + gy * gy) as f32).sqrt() as u8
    };
    (0..gray.len()).map(length).collect()
}

/// Kernel `ink_outlines`: every channel times (255 − edge) / 255, rounded down.
pub fn ink_outlines(rgb: &[u8], edges: &[u8]) -> Vec<u8> {
    let darken = |(index, &sample): (usize, &u8)| {
        (u32::from(sample) * (255 - u32::from(edges[index / 3])) / 255) as u8
    };
    rgb.iter().enumerate().map(darken).collect()
}

/// Binomial weights, rounded.
fn weigh([a, b, c, d, e]: [u32; 5]) -> u8 {
    ((a + 4 * b + 6 * c + 4 * d + e + 8) / 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_of_white_and_of_each_colour() {
        let rgb = [255, 255, 255, 255, 0, 0, 0, 255, 0, 0, 0, 255];
        assert_eq!(rgb_to_gray(&rgb), [255, 77, 149, 29]);
    }

    #[test]
    fn gaussians_by_hand() {
        // 160 at the left edge counts for the two pixels beyond it: (1 + 4 + 6) / 16 of it.
        assert_eq!(gaussian_rows(&[160, 0, 0, 0], 4, 1), [110, 50, 10, 0]);
        assert_eq!(gaussian_columns(&[160, 0, 0, 0], 1), [110, 50, 10, 0]);
        // Channels do not mix.
        assert_eq!(gaussian_rows(&[160, 0, 0, 0, 0, 0, 0, 0], 4, 2), [110, 0, 50, 0, 10, 0, 0, 0]);
    }

    #[test]
    fn sobel_of_a_step_and_of_nothing() {
        assert_eq!(sobel(&[9; 9], 3), [0; 9]);
        // Columns 0, 0, 10: the gradient is 4 × 10 at the step and beside it.
        assert_eq!(sobel(&[0, 0, 10, 0, 0, 10, 0, 0, 10], 3), [0, 40, 40, 0, 40, 40, 0, 40, 40]);
        assert_eq!(sobel(&[0, 255], 2), [255, 255]);
    }

    #[test]
    fn outlines_are_black_and_the_rest_is_as_it_was() {
        assert_eq!(ink_outlines(&[1, 2, 3, 4, 5, 6], &[255, 0]), [0, 0, 0, 4, 5, 6]);
    }
}
