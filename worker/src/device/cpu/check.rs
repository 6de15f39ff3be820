//! The rules for modules, each with its own message: a module must be nothing but kernels over one
//! memory, with no state that outlives a call and cannot be restored.

use std::collections::HashSet;

use pappus_blueprint::signatures::{self, Signature};
use wasmparser::{
    Data, DataKind, Element, ElementItems, ElementKind, Export, ExternalKind, FunctionBody, Global, Import,
    MemoryType, Operator, Parser, Payload, TypeRef, ValType, Validator, WasmFeatures,
};

use super::layout::{LowPart, MAX_LOW_BYTES, WASM_PAGE};
use crate::device::{CodeError, MAX_MODULE_BYTES};

/// Functions of a module.
const MAX_FUNCTIONS: u32 = 16_384;
/// Bytes of one function's body. Compiling takes more than linear time: 700 KB of branches take minutes.
const MAX_FUNCTION_BYTES: usize = 128 << 10;
/// Blocks within blocks. A `switch` has one for each of its cases; compiling takes the square of them.
const MAX_NESTING: u32 = 4096;
/// Exports of a module.
const MAX_EXPORTS: u32 = 1024;
/// Bytes of an export's name.
const MAX_NAME_BYTES: usize = 255;
/// Bytes of the names of all kernels, and of those of their parameters: what one answer can tell.
const MAX_NAMES_BYTES: usize = 64 << 10;
/// Parameters of all kernels, as far as the module tells them: what one answer can tell.
const MAX_PARAMS: usize = 8192;
/// Elements of all tables, including those from segments.
const MAX_TABLE_ELEMENTS: u64 = 65_536;
/// Locals of all functions: a few bytes declare thousands, and each costs the compiler time.
const MAX_LOCALS: u64 = 1 << 20;

/// What the other steps need to know about a module that passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidatedMemfd {
    /// Names of its kernels.
    pub(super) kernels: Vec<String>,
    /// Parameters of the module's kernels, as far as it declares them.
    pub(super) signatures: Vec<Signature>,
    /// Its stack and data.
    pub(super) low: LowPart,
    /// How many functions it defines.
    pub(super) functions: u32,
}

/// Judges a module; an error is for the kernel's author.
pub(super) fn check(module: &[u8]) -> Result<ValidatedMemfd, CodeError> {
    if module.len() > MAX_MODULE_BYTES {
        return Err(CodeError(format!(
            "the module has {} bytes, allowed are {MAX_MODULE_BYTES}",
            module.len()
        )));
    }
    if !Parser::is_core_wasm(module) {
        return Err("this is no WebAssembly module (it does not start with `\\0asm` and version 1)".into());
    }
    let mut validator = Validator::new_with_features(features());
    validator
        .validate_all(module)
        .map_err(|e| CodeError(format!("not a valid module for this device: {e}")))?;
    let mut checker = Checker::default();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(malformed)?;
        checker.payload(payload)?;
    }
    checker.finish()
}

/// What modules may be made of: what clang's `-msimd128 -mbulk-memory -mmutable-globals` emits.
fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::SIMD
        | WasmFeatures::FLOATS
        | WasmFeatures::GC_TYPES
}

fn malformed(error: wasmparser::BinaryReaderError) -> CodeError {
    CodeError(format!("malformed: {error}"))
}

/// The parts of a module that were read so far.
#[derive(Default)]
struct Checker {
    low: Option<LowPart>,
    functions: u32,
    /// The type index of every function, and which types are those of kernels.
    function_types: Vec<u32>,
    kernel_types: Vec<bool>,
    /// The index of the one mutable global.
    mutable_global: Option<u32>,
    stack_pointer: Option<u32>,
    kernels: Vec<String>,
    signatures: Option<Vec<Signature>>,
    table_elements: u64,
    segment_elements: u64,
    locals: u64,
    bodies: u32,
}

