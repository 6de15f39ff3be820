//! Judging modules before the driver sees them, and what a PTX text says about its kernels' parameters.
//! PTX: "PTX ISA", NVIDIA, sections "Kernel and Function Directives" and "Parameter State Space".

use std::collections::HashMap;

use pappus_protocol::from_worker::ParamClass;

use crate::device::MAX_MODULE_BYTES;

/// What a module's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Ptx,
    Cubin,
    Fatbin,
}

/// The first bytes of a fatbin (`fatBinaryHeader` of the CUDA toolkit).
const FATBIN: u32 = 0xba55_ed50;
/// Bytes of a fatbin's header; its own length and that of what follows lie in it.
const FATBIN_HEADER_BYTES: usize = 16;

/// Recognises a module.
pub(super) fn format(module: &[u8]) -> Result<Format, String> {
    if module.len() > MAX_MODULE_BYTES {
        return Err(format!("the module has {} bytes, allowed are {MAX_MODULE_BYTES}", module.len()));
    }
    if module.starts_with(b"\x7fELF") {
        return Ok(Format::Cubin);
    }
    if module.first_chunk().is_some_and(|&first| u32::from_le_bytes(first) == FATBIN) {
        return check_fatbin(module).map(|()| Format::Fatbin);
    }
    let text =
        std::str::from_utf8(module).map_err(|_| "this is no cubin, no fatbin and no PTX text".to_owned())?;
    if !text.lines().map(str::trim_start).any(|line| line.starts_with(".version")) {
        return Err("this is no cubin, no fatbin and no PTX text (which has a `.version` line)".to_owned());
    }
    match text.contains('\0') {
        false => Ok(Format::Ptx),
        true => Err("the PTX text has a zero byte in it".to_owned()),
    }
}

/// The driver is given no length: what the header says must be there.
fn check_fatbin(module: &[u8]) -> Result<(), String> {
    let truncated = || "truncated: the fatbin is shorter than its header says".to_owned();
    let header = module.get(..FATBIN_HEADER_BYTES).ok_or_else(truncated)?;
    let header_bytes = u64::from(u16::from_le_bytes([header[6], header[7]]));
    let content = header[8..16].try_into().map(u64::from_le_bytes).map_err(|_| truncated())?;
    match header_bytes.checked_add(content) {
        Some(end) if end <= module.len() as u64 => Ok(()),
        _ => Err(truncated()),
    }
}

/// The classes of every kernel's parameters, as far as the text tells them.
pub(super) fn ptx_params(text: &str) -> HashMap<String, Vec<ParamClass>> {
    let mut kernels = HashMap::new();
    let text = without_comments(text);
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let Some(open) = rest.find(['(', '{', ';']) else { break };
        let name = rest[..open].trim().to_owned();
        let params = match rest[open..].strip_prefix('(').and_then(|inside| inside.split_once(')')) {
            Some((list, _)) => list.split(',').filter(|p| !p.trim().is_empty()).map(class).collect(),
            None => Vec::new(),
        };
        kernels.insert(name, params);
    }
    kernels
}

/// The class of one parameter, such as `.param .u64 .ptr .global .align 8 name`.
fn class(param: &str) -> ParamClass {
    if param.contains('[') {
        return ParamClass::Bytes;
    }
    let mut words = param.split_whitespace();
    words
        .find_map(|word| match word {
            ".f32" | ".f64" | ".f16" | ".bf16" => Some(ParamClass::Float),
            ".u8" | ".u16" | ".u32" | ".u64" | ".s8" | ".s16" | ".s32" | ".s64" => Some(ParamClass::Integer),
            ".b8" | ".b16" | ".b32" | ".b64" => Some(ParamClass::Unknown),
            _ => None,
        })
        .unwrap_or(ParamClass::Unknown)
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        rest = rest[at + 2..].split_once("*/").map_or("", |(_, behind)| behind);
    }
    out.push_str(rest);
    out.lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_and_others_refused() {
        assert_eq!(format(b"\x7fELF..."), Ok(Format::Cubin));
        assert_eq!(format(b"// made by hand\n.version 7.0\n.target sm_70\n"), Ok(Format::Ptx));
        let mut fatbin = FATBIN.to_le_bytes().to_vec();
        fatbin.extend([1, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert!(format(&fatbin).unwrap_err().contains("truncated"));
        fatbin.extend([0; 4]);
        assert_eq!(format(&fatbin), Ok(Format::Fatbin));
        for (bytes, words) in [
            (&b"\0asm\x01\0\0\0"[..], "no PTX"),
            (b".version 7.0\0", "zero byte"),
            (b"\xff\xfe", "no cubin"),
            (b"", "no PTX"),
        ] {
            assert!(format(bytes).unwrap_err().contains(words), "{bytes:?}");
        }
        assert!(format(&vec![b' '; MAX_MODULE_BYTES + 1]).is_err());
    }

    #[test]
    fn ptx_tells_the_classes_of_parameters() {
        let text = "
            .version 7.0
            /* .entry not_me (.param .f32 x) */
            .visible .entry scale(
                .param .u64 .ptr .global .align 8 scale_param_0, // a pointer, not a .entry
                .param .f32 scale_param_1,
                .param .align 8 .b8 scale_param_2[320],
                .param .b32 scale_param_3
            )
            .maxntid 256, 1, 1 { ret; }
            .entry nothing() { ret; }
            .entry bare { ret; }";
        let kernels = ptx_params(text);
        use ParamClass::*;
        assert_eq!(kernels["scale"], [Integer, Float, Bytes, Unknown]);
        assert_eq!((kernels["nothing"].len(), kernels["bare"].len(), kernels.len()), (0, 0, 3));
    }

    #[test]
    fn the_kernel_library_reads() {
        let kernels = ptx_params(include_str!("../../../../kernels/built/mlops.ptx"));
        assert_eq!(kernels["matmul_para"], [ParamClass::Integer; 3]);
    }
}
