//! A wave of 64 lanes: its registers, and how operands name them.

use crate::decode::{AGPR, Src, VGPR};

/// Lanes of a wave.
pub const LANES: usize = 64;
/// A value of each lane.
pub type Lanes = [u32; LANES];

/// Where FLAT instructions find LDS (`src_shared_base`): section "Flat Memory Instructions".
pub const SHARED_APERTURE: u64 = 1 << 48;
/// Where FLAT instructions find scratch (`src_private_base`).
pub const PRIVATE_APERTURE: u64 = 2 << 48;
/// The device's own memory for scratch.
pub const SCRATCH: u64 = 1 << 47;
/// The device's own memory for arguments and dispatch packets of a launch.
pub const ARGUMENTS: u64 = 0x9 << 44;

/// Vector registers of a SIMD, each of 64 lanes, and its scalar registers: what waves have a part of.
#[derive(Debug)]
pub struct Registers {
    /// Vector and accumulation registers.
    pub vector: Vec<Lanes>,
    /// Scalar registers.
    pub scalar: Vec<u32>,
}

impl Registers {
    /// Vector registers of a SIMD.
    pub const VECTOR: usize = 512;
    /// Scalar registers of a SIMD.
    pub const SCALAR: usize = 800;

    /// Registers with a value in each, so that code that relies on zeroes is seen.
    pub fn filled(value: u32) -> Self {
        Self { vector: vec![[value; LANES]; Self::VECTOR], scalar: vec![value; Self::SCALAR] }
    }
}

/// Where a wave's registers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The first vector register.
    pub vector: usize,
    /// How many.
    pub vectors: usize,
    /// The first scalar register.
    pub scalar: usize,
    /// How many.
    pub scalars: usize,
    /// The first accumulation register, counted from `vector`.
    pub accumulation: usize,
}

/// The state of a wave beyond its registers.
#[derive(Debug, Clone)]
pub struct Wave {
    /// The number of the next instruction.
    pub(crate) pc: usize,
    exec: u64,
    /// All bits of a lane that EXEC has.
    pub(crate) mask: Lanes,
    pub(crate) vcc: u64,
    pub(crate) scc: bool,
    pub(crate) m0: u32,
    pub(crate) flat_scratch: u64,
    pub(crate) xnack: u64,
    pub(crate) trap: [u32; 16],
    pub(crate) place: Place,
    /// Of hardware registers: HW_ID, XCC_ID, MODE, LDS_ALLOC.
    pub(crate) hw_id: u32,
    pub(crate) xcc_id: u32,
    pub(crate) mode: u32,
    pub(crate) lds_alloc: u32,
}

impl Wave {
    /// A wave at an instruction with all lanes of `exec`.
    pub fn new(pc: usize, exec: u64, place: Place) -> Self {
        let mut wave = Self {
            pc,
            exec: 0,
            mask: [0; LANES],
            vcc: 0,
            scc: false,
            m0: 0,
            flat_scratch: 0,
            xnack: 0,
            trap: [0; 16],
            place,
            hw_id: 0,
            xcc_id: 0,
            mode: 0,
            lds_alloc: 0,
        };
        wave.set_exec(exec);
        wave
    }

    /// The lanes that instructions apply to.
    #[inline(always)]
    pub fn exec(&self) -> u64 {
        self.exec
    }

    /// Chooses the lanes that instructions apply to.
    pub fn set_exec(&mut self, exec: u64) {
        if exec != self.exec {
            self.exec = exec;
            for (lane, mask) in self.mask.iter_mut().enumerate() {
                *mask = 0u32.wrapping_sub((exec >> lane) as u32 & 1);
            }
        }
    }

    /// Goes on at an instruction.
    pub fn set_next(&mut self, number: usize) {
        self.pc = number;
    }

    /// VCC.
    pub fn vcc(&self) -> u64 {
        self.vcc
    }

    /// Sets VCC.
    pub fn set_vcc(&mut self, vcc: u64) {
        self.vcc = vcc;
    }

    /// Sets FLAT_SCRATCH, where the wave's scratch begins.
    pub fn set_flat_scratch(&mut self, address: u64) {
        self.flat_scratch = address;
    }

