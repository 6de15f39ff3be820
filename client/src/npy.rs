//! NumPy's `.npy` format, as much as is needed: the array of a file as devices take it, and the header of a new one.
//!
//! ```text
//! \x93NUMPY | major | minor | header length: u16 (version 1) or u32 | header: a Python dict | data
//! ```

use std::io::Read;
use std::path::Path;

use pappus_blueprint::DType;
use pappus_blueprint::limits::RANK;

use crate::array::{Array, Element};
use crate::error::{Error, Result};
use crate::source::Source;

pub use crate::source::FileRange;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header that is read, by NumPy, too: dimensions of a plain array need far less.
const MAX_HEADER_BYTES: u32 = 10_000;
/// Most bytes of an element of no type.
const MAX_WIDTH: u64 = 1 << 16;
/// Where NumPy aligns the data.
const DATA_ALIGN: usize = 64;

/// What the header of a `.npy` file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The array.
    pub array: Array,
    /// True if numbers have their most significant byte first.
    pub big_endian: bool,
    /// True if columns lie one behind the other, not rows.
    pub fortran: bool,
    /// Where the data starts.
    pub data_offset: u64,
}

/// What a file contributes.
#[derive(Debug)]
pub enum Contents {
    /// Bytes as they lie there.
    Range(FileRange),
    /// An array that lies otherwise than devices take it.
    Converted(Vec<u8>),
}

/// What is wrong with a `.npy` file, or why its array cannot be passed on as it lies there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// The file is shorter than its header.
    #[error("no .npy file: it ends in its header")]
    Truncated,
    /// It is another kind of file.
    #[error("no .npy file: it does not start with \\x93NUMPY")]
    Magic,
    /// Written by a NumPy that is newer than this reader.
    #[error("version {0}.{1} of the .npy format, expected 1.0, 2.0 or 3.0")]
    Version(u8, u8),
    /// The header is larger than that of any plain array.
    #[error("a header of {0} bytes, expected at most {MAX_HEADER_BYTES}")]
    HeaderBytes(u32),
    /// The header is not what NumPy writes.
    #[error("a header that is no dictionary of 'descr', 'fortran_order' and 'shape'")]
    Dictionary,
    /// The elements are structures.
    #[error("elements of several fields, expected plain numbers")]
    Fields,
    /// The elements are no numbers that devices know: objects, text, dates.
    #[error("elements of type {0:?}, expected plain numbers")]
    ElementType(String),
    /// More dimensions than an array has.
    #[error("a shape of {0} dimensions, expected at most {RANK}")]
    Rank(usize),
    /// More bytes than can be counted.
    #[error("a shape of {0:?} is too large")]
    Shape(Vec<u64>),
    /// The file was cut off, or something stands behind the array.
    #[error("its header announces {announced} bytes of data, but there are {found}")]
    DataBytes {
        /// What type and shape need.
        announced: u64,
        /// What follows the header.
        found: u64,
    },
}

/// The part of a file that a source contributes, and the header of a `.npy` file.
pub fn look(source: &Source) -> Result<(FileRange, Option<Header>)> {
    let path = source.path();
    let opened = source.open()?;
    if !is_npy(path) {
        return Ok((FileRange { offset: 0, bytes: opened.bytes() }, None));
    }
    let header = read_header(opened.reader());
    let header = header.and_then(|header| header.check(opened.bytes()).map(|bytes| (header, bytes)));
    let (header, bytes) = header.map_err(|why| Error::content(path, why.to_string()))?;
    Ok((FileRange { offset: header.data_offset, bytes }, Some(header)))
}

/// What a file contributes: the array of a `.npy` file as devices take it, or all of any other file.
pub fn read(source: &Source) -> Result<(Contents, Option<Array>)> {
    let (range, header) = look(source)?;
    let Some(header) = header else { return Ok((Contents::Range(range), None)) };
    let contents = match header.lies_as_sent() {
        true => Contents::Range(range),
        false => {
            let bytes = read_range(source, range).map_err(Error::file(source.path()))?;
            Contents::Converted(header.convert(bytes))
        }
    };
    Ok((contents, Some(header.array)))
}

fn read_range(source: &Source, range: FileRange) -> std::io::Result<Vec<u8>> {
    let opened = source.open().map_err(std::io::Error::other)?;
    let mut bytes = Vec::new();
    // The file has so many; memory may not.
    bytes.try_reserve_exact(range.bytes as usize).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    bytes.resize(range.bytes as usize, 0);
    opened.read_at(range.offset, &mut bytes)?;
    Ok(bytes)
}

