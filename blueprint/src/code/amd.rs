//! The format of AMD's machine code: code objects, and bundles of them.

use super::{CodeFormat, Declare, Fit, Kernel, Part};
use crate::hsaco::{self, Target};
use crate::kernel_info::{CodeError, CodeInfo};

/// A code object, or a bundle of several.
#[derive(Debug)]
pub struct Hsaco;

impl CodeFormat for Hsaco {
    fn name(&self) -> &'static str {
        "hsaco"
    }

    fn arch_prefix(&self) -> &'static str {
        "gfx"
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        hsaco::recognises(bytes)
    }

    /// Best for exactly this processor and its settings, then for the processor, then for its family; at last what does not
    /// say, which may be a bundle.
    fn suits(&self, made_for: &str, device: &str) -> Option<Fit> {
        if made_for.is_empty() {
            return Some((0, 0));
        }
        let suits = Target::of_text(made_for)?.suits(&Target::of_text(device)?)?;
        Some((suits + 1, 0))
    }

    fn needed(&self, device: &str) -> String {
        format!("a .hsaco for {device}")
    }

    fn read(&self, bytes: &[u8]) -> Result<Vec<Part>, CodeError> {
        Ok(hsaco::read(bytes)?.iter().map(part).collect())
    }

    /// The kernels that all objects have; each object is judged.
    fn declared(&self) -> Option<Declare> {
        Some(|bytes| {
            let objects = hsaco::read(bytes)?;
            let kernels = hsaco::common_kernels(&objects)?;
            Ok(CodeInfo {
                kernels: kernels.iter().map(Into::into).collect(),
                targets: objects.iter().map(|object| object.target.to_string()).collect(),
                ..CodeInfo::default()
            })
        })
    }

    fn is_called_right(&self, arch: &str, targets: &[String]) -> bool {
        let processor = |target: &String| target.split(':').next() == Some(arch);
        if arch.is_empty() { !targets.is_empty() } else { targets.iter().any(processor) }
    }
}

fn part(object: &hsaco::CodeObject<'_>) -> Part {
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
        Kernel { info: kernel.into(), figures }
    };
    let variables = object.writable.iter().filter(|section| !section.is_compilers_mark());
    let variables = variables.map(|section| section.bytes).sum();
    Part {
        target: object.target.to_string(),
        kernels: Some(object.kernels.iter().map(kernel).collect()),
        figures: vec![("code_object_version", object.version.into()), ("variable_bytes", variables)],
    }
}
