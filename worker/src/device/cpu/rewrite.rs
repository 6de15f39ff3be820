//! A checked module, rewritten so that it *defines* its memory: the whole address space, into which the
//! serving worker maps the module's parts. Sections are copied raw and no index changes, because the
//! memory was the only import and added functions come last in their index space.
//!
//! `memory.copy` and `memory.fill` become calls of functions added to the module ([`bulk`]): wasmtime
//! runs them in host code, where a fault would take the worker down instead of naming the kernel.

use wasm_encoder::{CodeSection, Encode, ExportKind, MemorySection, MemoryType, RawSection};
use wasmparser::{BinaryReader, BinaryReaderError, FunctionBody, Operator, Parser, Payload};

use super::bulk;
use super::check::ValidatedMemfd;
use super::layout::{LowPart, MAX_LOW_BYTES, MEMORY_BYTES, WASM_PAGE};

/// The memory's export is named by this and the numbers of its low part: the name survives compilation
/// and can be read before there is an instance. (The module itself exports no memory: `check`.)
const MEMORY_NAME: &str = "pappus-low";

fn memory_name(low: &LowPart) -> String {
    format!("{MEMORY_NAME}:{}:{}:{}", low.bytes, low.data.start, low.data.end)
}

/// What a rewritten module's export says about its memory.
pub(super) fn low_part_of(export: &str) -> Option<LowPart> {
    let mut numbers = export.strip_prefix(MEMORY_NAME)?.strip_prefix(':')?.split(':');
    let mut next = || numbers.next()?.parse().ok();
    let low = LowPart { bytes: next()?, data: next()?..next()? };
    let ordered = low.data.start <= low.data.end && low.data.end <= low.bytes;
    (ordered && low.bytes <= MAX_LOW_BYTES).then_some(low)
}

/// Rewrites a module that was judged.
pub(super) fn rewrite(module: &[u8], judged: &ValidatedMemfd) -> Result<Vec<u8>, BinaryReaderError> {
    let mut out = wasm_encoder::Module::new();
    let mut code = CodeSection::new();
    let mut helper_type = 0;
    let mut memory = Some(whole_memory());
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        let section = payload.as_section();
        let raw = section.as_ref().and_then(|(_, range)| module.get(range.clone())).unwrap_or(&[]);
        match payload {
            Payload::TypeSection(types) => {
                helper_type = types.count();
                let data = appended(raw, 1, &bulk::TYPE)?;
                out.section(&RawSection { id: 1, data: &data });
            }
            Payload::FunctionSection(_) => {
                let mut two = Vec::new();
                helper_type.encode(&mut two);
                helper_type.encode(&mut two);
                let data = appended(raw, bulk::FUNCTIONS, &two)?;
                out.section(&RawSection { id: 3, data: &data });
            }
            Payload::ExportSection(_) => {
                memory.take().map(|memory| out.section(&memory));
                let mut entry = Vec::new();
                memory_name(&judged.low).as_str().encode(&mut entry);
                ExportKind::Memory.encode(&mut entry);
                0u32.encode(&mut entry);
                let data = appended(raw, 1, &entry)?;
                out.section(&RawSection { id: 7, data: &data });
            }
            Payload::CodeSectionStart { .. } => {}
            Payload::CodeSectionEntry(body) => {
                code.raw(&without_bulk_operators(module, &body, judged.functions)?);
                // Data follows the code, so the code section is complete with its last body.
                if code.len() == judged.functions {
                    code.function(&bulk::fill()).function(&bulk::copy());
                    out.section(&code);
                }
            }
            Payload::ImportSection(_) | Payload::CustomSection(_) => {}
            _ => {
                if let Some((id, _)) = section {
                    // The memory's place is behind tables and before globals and exports.
                    if id == wasm_encoder::SectionId::Global as u8 {
                        memory.take().map(|memory| out.section(&memory));
                    }
                    out.section(&RawSection { id, data: raw });
                }
            }
        }
    }
    Ok(out.finish())
}

fn whole_memory() -> MemorySection {
    let pages = MEMORY_BYTES / WASM_PAGE;
    let mut section = MemorySection::new();
    section.memory(MemoryType {
        minimum: pages,
        maximum: Some(pages),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    section
}

/// A section with `more` entries behind its own.
fn appended(section: &[u8], more: u32, entries: &[u8]) -> Result<Vec<u8>, BinaryReaderError> {
    let mut reader = BinaryReader::new(section, 0);
    let count = reader.read_var_u32()?;
    let mut out = Vec::with_capacity(section.len() + entries.len() + 1);
    (count + more).encode(&mut out);
    out.extend_from_slice(&section[reader.original_position()..]);
    out.extend_from_slice(entries);
    Ok(out)
}

/// A function's body with calls of the helpers, which follow the module's own `functions`. Branches are
/// structured, so nothing else changes when instructions change their length.
fn without_bulk_operators(
    module: &[u8],
    body: &FunctionBody<'_>,
    functions: u32,
) -> Result<Vec<u8>, BinaryReaderError> {
    let mut out = Vec::with_capacity(body.as_bytes().len());
    let mut copied = body.range().start;
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        let (operator, at) = operators.read_with_offset()?;
        let helper = match operator {
            Operator::MemoryFill { .. } => functions + bulk::FILL,
            Operator::MemoryCopy { .. } => functions + bulk::COPY,
            _ => continue,
        };
        out.extend_from_slice(&module[copied..at]);
        wasm_encoder::Instruction::Call(helper).encode(&mut out);
        copied = operators.original_position();
    }
    out.extend_from_slice(&module[copied..body.range().end]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_part_travels_in_a_name() {
        let low = LowPart { bytes: 131_072, data: 65_536..70_000 };
        assert_eq!(low_part_of(&memory_name(&low)), Some(low));
        for lie in [
            "memory",
            "pappus-low:1",
            "pappus-low:10:8:4",
            "pappus-low:10:0:11",
            "pappus-low:99999999999:0:0",
        ] {
            assert_eq!(low_part_of(lie), None, "{lie}");
        }
    }
}
