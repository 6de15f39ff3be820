//! Scalar instructions: a formula.

use crate::bench::{Bench, Noise, PLACE};
use gfx9::decode::Arch;

/// s0 to s3, SCC, EXEC.
#[derive(Debug)]
pub(crate) struct In {
    s: [u32; 4],
    scc: bool,
    exec: u64,
    /// s8 and s9 before.
    old: u64,
}

impl In {
    fn a(&self) -> i128 {
        i128::from(self.s[0])
    }
    fn b(&self) -> i128 {
        i128::from(self.s[1])
    }
    fn i(&self) -> i128 {
        i128::from(self.s[0] as i32)
    }
    fn j(&self) -> i128 {
        i128::from(self.s[1] as i32)
    }
    fn w(&self) -> u64 {
        u64::from(self.s[0]) + (u64::from(self.s[1]) << 32)
    }
    fn x(&self) -> u64 {
        u64::from(self.s[2]) + (u64::from(self.s[3]) << 32)
    }
}

/// s8, or s[8:9]; SCC and EXEC where they change.
#[derive(Debug, Default)]
struct Out {
    narrow: Option<u32>,
    wide: Option<u64>,
    scc: Option<bool>,
    exec: Option<u64>,
}

fn only(x: i128) -> Out {
    Out { narrow: Some(x as u32), ..Out::default() }
}
fn scc(x: i128, scc: bool) -> Out {
    Out { narrow: Some(x as u32), scc: Some(scc), ..Out::default() }
}
fn nonzero(x: u32) -> Out {
    scc(i128::from(x), x != 0)
}
fn wide(x: u64) -> Out {
    Out { wide: Some(x), ..Out::default() }
}
fn wide_nonzero(x: u64) -> Out {
    Out { wide: Some(x), scc: Some(x != 0), ..Out::default() }
}
fn flag(x: bool) -> Out {
    Out { scc: Some(x), ..Out::default() }
}
fn fits(x: i128) -> bool {
    i32::try_from(x).is_ok()
}

pub(crate) struct Case {
    pub(crate) asm: String,
    formula: Box<dyn Fn(&In) -> Out>,
}

fn case(asm: &str, formula: impl Fn(&In) -> Out + 'static) -> Case {
    Case { asm: asm.to_owned(), formula: Box::new(formula) }
}

/// A bit at a time.
fn bitwise(width: u32, a: u64, b: u64, f: fn(bool, bool) -> bool) -> u64 {
    (0..width).map(|i| u64::from(f(a >> i & 1 == 1, b >> i & 1 == 1)) << i).sum()
}

