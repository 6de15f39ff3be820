//! Which device a call goes to, of those that have machine code and memory for it: where its domain is at home, unless
//! that costs more than to go elsewhere ([`homes`](super::homes)). No scheduler is locked.

use std::sync::Arc;

use bytesize::ByteSize;
use pappus_protocol::now_ns;

use super::homes::Candidate;
use super::routed::{Routed, SharedHomes};
use crate::function::Loaded;
use crate::ids::FunctionId;
use crate::refusal::{Reason, Refusable};
use crate::schedule::Domain;
use crate::state_room::DeviceMemory;

/// A device, as far as it matters to where a call goes.
pub trait Destination {
    /// True if it has machine code for a function.
    fn runs(&self, function: &Loaded) -> bool;

    /// The most device memory that a call can have: all but what processes take.
    fn largest_call_bytes(&self) -> u64;

    /// True if the device has no process, and the last one that was started did not get ready.
    fn is_lost(&self) -> bool;

    /// True if the state of a session is there.
    fn has(&self, state: &DeviceMemory) -> bool;

    /// What a call of a function finds there.
    fn candidate(&self, at: usize, function: &Loaded) -> Candidate;
}

/// The devices that calls are routed to.
#[derive(Debug)]
pub struct Router<D> {
    devices: Vec<Arc<D>>,
    homes: Arc<SharedHomes>,
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

impl<D: Destination> Router<D> {
    /// To these devices.
    pub fn new(devices: Vec<Arc<D>>) -> Self {
        Self { homes: SharedHomes::new(devices.len()), devices }
    }

    /// The device for a call of a function that needs so much device memory, if need be all of it: the one that has the call's state,
    /// if any has. Where there are several, what comes with it is to be kept while the call waits and runs.
    pub fn route(
        &self,
        domain: Domain,
        function: &Loaded,
        needs: u64,
        state: Option<&DeviceMemory>,
    ) -> Result<(&Arc<D>, Option<Routed>), RouteError> {
        let has_state = |at: usize| state.is_none_or(|state| self.devices[at].has(state));
        let able = |at: usize| self.candidate(at, function, needs).filter(|_| has_state(at));
        let none = || {
            let most = self.devices.iter().filter(|device| device.runs(function));
            let most = most.map(|device| device.largest_call_bytes()).max();
            most.map_or(RouteError::NoCode, |most| RouteError::TooLarge { needs, most })
        };
        if let [only] = &self.devices[..] {
            return able(0).map(|_| (only, None)).ok_or_else(none);
        }
        // A device that is lost gets calls only if no other one can run them.
        let sound = |at: usize| able(at).filter(|_| !self.devices[at].is_lost());
        let routed = self.homes.route(now_ns, domain, function.id, &sound);
        let routed =
            routed.or_else(|| self.homes.route(now_ns, domain, function.id, &able)).ok_or_else(none)?;
        Ok((&self.devices[routed.device()], Some(routed)))
    }

    /// True if another device than `at` could run a call now.
    pub fn has_other(&self, at: usize, function: &Loaded, needs: u64) -> bool {
        (0..self.devices.len()).any(|other| self.other(at, other, function, needs).is_some())
    }

    /// The new device of a call that waits on a lost one; none if no other device can run the call.
    pub fn elsewhere(
        &self,
        at: usize,
        domain: Domain,
        function: &Loaded,
        needs: u64,
    ) -> Option<(&Arc<D>, Routed)> {
        let able = |other: usize| self.other(at, other, function, needs);
        let routed = self.homes.route(now_ns, domain, function.id, &able)?;
        Some((&self.devices[routed.device()], routed))
    }

    fn other(&self, at: usize, other: usize, function: &Loaded, needs: u64) -> Option<Candidate> {
        let is_sound = other != at && !self.devices[other].is_lost();
        self.candidate(other, function, needs).filter(|_| is_sound)
    }

    fn candidate(&self, at: usize, function: &Loaded, needs: u64) -> Option<Candidate> {
        let device = &self.devices[at];
        let is_able = device.runs(function) && device.largest_call_bytes() >= needs;
        is_able.then(|| device.candidate(at, function))
    }

    /// A function is gone.
    pub fn forget(&self, function: FunctionId) {
        self.homes.forget(function);
    }
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
