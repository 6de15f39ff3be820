//! Vector instructions: a formula for one lane.

use crate::assembled;
use crate::bench::{Bench, LANES_OF_TEST, Noise, PLACE};

/// What a lane has: v0 to v7, and its bit of VCC.
#[derive(Debug)]
pub(crate) struct In {
    v: [u32; 8],
    vcc: bool,
    lane: u32,
}

impl In {
    fn a(&self) -> u32 {
        self.v[0]
    }
    fn b(&self) -> u32 {
        self.v[1]
    }
    fn c(&self) -> u32 {
        self.v[2]
    }
    /// v[2n:2n+1].
    fn w(&self, n: usize) -> u64 {
        u64::from(self.v[2 * n]) + (u64::from(self.v[2 * n + 1]) << 32)
    }
    fn f(&self, n: usize) -> f32 {
        f32::from_bits(self.v[n])
    }
    fn d(&self, n: usize) -> f64 {
        f64::from_bits(self.w(n))
    }
}

/// What a lane gets: v8 and the register after it, and a bit of VCC or s[20:21].
#[derive(Debug, Default)]
pub(crate) struct Out {
    v: Vec<u32>,
    bit: Option<bool>,
}

fn one(x: u32) -> Out {
    Out { v: vec![x], bit: None }
}
fn two(x: u64) -> Out {
    Out { v: vec![x as u32, (x >> 32) as u32], bit: None }
}
fn single(x: f32) -> Out {
    one(x.to_bits())
}
fn double(x: f64) -> Out {
    two(x.to_bits())
}
fn bit(x: bool) -> Out {
    Out { v: vec![], bit: Some(x) }
}
fn with_bit(x: u128, width: u32, negative: bool) -> Out {
    let carry = negative || x >> width != 0;
    let v = if width == 32 { one(x as u32).v } else { two(x as u64).v };
    Out { v, bit: Some(carry) }
}

pub(crate) struct Case {
    pub(crate) asm: String,
    formula: Box<dyn Fn(&In) -> Out>,
}

fn case(asm: &str, formula: impl Fn(&In) -> Out + 'static) -> Case {
    Case { asm: asm.to_owned(), formula: Box::new(formula) }
}

/// Exact arithmetic rounded once, by way of 64-bit floats where they are exact.
fn wide(x: &In, f: fn(f64, f64) -> f64) -> Out {
    single(f(f64::from(x.f(0)), f64::from(x.f(1))) as f32)
}

fn signed24(x: u32) -> i128 {
    let low = i128::from(x & 0xff_ffff);
    if low >= 1 << 23 { low - (1 << 24) } else { low }
}

#[allow(
    clippy::double_comparisons,
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    reason = "as the documents define them"
)]
fn compare<T: PartialOrd>(name: &str, a: T, b: T) -> bool {
    match name {
        "f" => false,
        "lt" => a < b,
        "eq" => a == b,
        "le" => a <= b,
        "gt" => a > b,
        "lg" => a < b || a > b,
        "ge" => a >= b,
        "o" => a.partial_cmp(&b).is_some(),
        "u" => a.partial_cmp(&b).is_none(),
        "ne" | "neq" => !(a == b),
        "nge" => !(a >= b),
        "nlg" => !(a < b || a > b),
        "ngt" => !(a > b),
        "nle" => !(a <= b),
        "nlt" => !(a < b),
        _ => true,
    }
}

