//! SMEM, FLAT, GLOBAL, SCRATCH, MUBUF: sections "Scalar Memory Operations", "Vector Memory Operations", "Flat Memory
//! Instructions". Buffers are known as compilers use them for stacks: swizzled by lane.

use std::sync::LazyLock;
use std::time::Instant;

use super::{Core, unsupported};
use crate::decode::{Inst, Segment};
use crate::memory::{Access, Fault, load, store};
use crate::ops::Op;
use crate::ops::Op::*;
use crate::wave::{LANES, PRIVATE_APERTURE, SHARED_APERTURE};

/// No scalar address.
const OFF: u16 = 0x7f;
/// The most bytes of a lane.
const MOST: usize = 16;

/// Where a lane's bytes are.
#[derive(Debug, Clone, Copy)]
enum At {
    Global(u64),
    Lds(u64),
    /// The base of the wave's scratch, and an offset in the lane's.
    Scratch(u64, u64),
}

/// The bytes that an instruction moves, and their conversion.
struct Shape {
    bytes: usize,
    store: bool,
    signed: bool,
    /// The upper half of a register, or the lower without changing the upper.
    upper: bool,
    d16: bool,
}

impl Shape {
    fn of(op: Op) -> Self {
        let (bytes, store) = match op {
            LOAD_UBYTE | LOAD_SBYTE | LOAD_UBYTE_D16 | LOAD_UBYTE_D16_HI | LOAD_SBYTE_D16
            | LOAD_SBYTE_D16_HI => (1, false),
            LOAD_USHORT | LOAD_SSHORT | LOAD_SHORT_D16 | LOAD_SHORT_D16_HI => (2, false),
            LOAD_DWORD => (4, false),
            LOAD_DWORDX2 => (8, false),
            LOAD_DWORDX3 => (12, false),
            LOAD_DWORDX4 => (16, false),
            STORE_BYTE | STORE_BYTE_D16_HI => (1, true),
            STORE_SHORT | STORE_SHORT_D16_HI => (2, true),
            STORE_DWORD => (4, true),
            STORE_DWORDX2 => (8, true),
            STORE_DWORDX3 => (12, true),
            _ => (16, true),
        };
        let signed = matches!(op, LOAD_SBYTE | LOAD_SSHORT | LOAD_SBYTE_D16 | LOAD_SBYTE_D16_HI);
        let upper = matches!(
            op,
            STORE_BYTE_D16_HI
                | STORE_SHORT_D16_HI
                | LOAD_UBYTE_D16_HI
                | LOAD_SBYTE_D16_HI
                | LOAD_SHORT_D16_HI
        );
        let d16 = op >= LOAD_UBYTE_D16 && op <= LOAD_SHORT_D16_HI;
        Self { bytes, store, signed, upper, d16 }
    }
}

/// The bytes of a lane's scratch: dwords of all lanes lie side by side.
fn swizzled(base: u64, offset: u64, lane: usize) -> u64 {
    let offset = (offset / 4).wrapping_mul(4 * LANES as u64).wrapping_add(lane as u64 * 4 + offset % 4);
    base.wrapping_add(offset)
}

/// Lanes of a mask.
fn each(mut exec: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = exec.trailing_zeros() as usize;
        (exec != 0).then(|| {
            exec &= exec - 1;
            lane
        })
    })
}

/// The clock that runs at 100 MHz whatever the chip does, from some time on.
fn real_time() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    (START.elapsed().as_nanos() / 10) as u64
}

