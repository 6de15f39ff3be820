//! What a wasm module tells of its kernels' parameters: a custom section that `pappus kernel build` writes, since wasm itself
//! has the same type for every kernel. A module may lack it; then nothing is known. The bytes are untrusted: every
//! count is bounded, and what is malformed is refused.
//!
//! ```text
//! section 0 "pappus.kernels":   version: u8 = 2, count, kernel × count
//! kernel:                       text; count, parameter × count
//! parameter:                    class: u8, bytes, align, text
//! text:                         length, UTF-8
//! ```
//! In version 1, which is still read, parameters have no names. Counts, lengths and sizes are unsigned LEB128 of at most 32 bits.

use crate::kernel_info::{ParamClass, ParamInfo};
use crate::limits::{KERNELS, NAME_BYTES, PARAM_BYTES, PARAMS};

/// The section's name.
pub const SECTION: &str = "pappus.kernels";
/// The version of its content that is written.
const VERSION: u8 = 2;
/// The version whose parameters have no names.
const NAMELESS: u8 = 1;
/// The strictest alignment of a parameter.
const MAX_ALIGN: u32 = 128;

/// A kernel and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The export.
    pub kernel: String,
    /// Its parameters, in order.
    pub params: Vec<Param>,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the source; empty where the module does not tell it.
    pub name: Box<str>,
    /// What it is.
    pub class: Class,
    /// Its first byte among the parameters as a GPU has them: one behind the other, aligned. (On the CPU device each has
    /// slots of its own.)
    pub offset: u32,
    /// Its bytes, a pointer's being 8.
    pub bytes: u32,
    /// What its first byte is a multiple of.
    pub align: u32,
}

impl From<&Param> for ParamInfo {
    fn from(param: &Param) -> Self {
        let class = match param.class {
            Class::Bits => ParamClass::Unknown,
            Class::Integer => ParamClass::Whole,
            Class::Float => ParamClass::Float,
            Class::Struct => ParamClass::Bytes,
            Class::Pointer => ParamClass::Pointer,
        };
        Self { name: param.name.clone(), offset: param.offset, bytes: param.bytes, class }
    }
}

/// What the source declares a parameter as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// None of the others.
    Bits = 0,
    /// An integer; an address may be passed in one.
    Integer = 1,
    /// A float.
    Float = 2,
    /// A struct or a union.
    Struct = 3,
    /// A pointer.
    Pointer = 4,
}

impl Class {
    const ALL: [Self; 5] = [Self::Bits, Self::Integer, Self::Float, Self::Struct, Self::Pointer];
}

/// A parameter without its place: name, class, bytes, alignment.
pub type Unplaced<'a> = (&'a str, Class, u32, u32);

/// Why a section is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another version of Pappus made it.
    #[error(
        "section `{SECTION}` has version {0}, known are up to {VERSION}: build the module with this version of pappus"
    )]
    Version(u8),
    /// It ends early, does not end, or holds a number out of range.
    #[error("section `{SECTION}` is malformed: {0}")]
    Content(&'static str),
    /// A kernel stands there twice.
    #[error("section `{SECTION}` has kernel {0:?} twice")]
    Twice(String),
}

/// Reads a section's content, behind its name.
pub fn read(content: &[u8]) -> Result<Vec<Signature>, Malformed> {
    let (&version, rest) = content.split_first().ok_or(Malformed::Content("it is empty"))?;
    if ![NAMELESS, VERSION].contains(&version) {
        return Err(Malformed::Version(version));
    }
    let mut reader = Reader { rest, has_names: version != NAMELESS };
    let count = reader.number(KERNELS as u32, "too many kernels")?;
    let mut all: Vec<Signature> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for _ in 0..count {
        let signature = reader.signature()?;
        if !known.insert(signature.kernel.clone()) {
            return Err(Malformed::Twice(signature.kernel));
        }
        all.push(signature);
    }
    match reader.rest {
        [] => Ok(all),
        _ => Err(Malformed::Content("bytes behind its end")),
    }
}

/// A section's content, behind its name. Offsets follow from sizes and are not written.
pub fn write(all: &[Signature]) -> Vec<u8> {
    let mut out = vec![VERSION];
    leb(all.len() as u32, &mut out);
    for signature in all {
        text(&signature.kernel, &mut out);
        leb(signature.params.len() as u32, &mut out);
        for param in &signature.params {
            out.push(param.class as u8);
            leb(param.bytes, &mut out);
            leb(param.align, &mut out);
            text(&param.name, &mut out);
        }
    }
    out
}

