//! HIP's driver library, found at run time, in three layers: the declarations of `sys`, results as
//! [`HipError`], and owning types whose destructors give back what they own.
//!
//! - [`fault`]: what the GPU says about kernels that did something illegal.
//! - [`error`]: results of the driver as text.
//! - [`mod@device`]: the device and what it says about itself.
//! - [`stream`]: work in the order of submission; events; graphs.
//! - [`memory`]: physical memory, address ranges, pinned host memory.
//! - [`module`]: machine code, kernels, variables.
//! - `fake`, `tests`: a library that records, and what must be told to it in which order.

pub(super) mod device;
pub(super) mod error;
#[cfg(test)]
mod fake;
pub(super) mod fault;
pub(super) mod memory;
pub(super) mod module;
#[cfg(test)]
#[path = "tests.rs"]
mod recorded;
pub(super) mod stream;

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use pappus_protocol::{Fault, FaultCode};

use super::sys::{self, Hip};
use super::topology;

pub(super) use device::DeviceInfo;
pub(super) use error::{HipError, check};

/// The functions of the library, once it is open. It stays loaded for the life of the process: its threads run in it.
static TABLE: OnceLock<Hip> = OnceLock::new();

/// Where ROCm puts its libraries, if the loader was not told.
const BESIDE: &CStr = c"/opt/rocm/lib/libamdhip64.so.7";
/// The same library with other binary interfaces.
const OLDER: [&str; 2] = ["libamdhip64.so.6", "libamdhip64.so.5"];

/// The functions of the library; none before [`Library::open`].
pub(super) fn table() -> Option<&'static Hip> {
    TABLE.get()
}

/// Calls a function of the library and turns its result into one that can be passed on.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match $crate::device::hip::driver::table() {
            Some(table) => $crate::device::hip::driver::check((table.$name)($($argument),*)),
            None => Err($crate::device::hip::driver::HipError::NOT_OPEN),
        }
    };
}
pub(super) use call;

/// The library, loaded and initialised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library {
    /// The version of HIP that it speaks: 10⁷ × major + 10⁵ × minor + patch.
    pub(super) version: i32,
}

impl Library {
    /// Finds and initialises the driver; an error says what to install.
    pub(super) fn open() -> Result<Self, Fault> {
        let library = load()?;
        // SAFETY: the loader looks each name up in HIP's own library, whose headers `sys` repeats.
        let table = unsafe { Hip::load(|name| find(&library, name)) };
        let table = table.map_err(|name| {
            device(format!(
                "libamdhip64.so.7 has no function {}: install ROCm 7.1 or newer",
                name.to_string_lossy()
            ))
        })?;
        let table = TABLE.get_or_init(|| table);
        let mut version = 0;
        // SAFETY: writes one integer; the call may precede initialisation.
        check(unsafe { (table.hipRuntimeGetVersion)(&mut version) })
            .map_err(|e| device(format!("libamdhip64.so.7 does not tell its version: {e}")))?;
        if version < sys::OLDEST {
            return Err(device(too_old("libamdhip64.so.7", version)));
        }
        // SAFETY: initialises the library; no flags are defined.
        check(unsafe { (table.hipInit)(0) }).map_err(|e| {
            device(format!(
                "HIP does not start: {e} ({}; may this user open /dev/kfd and /dev/dri/renderD*?)",
                topology::in_words(&topology::nodes())
            ))
        })?;
        listen(&library).map_err(device)?;
        // Never unloaded.
        std::mem::forget(library);
        Ok(Self { version })
    }

    /// How many devices this process may see.
    pub(super) fn devices(&self) -> Result<i32, HipError> {
        let mut count = 0;
        // SAFETY: writes one integer.
        unsafe { call!(hipGetDeviceCount(&mut count)) }?;
        Ok(count)
    }

    /// Its version for people, such as `7.1.52802`.
    pub(super) fn release(&self) -> String {
        release(self.version)
    }
}

