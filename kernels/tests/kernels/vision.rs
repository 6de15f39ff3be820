//! Module `vision` against its references, byte for byte.

use pappus_kernels::reference::vision as reference;

use crate::device::Device;
use crate::noise;

const SQUARE: [u32; 3] = [32, 32, 1];

fn pixels(seed: u64, count: usize) -> Vec<u8> {
    noise(seed).map(|word| (word >> 56) as u8).take(count).collect()
}

#[test]
fn pictures_of_any_shape_match_the_reference() {
    for (width, height) in [(1, 1), (2, 5), (5, 2), (33, 31), (100, 70)] {
        let rgb = pixels(width as u64, width * height * 3);
        let mut device = Device::load("vision");
        let photo = device.place(&rgb);
        let [half, smooth, drawing] = [(); 3].map(|()| device.zeroed(rgb.len()));
        let [gray, edges] = [(); 2].map(|()| device.zeroed(width * height));
        let (w, h) = (width as u64, height as u64);
        let grid = |samples: u64| [samples.div_ceil(32) as u32 + 1, h.div_ceil(32) as u32 + 1, 1];

        device.launch("gaussian_rows", &[photo.address, half.address, w, h, 3], grid(w), SQUARE);
        assert_eq!(device.read(half), reference::gaussian_rows(&rgb, width, 3));
        device.launch("gaussian_columns", &[half.address, smooth.address, 3 * w, h], grid(3 * w), SQUARE);
        device.launch("rgb_to_gray", &[smooth.address, gray.address, w, h], grid(w), SQUARE);
        device.launch("sobel", &[gray.address, edges.address, w, h], grid(w), SQUARE);
        device.launch(
            "ink_outlines",
            &[smooth.address, edges.address, drawing.address, w, h],
            grid(w),
            SQUARE,
        );
        device.read(gray);
        let result = reference::Picture { drawing: device.read(drawing), edges: device.read(edges) };
        assert!(result == reference::picture(&rgb, width), "{width} x {height}");
    }
}
