//! Results of the driver as text, and whether kernels can still run after them.

use std::ffi::CStr;

use super::fault::{self, GpuEvent};
use super::table;
use crate::device::gpu::driver::DriverError;
use crate::device::hip::sys::{self, hipError_t};

/// A result of the driver other than success, with what happened on the GPU before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HipError {
    code: hipError_t,
    event: Option<GpuEvent>,
}

/// Turns a result into one that can be passed on.
pub(crate) fn check(result: hipError_t) -> Result<(), HipError> {
    match result {
        sys::hipSuccess => Ok(()),
        code => Err(HipError { code, event: fault::seen() }),
    }
}

impl HipError {
    /// The library was not opened.
    pub(super) const NOT_OPEN: Self = Self { code: sys::hipErrorNotInitialized, event: None };
    /// Machine code that no driver may see.
    pub(super) const INVALID_IMAGE: Self = Self { code: sys::hipErrorInvalidImage, event: None };

    /// True if this is no error: the stream or event is not over yet. Never true if the GPU has stopped.
    pub fn is_not_ready(self) -> bool {
        self.code == sys::hipErrorNotReady && self.event.is_none()
    }
}

impl DriverError for HipError {
    fn out_of_memory() -> Self {
        Self { code: sys::hipErrorOutOfMemory, event: None }
    }

    fn is_out_of_memory(self) -> bool {
        self.code == sys::hipErrorOutOfMemory && self.event.is_none()
    }

    fn kernel_cause(self) -> Option<&'static str> {
        if let Some(event) = self.event {
            return event.kernel_cause();
        }
        Some(match self.code {
            sys::hipErrorIllegalAddress => "it accessed an address that is not its own",
            sys::hipErrorAssert => "an assertion in it failed",
            sys::hipErrorLaunchFailure => "it trapped or failed while running",
            sys::hipErrorLaunchTimeOut => "it ran longer than the driver allows",
            _ => return None,
        })
    }

    fn is_fatal(self) -> bool {
        self.event.is_some()
            || self.kernel_cause().is_some()
            || matches!(
                self.code,
                sys::hipErrorDeinitialized
                    | sys::hipErrorNoDevice
                    | sys::hipErrorECCNotCorrectable
                    | sys::hipErrorContextIsDestroyed
                    | sys::hipErrorUnknown
                    | sys::hipErrorRuntimeMemory
                    | sys::hipErrorRuntimeOther
            )
    }
}

impl std::fmt::Display for HipError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(event) = self.event {
            write!(f, "{}, then ", event.in_words())?;
        }
        if let Some(table) = table() {
            // SAFETY: both calls only return pointers to constant strings of the library, or null.
            let texts = unsafe { [(table.hipGetErrorString)(self.code), (table.hipGetErrorName)(self.code)] };
            for (text, before) in texts.into_iter().zip(["", " ("]) {
                if !text.is_null() {
                    // SAFETY: the library's constant strings end with a zero byte and live for ever.
                    let text = unsafe { CStr::from_ptr(text) };
                    write!(f, "{before}{}", text.to_string_lossy())?;
                }
            }
            return write!(f, ", error {})", self.code);
        }
        write!(f, "error {}", self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: hipError_t, event: Option<GpuEvent>) -> HipError {
        HipError { code, event }
    }

    #[test]
    fn what_a_kernel_did_is_told_from_what_happened_to_it() {
        let plain = |code| error(code, None);
        assert!(plain(sys::hipErrorNotReady).is_not_ready() && !plain(sys::hipErrorNotReady).is_fatal());
        assert!(plain(sys::hipErrorOutOfMemory).is_out_of_memory());
        assert!(!plain(sys::hipErrorOutOfMemory).is_fatal() && !plain(sys::hipErrorInvalidValue).is_fatal());
        for code in [sys::hipErrorIllegalAddress, sys::hipErrorLaunchFailure, sys::hipErrorAssert] {
            assert!(plain(code).is_fatal() && plain(code).kernel_cause().is_some(), "{code}");
        }
        for code in [sys::hipErrorNoDevice, sys::hipErrorUnknown, sys::hipErrorECCNotCorrectable] {
            assert!(plain(code).is_fatal() && plain(code).kernel_cause().is_none(), "{code}");
        }
    }

    /// Where the runtime itself does not notice, work is "not ready" for ever.
    #[test]
    fn behind_an_event_nothing_is_merely_not_ready() {
        for code in [sys::hipErrorNotReady, sys::hipErrorOutOfMemory, sys::hipErrorUnknown] {
            let faulted = error(code, Some(GpuEvent::PageFault(1)));
            assert!(faulted.is_fatal() && !faulted.is_not_ready() && !faulted.is_out_of_memory());
            assert!(faulted.kernel_cause().is_some() && faulted.to_string().starts_with("page fault"));
            let reset = error(code, Some(GpuEvent::Reset));
            assert!(reset.is_fatal() && reset.kernel_cause().is_none());
        }
    }
}
