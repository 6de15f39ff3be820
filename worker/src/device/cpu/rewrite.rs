//! A checked module, rewritten so that it *defines* its memory: the whole address space, into which the
//! serving worker maps the module's parts. Sections are copied raw and no index changes, because the
//! memory was the only import and added functions come last in their index space.
//!
//! `memory.copy` and `memory.fill` become calls of functions added to the module ([`bulk`]): wasmtime
//! runs them in host code, where a fault would take the worker down instead of naming the kernel. For checked calls,
//! every access to memory is checked before ([`instrument`]). Code that can be interrupted looks whether its time is over ([`polls`](super::polls)).

use wasm_encoder::{CodeSection, Encode, ExportKind, InstructionSink, MemorySection, MemoryType, RawSection};
use wasmparser::{BinaryReader, BinaryReaderError, FunctionBody, Operator, Parser, Payload};

use super::bulk;
use super::check::ValidatedMemfd;
use super::instrument;
use super::layout::{LowPart, MAX_LOW_BYTES, MEMORY_BYTES, WASM_PAGE};
use super::polls::poll;

/// The memory's export is named by this and the numbers of its low part: the name survives compilation
/// and can be read before there is an instance. (The module itself exports no memory: `check`.)
const MEMORY_NAME: &str = "pappus-low";
/// The same for a module with checks.
const CHECKED_NAME: &str = "pappus-checked";

fn memory_name(low: &LowPart, additions: Additions) -> String {
    let name = if additions.checks == Checks::All { CHECKED_NAME } else { MEMORY_NAME };
    let interruptible = u64::from(additions.interruptible);
    format!("{name}:{}:{}:{}:{interruptible}", low.bytes, low.data.start, low.data.end)
}

/// What a rewritten module's export says about its memory, and about its code.
pub(super) fn low_part_of(export: &str) -> Option<(LowPart, Additions)> {
    let (name, numbers) = export.split_once(':')?;
    let checks = match name {
        MEMORY_NAME => Checks::None,
        CHECKED_NAME => Checks::All,
        _ => return None,
    };
    let mut numbers = numbers.split(':');
    let mut next = || numbers.next()?.parse().ok();
    let low = LowPart { bytes: next()?, data: next()?..next()? };
    let additions = Additions { checks, interruptible: next()? == 1 };
    let ordered = low.data.start <= low.data.end && low.data.end <= low.bytes;
    (ordered && low.bytes <= MAX_LOW_BYTES).then_some((low, additions))
}

/// What a module's code does besides what its author wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Additions {
    pub(super) checks: Checks,
    /// True if it looks whether the time of its call is over.
    pub(super) interruptible: bool,
}

/// Which accesses to memory are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    /// None: what is not mapped traps.
    None,
    /// All of them, for checked calls.
    All,
}

