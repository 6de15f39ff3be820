//! VOP3P: pairs of floats, and pairs of words. `op_sel` and `op_sel_hi` say which half of each source goes into the low
//! and into the high result.

use super::{Core, unsupported};
use crate::decode::Inst;
use crate::float::single as float;
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::{LANES, Lanes};

impl Core<'_> {
    /// A source for one of the results.
    #[inline(always)]
    fn half_of_pair(&self, inst: &Inst, index: usize, high: bool) -> Lanes {
        let src = inst.src[index];
        let (select, negate) = if high { (inst.sel_hi, inst.neg_hi) } else { (inst.sel, inst.neg) };
        let upper = select >> index & 1 == 1;
        let mut lanes = if src.is_vector() {
            self.registers.vector[self.wave.vector(src.code + u16::from(upper))]
        } else if src.code < 128 {
            let pair = self.s64(src);
            [if upper { pair >> 32 } else { pair } as u32; LANES]
        } else {
            [src.value; LANES]
        };
        if negate >> index & 1 == 1 {
            lanes.iter_mut().for_each(|lane| *lane ^= 0x8000_0000);
        }
        lanes
    }

    pub(super) fn packed(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        if inst.src.iter().any(|src| (129..256).contains(&src.code)) {
            return unsupported(op, "a constant other than 0");
        }
        // Sources are read before results are written: they may be the same registers.
        let results: [Lanes; 2] = [false, true].map(|high| {
            let (a, b) = (self.half_of_pair(inst, 0, high), self.half_of_pair(inst, 1, high));
            let mut result = [0; LANES];
            match op {
                V_PK_ADD_F32 => of_two(&mut result, &a, &b, float::add),
                V_PK_MUL_F32 => of_two(&mut result, &a, &b, float::mul),
                V_PK_FMA_F32 => {
                    let c = self.half_of_pair(inst, 2, high);
                    for lane in 0..LANES {
                        let [a, b, c] = [a[lane], b[lane], c[lane]].map(f32::from_bits);
                        result[lane] = float::fma(a, b, c).to_bits();
                    }
                }
                // The low result is of the first source, the high one of the second, each by `op_sel`.
                _ => {
                    result = self.half_of_pair(&Inst { sel_hi: inst.sel, ..*inst }, usize::from(high), high);
                }
            }
            if inst.clamp {
                result.iter_mut().for_each(|x| *x = float::clamp(f32::from_bits(*x)).to_bits());
            }
            result
        });
        self.put(inst.dst, &results[0]);
        self.put(inst.dst + 1, &results[1]);
        Ok(())
    }
}

#[inline(always)]
fn of_two(result: &mut Lanes, a: &Lanes, b: &Lanes, f: impl Fn(f32, f32) -> f32) {
    for lane in 0..LANES {
        result[lane] = f(f32::from_bits(a[lane]), f32::from_bits(b[lane])).to_bits();
    }
}
