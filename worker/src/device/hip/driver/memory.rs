//! Physical memory, address ranges, pinned host memory.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::call;
use super::error::{HipError, check};
use crate::device::gpu::driver::{self, Access};
use crate::device::hip::sys;

const FD: sys::hipMemAllocationHandleType = sys::hipMemHandleTypePosixFileDescriptor;

fn location(ordinal: i32) -> sys::hipMemLocation {
    sys::hipMemLocation { type_: sys::hipMemLocationTypeDevice, id: ordinal }
}

/// A device address as the headers have it.
pub(super) fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

/// A piece of device memory without an address.
#[derive(Debug)]
pub struct Physical {
    raw: sys::hipMemGenericAllocationHandle_t,
    bytes: u64,
    ordinal: i32,
}

impl Physical {
    /// Memory of the device; `bytes` is a multiple of [`granularity`].
    pub fn create(ordinal: i32, bytes: u64) -> Result<Self, HipError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the properties live during the call.
        unsafe { call!(hipMemCreate(&mut raw, bytes as usize, &properties(ordinal), 0)) }?;
        Ok(Self { raw, bytes, ordinal })
    }

    /// Memory that another process exported. Its descriptor must stay open until the memory is mapped.
    pub fn import(ordinal: i32, fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, HipError> {
        let mut raw = std::ptr::null_mut();
        // From HIP 7.1 the "pointer" is the descriptor's number, before it was the address of one.
        let handle = pointer(fd.as_raw_fd() as u64);
        // SAFETY: writes one handle; a descriptor of something else is an error.
        unsafe { call!(hipMemImportFromShareableHandle(&mut raw, handle, FD)) }?;
        Ok(Self { raw, bytes, ordinal })
    }
}

impl driver::Memory for Physical {
    type Error = HipError;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Result<OwnedFd, HipError> {
        let mut fd = -1;
        // SAFETY: for this handle type the call writes one int.
        unsafe { call!(hipMemExportToShareableHandle((&raw mut fd).cast(), self.raw, FD, 0)) }?;
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle is ours; the memory lives on while it is mapped.
        let _ = unsafe { call!(hipMemRelease(self.raw)) };
    }
}

/// The only kind of memory that can be mapped: pinned, on the device, with a descriptor.
fn properties(ordinal: i32) -> sys::hipMemAllocationProp {
    sys::hipMemAllocationProp {
        type_: sys::hipMemAllocationTypePinned,
        requestedHandleTypes: FD,
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::hipMemAllocationPropFlags::default(),
    }
}

/// The unit of sizes of physical memory: the least one, since the recommended one is wrong in some versions.
pub(crate) fn granularity(ordinal: i32) -> Result<u64, HipError> {
    let mut bytes = 0;
    let minimum = sys::hipMemAllocationGranularityMinimum;
    // SAFETY: writes one number; the properties live during the call.
    unsafe { call!(hipMemGetAllocationGranularity(&mut bytes, &properties(ordinal), minimum)) }?;
    Ok(bytes as u64)
}

/// Ranges of addresses that nothing uses any more. They are never given back: where a range was given back and
/// reserved again, kernels were seen to read what had been mapped there before. So that few are needed, each is as long
/// as a power of two and serves again.
static UNUSED: Mutex<Vec<Range>> = Mutex::new(Vec::new());
/// The shortest range.
const LEAST_RANGE: u64 = 2 << 20;

/// A reserved range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    base: u64,
    bytes: u64,
}

/// How long the range is that so many bytes get.
fn range_bytes(bytes: u64) -> Option<u64> {
    bytes.max(LEAST_RANGE).checked_next_power_of_two()
}

fn take_unused(unused: &mut Vec<Range>, bytes: u64) -> Option<u64> {
    let position = unused.iter().position(|range| range.bytes == bytes)?;
    Some(unused.swap_remove(position).base)
}

/// Reserves addresses only.
pub(crate) fn reserve(bytes: u64) -> Result<u64, HipError> {
    let bytes = range_bytes(bytes).ok_or(driver::DriverError::out_of_memory())?;
    if let Some(base) = take_unused(&mut UNUSED.lock().unwrap_or_else(PoisonError::into_inner), bytes) {
        return Ok(base);
    }
    let mut base = std::ptr::null_mut();
    // SAFETY: writes one address.
    unsafe { call!(hipMemAddressReserve(&mut base, bytes as usize, 0, std::ptr::null_mut(), 0)) }?;
    Ok(base.addr() as u64)
}

/// Keeps addresses that [`reserve`] gave for the next one who wants as many; nothing is mapped there any more.
pub(crate) fn free(base: u64, bytes: u64) {
    let Some(bytes) = range_bytes(bytes) else { return };
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(Range { base, bytes });
}

