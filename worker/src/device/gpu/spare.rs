//! Memory for the next function with small weights, made ready before there is one: taken, exported and mapped twice, for
//! which the function's first call would wait: 0.1 ms and more, as drivers and hosts differ. A call that comes meanwhile waits
//! for one of the four steps.
//!
//! ```text
//!            step              step               step               step                  take
//!  (nothing) ───► memory taken ───► it has a name ───► window mapped ───► ready: range mapped ───► (nothing)
//! ```

use std::os::fd::OwnedFd;

use super::driver::{Access, Driver, Memory, Stream};
use super::ranges::{AddressRange, Window};

/// Device memory made ready for small weights, step by step.
#[derive(Debug)]
pub(super) struct Stock<D: Driver> {
    bytes: u64,
    addresses: u64,
    step: Step<D>,
    /// True if the mapped memory is zeroed, so that kernels may run.
    zeroed: bool,
}

#[derive(Debug)]
enum Step<D: Driver> {
    Nothing,
    /// A step failed.
    GivenUp,
    Taken(D::Memory),
    Named(D::Memory, Export<D>),
    Shown(Window<D>, D::Memory, Export<D>),
    Ready(Spare<D>),
}

/// Names the memory for other workers; for the end of the copy.
type Export<D> = (OwnedFd, <D as Driver>::Event);

/// A piece of device memory in which no weights are yet, of the size in which memory is given.
#[derive(Debug)]
pub(super) struct Spare<D: Driver> {
    /// Where weights are written.
    pub(super) window: Window<D>,
    /// Where kernels will see weights.
    pub(super) range: AddressRange<D>,
    /// Names the memory for other workers.
    pub(super) export: OwnedFd,
    /// For the end of the copy.
    pub(super) done: D::Event,
}

impl<D: Driver> Stock<D> {
    /// An empty stock; a piece will have so many bytes, and so many addresses for kernels.
    pub(super) fn new(bytes: u64, addresses: u64) -> Self {
        Self { bytes, addresses, step: Step::Nothing, zeroed: true }
    }

    /// Bytes of a piece.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if [`Stock::step`] has something to do.
    pub(super) fn wants_more(&self) -> bool {
        !matches!(self.step, Step::Ready(_) | Step::GivenUp)
    }

    /// Does the next step. After a failure, nothing is made ready until the next function with small weights asks.
    pub(super) fn step(&mut self, driver: &D) -> Result<(), D::Error> {
        let before = std::mem::replace(&mut self.step, Step::GivenUp);
        match before.next(driver, self.bytes, self.addresses) {
            Ok(step) => {
                self.zeroed &= !matches!(step, Step::Shown(..));
                self.step = step;
                Ok(())
            }
            Err(e) => {
                // After a failure, nothing is mapped any more.
                self.zeroed = true;
                Err(e)
            }
        }
    }

    /// True if no kernel may run before [`Stock::zero`].
    pub(super) fn is_unzeroed(&self) -> bool {
        !self.zeroed
    }

    /// Kernels may have written to the stock: it must be zeroed before another domain's run.
    pub(super) fn soil(&mut self) {
        self.zeroed &= !matches!(self.step, Step::Shown(..) | Step::Ready(_));
    }

    /// Begins to zero the mapped memory, unless it is zeroed; [`Stock::mark_zeroed`] notes the end.
    pub(super) fn zero(&self, stream: &D::Stream) -> Result<(), D::Error> {
        match &self.step {
            Step::Shown(window, ..) | Step::Ready(Spare { window, .. }) if !self.zeroed => {
                stream.fill(window.base(), 0, window.bytes())
            }
            _ => Ok(()),
        }
    }

    /// Notes that everything that is mapped is zeroed.
    pub(super) fn mark_zeroed(&mut self) {
        self.zeroed = true;
    }

    /// Gives what there is back to the device, for whom memory is short.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes, self.addresses);
    }

    /// Takes what is ready, zeroed.
    pub(super) fn take(&mut self) -> Option<Spare<D>> {
        if !self.zeroed {
            return None;
        }
        match std::mem::replace(&mut self.step, Step::Nothing) {
            Step::Ready(spare) => Some(spare),
            // Now there may be some again.
            Step::GivenUp => None,
            other => {
                self.step = other;
                None
            }
        }
    }
}

impl<D: Driver> Step<D> {
    fn next(self, driver: &D, bytes: u64, addresses: u64) -> Result<Self, D::Error> {
        Ok(match self {
            Self::Nothing => Self::Taken(driver.create_memory(bytes, true)?),
            Self::Taken(memory) => {
                let export = (memory.export()?, driver.create_event(false)?);
                Self::Named(memory, export)
            }
            Self::Named(memory, export) => Self::Shown(Window::open(driver, &memory)?, memory, export),
            Self::Shown(window, memory, (export, done)) => {
                let mut range = AddressRange::reserve(driver, addresses)?;
                range.push(driver, memory, Access::Read)?;
                Self::Ready(Spare { window, range, export, done })
            }
            Self::Ready(_) | Self::GivenUp => self,
        })
    }
}
