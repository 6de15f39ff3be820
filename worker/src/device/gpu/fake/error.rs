//! What the driver for tests fails with.

use std::fmt;

use crate::device::gpu::driver::DriverError;

/// Errors of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::gpu) enum FakeError {
    OutOfMemory,
    /// The call is refused, nothing else happens.
    Refused,
    /// A kernel did something illegal.
    Kernel,
}

impl fmt::Display for FakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl DriverError for FakeError {
    fn out_of_memory() -> Self {
        Self::OutOfMemory
    }

    fn is_out_of_memory(self) -> bool {
        self == Self::OutOfMemory
    }

    fn kernel_cause(self) -> Option<&'static str> {
        (self == Self::Kernel).then_some("it went astray")
    }

    fn is_fatal(self) -> bool {
        self == Self::Kernel
    }
}
