//! SOP2, SOPK, SOP1, SOPC, SOPP: sections "Scalar ALU Operations" and "Program Flow Control".

use super::{Core, Stop, unsupported};
use crate::decode::Inst;
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;

/// Bits of MODE that can be changed: none of those of floats.
const FLOAT_MODE: u32 = 0xff;

impl Core<'_> {
    #[inline(always)]
    fn result32(&mut self, inst: &Inst, value: u32) {
        self.set32(inst.dst, value);
        self.wave.scc = value != 0;
    }

    #[inline(always)]
    fn result64(&mut self, inst: &Inst, value: u64) {
        self.set64(inst.dst, value);
        self.wave.scc = value != 0;
    }

    /// The sum of three, with the carry in SCC.
    fn sum_with_carry(&mut self, inst: &Inst, a: u32, b: u32, carry: bool) {
        let sum = u64::from(a) + u64::from(b) + u64::from(carry);
        self.set32(inst.dst, sum as u32);
        self.wave.scc = sum >> 32 != 0;
    }

    /// The difference, with the borrow in SCC.
    fn borrow(&mut self, inst: &Inst, a: u32, b: u32, borrow: bool) {
        let difference = i64::from(a) - i64::from(b) - i64::from(borrow);
        self.set32(inst.dst, difference as u32);
        self.wave.scc = difference < 0;
    }

    /// Replaces EXEC and keeps the old one.
    fn save_exec(&mut self, inst: &Inst, new: u64) {
        let old = self.wave.exec();
        self.set64(inst.dst, old);
        self.wave.set_exec(new);
        self.wave.scc = new != 0;
    }

    pub(super) fn scalar(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let (a, b) = (self.s32(inst.src[0]), self.s32(inst.src[1]));
        let wide = |core: &Self| (core.s64(inst.src[0]), core.s64(inst.src[1]));
        match op {
            S_ADD_U32 => self.sum_with_carry(inst, a, b, false),
            S_SUB_U32 => self.borrow(inst, a, b, false),
            S_ADDC_U32 => self.sum_with_carry(inst, a, b, self.wave.scc),
            S_SUBB_U32 => self.borrow(inst, a, b, self.wave.scc),
            S_ADD_I32 => {
                let (sum, overflow) = (a as i32).overflowing_add(b as i32);
                self.set32(inst.dst, sum as u32);
                self.wave.scc = overflow;
            }
            S_SUB_I32 => {
                let (difference, overflow) = (a as i32).overflowing_sub(b as i32);
                self.set32(inst.dst, difference as u32);
                self.wave.scc = overflow;
            }
            S_MIN_I32 => self.choose(inst, (a as i32) < b as i32, a, b),
            S_MIN_U32 => self.choose(inst, a < b, a, b),
            S_MAX_I32 => self.choose(inst, a as i32 > b as i32, a, b),
            S_MAX_U32 => self.choose(inst, a > b, a, b),
            S_CSELECT_B32 => self.set32(inst.dst, if self.wave.scc { a } else { b }),
            S_CSELECT_B64 => {
                let (a, b) = wide(self);
                self.set64(inst.dst, if self.wave.scc { a } else { b });
            }
            S_AND_B32 => self.result32(inst, a & b),
            S_OR_B32 => self.result32(inst, a | b),
            S_XOR_B32 => self.result32(inst, a ^ b),
            S_ANDN2_B32 => self.result32(inst, a & !b),
            S_ORN2_B32 => self.result32(inst, a | !b),
            S_NAND_B32 => self.result32(inst, !(a & b)),
            S_NOR_B32 => self.result32(inst, !(a | b)),
            S_XNOR_B32 => self.result32(inst, !(a ^ b)),
            S_AND_B64 | S_OR_B64 | S_XOR_B64 | S_ANDN2_B64 | S_ORN2_B64 | S_NAND_B64 | S_NOR_B64
            | S_XNOR_B64 => {
                let (a, b) = wide(self);
                self.result64(inst, logic(op, a, b));
            }
            S_LSHL_B32 => self.result32(inst, a << (b & 31)),
            S_LSHR_B32 => self.result32(inst, a >> (b & 31)),
            S_ASHR_I32 => self.result32(inst, (a as i32 >> (b & 31)) as u32),
            S_LSHL_B64 => self.result64(inst, wide(self).0 << (b & 63)),
            S_LSHR_B64 => self.result64(inst, wide(self).0 >> (b & 63)),
            S_ASHR_I64 => self.result64(inst, (wide(self).0 as i64 >> (b & 63)) as u64),
            S_BFM_B32 => self.set32(inst.dst, ((1 << (a & 31)) - 1) << (b & 31)),
            S_BFM_B64 => self.set64(inst.dst, ((1 << (a & 63)) - 1) << (b & 63)),
            S_MUL_I32 => self.set32(inst.dst, a.wrapping_mul(b)),
            S_MUL_HI_U32 => self.set32(inst.dst, ((u64::from(a) * u64::from(b)) >> 32) as u32),
            S_MUL_HI_I32 => self.set32(inst.dst, ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
            S_BFE_U32 => self.result32(inst, field(u64::from(a), b & 31, b >> 16 & 0x7f) as u32),
            S_BFE_I32 => {
                self.result32(
                    inst,
                    extend(i64::from(a as i32) as u64, b & 31, (b >> 16 & 0x7f).min(32)) as u32,
                );
            }
            S_BFE_U64 => self.result64(inst, field(wide(self).0, b & 63, b >> 16 & 0x7f)),
            S_BFE_I64 => self.result64(inst, extend(wide(self).0, b & 63, b >> 16 & 0x7f)),
            S_ABSDIFF_I32 => self.result32(inst, (a as i32).wrapping_sub(b as i32).wrapping_abs() as u32),
            S_LSHL1_ADD_U32 => self.shifted_sum(inst, a, 1, b),
            S_LSHL2_ADD_U32 => self.shifted_sum(inst, a, 2, b),
            S_LSHL3_ADD_U32 => self.shifted_sum(inst, a, 3, b),
            S_LSHL4_ADD_U32 => self.shifted_sum(inst, a, 4, b),
            S_PACK_LL_B32_B16 => self.set32(inst.dst, a & 0xffff | b << 16),
            S_PACK_LH_B32_B16 => self.set32(inst.dst, a & 0xffff | b & 0xffff_0000),
            S_PACK_HH_B32_B16 => self.set32(inst.dst, a >> 16 | b & 0xffff_0000),
            _ if op <= S_CALL_B64 => self.constant(op, inst, a)?,
            _ if op <= S_ANDN2_WREXEC_B64 => self.one(op, inst, a)?,
            _ => self.wave.scc = self.condition(op, inst, a, b),
        }
        Ok(())
    }

    fn choose(&mut self, inst: &Inst, first: bool, a: u32, b: u32) {
        self.set32(inst.dst, if first { a } else { b });
        self.wave.scc = first;
    }

    fn shifted_sum(&mut self, inst: &Inst, a: u32, by: u32, b: u32) {
        let sum = (u64::from(a) << by) + u64::from(b);
        self.set32(inst.dst, sum as u32);
        self.wave.scc = sum >> 32 != 0;
    }

    /// SOPK; `a` is the destination's old value.
    fn constant(&mut self, op: Op, inst: &Inst, a: u32) -> Result<(), Fault> {
        let (k, unsigned) = (inst.imm, inst.imm as u32 & 0xffff);
        let compared = match op {
            S_CMPK_EQ_I32 => a as i32 == k,
            S_CMPK_LG_I32 => a as i32 != k,
            S_CMPK_GT_I32 => a as i32 > k,
            S_CMPK_GE_I32 => a as i32 >= k,
            S_CMPK_LT_I32 => (a as i32) < k,
            S_CMPK_LE_I32 => a as i32 <= k,
            S_CMPK_EQ_U32 => a == unsigned,
            S_CMPK_LG_U32 => a != unsigned,
            S_CMPK_GT_U32 => a > unsigned,
            S_CMPK_GE_U32 => a >= unsigned,
            S_CMPK_LT_U32 => a < unsigned,
            S_CMPK_LE_U32 => a <= unsigned,
            _ => return self.no_comparison(op, inst, a),
        };
        self.wave.scc = compared;
        Ok(())
    }

    fn no_comparison(&mut self, op: Op, inst: &Inst, a: u32) -> Result<(), Fault> {
        let k = inst.imm;
        let (register, offset, size) = (k & 63, k as u32 >> 6 & 31, (k as u32 >> 11 & 31) + 1);
        let mask = (u32::MAX >> (32 - size)) << offset;
        match op {
            S_MOVK_I32 => self.set32(inst.dst, k as u32),
            S_CMOVK_I32 if self.wave.scc => self.set32(inst.dst, k as u32),
            S_CMOVK_I32 => {}
            S_ADDK_I32 => {
                let (sum, overflow) = (a as i32).overflowing_add(k);
                self.set32(inst.dst, sum as u32);
                self.wave.scc = overflow;
            }
            S_MULK_I32 => self.set32(inst.dst, (a as i32).wrapping_mul(k) as u32),
            S_GETREG_B32 => {
                let value = match register {
                    1 => self.wave.mode,
                    2 | 3 => 0,
                    4 => self.wave.hw_id,
                    6 => self.wave.lds_alloc,
                    20 => self.wave.xcc_id,
                    _ => return unsupported(op, &format!("hardware register {register}")),
                };
                self.set32(inst.dst, (value & mask) >> offset);
            }
            S_SETREG_B32 | S_SETREG_IMM32_B32 => {
                let value = self.s32(inst.src[0]);
                let new = self.wave.mode & !mask | value << offset & mask;
                if register != 1 || (new ^ self.wave.mode) & FLOAT_MODE != 0 {
                    return unsupported(op, &format!("hardware register {register} becomes {new:#x}"));
                }
                self.wave.mode = new;
            }
            // A call: the return address, and a branch.
            _ => {
                let next = self.address();
                self.set64(inst.dst, next);
                self.wave.pc = inst.imm as usize;
            }
        }
        Ok(())
    }

    /// The address of the next instruction.
    fn address(&self) -> u64 {
        self.launch.program.address(self.wave.pc).wrapping_add(self.launch.loaded_at)
    }

    fn jump(&mut self, address: u64) -> Result<(), Fault> {
        let number = self.launch.program.number(address.wrapping_sub(self.launch.loaded_at));
        self.wave.pc = number.ok_or(Fault::Code(address))?;
        Ok(())
    }

    /// SOP1.
    fn one(&mut self, op: Op, inst: &Inst, a: u32) -> Result<(), Fault> {
        let w = self.s64(inst.src[0]);
        let exec = self.wave.exec();
        let found = |zeros: u32, width: u32| if zeros >= width { u32::MAX } else { zeros };
        match op {
            S_MOV_B32 => self.set32(inst.dst, a),
            S_MOV_B64 => self.set64(inst.dst, w),
            S_CMOV_B32 if self.wave.scc => self.set32(inst.dst, a),
            S_CMOV_B64 if self.wave.scc => self.set64(inst.dst, w),
            S_CMOV_B32 | S_CMOV_B64 => {}
            S_NOT_B32 => self.result32(inst, !a),
            S_NOT_B64 => self.result64(inst, !w),
            S_BREV_B32 => self.set32(inst.dst, a.reverse_bits()),
            S_BREV_B64 => self.set64(inst.dst, w.reverse_bits()),
            S_BCNT0_I32_B32 => self.result32(inst, a.count_zeros()),
            S_BCNT0_I32_B64 => self.result32(inst, w.count_zeros()),
            S_BCNT1_I32_B32 => self.result32(inst, a.count_ones()),
            S_BCNT1_I32_B64 => self.result32(inst, w.count_ones()),
            S_FF0_I32_B32 => self.set32(inst.dst, found(a.trailing_ones(), 32)),
            S_FF0_I32_B64 => self.set32(inst.dst, found(w.trailing_ones(), 64)),
            S_FF1_I32_B32 => self.set32(inst.dst, found(a.trailing_zeros(), 32)),
            S_FF1_I32_B64 => self.set32(inst.dst, found(w.trailing_zeros(), 64)),
            S_FLBIT_I32_B32 => self.set32(inst.dst, found(a.leading_zeros(), 32)),
            S_FLBIT_I32_B64 => self.set32(inst.dst, found(w.leading_zeros(), 64)),
            S_FLBIT_I32 => self.set32(inst.dst, found((a ^ (a as i32 >> 31) as u32).leading_zeros(), 32)),
            S_FLBIT_I32_I64 => self.set32(inst.dst, found((w ^ (w as i64 >> 63) as u64).leading_zeros(), 64)),
            S_SEXT_I32_I8 => self.set32(inst.dst, a as i8 as u32),
            S_SEXT_I32_I16 => self.set32(inst.dst, a as i16 as u32),
            S_BITSET0_B32 | S_BITSET1_B32 => {
                let old = self.s32(crate::decode::Src { code: inst.dst, value: 0 });
                let bit = 1 << (a & 31);
                self.set32(inst.dst, if op == S_BITSET1_B32 { old | bit } else { old & !bit });
            }
            S_BITSET0_B64 | S_BITSET1_B64 => {
                let old = self.s64(crate::decode::Src { code: inst.dst, value: 0 });
                let bit = 1 << (a & 63);
                self.set64(inst.dst, if op == S_BITSET1_B64 { old | bit } else { old & !bit });
            }
            S_GETPC_B64 => self.set64(inst.dst, self.address()),
            S_SETPC_B64 => self.jump(w)?,
            S_SWAPPC_B64 => {
                let next = self.address();
                self.jump(w)?;
                self.set64(inst.dst, next);
            }
            S_AND_SAVEEXEC_B64 => self.save_exec(inst, w & exec),
            S_OR_SAVEEXEC_B64 => self.save_exec(inst, w | exec),
            S_XOR_SAVEEXEC_B64 => self.save_exec(inst, w ^ exec),
            S_ANDN2_SAVEEXEC_B64 => self.save_exec(inst, w & !exec),
            S_ORN2_SAVEEXEC_B64 => self.save_exec(inst, w | !exec),
            S_NAND_SAVEEXEC_B64 => self.save_exec(inst, !(w & exec)),
            S_NOR_SAVEEXEC_B64 => self.save_exec(inst, !(w | exec)),
            S_XNOR_SAVEEXEC_B64 => self.save_exec(inst, !(w ^ exec)),
            S_ANDN1_SAVEEXEC_B64 => self.save_exec(inst, !w & exec),
            S_ORN1_SAVEEXEC_B64 => self.save_exec(inst, !w | exec),
            S_ABS_I32 => self.result32(inst, (a as i32).wrapping_abs() as u32),
            // EXEC and the destination become the same.
            _ => {
                let new = if op == S_ANDN1_WREXEC_B64 { !w & exec } else { w & !exec };
                self.wave.set_exec(new);
                self.result64(inst, new);
            }
        }
        Ok(())
    }

    /// True if the condition of an SOPC instruction holds.
    fn condition(&self, op: Op, inst: &Inst, a: u32, b: u32) -> bool {
        let w = self.s64(inst.src[0]);
        match op {
            S_CMP_EQ_I32 | S_CMP_EQ_U32 => a == b,
            S_CMP_LG_I32 | S_CMP_LG_U32 => a != b,
            S_CMP_GT_I32 => a as i32 > b as i32,
            S_CMP_GE_I32 => a as i32 >= b as i32,
            S_CMP_LT_I32 => (a as i32) < b as i32,
            S_CMP_LE_I32 => a as i32 <= b as i32,
            S_CMP_GT_U32 => a > b,
            S_CMP_GE_U32 => a >= b,
            S_CMP_LT_U32 => a < b,
            S_CMP_LE_U32 => a <= b,
            S_BITCMP0_B32 => a >> (b & 31) & 1 == 0,
            S_BITCMP1_B32 => a >> (b & 31) & 1 == 1,
            S_BITCMP0_B64 => w >> (b & 63) & 1 == 0,
            S_BITCMP1_B64 => w >> (b & 63) & 1 == 1,
            S_CMP_EQ_U64 => w == self.s64(inst.src[1]),
            _ => w != self.s64(inst.src[1]),
        }
    }

    /// SOPP.
    pub(super) fn control(&mut self, op: Op, inst: &Inst) -> Result<Option<Stop>, Fault> {
        let wave = &mut *self.wave;
        let taken = match op {
            S_ENDPGM => return Ok(Some(Stop::End)),
            S_BARRIER => return Ok(Some(Stop::Barrier)),
            S_SLEEP => return Ok(Some(Stop::Yield)),
            S_TRAP => return Err(Fault::Trap(inst.imm as u8)),
            S_BRANCH => true,
            S_CBRANCH_SCC0 => !wave.scc,
            S_CBRANCH_SCC1 => wave.scc,
            S_CBRANCH_VCCZ => wave.vcc == 0,
            S_CBRANCH_VCCNZ => wave.vcc != 0,
            S_CBRANCH_EXECZ => wave.exec() == 0,
            _ => wave.exec() != 0,
        };
        if taken {
            wave.pc = inst.imm as usize;
        }
        Ok(None)
    }
}

fn logic(op: Op, a: u64, b: u64) -> u64 {
    match op {
        S_AND_B64 => a & b,
        S_OR_B64 => a | b,
        S_XOR_B64 => a ^ b,
        S_ANDN2_B64 => a & !b,
        S_ORN2_B64 => a | !b,
        S_NAND_B64 => !(a & b),
        S_NOR_B64 => !(a | b),
        _ => !(a ^ b),
    }
}

/// `width` bits from a place on.
fn field(value: u64, from: u32, width: u32) -> u64 {
    match width {
        0 => 0,
        1..=63 => value >> from & ((1 << width) - 1),
        _ => value >> from,
    }
}

/// The same, with the sign of its last bit.
fn extend(value: u64, from: u32, width: u32) -> u64 {
    let shifted = value as i64 >> from;
    match width {
        0 => 0,
        1..=63 => (shifted << (64 - width) >> (64 - width)) as u64,
        _ => shifted as u64,
    }
}
