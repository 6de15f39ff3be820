//! One mapped memfd. Accesses are bounds-checked copies by raw pointer, never slices.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use crate::ValidatedMemfd;

/// An access outside the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("range {offset}+{bytes} lies outside a mapping of {size} bytes")]
pub struct OutOfRange {
    /// Where the access starts.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What there is.
    pub size: u64,
}

/// A memfd mapped shared, readable and (for arenas) writable; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value; it is reached through bounds-checked raw
// copies only, and other processes may change it anyway.
unsafe impl Send for Mapping {}
// SAFETY: shared references only copy through bounds-checked raw pointers, which no Rust reference aliases: concurrent
// copies can tear bytes, as other processes can at any time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps an arena for reading and writing.
    pub fn writable(memfd: &ValidatedMemfd) -> std::io::Result<Self> {
        Self::map(memfd, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a sealed memfd for reading.
    pub fn read_only(memfd: &ValidatedMemfd) -> std::io::Result<Self> {
        Self::map(memfd, ProtFlags::READ)
    }

    fn map(memfd: &ValidatedMemfd, protection: ProtFlags) -> std::io::Result<Self> {
        let bytes = usize::try_from(memfd.bytes()).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address the kernel picks aliases nothing of this process; the
        // memfd was judged, so it cannot shrink below `bytes`.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, memfd.as_fd(), 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// First byte; valid for [`Mapping::bytes`] while this value lives.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The address of a range, once it is known to lie inside.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutOfRange> {
        match offset.checked_add(bytes) {
            // SAFETY: offset ≤ offset + bytes ≤ self.bytes, so the result stays inside the mapping.
            Some(end) if end <= self.bytes as u64 => Ok(unsafe { self.base.as_ptr().add(offset as usize) }),
            _ => Err(OutOfRange { offset, bytes, size: self.bytes as u64 }),
        }
    }

    /// Copies out of the mapping.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.range(offset, out.len() as u64)?;
        // SAFETY: `range` checked the source; `out` is exclusive memory outside any mapping.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into the mapping; it must be writable.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let to = self.range(offset, bytes.len() as u64)?;
        // SAFETY: `range` checked the destination; `bytes` lies outside any mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies from a mapping, perhaps the same, into this one, which must be writable.
    pub fn copy_from(&self, offset: u64, from: &Mapping, at: u64, bytes: u64) -> Result<(), OutOfRange> {
        let (to, from) = (self.range(offset, bytes)?, from.range(at, bytes)?);
        // SAFETY: `range` checked both ends. `copy` because two ranges of one mapping may come close.
        unsafe { ptr::copy(from, to, bytes as usize) };
        Ok(())
    }

    /// Zeroes a range; the mapping must be writable.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        self.fill(offset, bytes, 0)
    }

    /// Sets every byte of a range; the mapping must be writable.
    pub fn fill(&self, offset: u64, bytes: u64, byte: u8) -> Result<(), OutOfRange> {
        let to = self.range(offset, bytes)?;
        // SAFETY: `range` checked the destination.
        unsafe { ptr::write_bytes(to, byte, bytes as usize) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and bytes are what mmap returned, and no reference into the mapping exists.
        // An error (none is possible for a whole mapping) would only leak address space.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;

    #[test]
    fn two_mappings_of_one_arena_see_each_other() {
        let arena = memfd::arena("a", 8192).unwrap();
        let (a, b) = (Mapping::writable(&arena).unwrap(), Mapping::writable(&arena).unwrap());
        a.write(8190, b"hi").unwrap();
        let mut out = [0; 2];
        b.read(8190, &mut out).unwrap();
        assert_eq!(&out, b"hi");
        b.zero(8190, 2).unwrap();
        a.read(8190, &mut out).unwrap();
        assert_eq!(out, [0, 0]);
    }

    #[test]
    fn ranges_are_filled_and_copied_between_mappings() {
        let (a, b) = (memfd::arena("a", 4096).unwrap(), memfd::arena("b", 4096).unwrap());
        let (a, b) = (Mapping::writable(&a).unwrap(), Mapping::writable(&b).unwrap());
        a.fill(8, 4, 7).unwrap();
        b.copy_from(100, &a, 6, 4).unwrap();
        let mut out = [1; 4];
        b.read(100, &mut out).unwrap();
        assert_eq!(out, [0, 0, 7, 7]);
        assert!(b.copy_from(0, &a, 4090, 8).is_err());
        assert!(b.copy_from(4090, &a, 0, 8).is_err());
    }

    #[test]
    fn nothing_outside_is_reached() {
        let m = Mapping::writable(&memfd::arena("a", 4096).unwrap()).unwrap();
        assert!(m.write(4095, b"hi").is_err());
        assert!(m.read(u64::MAX, &mut [0]).is_err());
        assert!(m.zero(1, u64::MAX).is_err());
        assert!(m.range(4096, 0).is_ok());
    }

    #[test]
    fn a_punched_hole_reads_as_zeros() {
        let arena = memfd::arena("a", 4096).unwrap();
        let m = Mapping::writable(&arena).unwrap();
        m.write(0, b"secret").unwrap();
        memfd::punch_hole(&arena, 0, 4096).unwrap();
        let mut out = [1; 6];
        m.read(0, &mut out).unwrap();
        assert_eq!(out, [0; 6]);
    }
}
