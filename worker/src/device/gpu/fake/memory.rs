//! What the driver without a device gives out as memory.

use std::os::fd::{AsFd, OwnedFd};

use pappus_shmem::memfd;

use super::{Did, FakeError, note};
use crate::device::gpu::driver;

#[derive(Debug)]
pub(in crate::device::gpu) struct Memory {
    pub(super) bytes: u64,
}

impl driver::Memory for Memory {
    type Error = FakeError;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Result<OwnedFd, FakeError> {
        let memfd = memfd::sealed("fake", b"memory").map_err(|_| FakeError::Refused)?;
        memfd.as_fd().try_clone_to_owned().map_err(|_| FakeError::Refused)
    }
}

#[derive(Debug)]
pub(in crate::device::gpu) struct Pinned;

impl Drop for Pinned {
    fn drop(&mut self) {
        note(Did::Unpin);
    }
}

#[derive(Debug)]
pub(in crate::device::gpu) struct HostBuffer(pub(super) *mut [u8]);

impl driver::HostBuffer for HostBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: made of a box, and `&mut self` makes it the only view.
        unsafe { &mut *self.0 }
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: made of a box, which nothing else frees.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[derive(Debug)]
pub(in crate::device::gpu) struct DeviceBuffer(pub(super) u64);

impl driver::DeviceBuffer for DeviceBuffer {
    fn address(&self) -> u64 {
        self.0
    }
}
