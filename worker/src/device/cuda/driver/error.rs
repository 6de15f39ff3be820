//! Results of the driver as text, and whether kernels can still run after them.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

use crate::device::gpu::driver::DriverError;

/// A result of the driver other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaError(pub(super) CUresult);

/// Turns a result into one that can be passed on.
pub(crate) fn check(result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(CudaError(error)),
    }
}

impl CudaError {
    /// True if this is no error: the stream or event is not over yet.
    pub fn is_not_ready(self) -> bool {
        self.0 == CUresult::CUDA_ERROR_NOT_READY
    }
}

impl DriverError for CudaError {
    fn out_of_memory() -> Self {
        Self(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn is_out_of_memory(self) -> bool {
        self.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }

    fn kernel_cause(self) -> Option<&'static str> {
        use CUresult::*;
        Some(match self.0 {
            CUDA_ERROR_ILLEGAL_ADDRESS => "it accessed an address that is not its own",
            CUDA_ERROR_MISALIGNED_ADDRESS => {
                "it accessed an address that is not a multiple of the access's size"
            }
            CUDA_ERROR_ILLEGAL_INSTRUCTION => "it reached an illegal instruction or a trap",
            CUDA_ERROR_INVALID_ADDRESS_SPACE => "it used an address of another address space",
            CUDA_ERROR_INVALID_PC => "it jumped outside of its code",
            CUDA_ERROR_HARDWARE_STACK_ERROR => "its stack overflowed or was corrupted",
            CUDA_ERROR_ASSERT => "an assertion in it failed",
            CUDA_ERROR_LAUNCH_FAILED => "it trapped or failed while running",
            CUDA_ERROR_LAUNCH_TIMEOUT => "it ran longer than the driver allows",
            _ => return None,
        })
    }

    fn is_fatal(self) -> bool {
        use CUresult::*;
        self.kernel_cause().is_some()
            || matches!(
                self.0,
                CUDA_ERROR_ECC_UNCORRECTABLE
                    | CUDA_ERROR_NVLINK_UNCORRECTABLE
                    | CUDA_ERROR_DEVICE_UNAVAILABLE
                    | CUDA_ERROR_CONTEXT_IS_DESTROYED
                    | CUDA_ERROR_MPS_CLIENT_TERMINATED
                    | CUDA_ERROR_MPS_RPC_FAILURE
                    | CUDA_ERROR_EXTERNAL_DEVICE
                    | CUDA_ERROR_DEINITIALIZED
                    | CUDA_ERROR_UNKNOWN
            )
    }
}

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut name, mut words) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both calls only store pointers to constant strings of the library, or null.
        let _ =
            unsafe { (sys::cuGetErrorName(self.0, &mut name), sys::cuGetErrorString(self.0, &mut words)) };
        for (text, before) in [(words, ""), (name, " (")] {
            if !text.is_null() {
                // SAFETY: the library's constant strings end with a zero byte and live for ever.
                let text = unsafe { CStr::from_ptr(text) };
                write!(f, "{before}{}", text.to_string_lossy())?;
            }
        }
        write!(f, ", error {})", self.0 as u32)
    }
}