/// Rewrites a module that was judged.
pub(super) fn rewrite(
    module: &[u8],
    judged: &ValidatedMemfd,
    additions: Additions,
) -> Result<Vec<u8>, BinaryReaderError> {
    let Additions { checks, interruptible } = additions;
    let mut out = wasm_encoder::Module::new();
    let mut code = CodeSection::new();
    let mut helper_type = 0;
    let mut memory = Some(whole_memory());
    // For checks: how many parameters each type has, the type of each function, where its code begins.
    let mut params: Vec<u32> = Vec::new();
    let mut function_types: Vec<u32> = Vec::new();
    let mut code_at = 0;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        let section = payload.as_section();
        let raw = section.as_ref().and_then(|(_, range)| module.get(range.clone())).unwrap_or(&[]);
        match payload {
            Payload::TypeSection(types) => {
                helper_type = types.count();
                let mut added = (1, bulk::TYPE.to_vec());
                if checks == Checks::All {
                    added.0 += instrument::TYPE_COUNT;
                    added.1.extend(instrument::TYPES);
                    for ty in types.into_iter_err_on_gc_types() {
                        params.push(ty?.params().len() as u32);
                    }
                }
                let data = appended(raw, added.0, &added.1)?;
                out.section(&RawSection { id: 1, data: &data });
            }
            Payload::FunctionSection(functions) => {
                let mut added = vec![helper_type; bulk::FUNCTIONS as usize];
                if checks == Checks::All {
                    added.extend(instrument::FUNCTION_TYPES.map(|ty| helper_type + 1 + ty));
                    function_types = functions.into_iter().collect::<Result<_, _>>()?;
                }
                let mut entries = Vec::new();
                added.iter().for_each(|ty| ty.encode(&mut entries));
                let data = appended(raw, added.len() as u32, &entries)?;
                out.section(&RawSection { id: 3, data: &data });
            }
            Payload::ExportSection(_) => {
                memory.take().map(|memory| out.section(&memory));
                let mut entry = Vec::new();
                memory_name(&judged.low, additions).as_str().encode(&mut entry);
                ExportKind::Memory.encode(&mut entry);
                0u32.encode(&mut entry);
                let data = appended(raw, 1, &entry)?;
                out.section(&RawSection { id: 7, data: &data });
            }
            Payload::CodeSectionStart { range, .. } => code_at = range.start,
            Payload::CodeSectionEntry(body) => {
                let functions = judged.functions;
                code.raw(&match checks {
                    Checks::None => without_bulk_operators(module, &body, functions, interruptible)?,
                    Checks::All => {
                        let ty = function_types.get(code.len() as usize).map_or(0, |ty| *ty as usize);
                        let params = params.get(ty).copied().unwrap_or(0);
                        instrument::body(module, &body, params, functions, code_at, interruptible)?
                    }
                });
                // Data follows the code, so the code section is complete with its last body.
                if code.len() == functions {
                    code.function(&bulk::fill(interruptible)).function(&bulk::copy(interruptible));
                    if checks == Checks::All {
                        instrument::functions(functions).iter().for_each(|added| {
                            code.function(added);
                        });
                    }
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

/// A function's body with calls of the helpers, which follow the module's own `functions`, and with polls. Branches are
/// structured, so nothing else changes when instructions change their length.
fn without_bulk_operators(
    module: &[u8],
    body: &FunctionBody<'_>,
    functions: u32,
    interruptible: bool,
) -> Result<Vec<u8>, BinaryReaderError> {
    let mut out = Vec::with_capacity(body.as_bytes().len());
    let mut operators = body.get_operators_reader()?;
    let mut copied = operators.original_position();
    out.extend_from_slice(&module[body.range().start..copied]);
    poll(&mut InstructionSink::new(&mut out), interruptible);
    while !operators.eof() {
        let (operator, at) = operators.read_with_offset()?;
        let helper = match operator {
            Operator::MemoryFill { .. } => functions + bulk::FILL,
            Operator::MemoryCopy { .. } => functions + bulk::COPY,
            Operator::Loop { .. } => {
                out.extend_from_slice(&module[copied..operators.original_position()]);
                poll(&mut InstructionSink::new(&mut out), interruptible);
                copied = operators.original_position();
                continue;
            }
            _ => continue,
        };
        out.extend_from_slice(&module[copied..at]);
        InstructionSink::new(&mut out).call(helper);
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
        for checks in [Checks::None, Checks::All] {
            for interruptible in [false, true] {
                let additions = Additions { checks, interruptible };
                assert_eq!(low_part_of(&memory_name(&low, additions)), Some((low.clone(), additions)));
            }
        }
        for lie in [
            "memory",
            "pappus-low:1",
            "pappus-low:10:0:8",
            "pappus-low:10:8:4:0",
            "pappus-low:10:0:11:0",
            "pappus-low:99999999999:0:0:0",
        ] {
            assert_eq!(low_part_of(lie), None, "{lie}");
        }
    }
}