impl Core<'_> {
    pub(super) fn scalar_memory(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let count = match op {
            S_LOAD_DWORD => 1,
            S_LOAD_DWORDX2 => 2,
            S_LOAD_DWORDX4 => 4,
            S_LOAD_DWORDX8 => 8,
            S_LOAD_DWORDX16 => 16,
            S_MEMREALTIME => {
                self.set64(inst.dst, real_time());
                return Ok(());
            }
            _ => {
                self.set64(inst.dst, self.launch.clock.get());
                return Ok(());
            }
        };
        let offset = if inst.offen { u64::from(self.s32(inst.src[1])) } else { 0 };
        let base = self.s64(inst.src[0]);
        let address = base.wrapping_add(offset).wrapping_add(i64::from(inst.imm) as u64) & !3;
        let mut words = [0u32; 16];
        let cells = self.bytes(address, 4 * count as u64, Access::Read)?;
        for (word, cells) in words.iter_mut().zip(cells.chunks_exact(4)) {
            *word = u32::from_le_bytes(load(cells));
        }
        for (index, word) in words.iter().take(count).enumerate() {
            self.set32(inst.dst + index as u16, *word);
        }
        Ok(())
    }

    /// Where each lane's bytes are.
    fn places(&self, op: Op, inst: &Inst) -> Result<[At; LANES], Fault> {
        let imm = i64::from(inst.imm) as u64;
        let saddr = inst.src[2].code;
        Ok(match inst.segment {
            Segment::Global if saddr == OFF => {
                self.wide_lanes(inst.src[0]).map(|address| At::Global(address.wrapping_add(imm)))
            }
            Segment::Global => {
                let base = self.s64(inst.src[2]).wrapping_add(imm);
                self.lanes(inst.src[0]).map(|offset| At::Global(base.wrapping_add(u64::from(offset))))
            }
            Segment::Flat => self.wide_lanes(inst.src[0]).map(|address| {
                let address = address.wrapping_add(imm);
                match address & !0xffff_ffff {
                    SHARED_APERTURE => At::Lds(address - SHARED_APERTURE),
                    PRIVATE_APERTURE => At::Scratch(self.wave.flat_scratch, address - PRIVATE_APERTURE),
                    _ => At::Global(address),
                }
            }),
            Segment::Scratch => {
                let scalar = if saddr == OFF { 0 } else { self.s32(inst.src[2]) };
                let offsets = if inst.offen { self.lanes(inst.src[0]) } else { [0; LANES] };
                offsets.map(|offset| {
                    let offset = offset.wrapping_add(scalar).wrapping_add(inst.imm as u32);
                    At::Scratch(self.wave.flat_scratch, u64::from(offset))
                })
            }
            Segment::Buffer => {
                let word = |index: u16| {
                    self.s32(crate::decode::Src { code: u16::from(inst.sdst) + index, value: 0 })
                };
                let (swizzle, by_lane) = (word(1) >> 31 == 1, word(3) >> 23 & 1 == 1);
                if !swizzle || !by_lane {
                    return unsupported(op, "a buffer that is no stack");
                }
                let base = u64::from(word(0)) | u64::from(word(1) & 0xffff) << 32;
                let base = base.wrapping_add(u64::from(self.s32(inst.src[2])));
                let offsets = if inst.offen { self.lanes(inst.src[0]) } else { [0; LANES] };
                offsets.map(|offset| At::Scratch(base, u64::from(offset).wrapping_add(imm)))
            }
        })
    }

    fn read(&self, at: At, lane: usize, into: &mut [u8]) -> Result<(), Fault> {
        let bytes = into.len() as u64;
        match at {
            At::Global(address) => {
                let cells = self.bytes(address, bytes, Access::Read)?;
                into.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = cell.get());
            }
            At::Lds(offset) => {
                for (index, byte) in into.iter_mut().enumerate() {
                    *byte = self.lds.get(offset as usize + index).copied().unwrap_or(0);
                }
            }
            At::Scratch(base, offset) => {
                for (index, byte) in into.iter_mut().enumerate() {
                    let address = swizzled(base, offset + index as u64, lane);
                    *byte = load::<1>(self.bytes(address, 1, Access::Read)?)[0];
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, at: At, lane: usize, from: &[u8]) -> Result<(), Fault> {
        match at {
            At::Global(address) => store(self.bytes(address, from.len() as u64, Access::Write)?, from),
            At::Lds(offset) => {
                for (index, byte) in from.iter().enumerate() {
                    if let Some(there) = self.lds.get_mut(offset as usize + index) {
                        *there = *byte;
                    }
                }
            }
            At::Scratch(base, offset) => {
                for (index, byte) in from.iter().enumerate() {
                    let address = swizzled(base, offset + index as u64, lane);
                    store(self.bytes(address, 1, Access::Write)?, &[*byte]);
                }
            }
        }
        Ok(())
    }

    /// The bytes that all lanes of EXEC use, where they lie in one range.
    fn span(&self, places: &[At; LANES], bytes: usize) -> Option<(u64, u64)> {
        let (mut low, mut high) = (u64::MAX, 0);
        for lane in each(self.wave.exec()) {
            let At::Global(address) = places[lane] else { return None };
            low = low.min(address);
            high = high.max(address);
        }
        let length = high.checked_sub(low)?.checked_add(bytes as u64)?;
        low.checked_add(length).map(|_| (low, length))
    }

    pub(super) fn vector_memory(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        if op >= ATOMIC_SWAP {
            return self.atomic(op, inst);
        }
        let exec = self.wave.exec();
        if exec == 0 {
            return Ok(());
        }
        let shape = Shape::of(op);
        let places = self.places(op, inst)?;
        if shape.store {
            self.store_lanes(inst, &shape, &places)
        } else {
            self.load_lanes(inst, &shape, &places)
        }
    }

    fn load_lanes(&mut self, inst: &Inst, shape: &Shape, places: &[At; LANES]) -> Result<(), Fault> {
        let exec = self.wave.exec();
        let words = shape.bytes.div_ceil(4);
        let mut loaded = [[0u32; LANES]; MOST / 4];
        let span = self.span(places, shape.bytes);
        let range = span.and_then(|(low, length)| Some((low, self.bytes(low, length, Access::Read).ok()?)));
        if let (Some((low, cells)), true) = (range, shape.bytes >= 4) {
            for lane in each(exec) {
                let At::Global(address) = places[lane] else { continue };
                let own = &cells[(address - low) as usize..][..shape.bytes];
                for (word, cells) in own.chunks_exact(4).enumerate() {
                    loaded[word][lane] = u32::from_le_bytes(load(cells));
                }
            }
        } else {
            for lane in each(exec) {
                let mut bytes = [0; MOST];
                self.read(places[lane], lane, &mut bytes[..shape.bytes])?;
                for word in 0..words {
                    let Some(own) = bytes[4 * word..].first_chunk() else { continue };
                    loaded[word][lane] = u32::from_le_bytes(*own);
                }
            }
        }
        if shape.signed {
            let unused = 32 - 8 * shape.bytes as u32;
            loaded[0].iter_mut().for_each(|x| *x = ((*x << unused) as i32 >> unused) as u32);
        }
        if shape.d16 {
            let old = self.lanes(crate::decode::Src { code: inst.dst, value: 0 });
            for (new, old) in loaded[0].iter_mut().zip(old) {
                *new =
                    if shape.upper { *new << 16 | old & 0xffff } else { old & 0xffff_0000 | *new & 0xffff };
            }
        }
        for (word, lanes) in loaded.iter().take(words).enumerate() {
            self.put(inst.dst + word as u16, lanes);
        }
        Ok(())
    }

    fn store_lanes(&mut self, inst: &Inst, shape: &Shape, places: &[At; LANES]) -> Result<(), Fault> {
        let exec = self.wave.exec();
        let words = shape.bytes.div_ceil(4);
        let mut data = [[0u32; LANES]; MOST / 4];
        for (word, lanes) in data.iter_mut().take(words).enumerate() {
            let mut src = inst.src[1];
            src.code += word as u16;
            *lanes = self.lanes(src);
        }
        if shape.upper {
            data[0].iter_mut().for_each(|x| *x >>= 16);
        }
        let bytes_of = |lane: usize| {
            let mut bytes = [0; MOST];
            for word in 0..words {
                bytes[4 * word..4 * word + 4].copy_from_slice(&data[word][lane].to_le_bytes());
            }
            bytes
        };
        let span = self.span(places, shape.bytes);
        let range = span.and_then(|(low, length)| Some((low, self.bytes(low, length, Access::Write).ok()?)));
        if let Some((low, cells)) = range {
            for lane in each(exec) {
                let At::Global(address) = places[lane] else { continue };
                store(&cells[(address - low) as usize..], &bytes_of(lane)[..shape.bytes]);
            }
        } else {
            for lane in each(exec) {
                self.write(places[lane], lane, &bytes_of(lane)[..shape.bytes])?;
            }
        }
        Ok(())
    }

    /// One lane after the other; GLC returns the old value.
    fn atomic(&mut self, op: Op, inst: &Inst) -> Result<(), Fault> {
        let wide = op >= ATOMIC_SWAP_X2;
        let places = self.places(op, inst)?;
        let source = |core: &Self, from: u16| {
            let mut src = inst.src[1];
            src.code += from;
            if wide { core.wide_lanes(src) } else { core.lanes(src).map(u64::from) }
        };
        let data = source(self, 0);
        let compare = source(self, if wide { 2 } else { 1 });
        let mut old = [0u64; LANES];
        for lane in each(self.wave.exec()) {
            let mut bytes = [0; 8];
            let size = if wide { 8 } else { 4 };
            self.read(places[lane], lane, &mut bytes[..size])?;
            old[lane] = u64::from_le_bytes(bytes);
            let new = updated(op, old[lane], data[lane], compare[lane]);
            self.write(places[lane], lane, &new.to_le_bytes()[..size])?;
        }
        if inst.flag {
            if wide {
                self.put_wide(inst.dst, &old);
            } else {
                self.put(inst.dst, &old.map(|x| x as u32));
            }
        }
        Ok(())
    }
}

/// What memory holds after an atomic operation.
fn updated(op: Op, old: u64, data: u64, compare: u64) -> u64 {
    let narrow = |x: u64| x as u32 as i32;
    match op {
        ATOMIC_SWAP | ATOMIC_SWAP_X2 => data,
        // The first register is the new value, the second what is expected.
        ATOMIC_CMPSWAP | ATOMIC_CMPSWAP_X2 => {
            if old == compare {
                data
            } else {
                old
            }
        }
        ATOMIC_ADD | ATOMIC_ADD_X2 => old.wrapping_add(data),
        ATOMIC_SUB | ATOMIC_SUB_X2 => old.wrapping_sub(data),
        ATOMIC_SMIN => narrow(old).min(narrow(data)) as u64,
        ATOMIC_SMAX => narrow(old).max(narrow(data)) as u64,
        ATOMIC_SMIN_X2 => (old as i64).min(data as i64) as u64,
        ATOMIC_SMAX_X2 => (old as i64).max(data as i64) as u64,
        ATOMIC_UMIN | ATOMIC_UMIN_X2 => old.min(data),
        ATOMIC_UMAX | ATOMIC_UMAX_X2 => old.max(data),
        ATOMIC_AND | ATOMIC_AND_X2 => old & data,
        ATOMIC_OR | ATOMIC_OR_X2 => old | data,
        ATOMIC_XOR | ATOMIC_XOR_X2 => old ^ data,
        ATOMIC_INC | ATOMIC_INC_X2 => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        ATOMIC_DEC | ATOMIC_DEC_X2 => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        _ => {
            let [a, b] = [old, data].map(|x| f32::from_bits(x as u32));
            u64::from(crate::float::single::add(a, b).to_bits())
        }
    }
}
