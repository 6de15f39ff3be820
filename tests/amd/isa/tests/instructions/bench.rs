//! Single instructions, or a few, on a wave with known registers.

use std::cell::Cell;

use gfx9::decode::Arch;
use gfx9::exec::{self, Launch, Stop};
use gfx9::memory::{Fault, Memory, Pieces};
use gfx9::program::Program;
use gfx9::wave::{LANES, Place, Registers, Wave};

pub(crate) use gfx9::wave::LANES as LANES_OF_TEST;

/// What the bench itself needs.
pub(crate) const INSTRUCTIONS: &[&str] = &["s_endpgm"];

pub(crate) const PLACE: Place =
    Place { vector: 16, vectors: 64, scalar: 100, scalars: 104, accumulation: 32 };
/// Where the program lies in the code object, and what is added when it is loaded.
pub(crate) const BASE: u64 = 0x1000;
pub(crate) const LOADED_AT: u64 = 0x7777_0000_0000;

/// Numbers that look random and are the same in every run.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A word at an edge, near another, small, or any.
    pub(crate) fn word(&mut self) -> u32 {
        const EDGES: [u32; 28] = [
            0,
            1,
            2,
            31,
            32,
            33,
            63,
            64,
            0x7fff,
            0x8000,
            0xffff,
            0x7f_ffff,
            0x80_0000,
            0xff_ffff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x3f80_0000,
            0xbf80_0000,
            0x3f00_0000,
            0x4020_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x7fa0_0001,
            0xffc1_2345,
            0x7f7f_ffff,
            0x807f_ffff,
        ];
        let any = self.next() >> 16;
        match any % 4 {
            0 => EDGES[(any >> 8) as usize % EDGES.len()],
            1 => (any >> 8) as u32 & 0xff,
            // A float of ordinary size.
            2 => (any >> 8) as u32 & 0x80ff_ffff | 0x3f00_0000,
            _ => (any >> 8) as u32,
        }
    }
}

/// A wave before and after.
#[derive(Clone)]
pub(crate) struct State {
    /// Empty where only scalar registers are looked at.
    pub(crate) vector: Vec<[u32; LANES]>,
    pub(crate) scalar: Vec<u32>,
    pub(crate) exec: u64,
    pub(crate) vcc: u64,
    pub(crate) scc: bool,
}

pub(crate) struct Bench {
    pub(crate) wave: Wave,
    pub(crate) registers: Registers,
    pub(crate) lds: Vec<u8>,
    pub(crate) memory: Pieces,
    pub(crate) scratch: Vec<Cell<u8>>,
    pub(crate) arch: Arch,
}

impl Bench {
    /// Registers of all kinds with noise in them.
    pub(crate) fn new(noise: &mut Noise, arch: Arch) -> Self {
        let mut bench = Self {
            wave: Wave::new(0, 0, PLACE),
            registers: Registers::filled(0),
            lds: vec![0; 4096],
            memory: Pieces::default(),
            scratch: vec![Cell::new(0); 64 << 10],
            arch,
        };
        bench.renew(noise);
        bench
    }

    /// Other noise in the same registers: what has many cases takes their memory once.
    pub(crate) fn renew(&mut self, noise: &mut Noise) {
        // Its own, and some around them.
        let around = PLACE.vector - 4..PLACE.vector + PLACE.vectors + 4;
        self.registers.vector[around].iter_mut().flatten().for_each(|lane| *lane = noise.word());
        self.registers.scalar.iter_mut().for_each(|register| *register = noise.word());
        let exec = match noise.next() >> 60 {
            0..=3 => u64::MAX,
            4 => 0,
            5 => 1 << 63,
            _ => noise.next(),
        };
        self.wave = Wave::new(0, exec, PLACE);
        self.wave.set_vcc(noise.next());
        self.wave.set_scc(noise.next() >> 63 == 1);
        self.lds.iter_mut().for_each(|byte| *byte = noise.next() as u8);
    }

    /// The wave and its scalar registers.
    pub(crate) fn scalars(&self) -> State {
        State {
            vector: Vec::new(),
            scalar: self.registers.scalar.clone(),
            exec: self.wave.exec(),
            vcc: self.wave.vcc(),
            scc: self.wave.scc(),
        }
    }

    pub(crate) fn state(&self) -> State {
        State { vector: self.registers.vector.clone(), ..self.scalars() }
    }

    /// Runs words until they stop.
    pub(crate) fn run(&mut self, words: &[u32], budget: u64) -> Result<Stop, Fault> {
        self.wave.set_next(0);
        let program = Program::decode(BASE, words, self.arch);
        let launch = Launch {
            program: &program,
            arch: self.arch,
            loaded_at: LOADED_AT,
            scratch: &self.scratch,
            arguments: &[],
            clock: &Cell::new(0),
        };
        let memory: &dyn Memory = &self.memory;
        exec::run(&mut self.wave, &mut self.registers, &mut self.lds, &launch, memory, budget)
    }

    /// Runs one instruction.
    pub(crate) fn step(&mut self, asm: &str) {
        let words = [crate::assembled::words(asm), crate::assembled::words("s_endpgm")].concat();
        assert_eq!(self.run(&words, 2), Ok(Stop::End), "{asm}");
    }

    pub(crate) fn v(&mut self, number: usize) -> &mut [u32; LANES] {
        &mut self.registers.vector[PLACE.vector + number]
    }

    pub(crate) fn s(&mut self, number: usize) -> &mut u32 {
        &mut self.registers.scalar[PLACE.scalar + number]
    }
}
