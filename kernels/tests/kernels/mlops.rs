//! Module `mlops` against its references, bit for bit.

use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::mlops as reference;

use crate::device::{Buffer, Device};
use crate::{floats, integers};

const SQUARE: [u32; 3] = [32, 32, 1];
const ONE: [u32; 3] = [1, 1, 1];

fn matrix(seed: u64, rows: usize, cols: usize) -> Vec<f32> {
    [vec![rows as f32, cols as f32], floats(seed, rows * cols)].concat()
}

fn read_floats(device: &Device, buffer: Buffer) -> Vec<f32> {
    to_elements(&device.read(buffer))
}

/// A grid of squares that covers rows × cols, one block too large in each direction.
fn generous_grid(rows: usize, cols: usize) -> [u32; 3] {
    [cols as u32 / 32 + 2, rows as u32 / 32 + 2, 1]
}

fn run_matmul(kernel: &str, a: &[i64], grid: [u32; 3], block: [u32; 3]) -> Vec<i64> {
    let mut device = Device::load("mlops");
    let bytes = from_elements(a);
    let (a, b) = (device.place(&bytes), device.zeroed(bytes.len()));
    device.launch(kernel, &[a.address, bytes.len() as u64, b.address], grid, block);
    to_elements(&device.read(b))
}

#[test]
fn matmul_para_and_matmul_loop_match_the_reference() {
    for n in (1..=15).chain([31, 33, 128]) {
        let a = [vec![n as i64], integers(n as u64, n * n)].concat();
        let expected = reference::matmul(&a);
        let grid = n.div_ceil(32) as u32;
        assert_eq!(run_matmul("matmul_para", &a, [grid, grid, 1], SQUARE), expected, "n = {n}");
        assert_eq!(run_matmul("matmul_para", &a, generous_grid(n, n), SQUARE), expected, "n = {n}");
        assert_eq!(run_matmul("matmul_loop", &a, ONE, ONE), expected, "n = {n}");
    }
}

#[test]
fn matmul_stays_inside_a_buffer_that_overstates_itself() {
    for n in [3, -1, i64::MIN, i64::MAX, 1 << 32] {
        let a = [n, 1, 2, 3, 4];
        assert_eq!(run_matmul("matmul_para", &a, [2, 2, 1], SQUARE), reference::matmul(&a), "n = {n}");
        assert_eq!(run_matmul("matmul_loop", &a, ONE, ONE), reference::matmul(&a), "n = {n}");
    }
}

#[test]
fn matmul_f_matches_the_reference() {
    let (a, b) = (matrix(1, 40, 33), matrix(2, 33, 50));
    let mut device = Device::load("mlops");
    let (a_there, b_there) = (device.place(&from_elements(&a)), device.place(&from_elements(&b)));
    let c = device.zeroed(4 * (2 + 40 * 50));
    let slots = [c.address, a_there.address, b_there.address];
    device.launch("matmul_f", &slots, generous_grid(40, 50), SQUARE);
    assert_eq!(read_floats(&device, c), reference::matmul_f(&a, &b));
}

#[test]
fn inference_in_any_shape_and_block() {
    for (rows, cols) in [(1, 1), (2, 2), (3, 70), (70, 3), (32, 32), (33, 31), (224, 224)] {
        for side in [8, 16, 32] {
            let (a, filter) = (matrix(3, rows, cols), matrix(4, 5, 5));
            let mut device = Device::load("mlops");
            let (a_there, b) = (device.place(&from_elements(&a)), device.place(&from_elements(&filter)));
            let c = device.zeroed(4 * a.len());
            let d = device.zeroed(4 * (2 + (rows / 2) * (cols / 2)));
            let grid = [cols as u32 / side + 2, rows as u32 / side + 2, 1];
            let block = [side, side, 1];

            device.launch("convolution_f", &[c.address, a_there.address, b.address], grid, block);
            assert_eq!(read_floats(&device, c), reference::convolution(&a, &filter), "{rows} x {cols}");
            device.launch("relu_2d_f", &[c.address], grid, block);
            device.launch("maxpool_f", &[d.address, c.address, 2], grid, block);
            assert_eq!(read_floats(&device, d), reference::inference(&a, &filter), "{rows} x {cols}");
        }
    }
}

