//! Branches, calls, barriers, traps, registers of the hardware, and what moves between lanes.

use gfx9::decode::Arch;
use gfx9::exec::Stop;
use gfx9::memory::Fault;

use crate::assembled::{program, words};
use crate::bench::{BASE, Bench, LOADED_AT, Noise};

pub(crate) const INSTRUCTIONS: &[&str] = &[
    "s_nop 0",
    "s_branch 1",
    "s_cbranch_scc0 1",
    "s_cbranch_scc1 1",
    "s_cbranch_vccz 1",
    "s_cbranch_vccnz 1",
    "s_cbranch_execz 1",
    "s_cbranch_execnz 1",
    "s_branch -1",
    "s_branch 100",
    "s_barrier",
    "s_waitcnt vmcnt(0) lgkmcnt(0)",
    "s_sleep 1",
    "s_setprio 1",
    "s_trap 2",
    "s_icache_inv",
    "s_getpc_b64 s[8:9]",
    "s_setpc_b64 s[0:1]",
    "s_swappc_b64 s[8:9], s[0:1]",
    "s_call_b64 s[8:9], 1",
    "s_getreg_b32 s8, hwreg(HW_REG_HW_ID)",
    "s_getreg_b32 s8, hwreg(HW_REG_MODE, 4, 4)",
    "s_getreg_b32 s8, hwreg(HW_REG_XCC_ID)",
    "s_getreg_b32 s8, hwreg(HW_REG_TRAPSTS)",
    "s_getreg_b32 s8, hwreg(HW_REG_GPR_ALLOC)",
    "s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s0",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 1",
    "s_mov_b32 s4, 1",
    "v_readfirstlane_b32 s8, v0",
    "v_readlane_b32 s8, v0, s1",
    "v_writelane_b32 v8, -3, s1",
    "v_swap_b32 v0, v1",
    "v_accvgpr_mov_b32 a8, a0",
    "v_accvgpr_read_b32 v8, a0",
    "v_accvgpr_write_b32 a0, v0",
    "v_accvgpr_write_b32 a0, 1",
    "v_fmac_f32_e32 v8, v0, v1",
    "v_fmac_f64_e32 v[8:9], v[0:1], v[2:3]",
];

fn bench(seed: u64) -> Bench {
    Bench::new(&mut Noise(seed), Arch::Gfx90a)
}

/// True if a branch skips the instruction behind it.
fn skips(branch: &str, prepare: impl Fn(&mut Bench)) -> bool {
    let mut bench = bench(1);
    prepare(&mut bench);
    *bench.s(4) = 0;
    assert_eq!(bench.run(&program(&[branch, "s_mov_b32 s4, 1", "s_endpgm"]), 3), Ok(Stop::End), "{branch}");
    *bench.s(4) == 0
}

#[test]
fn branches_look_at_their_condition() {
    assert!(skips("s_branch 1", |_| ()));
    for value in [false, true] {
        assert_eq!(skips("s_cbranch_scc0 1", |b| b.wave.set_scc(value)), !value);
        assert_eq!(skips("s_cbranch_scc1 1", |b| b.wave.set_scc(value)), value);
        let mask = if value { 1 << 40 } else { 0 };
        assert_eq!(skips("s_cbranch_vccz 1", |b| b.wave.set_vcc(mask)), !value);
        assert_eq!(skips("s_cbranch_vccnz 1", |b| b.wave.set_vcc(mask)), value);
        assert_eq!(skips("s_cbranch_execz 1", |b| b.wave.set_exec(mask)), !value);
        assert_eq!(skips("s_cbranch_execnz 1", |b| b.wave.set_exec(mask)), value);
    }
}

#[test]
fn an_endless_loop_gives_up_its_turn_and_a_branch_out_of_the_code_fails() {
    assert_eq!(bench(1).run(&program(&["s_branch -1", "s_endpgm"]), 1000), Ok(Stop::Yield));
    assert!(matches!(bench(1).run(&program(&["s_branch 100", "s_endpgm"]), 1000), Err(Fault::Code(_))));
    assert!(matches!(bench(1).run(&words("s_nop 0"), 1000), Err(Fault::Code(_))));
}

