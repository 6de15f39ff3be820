//! What Pappus uses of `libamdhip64.so.7`, as the C headers declare it, and the table of its functions.
//!
//! The declarations hold for HIP 7.1 to 10.x; a test compares them with the bindings of several releases. The file uses
//! nothing but the standard library, so that a test can take it as it is. Names are those of the headers.

#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    reason = "names and meanings are those of the C headers, so that they can be compared"
)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// The library with this number has one binary interface from HIP 7 to HIP 10.
pub const LIBRARY: &CStr = c"libamdhip64.so.7";

/// HIP 7.1: from here on descriptors are imported by value, and errors of kernels do not abort the process. As in
/// `hipRuntimeGetVersion`: major × 10⁷ + minor × 10⁵ + patch.
pub const OLDEST: c_int = 70_100_000;

pub type hipError_t = c_uint;
pub const hipSuccess: hipError_t = 0;
pub const hipErrorInvalidValue: hipError_t = 1;
pub const hipErrorOutOfMemory: hipError_t = 2;
pub const hipErrorNotInitialized: hipError_t = 3;
pub const hipErrorDeinitialized: hipError_t = 4;
pub const hipErrorInvalidConfiguration: hipError_t = 9;
pub const hipErrorInvalidDevicePointer: hipError_t = 17;
pub const hipErrorNoDevice: hipError_t = 100;
pub const hipErrorInvalidDevice: hipError_t = 101;
pub const hipErrorInvalidImage: hipError_t = 200;
pub const hipErrorNoBinaryForGpu: hipError_t = 209;
pub const hipErrorECCNotCorrectable: hipError_t = 214;
pub const hipErrorInvalidHandle: hipError_t = 400;
pub const hipErrorNotFound: hipError_t = 500;
pub const hipErrorNotReady: hipError_t = 600;
pub const hipErrorIllegalAddress: hipError_t = 700;
pub const hipErrorLaunchOutOfResources: hipError_t = 701;
pub const hipErrorLaunchTimeOut: hipError_t = 702;
pub const hipErrorContextIsDestroyed: hipError_t = 709;
pub const hipErrorAssert: hipError_t = 710;
pub const hipErrorHostMemoryAlreadyRegistered: hipError_t = 712;
pub const hipErrorHostMemoryNotRegistered: hipError_t = 713;
pub const hipErrorLaunchFailure: hipError_t = 719;
pub const hipErrorNotSupported: hipError_t = 801;
pub const hipErrorUnknown: hipError_t = 999;
pub const hipErrorRuntimeMemory: hipError_t = 1052;
pub const hipErrorRuntimeOther: hipError_t = 1053;

/// Handles point to what only the library knows.
macro_rules! handles {
    ($($opaque:ident as $handle:ident),* $(,)?) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $opaque {
            opaque: [u8; 0],
        }
        pub type $handle = *mut $opaque;
    )*};
}

handles!(
    ihipModule_t as hipModule_t,
    ihipModuleSymbol_t as hipFunction_t,
    ihipStream_t as hipStream_t,
    ihipEvent_t as hipEvent_t,
    ihipGraph as hipGraph_t,
    hipGraphExec as hipGraphExec_t,
    ihipMemGenericAllocationHandle as hipMemGenericAllocationHandle_t,
);

pub type hipDevice_t = c_int;
pub type hipDeviceptr_t = *mut c_void;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipUUID {
    pub bytes: [c_char; 16],
}

/// `hipDeviceProp_tR0600`: of its 1472 bytes those that matter, and room to grow.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub struct hipDeviceProp_tR0600 {
    pub name: [c_char; 256],
    pub uuid: hipUUID,
    pub between: [u8; 1160 - 256 - 16],
    /// Such as `gfx90a:sramecc+:xnack-`.
    pub gcnArchName: [c_char; 256],
    pub rest: [u8; 4096 - 1160 - 256],
}

