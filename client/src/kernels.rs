//! Which kernels a module file holds, and what they take and need as far as the file tells, without a device: the export
//! list of wasm, the declarations of PTX, symbols and parameters of cubins, all of AMD's code objects, which are judged on the way.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};
use pappus_blueprint::{Blueprint, ParamKind, PassedParam, hints, hsaco, ptx, signatures};

use crate::error::{Error, Result};
use crate::variants::VariantFile;

/// No module may be larger: the supervisor's limit.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What a module file holds: one program, or several for different targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is made for, such as `sm_90` or `gfx90a:xnack-`; empty where the file does not tell.
    pub target: String,
    /// Its kernels; nothing where only a driver can tell.
    pub kernels: Option<Vec<Kernel>>,
    /// What else it tells of all kernels together, by names of JSON.
    pub figures: Figures,
}

/// Numbers by their names.
pub type Figures = Vec<(&'static str, u64)>;

/// A kernel of a module file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// What it takes, where the file tells.
    pub params: Option<Vec<Param>>,
    /// What it needs, by names of JSON.
    pub figures: Figures,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the source; empty where the file does not tell it.
    pub name: Box<str>,
    /// Its first byte among the parameters.
    pub offset: u32,
    /// Its bytes.
    pub bytes: u32,
    /// What it is.
    pub class: Class,
}

/// What a file tells of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Bits of any meaning.
    Bits,
    /// An integer or an address.
    Integer,
    /// An integer, and no address.
    Whole,
    /// A float.
    Float,
    /// A struct.
    Struct,
    /// An address.
    Pointer,
    /// A number or a struct.
    Value,
}

impl Class {
    /// Its name, as in answers of the supervisor.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bits => "",
            Self::Integer | Self::Whole => "integer",
            Self::Float => "float",
            Self::Struct => "struct",
            Self::Pointer => "pointer",
            Self::Value => "value",
        }
    }

    /// Behind a number of bytes.
    fn described(self) -> &'static str {
        match self {
            Self::Bits => "",
            Self::Integer => " (integer or address)",
            Self::Whole => " (integer)",
            Self::Float => " (float)",
            Self::Struct => " (struct)",
            Self::Pointer => " (pointer)",
            Self::Value => " by value",
        }
    }

    fn takes(self, passed: ParamKind) -> bool {
        let pointer = passed == ParamKind::Pointer;
        match self {
            Self::Integer => !passed.is_float(),
            Self::Whole => !passed.is_float() && !pointer,
            Self::Float => !passed.is_whole(),
            Self::Pointer => pointer,
            Self::Value => !pointer,
            Self::Bits | Self::Struct => true,
        }
    }
}

impl From<ptx::Param> for Param {
    fn from(param: ptx::Param) -> Self {
        let class = match param.class {
            ptx::Class::Integer => Class::Integer,
            ptx::Class::Float => Class::Float,
            ptx::Class::Bits => Class::Bits,
            ptx::Class::Struct => Class::Struct,
        };
        Self { name: Box::default(), offset: param.offset, bytes: param.bytes, class }
    }
}

impl From<&signatures::Param> for Param {
    fn from(param: &signatures::Param) -> Self {
        let class = match param.class {
            signatures::Class::Bits => Class::Bits,
            signatures::Class::Integer => Class::Whole,
            signatures::Class::Float => Class::Float,
            signatures::Class::Struct => Class::Struct,
            signatures::Class::Pointer => Class::Pointer,
        };
        Self { name: param.name.clone(), offset: param.offset, bytes: param.bytes, class }
    }
}

impl From<hsaco::Argument> for Param {
    fn from(argument: hsaco::Argument) -> Self {
        let class = if argument.is_pointer { Class::Pointer } else { Class::Value };
        Self { name: Box::default(), offset: argument.offset, bytes: argument.bytes, class }
    }
}

/// Opens a module file.
pub fn of_file(file: &VariantFile) -> Result<Vec<Part>> {
    let content = file.source.read(MAX_FILE_BYTES, "a module")?;
    of_bytes(file.path(), file.format, &content)
}

fn of_bytes(path: &Path, format: &str, content: &[u8]) -> Result<Vec<Part>> {
    let unreadable = || Part { target: String::new(), kernels: None, figures: Vec::new() };
    Ok(match format {
        "wasm" => {
            let found = of_wasm(content);
            let found =
                found.ok_or_else(|| Error::content(path, "no WebAssembly, or cut off: compile it again"))?;
            vec![found.map_err(|why| Error::content(path, why.to_string()))?]
        }
        "ptx" => {
            let text =
                std::str::from_utf8(content).map_err(|_| Error::content(path, "PTX that is no text"))?;
            let target = ptx::target(text).unwrap_or_default().to_owned();
            let kernels = ptx::entries(text.trim_end_matches('\0')).ok();
            let kernels = kernels.map(|entries| entries.into_iter().map(of_entry).collect());
            vec![Part { target, kernels, figures: Vec::new() }]
        }
        "cubin" => {
            let found = of_cubin(content);
            vec![found.ok_or_else(|| Error::content(path, "no machine code (an ELF file), or cut off"))?]
        }
        "hsaco" => {
            let objects = hsaco::read(content).map_err(|why| Error::content(path, why.to_string()))?;
            objects.iter().map(of_object).collect()
        }
        _ => vec![unreadable()],
    })
}

