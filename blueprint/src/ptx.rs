//! What PTX declares of its kernels: the only text among the forms of a module, and the one that tells each parameter.
//! Read without a driver, so that a blueprint can be checked where no GPU is. The text is untrusted: every step is
//! bounded, and declarations that are not understood are left unknown. Whether the code behind a declaration is right is for the driver's
//! compiler. "PTX ISA", NVIDIA: "Kernel and Function Directives", "Parameter State Space", "Kernel Function Parameter
//! Alignment".

use crate::kernel_info::{KernelInfo, ParamClass, ParamInfo};

/// Why a text's kernels cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A declaration does not end, or begins without a name.
    #[error("malformed: an .entry without {0}")]
    Entry(&'static str),
    /// There are too many.
    #[error("more than {MAX_KERNELS} kernels: split the module")]
    Many,
}

/// Kernels of a text.
const MAX_KERNELS: usize = 1 << 16;
/// Bytes of a parameter list; the longest that a driver takes declares about 32 KiB of parameters.
const MAX_LIST_BYTES: usize = 1 << 20;

/// The kernels that the text declares, by their first appearance. A prototype and its definition are one.
pub fn entries(text: &str) -> Result<Vec<KernelInfo>, Malformed> {
    let text = without_comments(text);
    let mut kernels: Vec<KernelInfo> = Vec::new();
    let mut known = std::collections::HashMap::new();
    // Each piece begins behind an `.entry`.
    for piece in text.split(".entry").skip(1) {
        let Some(declared) = piece.strip_prefix(|c: char| c.is_ascii_whitespace()) else { continue };
        let end = declared.find(['(', '{', ';']).ok_or(Malformed::Entry("an end"))?;
        let name = declared[..end].split_ascii_whitespace().next();
        let name = name.ok_or(Malformed::Entry("a name"))?;
        let mut behind = &declared[end..];
        let params = match declared[end..].strip_prefix('(') {
            None => Some(Vec::new()),
            Some(list) => {
                let mut end = list.len().min(MAX_LIST_BYTES);
                while !list.is_char_boundary(end) {
                    end -= 1;
                }
                let close = list[..end].find(')').ok_or(Malformed::Entry("an end of its parameters"))?;
                behind = &list[close..];
                params(&list[..close])
            }
        };
        let at = *known.entry(name).or_insert(kernels.len());
        if at == MAX_KERNELS {
            return Err(Malformed::Many);
        }
        if at == kernels.len() {
            let max_threads = max_threads(behind).unwrap_or(0);
            kernels.push(KernelInfo { name: name.to_owned(), params, max_threads, ..KernelInfo::default() });
        }
    }
    Ok(kernels)
}

/// The module's `.target`, such as `sm_90`, where it has one.
pub fn target(text: &str) -> Option<&str> {
    let declared = text.lines().find_map(|line| line.trim_start().strip_prefix(".target"))?;
    declared.split([',', ' ', '\t', ';']).find(|word| !word.is_empty())
}

/// What stands between a kernel's parameters and its body, such as `.maxntid 256, 1, 1`: the product.
fn max_threads(behind: &str) -> Option<u32> {
    let directives = &behind[..behind.find(['{', ';'])?];
    let sides = [".maxntid", ".reqntid"].into_iter().find_map(|name| directives.split_once(name))?.1;
    let mut product = 1u32;
    for side in sides.split('.').next()?.split(',') {
        product = product.checked_mul(side.trim().parse().ok()?)?;
    }
    (product > 0).then_some(product)
}

/// A parameter list; nothing if one of its parameters is not understood.
fn params(list: &str) -> Option<Vec<ParamInfo>> {
    let mut params = Vec::new();
    let mut end: u32 = 0;
    for one in list.split(',').filter(|one| !one.trim().is_empty()) {
        let Declared { bytes, align, class } = param(one)?;
        let offset = end.checked_next_multiple_of(align)?;
        end = offset.checked_add(bytes)?;
        params.push(ParamInfo { name: Box::default(), class, offset, bytes });
    }
    Some(params)
}

/// A parameter as it is declared, before it has an offset.
struct Declared {
    bytes: u32,
    align: u32,
    class: ParamClass,
}

/// One parameter, such as `.param .u64 .ptr .global .align 8 name` or `.param .align 8 .b8 name[320]`.
fn param(text: &str) -> Option<Declared> {
    let (declared, count) = match text.split_once('[') {
        Some((declared, count)) => (declared, Some(count.split_once(']')?.0.trim().parse().ok()?)),
        None => (text, None),
    };
    let mut parts = declared.split_ascii_whitespace();
    let (mut element, mut align, mut is_pointer) = (None, None, false);
    while let Some(part) = parts.next() {
        match part {
            // The alignment behind `.ptr` is that of what the pointer points to.
            ".ptr" => is_pointer = true,
            ".align" => {
                let value: u32 = parts.next()?.parse().ok()?;
                let value = Some(value).filter(|value| value.is_power_of_two() && *value <= 128)?;
                align = align.or(Some(value).filter(|_| !is_pointer));
            }
            // Vectors are no parameters of kernels.
            ".v2" | ".v4" => return None,
            _ => element = element.or(scalar(part)),
        }
    }
    let (bytes, class) = element?;
    let class = if count.is_some() { ParamClass::Bytes } else { class };
    Some(Declared { bytes: bytes.checked_mul(count.unwrap_or(1))?, align: align.unwrap_or(bytes), class })
}