fn release(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

fn load() -> Result<libloading::Library, Fault> {
    let open = |name: &CStr| {
        // SAFETY: loads HIP by its well-known name, which runs its constructors, as any program that uses the GPU does.
        unsafe { libloading::Library::new(name.to_string_lossy().as_ref()) }
    };
    match open(sys::LIBRARY).or_else(|why| open(BESIDE).map_err(|_| why)) {
        Ok(library) => Ok(library),
        Err(why) => {
            let said = why.source().map(ToString::to_string).unwrap_or_default();
            let why = match said.is_empty() || said.contains("No such file") {
                true => older().unwrap_or_else(|| "libamdhip64.so.7 was not found".to_owned()),
                false => format!("libamdhip64.so.7 could not be loaded ({said})"),
            };
            Err(device(format!(
                "{why}, {}: install ROCm 7.1 or newer, make its library known to the loader (ldconfig or \
                 LD_LIBRARY_PATH), or run with --device cpu",
                topology::in_words(&topology::nodes())
            )))
        }
    }
}

/// What to say if only an older library is here. Nothing but its version is asked for.
fn older() -> Option<String> {
    OLDER.iter().find_map(|name| {
        // SAFETY: loads an older HIP by its well-known name, as any program that uses the GPU would.
        let library = unsafe { libloading::Library::new(*name) }.ok()?;
        let ask = find(&library, c"hipRuntimeGetVersion")?;
        // SAFETY: the function has had this signature in all versions, and writes one integer.
        let version = unsafe {
            let ask: unsafe extern "C" fn(*mut i32) -> sys::hipError_t = std::mem::transmute(ask);
            let mut version = 0;
            (ask(&mut version) == sys::hipSuccess).then_some(version)
        };
        // What its constructors left behind may still be used.
        std::mem::forget(library);
        Some(too_old(name, version?))
    })
}

fn too_old(name: &str, version: i32) -> String {
    format!("{name} is of HIP {}, Pappus needs 7.1", release(version))
}

/// Where a function of the library or of one that it is linked to lies.
fn find(library: &libloading::Library, name: &CStr) -> Option<*const c_void> {
    // SAFETY: only the address is taken; who calls it knows the signature, and keeps the library loaded.
    unsafe {
        let found = library.get::<*const c_void>(name.to_bytes_with_nul()).ok()?;
        Some(found.try_as_raw_ptr()?.cast_const().cast())
    }
}

/// Has page faults and resets reported to this process instead of ending it.
fn listen(library: &libloading::Library) -> Result<(), String> {
    const NAME: &CStr = c"hsa_amd_register_system_event_handler";
    let found = find(library, NAME).or_else(|| {
        // SAFETY: the library below HIP, which HIP has loaded by now.
        let below = unsafe { libloading::Library::new("libhsa-runtime64.so.1") }.ok()?;
        let found = find(&below, NAME);
        std::mem::forget(below);
        found
    });
    let found = found.ok_or("libhsa-runtime64.so.1 tells of no faults: install ROCm 7.1 or newer")?;
    // SAFETY: the function of this name has this type (`hsa_ext_amd.h`), and the handler lives for ever.
    let status = unsafe {
        let register: sys::RegisterSystemEventHandler = std::mem::transmute(found);
        register(fault::handler, std::ptr::null_mut())
    };
    match status {
        sys::HSA_STATUS_SUCCESS => Ok(()),
        status => Err(format!("libhsa-runtime64.so.1 does not tell of faults: status {status:#x}")),
    }
}

pub(super) fn device(message: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Device, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_rocm_writes_them() {
        assert_eq!(release(70_152_802), "7.1.52802");
        assert_eq!(release(50_221_153), "5.2.21153");
        assert_eq!(
            too_old("libamdhip64.so.5", 50_221_153),
            "libamdhip64.so.5 is of HIP 5.2.21153, Pappus needs 7.1"
        );
    }
}
