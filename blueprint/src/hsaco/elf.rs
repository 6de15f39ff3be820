//! The ELF file that a code object is: its header, what of it is loaded where, its sections, notes and symbols.
//! Everything that is returned lies inside the file, and loaded parts do not overlap.

use std::collections::HashMap;

use super::{CodeError, Section as Writable, Variable};

/// How the symbol of a kernel's descriptor ends.
pub(super) const DESCRIPTOR: &str = ".kd";

/// `EM_AMDGPU`.
pub(super) const MACHINE: u16 = 224;
/// `ELFOSABI_AMDGPU_HSA`.
const OS_ABI: u8 = 64;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const DYNAMIC_BYTES: usize = 16;

/// What the headers of an object may list.
const MAX_SEGMENTS: usize = 64;
const MAX_SECTIONS: usize = 4096;
const MAX_SYMBOLS: usize = 16_384;
/// Bytes of a name of a section or symbol.
const MAX_NAME_BYTES: usize = 4096;
/// Bytes of device memory that a loaded object takes.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// Bytes of the note with an object's metadata.
const MAX_NOTE_BYTES: usize = 4 << 20;

/// Kinds of segments and sections, flags of both, tags of the dynamic table and kinds of symbols, as ELF numbers them.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_TLS: u32 = 7;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_TLS: u64 = 0x400;
const SHF_COMPRESSED: u64 = 0x800;
const SHN_ABS: u16 = 0xfff1;
const STB_LOCAL: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;

const RELOCATIONS: &str = "it has relocations: its loader would have to write addresses into it. Initialise pointers \
                           in a kernel in place of a static initialiser, and link everything into one object";
const CONSTRUCTORS: &str = "it has constructors or destructors: nothing runs but kernels that are launched. Give \
                            global objects constant initialisers";

/// `len` bytes of a file, if they are there.
pub(super) fn slice(file: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let (start, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
    file.get(start..start.checked_add(len)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// The machine that an ELF file says it is for; nothing if it is none.
pub(super) fn machine(file: &[u8]) -> Option<u16> {
    u16_at(file, 18).filter(|_| file.starts_with(b"\x7fELF"))
}

/// A part of the file that is loaded, or that the loader reads.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

impl Segment {
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        address >= self.address && end.is_some_and(|end| end <= self.address + self.memory_bytes)
    }
}

#[derive(Debug, Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    bytes: u64,
    link: u32,
    entry_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Symbol<'a> {
    name: &'a str,
    kind: u8,
    section: u16,
    address: u64,
    bytes: u64,
}

/// A code object's ELF file, read.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    file: &'a [u8],
    /// Processor and settings.
    pub(super) flags: u32,
    /// The version of the format of code objects.
    pub(super) version: u8,
    segments: Vec<Segment>,
    sections: Vec<Section<'a>>,
    /// What a driver finds by name.
    symbols: HashMap<&'a str, Symbol<'a>>,
}