fn named(name: String) -> Kernel {
    Kernel { name, params: None, figures: Vec::new() }
}

fn of_entry(entry: ptx::Entry) -> Kernel {
    let params = entry.params.map(|params| params.into_iter().map(Param::from).collect());
    let most = entry.max_threads.map(|most| ("max_threads", u64::from(most)));
    Kernel { name: entry.name, params, figures: most.into_iter().collect() }
}

fn of_object(object: &hsaco::CodeObject<'_>) -> Part {
    let kernel = |kernel: &hsaco::Kernel| {
        let registers = [
            ("vector_registers", kernel.vector_registers),
            ("accumulation_registers", kernel.accumulation_registers),
            ("scalar_registers", kernel.scalar_registers),
        ];
        let mut figures = vec![
            ("max_threads", kernel.max_threads.into()),
            ("shared_bytes", kernel.lds_bytes.into()),
            ("local_bytes", kernel.private_bytes.into()),
            ("wave", kernel.wave.into()),
        ];
        figures.extend(registers.iter().filter_map(|(name, count)| Some((*name, u64::from((*count)?)))));
        let params = kernel.arguments.iter().copied().map(Param::from).collect();
        Kernel { name: kernel.name.clone(), params: Some(params), figures }
    };
    let variables = object.writable.iter().filter(|section| !section.is_compilers_mark());
    let variables = variables.map(|section| section.bytes).sum();
    Part {
        target: object.target.to_string(),
        kernels: Some(object.kernels.iter().map(kernel).collect()),
        figures: vec![("code_object_version", object.version.into()), ("variable_bytes", variables)],
    }
}

/// Compares what a blueprint launches with the kernels of one of its modules' files: all that does not fit, with its places in
/// the configuration.
pub fn check(
    blueprint: &Blueprint,
    module: usize,
    path: &Path,
    kernels: &[Kernel],
) -> Vec<pappus_blueprint::Error> {
    let mut misfits = Vec::new();
    let mut misfit = |place: String, message: String| {
        misfits.push(pappus_blueprint::Error::new(place, format_args!("{}: {message}", path.display())));
    };
    let named = |symbol: &str| kernels.iter().find(|kernel| kernel.name == symbol);
    let of_module = blueprint.kernels().iter().enumerate().filter(|(_, kernel)| kernel.module == module);
    for (at, kernel) in of_module.filter(|(_, kernel)| named(&kernel.symbol).is_none()) {
        let there = kernels.iter().map(|kernel| kernel.name.as_str());
        let near = hints::nearest(&kernel.symbol, there.clone());
        let (module, symbol) = (&blueprint.modules()[module].name, &kernel.symbol);
        let there = hints::listed(there);
        misfit(
            format!("kernels[{at}]"),
            format!("module {module} has no kernel {symbol:?}{near}; it has {there}"),
        );
    }
    for launch in blueprint.launches() {
        let kernel = &blueprint.kernels()[launch.kernel];
        let declared = named(&kernel.symbol).filter(|_| kernel.module == module);
        let Some(params) = declared.and_then(|declared| declared.params.as_ref()) else { continue };
        let (name, place) = (&kernel.name, launch.place());
        let passed: Vec<PassedParam> = launch.params().collect();
        if passed.len() != params.len() {
            let (takes, passed) = (params.len(), passed.len());
            let message = format!("kernel {name:?} takes {takes} arguments, the blueprint passes {passed}");
            misfit(format!("{place}[1]"), message);
            continue;
        }
        let mut end = 0;
        for (at, (param, passed)) in params.iter().zip(passed).enumerate() {
            let lies = passed.lies_at(param.offset.into(), end);
            end = u64::from(param.offset) + u64::from(param.bytes);
            let message = match lies {
                _ if !agree(param, passed) => format!(
                    "the kernel takes {}{}, the blueprint passes {}",
                    hints::bytes(param.bytes),
                    param.class.described(),
                    passed.described()
                ),
                Err(expected) => format!(
                    "the kernel has it at byte {} of its parameters, the blueprint's alignment of {} puts it at byte \
                     {expected}",
                    param.offset, passed.align
                ),
                Ok(()) => continue,
            };
            let argument = hints::argument(at + 1, &param.name);
            misfit(format!("{place}[1][{at}]"), format!("kernel {name:?}, {argument}: {message}"));
        }
    }
    misfits
}

fn agree(param: &Param, passed: PassedParam) -> bool {
    // A zero is an address of nothing.
    let is_nothing = param.class == Class::Pointer && passed.is_zero && passed.kind.is_whole();
    param.bytes == passed.bytes && (is_nothing || param.class.takes(passed.kind))
}