/// Bytes and class of a type.
fn scalar(name: &str) -> Option<(u32, ParamClass)> {
    let bits = name.strip_prefix('.')?;
    let (kind, bits) = bits.split_at_checked(bits.find(|c: char| c.is_ascii_digit())?)?;
    let class = match kind {
        "f" | "bf" => ParamClass::Float,
        "u" | "s" => ParamClass::Integer,
        "b" => ParamClass::Unknown,
        _ => return None,
    };
    let bytes = match bits {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        "128" => 16,
        _ => return None,
    };
    Some((bytes, class))
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        rest = if let Some(inside) = from.strip_prefix("/*") {
            out.push(' ');
            inside.split_once("*/").map_or("", |(_, behind)| behind)
        } else if from.starts_with("//") {
            from.find('\n').map_or("", |end| &from[end..])
        } else {
            out.push('/');
            &from[1..]
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    type Params = Option<Vec<(u32, u32, ParamClass)>>;

    fn declared(text: &str) -> Vec<(String, Params)> {
        let each = |param: &ParamInfo| (param.offset, param.bytes, param.class);
        let params = |kernel: &KernelInfo| Some(kernel.params.as_ref()?.iter().map(each).collect());
        entries(text).unwrap().iter().map(|kernel| (kernel.name.clone(), params(kernel))).collect()
    }

    #[test]
    fn kernels_are_read_with_the_places_and_classes_of_their_parameters() {
        use ParamClass::*;
        let text = "
            .version 7.0
            /* .entry not_me (.param .f32 x) */
            .visible .entry scale(
                .param .u64 .ptr .global .align 16 scale_param_0, // a pointer, not a .entry
                .param .f32 scale_param_1,
                .param .align 8 .b8 scale_param_2[320],
                .param .b32 scale_param_3,
                .param .u8 scale_param_4, .param .s16 scale_param_5
            )
            .maxntid 256, 1, 1 { ret; }
            .entry nothing() { ret; }
            .entry\tbare { ret; }
            .entry odd(.param .v4 .f32 x) { ret; }
            .entryless(.param .u32 x)";
        let scale = vec![
            (0, 8, Integer),
            (8, 4, Float),
            (16, 320, Bytes),
            (336, 4, Unknown),
            (340, 1, Integer),
            (342, 2, Integer),
        ];
        let named = |name: &str, params| (name.to_owned(), params);
        let expected = [
            named("scale", Some(scale)),
            named("nothing", Some(vec![])),
            named("bare", Some(vec![])),
            named("odd", None),
        ];
        assert_eq!(declared(text), expected);
        let kernels = entries(text).unwrap();
        let limits: Vec<_> = kernels.iter().map(|entry| entry.max_threads).collect();
        assert_eq!(limits, [256, 0, 0, 0]);
        assert_eq!((target(".version 7.0\n .target sm_90a, debug\n"), target("x")), (Some("sm_90a"), None));
        for (directives, most) in [
            (".reqntid 8, 4", Some(32)),
            (".maxntid 64 .minnctapersm 2", Some(64)),
            (".maxntid", None),
            (".maxntid 0", None),
            (".maxntid 99999999, 99999", None),
        ] {
            assert_eq!(max_threads(&format!(") {directives} {{")), most, "{directives}");
        }
        // A prototype is no second kernel.
        assert_eq!(declared(".extern .entry k(.param .u32 a); .entry k(.param .u32 a) { }").len(), 1);
    }

    #[test]
    fn what_is_malformed_is_refused_or_left_unknown() {
        for text in [".entry ", ".entry k(", ".entry k(.param .u32 a", ".entry (.param .u32 a)"] {
            assert!(entries(text).is_err(), "{text}");
        }
        for list in
            ["x", ".param .u32 a[", ".param .b8 a[99999999999]", ".param .align 3 .b8 a[4]", ".param .q32 a"]
        {
            assert_eq!(declared(&format!(".entry k({list})")), [("k".to_owned(), None)], "{list}");
        }
        let too_long = format!(".entry k({})", " ".repeat(MAX_LIST_BYTES));
        assert!(entries(&too_long).is_err());
    }

    #[test]
    fn the_kernel_library_reads() {
        let kernels = declared(include_str!("../../kernels/built/mlops.ptx"));
        let params =
            kernels.into_iter().find(|(name, _)| name == "matmul_para").and_then(|(_, params)| params);
        assert_eq!(params.unwrap(), [0, 8, 16].map(|offset| (offset, 8, ParamClass::Integer)));
    }
}