/// A module with that section as its first, in place of any that it has, and without any other custom section but debug
/// information. Nothing if the bytes are no module.
pub fn put(module: &[u8], all: &[Signature]) -> Option<Vec<u8>> {
    const HEAD: usize = 8;
    let mut rest = module.strip_prefix(b"\0asm\x01\0\0\0")?;
    let mut out = module[..HEAD].to_vec();
    let mut section = Vec::new();
    text(SECTION, &mut section);
    section.extend(write(all));
    out.push(0);
    leb(section.len() as u32, &mut out);
    out.extend(section);
    while let Some((&id, behind)) = rest.split_first() {
        let mut reader = Reader { rest: behind, has_names: true };
        let bytes = reader.number(u32::MAX, "").ok()?;
        let (content, behind) = reader.rest.split_at_checked(bytes as usize)?;
        // The length of a name that short is one byte.
        let is_debug_information = content.get(1..).is_some_and(|name| name.starts_with(b".debug_"));
        if id != 0 || is_debug_information {
            out.push(id);
            leb(bytes, &mut out);
            out.extend(content);
        }
        rest = behind;
    }
    Some(out)
}

/// Parameters one behind the other, as a GPU has them; nothing where their bytes are too many.
pub fn laid_out<'a>(params: impl IntoIterator<Item = Unplaced<'a>>) -> Option<Vec<Param>> {
    let mut end = 0u32;
    let mut slots = 0u64;
    let mut all = Vec::new();
    for (name, class, bytes, align) in params {
        slots += u64::from(bytes).next_multiple_of(8);
        let in_range = bytes > 0 && slots <= PARAM_BYTES && align.is_power_of_two() && align <= MAX_ALIGN;
        let offset = in_range.then_some(end)?.checked_next_multiple_of(align)?;
        end = offset + bytes;
        all.push(Param { name: name.into(), class, offset, bytes, align });
    }
    (all.len() <= PARAMS).then_some(all)
}

struct Reader<'a> {
    rest: &'a [u8],
    /// True if each parameter ends with its name.
    has_names: bool,
}

impl<'a> Reader<'a> {
    fn signature(&mut self) -> Result<Signature, Malformed> {
        let kernel = self.text()?.to_owned();
        let count = self.number(PARAMS as u32, "too many parameters")?;
        let mut params = Vec::new();
        for _ in 0..count {
            params.push(self.param()?);
        }
        let wrong = Malformed::Content("parameters of impossible sizes");
        Ok(Signature { kernel, params: laid_out(params).ok_or(wrong)? })
    }

    fn param(&mut self) -> Result<Unplaced<'a>, Malformed> {
        let short = Malformed::Content("it ends within a parameter");
        let (&class, behind) = self.rest.split_first().ok_or(short)?;
        let class =
            Class::ALL.get(usize::from(class)).ok_or(Malformed::Content("an unknown kind of parameter"))?;
        self.rest = behind;
        let bytes = self.number(PARAM_BYTES as u32, "a parameter that is too large")?;
        let align = self.number(MAX_ALIGN, "an alignment that is too strict")?;
        let name = if self.has_names { self.text()? } else { "" };
        Ok((name, *class, bytes, align))
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = self.number(NAME_BYTES as u32, "a name that is too long")?;
        let short = Malformed::Content("it ends within a name");
        let (text, behind) = self.rest.split_at_checked(length as usize).ok_or(short)?;
        self.rest = behind;
        let text = std::str::from_utf8(text).ok().filter(|text| !text.contains(char::is_control));
        text.ok_or(Malformed::Content("a name that is no text"))
    }

    /// An unsigned number of up to 32 bits in wasm's variable length, `most` or less.
    fn number(&mut self, most: u32, too_large: &'static str) -> Result<u32, Malformed> {
        let mut value = 0u64;
        for (at, byte) in self.rest.iter().enumerate().take(5) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                let value = u32::try_from(value).ok().filter(|value| *value <= most);
                return value.ok_or(Malformed::Content(too_large));
            }
        }
        Err(Malformed::Content("it ends within a number"))
    }
}

fn text(text: &str, out: &mut Vec<u8>) {
    leb(text.len() as u32, out);
    out.extend(text.as_bytes());
}

