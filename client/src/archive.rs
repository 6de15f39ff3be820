//! Packages in one file: a `.pappus` file is a zip archive whose members are stored as they are, so each of them is a range of
//! the file and is read where it lies. Nothing is unpacked.
//!
//! Archives come from strangers. What is taken is one shape of the format, written down here and in Python's `_archive.py`,
//! which says the same words; `tests/packages` holds archives that both must judge alike:
//!
//! ```text
//! | local header, name, extra | data | … | directory | [end and locator of zip64] | end, 22 bytes, without a comment |
//! |◀────────────── members ───────────▶|◀─────────┘ begins where the end says, and ends where the end begins      |
//! ```

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::source::{FileRange, Opened, Source};

/// The configuration of a package.
pub const CONFIG: &str = "function.json";

/// What packages are called.
const EXTENSION: &str = "pappus";
/// Members of an archive.
const MAX_MEMBERS: u64 = 8192;
/// Bytes of a member's name.
const MAX_NAME_BYTES: usize = 1024;
/// Bytes of the directory.
const MAX_DIRECTORY_BYTES: u64 = 16 << 20;
/// Bytes that are read at once to compare checksums.
const PIECE_BYTES: usize = 1 << 20;

const LOCAL: u32 = 0x0403_4b50;
const LOCAL_BYTES: usize = 30;
const ENTRY: u32 = 0x0201_4b50;
const ENTRY_BYTES: usize = 46;
const END: u32 = 0x0605_4b50;
const END_BYTES: u64 = 22;
const LOCATOR64: u32 = 0x0706_4b50;
const LOCATOR64_BYTES: u64 = 20;
const END64: u32 = 0x0606_4b50;
const END64_BYTES: u64 = 56;
/// The extra field with what does not fit 32 bits.
const EXTRA64: u16 = 1;
/// In the place of a number that does not fit.
const ELSEWHERE16: u16 = u16::MAX;
const ELSEWHERE32: u32 = u32::MAX;
/// Encrypted, strongly encrypted, names hidden.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
/// The kind of file in a Unix mode.
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// A package's files.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    opened: Opened,
    members: BTreeMap<String, FileRange>,
}

/// True if a file is meant to be a package.
pub fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

impl Archive {
    /// Opens a package, and checks all of it.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = Source::file(path).open()?;
        let members = members(&opened).map_err(|why| match why {
            Refused::Words(why) => Error::content(path, why),
            Refused::Io(why) => Error::file(path)(why),
        })?;
        Ok(Self { path: path.to_owned(), opened, members })
    }

    /// A file of it.
    pub fn find(&self, name: &str) -> Option<Source> {
        let part = self.opened.part(*self.members.get(name)?);
        Some(Source::member(self.path.join(name), part))
    }

    /// Names of all its files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// A name in its configuration as that of a file of it; `None` where it leads elsewhere.
    pub fn inside(name: &str) -> Option<&str> {
        let name = name.strip_prefix("./").unwrap_or(name);
        (!name.ends_with('/') && is_name(name)).then_some(name)
    }
}

/// Why an archive is not taken.
enum Refused {
    Words(String),
    Io(std::io::Error),
}

impl From<std::io::Error> for Refused {
    fn from(why: std::io::Error) -> Self {
        Self::Io(why)
    }
}

fn refused<T>(why: impl Into<String>) -> std::result::Result<T, Refused> {
    Err(Refused::Words(why.into()))
}

/// What its end says of an archive's directory.
struct Directory {
    offset: u64,
    bytes: u64,
    entries: u64,
}

/// A file of the archive, as the directory has it.
struct Entry {
    name: String,
    is_folder: bool,
    bytes: u64,
    checksum: u32,
    /// Its local header.
    at: u64,
}

