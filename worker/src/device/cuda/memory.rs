//! Device memory of a serving worker: the pool, which is its lease mapped into one range of addresses,
//! and weights, which are mapped read-only.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use pappus_protocol::{Fault, FaultCode};
use pappus_shmem::{Mapping, ValidatedMemfd};

use super::driver::memory::{Access, Physical, Pinned, Range, Window, granularity};
use super::driver::{Context, CudaError, Stream};
use super::layout::{LANE_ALIGN, PINNED_WEIGHTS_BYTES};
use crate::device::Weights;

/// How long to wait for memory that another worker is about to give back.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Memory that was promised to us but may still be on its way back from somebody else.
fn create(context: &Context, bytes: u64, export: bool) -> Result<Physical, Fault> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Physical::create(context.info.ordinal, bytes, export) {
            Ok(memory) => return Ok(memory),
            Err(e) if e.is_out_of_memory() && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e.fault(&format!("{bytes} bytes of device memory"))),
        }
    }
}

/// The pool: lanes side by side from its start on.
#[derive(Debug)]
pub(super) struct Pool {
    range: Range,
    granularity: u64,
    lanes: u64,
}

impl Pool {
    /// Addresses for all of the device's memory, none of it mapped.
    pub(super) fn reserve(context: &Context, lanes: usize) -> Result<Self, Fault> {
        let failed = |e: CudaError| e.fault("reserving addresses");
        let granularity = granularity(context.info.ordinal).map_err(failed)?;
        let bytes = context.info.memory_bytes.next_multiple_of(granularity.max(LANE_ALIGN));
        Ok(Self { range: Range::reserve(bytes).map_err(failed)?, granularity, lanes: lanes as u64 })
    }

    /// How much there is.
    pub(super) fn bytes(&self) -> u64 {
        self.range.mapped_bytes()
    }

    /// A lane's share.
    pub(super) fn lane_bytes(&self) -> u64 {
        pappus_protocol::device_memory::lane_bytes(
            pappus_protocol::Kind::Cuda,
            self.bytes(),
            self.lanes as u32,
        )
    }

    /// The address where calls of a lane have their memory; `wide` calls have all of it.
    pub(super) fn base(&self, lane: usize, wide: bool) -> u64 {
        self.range.base() + if wide { 0 } else { lane as u64 * self.lane_bytes() }
    }

    /// Fills all of it with zeros.
    pub(super) fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        match self.bytes() {
            0 => Ok(()),
            bytes => stream.fill(self.range.base(), 0, bytes),
        }
    }

    /// Makes it `bytes` long, rounded down to what the device can map; nothing runs. New memory is zeroed.
    pub(super) fn resize(&mut self, context: &Context, stream: &Stream, bytes: u64) -> Result<(), Fault> {
        let bytes = bytes / self.granularity * self.granularity;
        while self.bytes() > bytes {
            self.range.pop();
        }
        let missing = bytes - self.bytes();
        if missing > 0 {
            let failed = |e: CudaError| e.fault("mapping the lease");
            let memory = create(context, missing, false)?;
            let at = self.range.push(memory, Access::ReadWrite).map_err(failed)?;
            stream.fill(at, 0, missing).map_err(failed)?;
            context.synchronize().map_err(failed)?;
        }
        Ok(())
    }
}

/// A function's weights, mapped read-only.
#[derive(Debug)]
pub(super) struct MappedWeights {
    range: Range,
    export: Option<(OwnedFd, u64)>,
}

impl MappedWeights {
    fn map(memory: Physical, export: Option<(OwnedFd, u64)>) -> Result<Self, CudaError> {
        let mut range = Range::reserve(memory.bytes)?;
        range.push(memory, Access::Read)?;
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
#[derive(Debug, Default)]
pub(super) struct WeightsLoader {
    /// Most recently used last.
    pinned: Vec<HostCopy>,
}

/// A host copy that the device can copy from by itself.
#[derive(Debug)]
struct HostCopy {
    inode: u64,
    // Before the mapping that it refers to.
    pinned: Option<Pinned>,
    mapping: Mapping,
}

impl WeightsLoader {
    /// Unmaps all host copies.
    pub(super) fn forget(&mut self) {
        self.pinned.clear();
    }

    /// Brings weights to the device, or maps them where they are there already.
    pub(super) fn load(
        &mut self,
        context: &Context,
        stream: &Stream,
        weights: Weights,
    ) -> Result<MappedWeights, Fault> {
        match weights {
            Weights::Device { descriptor, bytes } => {
                let memory = Physical::import(context.info.ordinal, descriptor.as_fd(), bytes);
                let memory = memory.map_err(|e| e.fault("importing weights"))?;
                MappedWeights::map(memory, None).map_err(|e| e.fault("mapping weights"))
            }
            Weights::Host { memfd, export } => self.copy(context, stream, memfd, export),
        }
    }

    /// Copies a host copy to fresh device memory, which is writable only while this lasts.
    fn copy(
        &mut self,
        context: &Context,
        stream: &Stream,
        memfd: ValidatedMemfd,
        export: bool,
    ) -> Result<MappedWeights, Fault> {
        let failed = |e: CudaError| e.fault("copying weights");
        let granularity = granularity(context.info.ordinal).map_err(failed)?;
        let bytes = memfd.bytes().next_multiple_of(granularity);
        let memory = create(context, bytes, export)?;
        self.host_copy(context, memfd)?;
        let newest = || Fault::new(FaultCode::Internal, "no host copy");
        let source = &self.pinned.last().ok_or_else(newest)?.mapping;
        let length = source.bytes();
        let from = source.range(0, length).map_err(|e| Fault::new(FaultCode::Internal, e.to_string()))?;
        let window = Window::open(&memory).map_err(failed)?;
        // SAFETY: the mapping is `length` long and stays until the copy is over: `synchronize` follows.
        let submitted = unsafe { stream.copy_in(window.base(), from, length) }
            .and_then(|()| stream.fill(window.base() + length, 0, bytes - length));
        // While the copy lasts, everything that is needed behind it.
        let mapped = submitted.and_then(|()| {
            let exported = if export { Some((memory.export()?, bytes)) } else { None };
            MappedWeights::map(memory, exported)
        });
        // Whatever failed: nothing uses the window any more.
        context.synchronize().map_err(failed)?;
        drop(window);
        mapped.map_err(failed)
    }

    /// A memfd's mapping, pinned if the device can do that, kept for the next time.
    /// It is the newest one.
    fn host_copy(&mut self, context: &Context, memfd: ValidatedMemfd) -> Result<(), Fault> {
        let failed = |e: std::io::Error| Fault::new(FaultCode::Load, format!("mapping weights: {e}"));
        let file = std::fs::File::from(memfd.as_fd().try_clone_to_owned().map_err(failed)?);
        let inode = file.metadata().map_err(failed)?.ino();
        let known = self.pinned.iter().position(|copy| copy.inode == inode);
        let copy = match known {
            Some(position) => self.pinned.remove(position),
            None => {
                let mapping = Mapping::read_only(&memfd).map_err(failed)?;
                let fits = context.info.pins_read_only && mapping.bytes() <= PINNED_WEIGHTS_BYTES;
                // What cannot be pinned is copied at the speed of ordinary memory.
                // SAFETY: the mapping is this long and is dropped after the pin (`HostCopy`).
                let pinned = fits.then(|| unsafe { Pinned::register(mapping.base(), mapping.bytes(), true) });
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
