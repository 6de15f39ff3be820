//! Windows: in a worker that strangers share, each lane is 4 GiB of addresses which its kernels cannot leave.
//!
//! ```text
//!  0           0x1000_0000        0x2000_0000                           0xffe0_0000     4 GiB
//!  │ nothing   │ variables        │ pool ►            nothing  ◄ weights │ header        │ 4 GiB of nothing, next window
//!              read-write         read-write             read-only       read-only: the stop word
//! ```
//!
//! The pool is the lane's memory. Weights and variables are there only while a call runs whose function has some, and are
//! the function's own. They stay mapped behind the call until a call of another function comes, or the weights go: no kernel
//! runs in between. Kernels end where the stop word is not zero; it is written beside running kernels, through a second,
//! writable mapping of the header.

use std::rc::Rc;
use std::time::Duration;

use pappus_fence::window::{STOP, VARIABLES_BEGIN};
use pappus_protocol::LaneId;
use pappus_protocol::limits::SHARED_BYTES;
use pappus_protocol::now_ns;

use super::driver::{Access, Driver, HostBuffer, Memory, Stream};
use super::plan_cache::FunctionKey;
use super::ranges::{AddressRange, Reserved, Window};
use super::share_clock::ShareClock;

/// Bytes of a window, and what it is aligned to; as many bytes before and behind it are mapped to nothing.
const BYTES: u64 = 4 << 30;
/// From one window to the next.
const APART: u64 = 2 * BYTES;
/// Where in its window a lane's pool begins.
pub(super) const POOL: u64 = 0x2000_0000;
/// Where in its window the header begins, and weights end.
pub(super) const HEADER: u64 = 0xffe0_0000;
/// Bytes of the header, as they are mapped.
const HEADER_BYTES: u64 = BYTES - HEADER;
/// Bytes of variables that a window has room for.
pub const VARIABLES_BYTES: u64 = 2 << 20;
/// What a step that is submitted by itself counts: a chip starts 0.8 to 0.9 million kernels a second, and the worker's thread takes
/// longer for each, for which the clock of parts stands still.
const STEP_NS: u64 = 1_200;
/// Bytes of a stop word.
const STOP_BYTES: u64 = 4;

/// The windows of all lanes.
#[derive(Debug)]
pub(super) struct Windows<D: Driver> {
    lanes: Vec<LaneWindow<D>>,
    /// Stop words are written on it, beside what lanes run.
    stopping: D::Stream,
    /// A stop word that is not zero.
    stop: D::HostBuffer,
    pub(super) clock: ShareClock,
    /// How much of the device a call gets.
    limit_ns: u64,
}

/// The window of one lane, but for its pool.
#[derive(Debug)]
struct LaneWindow<D: Driver> {
    base: u64,
    shown: Option<Shown>,
    /// When its call began, by the clock of parts.
    began_ns: u64,
    /// True if the stop word may not be zero.
    is_stopped: bool,
    header: D::Memory,
    /// Where the header is written.
    writable: Window<D>,
    variables: D::Memory,
    // Dropped when nothing is mapped any more.
    _of: Rc<Reserved<D>>,
}

/// What is mapped for a function.
#[derive(Debug)]
struct Shown {
    function: FunctionKey,
    /// Address and bytes.
    weights: Option<(u64, u64)>,
    /// True if the window's memory for variables is mapped.
    variables: bool,
}

/// What a function needs in the window of a call.
#[derive(Debug)]
pub(super) struct Needs<'a, D: Driver> {
    pub(super) function: FunctionKey,
    /// The weights' memory, and how many bytes of addresses they have.
    pub(super) weights: Option<(&'a D::Memory, u64)>,
    /// True if the function has variables in its window.
    pub(super) variables: bool,
}

/// Where in its window a function's weights begin, which have so many bytes of addresses.
pub(super) fn weights_at(room_bytes: u64) -> u64 {
    HEADER.saturating_sub(room_bytes)
}

