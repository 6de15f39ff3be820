//! Reading machine code: a cubin is an ELF file. What matters here is which of its memory kernels can
//! write, because that outlives a call.

use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, elf};

/// `EM_CUDA`.
const MACHINE: u16 = 190;

/// A section of variables that kernels can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Writable {
    pub(super) bytes: u64,
    /// Variables in it and their offsets.
    pub(super) symbols: Vec<(String, u64)>,
}

/// Judges a cubin's outside and finds its writable sections. The driver is given no length, so whatever
/// the headers name must lie inside.
pub(super) fn judge(image: &[u8]) -> Result<Vec<Writable>, String> {
    let file =
        ElfFile64::<LittleEndian>::parse(image).map_err(|e| format!("not a cubin (an ELF file): {e}"))?;
    let endian = file.endian();
    if file.elf_header().e_machine(endian) != MACHINE {
        return Err("an ELF file, but not of NVIDIA machine code".to_owned());
    }
    let table_end = u64::from(file.elf_header().e_phoff(endian)).checked_add(
        u64::from(file.elf_header().e_phnum(endian)) * u64::from(file.elf_header().e_phentsize(endian)),
    );
    if table_end.is_none_or(|end| end > image.len() as u64) {
        return Err("truncated: its program headers end behind the file".to_owned());
    }
    for section in file.elf_section_table().iter() {
        let has_bytes = section.sh_type(endian) != elf::SHT_NOBITS;
        let end = u64::from(section.sh_offset(endian)).checked_add(u64::from(section.sh_size(endian)));
        if has_bytes && end.is_none_or(|end| end > image.len() as u64) {
            return Err("truncated: a section ends behind the file".to_owned());
        }
    }
    let mut writable = Vec::new();
    for section in file.sections() {
        let name = section.name().map_err(|e| format!("malformed: {e}"))?;
        if !name.starts_with(".nv.global") || section.size() == 0 {
            continue;
        }
        let here = file.symbols().filter(|symbol| symbol.section_index() == Some(section.index()));
        let symbols = here.filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some((name.to_owned(), symbol.address()))
        });
        writable.push(Writable { bytes: section.size(), symbols: symbols.collect() });
    }
    Ok(writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cubin_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b".version 7.0", &[0; 64]] {
            assert!(judge(bytes).is_err());
        }
        // This test's own program is an ELF file of another machine.
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(judge(&own).unwrap_err().contains("not of NVIDIA"));
        assert!(judge(&own[..own.len() / 2]).is_err());
    }
}