/// All files of an archive, if each of them may be read.
fn members(archive: &Opened) -> std::result::Result<BTreeMap<String, FileRange>, Refused> {
    let directory = end(archive)?;
    if directory.entries > MAX_MEMBERS {
        return refused(format!("it has more than {MAX_MEMBERS} files"));
    }
    let damaged = || Refused::Words("it is no package: its list of files is damaged".into());
    if directory.bytes > MAX_DIRECTORY_BYTES {
        return Err(damaged());
    }
    let mut listed = vec![0; directory.bytes as usize];
    archive.read_at(directory.offset, &mut listed)?;
    let mut rest = &listed[..];
    let mut entries = Vec::new();
    for _ in 0..directory.entries {
        entries.push(entry(&mut rest, damaged)?);
    }
    if !rest.is_empty() {
        return Err(damaged());
    }
    // Sorted by position: an entry must begin behind the one before.
    entries.sort_by_key(|entry| entry.at);
    let mut members = BTreeMap::new();
    let mut from = 0;
    for entry in entries {
        let Entry { name, is_folder, bytes, checksum, at } = entry;
        if at < from {
            return refused(format!("member {name:?} overlaps another one"));
        }
        let range = data(archive, &name, at, bytes, directory.offset)?;
        from = range.offset + range.bytes;
        if is_folder {
            continue;
        }
        if checksum_of(&archive.part(range))? != checksum {
            return refused(format!("member {name:?} is damaged: its bytes do not have their checksum"));
        }
        if members.insert(name.clone(), range).is_some() {
            return refused(format!("member {name:?} comes twice"));
        }
    }
    match members.contains_key(CONFIG) {
        true => Ok(members),
        false => refused(format!("it is no package: there is no {CONFIG} in it")),
    }
}

/// Reads the end, which says where the directory is.
fn end(archive: &Opened) -> std::result::Result<Directory, Refused> {
    let other =
        || Refused::Words("it is no package: it does not end as a zip archive without a comment".into());
    let mut fixed = [0; END_BYTES as usize];
    let mut at = archive.bytes().checked_sub(END_BYTES).ok_or_else(other)?;
    archive.read_at(at, &mut fixed)?;
    let mut fields = Fields(&fixed);
    let is_end = fields.u32() == END && fields.u16() == 0 && fields.u16() == 0;
    let (here, all, bytes, offset) = (fields.u16(), fields.u16(), fields.u32(), fields.u32());
    if !is_end || fields.u16() != 0 || here != all {
        return Err(other());
    }
    let mut directory = Directory { offset: offset.into(), bytes: bytes.into(), entries: all.into() };
    if all == ELSEWHERE16 || bytes == ELSEWHERE32 || offset == ELSEWHERE32 {
        at = at.checked_sub(LOCATOR64_BYTES + END64_BYTES).ok_or_else(other)?;
        let mut wide = [0; (END64_BYTES + LOCATOR64_BYTES) as usize];
        archive.read_at(at, &mut wide)?;
        let mut fields = Fields(&wide);
        let is_end = fields.u32() == END64 && fields.u64() == END64_BYTES - 12;
        fields.skip(4);
        let is_one = fields.u32() == 0 && fields.u32() == 0;
        let here = fields.u64();
        directory = Directory { entries: fields.u64(), bytes: fields.u64(), offset: fields.u64() };
        let is_found = fields.u32() == LOCATOR64 && fields.u32() == 0 && fields.u64() == at;
        if !(is_end && is_one && is_found && fields.u32() == 1 && here == directory.entries) {
            return Err(other());
        }
    }
    // Nothing stands between the directory and the end, and what is in front of the archive is part of it.
    match directory.offset.checked_add(directory.bytes) == Some(at) {
        true => Ok(directory),
        false => refused("it is no package: bytes stand in front of the archive, or it was cut off"),
    }
}