type Logic = (&'static str, fn(bool, bool) -> bool);
const LOGIC: [Logic; 8] = [
    ("and", |a, b| a && b),
    ("or", |a, b| a || b),
    ("xor", |a, b| a != b),
    ("andn2", |a, b| a && !b),
    ("orn2", |a, b| a || !b),
    ("nand", |a, b| !(a && b)),
    ("nor", |a, b| !(a || b)),
    ("xnor", |a, b| a == b),
];

fn first(width: u32, value: u64, wanted: u64) -> i128 {
    (0..width).find(|i| value >> i & 1 == wanted).map_or(-1, i128::from)
}

fn last_differing(width: u32, value: u64, from: u64) -> i128 {
    (0..width).find(|i| value >> (width - 1 - i) & 1 != from).map_or(-1, i128::from)
}

/// `width` bits from a place on, with a sign or without.
fn field(value: i128, from: u32, width: u32, signed: bool) -> i128 {
    let modulus = 1i128 << width.min(64);
    let field = (value >> from).rem_euclid(modulus);
    if signed && width > 0 && field >= modulus / 2 { field - modulus } else { field }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (name, f) in LOGIC {
        all.push(case(&format!("s_{name}_b32 s8, s0, s1"), move |x| {
            nonzero(bitwise(32, u64::from(x.s[0]), u64::from(x.s[1]), f) as u32)
        }));
        all.push(case(&format!("s_{name}_b64 s[8:9], s[0:1], s[2:3]"), move |x| {
            wide_nonzero(bitwise(64, x.w(), x.x(), f))
        }));
        all.push(case(&format!("s_{name}_saveexec_b64 s[8:9], s[0:1]"), move |x| {
            let exec = bitwise(64, x.w(), x.exec, f);
            Out { wide: Some(x.exec), scc: Some(exec != 0), exec: Some(exec), ..Out::default() }
        }));
    }
    for (name, f) in [("andn1", LOGIC[3].1), ("orn1", LOGIC[4].1)] {
        all.push(case(&format!("s_{name}_saveexec_b64 s[8:9], s[0:1]"), move |x| {
            let exec = bitwise(64, x.exec, x.w(), f);
            Out { wide: Some(x.exec), scc: Some(exec != 0), exec: Some(exec), ..Out::default() }
        }));
    }
    type Order = (&'static str, fn(i128, i128) -> bool);
    let orders: [Order; 6] = [
        ("eq", |a, b| a == b),
        ("lg", |a, b| a != b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
    ];
    for (name, f) in orders {
        all.push(case(&format!("s_cmp_{name}_i32 s0, s1"), move |x| flag(f(x.i(), x.j()))));
        all.push(case(&format!("s_cmp_{name}_u32 s0, s1"), move |x| flag(f(x.a(), x.b()))));
        all.push(case(&format!("s_cmpk_{name}_i32 s0, 0xffff"), move |x| flag(f(x.i(), -1))));
        all.push(case(&format!("s_cmpk_{name}_u32 s0, 0xffff"), move |x| flag(f(x.a(), 0xffff))));
    }
    all.extend(arithmetic());
    all.extend(shifts());
    all.extend(single());
    all
}

fn arithmetic() -> Vec<Case> {
    vec![
        case("s_add_u32 s8, s0, s1", |x| scc(x.a() + x.b(), x.a() + x.b() >= 1 << 32)),
        case("s_sub_u32 s8, s0, s1", |x| scc(x.a() - x.b(), x.b() > x.a())),
        case("s_add_i32 s8, s0, s1", |x| scc(x.i() + x.j(), !fits(x.i() + x.j()))),
        case("s_sub_i32 s8, s0, s1", |x| scc(x.i() - x.j(), !fits(x.i() - x.j()))),
        case("s_addc_u32 s8, s0, s1", |x| {
            let sum = x.a() + x.b() + i128::from(x.scc);
            scc(sum, sum >= 1 << 32)
        }),
        case("s_subb_u32 s8, s0, s1", |x| {
            let difference = x.a() - x.b() - i128::from(x.scc);
            scc(difference, difference < 0)
        }),
        case("s_min_i32 s8, s0, s1", |x| scc(x.i().min(x.j()), x.i() < x.j())),
        case("s_min_u32 s8, s0, s1", |x| scc(x.a().min(x.b()), x.a() < x.b())),
        case("s_max_i32 s8, s0, s1", |x| scc(x.i().max(x.j()), x.i() > x.j())),
        case("s_max_u32 s8, s0, s1", |x| scc(x.a().max(x.b()), x.a() > x.b())),
        case("s_cselect_b32 s8, s0, s1", |x| only(if x.scc { x.a() } else { x.b() })),
        case("s_cselect_b64 s[8:9], s[0:1], s[2:3]", |x| wide(if x.scc { x.w() } else { x.x() })),
        case("s_mul_i32 s8, s0, s1", |x| only(x.i() * x.j())),
        case("s_mul_hi_u32 s8, s0, s1", |x| only(x.a() * x.b() >> 32)),
        case("s_mul_hi_i32 s8, s0, s1", |x| only(x.i() * x.j() >> 32)),
        case("s_absdiff_i32 s8, s0, s1", |x| {
            let wrapped = i128::from((x.i() - x.j()) as i32);
            nonzero(wrapped.unsigned_abs() as u32)
        }),
        case("s_lshl1_add_u32 s8, s0, s1", |x| scc(x.a() * 2 + x.b(), x.a() * 2 + x.b() >= 1 << 32)),
        case("s_lshl2_add_u32 s8, s0, s1", |x| scc(x.a() * 4 + x.b(), x.a() * 4 + x.b() >= 1 << 32)),
        case("s_lshl3_add_u32 s8, s0, s1", |x| scc(x.a() * 8 + x.b(), x.a() * 8 + x.b() >= 1 << 32)),
        case("s_lshl4_add_u32 s8, s0, s1", |x| scc(x.a() * 16 + x.b(), x.a() * 16 + x.b() >= 1 << 32)),
        case("s_pack_ll_b32_b16 s8, s0, s1", |x| only(x.a() % 65536 + x.b() % 65536 * 65536)),
        case("s_pack_lh_b32_b16 s8, s0, s1", |x| only(x.a() % 65536 + x.b() / 65536 * 65536)),
        case("s_pack_hh_b32_b16 s8, s0, s1", |x| only(x.a() / 65536 + x.b() / 65536 * 65536)),
        case("s_movk_i32 s8, 0x8001", |_| only(-32767)),
        case("s_cmovk_i32 s8, 0x7fff", |x| only(if x.scc { 0x7fff } else { i128::from(x.old as u32) })),
        case("s_addk_i32 s8, 0x8000", |x| {
            let sum = i128::from(x.old as i32) - 32768;
            scc(sum, !fits(sum))
        }),
        case("s_mulk_i32 s8, 0xfffd", |x| only(i128::from(x.old as i32) * -3)),
        case("s_abs_i32 s8, s0", |x| nonzero(x.i().unsigned_abs() as u32)),
    ]
}

fn shifts() -> Vec<Case> {
    vec![
        case("s_lshl_b32 s8, s0, s1", |x| nonzero((x.a() << (x.b() % 32)) as u32)),
        case("s_lshr_b32 s8, s0, s1", |x| nonzero((x.a() >> (x.b() % 32)) as u32)),
        case("s_ashr_i32 s8, s0, s1", |x| nonzero((x.i() >> (x.b() % 32)) as u32)),
        case("s_lshl_b64 s[8:9], s[0:1], s2", |x| wide_nonzero((u128::from(x.w()) << (x.s[2] % 64)) as u64)),
        case("s_lshr_b64 s[8:9], s[0:1], s2", |x| wide_nonzero((u128::from(x.w()) >> (x.s[2] % 64)) as u64)),
        case("s_ashr_i64 s[8:9], s[0:1], s2", |x| {
            wide_nonzero((i128::from(x.w() as i64) >> (x.s[2] % 64)) as u64)
        }),
        case("s_bfm_b32 s8, s0, s1", |x| only(((1 << (x.a() % 32)) - 1) << (x.b() % 32))),
        case("s_bfm_b64 s[8:9], s0, s1", |x| wide((((1i128 << (x.a() % 64)) - 1) << (x.b() % 64)) as u64)),
        case("s_bfe_u32 s8, s0, s1", |x| {
            nonzero(field(x.a(), x.s[1] % 32, x.s[1] >> 16 & 0x7f, false) as u32)
        }),
        case("s_bfe_i32 s8, s0, s1", |x| {
            nonzero(field(x.i(), x.s[1] % 32, (x.s[1] >> 16 & 0x7f).min(32), true) as u32)
        }),
        case("s_bfe_u64 s[8:9], s[0:1], s2", |x| {
            wide_nonzero(field(i128::from(x.w()), x.s[2] % 64, x.s[2] >> 16 & 0x7f, false) as u64)
        }),
        case("s_bfe_i64 s[8:9], s[0:1], s2", |x| {
            wide_nonzero(field(i128::from(x.w() as i64), x.s[2] % 64, x.s[2] >> 16 & 0x7f, true) as u64)
        }),
        case("s_bitcmp0_b32 s0, s1", |x| flag(x.a() >> (x.b() % 32) & 1 == 0)),
        case("s_bitcmp1_b32 s0, s1", |x| flag(x.a() >> (x.b() % 32) & 1 == 1)),
        case("s_bitcmp0_b64 s[0:1], s2", |x| flag(u128::from(x.w()) >> (x.s[2] % 64) & 1 == 0)),
        case("s_bitcmp1_b64 s[0:1], s2", |x| flag(u128::from(x.w()) >> (x.s[2] % 64) & 1 == 1)),
        case("s_cmp_eq_u64 s[0:1], s[2:3]", |x| flag(x.w() == x.x())),
        case("s_cmp_lg_u64 s[0:1], s[2:3]", |x| flag(x.w() != x.x())),
        case("s_cmp_eq_u64 s[0:1], s[0:1]", |_| flag(true)),
        case("s_bitset0_b32 s8, s0", |x| only(i128::from(x.old as u32) & !(1 << (x.a() % 32)))),
        case("s_bitset1_b32 s8, s0", |x| only(i128::from(x.old as u32) | 1 << (x.a() % 32))),
        case("s_bitset0_b64 s[8:9], s0", |x| wide(x.old & !(1 << (x.s[0] % 64)))),
        case("s_bitset1_b64 s[8:9], s0", |x| wide(x.old | 1 << (x.s[0] % 64))),
    ]
}

fn single() -> Vec<Case> {
    vec![
        case("s_mov_b32 s8, s0", |x| only(x.a())),
        case("s_mov_b32 s8, 0xdeadbeef", |_| only(0xdead_beef)),
        case("s_mov_b64 s[8:9], s[0:1]", |x| wide(x.w())),
        case("s_mov_b64 s[8:9], -5", |_| wide(-5i64 as u64)),
        case("s_mov_b64 s[8:9], exec", |x| wide(x.exec)),
        case("s_mov_b64 exec, s[0:1]", |x| Out { exec: Some(x.w()), ..Out::default() }),
        case("s_mov_b32 exec_lo, s0", |x| Out {
            exec: Some(x.exec & !0xffff_ffff | u64::from(x.s[0])),
            ..Out::default()
        }),
        case("s_mov_b32 s8, src_shared_base", |_| only(1 << 16)),
        case("s_mov_b64 s[8:9], src_private_base", |_| wide(2 << 48)),
        case("s_cmov_b32 s8, s0", |x| only(if x.scc { x.a() } else { i128::from(x.old as u32) })),
        case("s_cmov_b64 s[8:9], s[0:1]", |x| wide(if x.scc { x.w() } else { x.old })),
        case("s_not_b32 s8, s0", |x| nonzero(u32::MAX - x.s[0])),
        case("s_not_b64 s[8:9], s[0:1]", |x| wide_nonzero(u64::MAX - x.w())),
        case("s_brev_b32 s8, s0", |x| only((0..32).map(|i| (x.a() >> i & 1) << (31 - i)).sum())),
        case("s_brev_b64 s[8:9], s[0:1]", |x| wide((0..64).map(|i| (x.w() >> i & 1) << (63 - i)).sum())),
        case("s_bcnt0_i32_b32 s8, s0", |x| nonzero((0..32).filter(|i| x.s[0] >> i & 1 == 0).count() as u32)),
        case("s_bcnt0_i32_b64 s8, s[0:1]", |x| {
            nonzero((0..64).filter(|i| x.w() >> i & 1 == 0).count() as u32)
        }),
        case("s_bcnt1_i32_b32 s8, s0", |x| nonzero((0..32).filter(|i| x.s[0] >> i & 1 == 1).count() as u32)),
        case("s_bcnt1_i32_b64 s8, s[0:1]", |x| {
            nonzero((0..64).filter(|i| x.w() >> i & 1 == 1).count() as u32)
        }),
        case("s_ff0_i32_b32 s8, s0", |x| only(first(32, u64::from(x.s[0]), 0))),
        case("s_ff0_i32_b64 s8, s[0:1]", |x| only(first(64, x.w(), 0))),
        case("s_ff1_i32_b32 s8, s0", |x| only(first(32, u64::from(x.s[0]), 1))),
        case("s_ff1_i32_b64 s8, s[0:1]", |x| only(first(64, x.w(), 1))),
        case("s_flbit_i32_b32 s8, s0", |x| only(last_differing(32, u64::from(x.s[0]), 0))),
        case("s_flbit_i32_b64 s8, s[0:1]", |x| only(last_differing(64, x.w(), 0))),
        case("s_flbit_i32 s8, s0", |x| only(last_differing(32, u64::from(x.s[0]), u64::from(x.s[0] >> 31)))),
        case("s_flbit_i32_i64 s8, s[0:1]", |x| only(last_differing(64, x.w(), x.w() >> 63))),
        case("s_sext_i32_i8 s8, s0", |x| only(field(x.a(), 0, 8, true))),
        case("s_sext_i32_i16 s8, s0", |x| only(field(x.a(), 0, 16, true))),
        case("s_andn1_wrexec_b64 s[8:9], s[0:1]", |x| {
            let exec = bitwise(64, x.exec, x.w(), |a, b| a && !b);
            Out { exec: Some(exec), ..wide_nonzero(exec) }
        }),
        case("s_andn2_wrexec_b64 s[8:9], s[0:1]", |x| {
            let exec = bitwise(64, x.w(), x.exec, |a, b| a && !b);
            Out { exec: Some(exec), ..wide_nonzero(exec) }
        }),
    ]
}

#[test]
fn scalar_instructions_do_what_the_formulas_say() {
    let mut noise = Noise(43);
    let mut bench = Bench::new(&mut noise, Arch::Gfx90a);
    for case in cases() {
        for _ in 0..400 {
            bench.renew(&mut noise);
            check(&case, &mut bench);
        }
    }
}

fn check(case: &Case, bench: &mut Bench) {
    let asm = &case.asm;
    let before = bench.scalars();
    let s = |number: usize| before.scalar[PLACE.scalar + number];
    let old = u64::from(s(8)) | u64::from(s(9)) << 32;
    let input = In { s: std::array::from_fn(s), scc: before.scc, exec: before.exec, old };
    let out = (case.formula)(&input);
    bench.step(asm);
    let after = bench.scalars();
    let got = u64::from(after.scalar[PLACE.scalar + 8]) | u64::from(after.scalar[PLACE.scalar + 9]) << 32;
    let expected = match (out.narrow, out.wide) {
        (Some(narrow), _) => old & !0xffff_ffff | u64::from(narrow),
        (_, wide) => wide.unwrap_or(old),
    };
    assert_eq!(got, expected, "{asm}: {input:x?}");
    assert_eq!(after.scc, out.scc.unwrap_or(before.scc), "SCC of {asm}: {input:x?}");
    assert_eq!(after.exec, out.exec.unwrap_or(before.exec), "EXEC of {asm}: {input:x?}");
    assert_eq!(after.vcc, before.vcc, "{asm}");
    for (number, (old, new)) in before.scalar.iter().zip(&after.scalar).enumerate() {
        let own = number == PLACE.scalar + 8 || number == PLACE.scalar + 9;
        assert!(own || old == new, "{asm} changes register {number}");
    }
}
