//! Weights of functions: on their way to the device, there, and gone again.
//!
//! ```text
//!            load                    all is submitted            the event passed
//!  absent ─────────► submitting ────────────────────► copying ──────────────────► there
//!     ▲              │  ▲ one part of the host copy is pinned at a time             │
//!     │              └──┘                                                           │
//!     └──────────── unload: memory goes back, or is kept for the next load ─────────┘
//! ```
//!
//! All loads share one stream of their own and run in the order in which they began, so that copies follow each other
//! without a gap while lanes compute. Nothing here waits for a copy but the end of a load that is given up.
//!
//! A function keeps its addresses while its weights are gone: plans and graphs that name them stay good. Its weights are
//! mapped read-only there; they are written through a window that is open while they are copied. Small weights that were
//! never there find all of this ready: [`Spare`].

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};
use std::time::Instant;

use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::{Fault, FaultCode};
use pappus_shmem::{Mapping, ValidatedMemfd};

use super::driver::{Access, Driver, DriverError, Event, Memory, Stream};
use super::layout::{LEAST_PINNED_BYTES, PIN_BYTES, PINNED_WEIGHTS_BYTES, UNPINNED_BYTES};
use super::memory::PATIENCE;
use super::ranges::{AddressRange, Window};
use super::spare::{Spare, Stock};
use crate::device::{LoadedWeights, Loading, Weights, broken};

/// What loads of all functions share.
#[derive(Debug)]
pub(super) struct Loader<D: Driver> {
    stream: D::Stream,
    /// Memory of weights that went, for the load that begins next.
    kept: Option<D::Memory>,
    /// Memory for small weights of a function that never had any.
    stock: Stock<D>,
    /// Host copies that functions have, by the numbers of their files: functions with the same weights share one.
    copies: Vec<(u64, Weak<RefCell<HostCopy<D>>>)>,
    pinned_bytes: Rc<Cell<u64>>,
}

/// The weights of one function.
#[derive(Debug)]
pub(super) struct FunctionWeights<D: Driver> {
    /// As they are packed.
    bytes: u64,
    /// Where kernels see them, from their first load on; nothing is mapped there while they are absent.
    range: Option<AddressRange<D>>,
    load: Option<Load<D>>,
    /// Kept for the next time.
    host: Option<Rc<RefCell<HostCopy<D>>>>,
}

/// Where a load is.
#[derive(Debug)]
enum Load<D: Driver> {
    /// It waits for memory of the device.
    Waiting {
        export: bool,
        until: Instant,
    },
    Submitting(Copy<D>),
    Copying {
        _window: Window<D>,
        done: D::Event,
        loaded: LoadedWeights,
    },
    Over(Result<LoadedWeights, Fault>),
}

/// A copy of which so many bytes are submitted.
#[derive(Debug)]
struct Copy<D: Driver> {
    submitted: u64,
    done: D::Event,
    // Before the memory that it shows.
    window: Window<D>,
    /// Of the memory.
    bytes: u64,
    place: Place<D>,
}

/// Where the memory is that a copy goes to.
#[derive(Debug)]
enum Place<D: Driver> {
    /// Kernels do not see it yet.
    Unmapped { memory: D::Memory, export: bool },
    /// It is mapped in the function's range.
    Mapped { export: Option<OwnedFd> },
}

/// A host copy that the device can copy from by itself, as far as it is pinned.
#[derive(Debug)]
struct HostCopy<D: Driver> {
    // Before the mapping that they refer to.
    pins: Vec<D::Pinned>,
    pinned_bytes: u64,
    /// True if no more of the copy can be pinned.
    settled: bool,
    budget: Rc<Cell<u64>>,
    mapping: Mapping,
}

impl<D: Driver> Drop for HostCopy<D> {
    fn drop(&mut self) {
        self.budget.set(self.budget.get().saturating_sub(self.pinned_bytes));
    }
}

impl<D: Driver> HostCopy<D> {
    fn map(memfd: &ValidatedMemfd, budget: &Rc<Cell<u64>>, pins: bool) -> std::io::Result<Self> {
        let mapping = Mapping::read_only(memfd)?;
        let settled = !pins || mapping.bytes() < LEAST_PINNED_BYTES;
        Ok(Self { pins: Vec::new(), pinned_bytes: 0, settled, budget: budget.clone(), mapping })
    }

    /// Pins the next part, unless that is not possible.
    fn pin_more(&mut self, driver: &D) {
        let bytes = PIN_BYTES.min(self.mapping.bytes() - self.pinned_bytes);
        self.settled |= bytes == 0 || self.budget.get() + bytes > PINNED_WEIGHTS_BYTES;
        if self.settled {
            return;
        }
        // SAFETY: the part lies inside the mapping, which is dropped after its pins.
        let pinned = unsafe {
            let base = self.mapping.base().add(self.pinned_bytes as usize);
            driver.pin(base, bytes, true)
        };
        match pinned {
            Ok(pinned) => {
                self.pins.push(pinned);
                self.pinned_bytes += bytes;
                self.budget.set(self.budget.get() + bytes);
            }
            // What cannot be pinned is copied at the speed of ordinary memory.
            Err(_) => self.settled = true,
        }
    }

