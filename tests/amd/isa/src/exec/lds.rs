//! DS: section "Data Share Operations". Outside its LDS a wave reads zero and writes nothing.

use super::{Core, unsupported};
use crate::decode::{Inst, Src};
use crate::memory::Fault;
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::{LANES, Lanes};

impl Core<'_> {
    fn lds_read<const N: usize>(&self, at: usize) -> [u8; N] {
        self.lds.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn lds_write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        if let Some(there) = self.lds.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *there = bytes;
        }
    }

    /// Reads `words` of each lane into registers one after the other.
    fn lds_load(&mut self, inst: &Inst, words: usize, offset: usize) {
        let addresses = self.lanes(inst.src[0]);
        // Before any result is written: it may be the address.
        let mut loaded = [[0; LANES]; 4];
        for lane in 0..LANES {
            if self.wave.mask[lane] == 0 {
                continue;
            }
            let at = addresses[lane] as usize + offset;
            // All bytes are inside, or each word is looked at by itself.
            for (word, lanes) in loaded.iter_mut().take(words).enumerate() {
                lanes[lane] = u32::from_le_bytes(self.lds_read(at + 4 * word));
            }
        }
        for (word, lanes) in loaded.iter().take(words).enumerate() {
            self.put(inst.dst + word as u16, lanes);
        }
    }

    /// Writes `words` of each lane from registers one after the other.
    fn lds_store(&mut self, inst: &Inst, words: usize, offset: usize, data: Src) {
        let addresses = self.lanes(inst.src[0]);
        for word in 0..words {
            let values = self.lanes(Src { code: data.code + word as u16, value: 0 });
            for lane in 0..LANES {
                if self.wave.mask[lane] != 0 {
                    self.lds_write(addresses[lane] as usize + offset + 4 * word, values[lane].to_le_bytes());
                }
            }
        }
    }

    /// Reads at two places. The first result may not change the address before the second is read.
    fn lds_load_two(&mut self, inst: &Inst, words: usize, unit: usize) {
        let addresses = self.lanes(inst.src[0]);
        let [first, second] = two_offsets(inst, unit);
        let mut loaded = [[0; LANES]; 4];
        for lane in 0..LANES {
            if self.wave.mask[lane] == 0 {
                continue;
            }
            for word in 0..words {
                let at = addresses[lane] as usize + 4 * word;
                loaded[word][lane] = u32::from_le_bytes(self.lds_read(at + first));
                loaded[words + word][lane] = u32::from_le_bytes(self.lds_read(at + second));
            }
        }
        for (word, lanes) in loaded.iter().take(2 * words).enumerate() {
            self.put(inst.dst + word as u16, lanes);
        }
    }

    fn lds_store_two(&mut self, inst: &Inst, words: usize, unit: usize) {
        let [first, second] = two_offsets(inst, unit);
        self.lds_store(inst, words, first, inst.src[1]);
        self.lds_store(inst, words, second, inst.src[2]);
    }

    /// Reads less than a word.
    fn lds_load_part(&mut self, inst: &Inst, convert: impl Fn([u8; 2]) -> u32, bytes: usize) {
        let addresses = self.lanes(inst.src[0]);
        let mut loaded = [0; LANES];
        for lane in 0..LANES {
            let at = addresses[lane] as usize + inst.imm as usize;
            let byte = |index: usize| if index < bytes { self.lds_read::<1>(at + index)[0] } else { 0 };
            loaded[lane] = convert([byte(0), byte(1)]);
        }
        self.put(inst.dst, &loaded);
    }

    fn lds_store_part<const N: usize>(&mut self, inst: &Inst) {
        let (addresses, values) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
        for lane in 0..LANES {
            if self.wave.mask[lane] != 0
                && let Some(bytes) = values[lane].to_le_bytes().first_chunk::<N>()
            {
                self.lds_write(addresses[lane] as usize + inst.imm as usize, *bytes);
            }
        }
    }

    pub(super) fn lds(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let offset = inst.imm as usize;
        match op {
            DS_READ_B32 => self.lds_load(inst, 1, offset),
            DS_READ_B64 => self.lds_load(inst, 2, offset),
            DS_READ_B96 => self.lds_load(inst, 3, offset),
            DS_READ_B128 => self.lds_load(inst, 4, offset),
            DS_READ2_B32 => self.lds_load_two(inst, 1, 4),
            DS_READ2_B64 => self.lds_load_two(inst, 2, 8),
            DS_READ2ST64_B32 => self.lds_load_two(inst, 1, 4 * 64),
            DS_READ2ST64_B64 => self.lds_load_two(inst, 2, 8 * 64),
            DS_WRITE_B32 => self.lds_store(inst, 1, offset, inst.src[1]),
            DS_WRITE_B64 => self.lds_store(inst, 2, offset, inst.src[1]),
            DS_WRITE_B96 => self.lds_store(inst, 3, offset, inst.src[1]),
            DS_WRITE_B128 => self.lds_store(inst, 4, offset, inst.src[1]),
            DS_WRITE2_B32 => self.lds_store_two(inst, 1, 4),
            DS_WRITE2_B64 => self.lds_store_two(inst, 2, 8),
            DS_WRITE2ST64_B32 => self.lds_store_two(inst, 1, 4 * 64),
            DS_WRITE2ST64_B64 => self.lds_store_two(inst, 2, 8 * 64),
            DS_WRITE_B8 => self.lds_store_part::<1>(inst),
            DS_WRITE_B16 => self.lds_store_part::<2>(inst),
            DS_READ_U8 => self.lds_load_part(inst, |bytes| u32::from(bytes[0]), 1),
            DS_READ_I8 => self.lds_load_part(inst, |bytes| bytes[0] as i8 as u32, 1),
            DS_READ_U16 => self.lds_load_part(inst, |bytes| u32::from(u16::from_le_bytes(bytes)), 2),
            DS_READ_I16 => self.lds_load_part(inst, |bytes| i16::from_le_bytes(bytes) as u32, 2),
            DS_PERMUTE_B32 | DS_BPERMUTE_B32 => self.permute(op, inst),
            _ if op <= DS_CMPST_RTN_B32 => return self.lds_atomic(op, inst),
            _ => return unsupported(op, "this instruction"),
        }
        Ok(())
    }

    /// Lanes exchange values: lane numbers are addresses of words. What a lane outside EXEC has is zero.
    fn permute(&mut self, op: Op, inst: &Inst) {
        let (addresses, values) = (self.lanes(inst.src[0]), self.lanes(inst.src[1]));
        let other = |lane: usize| (addresses[lane].wrapping_add(inst.imm as u32) / 4) as usize % LANES;
        let values: Lanes = std::array::from_fn(|lane| values[lane] & self.wave.mask[lane]);
        let mut result = [0; LANES];
        for lane in 0..LANES {
            if op == DS_BPERMUTE_B32 {
                result[lane] = values[other(lane)];
            } else if self.wave.mask[lane] != 0 {
                result[other(lane)] = values[lane];
            }
        }
        self.put(inst.dst, &result);
    }

    /// One lane after the other.
    fn lds_atomic(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let addresses = self.lanes(inst.src[0]);
        let (data, second) = (self.lanes(inst.src[1]), self.lanes(inst.src[2]));
        let mut returned = [0; LANES];
        for lane in 0..LANES {
            if self.wave.mask[lane] == 0 {
                continue;
            }
            let at = addresses[lane] as usize + inst.imm as usize;
            let old = u32::from_le_bytes(self.lds_read(at));
            let new = updated(op, old, data[lane], second[lane]);
            returned[lane] = old;
            self.lds_write(at, new.to_le_bytes());
        }
        if op >= DS_ADD_RTN_U32 {
            self.put(inst.dst, &returned);
        }
        Ok(())
    }
}