impl hipDeviceProp_tR0600 {
    /// All zeros.
    pub const EMPTY: Self = Self {
        name: [0; 256],
        uuid: hipUUID { bytes: [0; 16] },
        between: [0; 1160 - 256 - 16],
        gcnArchName: [0; 256],
        rest: [0; 4096 - 1160 - 256],
    };
}

pub type hipDeviceAttribute_t = c_uint;
pub const hipDeviceAttributeCanUseHostPointerForRegisteredMem: hipDeviceAttribute_t = 4;
pub const hipDeviceAttributeMaxThreadsPerMultiProcessor: hipDeviceAttribute_t = 57;
pub const hipDeviceAttributeMultiprocessorCount: hipDeviceAttribute_t = 63;
pub const hipDeviceAttributeMaxSharedMemoryPerBlock: hipDeviceAttribute_t = 74;
pub const hipDeviceAttributeWarpSize: hipDeviceAttribute_t = 87;
pub const hipDeviceAttributeVirtualMemoryManagementSupported: hipDeviceAttribute_t = 89;

pub type hipMemAllocationType = c_uint;
pub const hipMemAllocationTypePinned: hipMemAllocationType = 1;

pub type hipMemAllocationHandleType = c_uint;
pub const hipMemHandleTypeNone: hipMemAllocationHandleType = 0;
pub const hipMemHandleTypePosixFileDescriptor: hipMemAllocationHandleType = 1;

pub type hipMemLocationType = c_uint;
pub const hipMemLocationTypeDevice: hipMemLocationType = 1;

pub type hipMemAccessFlags = c_uint;
pub const hipMemAccessFlagsProtNone: hipMemAccessFlags = 0;
pub const hipMemAccessFlagsProtRead: hipMemAccessFlags = 1;
pub const hipMemAccessFlagsProtReadWrite: hipMemAccessFlags = 3;

