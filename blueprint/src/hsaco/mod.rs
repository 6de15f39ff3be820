//! AMD's machine code, judged without a GPU and without its driver: a code object (`.hsaco`), or a bundle of several.
//!
//! A driver of AMD's is not told how long an object is, and older ones end with the process on a malformed one. So
//! nothing reaches it that this did not read to the end: every range that a header names lies inside the file, and what
//! the headers, the note, the symbols and the kernel descriptors say about the same thing is the same. The bytes are
//! untrusted; time and memory are bounded by their number. Instructions are not looked at.
//! "User Guide for AMDGPU Backend", LLVM: "ELF Code Object", "Code Object Metadata", "Kernel Descriptor".
//!
//! In reading order:
//! - [`bundle`]: the code objects in a file, by what they are made for.
//! - [`target`]: processors and their settings; which code runs where.
//! - [`elf`]: headers, segments, sections and symbols of one object.
//! - [`msgpack`], [`metadata`]: the note that tells kernels and arguments.
//! - [`kernel`]: kernels as they are known then; what none may need.

mod bundle;
mod elf;
mod kernel;
mod metadata;
mod msgpack;
mod target;

// Code objects that come with Pappus, and whatever no compiler would write. As files: the crate of the kernels needs
// wasmtime for its tests, which nothing below the supervisor may.
#[cfg(test)]
#[path = "../../../kernels/src/artefacts.rs"]
#[allow(unreachable_pub, reason = "a file of another crate")]
mod artefacts;
#[cfg(test)]
#[path = "../../../kernels/src/synthetic.rs"]
#[allow(unreachable_pub, reason = "a file of another crate")]
mod synthetic;
#[cfg(test)]
mod tests;

pub use kernel::{Argument, Kernel};
pub use target::Target;

use elf::Elf;

use crate::kernel_info::CodeError;

/// Kernels of an object, and arguments of all of them that a launch passes.
pub const MAX_KERNELS: usize = 1024;
/// See [`MAX_KERNELS`].
pub const MAX_ARGUMENTS: usize = 8192;
/// Bytes of all kernels' names.
pub const MAX_NAME_BYTES: usize = 64 << 10;

/// One code object, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeObject<'a> {
    /// The object by itself, without the bundle that it came in.
    pub bytes: &'a [u8],
    /// What it is made for.
    pub target: Target,
    /// The version of its format: 4, 5 or 6.
    pub version: u8,
    /// The object's kernels, in the order of its list.
    pub kernels: Vec<Kernel>,
    /// Memory of the object that kernels can write and that outlives a call.
    pub writable: Vec<Section>,
}

/// A part of an object's memory that kernels can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name, such as `.bss`.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The section's variables that a driver finds by name, in the order of their offsets.
    pub variables: Vec<Variable>,
}

impl Section {
    /// True if the section is only the mark that clang gives every HIP module (unless told `-fuse-cuid=none`) for the
    /// program's host part: one byte, named `__hip_cuid_` and hexadecimal digits, that no kernel uses.
    pub fn is_compilers_mark(&self) -> bool {
        let [Variable { name, offset: 0, bytes: 1 }] = &self.variables[..] else { return false };
        let digits = name.strip_prefix("__hip_cuid_");
        self.bytes == 1 && digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    }
}

/// A variable of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its symbol.
    pub name: String,
    /// Its first byte in its section.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// True if bytes claim to be AMD's: a code object or a bundle of such, compressed or not.
pub fn recognises(bytes: &[u8]) -> bool {
    bundle::is_bundle(bytes) || elf::machine(bytes) == Some(elf::MACHINE)
}

/// Every code object in a file, each judged.
pub fn read(file: &[u8]) -> Result<Vec<CodeObject<'_>>, CodeError> {
    bundle::entries(file)?.into_iter().map(|entry| judge(&entry)).collect()
}

/// The code object that suits a device best, judged.
pub fn pick<'a>(file: &'a [u8], device: &Target) -> Result<CodeObject<'a>, CodeError> {
    let entries = bundle::entries(file)?;
    if let [bundle::Entry { target: None, .. }] = &entries[..] {
        let object = judge(&entries[0])?;
        return match object.target.suits(device) {
            Some(_) => Ok(object),
            None => Err(CodeError(format!("it is made for {}, the device is {device}", object.target))),
        };
    }
    let suiting = entries.iter().filter_map(|entry| Some((entry.target?.suits(device)?, entry)));
    match suiting.max_by_key(|(how_well, _)| *how_well) {
        Some((_, entry)) => judge(entry),
        None => {
            let there: Vec<_> =
                entries.iter().filter_map(|entry| entry.target).map(|t| t.to_string()).collect();
            Err(CodeError(format!("the bundle has code for {}, the device is {device}", there.join(", "))))
        }
    }
}

/// Kernels that every one of the objects has, with the same parameters: a function may rely on them whichever object
/// will run.
pub fn common_kernels(objects: &[CodeObject<'_>]) -> Result<Vec<Kernel>, CodeError> {
    let Some((first, others)) = objects.split_first() else { return Ok(Vec::new()) };
    let mut common = Vec::new();
    for kernel in &first.kernels {
        let twins =
            others.iter().map(|object| (object, object.kernels.iter().find(|k| k.name == kernel.name)));
        let mut everywhere = true;
        for (object, twin) in twins {
            match twin {
                Some(twin) if twin.arguments != kernel.arguments => {
                    return Err(CodeError(format!(
                        "kernel `{}` takes other arguments for {} than for {}",
                        kernel.name, object.target, first.target
                    )));
                }
                twin => everywhere &= twin.is_some(),
            }
        }
        if everywhere {
            common.push(kernel.clone());
        }
    }
    match common.is_empty() {
        false => Ok(common),
        true => Err("there is no kernel that all code objects of the bundle have".into()),
    }
}

/// What a note's target says beside the architecture, the system and its environment: `amdgcn-amd-amdhsa--gfx90a`, or, as
/// compilers of 2026 write it, `amdgpu9.42-amd-amdhsa-unknown-gfx942`.
fn processor(target: &str) -> Option<&str> {
    let (architecture, rest) = target.split_once("-amd-amdhsa-")?;
    if architecture != "amdgcn" && !architecture.starts_with("amdgpu") {
        return None;
    }
    rest.strip_prefix("unknown").unwrap_or(rest).strip_prefix('-')
}

fn judge<'a>(entry: &bundle::Entry<'a>) -> Result<CodeObject<'a>, CodeError> {
    let elf = Elf::read(entry.bytes)?;
    let target = Target::of_flags(elf.flags, elf.version)?;
    if let Some(named) = entry.target.filter(|named| *named != target) {
        return Err(CodeError(format!(
            "the bundle says that it is made for {named}, the object for {target}"
        )));
    }
    let told = metadata::read(elf.note()?)?;
    if told.version != elf.version.min(5) {
        return Err("malformed: its header and its note have different versions".into());
    }
    if Target::of_text(processor(told.target).unwrap_or_default()) != Some(target) {
        return Err(CodeError(format!(
            "malformed: its header says that it is made for {target}, its note for {:?}",
            told.target
        )));
    }
    let kernels = kernel::check(told.kernels, &elf, target)?;
    Ok(CodeObject { bytes: entry.bytes, target, version: elf.version, kernels, writable: elf.writable() })
}