impl<D: Driver> Windows<D> {
    /// As many windows as lanes, whose calls get so much of the device, and where each lane's pool goes.
    pub(super) fn create(
        driver: &D,
        lanes: usize,
        limit: Duration,
    ) -> Result<(Self, Vec<AddressRange<D>>), D::Error> {
        // The addresses that are given begin anywhere: the first window is aligned, behind a guard.
        let reserved = Reserved::new(driver, (lanes as u64 + 1) * APART)?;
        let first = (reserved.base() + BYTES).next_multiple_of(BYTES);
        let (stopping, mut stop) = (driver.create_stream()?, driver.allocate_host(STOP_BYTES as usize)?);
        stop.as_mut().fill(0xff);
        let (mut windows, mut pools) = (Vec::with_capacity(lanes), Vec::with_capacity(lanes));
        for base in (0..lanes as u64).map(|nth| first + nth * APART) {
            windows.push(LaneWindow::create(driver, &stopping, base, reserved.clone())?);
            pools.push(AddressRange::part(reserved.clone(), base + POOL, SHARED_BYTES));
        }
        stopping.synchronize()?;
        let (clock, limit_ns) = (ShareClock::default(), limit.as_nanos() as u64);
        Ok((Self { lanes: windows, stopping, stop, clock, limit_ns }, pools))
    }

    /// Device memory that the windows of so many lanes take, but for pools and weights.
    pub(super) fn own_bytes(&self) -> u64 {
        self.lanes.len() as u64 * (HEADER_BYTES + VARIABLES_BYTES)
    }

    /// The first address of a lane's window.
    pub(super) fn base(&self, lane: LaneId) -> u64 {
        self.lanes[lane.index()].base
    }

    /// Maps what a call needs, and nothing of another function; true if something was mapped. The lane is idle; its stream ends what
    /// clears behind the last call first.
    pub(super) fn show(
        &mut self,
        driver: &D,
        lane: LaneId,
        stream: &D::Stream,
        needs: &Needs<'_, D>,
    ) -> Result<bool, D::Error> {
        let window = &mut self.lanes[lane.index()];
        let is_there = |shown: &Shown| {
            shown.function == needs.function && shown.weights.is_some() == needs.weights.is_some()
        };
        if window.shown.as_ref().is_some_and(is_there) {
            return Ok(false);
        }
        window.hide(stream)?;
        let mut shown = Shown { function: needs.function, weights: None, variables: false };
        if let Some((memory, room_bytes)) = needs.weights {
            let at = window.base + weights_at(room_bytes);
            driver.map(at, memory, Access::Read)?;
            shown.weights = Some((at, memory.bytes()));
        }
        if needs.variables {
            let at = window.base + u64::from(VARIABLES_BEGIN);
            let mapped = driver.map(at, &window.variables, Access::ReadWrite);
            if let (Err(error), Some((at, bytes))) = (&mapped, shown.weights) {
                D::unmap(at, bytes);
                return Err(*error);
            }
            mapped?;
            shown.variables = true;
        }
        window.shown = Some(shown);
        Ok(true)
    }

    /// Takes a function's weights and variables out of all windows: no call of it runs.
    pub(super) fn hide(&mut self, function: FunctionKey, streams: &[&D::Stream]) -> Result<(), D::Error> {
        let of_it = |window: &&mut LaneWindow<D>| {
            window.shown.as_ref().is_some_and(|shown| shown.function == function)
        };
        for (window, stream) in self.lanes.iter_mut().zip(streams) {
            if of_it(&window) {
                window.hide(stream)?;
            }
        }
        Ok(())
    }

    /// Takes out of a lane's window what was mapped for a function. The lane is idle.
    pub(super) fn empty(&mut self, lane: LaneId, stream: &D::Stream) -> Result<(), D::Error> {
        self.lanes[lane.index()].hide(stream)
    }

