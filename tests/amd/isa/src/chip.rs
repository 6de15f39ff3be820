//! A GPU's compute units: workgroups of a launch are placed on them while there is room, and run by turns until all have
//! ended. Registers, LDS and scratch keep what was in them, as on the chip.
//!
//! ```text
//!  group waits ──room──► resident ──all waves ended──► gone, its place is free
//!                          │  ▲
//!                          └──┘ a wave used up its turn or sleeps: the next resident group, or one more, runs
//! ```

mod arguments;
mod placing;

use std::cell::Cell;
use std::collections::VecDeque;

use crate::exec::{self, Launch, Stop};
use crate::memory::{Fault, Memory};
use crate::object::{CodeObject, Kernel};
use crate::wave::Wave;

use placing::{ComputeUnit, Room};

/// LDS of a compute unit.
pub const LDS_BYTES: u32 = 64 << 10;
/// Waves of a SIMD at once.
pub const WAVES: usize = 8;
/// SIMDs of a compute unit.
pub const SIMDS: usize = 4;
/// The most threads of a workgroup.
pub const THREADS: u32 = 1024;
/// Instructions that a wave runs before another group has its turn.
const TURN: u64 = 1 << 16;
/// What registers, LDS and scratch hold at first, so that code that relies on zeroes is seen.
const LEFTOVER: u8 = 0xd6;

/// The compute units.
#[derive(Debug)]
pub struct Chip {
    units: Vec<ComputeUnit>,
    scratch: Vec<Cell<u8>>,
    clock: Cell<u64>,
    /// The unit that is asked first for the next group.
    next: usize,
}

/// A launch.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'a> {
    /// The code object.
    pub object: &'a CodeObject,
    /// One of its kernels.
    pub kernel: &'a Kernel,
    /// Where the code object lies.
    pub loaded_at: u64,
    /// Workgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads of each along x, y, z.
    pub block: [u32; 3],
    /// Dynamic LDS of each.
    pub lds_bytes: u32,
    /// The kernel's visible arguments as they lie in its arguments.
    pub arguments: &'a [u8],
}

/// A workgroup with its waves.
struct Group {
    unit: usize,
    room: Room,
    waves: Vec<(Wave, State)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    Ended,
}

impl Chip {
    /// A chip with this many compute units.
    pub fn new(units: usize) -> Self {
        Self {
            units: (0..units).map(|_| ComputeUnit::new(LEFTOVER)).collect(),
            scratch: Vec::new(),
            clock: Cell::new(0),
            next: 0,
        }
    }

    /// Compute units.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// For LDS, vector registers and scalar registers: true if any unit's hold a word. For tests of leaks.
    pub fn holds(&self, word: u32) -> [bool; 3] {
        let lds = |unit: &ComputeUnit| unit.lds.chunks_exact(4).any(|bytes| bytes == word.to_le_bytes());
        let vector =
            |unit: &ComputeUnit| unit.registers().any(|file| file.vector.iter().any(|x| x.contains(&word)));
        let scalar = |unit: &ComputeUnit| unit.registers().any(|file| file.scalar.contains(&word));
        [self.units.iter().any(lds), self.units.iter().any(vector), self.units.iter().any(scalar)]
    }

    /// Runs a launch to its end.
    pub fn run(&mut self, dispatch: &Dispatch<'_>, memory: &dyn Memory) -> Result<(), Fault> {
        self.run_for(dispatch, memory, u64::MAX)
    }

    /// The same, for about so many instructions at most.
    pub fn run_for(&mut self, dispatch: &Dispatch<'_>, memory: &dyn Memory, most: u64) -> Result<(), Fault> {
        let kernel = dispatch.kernel;
        let needs = placing::Needs::of(kernel, dispatch)?;
        let entry = dispatch.object.program.number(kernel.entry).ok_or(Fault::Code(kernel.entry))?;
        let per_wave = u64::from(kernel.scratch_bytes).next_multiple_of(4) * 64;
        let all =
            usize::try_from(per_wave).unwrap_or(usize::MAX).saturating_mul(self.units.len() * SIMDS * WAVES);
        if all > 1 << 32 {
            return Err(Fault::Unsupported(format!("{} bytes of scratch", kernel.scratch_bytes)));
        }
        if self.scratch.len() < all {
            self.scratch.resize(all, Cell::new(LEFTOVER));
        }
        let arguments = arguments::lay_out(dispatch);
        let until = self.clock.get().saturating_add(most);
        let mut scratch = std::mem::take(&mut self.scratch);
        let launch = Launch {
            program: &dispatch.object.program,
            arch: dispatch.object.arch,
            loaded_at: dispatch.loaded_at,
            scratch: &scratch,
            arguments: &arguments,
            clock: &self.clock,
        };
        let (units, next) = (&mut self.units, &mut self.next);
        let ended = Running { units, next, dispatch, needs, entry, per_wave, until, launch }.run(memory);
        self.scratch = std::mem::take(&mut scratch);
        for unit in &mut self.units {
            unit.free_all();
        }
        ended
    }
}

