//! The format of the CPU device: WebAssembly, one form for all processors.

use std::collections::HashMap;

use super::{CodeFormat, Fit, Kernel, Part};
use crate::kernel_info::{CodeError, KernelInfo};
use crate::signatures;

/// WebAssembly.
#[derive(Debug)]
pub struct Wasm;

impl CodeFormat for Wasm {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn arch_prefix(&self) -> &'static str {
        ""
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(b"\0asm")
    }

    fn suits(&self, _made_for: &str, _device: &str) -> Option<Fit> {
        Some((0, 0))
    }

    fn can_be_fenced(&self) -> bool {
        true
    }

    fn needed(&self, _device: &str) -> String {
        "its .wasm variant".to_owned()
    }

    fn read(&self, bytes: &[u8]) -> Result<Vec<Part>, CodeError> {
        let part = part(bytes).ok_or("no WebAssembly, or cut off: compile it again")?;
        Ok(vec![part.map_err(|why| CodeError(why.to_string()))?])
    }
}

/// The exported functions, what they take if the module tells, and the memory that it asks for; `None` where the bytes are
/// no module.
fn part(content: &[u8]) -> Option<Result<Part, signatures::Malformed>> {
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
    let kernel = |name: String| -> Kernel {
        let params =
            told.get(name.as_str()).map(|signature| signature.params.iter().map(Into::into).collect());
        KernelInfo { name, params, ..KernelInfo::default() }.into()
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