impl Checker {
    fn payload(&mut self, payload: Payload<'_>) -> Result<(), CodeError> {
        match payload {
            Payload::StartSection { .. } => {
                Err("the module has a start function: nothing runs but kernels that are launched".into())
            }
            Payload::TypeSection(types) => {
                for ty in types.into_iter_err_on_gc_types() {
                    let ty = ty.map_err(malformed)?;
                    let kernel = [ValType::I32, ValType::I32, ValType::I64, ValType::I64];
                    self.kernel_types.push(ty.params() == kernel && ty.results().is_empty());
                }
                Ok(())
            }
            Payload::ImportSection(imports) => {
                let mut imports = imports.into_imports();
                imports.try_for_each(|import| self.import(&import.map_err(malformed)?))
            }
            Payload::FunctionSection(functions) => {
                self.functions = functions.count();
                if self.functions > MAX_FUNCTIONS {
                    return Err(CodeError(format!(
                        "the module has {} functions, allowed are {MAX_FUNCTIONS}",
                        self.functions
                    )));
                }
                self.function_types = functions.into_iter().collect::<Result<_, _>>().map_err(malformed)?;
                Ok(())
            }
            Payload::TableSection(tables) => tables.into_iter().try_for_each(|table| {
                self.table_elements =
                    self.table_elements.saturating_add(table.map_err(malformed)?.ty.initial);
                match self.table_elements {
                    0..=MAX_TABLE_ELEMENTS => Ok(()),
                    more => {
                        Err(CodeError(format!("tables of {more} elements, allowed are {MAX_TABLE_ELEMENTS}")))
                    }
                }
            }),
            Payload::MemorySection(_) => {
                Err("the module defines a memory of its own: link with --import-memory".into())
            }
            Payload::GlobalSection(globals) => (0..)
                .zip(globals)
                .try_for_each(|(index, global)| self.global(index, &global.map_err(malformed)?)),
            Payload::ExportSection(exports) => {
                if exports.count() > MAX_EXPORTS {
                    return Err(CodeError(format!("{} exports, allowed are {MAX_EXPORTS}", exports.count())));
                }
                exports.into_iter().try_for_each(|export| self.export(&export.map_err(malformed)?))
            }
            Payload::ElementSection(elements) => (0..)
                .zip(elements)
                .try_for_each(|(index, element)| self.element(index, &element.map_err(malformed)?)),
            Payload::DataSection(segments) => {
                (0..).zip(segments).try_for_each(|(index, data)| self.data(index, &data.map_err(malformed)?))
            }
            Payload::CustomSection(section) if section.name() == signatures::SECTION => {
                let found = signatures::read(section.data()).map_err(|why| CodeError(why.to_string()))?;
                match self.signatures.replace(found) {
                    None => Ok(()),
                    Some(_) => Err(CodeError(format!("two sections `{}`", signatures::SECTION))),
                }
            }
            Payload::CodeSectionEntry(body) => {
                self.bodies += 1;
                self.locals(&body)?;
                check_body(self.bodies - 1, &body)
            }
            _ => Ok(()),
        }
    }

    fn import(&mut self, import: &Import<'_>) -> Result<(), CodeError> {
        match import.ty {
            TypeRef::Memory(memory) if (import.module, import.name) == ("env", "memory") => {
                self.memory(&memory)
            }
            _ => Err(CodeError(format!(
                "import `{}.{}`: a module may import nothing but its memory, as `env.memory`",
                import.module, import.name
            ))),
        }
    }

    fn memory(&mut self, memory: &MemoryType) -> Result<(), CodeError> {
        if memory.memory64 || memory.shared || memory.page_size_log2.is_some() {
            return Err("env.memory must be an ordinary 32-bit memory with pages of 64 KiB".into());
        }
        let bytes = memory.initial.saturating_mul(WASM_PAGE);
        if bytes > MAX_LOW_BYTES {
            return Err(CodeError(format!(
                "stack and data take {bytes} bytes (the minimum of env.memory), allowed are {MAX_LOW_BYTES}"
            )));
        }
        self.low = Some(LowPart { bytes, data: 0..0 });
        Ok(())
    }

    fn global(&mut self, index: u32, global: &Global<'_>) -> Result<(), CodeError> {
        if !global.ty.mutable {
            return Ok(());
        }
        if global.ty.content_type != ValType::I32 || self.mutable_global.is_some() {
            return Err(CodeError(format!(
                "global {index} is mutable: the only mutable global may be `__stack_pointer`, an i32"
            )));
        }
        self.mutable_global = Some(index);
        Ok(())
    }