/// Maps memory at addresses that are reserved and where nothing is mapped.
pub(crate) fn map(at: u64, memory: &Physical, access: Access) -> Result<(), HipError> {
    let flags = match access {
        Access::Read => sys::hipMemAccessFlagsProtRead,
        Access::ReadWrite => sys::hipMemAccessFlagsProtReadWrite,
    };
    let access = sys::hipMemAccessDesc { location: location(memory.ordinal), flags };
    let bytes = memory.bytes as usize;
    // SAFETY: as this function's callers promise; the handle is alive.
    unsafe { call!(hipMemMap(pointer(at), bytes, 0, memory.raw, 0)) }?;
    // SAFETY: mapped just now; the description lives during the call.
    unsafe { call!(hipMemSetAccess(pointer(at), bytes, &access, 1)) }.inspect_err(|_| {
        // SAFETY: mapped just now.
        let _ = unsafe { call!(hipMemUnmap(pointer(at), bytes)) };
    })
}

/// Unmaps memory that [`map`] mapped with this size, and that nothing running uses.
pub(crate) fn unmap(at: u64, bytes: u64) {
    // SAFETY: mapped with this size, as the callers promise; a range that is not is an error.
    let _ = unsafe { call!(hipMemUnmap(pointer(at), bytes as usize)) };
}

/// Host memory that the device may copy from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    base: *mut u8,
}

impl Pinned {
    /// Pins host memory, which must be writable: the kernel pins nothing else. With `same_address`, kernels must reach
    /// it where the host does.
    ///
    /// # Safety
    /// `base` starts a mapping of at least `bytes`, which outlives this value.
    pub unsafe fn register(base: *mut u8, bytes: u64, same_address: bool) -> Result<Self, HipError> {
        // SAFETY: as the caller promises.
        unsafe { call!(hipHostRegister(base.cast(), bytes as usize, sys::hipHostRegisterDefault)) }?;
        let pinned = Self { base };
        match same_address && device_pointer(base)? != base.addr() as u64 {
            true => check(sys::hipErrorNotSupported).map(|()| pinned),
            false => Ok(pinned),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: registered by this value.
        let _ = unsafe { call!(hipHostUnregister(self.base.cast())) };
    }
}

/// Where kernels find pinned host memory.
pub(crate) fn device_pointer(base: *mut u8) -> Result<u64, HipError> {
    let mut device = std::ptr::null_mut();
    // SAFETY: writes one address; memory that is not pinned is an error.
    unsafe { call!(hipHostGetDevicePointer(&mut device, base.cast(), 0)) }?;
    Ok(device.addr() as u64)
}

/// Pinned host memory of our own.
#[derive(Debug)]
pub struct HostBuffer {
    base: *mut u8,
    bytes: usize,
}

impl HostBuffer {
    /// Allocates it, zeroed.
    pub fn allocate(bytes: usize) -> Result<Self, HipError> {
        let mut base = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(hipHostMalloc(&mut base, bytes, sys::hipHostMallocDefault)) }?;
        if base.is_null() {
            return Err(driver::DriverError::out_of_memory());
        }
        let base: *mut u8 = base.cast();
        // SAFETY: just allocated, this long.
        unsafe { base.write_bytes(0, bytes) };
        Ok(Self { base, bytes })
    }
}

impl driver::HostBuffer for HostBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised with this length; `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }

    fn as_ptr(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this value.
        let _ = unsafe { call!(hipHostFree(self.base.cast())) };
    }
}

/// A small allocation of the driver's own kind.
#[derive(Debug)]
pub struct DeviceBuffer {
    address: u64,
}

impl DeviceBuffer {
    /// Allocates it; its content is undefined.
    pub fn allocate(bytes: u64) -> Result<Self, HipError> {
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one address.
        unsafe { call!(hipMalloc(&mut address, bytes as usize)) }?;
        Ok(Self { address: address.addr() as u64 })
    }
}

impl driver::DeviceBuffer for DeviceBuffer {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this value.
        let _ = unsafe { call!(hipFree(pointer(self.address))) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However much memory comes and goes, what is reserved is at most what was needed at once, of each length.
        #[test]
        fn ranges_serve_again_and_no_two_users_have_the_same(wants in prop::collection::vec((1..1u64 << 40, any::<bool>()), 1..200)) {
            let (mut unused, mut used) = (Vec::new(), Vec::<Range>::new());
            let mut reserved = 0u64;
            let mut most = std::collections::HashMap::<u64, (usize, usize)>::new();
            for (bytes, frees) in wants {
                let bytes = range_bytes(bytes).unwrap();
                let base = take_unused(&mut unused, bytes).unwrap_or_else(|| {
                    reserved += 1;
                    most.entry(bytes).or_default().1 += 1;
                    reserved << 48
                });
                prop_assert!(used.iter().all(|range| range.base != base));
                used.push(Range { base, bytes });
                let now = used.iter().filter(|range| range.bytes == bytes).count();
                let seen = most.entry(bytes).or_default();
                seen.0 = seen.0.max(now);
                if frees {
                    unused.push(used.swap_remove(used.len() / 2));
                }
            }
            for (bytes, (at_once, reserved)) in most {
                prop_assert_eq!(at_once, reserved, "of {} bytes", bytes);
            }
        }
    }

    #[test]
    fn a_range_is_as_long_as_asked_and_at_most_twice_that() {
        assert_eq!(range_bytes(1), Some(LEAST_RANGE));
        assert_eq!(range_bytes(3 << 20), Some(4 << 20));
        assert_eq!(range_bytes(4 << 20), Some(4 << 20));
        assert_eq!(range_bytes(u64::MAX), None);
    }
}