    /// A lane's call begins.
    pub(super) fn begins(&mut self, lane: LaneId, now_ns: u64) {
        self.lanes[lane.index()].began_ns = self.clock.begins(now_ns);
    }

    /// A lane's call is over.
    pub(super) fn ends(&mut self) {
        self.clock.ends(now_ns());
    }

    /// True if a lane's call, of which so many steps were submitted one by one, had as much of the device as it gets.
    pub(super) fn had_its_part(&mut self, lane: LaneId, steps: u64, now_ns: u64) -> bool {
        let part_ns = self.clock.at(now_ns) - self.lanes[lane.index()].began_ns;
        part_ns + steps * STEP_NS > self.limit_ns
    }

    /// Has the kernels of a lane end, soon.
    pub(super) fn stop(&mut self, lane: LaneId) -> Result<(), D::Error> {
        let window = &mut self.lanes[lane.index()];
        window.is_stopped = true;
        // SAFETY: the buffer is this long, never changes, and outlives the stream's work: `clear` waits for the copy.
        unsafe { self.stopping.copy_in(window.stop_word(), self.stop.as_ptr(), STOP_BYTES) }
    }

    /// Clears what a lane's call that is over left outside of its pool. The clearing may still run when this returns, but ends
    /// before the lane's next call starts. Variables stay as they are without `clears`.
    pub(super) fn clear(&mut self, lane: LaneId, stream: &D::Stream, clears: bool) -> Result<(), D::Error> {
        let window = &mut self.lanes[lane.index()];
        if window.is_stopped {
            while !self.stopping.has_ended()? {
                std::hint::spin_loop();
            }
            stream.fill(window.stop_word(), 0, STOP_BYTES)?;
            window.is_stopped = false;
        }
        if clears && window.shown.as_ref().is_some_and(|shown| shown.variables) {
            stream.fill(window.base + u64::from(VARIABLES_BEGIN), 0, VARIABLES_BYTES)?;
        }
        Ok(())
    }
}

impl<D: Driver> LaneWindow<D> {
    /// Nothing is mapped but the header; the clearing of its memory was submitted.
    fn create(driver: &D, stream: &D::Stream, base: u64, of: Rc<Reserved<D>>) -> Result<Self, D::Error> {
        let header = driver.create_memory(HEADER_BYTES, false)?;
        let variables = driver.create_memory(VARIABLES_BYTES, false)?;
        let writable = Window::open(driver, &header)?;
        stream.fill(writable.base(), 0, HEADER_BYTES)?;
        // Variables are in no other place than their window, but for this moment.
        let place = Window::open(driver, &variables)?;
        stream.fill(place.base(), 0, VARIABLES_BYTES)?;
        stream.synchronize()?;
        drop(place);
        driver.map(base + HEADER, &header, Access::Read)?;
        Ok(Self { base, shown: None, began_ns: 0, is_stopped: false, header, writable, variables, _of: of })
    }

    /// The address at which the stop word is written.
    fn stop_word(&self) -> u64 {
        self.writable.base() + u64::from(STOP) - HEADER
    }

    /// Unmaps what was mapped for a function, once the stream's work is over.
    fn hide(&mut self, stream: &D::Stream) -> Result<(), D::Error> {
        let Some(shown) = &self.shown else { return Ok(()) };
        if shown.weights.is_some() || shown.variables {
            while !stream.has_ended()? {
                std::hint::spin_loop();
            }
        }
        self.unmap();
        Ok(())
    }

    fn unmap(&mut self) {
        let Some(shown) = self.shown.take() else { return };
        if let Some((at, bytes)) = shown.weights {
            D::unmap(at, bytes);
        }
        if shown.variables {
            D::unmap(self.base + u64::from(VARIABLES_BEGIN), VARIABLES_BYTES);
        }
    }
}

impl<D: Driver> Drop for LaneWindow<D> {
    fn drop(&mut self) {
        self.unmap();
        D::unmap(self.base + HEADER, self.header.bytes());
    }
}