    fn export(&mut self, export: &Export<'_>) -> Result<(), CodeError> {
        let name = export.name;
        if name.len() > MAX_NAME_BYTES {
            return Err(CodeError(format!(
                "an export's name has {} bytes, allowed are {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        match export.kind {
            ExternalKind::Func => {
                let ty = self.function_types.get(export.index as usize);
                let kernel = ty.and_then(|&ty| self.kernel_types.get(ty as usize));
                if kernel != Some(&true) {
                    return Err(CodeError(format!(
                        "export `{name}` is no kernel: the type must be (i32 args, i32 launch, i64 first, i64 \
                         count) without results"
                    )));
                }
                self.kernels.push(name.to_owned());
            }
            ExternalKind::Global => {
                if name == "__stack_pointer" {
                    self.stack_pointer = Some(export.index);
                }
            }
            ExternalKind::Table => {
                return Err(CodeError(format!(
                    "export `{name}` is a table: tables must be the module's own"
                )));
            }
            _ => {
                return Err(CodeError(format!(
                    "export `{name}` is neither a kernel nor a global: nothing else may be exported"
                )));
            }
        }
        Ok(())
    }

    fn data(&mut self, index: u32, data: &Data<'_>) -> Result<(), CodeError> {
        let DataKind::Active { offset_expr, .. } = &data.kind else {
            return Err(CodeError(format!(
                "data segment {index} is passive: data must be in place when a call starts"
            )));
        };
        let mut offset = offset_expr.get_operators_reader();
        let at = match offset.read().map_err(malformed)? {
            Operator::I32Const { value } => u64::from(value as u32),
            _ => return Err(CodeError(format!("data segment {index} has no constant address"))),
        };
        let end = at + data.data.len() as u64;
        match &mut self.low {
            Some(low) if end <= low.bytes => {
                let seen = &low.data;
                low.data = if seen.is_empty() { at..end } else { seen.start.min(at)..seen.end.max(end) };
                Ok(())
            }
            low => Err(CodeError(format!(
                "data segment {index} ends at {end}, beyond the {} bytes that env.memory starts with",
                low.as_ref().map_or(0, |low| low.bytes)
            ))),
        }
    }

    fn element(&mut self, index: u32, element: &Element<'_>) -> Result<(), CodeError> {
        let ElementKind::Active { .. } = element.kind else {
            return Err(CodeError(format!(
                "element segment {index} is not active: tables must be complete when a call starts"
            )));
        };
        let count = match &element.items {
            ElementItems::Functions(items) => items.count(),
            ElementItems::Expressions(_, items) => items.count(),
        };
        self.segment_elements += u64::from(count);
        match self.segment_elements {
            0..=MAX_TABLE_ELEMENTS => Ok(()),
            more => Err(CodeError(format!(
                "element segments of {more} elements, allowed are {MAX_TABLE_ELEMENTS}"
            ))),
        }
    }

    fn locals(&mut self, body: &FunctionBody<'_>) -> Result<(), CodeError> {
        for group in body.get_locals_reader().map_err(malformed)? {
            self.locals += u64::from(group.map_err(malformed)?.0);
        }
        match self.locals {
            0..=MAX_LOCALS => Ok(()),
            _ => Err(CodeError(format!("more than {MAX_LOCALS} locals in all functions: split the module"))),
        }
    }

    fn finish(self) -> Result<ValidatedMemfd, CodeError> {
        let low = self
            .low
            .ok_or("the module does not import its memory as `env.memory`: link with --import-memory")?;
        if let Some(index) = self.mutable_global.filter(|_| self.mutable_global != self.stack_pointer) {
            return Err(CodeError(format!(
                "global {index} is mutable: the only mutable global may be the one exported as `__stack_pointer`"
            )));
        }
        if self.kernels.is_empty() {
            return Err("the module exports no kernel".into());
        }
        let names: usize = self.kernels.iter().map(String::len).sum();
        if names > MAX_NAMES_BYTES {
            return Err(CodeError(format!(
                "its kernels' names have {names} bytes, allowed are {MAX_NAMES_BYTES}: split the module"
            )));
        }
        let signatures = self.signatures.unwrap_or_default();
        let exported: HashSet<&String> = self.kernels.iter().collect();
        if let Some(absent) = signatures.iter().find(|signature| !exported.contains(&signature.kernel)) {
            return Err(CodeError(format!(
                "section `{}` tells of a kernel `{}`, which the module does not export",
                signatures::SECTION,
                absent.kernel
            )));
        }
        let of_params = signatures.iter().flat_map(|signature| &signature.params);
        let names = names + of_params.map(|param| param.name.len()).sum::<usize>();
        if names > MAX_NAMES_BYTES {
            return Err(CodeError(format!(
                "the names of its kernels and of their parameters have {names} bytes, allowed are {MAX_NAMES_BYTES}: split the \
                 module"
            )));
        }
        let params: usize = signatures.iter().map(|signature| signature.params.len()).sum();
        if params > MAX_PARAMS {
            return Err(CodeError(format!(
                "its kernels have {params} parameters, allowed are {MAX_PARAMS}: split the module"
            )));
        }
        Ok(ValidatedMemfd { kernels: self.kernels, signatures, low, functions: self.functions })
    }
}

fn check_body(index: u32, body: &FunctionBody<'_>) -> Result<(), CodeError> {
    let bytes = body.as_bytes().len();
    if bytes > MAX_FUNCTION_BYTES {
        return Err(CodeError(format!(
            "function {index} has {bytes} bytes, allowed are {MAX_FUNCTION_BYTES}: split it"
        )));
    }
    let mut operators = body.get_operators_reader().map_err(malformed)?;
    let mut depth = 0u32;
    while !operators.eof() {
        let (name, why) = match operators.read().map_err(malformed)? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } if depth >= MAX_NESTING => {
                return Err(CodeError(format!(
                    "function {index} has more than {MAX_NESTING} blocks within blocks"
                )));
            }
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                depth += 1;
                continue;
            }
            Operator::End => {
                // The last one ends the function.
                depth = depth.saturating_sub(1);
                continue;
            }
            Operator::MemoryGrow { .. } => ("memory.grow", "memory has a fixed size"),
            Operator::MemoryInit { .. } => ("memory.init", "data is in place when a call starts"),
            Operator::DataDrop { .. } => ("data.drop", "segments stay for the next call"),
            Operator::ElemDrop { .. } => ("elem.drop", "segments stay for the next call"),
            Operator::TableSet { .. } => ("table.set", "tables must not change"),
            Operator::TableGrow { .. } => ("table.grow", "tables must not change"),
            Operator::TableFill { .. } => ("table.fill", "tables must not change"),
            Operator::TableCopy { .. } => ("table.copy", "tables must not change"),
            Operator::TableInit { .. } => ("table.init", "tables must not change"),
            _ => continue,
        };
        return Err(CodeError(format!("function {index} uses {name}: {why}")));
    }
    Ok(())
}