pub type hipMemAllocationGranularity_flags = c_uint;
pub const hipMemAllocationGranularityMinimum: hipMemAllocationGranularity_flags = 0;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct hipMemLocation {
    pub type_: hipMemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct hipMemAccessDesc {
    pub location: hipMemLocation,
    pub flags: hipMemAccessFlags,
}

/// The flags at the end of [`hipMemAllocationProp`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct hipMemAllocationPropFlags {
    pub compressionType: c_uchar,
    pub gpuDirectRDMACapable: c_uchar,
    pub usage: c_ushort,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipMemAllocationProp {
    pub type_: hipMemAllocationType,
    /// A union of two names of the same.
    pub requestedHandleTypes: hipMemAllocationHandleType,
    pub location: hipMemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: hipMemAllocationPropFlags,
}

pub const hipHostMallocDefault: c_uint = 0;
pub const hipHostRegisterDefault: c_uint = 0;
pub const hipStreamNonBlocking: c_uint = 1;
pub const hipEventDisableTiming: c_uint = 2;
/// What was written to host memory is visible to the host when the event has passed.
pub const hipEventReleaseToSystem: c_uint = 0x8000_0000;
pub const hipEventRecordExternal: c_uint = 1;

pub type hipStreamCaptureMode = c_uint;
pub const hipStreamCaptureModeThreadLocal: hipStreamCaptureMode = 1;

/// What `extra` of `hipModuleLaunchKernel` begins with, in this order.
pub const HIP_LAUNCH_PARAM_BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
pub const HIP_LAUNCH_PARAM_BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
pub const HIP_LAUNCH_PARAM_END: *mut c_void = std::ptr::without_provenance_mut(3);

pub type hsa_status_t = c_uint;
pub const HSA_STATUS_SUCCESS: hsa_status_t = 0;

pub type hsa_amd_event_type_t = c_uint;
pub const HSA_AMD_GPU_MEMORY_FAULT_EVENT: hsa_amd_event_type_t = 0;
pub const HSA_AMD_GPU_HW_EXCEPTION_EVENT: hsa_amd_event_type_t = 1;
pub const HSA_AMD_GPU_MEMORY_ERROR_EVENT: hsa_amd_event_type_t = 2;

pub const HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT: u32 = 1 << 0;
pub const HSA_AMD_MEMORY_FAULT_READ_ONLY: u32 = 1 << 1;
pub const HSA_AMD_MEMORY_FAULT_NX: u32 = 1 << 2;
pub const HSA_AMD_MEMORY_FAULT_HOST_ONLY: u32 = 1 << 3;
pub const HSA_AMD_MEMORY_FAULT_DRAMECC: u32 = 1 << 4;
pub const HSA_AMD_MEMORY_FAULT_IMPRECISE: u32 = 1 << 5;
pub const HSA_AMD_MEMORY_FAULT_SRAMECC: u32 = 1 << 6;
pub const HSA_AMD_MEMORY_FAULT_HANG: u32 = 1 << 31;

/// `hsa_amd_event_t` with the first member of its union: the other two are read as far as their type says.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hsa_amd_event_t {
    pub event_type: hsa_amd_event_type_t,
    pub memory_fault: hsa_amd_gpu_memory_fault_info_t,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hsa_amd_gpu_memory_fault_info_t {
    pub agent: u64,
    pub virtual_address: u64,
    pub fault_reason_mask: u32,
}

pub type hsa_amd_system_event_callback_t =
    unsafe extern "C" fn(event: *const hsa_amd_event_t, data: *mut c_void) -> hsa_status_t;

/// The type of `hsa_amd_register_system_event_handler`, of the library below (`libhsa-runtime64.so.1`).
pub type RegisterSystemEventHandler =
    unsafe extern "C" fn(callback: hsa_amd_system_event_callback_t, data: *mut c_void) -> hsa_status_t;

/// A struct with a pointer to each of the functions, and how it is filled in.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        #[derive(Debug, Clone, Copy)]
        pub struct Hip {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl Hip {
            /// The names of all functions.
            pub const NAMES: &[&CStr] = &[$(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            )*];

            /// Takes each function where `find` says that it is; an error is the name of one that is missing.
            ///
            /// # Safety
            /// What `find` returns is the function of this name, with the signature that the headers declare.
            pub unsafe fn load(
                mut find: impl FnMut(&CStr) -> Option<*const c_void>,
            ) -> Result<Self, &'static CStr> {
                let mut names = Self::NAMES.iter();
                Ok(Self {
                    $($name: {
                        let name = names.next().copied().unwrap_or(c"");
                        let at = find(name).filter(|at| !at.is_null()).ok_or(name)?;
                        // SAFETY: as the caller promises; both types are one pointer.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($type),*) $(-> $result)?,
                            >(at)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    hipInit(flags: c_uint) -> hipError_t;
    hipRuntimeGetVersion(runtimeVersion: *mut c_int) -> hipError_t;
    hipGetErrorName(hip_error: hipError_t) -> *const c_char;
    hipGetErrorString(hipError: hipError_t) -> *const c_char;
    hipGetDeviceCount(count: *mut c_int) -> hipError_t;
    hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t) -> hipError_t;
    hipDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, device: c_int) -> hipError_t;
    hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t;
    hipDeviceGetAttribute(pi: *mut c_int, attr: hipDeviceAttribute_t, deviceId: c_int) -> hipError_t;
    hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_tR0600, deviceId: c_int) -> hipError_t;
    hipSetDevice(deviceId: c_int) -> hipError_t;
    hipDeviceSynchronize() -> hipError_t;
    hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t;

    hipMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const hipMemAllocationProp,
        option: hipMemAllocationGranularity_flags
    ) -> hipError_t;
    hipMemCreate(
        handle: *mut hipMemGenericAllocationHandle_t,
        size: usize,
        prop: *const hipMemAllocationProp,
        flags: c_ulonglong
    ) -> hipError_t;
    hipMemRelease(handle: hipMemGenericAllocationHandle_t) -> hipError_t;
    hipMemAddressReserve(
        ptr: *mut *mut c_void,
        size: usize,
        alignment: usize,
        addr: *mut c_void,
        flags: c_ulonglong
    ) -> hipError_t;
    hipMemMap(
        ptr: *mut c_void,
        size: usize,
        offset: usize,
        handle: hipMemGenericAllocationHandle_t,
        flags: c_ulonglong
    ) -> hipError_t;
    hipMemUnmap(ptr: *mut c_void, size: usize) -> hipError_t;
    hipMemSetAccess(
        ptr: *mut c_void,
        size: usize,
        desc: *const hipMemAccessDesc,
        count: usize
    ) -> hipError_t;
    hipMemExportToShareableHandle(
        shareableHandle: *mut c_void,
        handle: hipMemGenericAllocationHandle_t,
        handleType: hipMemAllocationHandleType,
        flags: c_ulonglong
    ) -> hipError_t;
    hipMemImportFromShareableHandle(
        handle: *mut hipMemGenericAllocationHandle_t,
        osHandle: *mut c_void,
        shHandleType: hipMemAllocationHandleType
    ) -> hipError_t;

    hipHostRegister(hostPtr: *mut c_void, sizeBytes: usize, flags: c_uint) -> hipError_t;
    hipHostUnregister(hostPtr: *mut c_void) -> hipError_t;
    hipHostGetDevicePointer(devPtr: *mut *mut c_void, hstPtr: *mut c_void, flags: c_uint) -> hipError_t;
    hipHostMalloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t;
    hipHostFree(ptr: *mut c_void) -> hipError_t;
    hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t;
    hipFree(ptr: *mut c_void) -> hipError_t;

    hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> hipError_t;
    hipModuleUnload(module: hipModule_t) -> hipError_t;
    hipModuleGetFunction(
        function: *mut hipFunction_t,
        module: hipModule_t,
        kname: *const c_char
    ) -> hipError_t;
    hipModuleGetGlobal(
        dptr: *mut hipDeviceptr_t,
        bytes: *mut usize,
        hmod: hipModule_t,
        name: *const c_char
    ) -> hipError_t;

    hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) -> hipError_t;
    hipStreamDestroy(stream: hipStream_t) -> hipError_t;
    hipStreamQuery(stream: hipStream_t) -> hipError_t;
    hipStreamSynchronize(stream: hipStream_t) -> hipError_t;
    hipMemcpyHtoDAsync(
        dst: hipDeviceptr_t,
        src: *const c_void,
        sizeBytes: usize,
        stream: hipStream_t
    ) -> hipError_t;
    hipMemcpyDtoHAsync(
        dst: *mut c_void,
        src: hipDeviceptr_t,
        sizeBytes: usize,
        stream: hipStream_t
    ) -> hipError_t;
    hipMemcpyDtoDAsync(
        dst: hipDeviceptr_t,
        src: hipDeviceptr_t,
        sizeBytes: usize,
        stream: hipStream_t
    ) -> hipError_t;
    hipMemsetD8Async(dest: hipDeviceptr_t, value: c_uchar, count: usize, stream: hipStream_t) -> hipError_t;
    hipModuleLaunchKernel(
        f: hipFunction_t,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        stream: hipStream_t,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void
    ) -> hipError_t;

    hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t;
    hipEventDestroy(event: hipEvent_t) -> hipError_t;
    hipEventQuery(event: hipEvent_t) -> hipError_t;
    hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t;
    hipEventRecordWithFlags(event: hipEvent_t, stream: hipStream_t, flags: c_uint) -> hipError_t;
    hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) -> hipError_t;

    hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) -> hipError_t;
    hipStreamEndCapture(stream: hipStream_t, pGraph: *mut hipGraph_t) -> hipError_t;
    hipGraphInstantiateWithFlags(
        pGraphExec: *mut hipGraphExec_t,
        graph: hipGraph_t,
        flags: c_ulonglong
    ) -> hipError_t;
    hipGraphLaunch(graphExec: hipGraphExec_t, stream: hipStream_t) -> hipError_t;
    hipGraphDestroy(graph: hipGraph_t) -> hipError_t;
    hipGraphExecDestroy(graphExec: hipGraphExec_t) -> hipError_t;
}
