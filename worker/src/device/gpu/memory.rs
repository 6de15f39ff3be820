//! Device memory of a serving worker: what each lane was lent, mapped into a range of addresses that the lane keeps,
//! and weights, which are mapped read-only.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::{Fault, FaultCode};
use pappus_shmem::{Mapping, ValidatedMemfd};

use super::driver::{Access, Driver, DriverError, Memory, Stream};
use super::layout::PINNED_WEIGHTS_BYTES;
use super::ranges::{AddressRange, Window};
use crate::device::Weights;

/// How long to wait for memory that another worker is about to give back.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Creates memory that the supervisor lent to this worker; the driver may still be taking it back from another
/// process.
fn create<D: Driver>(driver: &D, bytes: u64, export: bool) -> Result<D::Memory, Fault> {
    let until = Instant::now() + PATIENCE;
    loop {
        match driver.create_memory(bytes, export) {
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
}

impl<D: Driver> LaneMemory<D> {
    /// Addresses for all of the device's memory, none of it mapped.
    pub(super) fn reserve(driver: &D) -> Result<Self, Fault> {
        let failed = |e: D::Error| e.fault("reserving addresses");
        let granularity = driver.granularity().map_err(failed)?;
        let bytes = driver.properties().memory_bytes.next_multiple_of(granularity.max(GPU_PAGE_BYTES));
        let range = AddressRange::reserve(driver, bytes).map_err(failed)?;
        Ok(Self { range, granularity })
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
        let missing = bytes.next_multiple_of(self.granularity).saturating_sub(self.bytes());
        if missing == 0 {
            return Ok(());
        }
        let failed = |e: D::Error| e.fault("mapping what the lane was lent");
        let memory = create(driver, missing, false)?;
        let at = self.range.push(driver, memory, Access::ReadWrite).map_err(failed)?;
        let zeroed = stream.fill(at, 0, missing).and_then(|()| driver.synchronize());
        zeroed.map_err(|e| {
            // Another tenant's bytes may be in it.
            self.range.pop();
            failed(e)
        })
    }

    /// Unmaps all of it; nothing that runs uses it.
    pub(super) fn unmap(&mut self) {
        while self.range.pop().is_some() {}
    }
}

/// A function's weights, mapped read-only.
#[derive(Debug)]
pub(super) struct MappedWeights<D: Driver> {
    range: AddressRange<D>,
    export: Option<(OwnedFd, u64)>,
}

impl<D: Driver> MappedWeights<D> {
    fn map(driver: &D, memory: D::Memory, export: Option<(OwnedFd, u64)>) -> Result<Self, D::Error> {
        let mut range = AddressRange::reserve(driver, memory.bytes())?;
        range.push(driver, memory, Access::Read)?;
        Ok(Self { range, export })
    }

    /// Their address.
    pub(super) fn base(&self) -> u64 {
        self.range.base()
    }

    /// The descriptor for other workers, once.
    pub(super) fn take_export(&mut self) -> Option<(OwnedFd, u64)> {
        self.export.take()
    }
}

/// Loads weights and keeps the host copies pinned.
#[derive(Debug)]
pub(super) struct WeightsLoader<D: Driver> {
    /// Most recently used last.
    pinned: Vec<HostCopy<D>>,
}

impl<D: Driver> Default for WeightsLoader<D> {
    fn default() -> Self {
        Self { pinned: Vec::new() }
    }
}

/// A host copy that the device can copy from by itself.
#[derive(Debug)]
struct HostCopy<D: Driver> {
    inode: u64,
    // Before the mapping that it refers to.
    pinned: Option<D::Pinned>,
    mapping: Mapping,
}

impl<D: Driver> WeightsLoader<D> {
    /// Unmaps all host copies.
    pub(super) fn forget(&mut self) {
        self.pinned.clear();
    }

    /// Brings weights to the device, or maps them where they are there already.
    pub(super) fn load(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        weights: Weights,
    ) -> Result<MappedWeights<D>, Fault> {
        match weights {
            Weights::Device { descriptor, bytes } => {
                // The descriptor stays open until the memory is mapped.
                let memory = driver.import_memory(descriptor.as_fd(), bytes);
                let memory = memory.map_err(|e| e.fault("importing weights"))?;
                MappedWeights::map(driver, memory, None).map_err(|e| e.fault("mapping weights"))
            }
            Weights::Host { memfd, export } => self.copy(driver, stream, memfd, export),
        }
    }

    /// Copies a host copy to fresh device memory, which is writable only while this lasts.
    fn copy(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        memfd: ValidatedMemfd,
        export: bool,
    ) -> Result<MappedWeights<D>, Fault> {
        let failed = |e: D::Error| e.fault("copying weights");
        let granularity = driver.granularity().map_err(failed)?;
        let bytes = memfd.bytes().next_multiple_of(granularity);
        let memory = create(driver, bytes, export)?;
        self.host_copy(driver, memfd)?;
        let newest = || Fault::new(FaultCode::Internal, "no host copy");
        let source = &self.pinned.last().ok_or_else(newest)?.mapping;
        let length = source.bytes();
        let from = source.range(0, length).map_err(|e| Fault::new(FaultCode::Internal, e.to_string()))?;
        let window = Window::open(driver, &memory).map_err(failed)?;
        // SAFETY: the mapping is `length` long and stays until the copy is over: `synchronize` follows.
        let submitted = unsafe { stream.copy_in(window.base(), from, length) }
            .and_then(|()| stream.fill(window.base() + length, 0, bytes - length));
        // The final mapping and the export are made while the copy runs.
        let mapped = submitted.and_then(|()| {
            let exported = if export { Some((memory.export()?, bytes)) } else { None };
            MappedWeights::map(driver, memory, exported)
        });
        // After a failure, too, the window must not be in use when it is dropped.
        driver.synchronize().map_err(failed)?;
        drop(window);
        mapped.map_err(failed)
    }

    /// A memfd's mapping, pinned if the device can do that, kept for the next time.
    /// It is the newest one.
    fn host_copy(&mut self, driver: &D, memfd: ValidatedMemfd) -> Result<(), Fault> {
        let failed = |e: std::io::Error| Fault::new(FaultCode::Load, format!("mapping weights: {e}"));
        let file = std::fs::File::from(memfd.as_fd().try_clone_to_owned().map_err(failed)?);
        let inode = file.metadata().map_err(failed)?.ino();
        let known = self.pinned.iter().position(|copy| copy.inode == inode);
        let copy = match known {
            Some(position) => self.pinned.remove(position),
            None => {
                let mapping = Mapping::read_only(&memfd).map_err(failed)?;
                let fits = driver.properties().pins_read_only && mapping.bytes() <= PINNED_WEIGHTS_BYTES;
                // A mapping that cannot be pinned is copied at the speed of ordinary memory.
                // SAFETY: the mapping is this long and is dropped after the pin (`HostCopy`).
                let pinned = fits.then(|| unsafe { driver.pin(mapping.base(), mapping.bytes(), true) });
                HostCopy { inode, pinned: pinned.and_then(Result::ok), mapping }
            }
        };
        self.pinned.retain(|copy| copy.pinned.is_some());
        let mut kept: u64 = copy.mapping.bytes();
        kept += self.pinned.iter().map(|copy| copy.mapping.bytes()).sum::<u64>();
        while kept > PINNED_WEIGHTS_BYTES && !self.pinned.is_empty() {
            kept -= self.pinned.remove(0).mapping.bytes();
        }
        self.pinned.push(copy);
        Ok(())
    }
}