/// All comparisons, by name.
fn comparisons() -> Vec<Case> {
    let integers = ["f", "lt", "eq", "le", "gt", "ne", "ge", "t"];
    let floats =
        ["f", "lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"];
    let mut cases = Vec::new();
    for family in ["i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"] {
        let names: &[&'static str] = if family.starts_with('f') { &floats } else { &integers };
        let operands = if family.ends_with("64") { "v[0:1], v[2:3]" } else { "v0, v1" };
        for &name in names {
            for (prefix, suffix, target) in
                [("v_cmp", "e32", "vcc"), ("v_cmp", "e64", "s[20:21]"), ("v_cmpx", "e32", "vcc")]
            {
                let asm = format!("{prefix}_{name}_{family}_{suffix} {target}, {operands}");
                cases.push(case(&asm, move |x| {
                    bit(match family {
                        "i16" => compare(name, x.a() as i16, x.b() as i16),
                        "u16" => compare(name, x.a() as u16, x.b() as u16),
                        "i32" => compare(name, x.a() as i32, x.b() as i32),
                        "u32" => compare(name, x.a(), x.b()),
                        "i64" => compare(name, x.w(0) as i64, x.w(1) as i64),
                        "u64" => compare(name, x.w(0), x.w(1)),
                        "f32" => compare(name, x.f(0), x.f(1)),
                        _ => compare(name, x.d(0), x.d(1)),
                    })
                }));
            }
        }
    }
    cases
}

/// Classes of V_CMP_CLASS by comparison with limits, for either width.
fn class(bits: u64, exponent_bits: u32, fraction_bits: u32) -> u32 {
    let fraction = bits & ((1 << fraction_bits) - 1);
    let exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    let negative = bits >> (fraction_bits + exponent_bits) == 1;
    let of_sign = |positive: u32, below: u32| 1 << if negative { below } else { positive };
    match (exponent, fraction) {
        (e, f) if e == (1 << exponent_bits) - 1 && f != 0 => 1 << (f >> (fraction_bits - 1)),
        (e, _) if e == (1 << exponent_bits) - 1 => of_sign(9, 2),
        (0, 0) => of_sign(6, 5),
        (0, _) => of_sign(7, 4),
        _ => of_sign(8, 3),
    }
}

/// The smaller or larger of two, as the documents have it.
fn extreme(x: &In, smaller: bool) -> Out {
    let (a, b) = (x.f(0), x.f(1));
    let signalling = |v: u32| f32::from_bits(v).is_nan() && v & 0x40_0000 == 0;
    if signalling(x.a()) {
        return one(x.a() | 0x40_0000);
    }
    if signalling(x.b()) {
        return one(x.b() | 0x40_0000);
    }
    // Order by sign and magnitude, so that -0 is below +0.
    let key = |v: u32| if v >> 31 == 1 { -i64::from(v & 0x7fff_ffff) - 1 } else { i64::from(v) };
    match (a.is_nan(), b.is_nan()) {
        (true, false) => one(x.b()),
        (_, true) => one(x.a()),
        _ if (key(x.a()) <= key(x.b())) == smaller => one(x.a()),
        _ => one(x.b()),
    }
}

fn middle<T: PartialOrd + Copy>(mut three: [T; 3]) -> T {
    three.sort_by(|a, b| a.partial_cmp(b).unwrap());
    three[1]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = comparisons();
    all.extend(integers());
    all.extend(halves());
    all.extend(floats());
    all.extend(doubles());
    all.extend(moves());
    all
}

fn integers() -> Vec<Case> {
    let n = |x: u32| i128::from(x);
    let s = |x: u32| i128::from(x as i32);
    vec![
        case("v_add_u32_e32 v8, v0, v1", move |x| one((n(x.a()) + n(x.b())) as u32)),
        case("v_sub_u32_e32 v8, v0, v1", move |x| one((n(x.a()) - n(x.b())) as u32)),
        case("v_subrev_u32_e32 v8, v0, v1", move |x| one((n(x.b()) - n(x.a())) as u32)),
        case("v_add_u32_e64 v8, v0, v1", move |x| one((n(x.a()) + n(x.b())) as u32)),
        case("v_add_co_u32_e32 v8, vcc, v0, v1", |x| {
            with_bit(u128::from(x.a()) + u128::from(x.b()), 32, false)
        }),
        case("v_add_co_u32_e64 v8, s[20:21], v0, v1", |x| {
            with_bit(u128::from(x.a()) + u128::from(x.b()), 32, false)
        }),
        case("v_addc_co_u32_e32 v8, vcc, v0, v1, vcc", |x| {
            with_bit(u128::from(x.a()) + u128::from(x.b()) + u128::from(x.vcc), 32, false)
        }),
        case("v_addc_co_u32_e64 v8, s[20:21], v0, v1, vcc", |x| {
            with_bit(u128::from(x.a()) + u128::from(x.b()) + u128::from(x.vcc), 32, false)
        }),
        case("v_sub_co_u32_e32 v8, vcc, v0, v1", |x| {
            with_bit(u128::from(x.a().wrapping_sub(x.b())), 32, x.a() < x.b())
        }),
        case("v_subrev_co_u32_e32 v8, vcc, v0, v1", |x| {
            with_bit(u128::from(x.b().wrapping_sub(x.a())), 32, x.b() < x.a())
        }),
        case("v_subb_co_u32_e32 v8, vcc, v0, v1, vcc", move |x| {
            let exact = n(x.a()) - n(x.b()) - i128::from(x.vcc);
            with_bit(u128::from(exact as u32), 32, exact < 0)
        }),
        case("v_subbrev_co_u32_e32 v8, vcc, v0, v1, vcc", move |x| {
            let exact = n(x.b()) - n(x.a()) - i128::from(x.vcc);
            with_bit(u128::from(exact as u32), 32, exact < 0)
        }),
        case("v_mul_i32_i24_e32 v8, v0, v1", |x| one((signed24(x.a()) * signed24(x.b())) as u32)),
        case("v_mul_hi_i32_i24_e32 v8, v0, v1", |x| one((signed24(x.a()) * signed24(x.b()) >> 32) as u32)),
        case("v_mul_u32_u24_e32 v8, v0, v1", move |x| {
            one((n(x.a() % (1 << 24)) * n(x.b() % (1 << 24))) as u32)
        }),
        case("v_mul_hi_u32_u24_e32 v8, v0, v1", move |x| {
            one((n(x.a() % (1 << 24)) * n(x.b() % (1 << 24)) >> 32) as u32)
        }),
        case("v_mul_lo_u32 v8, v0, v1", move |x| one((n(x.a()) * n(x.b())) as u32)),
        case("v_mul_hi_u32 v8, v0, v1", move |x| one((n(x.a()) * n(x.b()) >> 32) as u32)),
        case("v_mul_hi_i32 v8, v0, v1", move |x| one((s(x.a()) * s(x.b()) >> 32) as u32)),
        case("v_min_i32_e32 v8, v0, v1", move |x| one(s(x.a()).min(s(x.b())) as u32)),
        case("v_max_i32_e32 v8, v0, v1", move |x| one(s(x.a()).max(s(x.b())) as u32)),
        case("v_min_u32_e32 v8, v0, v1", move |x| one(n(x.a()).min(n(x.b())) as u32)),
        case("v_max_u32_e32 v8, v0, v1", move |x| one(n(x.a()).max(n(x.b())) as u32)),
        case("v_lshrrev_b32_e32 v8, v0, v1", move |x| one((n(x.b()) >> (x.a() % 32)) as u32)),
        case("v_ashrrev_i32_e32 v8, v0, v1", move |x| one((s(x.b()) >> (x.a() % 32)) as u32)),
        case("v_lshlrev_b32_e32 v8, v0, v1", move |x| one((n(x.b()) << (x.a() % 32)) as u32)),
        case("v_and_b32_e32 v8, v0, v1", |x| one(x.a() & x.b())),
        case("v_or_b32_e32 v8, v0, v1", |x| one(!(!x.a() & !x.b()))),
        case("v_xor_b32_e32 v8, v0, v1", |x| one((x.a() | x.b()) & !(x.a() & x.b()))),
        case("v_xnor_b32_e32 v8, v0, v1", |x| one(!((x.a() | x.b()) & !(x.a() & x.b())))),
        case("v_not_b32_e32 v8, v0", |x| one(u32::MAX - x.a())),
        case("v_bfrev_b32_e32 v8, v0", |x| one((0..32).map(|i| (x.a() >> i & 1) << (31 - i)).sum())),
        case("v_ffbh_u32_e32 v8, v0", |x| {
            one((0..32).find(|i| x.a() >> (31 - i) & 1 == 1).unwrap_or(u32::MAX))
        }),
        case("v_ffbl_b32_e32 v8, v0", |x| one((0..32).find(|i| x.a() >> i & 1 == 1).unwrap_or(u32::MAX))),
        case("v_ffbh_i32_e32 v8, v0", |x| {
            one((1..32).find(|i| x.a() >> (31 - i) & 1 != x.a() >> 31).unwrap_or(u32::MAX))
        }),
        case("v_bfm_b32 v8, v0, v1", move |x| one((((1i128 << (x.a() % 32)) - 1) << (x.b() % 32)) as u32)),
        case("v_bcnt_u32_b32 v8, v0, v1", |x| {
            one((0..32).map(|i| x.a() >> i & 1).sum::<u32>().wrapping_add(x.b()))
        }),
        case("v_mbcnt_lo_u32_b32 v8, v0, v1", |x| {
            one((0..x.lane.min(32)).map(|i| x.a() >> i & 1).sum::<u32>().wrapping_add(x.b()))
        }),
        case("v_mbcnt_hi_u32_b32 v8, v0, v1", |x| {
            one((32..x.lane.max(32)).map(|i| x.a() >> (i - 32) & 1).sum::<u32>().wrapping_add(x.b()))
        }),
        case("v_mad_i32_i24 v8, v0, v1, v2", move |x| {
            one((signed24(x.a()) * signed24(x.b()) + n(x.c())) as u32)
        }),
        case("v_mad_u32_u24 v8, v0, v1, v2", move |x| {
            one((n(x.a() % (1 << 24)) * n(x.b() % (1 << 24)) + n(x.c())) as u32)
        }),
        case("v_bfe_u32 v8, v0, v1, v2", move |x| {
            one((n(x.a()) >> (x.b() % 32) & ((1i128 << (x.c() % 32)) - 1)) as u32)
        }),
        case("v_bfe_i32 v8, v0, v1, v2", move |x| {
            let width = x.c() % 32;
            let field = s(x.a()) >> (x.b() % 32) & ((1i128 << width) - 1);
            let negative = width > 0 && field >> (width - 1) & 1 == 1;
            one((field - if negative { 1i128 << width } else { 0 }) as u32)
        }),
        case("v_bfi_b32 v8, v0, v1, v2", |x| {
            one((0..32).map(|i| (if x.a() >> i & 1 == 1 { x.b() } else { x.c() } >> i & 1) << i).sum())
        }),
        case("v_alignbit_b32 v8, v0, v1, v2", move |x| {
            one(((n(x.a()) * (1 << 32) + n(x.b())) >> (x.c() % 32)) as u32)
        }),
        case("v_alignbyte_b32 v8, v0, v1, v2", move |x| {
            one(((n(x.a()) * (1 << 32) + n(x.b())) >> (8 * (x.c() % 4))) as u32)
        }),
        case("v_min3_i32 v8, v0, v1, v2", move |x| {
            one([x.a(), x.b(), x.c()].map(s).into_iter().min().unwrap() as u32)
        }),
        case("v_min3_u32 v8, v0, v1, v2", move |x| one([x.a(), x.b(), x.c()].into_iter().min().unwrap())),
        case("v_max3_i32 v8, v0, v1, v2", move |x| {
            one([x.a(), x.b(), x.c()].map(s).into_iter().max().unwrap() as u32)
        }),
        case("v_max3_u32 v8, v0, v1, v2", move |x| one([x.a(), x.b(), x.c()].into_iter().max().unwrap())),
        case("v_med3_i32 v8, v0, v1, v2", move |x| one(middle([x.a(), x.b(), x.c()].map(s)) as u32)),
        case("v_med3_u32 v8, v0, v1, v2", |x| one(middle([x.a(), x.b(), x.c()]))),
        case("v_sad_u32 v8, v0, v1, v2", move |x| one(((n(x.a()) - n(x.b())).abs() + n(x.c())) as u32)),
        case("v_perm_b32 v8, v0, v1, v2", |x| {
            let bytes = [x.b().to_le_bytes(), x.a().to_le_bytes()].concat();
            let chosen = x.c().to_le_bytes().map(|selector| match selector {
                0..=7 => bytes[usize::from(selector)],
                8..=11 => (bytes[2 * usize::from(selector - 8) + 1] as i8 >> 7) as u8,
                12 => 0,
                _ => 255,
            });
            one(u32::from_le_bytes(chosen))
        }),
        case("v_xad_u32 v8, v0, v1, v2", move |x| one((n(x.a() ^ x.b()) + n(x.c())) as u32)),
        case("v_lshl_add_u32 v8, v0, v1, v2", move |x| one(((n(x.a()) << (x.b() % 32)) + n(x.c())) as u32)),
        case("v_add_lshl_u32 v8, v0, v1, v2", move |x| one(((n(x.a()) + n(x.b())) << (x.c() % 32)) as u32)),
        case("v_add3_u32 v8, v0, v1, v2", move |x| one((n(x.a()) + n(x.b()) + n(x.c())) as u32)),
        case("v_lshl_or_b32 v8, v0, v1, v2", move |x| one((n(x.a()) << (x.b() % 32)) as u32 | x.c())),
        case("v_and_or_b32 v8, v0, v1, v2", |x| one(!(!(x.a() & x.b()) & !x.c()))),
        case("v_or3_b32 v8, v0, v1, v2", |x| one(!(!x.a() & !x.b() & !x.c()))),
        case("v_mad_u64_u32 v[8:9], s[20:21], v0, v1, v[2:3]", |x| {
            with_bit(u128::from(x.a()) * u128::from(x.b()) + u128::from(x.w(1)), 64, false)
        }),
        case("v_mad_i64_i32 v[8:9], s[20:21], v0, v1, v[2:3]", move |x| {
            let exact = s(x.a()) * s(x.b()) + i128::from(x.w(1) as i64);
            Out { bit: Some(i64::try_from(exact).is_err()), ..two(exact as u64) }
        }),
        case("v_lshlrev_b64 v[8:9], v4, v[0:1]", |x| two((u128::from(x.w(0)) << (x.v[4] % 64)) as u64)),
        case("v_lshrrev_b64 v[8:9], v4, v[0:1]", |x| two((u128::from(x.w(0)) >> (x.v[4] % 64)) as u64)),
        case(
            "v_ashrrev_i64 v[8:9], v4, v[0:1]",
            |x| two((i128::from(x.w(0) as i64) >> (x.v[4] % 64)) as u64),
        ),
        case("v_lshl_add_u64 v[8:9], v[0:1], v4, v[2:3]", |x| {
            two(((u128::from(x.w(0)) << (x.v[4] % 8)) + u128::from(x.w(1))) as u64)
        }),
    ]
}

/// Of 16 bits: the upper half becomes zero.
fn halves() -> Vec<Case> {
    fn u(x: u32) -> i64 {
        i64::from(x as u16)
    }
    fn i(x: u32) -> i64 {
        i64::from(x as i16)
    }
    fn half(x: i64) -> Out {
        one(u32::from(x as u16))
    }
    vec![
        case("v_add_u16_e32 v8, v0, v1", |x| half(u(x.a()) + u(x.b()))),
        case("v_sub_u16_e32 v8, v0, v1", |x| half(u(x.a()) - u(x.b()))),
        case("v_subrev_u16_e32 v8, v0, v1", |x| half(u(x.b()) - u(x.a()))),
        case("v_mul_lo_u16_e32 v8, v0, v1", |x| half(u(x.a()) * u(x.b()))),
        case("v_lshlrev_b16_e32 v8, v0, v1", |x| half(u(x.b()) << (x.a() % 16))),
        case("v_lshrrev_b16_e32 v8, v0, v1", |x| half(u(x.b()) >> (x.a() % 16))),
        case("v_ashrrev_i16_e32 v8, v0, v1", |x| half(i(x.b()) >> (x.a() % 16))),
        case("v_max_u16_e32 v8, v0, v1", |x| half(u(x.a()).max(u(x.b())))),
        case("v_max_i16_e32 v8, v0, v1", |x| half(i(x.a()).max(i(x.b())))),
        case("v_min_u16_e32 v8, v0, v1", |x| half(u(x.a()).min(u(x.b())))),
        case("v_min_i16_e32 v8, v0, v1", |x| half(i(x.a()).min(i(x.b())))),
        case("v_mad_legacy_u16 v8, v0, v1, v2", |x| half(u(x.a()) * u(x.b()) + u(x.c()))),
        case("v_mad_legacy_i16 v8, v0, v1, v2", |x| half(i(x.a()) * i(x.b()) + i(x.c()))),
        case("v_mad_u32_u16 v8, v0, v1, v2", |x| one((u(x.a()) * u(x.b()) + i64::from(x.c())) as u32)),
        case("v_mad_i32_i16 v8, v0, v1, v2", |x| one((i(x.a()) * i(x.b()) + i64::from(x.c())) as u32)),
    ]
}

/// Products and sums of two 32-bit floats are rounded twice by way of 64 bits, which is harmless: 53 bits are more than
/// twice 24 plus two.
fn floats() -> Vec<Case> {
    let class_of = |bits: u32| class(u64::from(bits), 8, 23);
    vec![
        case("v_add_f32_e32 v8, v0, v1", |x| wide(x, |a, b| a + b)),
        case("v_sub_f32_e32 v8, v0, v1", |x| wide(x, |a, b| a - b)),
        case("v_subrev_f32_e32 v8, v0, v1", |x| wide(x, |a, b| b - a)),
        case("v_mul_f32_e32 v8, v0, v1", |x| wide(x, |a, b| a * b)),
        case("v_mul_f32_e64 v8, -v0, |v1|", |x| wide(x, |a, b| -a * b.abs())),
        case("v_add_f32_e64 v8, v0, v1 clamp", |x| {
            wide(x, |a, b| if a + b > 0.0 { (a + b).min(1.0) } else { 0.0 })
        }),
        case("v_mul_f32_e64 v8, v0, v1 mul:2", |x| {
            single((f64::from(x.f(0)) * f64::from(x.f(1))) as f32 * 2.0)
        }),
        case("v_mul_f32_e64 v8, v0, v1 div:2", |x| {
            single((f64::from(x.f(0)) * f64::from(x.f(1))) as f32 / 2.0)
        }),
        case("v_min_f32_e32 v8, v0, v1", |x| extreme(x, true)),
        case("v_max_f32_e32 v8, v0, v1", |x| extreme(x, false)),
        case("v_fma_f32 v8, v0, v1, v2", |x| single(x.f(0).mul_add(x.f(1), x.f(2)))),
        case("v_mad_f32 v8, v0, v1, v2", |x| {
            let zero = |x: f32| if x.abs() < f32::MIN_POSITIVE { x * 0.0 } else { x };
            let product = zero(f32::from_bits(x.a()).pipe(zero) * zero(x.f(1)));
            single(zero(product + zero(x.f(2))))
        }),
        case("v_min3_f32 v8, v0, v1, v2", |x| {
            let quiet = [x.f(0), x.f(1), x.f(2)].map(|x| if x.is_nan() { 1.0 } else { x });
            if quiet.iter().zip(&x.v).any(|(x, v)| x.to_bits() != *v) {
                return Out::default();
            }
            single(quiet.into_iter().min_by(f32::total_cmp).unwrap())
        }),
        case("v_max3_f32 v8, v0, v1, v2", |x| {
            if [x.f(0), x.f(1), x.f(2)].iter().any(|x| x.is_nan()) {
                return Out::default();
            }
            single([x.f(0), x.f(1), x.f(2)].into_iter().max_by(f32::total_cmp).unwrap())
        }),
        case("v_med3_f32 v8, v0, v1, v2", |x| {
            let mut three = [x.f(0), x.f(1), x.f(2)];
            if three.iter().any(|x| x.is_nan()) {
                return Out::default();
            }
            three.sort_by(f32::total_cmp);
            // Zeroes of both signs are equal to this instruction.
            if three[1] == 0.0 { Out::default() } else { single(three[1]) }
        }),
        case("v_cvt_f32_i32_e32 v8, v0", |x| single(f64::from(x.a() as i32) as f32)),
        case("v_cvt_f32_u32_e32 v8, v0", |x| single(f64::from(x.a()) as f32)),
        case("v_cvt_u32_f32_e32 v8, v0", |x| one(saturated(x.f(0).trunc(), 0.0, 4_294_967_295.0) as u32)),
        case("v_cvt_i32_f32_e32 v8, v0", |x| {
            one(saturated(x.f(0).trunc(), -2_147_483_648.0, 2_147_483_647.0) as i32 as u32)
        }),
        case("v_cvt_flr_i32_f32_e32 v8, v0", |x| {
            one(saturated(x.f(0).floor(), -2_147_483_648.0, 2_147_483_647.0) as i32 as u32)
        }),
        case("v_cvt_rpi_i32_f32_e32 v8, v0", |x| {
            let nearest = (f64::from(x.f(0)) + 0.5).floor().clamp(-2_147_483_648.0, 2_147_483_647.0);
            one(if x.f(0).is_nan() { 0 } else { nearest as i32 as u32 })
        }),
        case("v_cvt_f32_ubyte0_e32 v8, v0", |x| single(f32::from(x.a().to_le_bytes()[0]))),
        case("v_cvt_f32_ubyte1_e32 v8, v0", |x| single(f32::from(x.a().to_le_bytes()[1]))),
        case("v_cvt_f32_ubyte2_e32 v8, v0", |x| single(f32::from(x.a().to_le_bytes()[2]))),
        case("v_cvt_f32_ubyte3_e32 v8, v0", |x| single(f32::from(x.a().to_le_bytes()[3]))),
        case("v_cvt_f32_f16_e32 v8, v0", |x| single(half_value(x.a()))),
        case("v_cvt_f16_f32_e32 v8, v0", |x| {
            if x.f(0).is_nan() { Out::default() } else { one(nearest_half(x.f(0))) }
        }),
        case("v_fract_f32_e32 v8, v0", |x| {
            let exact = f64::from(x.f(0)) - f64::from(x.f(0)).floor();
            single(if exact.is_nan() { f32::NAN } else { (exact as f32).min(1.0 - f32::EPSILON / 2.0) })
        }),
        case("v_trunc_f32_e32 v8, v0", |x| single(f64::from(x.f(0)).trunc() as f32)),
        case("v_ceil_f32_e32 v8, v0", |x| single(f64::from(x.f(0)).ceil() as f32)),
        case("v_rndne_f32_e32 v8, v0", |x| single(f64::from(x.f(0)).round_ties_even() as f32)),
        case("v_floor_f32_e32 v8, v0", |x| single(f64::from(x.f(0)).floor() as f32)),
        case("v_exp_f32_e32 v8, v0", |x| near(x, |a| a.exp2())),
        case("v_log_f32_e32 v8, v0", |x| near(x, |a| a.log2())),
        case("v_rcp_f32_e32 v8, v0", |x| near(x, |a| 1.0 / a)),
        case("v_rcp_iflag_f32_e32 v8, v0", |x| near(x, |a| 1.0 / a)),
        case("v_rsq_f32_e32 v8, v0", |x| near(x, |a| 1.0 / a.sqrt())),
        case("v_sqrt_f32_e32 v8, v0", |x| near(x, f64::sqrt)),
        case("v_frexp_mant_f32_e32 v8, v0", |x| match x.f(0) {
            a if a == 0.0 || !a.is_finite() => single(a),
            a => single((f64::from(a) / exponent(a)) as f32),
        }),
        case("v_frexp_exp_i32_f32_e32 v8, v0", |x| match x.f(0) {
            a if a == 0.0 || !a.is_finite() => one(0),
            a => one(exponent(a).log2() as i32 as u32),
        }),
        case("v_ldexp_f32 v8, v0, v1", |x| {
            let by = (x.b() as i32).clamp(-400, 400);
            single((f64::from(x.f(0)) * 2f64.powi(by)) as f32)
        }),
        case("v_cmp_class_f32_e32 vcc, v0, v1", move |x| bit(class_of(x.a()) & x.b() != 0)),
        case("v_div_scale_f32 v8, vcc, v0, v1, v0", |_| Out::default()),
        case("v_div_fmas_f32 v8, v0, v1, v2", |x| {
            if x.vcc { Out::default() } else { single(x.f(0).mul_add(x.f(1), x.f(2))) }
        }),
        case("v_div_fixup_f32 v8, v0, v1, v2", |x| {
            // Where the quotient is not that of the source, the division itself decides.
            let (denominator, numerator) = (f64::from(x.f(1)), f64::from(x.f(2)));
            let quotient = numerator / denominator;
            let special = quotient == 0.0 || !quotient.is_finite() || !denominator.is_normal();
            if special { single(quotient as f32) } else { Out::default() }
        }),
        case("v_pk_add_f32 v[8:9], v[0:1], v[2:3]", |x| pair(x.f(0) + x.f(2), x.f(1) + x.f(3))),
        case("v_pk_mul_f32 v[8:9], v[0:1], v[2:3]", |x| pair(x.f(0) * x.f(2), x.f(1) * x.f(3))),
        case("v_pk_mul_f32 v[8:9], v[0:1], v[2:3] op_sel_hi:[1,0]", |x| {
            pair(x.f(0) * x.f(2), x.f(1) * x.f(2))
        }),
        case("v_pk_add_f32 v[8:9], v[0:1], v[2:3] op_sel:[1,0] neg_lo:[0,1]", |x| {
            pair(x.f(1) - x.f(2), x.f(1) + x.f(3))
        }),
        case("v_pk_fma_f32 v[8:9], v[0:1], v[2:3], v[4:5]", |x| {
            pair(x.f(0).mul_add(x.f(2), x.f(4)), x.f(1).mul_add(x.f(3), x.f(5)))
        }),
        case("v_pk_mov_b32 v[8:9], v[0:1], v[2:3] op_sel:[1,0]", |x| Out {
            v: vec![x.v[1], x.v[2]],
            bit: None,
        }),
        case("v_pk_mov_b32 v[8:9], v[0:1], v[2:3] op_sel:[0,1]", |x| Out {
            v: vec![x.v[0], x.v[3]],
            bit: None,
        }),
    ]
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}
impl Pipe for f32 {}

fn pair(low: f32, high: f32) -> Out {
    Out { v: vec![low.to_bits(), high.to_bits()], bit: None }
}

fn saturated(x: f32, low: f64, high: f64) -> f64 {
    if x.is_nan() { 0.0 } else { f64::from(x).clamp(low, high) }
}

/// A function with the nearest result; denormals are neither taken nor given.
fn near(x: &In, f: impl Fn(f64) -> f64) -> Out {
    let zero = |x: f32| if x != 0.0 && x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x };
    single(zero(f(f64::from(zero(x.f(0)))) as f32))
}

