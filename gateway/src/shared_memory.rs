//! Regions of POSIX shared memory that clients on this machine registered, for tensors that need not travel. Off unless asked for.
//!
//! A region is read and written as a file, never mapped: whoever shrinks it meanwhile gets a refusal, and cannot end the gateway. What
//! is read is copied before it is looked at, so that nobody changes what was checked. A region is its token's: others neither see nor
//! use it. Which objects a client may name is what the gateway's user may open: that is what the switch is for.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pappus_client::Code;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Failure, Kind, Result};
use crate::limits::{MAX_REGION_NAME_BYTES, MAX_REGIONS};
use crate::memory::Share;

/// Where the system has them.
const FOLDER: &str = "/dev/shm";

/// A registered region.
#[derive(Debug)]
pub struct Region {
    /// Its object, as it was registered.
    pub key: String,
    /// Where it begins in the object.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    file: File,
}

/// A place in a region, as a tensor names it.
#[derive(Debug, Clone)]
pub struct Place {
    /// The region.
    pub region: Arc<Region>,
    /// Where it begins in the region.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The regions of one token.
#[derive(Debug, Default)]
pub struct Regions(Mutex<HashMap<String, Arc<Region>>>);

fn invalid(why: impl Into<String>) -> Failure {
    Failure::invalid(why).at("shared memory")
}

impl Regions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Region>>> {
        // The map is whole after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a region of an object.
    pub fn register(&self, name: &str, key: &str, offset: u64, bytes: u64) -> Result<()> {
        self.register_in(Path::new(FOLDER), name, key, offset, bytes)
    }

    fn register_in(&self, folder: &Path, name: &str, key: &str, offset: u64, bytes: u64) -> Result<()> {
        if name.is_empty() || name.len() > MAX_REGION_NAME_BYTES {
            return Err(invalid(format!("a region's name has 1 to {MAX_REGION_NAME_BYTES} bytes")));
        }
        let path = object(folder, key)?;
        if self.lock().contains_key(name) {
            let told = format!("region `{name}` is registered already: unregister it first");
            return Err(Failure::new(Kind::Supervisor(Code::AlreadyExists), told));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| invalid(format!("object `{key}` cannot be opened: {error}")))?;
        let file = File::from(file);
        let region = Arc::new(Region { key: key.to_owned(), offset, bytes, file });
        region.check()?;
        let mut all = self.lock();
        if all.len() >= MAX_REGIONS {
            return Err(invalid(format!(
                "there are {MAX_REGIONS} regions, the most of one token: unregister some"
            )));
        }
        all.insert(name.to_owned(), region);
        Ok(())
    }

    /// Unregisters a region, or all with an empty name.
    pub fn unregister(&self, name: &str) {
        match name.is_empty() {
            true => self.lock().clear(),
            false => drop(self.lock().remove(name)),
        }
    }

    /// The regions, or the one of this name, by name.
    pub fn list(&self, name: &str) -> Vec<(String, Arc<Region>)> {
        let all = self.lock();
        let chosen = all.iter().filter(|(other, _)| name.is_empty() || name == **other);
        let mut chosen: Vec<_> = chosen.map(|(name, region)| (name.clone(), region.clone())).collect();
        chosen.sort_by(|a, b| a.0.cmp(&b.0));
        chosen
    }

    /// A place in a region.
    pub fn place(&self, region: &str, offset: u64, bytes: u64) -> Result<Place> {
        let found = self.lock().get(region).cloned();
        let shown: String = region.chars().take(80).collect();
        let region = found.ok_or_else(|| invalid(format!("no region `{shown}` is registered")))?;
        match offset.checked_add(bytes).is_some_and(|end| end <= region.bytes) {
            true => Ok(Place { region, offset, bytes }),
            false => Err(invalid(format!(
                "{bytes} bytes at {offset} lie outside of the {} of region `{shown}`",
                region.bytes
            ))),
        }
    }
}

/// The file of an object. A key is a name, with or without a slash before it.
fn object(folder: &Path, key: &str) -> Result<PathBuf> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_name =
        !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != "." && name != "..";
    match is_name {
        true => Ok(folder.join(name)),
        false => Err(invalid("a key is the name of an object of shm_open")),
    }
}

impl Region {
    /// An error unless the object has the region's bytes.
    fn check(&self) -> Result<()> {
        let found = self.file.metadata().ok().filter(std::fs::Metadata::is_file);
        let size = found.ok_or_else(|| invalid("the object is no shared memory"))?.len();
        match self.offset.checked_add(self.bytes).is_some_and(|end| end <= size) {
            true => Ok(()),
            false => Err(invalid(format!(
                "{} bytes at {} lie outside of the object's {size}",
                self.bytes, self.offset
            ))),
        }
    }
}

impl Place {
    /// The bytes there, copied.
    pub fn read(&self, share: &Share) -> Result<Bytes> {
        // Before anything is allocated: the object may have shrunk.
        self.region.check()?;
        let bytes = usize::try_from(self.bytes).map_err(|_| invalid("a place larger than memory"))?;
        share.take(bytes)?;
        let mut out = vec![0; bytes];
        let read = self.region.file.read_exact_at(&mut out, self.region.offset + self.offset);
        read.map_err(|error| invalid(format!("the object cannot be read: {error}")))?;
        Ok(out.into())
    }

    /// Writes an output there.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.bytes {
            return Err(invalid(format!(
                "an output of {} bytes, and a place of {}",
                bytes.len(),
                self.bytes
            )));
        }
        // Where the object shrunk, writing would make it grow.
        self.region.check()?;
        let wrote = self.region.file.write_all_at(bytes, self.region.offset + self.offset);
        wrote.map_err(|error| invalid(format!("the object cannot be written: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn a_region_is_read_and_written_within_its_bounds() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("object"), b"0123456789").unwrap();
        let (regions, memory) = (Regions::default(), Memory::new(100));
        let register = |key: &str, offset, bytes| regions.register_in(folder.path(), "r", key, offset, bytes);
        for (key, offset, bytes) in [
            ("object", 5, 6),
            ("object", u64::MAX, 2),
            ("nothing", 0, 1),
            ("../object", 0, 1),
            ("..", 0, 0),
            ("", 0, 0),
        ] {
            assert!(register(key, offset, bytes).is_err(), "{key} {offset} {bytes}");
        }
        std::os::unix::fs::symlink(folder.path().join("object"), folder.path().join("link")).unwrap();
        assert!(register("link", 0, 1).is_err());
        register("/object", 2, 6).unwrap();
        assert_eq!(register("object", 0, 1).unwrap_err().row().http, 409);
        let place = regions.place("r", 1, 3).unwrap();
        assert_eq!(&place.read(&memory.share()).unwrap()[..], b"345");
        place.write(b"xyz").unwrap();
        assert!(place.write(b"wxyz").is_err());
        assert_eq!(std::fs::read(folder.path().join("object")).unwrap(), b"012xyz6789");
        for (region, offset, bytes) in [("r", 4, 3), ("r", u64::MAX, 1), ("s", 0, 1)] {
            assert!(regions.place(region, offset, bytes).is_err());
        }
        // Whoever shrinks the object gets a refusal, and it does not grow again.
        std::fs::write(folder.path().join("object"), b"01").unwrap();
        assert!(place.read(&memory.share()).is_err() && place.write(b"x").is_err());
        assert_eq!(std::fs::read(folder.path().join("object")).unwrap(), b"01");
        regions.unregister("");
        assert!(regions.place("r", 0, 1).is_err() && regions.list("").is_empty());
    }
}
