//! Every kernel with random shapes, grids, blocks and inputs.

use proptest::prelude::*;
use proptest::sample::select;

use crate::device::{Buffer, Device, f32_slot};

/// Floats of every kind.
fn float() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -1e3f32..1e3,
        2 => any::<u32>().prop_map(f32::from_bits),
        1 => select(vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE / 8.0, f32::MAX]),
    ]
}

fn floats(count: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(float(), count)
        .prop_map(|all| all.into_iter().flat_map(f32::to_le_bytes).collect())
}

fn bytes(count: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), count)
}

/// A matrix with its dimensions in front.
fn matrix(rows: usize, cols: usize, members: usize) -> impl Strategy<Value = Vec<u8>> {
    floats(rows * cols * members).prop_map(move |values| {
        [&(rows as f32).to_le_bytes()[..], &(cols as f32).to_le_bytes(), &values].concat()
    })
}

/// A block of up to 1024 threads.
fn block() -> impl Strategy<Value = [u32; 3]> {
    prop_oneof![
        (1u32..=1024).prop_map(|x| [x, 1, 1]),
        (1u32..=32, 1u32..=32).prop_map(|(x, y)| [x, y, 1]),
        select(vec![[32, 32, 1], [64, 1, 1], [16, 16, 1], [65, 1, 1], [1, 64, 1]]),
    ]
}

fn grid() -> impl Strategy<Value = [u32; 3]> {
    (1u32..4, 1u32..4, 1u32..3).prop_map(|(x, y, z)| [x, y, z])
}

