//! Physical memory, address ranges, pinned host memory.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::error::{CudaError, check};

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// What may be done with a mapped range; the hardware enforces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Access {
    Read,
    ReadWrite,
}

fn location(ordinal: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// A piece of device memory without an address.
#[derive(Debug)]
pub(in super::super) struct Physical {
    raw: sys::CUmemGenericAllocationHandle,
    pub(in super::super) bytes: u64,
    ordinal: i32,
}

impl Physical {
    /// Memory of the device; `bytes` is a multiple of [`granularity`]. It can be exported if said so.
    pub(in super::super) fn create(ordinal: i32, bytes: u64, export: bool) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: writes one handle; the properties live during the call.
        check(unsafe { sys::cuMemCreate(&mut raw, bytes as usize, &properties(ordinal, export), 0) })?;
        Ok(Self { raw, bytes, ordinal })
    }

    /// A descriptor by which another process can map the same memory.
    pub(in super::super) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd = -1;
        // SAFETY: for this handle type the call writes one int.
        check(unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.raw, FD, 0) })?;
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Memory that another process exported.
    pub(in super::super) fn import(ordinal: i32, fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, CudaError> {
        let mut raw = 0;
        let handle = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this handle type the "pointer" is the descriptor's number; a wrong one is an error.
        check(unsafe { sys::cuMemImportFromShareableHandle(&mut raw, handle, FD) })?;
        Ok(Self { raw, bytes, ordinal })
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

/// What sizes and offsets of physical memory are multiples of.
pub(in super::super) fn granularity(ordinal: i32) -> Result<u64, CudaError> {
    let mut bytes = 0;
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: writes one number; the properties live during the call.
    check(unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties(ordinal, true), minimum) })?;
    Ok(bytes as u64)
}

/// A range of device addresses and what is mapped into it, from its start on without gaps.
#[derive(Debug)]
pub(in super::super) struct Range {
    base: u64,
    bytes: u64,
    mapped: Vec<Physical>,
}

impl Range {
    /// Reserves addresses only.
    pub(in super::super) fn reserve(bytes: u64) -> Result<Self, CudaError> {
        Ok(Self { base: reserve(bytes)?, bytes, mapped: Vec::new() })
    }

    /// The first address.
    pub(in super::super) fn base(&self) -> u64 {
        self.base
    }

    /// How much is mapped.
    pub(in super::super) fn mapped_bytes(&self) -> u64 {
        self.mapped.iter().map(|memory| memory.bytes).sum()
    }

    /// Maps memory behind what is mapped already; returns its address.
    pub(in super::super) fn push(&mut self, memory: Physical, access: Access) -> Result<u64, CudaError> {
        let at = self.base + self.mapped_bytes();
        if at + memory.bytes > self.base + self.bytes {
            return Err(CudaError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        map(at, &memory, access)?;
        self.mapped.push(memory);
        Ok(at)
    }

    /// Unmaps what was mapped last; nothing that runs uses it.
    pub(in super::super) fn pop(&mut self) -> Option<Physical> {
        let memory = self.mapped.pop()?;
        let at = self.base + self.mapped_bytes();
        // SAFETY: mapped by `push` with this size.
        let _ = unsafe { sys::cuMemUnmap(at, memory.bytes as usize) };
        Some(memory)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        while self.pop().is_some() {}
        free(self.base, self.bytes);
    }
}

/// Memory that is mapped for writing for a while, wherever else it is mapped.
#[derive(Debug)]
pub(in super::super) struct Window {
    base: u64,
    bytes: u64,
}

impl Window {
    /// Maps all of `memory`. Nothing that runs may use the window when it is dropped.
    pub(in super::super) fn open(memory: &Physical) -> Result<Self, CudaError> {
        let base = reserve(memory.bytes)?;
        map(base, memory, Access::ReadWrite).inspect_err(|_| free(base, memory.bytes))?;
        Ok(Self { base, bytes: memory.bytes })
    }

    /// The first address.
    pub(in super::super) fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by this value with this size.
        let _ = unsafe { sys::cuMemUnmap(self.base, self.bytes as usize) };
        free(self.base, self.bytes);
    }
}

/// Reserves addresses only.
fn reserve(bytes: u64) -> Result<u64, CudaError> {
    let mut base = 0;
    // SAFETY: writes one address.
    check(unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) })?;
    Ok(base)
}

/// Gives addresses back that [`reserve`] gave and where nothing is mapped any more.
fn free(base: u64, bytes: u64) {
    // SAFETY: reserved with this size; nothing is mapped.
    let _ = unsafe { sys::cuMemAddressFree(base, bytes as usize) };
}

/// Maps memory at addresses that are reserved and where nothing is mapped.
fn map(at: u64, memory: &Physical, access: Access) -> Result<(), CudaError> {
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

/// Host memory that the device may copy from and to by itself.
#[derive(Debug)]
pub(in super::super) struct Pinned {
    base: *mut u8,
    bytes: usize,
}

impl Pinned {
    /// Pins host memory.
    ///
    /// # Safety
    /// `base` starts a mapping of at least `bytes`, which outlives this value.
    pub(in super::super) unsafe fn register(
        base: *mut u8,
        bytes: u64,
        read_only: bool,
    ) -> Result<Self, CudaError> {
        const READ_ONLY: u32 = 0x08;
        let flags = if read_only { READ_ONLY } else { 0 };
        // SAFETY: as the caller promises.
        check(unsafe { sys::cuMemHostRegister_v2(base.cast(), bytes as usize, flags) })?;
        Ok(Self { base, bytes: bytes as usize })
    }

    /// Its first byte.
    pub(in super::super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// How long it is.
    pub(in super::super) fn bytes(&self) -> usize {
        self.bytes
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
pub(in super::super) struct HostBuffer {
    base: *mut u8,
    pub(in super::super) bytes: usize,
}

impl HostBuffer {
    /// Allocates it, zeroed.
    pub(in super::super) fn allocate(bytes: usize) -> Result<Self, CudaError> {
        let mut base = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check(unsafe { sys::cuMemHostAlloc(&mut base, bytes, 0) })?;
        let base: *mut u8 = base.cast();
        // SAFETY: just allocated, this long.
        unsafe { base.write_bytes(0, bytes) };
        Ok(Self { base, bytes })
    }

    /// Its bytes, while the device does not use them.
    pub(in super::super) fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised with this length; `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }

    /// Its first byte, for the device.
    pub(in super::super) fn as_ptr(&self) -> *mut u8 {
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
pub(in super::super) struct DeviceBuffer {
    pub(in super::super) address: u64,
}

impl DeviceBuffer {
    /// Allocates it; its content is undefined.
    pub(in super::super) fn allocate(bytes: u64) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(Self { address })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this value.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}