fn leb(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Vec<Signature> {
        let of = |kernel: &str, params: &[Unplaced]| Signature {
            kernel: kernel.to_owned(),
            params: laid_out(params.iter().copied()).unwrap(),
        };
        use Class::{Bits, Float, Integer, Pointer, Struct};
        vec![
            of(
                "scale",
                &[
                    ("out", Pointer, 8, 8),
                    ("α", Float, 4, 4),
                    ("s", Struct, 320, 16),
                    ("n", Integer, 1, 1),
                    ("", Bits, 16, 16),
                ],
            ),
            of("nothing", &[]),
        ]
    }

    #[test]
    fn what_is_written_is_read_with_the_places_of_a_gpu() {
        let read = read(&write(&example())).unwrap();
        assert_eq!(read, example());
        let offsets: Vec<u32> = read[0].params.iter().map(|param| param.offset).collect();
        assert_eq!(offsets, [0, 8, 16, 336, 352]);
    }

    #[test]
    fn a_section_of_the_first_version_has_parameters_without_names() {
        let read = read(&[1, 1, 1, b'k', 2, 4, 8, 8, 1, 4, 4]).unwrap();
        let params: Vec<_> = read[0].params.iter().map(|one| (&*one.name, one.class, one.offset)).collect();
        assert_eq!(params, [("", Class::Pointer, 0), ("", Class::Integer, 8)]);
    }

    #[test]
    fn a_module_gets_the_section_in_place_of_its_custom_ones() {
        let module = b"\0asm\x01\0\0\0\x00\x03\x01xy\x01\x81\x80\x80\x80\x00\x00\x00\x02\x01z";
        let with = put(module, &example()).unwrap();
        let (head, rest) = with.split_at(8);
        let (section, others) = rest.split_at(2 + usize::from(rest[1]));
        assert_eq!((head, section[0], others), (&module[..8], 0, &b"\x01\x01\x00"[..]));
        assert_eq!((usize::from(section[2]), &section[3..17]), (SECTION.len(), SECTION.as_bytes()));
        assert_eq!(read(&section[17..]).unwrap(), example());
        assert_eq!(put(&with, &example()).unwrap(), with, "once is enough");
        let debug = b"\0asm\x01\0\0\0\x00\x09\x07.debug_z\x00\x02\x01z";
        assert!(put(debug, &[]).unwrap().ends_with(b"\x00\x09\x07.debug_z"), "lines are found by it");
        for short in [&module[..9], &module[..10], &b"\0asm"[..]] {
            assert_eq!(put(short, &[]), None);
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_it_is() {
        let twice = Signature { kernel: "k".to_owned(), params: Vec::new() };
        for (content, words) in [
            (vec![], "it is empty"),
            (vec![3, 0], "has version 3"),
            (vec![1, 0, 0], "bytes behind its end"),
            (vec![1, 0x80, 0x80, 1], "too many kernels"),
            (vec![1, 0xff, 0xff, 0xff, 0xff, 0xff], "within a number"),
            (vec![1, 1, 2, b'k'], "within a name"),
            (vec![1, 1, 1, 0xff, 0], "no text"),
            (vec![1, 1, 1, b'k', 1], "within a parameter"),
            (vec![1, 1, 1, b'k', 1, 9, 8, 8], "unknown kind"),
            (vec![1, 1, 1, b'k', 1, 1, 8, 3], "impossible sizes"),
            (vec![1, 1, 1, b'k', 1, 1, 0, 1], "impossible sizes"),
            (vec![2, 1, 1, b'k', 1, 1, 8, 8], "within a number"),
            (vec![2, 1, 1, b'k', 1, 1, 8, 8, 2, b'n'], "within a name"),
            (vec![2, 1, 1, b'k', 1, 1, 8, 8, 1, 0xff], "no text"),
            (vec![2, 1, 1, b'k', 1, 1, 8, 8, 1, 27], "no text"),
            (write(&[twice.clone(), twice]), "\"k\" twice"),
        ] {
            let why = read(&content).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
        let many = vec![("s", Class::Struct, 2048, 8); 3];
        assert_eq!(laid_out(many), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_read_is_written_again(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>()) {
            let mut content = write(&example());
            for (at, byte) in flips {
                let at = at.index(content.len());
                content[at] = byte;
            }
            content.truncate(cut.index(content.len()) + 1);
            if let Ok(found) = read(&content) {
                prop_assert_eq!(read(&write(&found)).unwrap(), found);
            }
        }
    }
}