/// Blocks along an axis that cover `cells`.
fn cover(cells: usize, side: u32) -> u32 {
    (cells as u32).div_ceil(side).max(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn sums(
        (n, a, b) in (0usize..400).prop_flat_map(|n| (Just(n), floats(n), floats(n))),
        block in (1u32..=1024).prop_map(|x| [x, 1, 1]),
        factor in float(),
    ) {
        let mut device = Device::load("linalg");
        let (a, b, c) = (device.place(&a), device.place(&b), device.zeroed(4 * n));
        let grid = [cover(n, block[0]) + 1, 1, 1];
        device.launch("vec_add_f", &[a.address, b.address, c.address, n as u64], grid, block);
        device.launch("axpy_f", &[c.address, a.address, n as u64, f32_slot(factor)], grid, block);
    }

    #[test]
    fn products(
        ((m, n, k), a, b, c) in (1usize..70, 1usize..70, 0usize..70).prop_flat_map(|shape @ (m, n, k)| {
            (Just(shape), bytes(8 * m * k), bytes(8 * k * n), bytes(8 * m * n))
        }),
        block in block(),
        (alpha, beta) in (float(), float()),
        grid in grid(),
    ) {
        let mut device = Device::load("linalg");
        let [a, b, c] = [a, b, c].map(|bytes| device.place(&bytes).address);
        let sizes = [a, b, c, m as u64, n as u64, k as u64];
        device.launch("matmul_i64", &sizes, [cover(n, block[0]), cover(m, block[1]), 1], block);
        // Few tiles, too: what is not covered stays.
        device.launch("matmul_tiled_i64", &sizes, grid, [32, 8, 1]);
        let slots = [&sizes[..], &[f32_slot(alpha), f32_slot(beta)]].concat();
        device.launch("sgemm", &slots, grid, [32, 8, 1]);
    }

    #[test]
    fn steps_of_jacobi(
        (n, a, b, x) in (1usize..100).prop_flat_map(|n| (Just(n), floats(n * n), floats(n), floats(n))),
        threads in 1u32..=1024,
    ) {
        let mut device = Device::load("linalg");
        let [a, b, x] = [a, b, x].map(|bytes| device.place(&bytes).address);
        let next = device.zeroed(4 * n).address;
        device.launch("jacobi_step_f", &[a, b, x, next, n as u64], [cover(n, threads), 1, 1], [threads, 1, 1]);
    }

    #[test]
    fn softmax(
        (rows, cols, a) in (1usize..6, 1usize..300).prop_flat_map(|(rows, cols)| {
            (Just(rows), Just(cols), floats(rows * cols))
        }),
        block in block(),
    ) {
        let mut device = Device::load("linalg");
        let (a, b) = (device.place(&a), device.zeroed(4 * rows * cols));
        device.launch("softmax_f", &[a.address, b.address, rows as u64, cols as u64], [rows as u32 + 1, 1, 1], block);
    }

    #[test]
    fn integer_matrices(
        (n, a) in (0i64..70).prop_flat_map(|n| (Just(n), bytes(8 * (n * n) as usize))),
        claimed in prop_oneof![6 => Just(None), 1 => any::<i64>().prop_map(Some)],
        block in block(),
        grid in grid(),
    ) {
        let a = [&claimed.unwrap_or(n).to_le_bytes()[..], &a].concat();
        let mut device = Device::load("mlops");
        let (a_there, b) = (device.place(&a), device.zeroed(a.len()));
        let slots = [a_there.address, a.len() as u64, b.address];
        device.launch("matmul_para", &slots, grid, block);
        device.launch("matmul_loop", &slots, [1, 1, 1], [1, 1, 1]);
    }

    #[test]
    fn inference(
        (rows, cols, members, a) in (1usize..70, 1usize..70, 1usize..3).prop_flat_map(|(rows, cols, members)| {
            (Just(rows), Just(cols), Just(members), matrix(rows, cols, members))
        }),
        filter in matrix(5, 5, 1),
        side in select(vec![8u32, 16, 32]),
        factor in 1usize..5,
    ) {
        let mut device = Device::load("mlops");
        let cfg: Vec<u8> = [0u64, 0, 0, 1, members as u64].iter().flat_map(|word| word.to_le_bytes()).collect();
        let (a, b, cfg) = (device.place(&a), device.place(&filter), device.place(&cfg));
        let c = device.zeroed(4 * (2 + rows * cols * members));
        let d = device.zeroed(4 * (2 + rows * cols * members));
        let grid = |z: usize| [cover(cols, side) + 1, cover(rows, side), z as u32];
        let block = [side, side, 1];
        device.launch("convolution_f", &[c.address, a.address, b.address], grid(1), block);
        device.launch("relu_2d_f", &[c.address], grid(1), block);
        device.launch("maxpool_f", &[d.address, c.address, factor as u64], grid(1), block);
        let slots = [c.address, a.address, b.address, cfg.address];
        device.launch("convolution_f_batched", &slots, grid(members + 1), block);
        device.launch("relu_2d_f_batched", &[c.address, cfg.address], grid(members), block);
        device.launch("maxpool_f_batched", &[d.address, c.address, factor as u64, cfg.address], grid(members), block);
    }

    #[test]
    fn float_matrices(
        ((rows, cols), a, b) in (1usize..50, 1usize..50, 1usize..50).prop_flat_map(|(rows, cols, inner)| {
            (Just((rows, cols)), matrix(rows, inner, 1), matrix(inner, cols, 1))
        }),
        block in block(),
    ) {
        let mut device = Device::load("mlops");
        let (a, b, c) = (device.place(&a), device.place(&b), device.zeroed(4 * (2 + rows * cols)));
        let grid = [cover(cols, block[0]), cover(rows, block[1]), 1];
        device.launch("matmul_f", &[c.address, a.address, b.address], grid, block);
    }

    #[test]
    fn dimensions_of_any_bits(header in (any::<u32>(), any::<u32>()), block in block()) {
        let mut device = Device::load("mlops");
        // Whatever they say, a matrix of at most 3 x 3 fits.
        let small = |bits: u32| if f32::from_bits(bits) < 4.0 { bits } else { bits & 0x807f_ffff };
        let header: Vec<u8> = [small(header.0), small(header.1)].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let c = device.place(&[&header[..], &[0x80; 64]].concat());
        device.launch("relu_2d_f", &[c.address], [1, 1, 1], block);
    }

    #[test]
    fn pictures(
        (width, height, rgb) in (1usize..80, 1usize..50).prop_flat_map(|(width, height)| {
            (Just(width), Just(height), bytes(3 * width * height))
        }),
        block in block(),
    ) {
        let mut device = Device::load("vision");
        let photo = device.place(&rgb);
        let [half, smooth, drawing]: [Buffer; 3] = [(); 3].map(|()| device.zeroed(rgb.len()));
        let [gray, edges] = [(); 2].map(|()| device.zeroed(width * height));
        let (w, h) = (width as u64, height as u64);
        let grid = |samples: usize| [cover(samples, block[0]), cover(height, block[1]), 1];
        device.launch("gaussian_rows", &[photo.address, half.address, w, h, 3], grid(width), block);
        device.launch("gaussian_columns", &[half.address, smooth.address, 3 * w, h], grid(3 * width), block);
        device.launch("rgb_to_gray", &[smooth.address, gray.address, w, h], grid(width), block);
        device.launch("sobel", &[gray.address, edges.address, w, h], grid(width), block);
        let slots = [smooth.address, edges.address, drawing.address, w, h];
        device.launch("ink_outlines", &slots, grid(width), block);
    }
}
