//! Modules for GPUs, as far as they are read before the driver gets them. The driver is not told how long a module is,
//! so every length inside a module must fit its bytes.

#![allow(clippy::unwrap_used, reason = "a test")]

use pappus_worker::device::cuda::judge;

/// A kernel, a variable and a table, by hand; sections last.
const CUBIN: &[u8] = include_bytes!("../../fuzz/corpus/cuda/cubin");
/// The same with a call of `malloc`.
const HEAP: &[u8] = include_bytes!("../../fuzz/corpus/cuda/heap");
const FATBIN: &[u8] = include_bytes!("../../fuzz/corpus/cuda/fatbin");
const PTX: &[u8] = include_bytes!("../../fuzz/corpus/cuda/ptx");

#[test]
fn broken_modules_for_gpus_are_refused_before_a_driver_sees_them() {
    for module in [CUBIN, FATBIN] {
        judge(module).unwrap();
        for end in 0..module.len() {
            assert!(judge(&module[..end]).is_err(), "cut after {end} of {} bytes", module.len());
        }
    }
    for module in [CUBIN, HEAP, FATBIN, PTX] {
        for bit in 0..module.len() * 8 {
            let mut flipped = module.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = judge(&flipped);
        }
    }
    assert!(judge(HEAP).unwrap_err().to_string().contains("`malloc`"));
}

#[test]
fn a_header_that_promises_more_than_there_is_is_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let mut module = CUBIN.to_vec();
        module[at..at + bytes.len()].copy_from_slice(bytes);
        judge(&module)
    };
    // Where program and section headers are, and how many of them there are.
    let far = u64::MAX.to_le_bytes();
    for (at, bytes) in
        [(40, &far[..]), (40, &[0xff; 4]), (60, &[0xff; 2]), (58, &[0xff; 2]), (56, &[0xff; 2])]
    {
        assert!(with(at, bytes).is_err(), "byte {at}");
    }
    // Another machine.
    assert!(with(18, &[62, 0]).unwrap_err().to_string().contains("not of NVIDIA"));
    // The control: bytes that no reader relies on may be anything.
    with(48, &[0xff; 4]).unwrap();
    let mut fatbin = FATBIN.to_vec();
    fatbin[8..16].copy_from_slice(&far);
    assert!(judge(&fatbin).unwrap_err().to_string().contains("truncated"));
}
