//! Reading machine code: a cubin is an ELF file. This finds the sections that kernels can write, because
//! their contents outlive a call.

use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, elf};

use crate::device::CodeError;
use crate::device::gpu::driver::{Section, Variable};

/// `EM_CUDA`.
const MACHINE: u16 = 190;

/// Judges a cubin's headers and finds its writable sections. The driver is not told how many bytes there are, so
/// every range that the headers name must lie inside them.
pub(super) fn judge(image: &[u8]) -> Result<Vec<Section>, CodeError> {
    let file = ElfFile64::<LittleEndian>::parse(image)
        .map_err(|e| CodeError(format!("not a cubin (an ELF file): {e}")))?;
    let endian = file.endian();
    if file.elf_header().e_machine(endian) != MACHINE {
        return Err("an ELF file, but not of NVIDIA machine code".into());
    }
    let table_end = file.elf_header().e_phoff(endian).checked_add(
        u64::from(file.elf_header().e_phnum(endian)) * u64::from(file.elf_header().e_phentsize(endian)),
    );
    if table_end.is_none_or(|end| end > image.len() as u64) {
        return Err("truncated: its program headers end behind the file".into());
    }
    for section in file.elf_section_table().iter() {
        let has_bytes = section.sh_type(endian) != elf::SHT_NOBITS;
        let end = section.sh_offset(endian).checked_add(section.sh_size(endian));
        if has_bytes && end.is_none_or(|end| end > image.len() as u64) {
            return Err("truncated: a section ends behind the file".into());
        }
    }
    for symbol in file.symbols().filter(|symbol| symbol.is_undefined()) {
        if let Ok(name @ ("malloc" | "free")) = symbol.name() {
            return Err(CodeError(format!(
                "it calls `{name}`: kernels have no heap, because what is left in one outlives a call; name a buffer \
                 in the blueprint instead"
            )));
        }
    }
    let mut writable = Vec::new();
    for section in file.sections() {
        let name = section.name().map_err(|e| CodeError(format!("malformed: {e}")))?;
        if !name.starts_with(".nv.global") || section.size() == 0 {
            continue;
        }
        let here = file.symbols().filter(|symbol| symbol.section_index() == Some(section.index()));
        let variables = here.filter(|symbol| symbol.size() > 0).map(|symbol| {
            let name = symbol.name().map_err(|e| CodeError(format!("malformed: {e}")))?.to_owned();
            Ok(Variable { name, offset: symbol.address() })
        });
        let mut variables = variables.collect::<Result<Vec<_>, CodeError>>()?;
        variables.sort_by_key(|variable| variable.offset);
        writable.push(Section { variables });
    }
    Ok(writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_a_cubin_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b".version 7.0", &[0; 64]] {
            assert!(judge(bytes).is_err());
        }
        // This test's own program is an ELF file of another machine.
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(judge(&own).unwrap_err().0.contains("not of NVIDIA"));
        assert!(judge(&own[..own.len() / 2]).is_err());
    }
}
