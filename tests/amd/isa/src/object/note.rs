//! The note of a code object: msgpack with one map.

use super::{Argument, Bytes, Kernel};

/// What of it is needed.
pub(super) struct Metadata {
    pub(super) target: String,
    pub(super) kernels: Vec<Kernel>,
}

/// The deepest nesting.
const DEEPEST: usize = 16;

/// A value of msgpack.
enum Value<'a> {
    Nothing,
    Number(u64),
    Text(&'a str),
    List(Vec<Value<'a>>),
    Map(Vec<(&'a str, Value<'a>)>),
}

impl Metadata {
    pub(super) fn read(note: &[u8]) -> Option<Self> {
        let bytes = Bytes(note);
        let (name, length) = (u64::from(bytes.u32(0)?), u64::from(bytes.u32(4)?));
        let mut packed = bytes.range(12 + name.next_multiple_of(4), length)?;
        let root = Value::read(&mut packed, DEEPEST)?;
        let kernels = root.get("amdhsa.kernels")?.list().iter().map(kernel).collect::<Option<_>>()?;
        Some(Self { target: root.get("amdhsa.target")?.text()?.to_owned(), kernels })
    }
}

fn kernel(value: &Value<'_>) -> Option<Kernel> {
    let number = |key: &str| value.get(key)?.number();
    let arguments = value.get(".args").map_or(&[][..], Value::list).iter().map(|argument| {
        Some(Argument {
            offset: argument.get(".offset")?.number()? as usize,
            bytes: argument.get(".size")?.number()? as usize,
            kind: argument.get(".value_kind")?.text()?.to_owned(),
        })
    });
    Some(Kernel {
        name: value.get(".name")?.text()?.to_owned(),
        symbol: value.get(".symbol")?.text()?.to_owned(),
        arguments: arguments.collect::<Option<_>>()?,
        arguments_bytes: number(".kernarg_segment_size")? as usize,
        lds_bytes: number(".group_segment_fixed_size")? as u32,
        scratch_bytes: number(".private_segment_fixed_size")? as u32,
        most_threads: number(".max_flat_workgroup_size")? as u32,
        vector_registers: number(".vgpr_count")? as u32,
        ..Kernel::default()
    })
}

impl<'a> Value<'a> {
    fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    fn text(&self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn list(&self) -> &[Self] {
        if let Self::List(values) = self { values } else { &[] }
    }

    fn read(bytes: &mut &'a [u8], depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        Some(match take(bytes, 1)?[0] {
            tag @ 0..=0x7f => Self::Number(u64::from(tag)),
            tag @ 0x80..=0x8f => Self::map(bytes, u64::from(tag & 0xf), depth)?,
            tag @ 0x90..=0x9f => Self::sequence(bytes, u64::from(tag & 0xf), depth)?,
            tag @ 0xa0..=0xbf => Self::string(bytes, u64::from(tag & 0x1f))?,
            0xc0 | 0xc2 => Self::Nothing,
            0xc3 => Self::Number(1),
            0xcc => Self::Number(number(bytes, 1)?),
            0xcd => Self::Number(number(bytes, 2)?),
            0xce => Self::Number(number(bytes, 4)?),
            0xcf => Self::Number(number(bytes, 8)?),
            0xd9 => number(bytes, 1).and_then(|length| Self::string(bytes, length))?,
            0xda => number(bytes, 2).and_then(|length| Self::string(bytes, length))?,
            0xdc => number(bytes, 2).and_then(|length| Self::sequence(bytes, length, depth))?,
            0xdd => number(bytes, 4).and_then(|length| Self::sequence(bytes, length, depth))?,
            0xde => number(bytes, 2).and_then(|length| Self::map(bytes, length, depth))?,
            0xdf => number(bytes, 4).and_then(|length| Self::map(bytes, length, depth))?,
            _ => return None,
        })
    }

    fn string(bytes: &mut &'a [u8], length: u64) -> Option<Self> {
        std::str::from_utf8(take(bytes, length)?).ok().map(Self::Text)
    }

    fn sequence(bytes: &mut &'a [u8], length: u64, depth: usize) -> Option<Self> {
        (0..length).map(|_| Self::read(bytes, depth)).collect::<Option<_>>().map(Self::List)
    }

    fn map(bytes: &mut &'a [u8], length: u64, depth: usize) -> Option<Self> {
        let mut entries = Vec::new();
        for _ in 0..length {
            let key = Self::read(bytes, depth)?.text()?;
            entries.push((key, Self::read(bytes, depth)?));
        }
        Some(Self::Map(entries))
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// A big-endian number.
fn number(bytes: &mut &[u8], count: u64) -> Option<u64> {
    Some(take(bytes, count)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
