//! What each instruction does. A wave runs until it ends, waits, yields, fails, or its budget is spent.

mod compare;
mod lds;
mod memory;
mod packed;
mod scalar;
mod vector;
mod vector_float;
mod vector_wide;

use std::cell::Cell;

use crate::decode::{Arch, Inst, Src};
use crate::memory::{Access, Fault, Memory, Reason};
use crate::ops::Op;
use crate::program::Program;
use crate::wave::{ARGUMENTS, LANES, Lanes, Registers, SCRATCH, Wave};

/// Why a wave stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It has ended.
    End,
    /// It is at a barrier.
    Barrier,
    /// It sleeps, or has used up its instructions.
    Yield,
}

/// What all waves of a launch use.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The instructions.
    pub program: &'a Program,
    /// Of which architecture.
    pub arch: Arch,
    /// What is added to addresses of the code object to have those of the device.
    pub loaded_at: u64,
    /// Scratch of all waves.
    pub scratch: &'a [Cell<u8>],
    /// Arguments and dispatch packet.
    pub arguments: &'a [Cell<u8>],
    /// The clock, in instructions.
    pub clock: &'a Cell<u64>,
}

/// A wave that runs.
pub(crate) struct Core<'a> {
    pub(crate) wave: &'a mut Wave,
    pub(crate) registers: &'a mut Registers,
    pub(crate) lds: &'a mut [u8],
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) memory: &'a dyn Memory,
}

/// Runs at most `budget` instructions of a wave.
pub fn run(
    wave: &mut Wave,
    registers: &mut Registers,
    lds: &mut [u8],
    launch: &Launch<'_>,
    memory: &dyn Memory,
    budget: u64,
) -> Result<Stop, Fault> {
    let mut core = Core { wave, registers, lds, launch, memory };
    let mut left = budget;
    let stop = loop {
        if left == 0 {
            break Ok(Stop::Yield);
        }
        left -= 1;
        let number = core.wave.pc;
        let Some(inst) = launch.program.get(number) else {
            break Err(Fault::Code(launch.program.address(number)));
        };
        core.wave.pc = number + 1;
        match core.step(inst) {
            Ok(None) => {}
            Ok(Some(stop)) => break Ok(stop),
            Err(fault) => break Err(fault),
        }
    };
    launch.clock.set(launch.clock.get() + (budget - left));
    stop
}

/// Which file below knows an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Scalar,
    Control,
    ScalarMemory,
    Vector,
    Float,
    Wide,
    Packed,
    Compare,
    Lds,
    Memory,
    Nothing,
}

impl Unit {
    fn of(op: Op) -> Self {
        use Op::*;
        match op {
            S_NOP | S_WAITCNT | S_SETPRIO | S_ICACHE_INV | S_DCACHE_INV | S_DCACHE_WB | S_DCACHE_INV_VOL
            | S_DCACHE_WB_VOL | BUFFER_WBL2 | BUFFER_INV | BUFFER_WBINVL1 | BUFFER_WBINVL1_VOL | DS_NOP
            | V_NOP => Self::Nothing,
            _ if op < S_ENDPGM => Self::Scalar,
            _ if op <= S_TRAP => Self::Control,
            _ if op <= S_MEMREALTIME => Self::ScalarMemory,
            V_PK_FMA_F32 | V_PK_MUL_F32 | V_PK_ADD_F32 | V_PK_MOV_B32 => Self::Packed,
            V_CMP_CLASS_F32 | V_CMP_CLASS_F64 | V_CMP_F32 | V_CMP_F64 | V_CMP_I16 | V_CMP_U16 | V_CMP_I32
            | V_CMP_U32 | V_CMP_I64 | V_CMP_U64 => Self::Compare,
            _ if op >= DS_ADD_U32 && op <= DS_READ_B128 => Self::Lds,
            _ if op >= LOAD_UBYTE => Self::Memory,
            _ if vector_wide::knows(op) => Self::Wide,
            _ if vector_float::knows(op) => Self::Float,
            _ => Self::Vector,
        }
    }
}

/// The units of all instructions.
static UNITS: std::sync::LazyLock<Vec<Unit>> =
    std::sync::LazyLock::new(|| Op::ALL.iter().map(|op| Unit::of(*op)).collect());

