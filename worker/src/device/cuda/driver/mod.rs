//! The CUDA driver, found at run time, in three layers: cudarc's raw declarations, results as
//! [`CudaError`], and owning types whose destructors give back what they own.
//!
//! - [`error`]: results of the driver as text.
//! - [`context`]: the device and the process's one context on it.
//! - [`stream`]: work in the order of submission; events; graphs.
//! - [`memory`]: physical memory, address ranges, pinned host memory.
//! - [`module`]: machine code, kernels, globals; the linker.
//! - [`tensor_map`]: arrays as kernels copy them by boxes.

pub(super) mod context;
pub(super) mod error;
pub(super) mod memory;
pub(super) mod module;
pub(super) mod stream;
pub(super) mod tensor_map;

use std::error::Error;

use cudarc::driver::sys;
use pappus_protocol::{Fault, FaultCode};

pub(super) use context::{Context, DeviceInfo};
pub(super) use error::{CudaError, check};
pub(super) use stream::{Event, GraphExec, GraphNode, Stream};

/// The oldest driver that tells the layout of kernels' parameters and their names: R550, CUDA 12.4.
const OLDEST: i32 = 12_040;

/// The library, loaded and initialised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library {
    /// The CUDA version that it speaks, as 1000 × major + 10 × minor.
    pub(super) version: i32,
}

impl Library {
    /// Finds and initialises the driver; an error says what to install.
    pub(super) fn open() -> Result<Self, Fault> {
        // SAFETY: loads the library by its well-known names, which runs its constructors, as any program
        // that uses the GPU does.
        if !unsafe { sys::is_culib_present() } {
            return Err(device(format!(
                "libcuda.so.1 {}: install the NVIDIA driver (R550 or newer), make its library known to the loader \
                 (ldconfig or LD_LIBRARY_PATH), or run with --device cpu",
                why_absent()
            )));
        }
        let mut version = 0;
        // SAFETY: the library is there; the call writes one integer and may precede initialisation.
        check(unsafe { sys::cuDriverGetVersion(&mut version) })
            .map_err(|e| device(format!("the NVIDIA driver does not tell its version: {e}")))?;
        if version < OLDEST {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(device(format!(
                "the NVIDIA driver speaks CUDA {major}.{minor}, Pappus needs 12.4: install driver R550 or newer"
            )));
        }
        // SAFETY: initialises the library; no arguments.
        check(unsafe { sys::cuInit(0) }).map_err(|e| {
            device(format!(
                "the NVIDIA driver does not start: {e} (is there a GPU, and may this user open /dev/nvidia*?)"
            ))
        })?;
        Ok(Self { version })
    }

    /// How many devices this process may see.
    pub(super) fn devices(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: writes one integer.
        check(unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(count)
    }

    /// The kernel driver's version such as `580.159.04`, where the host tells it.
    pub(super) fn release() -> Option<String> {
        let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
        let number = |word: &&str| {
            word.split('.').count() >= 2 && word.split('.').all(|part| part.parse::<u32>().is_ok())
        };
        text.split_whitespace().find(number).map(str::to_owned)
    }
}

/// The loader's error for a library that it did not load.
fn why_absent() -> String {
    // SAFETY: loading runs the constructors of the driver's own library, as any program that uses the GPU does.
    let tried = unsafe { libloading::Library::new("libcuda.so.1") };
    let said = tried.err().and_then(|e| Some(e.source()?.to_string()));
    match said.filter(|said| !said.contains("No such file")) {
        Some(said) => format!("could not be loaded ({said})"),
        None => "was not found".to_owned(),
    }
}

fn device(message: impl Into<String>) -> Fault {
    Fault::new(FaultCode::Device, message)
}
