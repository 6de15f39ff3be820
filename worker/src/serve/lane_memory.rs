//! Device memory of lanes: mapped for the calls that need it, given back where the supervisor lends it to others.

use pappus_protocol::{Fault, FaultCode, FromWorker, LaneId};

use super::Server;
use crate::Error;
use crate::device::Device;

impl<D: Device> Server<D> {
    /// Lanes without calls give their memory back.
    pub(super) fn give_back_memory(&mut self, lanes: u64) -> Result<(), Error> {
        self.settle()?;
        for id in LaneId::first(self.lanes.len()).filter(|id| lanes >> id.get() & 1 == 1) {
            let lane = &self.lanes[id.index()];
            if lane.is_running() || lane.is_prepared() {
                return Err(Error::Unexpected("memory of a lane that has a call"));
            }
            if let Err(fault) = self.device.give_back(id) {
                return Err(if self.device.lost().is_some() { self.broken() } else { fault.into() });
            }
        }
        self.say_memory();
        Ok(())
    }

    /// Says how much device memory the lanes have.
    pub(super) fn say_memory(&mut self) {
        let bytes = LaneId::first(self.lanes.len()).map(|id| self.device.lane_bytes(id)).sum();
        self.outbox.push_from_worker(&FromWorker::Leased { bytes });
    }

    /// Maps what a call needs and its lane does not have yet: no call that could reach the new memory may run until it is zeroed.
    pub(super) fn grow(&mut self, id: LaneId, needed_bytes: u64) -> Result<(), Error> {
        if !self.device.are_shared() {
            self.drain()?;
        }
        let Err(fault) = self.device.grow(id, self.lanes[id.index()].memory_bytes) else { return Ok(()) };
        if self.device.lost().is_some() {
            return Err(self.broken());
        }
        let has = self.device.lane_bytes(id);
        let lent = self.lanes[id.index()].memory_bytes;
        crate::log(format_args!("lane {id} has {has} of {lent} bytes: {fault}"));
        if has < needed_bytes {
            let message =
                format!("{needed_bytes} bytes of device memory cannot be mapped: {}", fault.message);
            self.answer(id, Err(Fault::new(FaultCode::Exhausted, message)));
        }
        Ok(())
    }
}