/// The power of two above a float.
fn exponent(x: f32) -> f64 {
    let mut power = 2f64.powi(-149);
    while power <= f64::from(x.abs()) {
        power *= 2.0;
    }
    power
}

fn half_value(bits: u32) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 31, f64::from(bits & 1023));
    let magnitude = match exponent {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction / 1024.0 / 16384.0,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent as i32 - 15),
    };
    (magnitude * if bits >> 15 & 1 == 1 { -1.0 } else { 1.0 }) as f32
}

/// The nearest of all, to even between two.
fn nearest_half(x: f32) -> u32 {
    let distance = |bits: u32| match half_value(bits) {
        value if value.is_infinite() => (65536.0 - f64::from(x).abs()).abs(),
        value => (f64::from(value) - f64::from(x).abs()).abs(),
    };
    let sign = x.to_bits() >> 16 & 0x8000;
    if f64::from(x).abs() >= 65536.0 {
        return sign | 0x7c00;
    }
    // The last that is not above, and the first that is.
    let (mut below, mut above) = (0u32, 0x7c00u32);
    while above - below > 1 {
        let between = (below + above) / 2;
        let is_above = f64::from(half_value(between)) > f64::from(x).abs();
        *(if is_above { &mut above } else { &mut below }) = between;
    }
    match distance(below).partial_cmp(&distance(above)).unwrap() {
        std::cmp::Ordering::Less => sign | below,
        std::cmp::Ordering::Greater => sign | above,
        std::cmp::Ordering::Equal => sign | (below + below % 2),
    }
}

