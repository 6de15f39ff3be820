//! A reserved address range: unreachable until memory is mapped into a part of it.
//!
//! The CPU device builds a kernel's linear memory in one: private pages below, the worker's pool and
//! read-only weights above, and everything else left unreachable so that stray accesses trap.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// What may be done with a mapped part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Loads only; a store faults.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Protection {
    fn flags(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Address space set aside, page-aligned; unmapped on drop with all that was mapped into it.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owned address space, reached through raw pointers whose users state their own safety.
unsafe impl Send for Reservation {}
// SAFETY: shared references only change mappings inside the range, with system calls that the kernel orders.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Sets `bytes` of address space aside without any memory behind it.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh inaccessible mapping at an address the kernel picks.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// First byte of the range.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length of the range in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a part private zeroed memory, replacing what was mapped there.
    pub fn map_private(&self, offset: usize, bytes: usize) -> std::io::Result<()> {
        let at = self.part(offset, bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: `part` keeps the fixed mapping inside this reservation, which this value owns.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), bytes, Protection::ReadWrite.flags(), flags)? };
        Ok(())
    }

    /// Maps `bytes` of a descriptor from its start into a part, shared.
    pub fn map_shared(
        &self,
        offset: usize,
        bytes: usize,
        fd: BorrowedFd<'_>,
        protection: Protection,
    ) -> std::io::Result<()> {
        let at = self.part(offset, bytes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: `part` keeps the fixed mapping inside this reservation, which this value owns.
        unsafe { rustix::mm::mmap(at.cast(), bytes, protection.flags(), flags, fd, 0)? };
        Ok(())
    }

    /// Takes the memory of a part away again; touching it faults.
    pub fn unmap(&self, offset: usize, bytes: usize) -> std::io::Result<()> {
        let at = self.part(offset, bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `part` keeps the fixed mapping inside this reservation; it stays reserved, without access.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), bytes, ProtFlags::empty(), flags)? };
        Ok(())
    }

    /// Changes what may be done with a mapped part from now on (none: nothing); its contents stay.
    pub fn protect(&self, offset: usize, bytes: usize, allowed: Option<Protection>) -> std::io::Result<()> {
        let at = self.part(offset, bytes)?;
        let flags = match allowed {
            Some(Protection::ReadOnly) => MprotectFlags::READ,
            Some(Protection::ReadWrite) => MprotectFlags::READ | MprotectFlags::WRITE,
            None => MprotectFlags::empty(),
        };
        // SAFETY: the part lies inside this reservation; its users expect faults.
        unsafe { rustix::mm::mprotect(at.cast(), bytes, flags)? };
        Ok(())
    }

    fn part(&self, offset: usize, bytes: usize) -> std::io::Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: the offset lies inside the reservation.
            Some(end) if end <= self.bytes => Ok(unsafe { self.base.as_ptr().add(offset) }),
            _ => Err(std::io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap returned, and users of `base()` promise to stop before this drop.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, memfd};
    use std::os::fd::AsFd;

    #[test]
    fn shared_parts_show_the_same_bytes() {
        let pool = memfd::arena("pool", 8192).unwrap();
        let outside = Mapping::writable(&pool).unwrap();
        let range = Reservation::new(1 << 32).unwrap();
        range.map_private(0, 4096).unwrap();
        range.map_shared(4096, 8192, pool.as_fd(), Protection::ReadWrite).unwrap();
        // SAFETY: both bytes were mapped writable just above.
        unsafe {
            range.base().write(7);
            range.base().add(4096).write(9);
        }
        let mut out = [0];
        outside.read(0, &mut out).unwrap();
        assert_eq!(out, [9]);
        range.unmap(4096, 8192).unwrap();
        outside.read(0, &mut out).unwrap();
        assert_eq!(out, [9]);
    }

    #[test]
    fn protection_changes_keep_the_contents() {
        let range = Reservation::new(8192).unwrap();
        range.map_private(0, 8192).unwrap();
        // SAFETY: mapped writable just above.
        unsafe { range.base().add(4096).write(7) };
        range.protect(4096, 4096, None).unwrap();
        range.protect(4096, 4096, Some(Protection::ReadOnly)).unwrap();
        // SAFETY: mapped readable just above.
        assert_eq!(unsafe { range.base().add(4096).read() }, 7);
        assert!(range.protect(4096, 8192, None).is_err());
    }

    #[test]
    fn parts_outside_the_range_are_refused() {
        let range = Reservation::new(8192).unwrap();
        assert!(range.map_private(4096, 8192).is_err());
        assert!(range.map_private(usize::MAX, 2).is_err());
    }
}
