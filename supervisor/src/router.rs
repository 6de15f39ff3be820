//! Which device a call goes to: the least loaded one of those that have machine code and memory for it. Loads are those
//! that devices publish after each decision; no scheduler is locked.

use std::sync::Arc;

use bytesize::ByteSize;

use crate::device::Device;
use crate::function::Loaded;
use crate::refusal::{Reason, Refusable};

/// The devices that calls are routed to.
#[derive(Debug)]
pub struct Router {
    devices: Vec<Arc<Device>>,
}

/// Why no device is found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// None has machine code.
    #[error("no device here has machine code for it: add it again")]
    NoCode,
    /// None has the memory.
    #[error(
        "the call needs {} of device memory, a device has at most {} for one call: start the supervisor with more, \
         e.g. --device cpu:memory=2GiB",
        size(*.needs),
        size(*.most)
    )]
    TooLarge {
        /// Bytes that the call needs.
        needs: u64,
        /// The most that a device with machine code for it has.
        most: u64,
    },
}

/// Exact, since what is lacking may be less than the unit shows.
fn size(bytes: u64) -> String {
    format!("{bytes} bytes ({})", ByteSize::b(bytes).display().iec())
}

impl Refusable for RouteError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoCode => Reason::Unsupported,
            Self::TooLarge { .. } => Reason::OutOfMemory,
        }
    }
}

impl Router {
    /// To these devices.
    pub fn new(devices: Vec<Arc<Device>>) -> Self {
        Self { devices }
    }

    /// The device for a call of a function that needs so much device memory, if need be all of it.
    pub fn route(&self, function: &Loaded, needs: u64) -> Result<&Arc<Device>, RouteError> {
        let runs_on = |device: &&Arc<Device>| function.runs_on(device.config.kind, &device.config.arch);
        choose(self.devices.iter().filter(runs_on), |d| d.largest_call_bytes(), |d| d.load(), needs)
    }
}

/// The least loaded of these that has the memory; of equals the first.
fn choose<T>(
    able: impl Iterator<Item = T> + Clone,
    most_bytes: impl Fn(&T) -> u64,
    load: impl Fn(&T) -> u64,
    needs: u64,
) -> Result<T, RouteError> {
    let chosen = able.clone().filter(|device| most_bytes(device) >= needs).min_by_key(load);
    let most = || able.map(|device| most_bytes(&device)).max();
    chosen.ok_or_else(|| most().map_or(RouteError::NoCode, |most| RouteError::TooLarge { needs, most }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes among devices of (name, most bytes, load).
    fn route(devices: &[(&'static str, u64, u64)], needs: u64) -> Result<&'static str, RouteError> {
        choose(devices.iter(), |d| d.1, |d| d.2, needs).map(|device| device.0)
    }

    #[test]
    fn the_least_loaded_device_with_the_memory_gets_the_call() {
        let devices = [("busy", 100, 9), ("small", 10, 0), ("idle", 100, 1), ("also idle", 100, 1)];
        assert_eq!(route(&devices, 50), Ok("idle"));
        assert_eq!(route(&devices, 10), Ok("small"));
    }

    #[test]
    fn a_call_that_no_device_can_run_is_told_why() {
        assert_eq!(
            route(&[("a", 10, 0), ("b", 30, 0)], 31),
            Err(RouteError::TooLarge { needs: 31, most: 30 })
        );
        assert_eq!(route(&[], 0), Err(RouteError::NoCode));
        let why = RouteError::TooLarge { needs: 31, most: 30 };
        assert_eq!(why.reason(), Reason::OutOfMemory);
        let why = RouteError::TooLarge { needs: 900 << 20, most: 256 << 20 };
        let words = "needs 943718400 bytes (900.0 MiB) of device memory, a device has at most 268435456 bytes (256.0 MiB)";
        assert!(why.to_string().contains(words), "{why}");
    }
}