/// The array of a `.npy` file whose content is in memory, and its bytes as devices take them; `path` is for the error.
pub fn of_bytes(path: &Path, mut content: Vec<u8>) -> Result<(Array, Vec<u8>)> {
    let header = read_header(&content[..]);
    let header = header.and_then(|header| header.check(content.len() as u64).map(|_| header));
    let header = header.map_err(|why| Error::content(path, why.to_string()))?;
    content.drain(..header.data_offset as usize);
    let bytes = if header.lies_as_sent() { content } else { header.convert(content) };
    Ok((header.array, bytes))
}

/// True if bytes without a name are meant to be a `.npy` file.
pub fn starts_as_npy(content: &[u8]) -> bool {
    content.starts_with(MAGIC)
}

/// True if a file is meant to be a `.npy` file.
pub fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "npy")
}

/// NumPy's name of an element type; `None` where it has none.
pub fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::Bool => "|b1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::F16 => "<f2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::F32 => "<f4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F64 => "<f8",
        DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2 => return None,
    })
}

/// What NumPy calls so, and whether its most significant byte comes first; `None` where it is nothing plain.
fn element(descr: &str) -> Option<(Element, bool)> {
    let order = descr.get(..1)?;
    let kind = descr.get(1..)?;
    let one = |kind: &str| {
        DType::ALL.into_iter().find(|of| self::descr(*of).is_some_and(|name| name[1..] == *kind))
    };
    let element = match kind {
        "c8" => Element::Complex(4),
        "c16" => Element::Complex(8),
        // What ml_dtypes calls E5M2, and NumPy does not read.
        "f1" => Element::Bytes(1),
        _ => match kind.strip_prefix('V') {
            Some(bytes) => Element::Bytes(number(bytes).filter(|bytes| (1..=MAX_WIDTH).contains(bytes))?),
            None => Element::Of(one(kind)?),
        },
    };
    // Single bytes have no order; some writers say one.
    match order {
        ">" => Some((element, element.unit() > 1)),
        "<" | "=" | "|" => Some((element, false)),
        _ => None,
    }
}

/// The bytes in front of the data of a new file.
pub fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    // Python's tuple of one element ends in a comma.
    let dims = if dims.len() == 1 { format!("{},", dims[0]) } else { dims.join(", ") };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let before = MAGIC.len() + 4;
    let padded = (before + dict.len() + 1).next_multiple_of(DATA_ALIGN);
    let mut out = Vec::with_capacity(padded);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&((padded - before) as u16).to_le_bytes());
    out.extend_from_slice(dict.as_bytes());
    out.resize(padded - 1, b' ');
    out.push(b'\n');
    out
}

impl Header {
    /// Bytes of the data.
    pub fn data_bytes(&self) -> std::result::Result<u64, NpyError> {
        let width = self.array.element.bytes();
        let bytes = self.array.shape.iter().try_fold(width, |bytes, dim| bytes.checked_mul(*dim));
        bytes.ok_or_else(|| NpyError::Shape(self.array.shape.clone()))
    }

    /// Bytes of the data, if a file of so many bytes holds them and nothing else.
    fn check(&self, file_bytes: u64) -> std::result::Result<u64, NpyError> {
        let announced = self.data_bytes()?;
        let found = file_bytes.saturating_sub(self.data_offset);
        if found == announced { Ok(announced) } else { Err(NpyError::DataBytes { announced, found }) }
    }

    /// True if the bytes lie as devices take them: little-endian, row by row.
    fn lies_as_sent(&self) -> bool {
        let long = self.array.shape.iter().filter(|dim| **dim > 1).count();
        !self.big_endian && (!self.fortran || long < 2)
    }

    /// The data as devices take it.
    fn convert(&self, mut data: Vec<u8>) -> Vec<u8> {
        let Array { element, shape } = &self.array;
        if self.big_endian {
            data.chunks_exact_mut(element.unit() as usize).for_each(<[u8]>::reverse);
        }
        if !self.fortran || data.is_empty() {
            return data;
        }
        // Where the next element along each dimension lies.
        let width = element.bytes() as usize;
        let mut strides = vec![width; shape.len()];
        for at in 1..shape.len() {
            strides[at] = strides[at - 1] * shape[at - 1] as usize;
        }
        let (mut index, mut from) = (vec![0; shape.len()], 0);
        let mut rows = Vec::with_capacity(data.len());
        while rows.len() < data.len() {
            rows.extend_from_slice(&data[from..from + width]);
            for at in (0..shape.len()).rev() {
                index[at] += 1;
                from += strides[at];
                if index[at] < shape[at] {
                    break;
                }
                index[at] = 0;
                from -= strides[at] * shape[at] as usize;
            }
        }
        rows
    }
}

