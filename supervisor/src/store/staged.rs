//! Files on their way into the state directory: complete and synced under a name that nothing looks for, unless a change that is
//! written down means it, until a rename makes them found.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{StateError, failed};
use super::keeper::Keeper;

const COPY_BYTES: usize = 128 << 10;
/// What file systems give space in.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// What a file of so many bytes takes on disk at least: small files take a block.
pub fn disk_bytes(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX)
}

/// What a file takes on disk: its blocks. Where the file system packs or compresses it, as much as elsewhere, so that a
/// quota means the same everywhere.
pub(super) fn disk_bytes_of(found: &fs::Metadata) -> u64 {
    disk_bytes(found.len()).max(found.blocks().saturating_mul(512))
}

/// A file that nothing finds yet. It goes unless it is published.
#[derive(Debug)]
pub struct Staged {
    temporary: Option<PathBuf>,
    /// Its content.
    pub bytes: u64,
    /// What it takes on disk.
    pub disk_bytes: u64,
}

impl Staged {
    /// Writes a file beside `path`; `look` sees what is written.
    pub(super) fn write(
        path: &Path,
        mut content: impl Read,
        mut look: impl FnMut(&[u8]),
    ) -> Result<Self, StateError> {
        let temporary = fresh_name(path)?;
        let mut staged = Self { temporary: Some(temporary.clone()), bytes: 0, disk_bytes: 0 };
        let found = copy_synced(&temporary, &mut content, &mut look).map_err(failed("write", &temporary))?;
        (staged.bytes, staged.disk_bytes) = (found.len(), disk_bytes_of(&found));
        Ok(staged)
    }

    /// Renames it into place and syncs the directory.
    pub(super) fn publish(mut self, keeper: &Keeper, path: &Path) -> Result<(), StateError> {
        if let Some(temporary) = self.temporary.clone() {
            let to = path.to_owned();
            keeper.change(move || fs::rename(temporary, to)).map_err(failed("rename", path))?;
        }
        self.temporary = None;
        path.parent().map_or(Ok(()), sync)
    }

    /// Where it is now.
    pub(super) fn path(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// It stays where it is.
    pub(super) fn keep(mut self) {
        self.temporary = None;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Names in a folder are there after a crash.
pub(super) fn sync(folder: &Path) -> Result<(), StateError> {
    File::open(folder).and_then(|dir| dir.sync_all()).map_err(failed("sync", folder))
}

/// A name beside `path` that no file has.
fn fresh_name(path: &Path) -> Result<PathBuf, StateError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", COUNTER.fetch_add(1, Ordering::Relaxed)));
        // One that an earlier start left may have to stay.
        if fs::symlink_metadata(&name).is_err() {
            return Ok(name.into());
        }
    }
}

fn copy_synced(
    path: &Path,
    from: &mut impl Read,
    look: &mut impl FnMut(&[u8]),
) -> std::io::Result<fs::Metadata> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                look(&buffer[..n]);
                file.write_all(&buffer[..n])?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // Blocks are known once they are written.
    file.sync_all()?;
    file.metadata()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_few_bytes_takes_a_block() {
        assert_eq!([0, 1, 3, 4096, 4097].map(disk_bytes), [4096, 4096, 4096, 4096, 8192]);
        let dir = tempfile::tempdir().unwrap();
        let staged = Staged::write(&dir.path().join("f"), &b"abc"[..], |_| {}).unwrap();
        assert_eq!(staged.bytes, 3);
        assert!(staged.disk_bytes >= 4096);
    }

    #[test]
    fn what_is_not_published_goes() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::lock(tempfile::tempfile().unwrap()).unwrap().unwrap();
        let files = || fs::read_dir(dir.path()).unwrap().count();
        let staged = Staged::write(&dir.path().join("f"), &b"abc"[..], |_| {}).unwrap();
        assert_eq!(files(), 1);
        drop(staged);
        assert_eq!(files(), 0);
        Staged::write(&dir.path().join("f"), &b"abc"[..], |_| {})
            .unwrap()
            .publish(&keeper, &dir.path().join("f"))
            .unwrap();
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"abc");
        assert_eq!(files(), 1);
    }
}
