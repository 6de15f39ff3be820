//! NumPy's `.npy` format, as much as is needed: where the data of a plain array is, and the header of a new one.
//!
//! ```text
//! \x93NUMPY | major | minor | header length: u16 (version 1) or u32 | header: a Python dict | data
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;

use pappus_blueprint::DType;

use crate::error::{Error, Result};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header that is read: dimensions of a plain array need far less.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Where NumPy aligns the data.
const DATA_ALIGN: usize = 64;

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// Its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// What the header of a `.npy` file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// NumPy's name of the element type, such as `<f4`.
    pub descr: String,
    /// Elements along each dimension, outermost first.
    pub shape: Vec<u64>,
    /// Where the data starts.
    pub data_offset: u64,
}

/// All of a file.
pub fn whole_file(path: &Path) -> Result<FileRange> {
    let bytes = std::fs::metadata(path).and_then(|meta| {
        // A directory has a length, too, and a pipe none.
        if meta.is_file() { Ok(meta.len()) } else { Err(std::io::Error::other("not a regular file")) }
    });
    Ok(FileRange { offset: 0, bytes: bytes.map_err(Error::file(path))? })
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
    #[error("version {0} of the .npy format, expected 1 to 3")]
    Version(u8),
    /// The header is larger than that of any plain array.
    #[error("a header of {0} bytes, expected at most {MAX_HEADER_BYTES}")]
    HeaderBytes(u32),
    /// The header is no text.
    #[error("a header that is no text")]
    NoText,
    /// The header lacks a key.
    #[error("a header without {0:?}")]
    Key(&'static str),
    /// The elements of a row do not lie beside each other.
    #[error("an array in Fortran order: save it with numpy.ascontiguousarray")]
    FortranOrder,
    /// The elements are structures.
    #[error("elements of several fields, expected plain numbers")]
    Fields,
    /// The shape is no tuple.
    #[error("a shape that is no tuple")]
    NoTuple,
    /// A dimension is no number.
    #[error("a dimension of {0:?}")]
    Dimension(String),
    /// The elements are no numbers that devices know: objects, text, dates, another byte order.
    #[error("elements of type {0:?}, expected little-endian numbers")]
    ElementType(String),
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

/// The array of a `.npy` file, or all of any other file.
pub fn data_of(path: &Path) -> Result<FileRange> {
    contents_of(path).map(|(range, _)| range)
}

/// The same, and what the header of a `.npy` file says.
pub fn contents_of(path: &Path) -> Result<(FileRange, Option<Header>)> {
    let whole = whole_file(path)?;
    if !is_npy(path) {
        return Ok((whole, None));
    }
    let header = read_header(File::open(path).map_err(Error::file(path))?);
    let header = header.and_then(|header| header.check(whole.bytes).map(|bytes| (header, bytes)));
    let (header, bytes) = header.map_err(|why| Error::content(path, why.to_string()))?;
    Ok((FileRange { offset: header.data_offset, bytes }, Some(header)))
}

/// The header of a `.npy` file whose content is in memory; `path` is for the error.
pub fn of_bytes(path: &Path, content: &[u8]) -> Result<Header> {
    let header = read_header(content);
    let header = header.and_then(|header| header.check(content.len() as u64).map(|_| header));
    header.map_err(|why| Error::content(path, why.to_string()))
}

/// Whether bytes without a name are meant to be a `.npy` file.
pub fn starts_as_npy(content: &[u8]) -> bool {
    content.starts_with(MAGIC)
}

/// Whether a file is meant to be a `.npy` file.
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
        DType::Bf16 => return None,
    })
}

