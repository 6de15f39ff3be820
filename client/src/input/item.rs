//! One part of an input: a file, a stream that was read to its end, or bytes of the command line; and which array it
//! holds, where that is known.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pappus_blueprint::DType;
use pappus_client::Error;
use pappus_client::array::{Array, Element};
use pappus_client::npy::{self, Contents, FileRange};
use pappus_client::source::Source as FileSource;

use super::spec::{Expected, Source, Spec};
use crate::failure::{Failure, Result};
use crate::picture::{self, Format};

/// The most that is read from stdin or a pipe, since all of it is kept in memory.
const MAX_STREAM_BYTES: u64 = 1 << 30;

/// A file, or the array in it; or bytes in memory.
#[derive(Debug)]
pub(crate) struct Item {
    /// What people call it.
    pub(crate) source: String,
    /// What it holds, where it says so.
    pub(crate) array: Option<Array>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    File {
        path: PathBuf,
        file: File,
        range: FileRange,
    },
    Memory(Vec<u8>),
    /// So many bytes that nobody has.
    Announced(u64),
}

/// Opens every source of an input; stdin is read to its end.
pub(crate) fn open(spec: &Spec) -> Result<Vec<Item>> {
    let literal = |bytes: &Vec<u8>| {
        let array = spec.expected.as_ref().map(|expected| {
            let elements = bytes.len() as u64 / expected.dtype.bytes();
            let shape = expected.shape.clone().unwrap_or_else(|| vec![elements]);
            Array { element: Element::Of(expected.dtype), shape }
        });
        Item { source: "command line".into(), array, data: Data::Memory(bytes.clone()) }
    };
    let items = spec.sources.iter().map(|source| match source {
        Source::File(path) => Item::open(path),
        Source::Stdin => stdin(),
        Source::Literal(bytes) => Ok(literal(bytes)),
    });
    items.collect()
}

fn stdin() -> Result<Item> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::Refused("stdin is a terminal: `-` reads a pipe or a redirected file".into()));
    }
    stream("stdin", Path::new("stdin"), stdin.lock())
}

/// A stream that starts like a `.npy` file is one.
fn stream(source: &str, path: &Path, from: impl Read) -> Result<Item> {
    let mut bytes = Vec::new();
    from.take(MAX_STREAM_BYTES + 1).read_to_end(&mut bytes).map_err(Error::file(path))?;
    if bytes.len() as u64 > MAX_STREAM_BYTES {
        let most = MAX_STREAM_BYTES >> 30;
        return Err(Failure::Refused(format!("{source}: more than {most} GiB in a pipe: use a file")));
    }
    let mut array = None;
    if npy::starts_as_npy(&bytes) {
        let found;
        (found, bytes) = npy::of_bytes(path, bytes)?;
        array = Some(found);
    }
    Ok(Item { source: source.into(), array, data: Data::Memory(bytes) })
}

impl Item {
    /// An array of which only the type and the shape are known.
    pub(super) fn announced(expected: &Expected) -> Self {
        let shape = expected.shape.clone().unwrap_or_default();
        let bytes = expected.elements().unwrap_or(0).saturating_mul(expected.dtype.bytes());
        let array = Array { element: Element::Of(expected.dtype), shape };
        Self { source: "command line".into(), array: Some(array), data: Data::Announced(bytes) }
    }

    /// True if the item has bytes to read.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.data, Data::Announced(_))
    }

    fn open(path: &Path) -> Result<Self> {
        let source = path.display().to_string();
        if Format::of(path)? == Format::Png {
            let (pixels, shape) = picture::read(path)?;
            let array = Array { element: Element::Of(DType::U8), shape };
            return Ok(Self { source, array: Some(array), data: Data::Memory(pixels) });
        }
        let found = std::fs::metadata(path).map_err(Error::file(path))?.file_type();
        if !found.is_file() && !found.is_dir() {
            return stream(&source, path, File::open(path).map_err(Error::file(path))?);
        }
        let (contents, array) = npy::read(&FileSource::file(path))?;
        let data = match contents {
            Contents::Converted(bytes) => Data::Memory(bytes),
            Contents::Range(range) => {
                let file = File::open(path).map_err(Error::file(path))?;
                Data::File { path: path.to_owned(), file, range }
            }
        };
        Ok(Self { source, array, data })
    }

    pub(crate) fn bytes(&self) -> u64 {
        match &self.data {
            Data::File { range, .. } => range.bytes,
            Data::Memory(bytes) => bytes.len() as u64,
            Data::Announced(bytes) => *bytes,
        }
    }

    /// Reads `at` bytes from the start of the item, as many as `out` takes.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match &self.data {
            Data::File { path, file, range } => {
                Ok(file.read_exact_at(out, range.offset + at).map_err(Error::file(path))?)
            }
            Data::Memory(bytes) => {
                let found = bytes.get(at as usize..).and_then(|rest| rest.get(..out.len()));
                let found = found.ok_or_else(|| Failure::Refused(format!("{} is shorter", self.source)))?;
                out.copy_from_slice(found);
                Ok(())
            }
            Data::Announced(_) => Err(Failure::Refused(format!("{} has no numbers", self.source))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_starts_like_an_array_is_one() {
        let bytes = [npy::header("<f4", &[2]), vec![7; 8]].concat();
        let item = stream("pipe", Path::new("pipe"), &bytes[..]).unwrap();
        assert_eq!((item.bytes(), item.array.unwrap().to_string()), (8, "f32[2]".into()));
        let mut last = [0; 2];
        let raw = stream("pipe", Path::new("pipe"), &b"\x93NUMP"[..]).unwrap();
        raw.read(3, &mut last).unwrap();
        assert_eq!((raw.bytes(), &last, raw.array), (5, b"MP", None));
        let short = stream("pipe", Path::new("pipe"), &bytes[..bytes.len() - 1]).unwrap_err().to_string();
        assert!(short.contains("8 bytes of data, but there are 7"), "{short}");
    }

    #[test]
    fn numbers_of_the_command_line_have_type_and_shape() {
        let items = open(&"i64:1,2".parse().unwrap()).unwrap();
        assert_eq!((items[0].bytes(), items[0].array.as_ref().unwrap().to_string()), (16, "i64[2]".into()));
    }

    #[test]
    fn a_picture_is_an_array_and_a_file_of_another_kind_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        std::fs::write(&path, pappus_kernels::photo::PNG).unwrap();
        let item = Item::open(&path).unwrap();
        let array = item.array.as_ref().unwrap();
        assert_eq!((array.element, array.shape.len(), array.shape[2]), (Element::Of(DType::U8), 3, 3));
        assert_eq!(item.bytes(), array.shape.iter().product::<u64>());
        let path = dir.path().join("p.jpg");
        std::fs::write(&path, b"\xff\xd8").unwrap();
        assert!(Item::open(&path).unwrap_err().to_string().contains("a JPEG picture"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let why = open(&"nowhere.bin".parse().unwrap()).unwrap_err().to_string();
        assert!(why.starts_with("nowhere.bin: "), "{why}");
    }
}
