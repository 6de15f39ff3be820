//! The bytes of one file of a function: a file of their own, or a member of a package, which is a range of the package's file.
//! Only regular files are read: a pipe would make its reader wait, and a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::error::{Error, Result};

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// Its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Where bytes are.
#[derive(Debug, Clone)]
pub struct Source {
    path: PathBuf,
    member: Option<Opened>,
}

/// A file, or a part of one, that can be read.
#[derive(Debug, Clone)]
pub struct Opened {
    file: Arc<File>,
    range: FileRange,
}

impl Source {
    /// A file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), member: None }
    }

    /// A part of a file that is open. `path` is what errors call it.
    pub(crate) fn member(path: PathBuf, part: Opened) -> Self {
        Self { path, member: Some(part) }
    }

    /// The source's name in errors; of a file its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it.
    pub fn open(&self) -> Result<Opened> {
        match &self.member {
            Some(opened) => Ok(opened.clone()),
            None => Opened::file(&self.path).map_err(Error::file(&self.path)),
        }
    }

    /// All bytes of the source, at most `most_bytes`. Of a larger source no more than that is read.
    pub fn read(&self, most_bytes: u64, what: &str) -> Result<Vec<u8>> {
        let opened = self.open()?;
        let mut content = Vec::new();
        let mut limited = opened.reader().take(most_bytes + 1);
        limited.read_to_end(&mut content).map_err(Error::file(&self.path))?;
        match content.len() as u64 <= most_bytes {
            true => Ok(content),
            false => {
                let message = format!("it has more than {most_bytes} bytes, the most that {what} may have");
                Err(Error::content(&self.path, message))
            }
        }
    }
}

impl Opened {
    /// Opens a regular file. Anything else is refused without waiting for it.
    fn file(path: &Path) -> std::io::Result<Self> {
        let not_waiting = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(not_waiting).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        Ok(Self { file: Arc::new(file), range: FileRange { offset: 0, bytes: found.len() } })
    }

    /// How many bytes it had when it was opened.
    pub fn bytes(&self) -> u64 {
        self.range.bytes
    }

    /// A part of it.
    pub fn part(&self, part: FileRange) -> Self {
        let offset = self.range.offset.saturating_add(part.offset);
        Self { file: self.file.clone(), range: FileRange { offset, bytes: part.bytes } }
    }

    /// Reads the source from the start to its end when it was opened.
    pub fn reader(&self) -> impl Read {
        RangeReader { opened: self, at: 0 }
    }

    /// Fills `out` from `at`.
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        match at.checked_add(out.len() as u64) {
            Some(end) if end <= self.range.bytes => self.file.read_exact_at(out, self.range.offset + at),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Reads a part of a file, whose position it neither uses nor changes.
struct RangeReader<'a> {
    opened: &'a Opened,
    at: u64,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let Opened { file, range } = self.opened;
        let left = usize::try_from(range.bytes - self.at).unwrap_or(usize::MAX);
        let most = out.len().min(left);
        let read = file.read_at(&mut out[..most], range.offset + self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_from_its_start_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = Source::file(&path).open().unwrap();
        let part = Source::member("f".into(), file.part(FileRange { offset: 2, bytes: 5 }));
        assert_eq!(part.read(5, "it").unwrap(), b"23456");
        let smaller = part.open().unwrap().part(FileRange { offset: 1, bytes: 2 });
        let mut out = Vec::new();
        smaller.reader().read_to_end(&mut out).unwrap();
        assert_eq!(out, b"34");
        assert!(smaller.read_at(1, &mut [0; 2]).is_err());
    }

    #[test]
    fn no_more_is_read_than_there_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        assert_eq!(Source::file(&path).read(10, "it").unwrap().len(), 10);
        let why = Source::file(&path).read(9, "a name").unwrap_err().to_string();
        assert!(why.ends_with("f: it has more than 9 bytes, the most that a name may have"), "{why}");
    }

    #[test]
    fn what_has_no_end_or_makes_wait_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [&pipe, dir.path(), Path::new("/dev/zero")] {
            let why = Source::file(path).open().unwrap_err().to_string();
            assert!(why.contains("not a regular file"), "{why}");
        }
    }
}
