//! What the management library answers and the driver does not, without a context: how much of a device's memory is in use by all
//! processes, and what a device measures of itself.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;
use pappus_protocol::from_worker::Reading;
use pappus_protocol::{Fault, FaultCode};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlUtilization_t`, in per cent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
/// A function that writes one answer about a device.
type Ask<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_int;

/// The library's functions. One that an older library lacks is none.
#[derive(Clone, Copy)]
struct Nvml {
    by_uuid: ByUuid,
    memory: Option<Ask<Memory>>,
    energy_mj: Option<Ask<u64>>,
    power_mw: Option<Ask<c_uint>>,
    utilization: Option<Ask<Utilization>>,
}

impl Nvml {
    /// The library, initialised; none where it is missing.
    fn get() -> Option<Self> {
        static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
        *NVML.get_or_init(Self::open)
    }

    fn open() -> Option<Self> {
        // SAFETY: the driver's own library by its well-known name, which is never unloaded; signatures as in nvml.h, of which
        // `nvmlInit_v2` takes no arguments.
        unsafe {
            let library: &Library = Box::leak(Box::new(Library::new("libnvidia-ml.so.1").ok()?));
            (library.get::<Init>(b"nvmlInit_v2\0").ok()?() == 0).then_some(())?;
            Some(Self {
                by_uuid: *library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?,
                memory: library.get(b"nvmlDeviceGetMemoryInfo\0").ok().map(|f| *f),
                energy_mj: library.get(b"nvmlDeviceGetTotalEnergyConsumption\0").ok().map(|f| *f),
                power_mw: library.get(b"nvmlDeviceGetPowerUsage\0").ok().map(|f| *f),
                utilization: library.get(b"nvmlDeviceGetUtilizationRates\0").ok().map(|f| *f),
            })
        }
    }

    fn device(&self, uuid: &str) -> Option<Device> {
        let uuid = CString::new(uuid).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: reads a text that ends with a zero, and writes a handle.
        (unsafe { (self.by_uuid)(uuid.as_ptr(), &mut handle) } == 0).then_some(Device(handle))
    }

    fn reading(&self, uuid: &str) -> Reading {
        let Some(device) = self.device(uuid) else { return Reading::default() };
        let utilization = device.ask(self.utilization);
        Reading {
            energy_mj: device.ask(self.energy_mj),
            power_mw: device.ask(self.power_mw),
            busy_percent: utilization.map(|percent| percent.gpu),
            memory_busy_percent: utilization.map(|percent| percent.memory),
        }
    }
}

/// The library's handle of a device, which stays good.
struct Device(*mut c_void);

impl Device {
    /// None where the library lacks the function, or the device the answer.
    fn ask<T: Default>(&self, function: Option<Ask<T>>) -> Option<T> {
        let mut answer = T::default();
        // SAFETY: the handle is the library's own, and so is the function, which writes one `T`.
        (unsafe { function?(self.0, &mut answer) } == 0).then_some(answer)
    }
}

fn memory(uuid: &str) -> Option<Memory> {
    let nvml = Nvml::get()?;
    nvml.device(uuid)?.ask(nvml.memory)
}

/// Bytes in use.
pub(super) fn used_bytes(uuid: &str) -> Option<u64> {
    memory(uuid).map(|memory| memory.used)
}

/// Bytes that are free.
pub(super) fn free_bytes(uuid: &str) -> Option<u64> {
    memory(uuid).map(|memory| memory.free)
}

/// What each device measures of itself; an error where the library is missing.
pub(super) fn readings(uuids: &[String]) -> Result<Vec<Reading>, Fault> {
    let nvml = Nvml::get().ok_or_else(|| {
        Fault::new(
            FaultCode::Device,
            "libnvidia-ml.so.1 is missing or does not start: it comes with the driver, and into a container with \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    })?;
    Ok(uuids.iter().map(|uuid| nvml.reading(uuid)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_SUPPORTED: c_int = 3;

    unsafe extern "C" fn by_uuid(uuid: *const c_char, device: *mut *mut c_void) -> c_int {
        // SAFETY: as the library's own function is called.
        unsafe {
            *device = std::ptr::dangling_mut();
            if std::ffi::CStr::from_ptr(uuid) == c"GPU-1" { 0 } else { NOT_SUPPORTED }
        }
    }

    unsafe extern "C" fn answers<T: From<u16>>(_: *mut c_void, answer: *mut T) -> c_int {
        // SAFETY: as the library's own functions are called.
        unsafe { *answer = T::from(700) };
        0
    }

    unsafe extern "C" fn knows_not<T>(_: *mut c_void, _: *mut T) -> c_int {
        NOT_SUPPORTED
    }

    impl From<u16> for Utilization {
        fn from(gpu: u16) -> Self {
            Self { gpu: gpu.into(), memory: 3 }
        }
    }

    const ALL: Nvml = Nvml {
        by_uuid,
        memory: None,
        energy_mj: Some(answers),
        power_mw: Some(answers),
        utilization: Some(answers),
    };

    #[test]
    fn what_the_library_or_the_device_does_not_know_is_none() {
        let all = Reading {
            energy_mj: Some(700),
            power_mw: Some(700),
            busy_percent: Some(700),
            memory_busy_percent: Some(3),
        };
        assert_eq!(ALL.reading("GPU-1"), all);
        assert_eq!(Nvml { energy_mj: None, ..ALL }.reading("GPU-1"), Reading { energy_mj: None, ..all });
        let idle = Nvml { power_mw: Some(knows_not), utilization: Some(knows_not), ..ALL };
        assert_eq!(idle.reading("GPU-1"), Reading { energy_mj: Some(700), ..Reading::default() });
        for unknown in ["GPU-2", "MIG-1", "GPU-1\0"] {
            assert_eq!(ALL.reading(unknown), Reading::default(), "{unknown}");
        }
    }
}
