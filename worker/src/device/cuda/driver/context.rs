//! The device and the process's one context on it.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUctx_flags_enum, CUdevice_attribute as Attribute, CUlimit};

use super::error::{CudaError, check};
use super::{Library, device};
use pappus_protocol::Fault;

/// What a device says about itself without a context.
#[derive(Debug, Clone)]
pub(crate) struct DeviceInfo {
    pub(crate) ordinal: i32,
    pub(crate) name: String,
    /// Such as `GPU-8f0a…`; slices have their own.
    pub(crate) uuid: String,
    /// Such as `sm_90`.
    pub(crate) arch: String,
    pub(crate) memory_bytes: u64,
    /// Such as `0000:1b:00.0`.
    pub(crate) bus_id: String,
    /// Processes on it run at the same time, through the MPS daemon.
    pub(crate) shared: bool,
    pub(crate) multiprocessors: u32,
    /// Threads that can be resident on one multiprocessor.
    pub(crate) threads: u32,
    /// Shared memory that one block can have.
    pub(crate) shared_bytes: u32,
    /// Host memory that cannot be written can be pinned.
    pub(crate) pins_read_only: bool,
    /// Kernels reach pinned host memory at its own addresses.
    pub(crate) host_addresses: bool,
    /// Blocks can be launched in clusters, and kernels can read tensor maps: since `sm_90`.
    pub(crate) has_clusters: bool,
}

impl DeviceInfo {
    /// Asks the device in the `ordinal`-th position that this process sees.
    pub(crate) fn read(_: &Library, ordinal: i32) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: writes one handle.
        check(unsafe { sys::cuDeviceGet(&mut raw, ordinal) })?;
        let attribute = |which: Attribute| {
            let mut value = 0;
            // SAFETY: writes one integer about a device that exists.
            check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, raw) }).map(|()| value as u32)
        };
        let mut name = [0; 256];
        let mut bus_id = [0; 32];
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        let mut memory_bytes = 0;
        // SAFETY: the buffers are as long as said; the strings written end with a zero byte.
        unsafe {
            check(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, raw))?;
            check(sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), bus_id.len() as i32, raw))?;
            check(sys::cuDeviceGetUuid_v2(&mut uuid, raw))?;
            check(sys::cuDeviceTotalMem_v2(&mut memory_bytes, raw))?;
        }
        let name = text(&name);
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Self {
            ordinal,
            uuid: uuid_text(if name.contains(" MIG ") { "MIG" } else { "GPU" }, &uuid.bytes.map(|b| b as u8)),
            name,
            arch: format!("sm_{major}{minor}"),
            memory_bytes: memory_bytes as u64,
            bus_id: text(&bus_id).to_lowercase(),
            shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).unwrap_or(0) != 0,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            threads: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            pins_read_only: attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
                .unwrap_or(0)
                != 0,
            host_addresses: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
                .unwrap_or(0)
                != 0,
            has_clusters: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH).unwrap_or(0) != 0,
        })
    }

    /// The host's memory node that the device is attached to, if the host says so.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        let path = format!("/sys/bus/pci/devices/{}/numa_node", self.bus_id);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A UUID as nvidia-smi writes it.
fn uuid_text(kind: &str, bytes: &[u8; 16]) -> String {
    let mut out = kind.to_owned();
    for (position, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&position) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// The process's context; current on the thread that made it, where everything else happens, too.
#[derive(Debug)]
pub(crate) struct Context {
    raw: sys::CUcontext,
    pub(crate) info: DeviceInfo,
}

impl Context {
    /// A context with the smallest heap and print buffer there are. The driver takes limits of zero and keeps a
    /// heap even so: modules that call `malloc` are refused (`elf`), and what is printed goes nowhere (`engine`).
    pub(crate) fn create(library: &Library, ordinal: i32) -> Result<Self, Fault> {
        let info = DeviceInfo::read(library, ordinal).map_err(|e| device(format!("GPU {ordinal}: {e}")))?;
        let at = |what: &'static str| move |e: CudaError| device(format!("GPU {ordinal}: {what}: {e}"));
        // Stack memory, once allocated, stays allocated: freeing it would stop every lane.
        let flags = CUctx_flags_enum::CU_CTX_LMEM_RESIZE_TO_MAX as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the device exists.
        check(unsafe { sys::cuCtxCreate_v2(&mut raw, flags, ordinal) }).map_err(at("creating a context"))?;
        let context = Self { raw, info };
        for (limit, name) in [
            (CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, "no heap for kernels"),
            (CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, "no print buffer for kernels"),
        ] {
            // SAFETY: a limit of the current context.
            check(unsafe { sys::cuCtxSetLimit(limit, 0) }).map_err(at(name))?;
        }
        Ok(context)
    }

    /// Free and all bytes of device memory, of all processes.
    pub(crate) fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Makes room for stacks of this many bytes of all threads that can be on the device, behind all kernels.
    pub(crate) fn make_stacks(&self, bytes: u32) -> Result<(), CudaError> {
        // SAFETY: a limit of the current context.
        check(unsafe { sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, bytes as usize) })
    }

    /// Waits until everything that was submitted is over.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: no arguments.
        check(unsafe { sys::cuCtxSynchronize() })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was created by this value and everything made in it is gone: owners hold it.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_read_as_the_driver_tools_write_them() {
        let bytes = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(uuid_text("GPU", &bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