/// The offsets of both places.
fn two_offsets(inst: &Inst, unit: usize) -> [usize; 2] {
    let offsets = inst.imm as usize;
    [(offsets & 0xff) * unit, (offsets >> 8 & 0xff) * unit]
}

/// What LDS holds after an atomic operation.
fn updated(op: Op, old: u32, data: u32, second: u32) -> u32 {
    match op {
        DS_ADD_U32 | DS_ADD_RTN_U32 => old.wrapping_add(data),
        DS_SUB_U32 | DS_SUB_RTN_U32 => old.wrapping_sub(data),
        DS_RSUB_U32 | DS_RSUB_RTN_U32 => data.wrapping_sub(old),
        DS_INC_U32 | DS_INC_RTN_U32 => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        DS_DEC_U32 | DS_DEC_RTN_U32 => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        DS_MIN_I32 | DS_MIN_RTN_I32 => (old as i32).min(data as i32) as u32,
        DS_MAX_I32 | DS_MAX_RTN_I32 => (old as i32).max(data as i32) as u32,
        DS_MIN_U32 | DS_MIN_RTN_U32 => old.min(data),
        DS_MAX_U32 | DS_MAX_RTN_U32 => old.max(data),
        DS_AND_B32 | DS_AND_RTN_B32 => old & data,
        DS_OR_B32 | DS_OR_RTN_B32 => old | data,
        DS_XOR_B32 | DS_XOR_RTN_B32 => old ^ data,
        DS_WRXCHG_RTN_B32 => data,
        // Expected first, then the new value.
        _ if old == data => second,
        _ => old,
    }
}
