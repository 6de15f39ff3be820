//! Device memory of lanes: what each was lent, mapped into a range of addresses that the lane keeps.

use std::time::{Duration, Instant};

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::{Fault, FaultCode};

use super::driver::{Access, Driver, DriverError, Stream};
use super::ranges::AddressRange;

/// How long to wait for memory that another worker is about to give back.
pub(super) const PATIENCE: Duration = Duration::from_millis(1000);

/// Creates memory that the supervisor lent to this worker. The driver may still be taking it back from another process, which
/// is waited for as long as `patience`.
fn create<D: Driver>(driver: &D, bytes: u64, patience: Duration) -> Result<D::Memory, Fault> {
    let until = Instant::now() + patience;
    loop {
        match driver.create_memory(bytes, false) {
            Ok(memory) => return Ok(memory),
            Err(e) if e.is_out_of_memory() && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e.fault(&format!("{bytes} bytes of device memory"))),
        }
    }
}

/// The memory of one lane. Its addresses never change, so what refers to them stays good when memory comes and goes.
#[derive(Debug)]
pub(super) struct LaneMemory<D: Driver> {
    range: AddressRange<D>,
    granularity: u64,
    /// How much of it was zeroed since it was mapped, from its start on: no kernel may run while that is less than all.
    zeroed_bytes: u64,
}

impl<D: Driver> LaneMemory<D> {
    /// Addresses for all of the device's memory, none of it mapped.
    pub(super) fn reserve(driver: &D) -> Result<Self, Fault> {
        let failed = |e: D::Error| e.fault("reserving addresses");
        let granularity = driver.granularity().map_err(failed)?;
        let bytes = driver.properties().memory_bytes.next_multiple_of(granularity.max(GPU_PAGE_BYTES));
        let range = AddressRange::reserve(driver, bytes).map_err(failed)?;
        Ok(Self { range, granularity, zeroed_bytes: 0 })
    }

    /// Addresses in a window, none of it mapped.
    pub(super) fn within(driver: &D, range: AddressRange<D>) -> Result<Self, D::Error> {
        Ok(Self { range, granularity: driver.granularity()?, zeroed_bytes: 0 })
    }

    /// How much there is.
    pub(super) fn bytes(&self) -> u64 {
        self.range.mapped_bytes()
    }

    /// Its first address.
    pub(super) fn base(&self) -> u64 {
        self.range.base()
    }

    /// Fills all of it with zeros.
    pub(super) fn clear(&self, stream: &D::Stream) -> Result<(), D::Error> {
        match self.bytes() {
            0 => Ok(()),
            bytes => stream.fill(self.range.base(), 0, bytes),
        }
    }

    /// Makes it at least `bytes` long, rounded up to the granularity. New memory is zeroed; until that is done, no
    /// kernel may run, on any lane.
    pub(super) fn grow(&mut self, driver: &D, stream: &D::Stream, bytes: u64) -> Result<(), Fault> {
        let before = self.bytes();
        self.map(driver, bytes, PATIENCE)?;
        let zeroed = self.zero(stream).and_then(|()| stream.synchronize());
        zeroed.map_err(|e| {
            // Another tenant's bytes may be in it.
            while self.bytes() > before && self.range.pop().is_some() {}
            e.fault("mapping what the lane was lent")
        })?;
        self.mark_zeroed();
        Ok(())
    }

    /// As [`LaneMemory::grow`], but zeroes nothing: [`LaneMemory::zero`] must come before any kernel of any lane. Memory that is
    /// not free yet is waited for as long as `patience`.
    pub(super) fn map(&mut self, driver: &D, bytes: u64, patience: Duration) -> Result<(), Fault> {
        let missing = bytes.next_multiple_of(self.granularity).saturating_sub(self.bytes());
        if missing == 0 {
            return Ok(());
        }
        let (needed, room) = (self.bytes() + missing, self.range.room_bytes());
        if needed > room {
            let message = format!("{needed} bytes for a lane, which has room for {room}");
            return Err(Fault::new(FaultCode::OutOfMemory, message));
        }
        let memory = create(driver, missing, patience)?;
        let pushed = self.range.push(driver, memory, Access::ReadWrite);
        pushed.map(drop).map_err(|e| e.fault("mapping what the lane was lent"))
    }

    /// Begins to zero what was mapped since [`LaneMemory::mark_zeroed`].
    pub(super) fn zero(&self, stream: &D::Stream) -> Result<(), D::Error> {
        match self.bytes() - self.zeroed_bytes {
            0 => Ok(()),
            new => stream.fill(self.range.base() + self.zeroed_bytes, 0, new),
        }
    }

    /// Notes that everything that is mapped is zeroed.
    pub(super) fn mark_zeroed(&mut self) {
        self.zeroed_bytes = self.bytes();
    }

    /// Unmaps all memory of the lane, which nothing running uses.
    pub(super) fn unmap(&mut self) {
        while self.range.pop().is_some() {}
        self.zeroed_bytes = 0;
    }
}