fn doubles() -> Vec<Case> {
    vec![
        case("v_add_f64 v[8:9], v[0:1], v[2:3]", |x| double(x.d(0) + x.d(1))),
        case("v_mul_f64 v[8:9], v[0:1], -v[2:3]", |x| double(x.d(0) * -x.d(1))),
        case("v_min_f64 v[8:9], v[0:1], v[2:3]", |x| number(x, x.d(0).min(x.d(1)))),
        case("v_max_f64 v[8:9], v[0:1], v[2:3]", |x| number(x, x.d(0).max(x.d(1)))),
        case("v_fma_f64 v[8:9], v[0:1], v[2:3], v[4:5]", |x| double(x.d(0).mul_add(x.d(1), x.d(2)))),
        case("v_ldexp_f64 v[8:9], v[0:1], v4", |x| {
            let by = (x.v[4] as i32).clamp(-2200, 2200);
            let third = 2f64.powi(by / 3);
            let result = x.d(0) * third * third * 2f64.powi(by - 2 * (by / 3));
            // The steps lose nothing unless the result is denormal.
            if x.d(0) != 0.0 && (result == 0.0 || result.is_subnormal()) {
                return Out::default();
            }
            double(result)
        }),
        case("v_cvt_i32_f64_e32 v8, v[0:1]", |x| {
            let value =
                if x.d(0).is_nan() { 0.0 } else { x.d(0).trunc().clamp(-2_147_483_648.0, 2_147_483_647.0) };
            one(value as i32 as u32)
        }),
        case("v_cvt_u32_f64_e32 v8, v[0:1]", |x| {
            let value = if x.d(0).is_nan() { 0.0 } else { x.d(0).trunc().clamp(0.0, 4_294_967_295.0) };
            one(value as u32)
        }),
        case("v_cvt_f64_i32_e32 v[8:9], v0", |x| double(f64::from(x.a() as i32))),
        case("v_cvt_f64_u32_e32 v[8:9], v0", |x| double(f64::from(x.a()))),
        case("v_cvt_f64_f32_e32 v[8:9], v0", |x| double(f64::from(x.f(0)))),
        case("v_cvt_f32_f64_e32 v8, v[0:1]", |x| single(x.d(0) as f32)),
        case("v_trunc_f64_e32 v[8:9], v[0:1]", |x| double(x.d(0).trunc())),
        case("v_ceil_f64_e32 v[8:9], v[0:1]", |x| double(x.d(0).ceil())),
        case("v_rndne_f64_e32 v[8:9], v[0:1]", |x| double(x.d(0).round_ties_even())),
        case("v_floor_f64_e32 v[8:9], v[0:1]", |x| double(x.d(0).floor())),
        case("v_rcp_f64_e32 v[8:9], v[0:1]", |x| double(1.0 / x.d(0))),
        case("v_rsq_f64_e32 v[8:9], v[0:1]", |x| double(1.0 / x.d(0).sqrt())),
        case("v_sqrt_f64_e32 v[8:9], v[0:1]", |x| double(x.d(0).sqrt())),
        case("v_frexp_mant_f64_e32 v[8:9], v[0:1]", |x| match x.d(0) {
            a if a == 0.0 || !a.is_finite() => double(a),
            a if !a.is_normal() => Out::default(),
            a => double(f64::from_bits(a.to_bits() & !(0x7ff << 52) | 0x3fe << 52)),
        }),
        case("v_frexp_exp_i32_f64_e32 v8, v[0:1]", |x| match x.d(0) {
            a if a == 0.0 || !a.is_finite() => one(0),
            a if !a.is_normal() => Out::default(),
            a => one(((a.to_bits() >> 52 & 0x7ff) as i32 - 1022) as u32),
        }),
        case("v_cmp_class_f64_e32 vcc, v[0:1], v4", |x| bit(class(x.w(0), 11, 52) & x.v[4] != 0)),
        case("v_div_scale_f64 v[8:9], vcc, v[0:1], v[2:3], v[0:1]", |_| Out::default()),
        case("v_div_fmas_f64 v[8:9], v[0:1], v[2:3], v[4:5]", |x| {
            if x.vcc { Out::default() } else { double(x.d(0).mul_add(x.d(1), x.d(2))) }
        }),
        case("v_div_fixup_f64 v[8:9], v[0:1], v[2:3], v[4:5]", |x| {
            let quotient = x.d(2) / x.d(1);
            let special = x.d(2) == 0.0 || x.d(1) == 0.0 || !x.d(1).is_finite() || !x.d(2).is_finite();
            if special { double(quotient) } else { Out::default() }
        }),
    ]
}