    /// Submits the part at `at` of a copy of `length` bytes; returns the bytes of that part.
    fn submit(&self, stream: &D::Stream, to: u64, at: u64, length: u64) -> Result<u64, D::Error> {
        let left = length.min(self.mapping.bytes()) - at;
        let bytes = match at < self.pinned_bytes {
            // As it was pinned: a copy does not cross from one part to another.
            true => (PIN_BYTES - at % PIN_BYTES).min(left),
            false => UNPINNED_BYTES.min(left),
        };
        // SAFETY: the part lies inside the mapping, which a load that is not over keeps.
        unsafe { stream.copy_in(to + at, self.mapping.base().add(at as usize), bytes) }?;
        Ok(bytes)
    }
}

/// True if memory of `has` bytes suits weights of `needed` bytes: little is wasted.
fn suits(has: u64, needed: u64) -> bool {
    has >= needed && has - needed <= needed / 8
}

/// Addresses for weights of `needed` bytes, in pieces of `piece`: enough for any memory that suits, so that the range
/// stays the same whichever memory is next.
fn addresses(needed: u64, piece: u64) -> u64 {
    (needed + needed / 8).next_multiple_of(piece)
}

fn granularity<D: Driver>(driver: &D) -> Result<u64, Fault> {
    driver.granularity().map_err(|e| e.fault("asking for the granularity"))
}

impl<D: Driver> Loader<D> {
    /// Without functions.
    pub(super) fn create(driver: &D) -> Result<Self, D::Error> {
        let (copies, pinned_bytes) = (Vec::new(), Rc::default());
        let (stream, piece) = (driver.create_stream()?, driver.granularity()?);
        // As the supervisor counts it.
        let bytes = piece.next_multiple_of(GPU_PAGE_BYTES);
        let stock = Stock::new(bytes, addresses(bytes, piece));
        let mut loader = Self { stream, kept: None, stock, copies, pinned_bytes };
        while loader.wants_stock() {
            // Without a stock, functions get memory of their own.
            let _ = loader.stock_up(driver);
        }
        loader.stock.zero(&loader.stream)?;
        loader.stream.synchronize()?;
        loader.stock.mark_zeroed();
        Ok(loader)
    }

    /// True if the next function with small weights would find no memory ready for them.
    pub(super) fn wants_stock(&self) -> bool {
        self.stock.wants_more()
    }

    /// Goes a step on in making memory ready for weights.
    pub(super) fn stock_up(&mut self, driver: &D) -> Result<(), D::Error> {
        self.stock.step(driver)
    }

    /// True if memory that was made ready must be zeroed before any kernel runs, and before weights come into it.
    pub(super) fn is_unzeroed(&self) -> bool {
        self.stock.is_unzeroed()
    }

    /// Begins to zero the stock.
    pub(super) fn zero(&self, stream: &D::Stream) -> Result<(), D::Error> {
        self.stock.zero(stream)
    }

    /// Notes that the stock is zeroed.
    pub(super) fn mark_zeroed(&mut self) {
        self.stock.mark_zeroed();
    }

    /// Bytes that are made ready, or will be.
    pub(super) fn stock_bytes(&self) -> u64 {
        self.stock.bytes()
    }

    /// True if nothing is being copied.
    pub(super) fn is_idle(&self) -> Result<bool, D::Error> {
        self.stream.has_ended()
    }

    /// Gives back kept memory, and forgets host copies, which no function has. Kernels may have written into the stock,
    /// which is to be zeroed.
    pub(super) fn forget(&mut self) {
        self.kept = None;
        self.copies.clear();
        self.stock.soil();
    }

    /// The mapping of a memfd, shared by all functions with that memfd.
    fn host_copy(&mut self, driver: &D, memfd: &ValidatedMemfd) -> Result<Rc<RefCell<HostCopy<D>>>, Fault> {
        let failed = |e: std::io::Error| Fault::new(FaultCode::Exhausted, format!("mapping weights: {e}"));
        let file = std::fs::File::from(memfd.as_fd().try_clone_to_owned().map_err(failed)?);
        let inode = file.metadata().map_err(failed)?.ino();
        self.copies.retain(|(_, copy)| copy.strong_count() > 0);
        let known = self.copies.iter().find(|(other, _)| *other == inode);
        if let Some(copy) = known.and_then(|(_, copy)| copy.upgrade()) {
            return Ok(copy);
        }
        let pins = driver.properties().pins_read_only;
        let copy = HostCopy::map(memfd, &self.pinned_bytes, pins).map_err(failed)?;
        let copy = Rc::new(RefCell::new(copy));
        self.copies.push((inode, Rc::downgrade(&copy)));
        Ok(copy)
    }
}