impl Core<'_> {
    fn step(&mut self, inst: &Inst) -> Result<Option<Stop>, Fault> {
        let Some(op) = inst.op else {
            let at = self.launch.program.address(self.wave.pc - 1);
            return Err(Fault::Unknown { at, unknown: Program::unknown(inst, self.launch.arch) });
        };
        match UNITS[op as usize] {
            Unit::Scalar => self.scalar(op, inst).map(|()| None),
            Unit::Control => self.control(op, inst),
            Unit::ScalarMemory => self.scalar_memory(op, inst).map(|()| None),
            Unit::Vector => self.vector(op, inst).map(|()| None),
            Unit::Float => self.float(op, inst).map(|()| None),
            Unit::Wide => self.wide(op, inst).map(|()| None),
            Unit::Packed => self.packed(op, inst).map(|()| None),
            Unit::Compare => self.compare(op, inst).map(|()| None),
            Unit::Lds => self.lds(op, inst).map(|()| None),
            Unit::Memory => self.vector_memory(op, inst).map(|()| None),
            Unit::Nothing => Ok(None),
        }
    }

    /// 32 bits of a scalar source.
    #[inline(always)]
    fn s32(&self, src: Src) -> u32 {
        self.wave.read(&self.registers.scalar, src)
    }

    /// 64 bits of a scalar source.
    #[inline(always)]
    fn s64(&self, src: Src) -> u64 {
        self.wave.read_wide(&self.registers.scalar, src)
    }

    #[inline(always)]
    fn set32(&mut self, code: u16, value: u32) {
        self.wave.write(&mut self.registers.scalar, code, value);
    }

    #[inline(always)]
    fn set64(&mut self, code: u16, value: u64) {
        self.wave.write_wide(&mut self.registers.scalar, code, value);
    }

    /// 32 bits of each lane.
    #[inline(always)]
    fn lanes(&self, src: Src) -> Lanes {
        if src.is_vector() {
            self.registers.vector[self.wave.vector(src.code)]
        } else {
            [self.s32(src); LANES]
        }
    }

    /// 64 bits of each lane.
    #[inline(always)]
    fn wide_lanes(&self, src: Src) -> [u64; LANES] {
        if src.is_vector() {
            let low = &self.registers.vector[self.wave.vector(src.code)];
            let high = &self.registers.vector[self.wave.vector(src.code + 1)];
            std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
        } else {
            [self.s64(src); LANES]
        }
    }

    /// Writes a vector register in the lanes of EXEC.
    #[inline(always)]
    fn put(&mut self, code: u16, value: &Lanes) {
        let at = self.wave.vector(code);
        let (register, mask) = (&mut self.registers.vector[at], &self.wave.mask);
        for lane in 0..LANES {
            register[lane] = (value[lane] & mask[lane]) | (register[lane] & !mask[lane]);
        }
    }

    /// Writes a pair of vector registers in the lanes of EXEC.
    #[inline(always)]
    fn put_wide(&mut self, code: u16, value: &[u64; LANES]) {
        self.put(code, &std::array::from_fn(|lane| value[lane] as u32));
        self.put(code + 1, &std::array::from_fn(|lane| (value[lane] >> 32) as u32));
    }

    /// A bit for each lane of EXEC.
    #[inline(always)]
    fn bits(&self, of: impl Fn(usize) -> bool) -> u64 {
        let mut bits = 0;
        for lane in 0..LANES {
            bits |= u64::from(of(lane)) << lane;
        }
        bits & self.wave.exec()
    }

    /// Bytes of global memory, or of the device's own.
    fn bytes(&self, address: u64, bytes: u64, access: Access) -> Result<&[Cell<u8>], Fault> {
        let own = |base: u64, cells: &'_ [Cell<u8>]| {
            let from = address.checked_sub(base)?;
            (from.checked_add(bytes)? <= cells.len() as u64).then_some(from as usize)
        };
        if let Some(from) = own(SCRATCH, self.launch.scratch) {
            return Ok(&self.launch.scratch[from..from + bytes as usize]);
        }
        if let Some(from) = own(ARGUMENTS, self.launch.arguments) {
            return Ok(&self.launch.arguments[from..from + bytes as usize]);
        }
        self.memory.at(address, bytes, access).map_err(|reason: Reason| Fault::Memory {
            address,
            reason,
            access,
        })
    }
}

/// An error for what is not modelled.
fn unsupported<T>(op: Op, what: &str) -> Result<T, Fault> {
    Err(Fault::Unsupported(format!("{op:?}: {what}")))
}