/// Where neither is a NaN nor both are zero.
fn number(x: &In, result: f64) -> Out {
    let zeroes = x.d(0) == 0.0 && x.d(1) == 0.0;
    if x.d(0).is_nan() || x.d(1).is_nan() || zeroes { Out::default() } else { double(result) }
}

fn moves() -> Vec<Case> {
    vec![
        case("v_nop", |_| Out::default()),
        case("v_mov_b32_e32 v8, v0", |x| one(x.a())),
        case("v_mov_b32_e32 v8, 0x12345678", |_| one(0x1234_5678)),
        case("v_mov_b32_e32 v8, -16", |_| one(0xffff_fff0)),
        case("v_mov_b32_e32 v8, 0.15915494", |_| one(0x3e22_f983)),
        case("v_mov_b64_e32 v[8:9], v[0:1]", |x| two(x.w(0))),
        case("v_mov_b64_e32 v[8:9], -1", |_| two(u64::MAX)),
        case("v_cndmask_b32_e32 v8, v0, v1, vcc", |x| one(if x.vcc { x.b() } else { x.a() })),
        case("v_cndmask_b32_e64 v8, v0, -v1, vcc", |x| one(if x.vcc { x.b() ^ 1 << 31 } else { x.a() })),
    ]
}

/// True if two results are the same; a NaN of a float is like any other of the same kind.
fn same(asm: &str, got: &[u32], expected: &[u32]) -> bool {
    if got == expected {
        return true;
    }
    let wide = |v: &[u32]| f64::from_bits(u64::from(v[0]) | u64::from(v[1]) << 32).is_nan();
    let to_double = asm.contains("f64") && got.len() == 2;
    let is_float = asm.contains("f32") || asm.contains("f64") || asm.contains("f16");
    is_float
        && if to_double {
            wide(got) && wide(expected)
        } else {
            got.iter()
                .zip(expected)
                .all(|(a, b)| a == b || (f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan()))
        }
}