impl<D: Driver> FunctionWeights<D> {
    /// So many bytes that were never loaded.
    pub(super) fn absent(bytes: u64) -> Self {
        Self { bytes, range: None, load: None, host: None }
    }

    /// The weights' address, once they were loaded; else zero.
    pub(super) fn base(&self) -> u64 {
        self.range.as_ref().map_or(0, AddressRange::base)
    }

    /// The weights' memory, while the weights are there, and how many bytes of addresses are reserved for them.
    pub(super) fn memory(&self) -> Option<(&D::Memory, u64)> {
        let range = self.range.as_ref()?;
        Some((range.last()?, range.room_bytes()))
    }

    /// Bytes of the addresses that they have, once they were loaded; else zero.
    pub(super) fn room_bytes(&self) -> u64 {
        self.range.as_ref().map_or(0, AddressRange::room_bytes)
    }

    /// Begins to load the weights; [`FunctionWeights::poll`] tells the outcome.
    pub(super) fn load(&mut self, driver: &D, loader: &mut Loader<D>, weights: Weights) {
        let kept = loader.kept.take();
        let begun = match weights {
            Weights::Device { descriptor, bytes } => {
                // The descriptor stays open until the memory is mapped.
                let memory = driver.import_memory(descriptor.as_fd(), bytes);
                let mapped = memory.map_err(|e| e.fault("importing weights"));
                let mapped = mapped.and_then(|memory| self.map(driver, memory));
                mapped.map(|()| Load::Over(Ok(LoadedWeights { bytes, export: None })))
            }
            Weights::Host { memfd, export } => self.begin(driver, loader, &memfd, kept, export),
        };
        self.load = Some(begun.unwrap_or_else(|fault| Load::Over(Err(fault))));
    }

    fn begin(
        &mut self,
        driver: &D,
        loader: &mut Loader<D>,
        memfd: &ValidatedMemfd,
        kept: Option<D::Memory>,
        export: bool,
    ) -> Result<Load<D>, Fault> {
        self.host = Some(loader.host_copy(driver, memfd)?);
        let needed = self.needed_bytes(driver)?;
        match kept.filter(|memory| suits(memory.bytes(), needed)) {
            // Who shares it has its descriptor.
            Some(memory) => Copy::begin(driver, memory, false).map(Load::Submitting),
            None if self.range.is_none()
                && needed <= loader.stock.bytes()
                && let Some(spare) = loader.stock.take() =>
            {
                Ok(Load::Submitting(self.begin_in(spare, export)))
            }
            None => Ok(Load::Waiting { export, until: Instant::now() + PATIENCE }),
        }
    }

    /// They go where a spare is.
    fn begin_in(&mut self, spare: Spare<D>, export: bool) -> Copy<D> {
        let Spare { window, range, export: descriptor, done, .. } = spare;
        let bytes = window.bytes();
        self.range = Some(range);
        let place = Place::Mapped { export: export.then_some(descriptor) };
        Copy { submitted: 0, done, window, bytes, place }
    }

    /// Device memory that they need.
    fn needed_bytes(&self, driver: &D) -> Result<u64, Fault> {
        Ok(self.bytes.next_multiple_of(granularity(driver)?))
    }

    /// Maps memory where kernels see it.
    fn map(&mut self, driver: &D, memory: D::Memory) -> Result<(), Fault> {
        let failed = |e: D::Error| e.fault("mapping weights");
        if self.range.is_none() {
            let bytes = addresses(self.needed_bytes(driver)?, granularity(driver)?);
            self.range = Some(AddressRange::reserve(driver, bytes).map_err(failed)?);
        }
        let range = self.range.as_mut().ok_or_else(broken)?;
        range.push(driver, memory, Access::Read).map(drop).map_err(failed)
    }

    /// Goes on with the load, without waiting.
    pub(super) fn poll(&mut self, driver: &D, loader: &mut Loader<D>) -> Loading {
        loop {
            let step = match self.load.take() {
                Some(Load::Waiting { export, until }) => self.create(driver, loader, export, until),
                Some(Load::Submitting(copy)) => self.submit(driver, &loader.stream, copy),
                Some(Load::Copying { _window, done, loaded }) => match done.has_passed() {
                    Ok(true) => Ok(Step::On(Load::Over(Ok(loaded)))),
                    Ok(false) => Ok(Step::Stay(Load::Copying { _window, done, loaded })),
                    Err(e) => Err(e.fault("copying weights")),
                },
                Some(Load::Over(outcome)) => return Loading::Over(outcome),
                None => Err(broken()),
            };
            match step {
                Ok(Step::On(load)) => self.load = Some(load),
                Ok(Step::Stay(load)) => {
                    let copying = matches!(load, Load::Copying { .. });
                    self.load = Some(load);
                    return if copying { Loading::Copying } else { Loading::Submitting };
                }
                Err(fault) => {
                    self.range.as_mut().map(AddressRange::pop);
                    return Loading::Over(Err(fault));
                }
            }
        }
    }