#[test]
fn waves_stop_where_they_must() {
    for (asm, stop) in [("s_barrier", Stop::Barrier), ("s_sleep 1", Stop::Yield), ("s_endpgm", Stop::End)] {
        assert_eq!(bench(1).run(&words(asm), 10), Ok(stop), "{asm}");
    }
    assert_eq!(bench(1).run(&words("s_trap 2"), 10), Err(Fault::Trap(2)));
    for asm in ["s_nop 0", "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_setprio 1", "s_icache_inv"] {
        let mut bench = bench(1);
        let before = bench.state();
        bench.step(asm);
        let after = bench.state();
        assert!(before.vector == after.vector && before.scalar == after.scalar, "{asm}");
    }
}

#[test]
fn an_unknown_instruction_fails_where_it_is_executed() {
    // Behind the end it does no harm.
    let unknown = [0xf000_0000, 0];
    assert_eq!(bench(1).run(&[words("s_endpgm"), unknown.into()].concat(), 10), Ok(Stop::End));
    let Err(Fault::Unknown { at, unknown }) = bench(1).run(&[words("s_nop 0"), unknown.into()].concat(), 10)
    else {
        panic!("it is executed")
    };
    assert_eq!((at, unknown.words[0]), (BASE + 4, 0xf000_0000));
}

#[test]
fn addresses_of_code_are_those_of_the_device() {
    let at = LOADED_AT + BASE;
    let mut bench = bench(1);
    bench.step("s_getpc_b64 s[8:9]");
    assert_eq!([*bench.s(8), *bench.s(9)], [(at + 4) as u32, (at >> 32) as u32]);
    for (asm, length) in
        [("s_setpc_b64 s[0:1]", 4), ("s_swappc_b64 s[8:9], s[0:1]", 4), ("s_call_b64 s[8:9], 1", 4)]
    {
        let target = at + length + 4;
        (*bench.s(0), *bench.s(1), *bench.s(4)) = (target as u32, (target >> 32) as u32, 0);
        bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
        let code = program(&[asm, "s_mov_b32 s4, 1", "s_endpgm"]);
        assert_eq!(bench.run(&code, 3), Ok(Stop::End), "{asm}");
        assert_eq!(*bench.s(4), 0, "{asm}");
        if asm.contains("s[8:9]") {
            assert_eq!([*bench.s(8), *bench.s(9)], [(at + length) as u32, (at >> 32) as u32], "{asm}");
        }
    }
    // Into the middle of an instruction, or out of the code.
    for target in [at + 2, at + 4000, 0] {
        (*bench.s(0), *bench.s(1)) = (target as u32, (target >> 32) as u32);
        bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
        assert_eq!(bench.run(&words("s_setpc_b64 s[0:1]"), 3), Err(Fault::Code(target)));
    }
}

