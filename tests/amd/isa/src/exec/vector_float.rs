//! Floats of 32 bits, and conversions.

use super::Core;
use crate::decode::{Inst, Src};
use crate::float::single as float;
use crate::float::{flush, from_half, to_half};
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::LANES;

/// True if an instruction is done here.
pub(super) fn knows(op: Op) -> bool {
    matches!(
        op,
        V_ADD_F32
            | V_SUB_F32
            | V_SUBREV_F32
            | V_MUL_F32
            | V_MIN_F32
            | V_MAX_F32
            | V_FMAC_F32
            | V_CVT_F32_I32
            | V_CVT_F32_U32
            | V_CVT_U32_F32
            | V_CVT_I32_F32
            | V_CVT_F16_F32
            | V_CVT_F32_F16
            | V_CVT_RPI_I32_F32
            | V_CVT_FLR_I32_F32
            | V_CVT_F32_UBYTE0
            | V_CVT_F32_UBYTE1
            | V_CVT_F32_UBYTE2
            | V_CVT_F32_UBYTE3
            | V_FRACT_F32
            | V_TRUNC_F32
            | V_CEIL_F32
            | V_RNDNE_F32
            | V_FLOOR_F32
            | V_EXP_F32
            | V_LOG_F32
            | V_RCP_F32
            | V_RCP_IFLAG_F32
            | V_RSQ_F32
            | V_SQRT_F32
            | V_FREXP_EXP_I32_F32
            | V_FREXP_MANT_F32
            | V_MAD_F32
            | V_FMA_F32
            | V_MIN3_F32
            | V_MAX3_F32
            | V_MED3_F32
            | V_DIV_FIXUP_F32
            | V_DIV_SCALE_F32
            | V_DIV_FMAS_F32
            | V_LDEXP_F32
    )
}

/// An integer nearest to a float by a rule; what does not fit becomes the nearest that does, a NaN 0.
fn integer(x: f32) -> u32 {
    x as i32 as u32
}

/// A function of a NaN is that NaN, made quiet.
fn of1(x: f32, f: impl Fn(f32) -> f32) -> f32 {
    if x.is_nan() { float::quiet(x) } else { f(x) }
}

