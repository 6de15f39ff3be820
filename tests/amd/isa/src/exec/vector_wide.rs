//! Vectors of 64 bits: integers and floats.

use super::{Core, unsupported};
use crate::decode::{Inst, Src};
use crate::float::double as float;
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::LANES;

/// True if an instruction is done here.
pub(super) fn knows(op: Op) -> bool {
    matches!(
        op,
        V_FMAC_F64
            | V_CVT_I32_F64
            | V_CVT_F64_I32
            | V_CVT_F32_F64
            | V_CVT_F64_F32
            | V_CVT_U32_F64
            | V_CVT_F64_U32
            | V_TRUNC_F64
            | V_CEIL_F64
            | V_RNDNE_F64
            | V_FLOOR_F64
            | V_RCP_F64
            | V_RSQ_F64
            | V_SQRT_F64
            | V_FREXP_EXP_I32_F64
            | V_FREXP_MANT_F64
            | V_MOV_B64
            | V_FMA_F64
            | V_DIV_FIXUP_F64
            | V_DIV_SCALE_F64
            | V_DIV_FMAS_F64
            | V_MAD_U64_U32
            | V_MAD_I64_I32
            | V_LSHL_ADD_U64
            | V_ADD_F64
            | V_MUL_F64
            | V_MIN_F64
            | V_MAX_F64
            | V_LDEXP_F64
            | V_LSHLREV_B64
            | V_LSHRREV_B64
            | V_ASHRREV_I64
    )
}

fn of1(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x.is_nan() { float::quiet(x) } else { f(x) }
}

