//! VOPC: a bit for each lane of EXEC, zero for the others.

use super::Core;
use crate::decode::Inst;
use crate::float::{double, single};
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;

/// True if a condition of integers holds: F LT EQ LE GT NE GE T.
#[inline(always)]
fn integers<T: Ord>(condition: i32, a: &T, b: &T) -> bool {
    let order = match a.cmp(b) {
        std::cmp::Ordering::Less => 1,
        std::cmp::Ordering::Equal => 2,
        std::cmp::Ordering::Greater => 4,
    };
    condition & order != 0
}

/// True if a condition of floats holds: F LT EQ LE GT LG GE O, then their opposites, which hold for a NaN.
#[inline(always)]
fn floats<T: PartialOrd>(condition: i32, a: &T, b: &T) -> bool {
    let order = match a.partial_cmp(b) {
        Some(std::cmp::Ordering::Less) => 1,
        Some(std::cmp::Ordering::Equal) => 2,
        Some(std::cmp::Ordering::Greater) => 4,
        None => 0,
    };
    // U and those that follow have the opposites' bits in reverse: U is 8 = 15 - O.
    if condition < 8 { condition & order != 0 } else { (15 - condition) & order == 0 }
}

impl Core<'_> {
    pub(super) fn compare(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let condition = inst.imm;
        let bits = match op {
            V_CMP_F32 => {
                let (a, b) = (self.modified(inst, 0), self.modified(inst, 1));
                self.bits(|lane| floats(condition, &f32::from_bits(a[lane]), &f32::from_bits(b[lane])))
            }
            V_CMP_I32 => {
                let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &(a[lane] as i32), &(b[lane] as i32)))
            }
            V_CMP_U32 => {
                let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &a[lane], &b[lane]))
            }
            V_CMP_I16 => {
                let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &(a[lane] as i16), &(b[lane] as i16)))
            }
            V_CMP_U16 => {
                let (a, b) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &(a[lane] as u16), &(b[lane] as u16)))
            }
            V_CMP_I64 => {
                let (a, b) = (self.wide_lanes(inst.src[0]), self.wide_lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &(a[lane] as i64), &(b[lane] as i64)))
            }
            V_CMP_U64 => {
                let (a, b) = (self.wide_lanes(inst.src[0]), self.wide_lanes(inst.src[1]));
                self.bits(|lane| integers(condition, &a[lane], &b[lane]))
            }
            V_CMP_F64 => {
                let (a, b) = (self.doubles(inst, 0), self.doubles(inst, 1));
                self.bits(|lane| floats(condition, &a[lane], &b[lane]))
            }
            V_CMP_CLASS_F32 => {
                let (a, classes) = (self.modified(inst, 0), self.lanes(inst.src[1]));
                self.bits(|lane| classes[lane] >> single::class(f32::from_bits(a[lane])) & 1 == 1)
            }
            _ => {
                let (a, classes) = (self.doubles(inst, 0), self.lanes(inst.src[1]));
                self.bits(|lane| classes[lane] >> double::class(a[lane]) & 1 == 1)
            }
        };
        self.set64(u16::from(inst.sdst), bits);
        if inst.flag {
            self.wave.set_exec(bits);
        }
        Ok(())
    }
}