#[test]
fn registers_of_the_hardware_that_are_known() {
    let mut bench = bench(1);
    bench.step("s_getreg_b32 s8, hwreg(HW_REG_HW_ID)");
    assert_eq!(*bench.s(8), 0);
    bench.step("s_getreg_b32 s8, hwreg(HW_REG_TRAPSTS)");
    assert_eq!(*bench.s(8), 0);
    let mut on_942 = Bench::new(&mut Noise(1), Arch::Gfx942);
    on_942.step("s_getreg_b32 s8, hwreg(HW_REG_XCC_ID)");
    assert_eq!(*on_942.s(8), 0);
    bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
    bench.step("s_getreg_b32 s8, hwreg(HW_REG_MODE, 4, 4)");
    assert_eq!(*bench.s(8), 0);
    bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
    bench.step("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 1");
    for asm in ["s_getreg_b32 s8, hwreg(HW_REG_GPR_ALLOC)", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3"]
    {
        bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
        assert!(matches!(bench.run(&words(asm), 2), Err(Fault::Unsupported(_))), "{asm}");
    }
    *bench.s(0) = 1;
    bench.wave = gfx9::wave::Wave::new(0, 1, crate::bench::PLACE);
    let asm = "s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s0";
    assert!(matches!(bench.run(&words(asm), 2), Err(Fault::Unsupported(_))));
}

#[test]
fn lanes_are_read_and_written_one_at_a_time() {
    for seed in 1..200 {
        let mut bench = bench(seed);
        let before = bench.state();
        let lane = (*bench.s(1) % 64) as usize;
        let v0 = *bench.v(0);
        let first = if before.exec == 0 { 0 } else { before.exec.trailing_zeros() as usize };
        bench.step("v_readfirstlane_b32 s8, v0");
        assert_eq!(*bench.s(8), v0[first]);
        bench.wave = gfx9::wave::Wave::new(0, before.exec, crate::bench::PLACE);
        bench.step("v_readlane_b32 s8, v0, s1");
        assert_eq!(*bench.s(8), v0[lane]);
        let mut expected = *bench.v(8);
        expected[lane] = -3i32 as u32;
        bench.wave = gfx9::wave::Wave::new(0, before.exec, crate::bench::PLACE);
        bench.step("v_writelane_b32 v8, -3, s1");
        assert_eq!(*bench.v(8), expected, "whatever EXEC is");
    }
}

/// What a register holds after one instruction in the lanes of EXEC, and before in the others.
fn after(seed: u64, asm: &str, register: usize, formula: impl Fn(&dyn Fn(usize) -> u32) -> u32) {
    let mut bench = bench(seed);
    let before = bench.state();
    bench.step(asm);
    let base = crate::bench::PLACE.vector;
    for lane in 0..64 {
        let old = |number: usize| before.vector[base + number][lane];
        let expected = if before.exec >> lane & 1 == 1 { formula(&old) } else { old(register) };
        let got = bench.v(register)[lane];
        let nans = f32::from_bits(got).is_nan() && f32::from_bits(expected).is_nan();
        assert!(got == expected || (asm.contains("f32") && nans), "{asm}: {got:x}, expected {expected:x}");
    }
}

#[test]
fn accumulation_registers_follow_the_vector_registers() {
    for seed in 1..50 {
        after(seed, "v_accvgpr_read_b32 v8, a0", 8, |old| old(32));
        after(seed, "v_accvgpr_write_b32 a0, v0", 32, |old| old(0));
        after(seed, "v_accvgpr_write_b32 a0, 1", 32, |_| 1);
        after(seed, "v_accvgpr_mov_b32 a8, a0", 40, |old| old(32));
        after(seed, "v_swap_b32 v0, v1", 0, |old| old(1));
        after(seed, "v_swap_b32 v0, v1", 1, |old| old(0));
        after(seed, "v_fmac_f32_e32 v8, v0, v1", 8, |old| {
            let [a, b, c] = [old(0), old(1), old(8)].map(f32::from_bits);
            a.mul_add(b, c).to_bits()
        });
        let double = |low: u32, high: u32| f64::from_bits(u64::from(low) | u64::from(high) << 32);
        after(seed, "v_fmac_f64_e32 v[8:9], v[0:1], v[2:3]", 9, |old| {
            let result = double(old(0), old(1)).mul_add(double(old(2), old(3)), double(old(8), old(9)));
            // A NaN keeps what the first source that is one has.
            let source =
                [(0, 1), (2, 3), (8, 9)].into_iter().find(|(l, h)| double(old(*l), old(*h)).is_nan());
            match source {
                _ if !result.is_nan() => (result.to_bits() >> 32) as u32,
                Some((_, high)) => old(high) | 1 << 19,
                None => 0x7ff8_0000,
            }
        });
    }
}