    /// True if SCC is set.
    pub fn scc(&self) -> bool {
        self.scc
    }

    /// Sets True if SCC is set.
    pub fn set_scc(&mut self, scc: bool) {
        self.scc = scc;
    }

    /// Where a vector or accumulation register is; one that the wave does not have is its first (section "Out-of-range
    /// behaviour" of VGPRs).
    #[inline(always)]
    pub(crate) fn vector(&self, code: u16) -> usize {
        let code = usize::from(code);
        let number = if code < usize::from(AGPR) {
            code - usize::from(VGPR)
        } else {
            code - usize::from(AGPR) + self.place.accumulation
        };
        self.place.vector + if number < self.place.vectors { number } else { 0 }
    }

    /// Where a scalar register is.
    #[inline(always)]
    fn scalar_index(&self, code: u16) -> usize {
        let number = usize::from(code);
        self.place.scalar + if number < self.place.scalars { number } else { 0 }
    }

    /// 32 bits of a scalar source.
    #[inline]
    pub(crate) fn read(&self, scalars: &[u32], src: Src) -> u32 {
        match src.code {
            0..=101 => scalars[self.scalar_index(src.code)],
            102 => self.flat_scratch as u32,
            103 => (self.flat_scratch >> 32) as u32,
            104 => self.xnack as u32,
            105 => (self.xnack >> 32) as u32,
            106 => self.vcc as u32,
            107 => (self.vcc >> 32) as u32,
            108..=123 => self.trap[usize::from(src.code) - 108],
            124 => self.m0,
            126 => self.exec as u32,
            127 => (self.exec >> 32) as u32,
            235 => (SHARED_APERTURE >> 32) as u32,
            237 => (PRIVATE_APERTURE >> 32) as u32,
            236 | 238 => u32::MAX,
            251 => u32::from(self.vcc == 0),
            252 => u32::from(self.exec == 0),
            253 => u32::from(self.scc),
            _ => src.value,
        }
    }

    /// 64 bits of a scalar source.
    #[inline]
    pub(crate) fn read_wide(&self, scalars: &[u32], src: Src) -> u64 {
        match src.code {
            106 => self.vcc,
            126 => self.exec,
            235 => SHARED_APERTURE,
            237 => PRIVATE_APERTURE,
            0..=127 => {
                let high = Src { code: src.code + 1, value: 0 };
                u64::from(self.read(scalars, src)) | u64::from(self.read(scalars, high)) << 32
            }
            251..=253 => u64::from(self.read(scalars, src)),
            _ => src.wide(),
        }
    }

    /// Writes a scalar register.
    #[inline]
    pub(crate) fn write(&mut self, scalars: &mut [u32], code: u16, value: u32) {
        fn low(old: u64, value: u32) -> u64 {
            old >> 32 << 32 | u64::from(value)
        }
        fn high(old: u64, value: u32) -> u64 {
            old & 0xffff_ffff | u64::from(value) << 32
        }
        match code {
            0..=101 => scalars[self.scalar_index(code)] = value,
            102 => self.flat_scratch = low(self.flat_scratch, value),
            103 => self.flat_scratch = high(self.flat_scratch, value),
            104 => self.xnack = low(self.xnack, value),
            105 => self.xnack = high(self.xnack, value),
            106 => self.vcc = low(self.vcc, value),
            107 => self.vcc = high(self.vcc, value),
            108..=123 => self.trap[usize::from(code) - 108] = value,
            124 => self.m0 = value,
            126 => self.set_exec(low(self.exec, value)),
            127 => self.set_exec(high(self.exec, value)),
            _ => {}
        }
    }

    /// Writes a pair of scalar registers.
    #[inline]
    pub(crate) fn write_wide(&mut self, scalars: &mut [u32], code: u16, value: u64) {
        match code {
            106 => self.vcc = value,
            126 => self.set_exec(value),
            _ => {
                self.write(scalars, code, value as u32);
                self.write(scalars, code + 1, (value >> 32) as u32);
            }
        }
    }
}
