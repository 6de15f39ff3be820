//! What kernels reach, and why a kernel ends badly.

use std::cell::Cell;
use std::fmt;

use crate::decode::Unknown;

/// What an instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, and perhaps reads.
    Write,
}

/// Why an address cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is mapped there.
    NotPresent,
    /// It may only be read.
    ReadOnly,
}

/// Global memory.
pub trait Memory {
    /// The bytes from `address` on, exactly `bytes`; all of them allow the access.
    fn at(&self, address: u64, bytes: u64, access: Access) -> Result<&[Cell<u8>], Reason>;
}

/// How a kernel ends badly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// An address that cannot be used so.
    Memory {
        /// Which.
        address: u64,
        /// Why.
        reason: Reason,
        /// What for.
        access: Access,
    },
    /// The kernel ran into `s_trap` with this number.
    Trap(u8),
    /// An encoding that this crate does not know.
    Unknown {
        /// Where in the code object.
        at: u64,
        /// What.
        unknown: Unknown,
    },
    /// The program counter left the code.
    Code(u64),
    /// Something that this crate does not model.
    Unsupported(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { address, reason, access } => {
                let verb = if *access == Access::Read { "read" } else { "write" };
                let why =
                    if *reason == Reason::NotPresent { "nothing is mapped there" } else { "it is read-only" };
                write!(f, "a {verb} at {address:#x}: {why}")
            }
            Self::Trap(number) => write!(f, "s_trap {number}"),
            Self::Unknown { at, unknown } => write!(f, "at {at:#x}: {unknown}"),
            Self::Code(at) => write!(f, "no code at {at:#x}"),
            Self::Unsupported(what) => write!(f, "not modelled: {what}"),
        }
    }
}

/// Little-endian numbers of memory.
pub(crate) fn load<const N: usize>(cells: &[Cell<u8>]) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, cell) in bytes.iter_mut().zip(cells) {
        *byte = cell.get();
    }
    bytes
}

/// Writes bytes.
pub(crate) fn store(cells: &[Cell<u8>], bytes: &[u8]) {
    for (cell, byte) in cells.iter().zip(bytes) {
        cell.set(*byte);
    }
}

/// Global memory of a test: pieces at addresses of their own.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: Vec<(u64, bool, Vec<Cell<u8>>)>,
}

impl Pieces {
    /// Adds bytes at an address.
    pub fn add(&mut self, address: u64, bytes: &[u8], writable: bool) {
        self.pieces.push((address, writable, bytes.iter().map(|byte| Cell::new(*byte)).collect()));
    }

    /// The bytes of the piece at this address.
    pub fn bytes(&self, address: u64) -> Vec<u8> {
        let piece = self.pieces.iter().find(|(at, _, _)| *at == address);
        piece.map(|(_, _, cells)| cells.iter().map(Cell::get).collect()).unwrap_or_default()
    }
}

impl Memory for Pieces {
    fn at(&self, address: u64, bytes: u64, access: Access) -> Result<&[Cell<u8>], Reason> {
        for (base, writable, cells) in &self.pieces {
            let Some(offset) = address.checked_sub(*base) else { continue };
            let Some(end) = offset.checked_add(bytes) else { continue };
            if end <= cells.len() as u64 {
                if access == Access::Write && !writable {
                    return Err(Reason::ReadOnly);
                }
                return Ok(&cells[offset as usize..end as usize]);
            }
        }
        Err(Reason::NotPresent)
    }
}
