//! Integers of 32 and 16 bits: VOP1, VOP2, VOP3.

use super::{Core, unsupported};
use crate::decode::{Inst, Src};
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::{LANES, Lanes};

/// The low 24 bits with their sign.
fn i24(value: u32) -> i32 {
    (value << 8) as i32 >> 8
}

fn u24(value: u32) -> u32 {
    value & 0xff_ffff
}

fn i16(value: u32) -> i32 {
    i32::from(value as i16)
}

fn u16(value: u32) -> u32 {
    value & 0xffff
}

/// The middle of three.
fn middle<T: Ord>(a: T, b: T, c: T) -> T {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    low.max(high.min(c))
}

/// A byte of V_PERM_B32.
fn permuted(bytes: u64, selector: u32) -> u32 {
    let sign = |bit: u32| if bytes >> bit & 1 == 1 { 0xff } else { 0 };
    match selector & 0xff {
        index @ 0..=7 => (bytes >> (8 * index)) as u32 & 0xff,
        8 => sign(15),
        9 => sign(31),
        10 => sign(47),
        11 => sign(63),
        12 => 0,
        _ => 0xff,
    }
}

impl Core<'_> {
    #[inline(always)]
    fn u1(&mut self, inst: &Inst, f: impl Fn(u32) -> u32) {
        let a = self.lanes(inst.src[0]);
        let mut result = [0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane]);
        }
        self.put(inst.dst, &result);
    }

    #[inline(always)]
    fn u2(&mut self, inst: &Inst, f: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
        let mut result = [0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane], b[lane]);
        }
        self.put(inst.dst, &result);
    }

    #[inline(always)]
    fn u3(&mut self, inst: &Inst, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b, c) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]), self.lanes(inst.src[2]));
        let mut result = [0; LANES];
        for lane in 0..LANES {
            result[lane] = f(a[lane], b[lane], c[lane]);
        }
        self.put(inst.dst, &result);
    }

    /// A sum or difference with carry in, if any, and out. Lanes outside EXEC have no carry.
    #[inline(always)]
    fn carry(&mut self, inst: &Inst, with: bool, f: impl Fn(u32, u32, u32) -> (u32, bool)) {
        let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
        let carries = if with { self.s64(inst.src[2]) } else { 0 };
        let mut result = [0; LANES];
        let mut out = 0;
        for lane in 0..LANES {
            let (value, carry) = f(a[lane], b[lane], (carries >> lane) as u32 & 1);
            result[lane] = value;
            out |= u64::from(carry) << lane;
        }
        let out = out & self.wave.exec();
        self.put(inst.dst, &result);
        self.set64(u16::from(inst.sdst), out);
    }

    /// The lane that V_READFIRSTLANE reads: the first of EXEC, or the first.
    fn first_lane(&self) -> usize {
        let lane = self.wave.exec().trailing_zeros() as usize;
        if lane < LANES { lane } else { 0 }
    }

    /// A lane of a vector source; of a scalar one, itself.
    fn lane(&self, src: Src, lane: usize) -> u32 {
        if src.is_vector() { self.registers.vector[self.wave.vector(src.code)][lane] } else { self.s32(src) }
    }

    pub(super) fn vector(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        if inst.clamp || inst.omod != 0 {
            return unsupported(op, "clamp or omod of integers");
        }
        if op == V_CNDMASK_B32 {
            return self.conditional_move(inst);
        }
        if inst.neg | inst.abs != 0 && op != V_MOV_B32 {
            return unsupported(op, "neg or abs of integers");
        }
        let add = |a: u32, b: u32, c: u32| {
            let sum = u64::from(a) + u64::from(b) + u64::from(c);
            (sum as u32, sum >> 32 != 0)
        };
        let sub = |a: u32, b: u32, c: u32| {
            let difference = i64::from(a) - i64::from(b) - i64::from(c);
            (difference as u32, difference < 0)
        };
        match op {
            V_ADD_CO_U32 => self.carry(inst, false, add),
            V_ADDC_CO_U32 => self.carry(inst, true, add),
            V_SUB_CO_U32 => self.carry(inst, false, sub),
            V_SUBB_CO_U32 => self.carry(inst, true, sub),
            V_SUBREV_CO_U32 => self.carry(inst, false, |a, b, c| sub(b, a, c)),
            V_SUBBREV_CO_U32 => self.carry(inst, true, |a, b, c| sub(b, a, c)),
            V_ADD_U32 => self.u2(inst, u32::wrapping_add),
            V_SUB_U32 => self.u2(inst, u32::wrapping_sub),
            V_SUBREV_U32 => self.u2(inst, |a, b| b.wrapping_sub(a)),
            V_MUL_I32_I24 => self.u2(inst, |a, b| i24(a).wrapping_mul(i24(b)) as u32),
            V_MUL_HI_I32_I24 => self.u2(inst, |a, b| ((i64::from(i24(a)) * i64::from(i24(b))) >> 32) as u32),
            V_MUL_U32_U24 => self.u2(inst, |a, b| u24(a).wrapping_mul(u24(b))),
            V_MUL_HI_U32_U24 => self.u2(inst, |a, b| ((u64::from(u24(a)) * u64::from(u24(b))) >> 32) as u32),
            V_MUL_LO_U32 => self.u2(inst, u32::wrapping_mul),
            V_MUL_HI_U32 => self.u2(inst, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            V_MUL_HI_I32 => self.u2(inst, |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
            V_MIN_I32 => self.u2(inst, |a, b| (a as i32).min(b as i32) as u32),
            V_MAX_I32 => self.u2(inst, |a, b| (a as i32).max(b as i32) as u32),
            V_MIN_U32 => self.u2(inst, u32::min),
            V_MAX_U32 => self.u2(inst, u32::max),
            V_LSHRREV_B32 => self.u2(inst, |a, b| b >> (a & 31)),
            V_ASHRREV_I32 => self.u2(inst, |a, b| (b as i32 >> (a & 31)) as u32),
            V_LSHLREV_B32 => self.u2(inst, |a, b| b << (a & 31)),
            V_AND_B32 => self.u2(inst, |a, b| a & b),
            V_OR_B32 => self.u2(inst, |a, b| a | b),
            V_XOR_B32 => self.u2(inst, |a, b| a ^ b),
            V_XNOR_B32 => self.u2(inst, |a, b| !(a ^ b)),
            V_BFM_B32 => self.u2(inst, |a, b| ((1 << (a & 31)) - 1) << (b & 31)),
            V_BCNT_U32_B32 => self.u2(inst, |a, b| a.count_ones().wrapping_add(b)),
            V_MBCNT_LO_U32_B32 => self.bits_below(inst, 0),
            V_MBCNT_HI_U32_B32 => self.bits_below(inst, 32),
            V_MOV_B32 => self.mov(inst)?,
            V_NOT_B32 => self.u1(inst, |a| !a),
            V_BFREV_B32 => self.u1(inst, u32::reverse_bits),
            V_FFBH_U32 => self.u1(inst, |a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
            V_FFBL_B32 => self.u1(inst, |a| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
            V_FFBH_I32 => self.u1(inst, |a| {
                let differing = a ^ (a as i32 >> 31) as u32;
                if differing == 0 { u32::MAX } else { differing.leading_zeros() }
            }),
            V_ACCVGPR_MOV_B32 => self.u1(inst, |a| a),
            V_ACCVGPR_READ_B32 | V_ACCVGPR_WRITE_B32 => self.u1(inst, |a| a),
            V_SWAP_B32 => {
                let (a, b) = (self.lanes(inst.src[0]), self.lanes(Src { code: inst.dst, value: 0 }));
                self.put(inst.dst, &a);
                self.put(inst.src[0].code, &b);
            }
            V_READFIRSTLANE_B32 => {
                let value = self.lane(inst.src[0], self.first_lane());
                self.set32(inst.dst, value);
            }
            V_READLANE_B32 => {
                let lane = self.s32(inst.src[1]) as usize % LANES;
                let value = self.lane(inst.src[0], lane);
                self.set32(inst.dst, value);
            }
            V_WRITELANE_B32 => {
                let (value, lane) = (self.s32(inst.src[0]), self.s32(inst.src[1]) as usize % LANES);
                let at = self.wave.vector(inst.dst);
                self.registers.vector[at][lane] = value;
            }
            _ if op <= V_MIN_I16 => self.half(op, inst),
            _ => self.three(op, inst),
        }
        Ok(())
    }

    /// Those with three sources.
    fn three(&mut self, op: Op, inst: &Inst) {
        match op {
            V_MAD_I32_I24 => self.u3(inst, |a, b, c| (i24(a).wrapping_mul(i24(b)) as u32).wrapping_add(c)),
            V_MAD_U32_U24 => self.u3(inst, |a, b, c| u24(a).wrapping_mul(u24(b)).wrapping_add(c)),
            V_BFE_U32 => self.u3(inst, |a, b, c| a >> (b & 31) & ((1 << (c & 31)) - 1)),
            V_BFE_I32 => self.u3(inst, |a, b, c| match c & 31 {
                0 => 0,
                width => ((a as i32 >> (b & 31)) << (32 - width) >> (32 - width)) as u32,
            }),
            V_BFI_B32 => self.u3(inst, |a, b, c| a & b | !a & c),
            V_ALIGNBIT_B32 => {
                self.u3(inst, |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32)
            }
            V_ALIGNBYTE_B32 => {
                self.u3(inst, |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32)
            }
            V_MIN3_I32 => self.u3(inst, |a, b, c| (a as i32).min(b as i32).min(c as i32) as u32),
            V_MIN3_U32 => self.u3(inst, |a, b, c| a.min(b).min(c)),
            V_MAX3_I32 => self.u3(inst, |a, b, c| (a as i32).max(b as i32).max(c as i32) as u32),
            V_MAX3_U32 => self.u3(inst, |a, b, c| a.max(b).max(c)),
            V_MED3_I32 => self.u3(inst, |a, b, c| middle(a as i32, b as i32, c as i32) as u32),
            V_MED3_U32 => self.u3(inst, middle),
            V_SAD_U32 => self.u3(inst, |a, b, c| a.abs_diff(b).wrapping_add(c)),
            V_MAD_LEGACY_U16 | V_MAD_LEGACY_I16 => {
                self.u3(inst, |a, b, c| u16(u16(a).wrapping_mul(u16(b)).wrapping_add(c)));
            }
            V_MAD_U32_U16 => self.u3(inst, |a, b, c| u16(a).wrapping_mul(u16(b)).wrapping_add(c)),
            V_MAD_I32_I16 => self.u3(inst, |a, b, c| (i16(a).wrapping_mul(i16(b)) as u32).wrapping_add(c)),
            V_PERM_B32 => self.u3(inst, |a, b, c| {
                let bytes = u64::from(a) << 32 | u64::from(b);
                (0..4).fold(0, |made, byte| made | permuted(bytes, c >> (8 * byte)) << (8 * byte))
            }),
            V_XAD_U32 => self.u3(inst, |a, b, c| (a ^ b).wrapping_add(c)),
            V_LSHL_ADD_U32 => self.u3(inst, |a, b, c| (a << (b & 31)).wrapping_add(c)),
            V_ADD_LSHL_U32 => self.u3(inst, |a, b, c| a.wrapping_add(b) << (c & 31)),
            V_ADD3_U32 => self.u3(inst, |a, b, c| a.wrapping_add(b).wrapping_add(c)),
            V_LSHL_OR_B32 => self.u3(inst, |a, b, c| a << (b & 31) | c),
            V_AND_OR_B32 => self.u3(inst, |a, b, c| a & b | c),
            _ => self.u3(inst, |a, b, c| a | b | c),
        }
    }

    /// Those of 16 bits, which leave zero in the upper half.
    fn half(&mut self, op: Op, inst: &Inst) {
        match op {
            V_ADD_U16 => self.u2(inst, |a, b| u16(a.wrapping_add(b))),
            V_SUB_U16 => self.u2(inst, |a, b| u16(a.wrapping_sub(b))),
            V_SUBREV_U16 => self.u2(inst, |a, b| u16(b.wrapping_sub(a))),
            V_MUL_LO_U16 => self.u2(inst, |a, b| u16(a.wrapping_mul(b))),
            V_LSHLREV_B16 => self.u2(inst, |a, b| u16(b << (a & 15))),
            V_LSHRREV_B16 => self.u2(inst, |a, b| u16(b) >> (a & 15)),
            V_ASHRREV_I16 => self.u2(inst, |a, b| u16((i16(b) >> (a & 15)) as u32)),
            V_MAX_U16 => self.u2(inst, |a, b| u16(a).max(u16(b))),
            V_MAX_I16 => self.u2(inst, |a, b| u16(i16(a).max(i16(b)) as u32)),
            V_MIN_U16 => self.u2(inst, |a, b| u16(a).min(u16(b))),
            _ => self.u2(inst, |a, b| u16(i16(a).min(i16(b)) as u32)),
        }
    }

    fn mov(&mut self, inst: &Inst) -> Result<(), Fault> {
        if inst.neg | inst.abs != 0 {
            return unsupported(V_MOV_B32, "neg or abs");
        }
        let value = self.lanes(inst.src[0]);
        self.put(inst.dst, &value);
        Ok(())
    }

    /// V_CNDMASK_B32: the second where the bit is set; modifiers are those of floats.
    fn conditional_move(&mut self, inst: &Inst) -> Result<(), Fault> {
        let (a, b) = (self.modified(inst, 0), self.modified(inst, 1));
        let chosen = self.s64(inst.src[2]);
        let mut result = [0; LANES];
        for lane in 0..LANES {
            let mask = 0u32.wrapping_sub((chosen >> lane) as u32 & 1);
            result[lane] = (b[lane] & mask) | (a[lane] & !mask);
        }
        self.put(inst.dst, &result);
        Ok(())
    }

    /// The bits of a source with its sign changed as the instruction says.
    #[inline(always)]
    pub(super) fn modified(&self, inst: &Inst, index: usize) -> Lanes {
        let mut lanes = self.lanes(inst.src[index]);
        if inst.abs >> index & 1 == 1 {
            lanes.iter_mut().for_each(|lane| *lane &= 0x7fff_ffff);
        }
        if inst.neg >> index & 1 == 1 {
            lanes.iter_mut().for_each(|lane| *lane ^= 0x8000_0000);
        }
        lanes
    }

    /// V_MBCNT: the bits of a mask that belong to lanes before each lane, of one half of the lanes.
    fn bits_below(&mut self, inst: &Inst, from: usize) {
        let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
        let result = std::array::from_fn(|lane| {
            let below = match lane.saturating_sub(from) {
                0 => 0,
                count @ 1..=31 => (1 << count) - 1,
                _ => u32::MAX,
            };
            (a[lane] & below).count_ones().wrapping_add(b[lane])
        });
        self.put(inst.dst, &result);
    }
}