impl Core<'_> {
    /// A source as floats, with its modifiers. A literal is the upper half.
    pub(super) fn doubles(&self, inst: &Inst, index: usize) -> [f64; LANES] {
        let mut bits = self.wide_lanes(inst.src[index]);
        if inst.abs >> index & 1 == 1 {
            bits.iter_mut().for_each(|x| *x &= u64::MAX >> 1);
        }
        if inst.neg >> index & 1 == 1 {
            bits.iter_mut().for_each(|x| *x ^= 1 << 63);
        }
        bits.map(f64::from_bits)
    }

    fn put_doubles(&mut self, inst: &Inst, value: [f64; LANES]) {
        let factor = [1.0, 2.0, 4.0, 0.5][usize::from(inst.omod)];
        let value = value.map(|x| if inst.omod != 0 { float::mul(x, factor) } else { x });
        let value = value.map(|x| if inst.clamp { float::clamp(x) } else { x });
        self.put_wide(inst.dst, &value.map(f64::to_bits));
    }

    fn d1(&mut self, inst: &Inst, f: impl Fn(f64) -> f64) {
        let a = self.doubles(inst, 0);
        self.put_doubles(inst, a.map(f));
    }

    fn d2(&mut self, inst: &Inst, f: impl Fn(f64, f64) -> f64) {
        let (a, b) = (self.doubles(inst, 0), self.doubles(inst, 1));
        self.put_doubles(inst, std::array::from_fn(|lane| f(a[lane], b[lane])));
    }

    fn d3(&mut self, inst: &Inst, f: impl Fn(f64, f64, f64) -> f64) {
        let (a, b, c) = (self.doubles(inst, 0), self.doubles(inst, 1), self.doubles(inst, 2));
        self.put_doubles(inst, std::array::from_fn(|lane| f(a[lane], b[lane], c[lane])));
    }

    /// From 64 bits to 32.
    fn narrow(&mut self, inst: &Inst, f: impl Fn(f64) -> u32) {
        let a = self.doubles(inst, 0);
        self.put(inst.dst, &a.map(f));
    }

    /// From 32 bits to 64.
    fn widen(&mut self, inst: &Inst, f: impl Fn(u32) -> f64) {
        let a = self.modified(inst, 0);
        self.put_doubles(inst, a.map(f));
    }

    #[inline(always)]
    fn shift(&mut self, inst: &Inst, f: impl Fn(u32, u64) -> u64) {
        let (a, b) = (self.lanes(inst.src[0]), self.wide_lanes(inst.src[1]));
        let mut result = [0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane] & 63, b[lane]);
        }
        self.put_wide(inst.dst, &result);
    }

    /// A product of 32 bits each, plus 64 bits, with the carry.
    #[inline(always)]
    fn multiply_add(&mut self, inst: &Inst, f: impl Fn(u32, u32, u64) -> (u64, bool)) {
        let (a, b, c) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]), self.wide_lanes(inst.src[2]));
        let mut result = [0; LANES];
        let mut carries = 0;
        for lane in 0..LANES {
            let (value, carry) = f(a[lane], b[lane], c[lane]);
            result[lane] = value;
            carries |= u64::from(carry) << lane;
        }
        let carries = carries & self.wave.exec();
        self.put_wide(inst.dst, &result);
        self.set64(u16::from(inst.sdst), carries);
    }

    pub(super) fn wide(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        match op {
            V_MAD_U64_U32 => {
                self.multiply_add(inst, |a, b, c| (u64::from(a) * u64::from(b)).overflowing_add(c));
            }
            V_MAD_I64_I32 => self.multiply_add(inst, |a, b, c| {
                let (sum, overflow) = (i64::from(a as i32) * i64::from(b as i32)).overflowing_add(c as i64);
                (sum as u64, overflow)
            }),
            V_LSHLREV_B64 => self.shift(inst, |by, value| value << by),
            V_LSHRREV_B64 => self.shift(inst, |by, value| value >> by),
            V_ASHRREV_I64 => self.shift(inst, |by, value| (value as i64 >> by) as u64),
            V_LSHL_ADD_U64 => {
                let (a, by, c) =
                    (self.wide_lanes(inst.src[0]), self.lanes(inst.src[1]), self.wide_lanes(inst.src[2]));
                let mut result = [0; LANES];
                for lane in 0..LANES {
                    result[lane] = (a[lane] << (by[lane] & 7)).wrapping_add(c[lane]);
                }
                self.put_wide(inst.dst, &result);
            }
            V_MOV_B64 => {
                let value = self.wide_lanes(inst.src[0]);
                self.put_wide(inst.dst, &value);
            }
            _ if inst.src.iter().any(|src| src.code == 255) => {
                return unsupported(op, "a literal of 64-bit floats");
            }
            V_ADD_F64 => self.d2(inst, float::add),
            V_MUL_F64 => self.d2(inst, float::mul),
            V_MIN_F64 => self.d2(inst, float::min),
            V_MAX_F64 => self.d2(inst, float::max),
            V_FMA_F64 => self.d3(inst, float::fma),
            V_FMAC_F64 => {
                let mut with_result = *inst;
                with_result.src[2] = Src { code: inst.dst, value: 0 };
                self.d3(&with_result, float::fma);
            }
            V_CVT_I32_F64 => self.narrow(inst, |a| a as i32 as u32),
            V_CVT_U32_F64 => self.narrow(inst, |a| a as u32),
            V_CVT_F32_F64 => self.narrow(inst, |a| {
                if a.is_nan() {
                    crate::float::single::quiet(a as f32).to_bits()
                } else {
                    (a as f32).to_bits()
                }
            }),
            V_FREXP_EXP_I32_F64 => self.narrow(inst, |a| float::frexp_exponent(a) as u32),
            V_CVT_F64_I32 => self.widen(inst, |a| f64::from(a as i32)),
            V_CVT_F64_U32 => self.widen(inst, f64::from),
            V_CVT_F64_F32 => self.widen(inst, |a| of1(f64::from(f32::from_bits(a)), |a| a)),
            V_TRUNC_F64 => self.d1(inst, |a| of1(a, f64::trunc)),
            V_CEIL_F64 => self.d1(inst, |a| of1(a, f64::ceil)),
            V_RNDNE_F64 => self.d1(inst, |a| of1(a, f64::round_ties_even)),
            V_FLOOR_F64 => self.d1(inst, |a| of1(a, f64::floor)),
            // Some bits are promised; these are exact to rounding.
            V_RCP_F64 => self.d1(inst, |a| of1(a, |a| 1.0 / a)),
            V_RSQ_F64 => self.d1(inst, |a| of1(a, |a| 1.0 / a.sqrt())),
            V_SQRT_F64 => self.d1(inst, |a| of1(a, f64::sqrt)),
            V_FREXP_MANT_F64 => self.d1(inst, float::frexp_mantissa),
            V_LDEXP_F64 => {
                let (a, by) = (self.doubles(inst, 0), self.lanes(inst.src[1]));
                self.put_doubles(inst, std::array::from_fn(|lane| float::ldexp(a[lane], by[lane] as i32)));
            }
            V_DIV_FIXUP_F64 => self.d3(inst, float::div_fixup),
            V_DIV_FMAS_F64 => {
                let (a, b, c) = (self.doubles(inst, 0), self.doubles(inst, 1), self.doubles(inst, 2));
                let scaled = self.wave.vcc;
                let of = |lane: usize| float::div_fmas(a[lane], b[lane], c[lane], scaled >> lane & 1 == 1);
                self.put_doubles(inst, std::array::from_fn(of));
            }
            _ => {
                let (a, b, c) = (self.doubles(inst, 0), self.doubles(inst, 1), self.doubles(inst, 2));
                let of = |lane: usize| float::div_scale(a[lane], b[lane], c[lane]);
                let flags = self.bits(|lane| of(lane).1);
                self.put_doubles(inst, std::array::from_fn(|lane| of(lane).0));
                self.set64(u16::from(inst.sdst), flags);
            }
        }
        Ok(())
    }
}
