//! Each instruction against a formula of its own, with operands at the edges and random ones: all lanes, lanes outside
//! EXEC, and all other registers are looked at.
//!
//! Instructions are written as in AMD's documents; their words, as LLVM's assembler makes them, are in `assembled.txt`.
//! `UPDATE_ASSEMBLED=1 cargo test -p pappus-gfx9` makes it anew, with llvm-mc-19.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::needless_range_loop, reason = "lanes are numbers")]
#![allow(clippy::precedence, reason = "formulas of shifts read as in the documents")]

mod assembled;
mod bench;
mod control;
mod memory;
mod scalar;
mod vector;

use std::collections::BTreeSet;

use gfx9::decode::{Arch, decode};
use gfx9::ops::Op;

#[test]
fn every_instruction_has_a_case() {
    let mut tested = BTreeSet::new();
    for (asm, _) in assembled::all() {
        let words = assembled::words(&asm);
        let inst = decode(&words, assembled::arch(&asm)).unwrap_or_else(|unknown| panic!("{asm}: {unknown}"));
        tested.insert(inst.op.unwrap());
    }
    let missing: Vec<_> = Op::ALL.iter().filter(|op| !tested.contains(op)).collect();
    assert!(missing.is_empty(), "without a case: {missing:?}");
}

#[test]
fn what_is_not_known_is_named() {
    for (words, name) in [
        // v_mfma_f32_32x32x1f32, v_add_f16, image_load, a reserved encoding, v_mov_b32 with DPP and with SDWA.
        ([0xd3c0_8000, 0x0402_0300], "VOP3P 64"),
        ([0x3e00_0302, 0], "VOP2 31"),
        ([0xf000_0000, 0], "no encoding"),
        ([0x7e02_02fa, 0xff01_1102], "DPP"),
        ([0x6802_06f9, 0x0600_0602], "SDWA"),
        // s_sendmsg, s_buffer_load_dword, global_atomic_pk_add_f16.
        ([0xbf90_0001, 0], "SOPP 16"),
        ([0xc022_0002, 0], "SMEM 8"),
        ([0xdd38_8000, 0], "FLAT 78"),
    ] {
        let unknown = decode(&words, Arch::Gfx90a).unwrap_err();
        assert!(unknown.to_string().contains(name), "{unknown}");
        assert!(unknown.to_string().contains(&format!("{:08x}", words[0])), "{unknown}");
    }
    // Only the younger one has it.
    let words = assembled::words("v_mov_b64_e32 v[8:9], v[0:1]");
    assert!(decode(&words, Arch::Gfx90a).is_err() && decode(&words, Arch::Gfx942).is_ok());
}

#[test]
fn any_words_decode_or_are_an_error() {
    let mut state = 1u64;
    for _ in 0..1_000_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let words = [(state >> 32) as u32, state as u32, 7];
        for length in 0..=3 {
            if let Ok(inst) = decode(&words[..length], Arch::Gfx942) {
                assert!(inst.op.is_some());
            }
        }
    }
}
