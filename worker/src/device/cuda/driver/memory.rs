//! Physical memory, address ranges, pinned host memory.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::error::{CudaError, check};
use crate::device::gpu::driver::{self, Access};

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(ordinal: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// A piece of device memory without an address.
#[derive(Debug)]
pub struct Physical {
    raw: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    ordinal: i32,
}

impl Physical {
    /// Memory of the device; `bytes` is a multiple of [`granularity`]. It can be exported if said so.
    pub fn create(ordinal: i32, bytes: u64, export: bool) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: writes one handle; the properties live during the call.
        check(unsafe { sys::cuMemCreate(&mut raw, bytes as usize, &properties(ordinal, export), 0) })?;
        Ok(Self { raw, bytes, ordinal })
    }

    /// Memory that another process exported.
    pub fn import(ordinal: i32, fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, CudaError> {
        let mut raw = 0;
        let handle = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this handle type the "pointer" is the descriptor's number; a wrong one is an error.
        check(unsafe { sys::cuMemImportFromShareableHandle(&mut raw, handle, FD) })?;
        Ok(Self { raw, bytes, ordinal })
    }
}

impl driver::Memory for Physical {
    type Error = CudaError;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd = -1;
        // SAFETY: for this handle type the call writes one int.
        check(unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.raw, FD, 0) })?;
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle is ours; the memory lives on while it is mapped.
        let _ = unsafe { sys::cuMemRelease(self.raw) };
    }
}

fn properties(ordinal: i32, export: bool) -> CUmemAllocationProp {
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if export { FD } else { none },
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The unit of sizes and offsets of physical memory.
pub(crate) fn granularity(ordinal: i32) -> Result<u64, CudaError> {
    let mut bytes = 0;
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: writes one number; the properties live during the call.
    check(unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties(ordinal, true), minimum) })?;
    Ok(bytes as u64)
}

/// Reserves addresses only.
pub(crate) fn reserve(bytes: u64) -> Result<u64, CudaError> {
    let mut base = 0;
    // SAFETY: writes one address.
    check(unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) })?;
    Ok(base)
}

/// Gives addresses back that [`reserve`] gave and where nothing is mapped any more.
pub(crate) fn free(base: u64, bytes: u64) {
    // SAFETY: reserved with this size; nothing is mapped.
    let _ = unsafe { sys::cuMemAddressFree(base, bytes as usize) };
}

/// Maps memory at addresses that are reserved and where nothing is mapped.
pub(crate) fn map(at: u64, memory: &Physical, access: Access) -> Result<(), CudaError> {
    let flags = match access {
        Access::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let access = sys::CUmemAccessDesc { location: location(memory.ordinal), flags };
    let bytes = memory.bytes as usize;
    // SAFETY: as this function's callers promise; the handle is alive.
    check(unsafe { sys::cuMemMap(at, bytes, 0, memory.raw, 0) })?;
    // SAFETY: mapped just now; the description lives during the call.
    check(unsafe { sys::cuMemSetAccess(at, bytes, &access, 1) }).inspect_err(|_| {
        // SAFETY: mapped just now.
        let _ = unsafe { sys::cuMemUnmap(at, bytes) };
    })
}

/// Unmaps memory that [`map`] mapped with this size, and that nothing running uses.
pub(crate) fn unmap(at: u64, bytes: u64) {
    // SAFETY: mapped with this size, as the callers promise; a range that is not is an error.
    let _ = unsafe { sys::cuMemUnmap(at, bytes as usize) };
}

/// Host memory that the device may copy from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    base: *mut u8,
}

impl Pinned {
    /// Pins host memory.
    ///
    /// # Safety
    /// `base` starts a mapping of at least `bytes`, which outlives this value.
    pub unsafe fn register(base: *mut u8, bytes: u64, read_only: bool) -> Result<Self, CudaError> {
        const READ_ONLY: u32 = 0x08;
        let flags = if read_only { READ_ONLY } else { 0 };
        // SAFETY: as the caller promises.
        check(unsafe { sys::cuMemHostRegister_v2(base.cast(), bytes as usize, flags) })?;
        Ok(Self { base })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: registered by this value.
        let _ = unsafe { sys::cuMemHostUnregister(self.base.cast()) };
    }
}

/// Pinned host memory of our own.
#[derive(Debug)]
pub struct HostBuffer {
    base: *mut u8,
    bytes: usize,
}

impl HostBuffer {
    /// Allocates it, zeroed.
    pub fn allocate(bytes: usize) -> Result<Self, CudaError> {
        let mut base = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check(unsafe { sys::cuMemHostAlloc(&mut base, bytes, 0) })?;
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
        let _ = unsafe { sys::cuMemFreeHost(self.base.cast()) };
    }
}

/// A small allocation of the driver's own kind.
#[derive(Debug)]
pub struct DeviceBuffer {
    address: u64,
}

impl DeviceBuffer {
    /// Allocates it; its content is undefined.
    pub fn allocate(bytes: u64) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(Self { address })
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
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}