#[test]
fn inference_of_the_golden_input() {
    let (a, filter) = (reference::counting(224, 224), reference::counting(5, 5));
    let mut device = Device::load("mlops");
    let (a_there, b) = (device.place(&from_elements(&a)), device.place(&from_elements(&filter)));
    let c = device.zeroed(4 * a.len());
    device.launch("convolution_f", &[c.address, a_there.address, b.address], [7, 7, 1], SQUARE);
    assert_eq!(read_floats(&device, c), reference::convolution(&a, &filter));
}

#[test]
fn maxpool_by_other_factors_drops_what_is_left_over() {
    for factor in [1, 3, 5] {
        let c = matrix(5, 33, 47);
        let expected = reference::maxpool(&c, factor);
        let mut device = Device::load("mlops");
        let c_there = device.place(&from_elements(&c));
        let d = device.zeroed(4 * expected.len());
        device.launch("maxpool_f", &[d.address, c_there.address, factor as u64], [2, 2, 1], SQUARE);
        assert_eq!(read_floats(&device, d), expected, "factor {factor}");
    }
}

#[test]
fn every_member_of_a_batch_has_its_own_result_and_excess_blocks_do_nothing() {
    let (rows, cols, batch) = (40, 40, 3);
    let a = [vec![rows as f32, cols as f32], floats(6, batch * rows * cols)].concat();
    let filter = matrix(7, 5, 5);
    // Of its words, the kernels read the last.
    let words = [0, 0, 0, 0, batch as u64];

    let mut device = Device::load("mlops");
    let (a_there, b) = (device.place(&from_elements(&a)), device.place(&from_elements(&filter)));
    let cfg = device.place(&from_elements(&words));
    let (c, d) = (device.zeroed(4 * a.len()), device.zeroed(4 * (2 + batch * (rows / 2) * (cols / 2))));
    let grid = |side: usize| [side.div_ceil(32) as u32, side.div_ceil(32) as u32, batch as u32 + 2];
    let slots = [c.address, a_there.address, b.address, cfg.address];
    device.launch("convolution_f_batched", &slots, grid(rows), SQUARE);
    device.launch("relu_2d_f_batched", &[c.address, cfg.address], grid(rows), SQUARE);
    device.launch("maxpool_f_batched", &[d.address, c.address, 2, cfg.address], grid(rows / 2), SQUARE);
    device.read(c);
    assert_eq!(read_floats(&device, d), reference::inference_batched(&a, &filter, batch));
}

#[test]
fn dimensions_that_are_no_numbers_are_no_dimensions() {
    for header in [[f32::NAN, 2.0], [-1.0, 2.0], [0.5, f32::INFINITY], [f32::NEG_INFINITY, f32::MAX]] {
        let mut device = Device::load("mlops");
        let c = device.place(&from_elements(&[header[0], header[1], -1.0, -1.0]));
        device.launch("relu_2d_f", &[c.address], [1, 1, 1], SQUARE);
        assert_eq!(read_floats(&device, c)[2..], [-1.0, -1.0]);
    }
}

#[test]
fn launches_that_a_kernel_cannot_serve_fault() {
    let mut device = Device::load("mlops");
    let a = device.place(&from_elements(&reference::counting(8, 8)));
    let slots = [a.address, a.address, a.address];
    assert!(device.try_launch("convolution_f", &slots, ONE, [64, 1, 1]).is_err());
    assert!(device.try_launch("maxpool_f", &[a.address, a.address, 0], ONE, SQUARE).is_err());
}