/// Reads the header of a `.npy` file.
pub fn read_header(mut file: impl Read) -> std::result::Result<Header, NpyError> {
    let mut take = |bytes: usize| {
        let mut out = vec![0; bytes];
        file.read_exact(&mut out).map(|()| out).map_err(|_| NpyError::Truncated)
    };
    let start = take(8)?;
    if start[..6] != MAGIC[..] {
        return Err(NpyError::Magic);
    }
    let (length, before) = match (start[6], start[7]) {
        (1, 0) => {
            let two = take(2)?;
            (u32::from(u16::from_le_bytes([two[0], two[1]])), 10)
        }
        (2 | 3, 0) => {
            let four = take(4)?;
            (u32::from_le_bytes([four[0], four[1], four[2], four[3]]), 12)
        }
        (major, minor) => return Err(NpyError::Version(major, minor)),
    };
    if length > MAX_HEADER_BYTES {
        return Err(NpyError::HeaderBytes(length));
    }
    let dict = String::from_utf8(take(length as usize)?).map_err(|_| NpyError::Dictionary)?;
    let Dictionary { descr, fortran, shape } = Dictionary::read(&dict)?;
    if shape.len() > RANK {
        return Err(NpyError::Rank(shape.len()));
    }
    let (element, big_endian) = element(&descr).ok_or(NpyError::ElementType(descr))?;
    let array = Array { element, shape };
    Ok(Header { array, big_endian, fortran, data_offset: before + u64::from(length) })
}

/// What stands in a header, which is a dictionary as Python writes it.
#[derive(Debug)]
struct Dictionary {
    descr: String,
    fortran: bool,
    shape: Vec<u64>,
}

impl Dictionary {
    fn read(text: &str) -> std::result::Result<Self, NpyError> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        let inside = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let mut rest = inside.ok_or(NpyError::Dictionary)?.trim();
        while !rest.is_empty() {
            let (key, value) = quoted(rest).ok_or(NpyError::Dictionary)?;
            rest = value.trim_start().strip_prefix(':').ok_or(NpyError::Dictionary)?.trim_start();
            rest = match key {
                "descr" if descr.is_none() => {
                    if rest.starts_with('[') {
                        return Err(NpyError::Fields);
                    }
                    let (name, rest) = quoted(rest).ok_or(NpyError::Dictionary)?;
                    descr = Some(name.to_owned());
                    rest
                }
                "fortran_order" if fortran.is_none() => {
                    let (value, rest) = match rest.strip_prefix("True") {
                        Some(rest) => (true, rest),
                        None => (false, rest.strip_prefix("False").ok_or(NpyError::Dictionary)?),
                    };
                    fortran = Some(value);
                    rest
                }
                "shape" if shape.is_none() => {
                    let tuple = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
                    let (dims, rest) = tuple.ok_or(NpyError::Dictionary)?;
                    shape = Some(dimensions(dims).ok_or(NpyError::Dictionary)?);
                    rest
                }
                _ => return Err(NpyError::Dictionary),
            };
            rest = match rest.trim_start().strip_prefix(',') {
                Some(rest) => rest.trim_start(),
                None if rest.trim().is_empty() => "",
                None => return Err(NpyError::Dictionary),
            };
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok(Self { descr, fortran, shape }),
            _ => Err(NpyError::Dictionary),
        }
    }
}