impl<'a> Elf<'a> {
    pub(super) fn read(file: &'a [u8]) -> Result<Self, CodeError> {
        let header = file.get(..HEADER_BYTES).ok_or("truncated: shorter than the header of an ELF file")?;
        if !header.starts_with(b"\x7fELF\x02\x01\x01") {
            return Err("no code object: this is no ELF file of 64 bits, little-endian".into());
        }
        let number = |at| u16_at(header, at).unwrap_or_default();
        match number(18) {
            MACHINE => {}
            machine => {
                return Err(CodeError(format!(
                    "an ELF file, but not of AMD machine code (machine {machine})"
                )));
            }
        }
        if header[7] != OS_ABI {
            return Err(CodeError(format!(
                "it is not made for AMD's HSA runtime (OS ABI {}): see --target",
                header[7]
            )));
        }
        let version = match header[8] {
            abi @ 2..=4 => abi + 2,
            abi => {
                let message =
                    "version 4, 5 or 6 of the format of code objects is needed, this one has ABI version";
                return Err(CodeError(format!("{message} {abi}: build it with -mcode-object-version=5")));
            }
        };
        const ET_DYN: u16 = 3;
        if number(16) != ET_DYN {
            return Err("not linked: link it with ld.lld -shared".into());
        }
        if u32_at(header, 20) != Some(1) || usize::from(number(52)) != HEADER_BYTES {
            return Err("malformed: its header has another length or version".into());
        }
        let flags = u32_at(header, 48).unwrap_or_default();
        let segments = segments(file, header)?;
        let sections = sections(file, header)?;
        let mut elf = Self { file, flags, version, segments, sections, symbols: HashMap::new() };
        elf.check_loads()?;
        elf.check_sections()?;
        elf.check_dynamic()?;
        elf.read_symbols()?;
        Ok(elf)
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD)
    }

    /// What is loaded lies in order, apart from each other, and is not too much.
    fn check_loads(&self) -> Result<(), CodeError> {
        let mut end = 0;
        for load in self.loads() {
            if load.address < end || load.file_bytes > load.memory_bytes {
                return Err("malformed: parts of it are loaded over each other".into());
            }
            end = load
                .address
                .checked_add(load.memory_bytes)
                .filter(|end| *end <= MAX_IMAGE_BYTES)
                .ok_or_else(|| {
                    CodeError(format!(
                        "loaded, it takes more than {} MiB: buffers belong into the blueprint",
                        MAX_IMAGE_BYTES >> 20
                    ))
                })?;
            if load.flags & (PF_W | PF_X) == PF_W | PF_X {
                return Err("a part of it is both code and writable".into());
            }
        }
        match end {
            0 => Err("malformed: nothing of it is loaded".into()),
            _ => Ok(()),
        }
    }

    /// Sections agree with what is loaded. Drivers read both.
    fn check_sections(&self) -> Result<(), CodeError> {
        const RELOCATIONS_KINDS: [u32; 3] = [4, 9, 19];
        const CONSTRUCTORS_KINDS: [u32; 3] = [14, 15, 16];
        for section in self.sections.iter().filter(|section| section.bytes > 0) {
            if RELOCATIONS_KINDS.contains(&section.kind) {
                return Err(RELOCATIONS.into());
            }
            if CONSTRUCTORS_KINDS.contains(&section.kind) {
                return Err(CONSTRUCTORS.into());
            }
            if section.flags & (SHF_TLS | SHF_COMPRESSED) != 0 {
                return Err(CodeError(format!("section {} is of a thread or compressed", section.name)));
            }
            if section.kind == SHT_NOTE {
                let inside = |note: &Segment| {
                    section.offset >= note.offset
                        && section.offset + section.bytes <= note.offset + note.file_bytes
                };
                if !self.segments.iter().any(|segment| segment.kind == PT_NOTE && inside(segment)) {
                    return Err("malformed: it has a note that its program headers do not name".into());
                }
            }
            if section.flags & SHF_ALLOC == 0 {
                continue;
            }
            let load = self.loads().find(|load| load.holds(section.address, section.bytes));
            let agrees = load.is_some_and(|load| {
                let within = section.address - load.address;
                section.kind == SHT_NOBITS
                    || load.offset.checked_add(within) == Some(section.offset)
                        && within + section.bytes <= load.file_bytes
            });
            if !agrees {
                return Err(CodeError(format!(
                    "malformed: section {} is not what is loaded there",
                    section.name
                )));
            }
        }
        Ok(())
    }

    /// The dynamic table asks for nothing: no other library, no relocations, no constructors.
    fn check_dynamic(&self) -> Result<(), CodeError> {
        const NEEDED: u64 = 1;
        const RELOCATION_BYTES: [u64; 5] = [2, 8, 18, 22, 35];
        const CONSTRUCTORS_TAGS: [u64; 5] = [12, 13, 27, 28, 33];
        for segment in &self.segments {
            match segment.kind {
                PT_INTERP | PT_TLS => {
                    return Err("it asks for an interpreter or for variables of threads".into());
                }
                PT_DYNAMIC => {}
                _ => continue,
            }
            let table = slice(self.file, segment.offset, segment.file_bytes).unwrap_or_default();
            for entry in table.chunks_exact(DYNAMIC_BYTES) {
                let (tag, value) = (u64_at(entry, 0).unwrap_or(0), u64_at(entry, 8).unwrap_or(0));
                match tag {
                    0 => break,
                    NEEDED => return Err("it needs another library: link everything into one object".into()),
                    tag if RELOCATION_BYTES.contains(&tag) && value > 0 => return Err(RELOCATIONS.into()),
                    tag if CONSTRUCTORS_TAGS.contains(&tag) && value > 0 => return Err(CONSTRUCTORS.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Reads both tables of symbols; those of the dynamic one are kept.
    fn read_symbols(&mut self) -> Result<(), CodeError> {
        let mut symbols: HashMap<&str, Symbol<'_>> = HashMap::new();
        let mut others = Vec::new();
        let mut tables = 0;
        for section in &self.sections {
            let is_dynamic = section.kind == SHT_DYNSYM;
            if !is_dynamic && section.kind != SHT_SYMTAB {
                continue;
            }
            tables += 1;
            let names = self.sections.get(section.link as usize).filter(|names| names.kind == SHT_STRTAB);
            let names = names.ok_or("malformed: symbols without names")?;
            let names = slice(self.file, names.offset, names.bytes).unwrap_or_default();
            let table = slice(self.file, section.offset, section.bytes).unwrap_or_default();
            if section.entry_bytes != SYMBOL_BYTES as u64 || !table.len().is_multiple_of(SYMBOL_BYTES) {
                return Err("malformed: a table of symbols with another length".into());
            }
            if tables > 2 || table.len() / SYMBOL_BYTES > MAX_SYMBOLS {
                return Err(CodeError(format!("more than {MAX_SYMBOLS} symbols: split the module")));
            }
            // The first entry means no symbol.
            for entry in table.chunks_exact(SYMBOL_BYTES).skip(1) {
                let symbol = self.symbol(entry, names)?;
                if !is_dynamic {
                    // Of an object's own, several may have one name.
                    let is_local = entry[4] >> 4 == STB_LOCAL && !symbol.name.ends_with(DESCRIPTOR);
                    others.extend(Some(symbol).filter(|_| !is_local));
                } else if !symbol.name.is_empty() && symbols.insert(symbol.name, symbol).is_some() {
                    return Err(CodeError(format!("malformed: two symbols are called {:?}", symbol.name)));
                }
            }
        }
        // A driver may look into either table.
        if let Some(other) =
            others.iter().find(|other| symbols.get(other.name).is_some_and(|it| it != *other))
        {
            return Err(CodeError(format!("malformed: two symbols are called {:?}", other.name)));
        }
        if symbols.is_empty() {
            return Err(
                "it has no dynamic symbols, by which drivers find kernels: it was stripped too far".into()
            );
        }
        self.symbols = symbols;
        Ok(())
    }

    fn symbol(&self, entry: &[u8], names: &'a [u8]) -> Result<Symbol<'a>, CodeError> {
        let malformed = || CodeError::from("malformed: a symbol lies outside of what it belongs to");
        let symbol = Symbol {
            name: name(names, u32_at(entry, 0).ok_or_else(malformed)?)?,
            kind: entry[4] & 15,
            section: u16_at(entry, 6).ok_or_else(malformed)?,
            address: u64_at(entry, 8).ok_or_else(malformed)?,
            bytes: u64_at(entry, 16).ok_or_else(malformed)?,
        };
        match symbol.section {
            0 => {
                let name = symbol.name;
                return Err(CodeError(format!(
                    "it needs the symbol `{name}`: link everything into one object"
                )));
            }
            SHN_ABS => return Ok(symbol),
            _ => {}
        }
        let section = self.sections.get(usize::from(symbol.section)).ok_or_else(malformed)?;
        let within = symbol.address.checked_sub(section.address);
        let end = within.and_then(|within| within.checked_add(symbol.bytes));
        if end.is_none_or(|end| end > section.bytes) || matches!(symbol.kind, STT_TLS | STT_GNU_IFUNC) {
            return Err(malformed());
        }
        Ok(symbol)
    }

    /// The bytes of an object that a driver finds by name: its address, and what is there before anything ran.
    pub(super) fn object(&self, name: &str) -> Option<(u64, &'a [u8])> {
        let symbol =
            self.symbols.get(name).filter(|symbol| symbol.kind == STT_OBJECT && symbol.section != SHN_ABS)?;
        let load = self.loads().find(|load| load.holds(symbol.address, symbol.bytes))?;
        // Kernels must not be able to write the bytes that were judged.
        if load.flags & PF_W != 0 {
            return None;
        }
        let within = symbol.address - load.address;
        let bytes = slice(self.file, load.offset + within, symbol.bytes)?;
        (within + symbol.bytes <= load.file_bytes).then_some((symbol.address, bytes))
    }

    /// True if there is code at an address.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.loads().any(|load| {
            load.flags & PF_X != 0 && address >= load.address && address < load.address + load.file_bytes
        })
    }

    /// The one note with AMD's metadata.
    pub(super) fn note(&self) -> Result<&'a [u8], CodeError> {
        const METADATA: u32 = 32;
        const OWNER: &[u8] = b"AMDGPU\0";
        let mut found = None;
        for segment in self.segments.iter().filter(|segment| segment.kind == PT_NOTE) {
            let mut rest = slice(self.file, segment.offset, segment.file_bytes).unwrap_or_default();
            while !rest.is_empty() {
                let note = Note::read(rest).ok_or("malformed: a note ends behind its segment")?;
                rest = note.behind;
                if note.owner != OWNER || note.kind != METADATA {
                    continue;
                }
                if found.replace(note.content).is_some() {
                    return Err("malformed: two notes with metadata".into());
                }
            }
        }
        match found {
            None => Err("it has no metadata (a note of AMDGPU): nothing tells its kernels".into()),
            Some(note) if note.len() > MAX_NOTE_BYTES => {
                Err(CodeError(format!("its metadata has {} bytes, allowed are {MAX_NOTE_BYTES}", note.len())))
            }
            Some(note) => Ok(note),
        }
    }

    /// Sections that kernels may write, with the variables in each that a driver finds. What only the loader writes is
    /// none.
    pub(super) fn writable(&self) -> Vec<Writable> {
        let relro: Vec<&Segment> =
            self.segments.iter().filter(|segment| segment.kind == PT_GNU_RELRO).collect();
        let mut by_section: HashMap<u16, Vec<Variable>> = HashMap::new();
        for symbol in self.symbols.values().filter(|symbol| symbol.kind == STT_OBJECT) {
            let Some(section) = self.sections.get(usize::from(symbol.section)) else { continue };
            let offset = symbol.address - section.address;
            let variable = Variable { name: symbol.name.to_owned(), offset, bytes: symbol.bytes };
            by_section.entry(symbol.section).or_default().push(variable);
        }
        let numbered = (0u16..).zip(&self.sections);
        let writable = numbered.filter(|(_, section)| {
            section.flags & (SHF_WRITE | SHF_ALLOC) == SHF_WRITE | SHF_ALLOC
                && section.bytes > 0
                && !relro.iter().any(|relro| relro.holds(section.address, section.bytes))
        });
        let found = writable.map(|(at, section)| {
            let mut variables = by_section.remove(&at).unwrap_or_default();
            variables.sort_by(|one, other| (one.offset, &one.name).cmp(&(other.offset, &other.name)));
            Writable { name: section.name.to_owned(), bytes: section.bytes, variables }
        });
        found.collect()
    }
}

fn segments(file: &[u8], header: &[u8]) -> Result<Vec<Segment>, CodeError> {
    let truncated =
        || CodeError::from("truncated: its program headers, or what they name, end behind the file");
    let count = usize::from(u16_at(header, 56).unwrap_or_default());
    if count > MAX_SEGMENTS || u16_at(header, 54) != Some(SEGMENT_BYTES as u16) {
        return Err(CodeError(format!("malformed: {count} program headers, allowed are {MAX_SEGMENTS}")));
    }
    let table = slice(file, u64_at(header, 32).unwrap_or_default(), (count * SEGMENT_BYTES) as u64);
    let mut segments = Vec::with_capacity(count);
    for entry in table.ok_or_else(truncated)?.chunks_exact(SEGMENT_BYTES) {
        let number = |at| u64_at(entry, at).unwrap_or_default();
        let segment = Segment {
            kind: u32_at(entry, 0).unwrap_or_default(),
            flags: u32_at(entry, 4).unwrap_or_default(),
            offset: number(8),
            address: number(16),
            file_bytes: number(32),
            memory_bytes: number(40),
        };
        slice(file, segment.offset, segment.file_bytes).ok_or_else(truncated)?;
        segment.address.checked_add(segment.memory_bytes).ok_or_else(truncated)?;
        let align = number(48);
        if align > 1 && !align.is_power_of_two() {
            return Err("malformed: an alignment that is no power of two".into());
        }
        segments.push(segment);
    }
    Ok(segments)
}

fn sections<'a>(file: &'a [u8], header: &[u8]) -> Result<Vec<Section<'a>>, CodeError> {
    let truncated =
        || CodeError::from("truncated: its section headers, or what they name, end behind the file");
    let count = usize::from(u16_at(header, 60).unwrap_or_default());
    if count > MAX_SECTIONS || u16_at(header, 58) != Some(SECTION_BYTES as u16) {
        return Err(CodeError(format!("malformed: {count} section headers, allowed are {MAX_SECTIONS}")));
    }
    let table = slice(file, u64_at(header, 40).unwrap_or_default(), (count * SECTION_BYTES) as u64);
    let mut sections = Vec::with_capacity(count);
    let mut names = Vec::with_capacity(count);
    for entry in table.ok_or_else(truncated)?.chunks_exact(SECTION_BYTES) {
        let number = |at| u64_at(entry, at).unwrap_or_default();
        let word = |at| u32_at(entry, at).unwrap_or_default();
        let section = Section {
            name: "",
            kind: word(4),
            flags: number(8),
            address: number(16),
            offset: number(24),
            bytes: number(32),
            link: word(40),
            entry_bytes: number(56),
        };
        if section.kind != SHT_NOBITS {
            slice(file, section.offset, section.bytes).ok_or_else(truncated)?;
        }
        section.address.checked_add(section.bytes).ok_or_else(truncated)?;
        names.push(word(0));
        sections.push(section);
    }
    let at = usize::from(u16_at(header, 62).unwrap_or_default());
    let table = sections.get(at).filter(|table| table.kind == SHT_STRTAB);
    let table = table.ok_or("malformed: its sections have no names")?;
    let table = slice(file, table.offset, table.bytes).unwrap_or_default();
    for (section, at) in sections.iter_mut().zip(names) {
        section.name = name(table, at)?;
    }
    Ok(sections)
}

/// A name out of a table of names.
fn name(table: &[u8], at: u32) -> Result<&str, CodeError> {
    let rest = table.get(at as usize..).ok_or("malformed: a name lies outside of the names")?;
    let window = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let end = window.iter().position(|byte| *byte == 0);
    let name = end.and_then(|end| std::str::from_utf8(&window[..end]).ok());
    name.ok_or_else(|| CodeError(format!("a name does not end within {MAX_NAME_BYTES} bytes, or is no text")))
}

/// One note, and what is behind it.
struct Note<'a> {
    owner: &'a [u8],
    content: &'a [u8],
    kind: u32,
    behind: &'a [u8],
}

impl<'a> Note<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let [owner_bytes, content_bytes, kind] = [u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?];
        let rest = bytes.get(12..)?;
        let owner = rest.get(..owner_bytes as usize)?;
        let rest = rest.get((owner_bytes as usize).next_multiple_of(4)..)?;
        let content = rest.get(..content_bytes as usize)?;
        let behind = (content_bytes as usize).next_multiple_of(4).min(rest.len());
        Some(Self { owner, content, kind, behind: &rest[behind..] })
    }
}
