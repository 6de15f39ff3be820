//! How much of a device's memory is in use by all processes, without a context: the one question that the
//! management library answers and the driver does not.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::{Library, Symbol};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type MemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;

/// The library, initialised; none where it is missing.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            // SAFETY: the driver's own library by its well-known name; `nvmlInit_v2` takes no arguments.
            unsafe {
                let library = Library::new("libnvidia-ml.so.1").ok()?;
                let init: Symbol<'_, Init> = library.get(b"nvmlInit_v2\0").ok()?;
                (init() == 0).then_some(())?;
                Some(library)
            }
        })
        .as_ref()
}

fn memory(uuid: &str) -> Option<Memory> {
    let library = library()?;
    let uuid = CString::new(uuid).ok()?;
    let mut device = std::ptr::null_mut();
    let mut memory = Memory::default();
    // SAFETY: signatures as in nvml.h; both calls write what they are given room for.
    unsafe {
        let by_uuid: Symbol<'_, ByUuid> = library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
        let info: Symbol<'_, MemoryInfo> = library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
        (by_uuid(uuid.as_ptr(), &mut device) == 0).then_some(())?;
        (info(device, &mut memory) == 0).then_some(())?;
    }
    Some(memory)
}

/// Bytes in use.
pub(super) fn used_bytes(uuid: &str) -> Option<u64> {
    memory(uuid).map(|memory| memory.used)
}

/// Bytes that are free.
pub(super) fn free_bytes(uuid: &str) -> Option<u64> {
    memory(uuid).map(|memory| memory.free)
}