/// A launch while it runs.
struct Running<'a> {
    units: &'a mut Vec<ComputeUnit>,
    next: &'a mut usize,
    dispatch: &'a Dispatch<'a>,
    needs: placing::Needs,
    entry: usize,
    per_wave: u64,
    /// The time at which it ends in any case.
    until: u64,
    launch: Launch<'a>,
}

impl Running<'_> {
    fn run(&mut self, memory: &dyn Memory) -> Result<(), Fault> {
        let [x, y, z] = self.dispatch.grid.map(u64::from);
        let groups = x.saturating_mul(y).saturating_mul(z);
        let place_of = |number: u64| [number % x, number / x % y, number / x / y].map(|id| id as u32);
        let mut waiting = 0..groups;
        let mut resident: VecDeque<Group> = VecDeque::new();
        let mut admit = true;
        loop {
            if admit && waiting.start < waiting.end {
                if let Some(group) = self.place(place_of(waiting.start)) {
                    waiting.start += 1;
                    // It runs next: the one that has just run is last.
                    resident.push_front(group);
                } else if resident.is_empty() {
                    return Err(Fault::Unsupported("a workgroup larger than a compute unit".to_owned()));
                }
            }
            let Some(mut group) = resident.pop_front() else { return Ok(()) };
            if self.launch.clock.get() >= self.until {
                return Err(Fault::Unsupported("a kernel that takes longer than it may".to_owned()));
            }
            if self.turn(&mut group, memory)? {
                self.units[group.unit].free(&group.room);
                admit = resident.is_empty() || waiting.start < waiting.end;
            } else {
                resident.push_back(group);
                admit = true;
            }
        }
    }

    /// Places a workgroup on the next unit that has room.
    fn place(&mut self, id: [u32; 3]) -> Option<Group> {
        for step in 0..self.units.len() {
            let unit = (*self.next + step) % self.units.len();
            if let Some(room) = self.units[unit].take(&self.needs) {
                *self.next = unit + 1;
                let waves = self.start(unit, &room, id);
                return Some(Group { unit, room, waves });
            }
        }
        None
    }

    /// Waves of a workgroup at the kernel's first instruction.
    fn start(&mut self, unit: usize, room: &Room, id: [u32; 3]) -> Vec<(Wave, State)> {
        let threads: u32 = self.dispatch.block.iter().product();
        let mut waves = Vec::new();
        for (index, slot) in room.waves.iter().enumerate() {
            let first = 64 * index as u32;
            let lanes = (threads - first).min(64);
            let exec = u64::MAX >> (64 - lanes);
            let mut wave = Wave::new(self.entry, exec, slot.place);
            let number = (unit * SIMDS + slot.simd) * WAVES + slot.slot;
            let registers = self.units[unit].registers_mut(slot.simd);
            let offset = number as u64 * self.per_wave;
            arguments::initialise(&mut wave, registers, self.dispatch, id, first, offset);
            wave.hw_id = slot.slot as u32
                | (slot.simd as u32) << 4
                | (unit as u32 & 0xf) << 8
                | (unit as u32 >> 4 & 1) << 12
                | (unit as u32 >> 5) << 13;
            wave.lds_alloc = (room.lds.start as u32 / 256) | ((room.lds.len() as u32 / 512) << 12);
            waves.push((wave, State::Ready));
        }
        waves
    }

    /// Runs a group's waves until all have ended (true) or one gives up its turn.
    fn turn(&mut self, group: &mut Group, memory: &dyn Memory) -> Result<bool, Fault> {
        loop {
            let mut gave_up = false;
            for (index, (wave, state)) in group.waves.iter_mut().enumerate() {
                if *state != State::Ready {
                    continue;
                }
                let simd = group.room.waves[index].simd;
                let (registers, lds) = self.units[group.unit].parts(simd, &group.room.lds);
                match exec::run(wave, registers, lds, &self.launch, memory, TURN)? {
                    Stop::End => *state = State::Ended,
                    Stop::Barrier => *state = State::AtBarrier,
                    Stop::Yield => gave_up = true,
                }
            }
            if group.waves.iter().all(|(_, state)| *state == State::Ended) {
                return Ok(true);
            }
            if group.waves.iter().all(|(_, state)| *state != State::Ready) {
                for (_, state) in &mut group.waves {
                    if *state == State::AtBarrier {
                        *state = State::Ready;
                    }
                }
            } else if gave_up {
                return Ok(false);
            }
        }
    }
}
