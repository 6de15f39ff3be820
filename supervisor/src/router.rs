//! Which device a call goes to, of those that have machine code and memory for it: where its domain is at home, unless
//! that costs more than to go elsewhere ([`placement`](crate::placement)). No scheduler is locked.

use std::sync::Arc;

use bytesize::ByteSize;
use pappus_protocol::now_ns;

use crate::call::Call;
use crate::device::Device;
use crate::function::Loaded;
use crate::ids::FunctionId;
use crate::placement::{Candidate, Placement, Routed};
use crate::refusal::{Reason, Refusable};
use crate::schedule::Domain;

/// How fast weights are copied to a GPU from pinned memory: 54 bytes in a nanosecond were measured on an H200.
const WEIGHTS_BYTES_PER_NS: u64 = 50;

/// The devices that calls are routed to.
#[derive(Debug, Clone)]
pub struct Router {
    devices: Vec<Arc<Device>>,
    placement: Arc<Placement>,
}

/// Why no device is found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// None has machine code.
    #[error("no device here has machine code for it: add it again")]
    NoCode,
    /// None has the memory.
    #[error(
        "the call needs {} of device memory, a device here has at most {} for one call: give it smaller inputs, or ask the \
         operator for more memory of a device",
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
        Self { placement: Placement::new(devices.len()), devices }
    }

    /// The device for a call of a function that needs so much device memory, if need be all of it. Where there are
    /// several, what comes with it is to be kept while the call waits and runs.
    pub fn route(
        &self,
        domain: Domain,
        function: &Loaded,
        needs: u64,
    ) -> Result<(&Arc<Device>, Option<Routed>), RouteError> {
        let has_code = |device: &Device| function.runs_on(device.config.kind, &device.config.arch);
        let able = |at: usize| {
            let device = &self.devices[at];
            let is_able = has_code(device) && device.largest_call_bytes() >= needs;
            is_able.then(|| candidate(at, device, function))
        };
        let none = || {
            let most = self.devices.iter().filter(|device| has_code(device)).map(|d| d.largest_call_bytes());
            most.max().map_or(RouteError::NoCode, |most| RouteError::TooLarge { needs, most })
        };
        if let [only] = &self.devices[..] {
            return able(0).map(|_| (only, None)).ok_or_else(none);
        }
        // A device that is lost gets calls only if no other one can run them.
        let sound = |at: usize| able(at).filter(|_| !self.devices[at].is_lost());
        let routed = self.placement.route(now_ns, domain, function.id, &sound);
        let routed =
            routed.or_else(|| self.placement.route(now_ns, domain, function.id, &able)).ok_or_else(none)?;
        Ok((&self.devices[routed.device()], Some(routed)))
    }

    /// True if another device than `at` could run the call now.
    pub fn has_other(&self, at: usize, call: &Call) -> bool {
        (0..self.devices.len()).any(|other| self.can_take(at, other, call))
    }

    /// The new device of a call that waits on a lost one; none if no other device can run the call. The call counts
    /// there from now on.
    pub fn elsewhere(&self, at: usize, call: &Call) -> Option<&Arc<Device>> {
        let function = &call.function;
        let able = |other: usize| {
            let device = &self.devices[other];
            self.can_take(at, other, call).then(|| candidate(other, device, function))
        };
        let routed = self.placement.route(now_ns, call.domain, function.id, &able)?;
        let to = &self.devices[routed.device()];
        // What is left of it counts where the call was.
        call.routed.iter().for_each(|own| own.swap(&routed));
        Some(to)
    }

    fn can_take(&self, at: usize, other: usize, call: &Call) -> bool {
        let device = &self.devices[other];
        other != at
            && !device.is_lost()
            && call.function.runs_on(device.config.kind, &device.config.arch)
            && device.largest_call_bytes() >= call.plan.pool_bytes
    }

    /// A function is gone.
    pub fn forget(&self, function: FunctionId) {
        self.placement.forget(function);
    }
}

fn candidate(at: usize, device: &Device, function: &Loaded) -> Candidate {
    let config = &device.config;
    let weights_ns = match config.kind.traits().has_own_memory {
        false => 0,
        true => function.weight_bytes.iter().sum::<u64>() / WEIGHTS_BYTES_PER_NS,
    };
    Candidate { device: at, lanes: device.lanes(), workers: device.workers(), weights_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_no_device_can_run_is_told_why() {
        let why = RouteError::TooLarge { needs: 31, most: 30 };
        assert_eq!(why.reason(), Reason::OutOfMemory);
        let why = RouteError::TooLarge { needs: 900 << 20, most: 256 << 20 };
        let words = "needs 943718400 bytes (900.0 MiB) of device memory, a device here has at most 268435456 bytes (256.0 MiB)";
        assert!(why.to_string().contains(words), "{why}");
    }
}
