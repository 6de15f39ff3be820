//! Variables of fenced code: they lie in the window of the call, where they begin as the module says and end as zeros.

use pappus_fence::window::VARIABLES_BEGIN;
use pappus_protocol::{Fault, FaultCode};

use super::driver::{Code, DeviceBuffer, Driver, DriverError, Stream};
use super::windows::VARIABLES_BYTES;

/// The variables of a module.
#[derive(Debug)]
pub(super) struct Variables<D: Driver> {
    /// Their first bytes before each call, on the device; none if all are zero.
    initial: Option<(D::DeviceBuffer, u64)>,
}

impl<D: Driver> Variables<D> {
    /// None if the code has no variables in its window.
    pub(super) fn load(driver: &D, stream: &D::Stream, code: &Code) -> Result<Option<Self>, Fault> {
        let bytes = code.initial.len() as u64;
        if code.variables_bytes > VARIABLES_BYTES || bytes > code.variables_bytes {
            let message = format!(
                "its variables have {} bytes, a window has room for {VARIABLES_BYTES}",
                code.variables_bytes
            );
            return Err(Fault::new(FaultCode::Load, message));
        }
        if code.variables_bytes == 0 {
            return Ok(None);
        }
        let keep = || {
            if bytes == 0 {
                return Ok(None);
            }
            let buffer = driver.allocate_device(bytes)?;
            // SAFETY: the bytes are this many, and are read when `synchronize` returns.
            unsafe { stream.copy_in(buffer.address(), code.initial.as_ptr(), bytes) }?;
            stream.synchronize().map(|()| Some((buffer, bytes)))
        };
        let initial = keep().map_err(|e: D::Error| e.fault("keeping a module's variables"))?;
        Ok(Some(Self { initial }))
    }

    /// Puts them into a window, where they are zero.
    pub(super) fn initialise(&self, stream: &D::Stream, window: u64) -> Result<(), D::Error> {
        let Some((buffer, bytes)) = &self.initial else { return Ok(()) };
        stream.copy(window + u64::from(VARIABLES_BEGIN), buffer.address(), *bytes)
    }

    /// Clears what is kept of them.
    pub(super) fn wipe(&self, stream: &D::Stream) -> Result<(), D::Error> {
        let Some((buffer, bytes)) = &self.initial else { return Ok(()) };
        stream.fill(buffer.address(), 0, *bytes)
    }
}