/// The element type that NumPy calls so; `None` where blueprints have none.
pub fn dtype(descr: &str) -> Option<DType> {
    const NAMED: [DType; 12] = [
        DType::U8,
        DType::I8,
        DType::Bool,
        DType::U16,
        DType::I16,
        DType::F16,
        DType::U32,
        DType::I32,
        DType::F32,
        DType::U64,
        DType::I64,
        DType::F64,
    ];
    NAMED.into_iter().find(|dtype| self::descr(*dtype) == Some(descr))
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
    /// Bytes of the data; an error where the type is none that Pappus passes on.
    pub fn data_bytes(&self) -> std::result::Result<u64, NpyError> {
        // Complex numbers have no name in a blueprint, but are pairs of floats in order.
        let width = match (dtype(&self.descr), self.descr.as_str()) {
            (Some(dtype), _) => dtype.bytes(),
            (None, "<c8") => 8,
            (None, "<c16") => 16,
            (None, descr) => return Err(NpyError::ElementType(descr.to_owned())),
        };
        let bytes = self.shape.iter().try_fold(width, |bytes, dim| bytes.checked_mul(*dim));
        bytes.ok_or_else(|| NpyError::Shape(self.shape.clone()))
    }

    /// Bytes of the data, if a file of so many bytes holds them and nothing else.
    fn check(&self, file_bytes: u64) -> std::result::Result<u64, NpyError> {
        let announced = self.data_bytes()?;
        let found = file_bytes.saturating_sub(self.data_offset);
        if found == announced { Ok(announced) } else { Err(NpyError::DataBytes { announced, found }) }
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
    let (length, before) = match (start[6], take(2)?) {
        (1, two) => (u32::from(u16::from_le_bytes([two[0], two[1]])), 10),
        (2 | 3, two) => {
            let more = take(2)?;
            (u32::from_le_bytes([two[0], two[1], more[0], more[1]]), 12)
        }
        (version, _) => return Err(NpyError::Version(version)),
    };
    if length > MAX_HEADER_BYTES {
        return Err(NpyError::HeaderBytes(length));
    }
    let dict = String::from_utf8(take(length as usize)?).map_err(|_| NpyError::NoText)?;
    let value = |key: &'static str| {
        let (_, rest) = dict.split_once(&format!("'{key}':")).ok_or(NpyError::Key(key))?;
        Ok(rest.trim_start())
    };
    if !value("fortran_order")?.starts_with("False") {
        return Err(NpyError::FortranOrder);
    }
    let descr = value("descr")?.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
    let (descr, _) = descr.ok_or(NpyError::Fields)?;
    let dims = value("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (dims, _) = dims.ok_or(NpyError::NoTuple)?;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape = dims.map(|dim| dim.parse().map_err(|_| NpyError::Dimension(dim.to_owned())));
    Ok(Header {
        descr: descr.to_owned(),
        shape: shape.collect::<std::result::Result<_, _>>()?,
        data_offset: before + u64::from(length),
    })
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
            assert_eq!((read.descr.as_str(), &read.shape), ("<f4", &shape));
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
    fn arrays_that_are_not_plain_bytes_in_order_are_refused() {
        refused(|dict| *dict = dict.replace("False", "True"), "Fortran order");
        refused(|dict| *dict = dict.replace("<f4", ">f4"), "little-endian");
        refused(|dict| *dict = dict.replace("<f4", "|O"), "little-endian");
        // Eighty bits in sixteen bytes, dates, and widths that there are not.
        for descr in ["<f16", "<M8", "<i3", "<U4", "|V2"] {
            refused(|dict| *dict = dict.replace("<f4", descr), "little-endian");
        }
        refused(|dict| *dict = dict.replace("'<f4'", "[('a', '<f4')]"), "several fields");
        refused(|dict| *dict = dict.replace("2, 3", "2, x"), "a dimension");
        refused(|dict| *dict = dict.replace("2, 3", "9999999999, 9999999999"), "too large");
        refused(|dict| *dict = dict.replace("shape", "shap"), "without \"shape\"");
    }

    #[test]
    fn files_must_hold_what_they_announce() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 8]].concat()).unwrap();
        assert_eq!(data_of(&path).unwrap(), FileRange { offset: 128, bytes: 8 });
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 7]].concat()).unwrap();
        assert!(data_of(&path).unwrap_err().to_string().contains("8 bytes of data, but there are 7"));
        std::fs::write(&path, [header("<f4", &[2]), vec![0; 9]].concat()).unwrap();
        assert!(data_of(&path).unwrap_err().to_string().contains("8 bytes of data, but there are 9"));
        let raw = dir.path().join("a.bin");
        std::fs::write(&raw, b"\x93NUMPY").unwrap();
        assert_eq!(data_of(&raw).unwrap().bytes, 6);
        assert!(data_of(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