impl Core<'_> {
    /// A source as floats, with its modifiers.
    #[inline(always)]
    fn floats(&self, inst: &Inst, index: usize) -> [f32; LANES] {
        let bits = self.modified(inst, index);
        std::array::from_fn(|lane| f32::from_bits(bits[lane]))
    }

    /// Writes floats, after OMOD and CLAMP.
    #[inline(always)]
    fn put_floats(&mut self, inst: &Inst, mut value: [f32; LANES]) {
        if inst.omod != 0 {
            let factor = [1.0, 2.0, 4.0, 0.5][usize::from(inst.omod)];
            value.iter_mut().for_each(|x| *x = float::mul(*x, factor));
        }
        if inst.clamp {
            value.iter_mut().for_each(|x| *x = float::clamp(*x));
        }
        let mut bits = [0; LANES];
        for lane in 0..LANES {
            bits[lane] = value[lane].to_bits();
        }
        self.put(inst.dst, &bits);
    }

    #[inline(always)]
    fn f1(&mut self, inst: &Inst, f: impl Fn(f32) -> f32) {
        let a = self.floats(inst, 0);
        let mut result = [0.0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane]);
        }
        self.put_floats(inst, result);
    }

    #[inline(always)]
    fn f2(&mut self, inst: &Inst, f: impl Fn(f32, f32) -> f32) {
        let (a, b) = (self.floats(inst, 0), self.floats(inst, 1));
        let mut result = [0.0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane], b[lane]);
        }
        self.put_floats(inst, result);
    }

    #[inline(always)]
    fn f3(&mut self, inst: &Inst, f: impl Fn(f32, f32, f32) -> f32) {
        let (a, b, c) = (self.floats(inst, 0), self.floats(inst, 1), self.floats(inst, 2));
        let mut result = [0.0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane], b[lane], c[lane]);
        }
        self.put_floats(inst, result);
    }

    /// Floats from integers.
    #[inline(always)]
    fn of_integers(&mut self, inst: &Inst, f: impl Fn(u32) -> f32) {
        let a = self.lanes(inst.src[0]);
        let mut result = [0.0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane]);
        }
        self.put_floats(inst, result);
    }

    /// Integers from floats.
    #[inline(always)]
    fn as_integers(&mut self, inst: &Inst, f: impl Fn(f32) -> u32) {
        let a = self.floats(inst, 0);
        let mut result = [0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane]);
        }
        self.put(inst.dst, &result);
    }

    pub(super) fn float(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        match op {
            V_ADD_F32 => self.f2(inst, float::add),
            V_SUB_F32 => self.f2(inst, |a, b| float::add(a, -b)),
            V_SUBREV_F32 => self.f2(inst, |a, b| float::add(b, -a)),
            V_MUL_F32 => self.f2(inst, float::mul),
            V_MIN_F32 => self.f2(inst, float::min),
            V_MAX_F32 => self.f2(inst, float::max),
            V_FMAC_F32 => {
                let mut with_result = *inst;
                with_result.src[2] = Src { code: inst.dst, value: 0 };
                self.f3(&with_result, float::fma);
            }
            V_FMA_F32 => self.f3(inst, float::fma),
            V_MAD_F32 => {
                self.f3(inst, |a, b, c| flush(float::add(flush(float::mul(flush(a), flush(b))), flush(c))))
            }
            V_MIN3_F32 => self.f3(inst, |a, b, c| float::min(float::min(a, b), c)),
            V_MAX3_F32 => self.f3(inst, |a, b, c| float::max(float::max(a, b), c)),
            V_MED3_F32 => self.f3(inst, float::med3),
            V_CVT_F32_I32 => self.of_integers(inst, |a| a as i32 as f32),
            V_CVT_F32_U32 => self.of_integers(inst, |a| a as f32),
            V_CVT_F32_UBYTE0 => self.of_integers(inst, |a| (a & 0xff) as f32),
            V_CVT_F32_UBYTE1 => self.of_integers(inst, |a| (a >> 8 & 0xff) as f32),
            V_CVT_F32_UBYTE2 => self.of_integers(inst, |a| (a >> 16 & 0xff) as f32),
            V_CVT_F32_UBYTE3 => self.of_integers(inst, |a| (a >> 24) as f32),
            V_CVT_F32_F16 => self.of_integers(inst, |a| from_half(a & 0xffff)),
            V_CVT_U32_F32 => self.as_integers(inst, |a| a as u32),
            V_CVT_I32_F32 => self.as_integers(inst, integer),
            V_CVT_RPI_I32_F32 => self.as_integers(inst, |a| (f64::from(a) + 0.5).floor() as i32 as u32),
            V_CVT_FLR_I32_F32 => self.as_integers(inst, |a| integer(a.floor())),
            V_CVT_F16_F32 => self.as_integers(inst, to_half),
            V_FREXP_EXP_I32_F32 => self.as_integers(inst, |a| float::frexp_exponent(a) as u32),
            V_FREXP_MANT_F32 => self.f1(inst, float::frexp_mantissa),
            V_FRACT_F32 => self.f1(inst, |a| {
                let rest = of1(a, |a| float::add(a, -a.floor()));
                // Never 1.
                if rest == 1.0 { f32::from_bits(0x3f7f_ffff) } else { rest }
            }),
            V_TRUNC_F32 => self.f1(inst, |a| of1(a, f32::trunc)),
            V_CEIL_F32 => self.f1(inst, |a| of1(a, f32::ceil)),
            V_RNDNE_F32 => self.f1(inst, |a| of1(a, f32::round_ties_even)),
            V_FLOOR_F32 => self.f1(inst, |a| of1(a, f32::floor)),
            // One unit in the last place is promised; these are exact to rounding.
            V_EXP_F32 => self.f1(inst, |a| of1(a, |a| flush(f64::from(flush(a)).exp2() as f32))),
            V_LOG_F32 => self.f1(inst, |a| of1(a, |a| f64::from(flush(a)).log2() as f32)),
            V_RCP_F32 | V_RCP_IFLAG_F32 => self.f1(inst, |a| of1(a, |a| flush(1.0 / flush(a)))),
            V_RSQ_F32 => self.f1(inst, |a| of1(a, |a| (1.0 / f64::from(flush(a)).sqrt()) as f32)),
            V_SQRT_F32 => self.f1(inst, |a| of1(a, |a| flush(a).sqrt())),
            V_LDEXP_F32 => {
                let (a, by) = (self.floats(inst, 0), self.lanes(inst.src[1]));
                let result = std::array::from_fn(|lane| float::ldexp(a[lane], by[lane] as i32));
                self.put_floats(inst, result);
            }
            V_DIV_FIXUP_F32 => self.f3(inst, float::div_fixup),
            V_DIV_FMAS_F32 => {
                let (a, b, c) = (self.floats(inst, 0), self.floats(inst, 1), self.floats(inst, 2));
                let scaled = self.wave.vcc;
                let result = std::array::from_fn(|lane| {
                    float::div_fmas(a[lane], b[lane], c[lane], scaled >> lane & 1 == 1)
                });
                self.put_floats(inst, result);
            }
            _ => {
                let (a, b, c) = (self.floats(inst, 0), self.floats(inst, 1), self.floats(inst, 2));
                let of = |lane: usize| float::div_scale(a[lane], b[lane], c[lane]);
                let flags = self.bits(|lane| of(lane).1);
                self.put_floats(inst, std::array::from_fn(|lane| of(lane).0));
                self.set64(u16::from(inst.sdst), flags);
            }
        }
        Ok(())
    }
}
