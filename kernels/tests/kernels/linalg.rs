//! Module `linalg` against its references, bit for bit but for softmax.

use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::linalg as reference;

use crate::device::{Device, GARBAGE, f32_slot};
use crate::{floats, integers};

/// Threads of a block of the tiled products.
const TILED: [u32; 3] = [32, 8, 1];
/// (m, n, k): one tile, less, more, ragged, long and thin.
const SHAPES: [(usize, usize, usize); 6] =
    [(32, 32, 32), (1, 1, 1), (64, 96, 32), (40, 50, 70), (1, 100, 3), (33, 1, 65)];

/// A grid of tiles, one too many in each direction.
fn tiles((m, n, _): (usize, usize, usize)) -> [u32; 3] {
    [n.div_ceil(32) as u32 + 1, m.div_ceil(32) as u32 + 1, 1]
}

#[test]
fn integer_products_match_the_reference() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b) = (integers(1, m * k), integers(2, k * n));
        for (kernel, block) in [("matmul_i64", [32, 32, 1]), ("matmul_tiled_i64", TILED)] {
            let mut device = Device::load("linalg");
            let (a, b) = (device.place(&from_elements(&a)), device.place(&from_elements(&b)));
            let c = device.zeroed(8 * m * n);
            let slots = [a.address, b.address, c.address, m as u64, n as u64, k as u64];
            device.launch(kernel, &slots, tiles(shape), block);
            let result = to_elements::<i64>(&device.read(c));
            assert_eq!(
                result,
                reference::matmul_i64(&to_elements(&device.read(a)), &to_elements(&device.read(b)), shape)
            );
        }
    }
}

#[test]
fn sgemm_with_and_without_the_old_c() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b, old) = (floats(1, m * k), floats(2, k * n), floats(3, m * n));
        let product = reference::sgemm(&a, &b, shape);
        for (alpha, beta) in [(1.0, 0.0), (0.5, 2.0)] {
            // With β = 0 the old C may be anything.
            let old = if beta == 0.0 { vec![f32::NAN; m * n] } else { old.clone() };
            let mut device = Device::load("linalg");
            let (a, b) = (device.place(&from_elements(&a)), device.place(&from_elements(&b)));
            let c = device.place(&from_elements(&old));
            let pointers = [a.address, b.address, c.address];
            let sizes = [m as u64, n as u64, k as u64];
            let slots = [&pointers[..], &sizes, &[f32_slot(alpha), f32_slot(beta)]].concat();
            device.launch("sgemm", &slots, tiles(shape), TILED);
            let combine = |(product, old): (&f32, &f32)| {
                if beta == 0.0 { alpha * product } else { alpha * product + beta * old }
            };
            let expected = product.iter().zip(&old).map(combine).collect::<Vec<_>>();
            assert_eq!(to_elements::<f32>(&device.read(c)), expected, "{shape:?}, {alpha}, {beta}");
        }
    }
}

#[test]
fn a_tiled_product_faults_in_blocks_of_another_shape() {
    let mut device = Device::load("linalg");
    let a = device.zeroed(8);
    let slots = [a.address, a.address, a.address, 1, 1, 1];
    assert!(device.try_launch("matmul_tiled_i64", &slots, [1, 1, 1], [32, 32, 1]).is_err());
}

#[test]
fn vec_add_matches_the_reference() {
    for n in [1, 255, 256, 257, 1000] {
        let (a, b) = (floats(1, n), floats(2, n));
        let mut device = Device::load("linalg");
        let (a_there, b_there) = (device.place(&from_elements(&a)), device.place(&from_elements(&b)));
        let c = device.zeroed(4 * n);
        let slots = [a_there.address, b_there.address, c.address, n as u64];
        device.launch("vec_add_f", &slots, [n as u32 / 256 + 2, 1, 1], [256, 1, 1]);
        assert_eq!(to_elements::<f32>(&device.read(c)), reference::vec_add(&a, &b), "n = {n}");
    }
}

#[test]
fn axpy_takes_its_parameters_in_a_struct() {
    let (x, y) = (floats(1, 300), floats(2, 300));
    let mut device = Device::load("linalg");
    let (x_there, y_there) = (device.place(&from_elements(&x)), device.place(&from_elements(&y)));
    let slots = [y_there.address, x_there.address, 300, f32_slot(2.0)];
    device.launch("axpy_f", &slots, [2, 1, 1], [256, 1, 1]);
    assert_eq!(to_elements::<f32>(&device.read(y_there)), reference::axpy(&x, &y));
}

#[test]
fn jacobi_converges_as_the_reference_does() {
    let n = 300;
    let mut a = floats(1, n * n);
    (0..n).for_each(|i| a[i * n + i] = n as f32);
    let (b, x) = (floats(2, n), floats(3, n));
    let mut device = Device::load("linalg");
    let (a_there, b_there) = (device.place(&from_elements(&a)), device.place(&from_elements(&b)));
    let (x_there, next) = (device.place(&from_elements(&x)), device.zeroed(4 * n));
    for _ in 0..3 {
        for (from, to) in [(x_there, next), (next, x_there)] {
            let slots = [a_there.address, b_there.address, from.address, to.address, n as u64];
            device.launch("jacobi_step_f", &slots, [2, 1, 1], [256, 1, 1]);
        }
    }
    assert_eq!(to_elements::<f32>(&device.read(x_there)), reference::jacobi(&a, &b, &x, 6));
}

#[test]
fn softmax_for_any_number_of_threads() {
    for (rows, cols) in [(1, 1), (5, 7), (3, 256), (2, 1000)] {
        for threads in [1, 96, 256, 1024] {
            let a = floats(1, rows * cols).iter().map(|value| 20.0 * value).collect::<Vec<_>>();
            let mut device = Device::load("linalg");
            let (a_there, b) = (device.place(&from_elements(&a)), device.zeroed(4 * a.len()));
            let slots = [a_there.address, b.address, rows as u64, cols as u64];
            device.launch("softmax_f", &slots, [rows as u32 + 1, 1, 1], [threads, 1, 1]);
            for (ours, theirs) in to_elements::<f32>(&device.read(b)).iter().zip(reference::softmax(&a, cols))
            {
                assert!((ours - theirs).abs() <= 1e-5 * theirs + 1e-30, "{ours} is not {theirs}");
            }
        }
    }
}

#[test]
fn softmax_of_what_is_far_below_the_maximum_is_zero() {
    let a = [0.0, -86.0, -88.0, f32::NEG_INFINITY];
    let mut device = Device::load("linalg");
    let (a_there, b) = (device.place(&from_elements(&a)), device.zeroed(16));
    device.launch("softmax_f", &[a_there.address, b.address, 1, 4], [1, 1, 1], [4, 1, 1]);
    let result = to_elements::<f32>(&device.read(b));
    assert!(result[1] > 0.0 && result[1] < 1e-37, "{result:?}");
    assert_eq!((result[0], result[2], result[3]), (1.0, 0.0, 0.0));
}

#[test]
fn unused_halves_of_slots_are_not_looked_at() {
    // A pointer's high half means nothing where addresses have 32 bits.
    let mut device = Device::load("linalg");
    let a = device.place(&from_elements(&[1.0f32]));
    let address = GARBAGE | a.address;
    device.launch("vec_add_f", &[address, address, address, 1], [1, 1, 1], [32, 1, 1]);
    assert_eq!(to_elements::<f32>(&device.read(a)), [2.0]);
}