#[test]
fn vector_instructions_do_what_the_formulas_say() {
    let mut noise = Noise(42);
    for case in cases() {
        for _ in 0..ROUNDS {
            check(&case, &mut noise);
        }
    }
}

const ROUNDS: usize = 24;

fn check(case: &Case, noise: &mut Noise) {
    let asm = &case.asm;
    let mut bench = Bench::new(noise, assembled::arch(asm));
    let before = bench.state();
    bench.step(asm);
    let after = bench.state();
    let mut bits = 0;
    let mut has_bit = false;
    for lane in 0..LANES_OF_TEST {
        let v = std::array::from_fn(|register| before.vector[PLACE.vector + register][lane]);
        let input = In { v, vcc: before.vcc >> lane & 1 == 1, lane: lane as u32 };
        let out = (case.formula)(&input);
        let active = before.exec >> lane & 1 == 1;
        if active {
            let got: Vec<_> = (0..out.v.len()).map(|n| after.vector[PLACE.vector + 8 + n][lane]).collect();
            assert!(same(asm, &got, &out.v), "{asm}: {input:x?} gives {got:x?}, expected {:x?}", out.v);
        } else {
            assert_eq!(after.vector[PLACE.vector + 8][lane], before.vector[PLACE.vector + 8][lane], "{asm}");
        }
        has_bit |= out.bit.is_some();
        bits |= u64::from(active && out.bit == Some(true)) << lane;
    }
    if has_bit {
        let pair =
            u64::from(after.scalar[PLACE.scalar + 20]) | u64::from(after.scalar[PLACE.scalar + 21]) << 32;
        let got = if asm.contains("s[20:21]") { pair } else { after.vcc };
        assert_eq!(got, bits, "{asm}");
        assert_eq!(after.exec, if asm.contains("cmpx") { bits } else { before.exec }, "{asm}");
    }
    for (number, (old, new)) in before.vector.iter().zip(&after.vector).enumerate() {
        let own = number == PLACE.vector + 8 || number == PLACE.vector + 9;
        assert!(own || old == new, "{asm} changes register {number}");
    }
}

