//! Where the code objects of a file are. A file is one object, or a bundle of clang's: a table of objects for several
//! targets, beside which an empty one for the host may stand.
//!
//! ```text
//! "__CLANG_OFFLOAD_BUNDLE__"  count  { offset  bytes  length of id  id } ×count   … objects …
//! ```

use super::elf::slice;
use super::{CodeError, Target};

const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";
/// Entries of a bundle.
const MAX_ENTRIES: u64 = 64;
/// Bytes of an entry's id.
const MAX_ID_BYTES: u64 = 256;

/// A code object of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// What it is made for, as the bundle says; nothing without a bundle.
    pub(super) target: Option<Target>,
    pub(super) bytes: &'a [u8],
}

pub(super) fn is_bundle(file: &[u8]) -> bool {
    file.starts_with(MAGIC) || file.starts_with(COMPRESSED)
}

/// The code objects in a file, at least one.
pub(super) fn entries(file: &[u8]) -> Result<Vec<Entry<'_>>, CodeError> {
    if file.starts_with(COMPRESSED) {
        return Err("a compressed bundle: build it with --no-offload-compress, or take the code objects out of it with \
                    clang-offload-bundler --unbundle"
            .into());
    }
    let Some(table) = file.strip_prefix(MAGIC) else {
        return Ok(vec![Entry { target: None, bytes: file }]);
    };
    let mut table = Table(table);
    let count = table.number()?;
    if count > MAX_ENTRIES {
        return Err(CodeError(format!("a bundle of {count} entries, allowed are {MAX_ENTRIES}")));
    }
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut unknown = Vec::new();
    for _ in 0..count {
        let (offset, bytes) = (table.number()?, table.number()?);
        let id = table.id()?;
        let bytes =
            slice(file, offset, bytes).ok_or("truncated: an entry of the bundle ends behind the file")?;
        // KIND-TRIPLE-TARGET, where the triple has an empty environment.
        let Some((_, target)) = id.split_once("-amdgcn-amd-amdhsa-") else {
            // The host's, which is empty in a file of its own, or another vendor's.
            continue;
        };
        let target = target.trim_start_matches('-');
        // Nothing here runs it; it may stand beside others.
        let Some(target) = Target::of_text(target) else {
            unknown.push(target);
            continue;
        };
        if entries.iter().any(|entry| entry.target == Some(target)) {
            return Err(CodeError(format!("malformed: two entries of the bundle are for {target}")));
        }
        entries.push(Entry { target: Some(target), bytes });
    }
    match (entries.is_empty(), unknown.is_empty()) {
        (false, _) => Ok(entries),
        (true, true) => Err("the bundle has no code object for an AMD GPU".into()),
        (true, false) => {
            Err(CodeError(format!("the bundle has code for {unknown:?} only, which is not known here")))
        }
    }
}

/// What is left of the table of entries.
struct Table<'a>(&'a [u8]);

impl<'a> Table<'a> {
    fn number(&mut self) -> Result<u64, CodeError> {
        let (number, rest) = self.0.split_first_chunk().ok_or("truncated: the bundle's table ends within")?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn id(&mut self) -> Result<&'a str, CodeError> {
        let bytes = self.number()?;
        if bytes > MAX_ID_BYTES {
            return Err(CodeError(format!("an entry's id has {bytes} bytes, allowed are {MAX_ID_BYTES}")));
        }
        let (id, rest) =
            self.0.split_at_checked(bytes as usize).ok_or("truncated: the bundle's table ends within")?;
        self.0 = rest;
        std::str::from_utf8(id).map_err(|_| "malformed: an entry's id is no text".into())
    }
}