/// Text in quotes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// The numbers of a tuple; one alone ends in a comma.
fn dimensions(text: &str) -> Option<Vec<u64>> {
    let text = text.trim();
    let (text, ends) = text.strip_suffix(',').map_or((text, false), |text| (text, true));
    if text.is_empty() {
        return (!ends).then(Vec::new);
    }
    let dims = text.split(',').map(str::trim).map(number);
    dims.collect::<Option<Vec<u64>>>().filter(|dims| dims.len() > 1 || ends)
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_header_is_read_back() {
        for shape in [vec![], vec![3], vec![2, 3], vec![0, 7]] {
            let bytes = header("<f4", &shape);
            assert_eq!(bytes.len() % 64, 0);
            let read = read_header(&bytes[..]).unwrap();
            assert_eq!((read.array.element, &read.array.shape), (Element::Of(DType::F32), &shape));
            assert_eq!(read.data_offset, bytes.len() as u64);
            assert_eq!(read.data_bytes().unwrap(), 4 * shape.iter().product::<u64>());
        }
    }

    #[test]
    fn the_header_is_what_numpy_writes() {
        let text = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(&header("<i8", &[3])[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(&header("<i8", &[3])[10..10 + text.len()], text);
    }

    #[test]
    fn floats_of_eight_bits_are_bytes() {
        for (descr, dtype) in [("<V1", DType::F8E4M3FN), ("|V1", DType::F8E4M3FN), ("<f1", DType::F8E5M2)] {
            let (element, turned) = element(descr).unwrap();
            assert!(element.is(dtype) && !turned, "{descr}");
            assert!(!element.is(DType::U8) && !element.is(DType::Bf16), "{descr}");
        }
    }

    fn refused(edit: impl Fn(&mut String), words: &str) {
        let mut dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n".to_owned();
        edit(&mut dict);
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((dict.len() as u16).to_le_bytes());
        bytes.extend(dict.as_bytes());
        let why = read_header(&bytes[..]).and_then(|header| header.data_bytes()).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn what_is_no_plain_array_is_refused() {
        // Eighty bits in sixteen bytes, objects, dates, text, and widths that there are not.
        for descr in ["<f16", "|O", "<M8", "<i3", "<U4", "|S2", "|V0", ""] {
            refused(|dict| *dict = dict.replace("<f4", descr), "expected plain numbers");
        }
        refused(|dict| *dict = dict.replace("'<f4'", "[('a', '<f4')]"), "several fields");
        refused(|dict| *dict = dict.replace("2, 3", "9999999999, 9999999999"), "too large");
        refused(|dict| *dict = dict.replace("2, 3", &["1"; 33].join(",")), "33 dimensions");
        for (text, other) in [
            ("2, 3", "2, x"),
            ("2, 3", "2, -3"),
            ("2, 3", "2, +3"),
            ("2, 3", "2"),
            ("2, 3", ","),
            ("shape", "shap"),
            ("False", "0"),
            ("}", ""),
            ("'descr'", "'shape': (1,), 'descr'"),
        ] {
            refused(|dict| *dict = dict.replace(text, other), "no dictionary");
        }
    }

    #[test]
    fn an_array_is_turned_to_what_devices_take() {
        let header = |big_endian, fortran, shape: &[u64]| Header {
            array: Array { element: Element::Of(DType::U16), shape: shape.into() },
            big_endian,
            fortran,
            data_offset: 0,
        };
        assert_eq!(header(true, false, &[2]).convert(vec![1, 2, 3, 4]), [2, 1, 4, 3]);
        // Of [[1, 2, 3], [4, 5, 6]], columns first.
        let columns = [1u16, 4, 2, 5, 3, 6].map(u16::to_be_bytes).concat();
        let rows = [1u16, 2, 3, 4, 5, 6].map(u16::to_le_bytes).concat();
        assert_eq!(header(true, true, &[2, 3]).convert(columns), rows);
        // A vector has but one order.
        assert!(header(false, true, &[3]).lies_as_sent() && header(false, true, &[1, 3]).lies_as_sent());
        assert!(!header(false, true, &[2, 3]).lies_as_sent() && !header(true, false, &[3]).lies_as_sent());
    }

    #[test]
    fn files_must_hold_what_they_announce() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 8]].concat()).unwrap();
        let look = |path: &Path| look(&Source::file(path));
        assert_eq!(look(&path).unwrap().0, FileRange { offset: 128, bytes: 8 });
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 7]].concat()).unwrap();
        assert!(look(&path).unwrap_err().to_string().contains("8 bytes of data, but there are 7"));
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 9]].concat()).unwrap();
        assert!(look(&path).unwrap_err().to_string().contains("8 bytes of data, but there are 9"));
        let raw = dir.path().join("a.bin");
        std::fs::write(&raw, b"\x93NUMPY").unwrap();
        assert_eq!(look(&raw).unwrap().0.bytes, 6);
        assert!(look(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
