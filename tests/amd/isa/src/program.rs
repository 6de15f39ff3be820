//! The instructions of a code object, decoded once.

use crate::decode::{Arch, Inst, Unknown, decode};
use crate::ops::Op;

/// No instruction begins there.
const NONE: u32 = u32::MAX;

/// Decoded code.
#[derive(Debug)]
pub struct Program {
    /// The address of the first word, as the code object has it.
    base: u64,
    insts: Vec<Inst>,
    /// The instruction that begins at a word.
    index: Vec<u32>,
    /// The word at which an instruction begins.
    words: Vec<u32>,
}

impl Program {
    /// Decodes words at an address. What is unknown becomes an instruction that fails when it is executed, since what
    /// lies between functions need not be code.
    pub fn decode(base: u64, words: &[u32], arch: Arch) -> Self {
        let mut program = Self { base, insts: Vec::new(), index: vec![NONE; words.len()], words: Vec::new() };
        let mut at = 0;
        while at < words.len() {
            let inst = decode(&words[at..], arch).unwrap_or_else(|unknown| Inst::unknown(unknown.words));
            program.index[at] = program.insts.len() as u32;
            program.words.push(at as u32);
            program.insts.push(inst);
            at += usize::from(inst.words);
        }
        for number in 0..program.insts.len() {
            let distance = program.insts[number].imm;
            if program.insts[number].op.is_some_and(branches) {
                let next = i64::from(program.words[number]) + 1;
                let word = usize::try_from(next + i64::from(distance)).ok();
                let target = word.and_then(|word| program.index.get(word)).copied().unwrap_or(NONE);
                // An impossible target is that behind the last instruction.
                let target = if target == NONE { program.insts.len() as u32 } else { target };
                program.insts[number].imm = target as i32;
            }
        }
        program
    }

    /// The instruction with a number.
    pub(crate) fn get(&self, number: usize) -> Option<&Inst> {
        self.insts.get(number)
    }

    /// All of them.
    pub fn instructions(&self) -> impl Iterator<Item = &Inst> {
        self.insts.iter()
    }

    /// The number of the instruction at an address.
    pub(crate) fn number(&self, address: u64) -> Option<usize> {
        let word = address.checked_sub(self.base).filter(|offset| offset % 4 == 0)? / 4;
        let number = *self.index.get(usize::try_from(word).ok()?)?;
        (number != NONE).then_some(number as usize)
    }

    /// The address of an instruction.
    pub(crate) fn address(&self, number: usize) -> u64 {
        let word = self.words.get(number).map_or(self.index.len() as u64, |word| u64::from(*word));
        self.base + 4 * word
    }

    /// An unknown instruction, once more in words.
    pub(crate) fn unknown(inst: &Inst, arch: Arch) -> Unknown {
        let words = [inst.src[0].value, inst.src[1].value];
        decode(&words, arch).err().unwrap_or(Unknown { words, what: "cut off".to_owned() })
    }
}

fn branches(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        S_BRANCH
            | S_CBRANCH_SCC0
            | S_CBRANCH_SCC1
            | S_CBRANCH_VCCZ
            | S_CBRANCH_VCCNZ
            | S_CBRANCH_EXECZ
            | S_CBRANCH_EXECNZ
            | S_CALL_B64
    )
}