/// The exported functions, what they take if the module tells, and the memory that it asks for; `None` where the bytes are
/// no module.
fn of_wasm(content: &[u8]) -> Option<std::result::Result<Part, signatures::Malformed>> {
    const PAGE: u64 = 64 << 10;
    const CUSTOM: u8 = 0;
    const IMPORTS: u8 = 2;
    const EXPORTS: u8 = 7;
    const FUNCTION: u8 = 0;
    const MEMORY: u8 = 2;
    let mut rest = content.strip_prefix(b"\0asm\x01\0\0\0")?;
    let mut names = Vec::new();
    let mut figures = Vec::new();
    let mut told = Vec::new();
    while let Some((&id, behind)) = rest.split_first() {
        let (bytes, behind) = leb(behind)?;
        let (mut section, behind) = behind.split_at_checked(bytes as usize)?;
        rest = behind;
        match id {
            CUSTOM => {
                let (name, content) = text(section)?;
                if name == signatures::SECTION.as_bytes() {
                    match signatures::read(content) {
                        Ok(found) => told = found,
                        Err(why) => return Some(Err(why)),
                    }
                }
            }
            IMPORTS => {
                let (count, behind) = leb(section)?;
                // A module that may run imports nothing but its memory: where there is more, it is not understood.
                if let (1, Some((_, behind))) = (count, text(behind))
                    && let Some((_, [MEMORY, _, behind @ ..])) = text(behind)
                {
                    figures.push(("memory_bytes", u64::from(leb(behind)?.0) * PAGE));
                }
            }
            EXPORTS => {
                let (count, behind) = leb(section)?;
                section = behind;
                for _ in 0..count {
                    let (name, behind) = text(section)?;
                    let (&kind, behind) = behind.split_first()?;
                    let (_index, behind) = leb(behind)?;
                    section = behind;
                    if kind == FUNCTION {
                        names.push(std::str::from_utf8(name).ok()?.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    let told: HashMap<&str, &signatures::Signature> =
        told.iter().map(|signature| (signature.kernel.as_str(), signature)).collect();
    let kernel = |name: String| {
        let params = told.get(name.as_str()).map(|signature| &signature.params);
        let params = params.map(|params| params.iter().map(Param::from).collect());
        Kernel { name, params, figures: Vec::new() }
    };
    let kernels = names.into_iter().map(kernel).collect();
    Some(Ok(Part { target: String::new(), kernels: Some(kernels), figures }))
}

/// A text with its length before it, and what is behind.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = leb(bytes)?;
    behind.split_at_checked(length as usize)
}

/// An unsigned number of up to 32 bits in wasm's variable length.
fn leb(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, &bytes[at + 1..]));
        }
    }
    None
}

/// Functions in NVIDIA's machine code with their parameters, and the architecture in its header.
fn of_cubin(content: &[u8]) -> Option<Part> {
    /// From this version of its header on, the architecture lies one byte further up.
    const LATER: u8 = 8;
    let file = ElfFile64::<LittleEndian>::parse(content).ok()?;
    let defined = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| !symbol.is_undefined());
    let mut names: Vec<String> = defined.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    let header = file.elf_header();
    let flags = header.e_flags(LittleEndian);
    let sm = if header.e_ident().abi_version >= LATER { flags >> 8 } else { flags } & 0xff;
    let kernel = |name: String| {
        let info = file.section_by_name(&format!(".nv.info.{name}")).and_then(|section| section.data().ok());
        Kernel { params: info.and_then(params_of_cubin), ..named(name) }
    };
    let kernels = Some(names.into_iter().map(kernel).collect());
    Some(Part { target: format!("sm_{sm}"), kernels, figures: Vec::new() })
}

/// What a cubin tells of a kernel: records of one attribute each, of which those of parameters are read. `None` where there
/// are none, or any is of an unknown form.
fn params_of_cubin(mut info: &[u8]) -> Option<Vec<Param>> {
    const SIZED: u8 = 4;
    const PARAMETER: u8 = 0x17;
    let mut params = BTreeMap::new();
    while let Some((&[form, attribute, low, high], behind)) = info.split_first_chunk() {
        info = behind;
        match form {
            1..SIZED => continue,
            SIZED => {}
            _ => return None,
        }
        let (value, behind) = info.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        info = behind;
        if attribute == PARAMETER {
            // An index, which parameter, its offset, and flags below its bytes.
            let &[_, _, _, _, n0, n1, o0, o1, f0, f1, f2, f3] = value.first_chunk()?;
            let bytes = u32::from_le_bytes([f0, f1, f2, f3]) >> 18;
            let offset = u16::from_le_bytes([o0, o1]).into();
            let param = Param { name: Box::default(), offset, bytes, class: Class::Bits };
            params.insert(u16::from_le_bytes([n0, n1]), param);
        }
    }
    let whole = !params.is_empty() && params.keys().copied().eq(0..u16::try_from(params.len()).ok()?);
    whole.then(|| params.into_values().collect())
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