    /// Takes memory of the device for them.
    fn create(
        &mut self,
        driver: &D,
        loader: &mut Loader<D>,
        export: bool,
        until: Instant,
    ) -> Result<Step<D>, Fault> {
        let bytes = self.needed_bytes(driver)?;
        match driver.create_memory(bytes, export) {
            Ok(memory) => Ok(Step::On(Load::Submitting(Copy::begin(driver, memory, export)?))),
            // The driver may still be taking it back from another process.
            Err(e) if e.is_out_of_memory() && Instant::now() < until => {
                loader.stock.clear();
                Ok(Step::Stay(Load::Waiting { export, until }))
            }
            Err(e) => Err(e.fault(&format!("{bytes} bytes of device memory for weights"))),
        }
    }

    /// Submits what can be submitted now; behind the last part, zeros for the rest of the memory, and the event.
    fn submit(&mut self, driver: &D, stream: &D::Stream, mut copy: Copy<D>) -> Result<Step<D>, Fault> {
        let host = self.host.clone().ok_or_else(broken)?;
        let submitted = copy.submit(driver, stream, &mut host.borrow_mut(), self.bytes);
        match submitted {
            Ok(true) => {}
            Ok(false) => return Ok(Step::Stay(Load::Submitting(copy))),
            Err(e) => {
                // The window is not in use any more when it is dropped.
                let _ = stream.synchronize();
                return Err(e.fault("copying weights"));
            }
        }
        // The final mapping and the export are made while the copy runs.
        let Copy { done, window, bytes, place, .. } = copy;
        match self.settle(driver, place) {
            Ok(export) => {
                let loaded = LoadedWeights { bytes, export };
                Ok(Step::On(Load::Copying { _window: window, done, loaded }))
            }
            Err(fault) => {
                let _ = stream.synchronize();
                Err(fault)
            }
        }
    }

    /// Maps the memory where kernels see it, and exports it, as far as that is not done.
    fn settle(&mut self, driver: &D, place: Place<D>) -> Result<Option<OwnedFd>, Fault> {
        match place {
            Place::Mapped { export } => Ok(export),
            Place::Unmapped { memory, export } => {
                let exported = export.then(|| memory.export()).transpose();
                let exported = exported.map_err(|e| e.fault("exporting weights"))?;
                self.map(driver, memory)?;
                Ok(exported)
            }
        }
    }

    /// Takes them from the device, or gives up loading them. With `keep`, the next load may have their memory.
    pub(super) fn unload(&mut self, loader: &mut Loader<D>, keep: bool) -> Result<(), D::Error> {
        if let Some(Load::Submitting(_) | Load::Copying { .. }) = self.load {
            // What is submitted writes to the memory.
            loader.stream.synchronize()?;
        }
        self.load = None;
        let memory = self.range.as_mut().and_then(AddressRange::pop);
        loader.kept = memory.filter(|_| keep);
        Ok(())
    }
}

/// What a load has come to.
enum Step<D: Driver> {
    /// It goes on at once.
    On(Load<D>),
    /// It goes on later.
    Stay(Load<D>),
}

impl<D: Driver> Copy<D> {
    fn begin(driver: &D, memory: D::Memory, export: bool) -> Result<Self, Fault> {
        let failed = |e: D::Error| e.fault("preparing to copy weights");
        let window = Window::open(driver, &memory).map_err(failed)?;
        let done = driver.create_event(false).map_err(failed)?;
        let bytes = memory.bytes();
        Ok(Self { submitted: 0, done, window, bytes, place: Place::Unmapped { memory, export } })
    }

    /// Submits as much as can be submitted without keeping the other lanes waiting; whether that is all.
    fn submit(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        host: &mut HostCopy<D>,
        length: u64,
    ) -> Result<bool, D::Error> {
        while self.submitted < length {
            let is_pinned = self.submitted < host.pinned_bytes;
            if !is_pinned {
                host.pin_more(driver);
            }
            self.submitted += host.submit(stream, self.window.base(), self.submitted, length)?;
            if !is_pinned && self.submitted < length {
                return Ok(false);
            }
        }
        let rest = self.bytes - length;
        if rest > 0 {
            // Of weights that were there before, perhaps of a function that not every caller of this one may call.
            stream.fill(self.window.base() + length, 0, rest)?;
        }
        stream.record(&self.done)?;
        Ok(true)
    }
}
