//! A code object: segments, variables, and kernels with their descriptors and arguments. Read as a loader reads what was
//! judged before; what is malformed is an error, nothing more.
//!
//! Formats are those of LLVM's "User Guide for AMDGPU Backend", sections "ELF Code Object" and "Code Object Metadata".

mod note;

use crate::decode::Arch;
use crate::program::Program;

/// A loaded piece of the code object.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Where it lies, from the code object's base on.
    pub address: u64,
    /// Its first bytes; the rest is zero.
    pub bytes: Vec<u8>,
    /// How long it is.
    pub length: u64,
    /// Kernels may write it.
    pub writable: bool,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Where it lies in the kernel's arguments.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
    /// What it is: `by_value`, `global_buffer`, `hidden_…`.
    pub kind: String,
}

/// A kernel: what the note and the descriptor say.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    pub(crate) symbol: String,
    /// Its arguments.
    pub arguments: Vec<Argument>,
    /// Bytes of all arguments.
    pub arguments_bytes: usize,
    /// Static LDS of a workgroup.
    pub lds_bytes: u32,
    /// Scratch of a lane.
    pub scratch_bytes: u32,
    /// The largest workgroup.
    pub most_threads: u32,
    /// Vector registers, for attributes.
    pub vector_registers: u32,
    pub(crate) entry: u64,
    pub(crate) rsrc: [u32; 3],
    pub(crate) properties: u16,
    pub(crate) preload: u16,
}

/// A code object.
#[derive(Debug)]
pub struct CodeObject {
    /// What it was compiled for.
    pub arch: Arch,
    /// Its target as the note has it.
    pub target: String,
    /// What is loaded.
    pub segments: Vec<Segment>,
    /// Variables by name.
    pub variables: Vec<Variable>,
    /// Kernels by name.
    pub kernels: Vec<Kernel>,
    /// Its instructions.
    pub program: Program,
}

/// Little-endian numbers of a file.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at<const N: usize>(self, offset: u64) -> Option<[u8; N]> {
        self.0.get(usize::try_from(offset).ok()?..)?.first_chunk().copied()
    }

    fn u16(self, offset: u64) -> Option<u16> {
        self.at(offset).map(u16::from_le_bytes)
    }

    fn u32(self, offset: u64) -> Option<u32> {
        self.at(offset).map(u32::from_le_bytes)
    }

    fn u64(self, offset: u64) -> Option<u64> {
        self.at(offset).map(u64::from_le_bytes)
    }

    fn range(self, offset: u64, bytes: u64) -> Option<&'a [u8]> {
        let from = usize::try_from(offset).ok()?;
        self.0.get(from..from.checked_add(usize::try_from(bytes).ok()?)?)
    }

    fn string(self, offset: u64) -> Option<&'a str> {
        let rest = self.0.get(usize::try_from(offset).ok()?..)?;
        let length = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..length]).ok()
    }
}

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const DYNAMIC_SYMBOLS: u32 = 11;
/// Segments beyond this are refused.
const MOST_BYTES: u64 = 1 << 30;

impl CodeObject {
    /// Reads a code object for gfx90a or gfx942.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        Self::read(Bytes(file)).ok_or("a code object that ends too early")?
    }

    fn read(file: Bytes<'_>) -> Option<Result<Self, String>> {
        if file.range(0, 8)? != b"\x7fELF\x02\x01\x01\x40" || file.u16(18)? != 224 {
            return Some(Err("no ELF for amdgcn-amd-amdhsa".to_owned()));
        }
        let arch = match file.u32(48)? & 0xff {
            0x3f => Arch::Gfx90a,
            0x4c => Arch::Gfx942,
            other => return Some(Err(format!("architecture {other:#x}, neither gfx90a nor gfx942"))),
        };
        let (headers, count) = (file.u64(32)?, file.u16(56)?);
        let mut segments = Vec::new();
        let mut metadata = None;
        let mut code = None;
        for header in (0..u64::from(count)).map(|index| headers.checked_add(56 * index)) {
            let header = header?;
            let (kind, flags) = (file.u32(header)?, file.u32(header + 4)?);
            let (offset, address) = (file.u64(header + 8)?, file.u64(header + 16)?);
            let (bytes, length) = (file.u64(header + 32)?, file.u64(header + 40)?);
            match kind {
                LOAD if length > MOST_BYTES || bytes > length => {
                    return Some(Err("a segment too large".to_owned()));
                }
                LOAD => {
                    let bytes = file.range(offset, bytes)?.to_vec();
                    if flags & 1 != 0 {
                        code = Some((address, bytes.clone()));
                    }
                    segments.push(Segment { address, bytes, length, writable: flags & 2 != 0 });
                }
                NOTE => metadata = Some(note::Metadata::read(file.range(offset, bytes)?)?),
                _ => {}
            }
        }
        let (base, code) = code?;
        let words: Vec<u32> = code.chunks_exact(4).map(|word| Bytes(word).u32(0).unwrap_or(0)).collect();
        let metadata = metadata?;
        let symbols = symbols(file)?;
        let in_segments = |address: u64| {
            let segment = segments.iter().find(|segment| {
                address >= segment.address && address - segment.address < segment.bytes.len() as u64
            })?;
            segment.bytes.get((address - segment.address) as usize..)
        };
        let mut kernels = metadata.kernels;
        for kernel in &mut kernels {
            let symbol = symbols.iter().find(|symbol| symbol.name == kernel.symbol)?;
            let descriptor = Bytes(in_segments(symbol.address)?);
            kernel.entry = symbol.address.wrapping_add(descriptor.u64(16)?);
            kernel.rsrc = [descriptor.u32(48)?, descriptor.u32(52)?, descriptor.u32(44)?];
            kernel.properties = descriptor.u16(56)?;
            kernel.preload = descriptor.u16(58)?;
        }
        // Objects, but for descriptors.
        let variables = symbols.into_iter().filter(|symbol| !symbol.name.ends_with(".kd")).collect();
        let program = Program::decode(base, &words, arch);
        Some(Ok(Self { arch, target: metadata.target, segments, variables, kernels, program }))
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Bytes of addresses that it takes.
    pub fn span(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address.saturating_add(segment.length)).max().unwrap_or(0)
    }
}

/// Objects among the dynamic symbols.
fn symbols(file: Bytes<'_>) -> Option<Vec<Variable>> {
    let (headers, count) = (file.u64(40)?, u64::from(file.u16(60)?));
    let section = |index: u64| headers.checked_add(64 * index);
    let mut found = Vec::new();
    for header in (0..count).map(section) {
        let header = header?;
        if file.u32(header + 4)? != DYNAMIC_SYMBOLS {
            continue;
        }
        let strings = file.u64(section(u64::from(file.u32(header + 40)?))? + 24)?;
        let (from, bytes) = (file.u64(header + 24)?, file.u64(header + 32)?);
        let table = Bytes(file.range(from, bytes)?);
        for entry in (0..bytes / 24).map(|index| 24 * index) {
            let is_object = table.at::<1>(entry + 4)?[0] & 0xf == 1;
            let is_defined = table.u16(entry + 6)? != 0;
            if is_object && is_defined {
                let name = file.string(strings.checked_add(u64::from(table.u32(entry)?))?)?.to_owned();
                found.push(Variable { name, address: table.u64(entry + 8)?, bytes: table.u64(entry + 16)? });
            }
        }
    }
    Some(found)
}
