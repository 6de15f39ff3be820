//! Arenas: memory shared with the supervisor, handed out in aligned regions.

use pappus_proto::v1::Region;
use pappus_shmem::{Mapping, ValidatedMemfd};

use crate::error::{Error, Result};

/// Regions start at multiples of this: a cache line.
pub const REGION_ALIGN: u64 = 64;

/// A shared memory object, mapped here. Regions are handed out one after the other, and all taken back at once.
#[derive(Debug)]
pub struct Arena {
    id: u64,
    mapping: Mapping,
    used: u64,
}

impl Arena {
    pub(crate) fn map(id: u64, memfd: &ValidatedMemfd) -> Result<Self> {
        let mapping = Mapping::writable(memfd).map_err(Error::io("mmap"))?;
        Ok(Self { id, mapping, used: 0 })
    }

    /// Its number in requests.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// A region of its own for `bytes` bytes.
    pub fn alloc(&mut self, bytes: u64) -> Result<Region> {
        let offset = self.used;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => {
                // The next region starts in a cache line of its own, or nowhere where none is left.
                self.used = aligned(end).min(self.bytes());
                Ok(Region { arena: self.id, offset, bytes })
            }
            _ => Err(Error::Invalid(format!(
                "no room for {bytes} bytes in an arena of {} of which {offset} are taken: open a larger one",
                self.bytes()
            ))),
        }
    }

    /// Takes all regions back.
    pub fn reset(&mut self) {
        self.used = 0;
    }

    /// Allocates a region and fills it.
    pub fn store(&mut self, bytes: &[u8]) -> Result<Region> {
        let region = self.alloc(bytes.len() as u64)?;
        self.write(region, 0, bytes)?;
        Ok(region)
    }

    /// Writes into a region, `at` bytes from its start.
    pub fn write(&self, region: Region, at: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.inside(region, at, bytes.len())?;
        self.mapping.write(offset, bytes).map_err(outside)
    }

    /// Reads from a region, `at` bytes from its start.
    pub fn read(&self, region: Region, at: u64, out: &mut [u8]) -> Result<()> {
        let offset = self.inside(region, at, out.len())?;
        self.mapping.read(offset, out).map_err(outside)
    }

    /// All bytes of a region.
    pub fn load(&self, region: Region) -> Result<Vec<u8>> {
        let bytes =
            usize::try_from(region.bytes).map_err(|_| Error::Invalid("a region too large to copy".into()))?;
        // A region of another arena must not make this one allocate its size.
        self.inside(region, 0, bytes)?;
        let mut out = vec![0; bytes];
        self.read(region, 0, &mut out)?;
        Ok(out)
    }

    /// The arena's offset of `bytes` bytes at `at` in the region.
    fn inside(&self, region: Region, at: u64, bytes: usize) -> Result<u64> {
        let fits = |start: u64, size: u64| start.checked_add(bytes as u64).is_some_and(|end| end <= size);
        let offset = region.offset.checked_add(at).filter(|offset| {
            region.arena == self.id && fits(at, region.bytes) && fits(*offset, self.bytes())
        });
        offset.ok_or_else(|| Error::Invalid(format!("{bytes} bytes at {at} lie outside {region:?}")))
    }
}

/// How many bytes of an arena a region of `bytes` takes at most.
pub fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(REGION_ALIGN).unwrap_or(u64::MAX)
}

fn outside(error: pappus_shmem::mapping::OutOfRange) -> Error {
    Error::Invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: u64) -> Arena {
        Arena::map(7, &pappus_shmem::memfd::arena("t", bytes).unwrap()).unwrap()
    }

    #[test]
    fn regions_are_aligned_and_apart() {
        let mut arena = arena(4096);
        let a = arena.store(b"abc").unwrap();
        let b = arena.store(b"defg").unwrap();
        assert_eq!((a.offset, b.offset), (0, 64));
        assert_eq!(arena.load(a).unwrap(), b"abc");
        assert_eq!(arena.load(b).unwrap(), b"defg");
        arena.reset();
        assert_eq!(arena.alloc(4096).unwrap().offset, 0);
        assert!(arena.alloc(1).is_err());
        assert_eq!(arena.alloc(0).unwrap().offset, 4096);
    }

    #[test]
    fn nothing_outside_a_region_is_touched() {
        let mut arena = arena(4096);
        let a = arena.alloc(8).unwrap();
        assert!(arena.write(a, 1, &[0; 8]).is_err());
        assert!(arena.read(a, u64::MAX, &mut [0; 8]).is_err());
        assert!(arena.load(Region { arena: 8, ..a }).is_err());
        assert!(arena.load(Region { bytes: u64::MAX, ..a }).is_err());
        assert!(arena.alloc(u64::MAX).is_err());
    }
}