/// A division as compilers write it: bit for bit what IEEE 754 says.
#[test]
fn divisions_round_once() {
    use gfx9::float::{double, flush, single};
    let mut noise = Noise(7);
    for _ in 0..400_000 {
        let (n, d) = (f32::from_bits(noise.next() as u32), f32::from_bits((noise.next() >> 20) as u32));
        let (scaled_d, _) = single::div_scale(d, d, n);
        let (scaled_n, back) = single::div_scale(n, d, n);
        let r = flush(1.0 / flush(scaled_d));
        let e = single::fma(-scaled_d, r, 1.0);
        let r = single::fma(e, r, r);
        let q = single::mul(scaled_n, r);
        let e = single::fma(-scaled_d, q, scaled_n);
        let q = single::fma(e, r, q);
        let e = single::fma(-scaled_d, q, scaled_n);
        let got = single::div_fixup(single::div_fmas(e, r, q, back), d, n);
        let expected = n / d;
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{n:e} / {d:e} = {expected:e}, not {got:e}");
    }
    for _ in 0..100_000 {
        let (n, d) = (f64::from_bits(noise.next()), f64::from_bits(noise.next()));
        let (scaled_d, _) = double::div_scale(d, d, n);
        let (scaled_n, back) = double::div_scale(n, d, n);
        let mut r = 1.0 / scaled_d;
        for _ in 0..2 {
            let e = double::fma(-scaled_d, r, 1.0);
            r = double::fma(r, e, r);
        }
        let q = double::mul(scaled_n, r);
        let e = double::fma(-scaled_d, q, scaled_n);
        let got = double::div_fixup(double::div_fmas(e, r, q, back), d, n);
        let expected = n / d;
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{n:e} / {d:e} = {expected:e}, not {got:e}");
    }
}