/// Reads the directory's next entry, if its file may be read.
fn entry(rest: &mut &[u8], damaged: impl Fn() -> Refused) -> std::result::Result<Entry, Refused> {
    let fixed = take(rest, ENTRY_BYTES).ok_or_else(&damaged)?;
    let mut fields = Fields(fixed);
    if fields.u32() != ENTRY {
        return Err(damaged());
    }
    fields.skip(4);
    let (flags, method) = (fields.u16(), fields.u16());
    fields.skip(4);
    let (checksum, packed, bytes) = (fields.u32(), fields.u32(), fields.u32());
    let (name_bytes, extra_bytes, comment_bytes) = (fields.u16(), fields.u16(), fields.u16());
    let disk = fields.u16();
    fields.skip(2);
    let (mode, at) = (fields.u32() >> 16, fields.u32());
    let name = take(rest, name_bytes.into()).ok_or_else(&damaged)?;
    let extra = take(rest, extra_bytes.into()).ok_or_else(&damaged)?;
    take(rest, comment_bytes.into()).ok_or_else(&damaged)?;
    let name = match std::str::from_utf8(name) {
        Ok(text) if name.len() <= MAX_NAME_BYTES && is_name(text) => text,
        _ => {
            let shown = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]);
            return refused(format!(
                "member {shown:?} has no name for a file of a package, expected one such as weights/w0.npy"
            ));
        }
    };
    let is_folder = name.ends_with('/');
    let expected = if is_folder { FOLDER } else { REGULAR };
    if mode & KIND != 0 && mode & KIND != expected {
        return refused(format!("member {name:?} is a link, or no plain file"));
    }
    if flags & ENCRYPTED != 0 {
        return refused(format!("member {name:?} is encrypted"));
    }
    let mut wide = Wide { extra: extra64(extra) };
    let bytes = wide.or(bytes).ok_or_else(&damaged)?;
    let packed = wide.or(packed).ok_or_else(&damaged)?;
    let at = wide.or(at).ok_or_else(&damaged)?;
    if method != 0 || packed != bytes {
        return refused(format!("member {name:?} is compressed: packages hold files as they are (zip -0)"));
    }
    if disk != 0 || is_folder && bytes != 0 {
        return Err(damaged());
    }
    Ok(Entry { name: name.to_owned(), is_folder, bytes, checksum, at })
}

/// Where a member's bytes are: behind a local header that has its name, and in front of the directory.
fn data(
    archive: &Opened,
    name: &str,
    at: u64,
    bytes: u64,
    end: u64,
) -> std::result::Result<FileRange, Refused> {
    let wrong = || Refused::Words(format!("member {name:?} does not lie where the list of files says"));
    let mut header = vec![0; LOCAL_BYTES + name.len()];
    let behind = at.checked_add(header.len() as u64).filter(|behind| *behind <= end).ok_or_else(wrong)?;
    archive.read_at(at, &mut header)?;
    let (fixed, found) = header.split_at(LOCAL_BYTES);
    let mut fields = Fields(fixed);
    let is_header = fields.u32() == LOCAL;
    fields.skip(22);
    let (name_bytes, extra_bytes) = (fields.u16(), fields.u16());
    if !is_header || usize::from(name_bytes) != name.len() || found != name.as_bytes() {
        return Err(wrong());
    }
    let range = FileRange { offset: behind + u64::from(extra_bytes), bytes };
    match range.offset.checked_add(bytes) {
        Some(behind) if behind <= end => Ok(range),
        _ => Err(wrong()),
    }
}

fn checksum_of(member: &Opened) -> std::io::Result<u32> {
    let mut piece = vec![0; PIECE_BYTES.min(member.bytes() as usize)];
    let mut hasher = crc32fast::Hasher::new();
    let mut reader = member.reader();
    loop {
        match reader.read(&mut piece)? {
            0 => return Ok(hasher.finalize()),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// True if a name stays inside of the folder that the package was made of.
fn is_name(name: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']);
    name.strip_suffix('/').unwrap_or(name).split('/').all(plain) && !name.contains(char::is_control)
}

/// Takes so many bytes off the front.
fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    Some(taken)
}

/// The extra field with numbers of 64 bits, if it is there.
fn extra64(mut extra: &[u8]) -> &[u8] {
    while let Some(head) = take(&mut extra, 4) {
        let mut fields = Fields(head);
        let (kind, bytes) = (fields.u16(), fields.u16());
        match take(&mut extra, bytes.into()) {
            Some(content) if kind == EXTRA64 => return content,
            Some(_) => {}
            None => break,
        }
    }
    &[]
}

/// Numbers of 64 bits in the order of those that do not fit.
struct Wide<'a> {
    extra: &'a [u8],
}

impl Wide<'_> {
    /// A number, or what stands in the extra field in its place.
    fn or(&mut self, number: u32) -> Option<u64> {
        match number {
            ELSEWHERE32 => take(&mut self.extra, 8).map(|bytes| Fields(bytes).u64()),
            number => Some(number.into()),
        }
    }
}

/// Little-endian numbers of a record, one after the other. Behind its end there are zeros: a record is taken whole first.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or(&[]);
    }
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
