//! Room on a compute unit: registers, wave slots, LDS.

use std::ops::Range;

use super::{Dispatch, LDS_BYTES, SIMDS, THREADS, WAVES};
use crate::memory::Fault;
use crate::object::Kernel;
use crate::wave::{Place, Registers};

/// What a workgroup needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    waves: usize,
    vectors: usize,
    scalars: usize,
    accumulation: usize,
    lds: usize,
}

impl Needs {
    /// Of a launch: section "Kernel Descriptor" of LLVM's guide.
    pub(super) fn of(kernel: &Kernel, dispatch: &Dispatch<'_>) -> Result<Self, Fault> {
        let unsupported = |what: String| Err(Fault::Unsupported(what));
        let [rsrc1, _, rsrc3] = kernel.rsrc;
        let threads = dispatch.block.iter().try_fold(1u32, |product, side| product.checked_mul(*side));
        let threads = threads.filter(|threads| (1..=THREADS).contains(threads));
        let Some(threads) = threads else { return unsupported(format!("a block of {:?}", dispatch.block)) };
        let lds = u64::from(kernel.lds_bytes) + u64::from(dispatch.lds_bytes);
        if lds > u64::from(LDS_BYTES) {
            return unsupported(format!("{lds} bytes of LDS"));
        }
        // Round to nearest even, all denormals kept.
        if rsrc1 >> 12 & 0xff != 0xf0 {
            return unsupported(format!("float mode {:#x}", rsrc1 >> 12 & 0xff));
        }
        if kernel.preload & 0x7f != 0 {
            return unsupported("preloaded arguments".to_owned());
        }
        Ok(Self {
            waves: threads.div_ceil(64) as usize,
            vectors: ((rsrc1 & 0x3f) as usize + 1) * 8,
            scalars: ((rsrc1 >> 6 & 0xf) as usize / 2 + 1) * 16,
            accumulation: ((rsrc3 & 0x3f) as usize + 1) * 4,
            // Given out in pieces of 512 bytes.
            lds: (lds as usize).next_multiple_of(512),
        })
    }
}

/// Where a wave lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) simd: usize,
    pub(super) slot: usize,
    pub(super) place: Place,
}

/// What a workgroup has.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) waves: Vec<Slot>,
    pub(super) lds: Range<usize>,
}

/// A compute unit.
#[derive(Debug)]
pub(super) struct ComputeUnit {
    pub(super) lds: Vec<u8>,
    simds: [Simd; SIMDS],
    lds_taken: Vec<Range<usize>>,
}

#[derive(Debug)]
struct Simd {
    registers: Registers,
    slots: [Option<Place>; WAVES],
}

/// The first free range of a length in a space.
fn gap(taken: impl Iterator<Item = Range<usize>>, length: usize, space: usize) -> Option<usize> {
    let mut taken: Vec<_> = taken.collect();
    taken.sort_by_key(|range| range.start);
    let mut from = 0;
    for range in taken {
        if range.start >= from + length {
            break;
        }
        from = from.max(range.end);
    }
    (from + length <= space).then_some(from)
}

impl Simd {
    fn take(&mut self, needs: &Needs) -> Option<(usize, Place)> {
        let slot = self.slots.iter().position(Option::is_none)?;
        let taken = || self.slots.iter().flatten();
        let vector = gap(taken().map(|p| p.vector..p.vector + p.vectors), needs.vectors, Registers::VECTOR)?;
        let scalar = gap(taken().map(|p| p.scalar..p.scalar + p.scalars), needs.scalars, Registers::SCALAR)?;
        let place = Place {
            vector,
            vectors: needs.vectors,
            scalar,
            scalars: needs.scalars,
            accumulation: needs.accumulation,
        };
        self.slots[slot] = Some(place);
        Some((slot, place))
    }
}

impl ComputeUnit {
    pub(super) fn new(leftover: u8) -> Self {
        let word = u32::from_le_bytes([leftover; 4]);
        let simd = |_| Simd { registers: Registers::filled(word), slots: [None; WAVES] };
        Self {
            lds: vec![leftover; LDS_BYTES as usize],
            simds: std::array::from_fn(simd),
            lds_taken: Vec::new(),
        }
    }

    /// Room for a workgroup, its waves spread over the SIMDs.
    pub(super) fn take(&mut self, needs: &Needs) -> Option<Room> {
        let from = gap(self.lds_taken.iter().cloned(), needs.lds, self.lds.len())?;
        let mut room = Room { waves: Vec::new(), lds: from..from + needs.lds };
        for wave in 0..needs.waves {
            let found = (0..SIMDS).map(|step| (wave + step) % SIMDS).find_map(|simd| {
                self.simds[simd].take(needs).map(|(slot, place)| Slot { simd, slot, place })
            });
            match found {
                Some(slot) => room.waves.push(slot),
                None => {
                    self.free_waves(&room);
                    return None;
                }
            }
        }
        self.lds_taken.push(room.lds.clone());
        Some(room)
    }

    fn free_waves(&mut self, room: &Room) {
        for wave in &room.waves {
            self.simds[wave.simd].slots[wave.slot] = None;
        }
    }

    pub(super) fn free(&mut self, room: &Room) {
        self.free_waves(room);
        if let Some(index) = self.lds_taken.iter().position(|range| *range == room.lds) {
            self.lds_taken.swap_remove(index);
        }
    }

    /// Everything is free again, also after a fault.
    pub(super) fn free_all(&mut self) {
        self.simds.iter_mut().for_each(|simd| simd.slots = [None; WAVES]);
        self.lds_taken.clear();
    }

    pub(super) fn registers(&self) -> impl Iterator<Item = &Registers> {
        self.simds.iter().map(|simd| &simd.registers)
    }

    pub(super) fn registers_mut(&mut self, simd: usize) -> &mut Registers {
        &mut self.simds[simd].registers
    }

    /// Registers of a SIMD, and a group's LDS.
    pub(super) fn parts(&mut self, simd: usize, lds: &Range<usize>) -> (&mut Registers, &mut [u8]) {
        (&mut self.simds[simd].registers, &mut self.lds[lds.clone()])
    }
}
