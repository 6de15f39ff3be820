//! The note of a code object: what it is made for, its kernels, and what each takes, as the compiler wrote it down.
//! "Code Object V5 Metadata".

use super::CodeError;
use super::msgpack::Reader;

/// Keys of one map.
const MAX_KEYS: u32 = 64;
/// Arguments of all kernels, including what the driver fills in.
const MAX_ARGUMENTS: usize = 65_536;

/// What a note tells.
#[derive(Debug)]
pub(super) struct Told<'a> {
    /// The version of the format that it is written in.
    pub(super) version: u8,
    pub(super) target: &'a str,
    pub(super) kernels: Vec<ToldKernel<'a>>,
}

/// A kernel as the note tells it.
#[derive(Debug, Default)]
pub(super) struct ToldKernel<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) symbol: Option<&'a str>,
    /// The kind of a kernel that cannot be launched: `init`, `fini`.
    pub(super) kind: Option<&'a str>,
    pub(super) arguments: Vec<ToldArgument<'a>>,
    pub(super) kernarg_bytes: Option<u64>,
    pub(super) lds_bytes: Option<u64>,
    pub(super) private_bytes: Option<u64>,
    pub(super) max_threads: Option<u64>,
    pub(super) wave: Option<u64>,
    pub(super) required_block: Option<[u64; 3]>,
    pub(super) vector_registers: Option<u64>,
    pub(super) accumulation_registers: Option<u64>,
    pub(super) scalar_registers: Option<u64>,
    pub(super) has_dynamic_stack: bool,
    pub(super) enqueues: bool,
}

/// An argument as the note tells it.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ToldArgument<'a> {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) kind: &'a str,
}

/// Reads a note's content.
pub(super) fn read(note: &[u8]) -> Result<Told<'_>, CodeError> {
    let mut reader = Reader::new(note);
    let (mut version, mut target, mut kernels) = (None, None, None);
    let mut arguments_left = MAX_ARGUMENTS;
    for_each_entry(&mut reader, |key, reader| {
        match key {
            "amdhsa.version" => version = Some(numbers::<2>(reader)?),
            "amdhsa.target" => target = Some(reader.text()?),
            "amdhsa.kernels" => {
                let count = reader.array()?;
                let mut read = Vec::new();
                for _ in 0..count {
                    if read.len() == super::MAX_KERNELS {
                        return Err(CodeError(format!(
                            "more than {} kernels: split the module",
                            super::MAX_KERNELS
                        )));
                    }
                    read.push(kernel(reader, &mut arguments_left)?);
                }
                kernels = Some(read);
            }
            "amdhsa.printf" if reader.array()? > 0 => {
                return Err(
                    "its kernels print: there is nobody who would read it. Return a buffer in its place"
                        .into(),
                );
            }
            "amdhsa.printf" => {}
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !reader.is_at_end() {
        return Err("malformed: something follows its metadata in the note".into());
    }
    let version = match version {
        Some([1, 1]) => 4,
        Some([1, 2]) => 5,
        version => {
            return Err(CodeError(format!(
                "its metadata has version {version:?}, [1, 1] and [1, 2] are known"
            )));
        }
    };
    let target = target.ok_or("malformed: its metadata does not say what it is made for")?;
    Ok(Told { version, target, kernels: kernels.unwrap_or_default() })
}

/// Reads a map. What `each` does not know it leaves unread.
fn for_each_entry<'a>(
    reader: &mut Reader<'a>,
    mut each: impl FnMut(&'a str, &mut Reader<'a>) -> Result<bool, CodeError>,
) -> Result<(), CodeError> {
    let pairs = reader.map()?;
    if pairs > MAX_KEYS {
        return Err(CodeError(format!(
            "malformed: a map of {pairs} keys in its metadata, allowed are {MAX_KEYS}"
        )));
    }
    let mut keys: Vec<&str> = Vec::with_capacity(pairs as usize);
    for _ in 0..pairs {
        let key = reader.text()?;
        // Of two, another reader might take the other.
        if keys.contains(&key) {
            return Err(CodeError(format!("malformed: {key:?} is in its metadata twice")));
        }
        keys.push(key);
        if !each(key, reader)? {
            reader.skip()?;
        }
    }
    Ok(())
}

fn kernel<'a>(reader: &mut Reader<'a>, arguments_left: &mut usize) -> Result<ToldKernel<'a>, CodeError> {
    let mut kernel = ToldKernel::default();
    for_each_entry(reader, |key, reader| {
        match key {
            ".name" => kernel.name = Some(reader.text()?),
            ".symbol" => kernel.symbol = Some(reader.text()?),
            ".kind" => kernel.kind = Some(reader.text()?),
            ".kernarg_segment_size" => kernel.kernarg_bytes = Some(reader.number()?),
            ".group_segment_fixed_size" => kernel.lds_bytes = Some(reader.number()?),
            ".private_segment_fixed_size" => kernel.private_bytes = Some(reader.number()?),
            ".max_flat_workgroup_size" => kernel.max_threads = Some(reader.number()?),
            ".wavefront_size" => kernel.wave = Some(reader.number()?),
            ".reqd_workgroup_size" => kernel.required_block = Some(numbers(reader)?),
            ".vgpr_count" => kernel.vector_registers = Some(reader.number()?),
            ".agpr_count" => kernel.accumulation_registers = Some(reader.number()?),
            ".sgpr_count" => kernel.scalar_registers = Some(reader.number()?),
            ".uses_dynamic_stack" => kernel.has_dynamic_stack = reader.flag()?,
            ".device_enqueue_symbol" => {
                reader.skip()?;
                kernel.enqueues = true;
            }
            ".args" => {
                for _ in 0..reader.array()? {
                    let few = "malformed: its kernels take too many arguments";
                    *arguments_left = arguments_left.checked_sub(1).ok_or(few)?;
                    kernel.arguments.push(argument(reader)?);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(kernel)
}

fn argument<'a>(reader: &mut Reader<'a>) -> Result<ToldArgument<'a>, CodeError> {
    let (mut offset, mut bytes, mut kind) = (None, None, None);
    for_each_entry(reader, |key, reader| {
        match key {
            ".offset" => offset = Some(reader.number()?),
            ".size" => bytes = Some(reader.number()?),
            ".value_kind" => kind = Some(reader.text()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    match (offset, bytes, kind) {
        (Some(offset), Some(bytes), Some(kind)) => Ok(ToldArgument { offset, bytes, kind }),
        _ => Err("malformed: an argument without place, size or kind".into()),
    }
}

/// An array of exactly so many numbers.
fn numbers<const N: usize>(reader: &mut Reader<'_>) -> Result<[u64; N], CodeError> {
    if reader.array()? as usize != N {
        return Err(CodeError(format!("malformed: its metadata has an array of other than {N} numbers")));
    }
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = reader.number()?;
    }
    Ok(numbers)
}
