//! GPUs: several calls in flight on the lanes of one context, whatever the driver. A backend implements
//! [`Driver`]; everything about streams, events, graphs, memory and modules is here.
//!
//! Bottom to top, as files import each other:
//! - [`driver`]: the traits that a backend implements. `layout`: sizes that the parts agree on.
//! - `ranges`, `memory`, `spare`, `weights`: device addresses and what is mapped there; lanes' memory, and weights.
//! - [`copy_kernels`]: copies and clearing of small calls as kernels; `scrub`: clearing on-chip memory.
//! - `windows`, `variables`, `share_clock`: what lanes are where strangers share a worker.
//! - `module`, `function`, `command_list`, `whole_call`, `plan_cache`: from machine code and a plan to commands and graphs.
//! - `reason`: what a kernel that traps says.
//! - `policy`: what processes of every driver may do.
//! - `lane`: a call from its first copy to its clearing. This file: the device
//!   and how it submits; `device`: its roles.
//!
//! A hot call passes `device`, this file, `memory`, `plan_cache`, `lane` and `whole_call`, and the backend's stream.

#![allow(unsafe_code, reason = "what a driver copies by itself is host memory that outlives the copy")]

mod command_list;
pub mod copy_kernels;
mod device;
pub mod driver;
#[cfg(test)]
mod fake;
mod function;
mod lane;
mod layout;
mod memory;
#[cfg(test)]
mod memory_tests;
mod module;
mod plan_cache;
pub(super) mod policy;
mod ranges;
mod reason;
mod scrub;
mod share_clock;
#[cfg(test)]
mod shared_tests;
mod spare;
#[cfg(test)]
mod tests;
mod variables;
mod weights;
#[cfg(test)]
mod weights_tests;
mod whole_call;
#[cfg(test)]
mod whole_call_tests;
pub mod windows;

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use pappus_blueprint::TensorMap;
use pappus_protocol::device_memory::GPU_PAGE_BYTES;
use pappus_protocol::from_worker::Done;
use pappus_protocol::{ArenaId, Fault, FaultCode, LaneId, now_ns};
use pappus_shmem::memfd;

use self::command_list::{Bases, CommandList, Cursor};
use self::copy_kernels::CopyKernel;
pub use self::driver::Driver;
use self::driver::{DriverError, Event, HostBuffer, Memory as _, Stream};
pub use self::function::Function;
use self::lane::{Lane, Start};
use self::layout::{BOUNCE_BYTES, Transfer};
use self::memory::LaneMemory;
use self::plan_cache::{BoundPlan, BoundPlans, Key};
use self::ranges::Window;
use self::reason::Reason;
use self::scrub::Scrubber;
use self::weights::Loader;
use self::windows::{Needs, Windows};
use super::{Call, CopyIn, Memory as _, Source, broken};

/// One GPU, or a slice of one.
#[derive(Debug)]
pub struct Gpu<D: Driver> {
    // In the order in which they must be dropped; the driver with its context last.
    lanes: Vec<Lane<D>>,
    plans: Rc<RefCell<BoundPlans<D>>>,
    /// Of each lane.
    memory: Vec<LaneMemory<D>>,
    /// Where strangers share the worker: only fenced code is loaded.
    windows: Option<Windows<D>>,
    /// Memory was mapped ahead of a call, and is not zeroed yet. No kernel ran since; the next start zeroes it first.
    has_unzeroed: bool,
    loader: Loader<D>,
    /// Arenas that are pinned: the device copies from and to them by itself.
    arenas: HashMap<ArenaId, D::Pinned>,
    /// States of sessions, in place of their arenas.
    states: HashMap<ArenaId, Window<D>>,
    bounce: D::HostBuffer,
    bounce_events: [D::Event; 2],
    /// For work that belongs to no lane.
    stream: D::Stream,
    /// None where kernels cannot use the addresses of pinned memory.
    copy_kernel: Option<CopyKernel<D>>,
    scrubber: Option<Scrubber<D>>,
    /// The largest stack that a thread of any kernel loaded so far can have had.
    stack_bytes: u32,
    lost: Option<Fault>,
    /// Where a kernel that traps says why.
    reason: Option<Reason<D>>,
    driver: D,
}

impl<D: Driver> Gpu<D> {
    /// The driver's device, whose lanes have no memory yet; windows where strangers share it, whose calls may have the device for so
    /// long.
    pub fn new(driver: D, lanes: usize, shared: Option<Duration>) -> Result<Self, Fault> {
        let failed = |e: D::Error| e.fault("preparing the device");
        let lanes = lanes.max(1);
        let all: Result<_, _> = (0..lanes).map(|_| Lane::create(&driver)).collect();
        let (windows, memory) = match shared {
            Some(limit) => {
                Self::windows(&driver, lanes, limit).map(|(windows, memory)| (Some(windows), memory))?
            }
            None => (None, (0..lanes).map(|_| LaneMemory::reserve(&driver)).collect::<Result<_, _>>()?),
        };
        let event = || driver.create_event(false).map_err(failed);
        Ok(Self {
            lanes: all.map_err(failed)?,
            plans: Rc::default(),
            memory,
            windows,
            has_unzeroed: false,
            loader: Loader::create(&driver).map_err(failed)?,
            arenas: HashMap::new(),
            states: HashMap::new(),
            bounce: driver.allocate_host(BOUNCE_BYTES).map_err(failed)?,
            bounce_events: [event()?, event()?],
            stream: driver.create_stream().map_err(failed)?,
            copy_kernel: driver.properties().host_addresses.then(|| CopyKernel::load(&driver)).transpose()?,
            scrubber: None,
            stack_bytes: 0,
            lost: None,
            // In no window.
            reason: if shared.is_some() { None } else { Reason::prepare(&driver) },
            driver,
        })
    }

    /// A window for each lane, and the lanes' memory in them.
    fn windows(driver: &D, lanes: usize, limit: Duration) -> Result<(Windows<D>, Vec<LaneMemory<D>>), Fault> {
        let properties = driver.properties();
        if !properties.has_windows {
            let message = format!("{} is not known to keep strangers apart in one process", properties.name);
            return Err(Fault::new(FaultCode::Device, message));
        }
        let failed = |e: D::Error| e.fault("preparing windows");
        let (windows, pools) = Windows::create(driver, lanes, limit).map_err(failed)?;
        let memory = pools.into_iter().map(|pool| LaneMemory::within(driver, pool)).collect::<Result<_, _>>();
        Ok((windows, memory.map_err(failed)?))
    }

    /// How much of a lane's memory is cleared behind a call. A kernel reaches all of it; only where the next call is the same
    /// domain's, what the plan does not use may wait for a call that uses it.
    fn cleared_bytes(&self, lane: LaneId, call: &Call<'_>) -> u64 {
        match self.windows {
            Some(_) => self.memory[lane.index()].bytes(),
            None => call.plan.pool_bytes,
        }
    }

    /// Takes memory from a lane that was lent more for earlier calls than the window has room for beside the function's weights.
    /// What is left is enough for the call.
    fn make_room(&mut self, lane: LaneId, function: &Function<D>, call: &Call<'_>) -> Result<(), Fault> {
        let (weights, needed) = (function.weights.room_bytes(), call.plan.pool_bytes);
        let fits = |pool_bytes: u64| windows::POOL + pool_bytes <= windows::weights_at(weights);
        if self.windows.is_none() || fits(self.memory[lane.index()].bytes()) {
            return Ok(());
        }
        if !fits(needed.next_multiple_of(GPU_PAGE_BYTES)) {
            let message = format!("{needed} bytes of pool and {weights} of weights do not fit a window");
            return Err(Fault::new(FaultCode::OutOfMemory, message));
        }
        self.give_back(lane)?;
        self.memory[lane.index()].grow(&self.driver, &self.lanes[lane.index()].stream, needed)
    }

    /// Has the lane's window show what the function needs, and nothing else.
    fn show(&mut self, lane: LaneId, function: &Function<D>) -> Result<(), D::Error> {
        let Some(windows) = &mut self.windows else { return Ok(()) };
        let stream = &self.lanes[lane.index()].stream;
        let variables = function.window_variables();
        let weights = function.weights.memory();
        let needs = Needs { function: function.key, weights, variables: variables.is_some() };
        let fresh = windows.show(&self.driver, lane, stream, &needs)?;
        // Where nothing is cleared, what a call left of them stays.
        match variables.filter(|_| fresh || self.lanes[lane.index()].clears()) {
            Some(variables) => variables.initialise(stream, windows.base(lane)),
            None => Ok(()),
        }
    }

    /// Submits a call; an error is the driver's or the call's own.
    fn submit(
        &mut self,
        lane: LaneId,
        function: &mut Function<D>,
        call: &Call<'_>,
    ) -> Result<(), Stop<D::Error>> {
        let base = self.memory[lane.index()].base();
        let room = self.make_room(lane, function, call);
        let used_bytes = self.cleared_bytes(lane, call);
        self.lanes[lane.index()]
            .begin(&Start { base, used_bytes, deadline_ns: call.deadline_ns, alone: call.alone })
            .map_err(Stop::Driver)?;
        if self.has_unzeroed {
            self.zero().map_err(Stop::Driver)?;
        }
        if now_ns() > call.deadline_ns {
            return Err(Stop::Call(Fault::new(
                FaultCode::Deadline,
                "the deadline passed before the call ran",
            )));
        }
        room?;
        self.show(lane, function).map_err(Stop::Driver)?;
        for input in call.brought() {
            self.copy_in(lane, base, input, call)?;
        }
        let bound = self.bind(lane, function, call)?;
        for output in call.outputs.iter().filter(|output| output.bytes > 0) {
            let transfer =
                self.transfer(output.arena, output.offset, output.bytes, base + output.from, call)?;
            self.lanes[lane.index()].expect(transfer);
        }
        if self.lanes[lane.index()].run_whole(&bound, self.copy_kernel.as_ref()).map_err(Stop::Driver)? {
            return Ok(());
        }
        // A short call that is timed has a graph of its own otherwise.
        if !(bound.is_short() && self.lanes[lane.index()].is_timed()) {
            self.make_graph(lane, function, call, &bound, false)?;
        }
        self.lanes[lane.index()].run(bound).map_err(Stop::Driver)
    }

    /// Takes weights and variables out of a lane's window, so that its pool can grow to where they are.
    fn empty_window(&mut self, lane: LaneId) -> Result<(), D::Error> {
        match &mut self.windows {
            Some(windows) => windows.empty(lane, &self.lanes[lane.index()].stream),
            None => Ok(()),
        }
    }

    /// Zeroes memory that `prepare` or `rest` mapped.
    fn zero(&mut self) -> Result<(), D::Error> {
        self.memory.iter().try_for_each(|memory| memory.zero(&self.stream))?;
        self.loader.zero(&self.stream)?;
        self.stream.synchronize()?;
        self.memory.iter_mut().for_each(LaneMemory::mark_zeroed);
        self.loader.mark_zeroed();
        self.has_unzeroed = false;
        Ok(())
    }

    /// The plan with addresses for this lane.
    fn bind(
        &mut self,
        lane: LaneId,
        function: &mut Function<D>,
        call: &Call<'_>,
    ) -> Result<Rc<BoundPlan<D>>, Stop<D::Error>> {
        let weights = match &self.windows {
            Some(windows) => windows.base(lane) + windows::weights_at(function.weights.room_bytes()),
            None => function.weights.base(),
        };
        let bases = Bases { pool: self.memory[lane.index()].base(), weights };
        let key = key_of(function, call, lane);
        let known = self.plans.borrow_mut().get(&key);
        if let Some(bound) = known {
            return Ok(bound);
        }
        let stream = &self.lanes[lane.index()].stream;
        let names = function.names();
        let load = |kernel| function.kernel(&self.driver, stream, lane, kernel);
        let encode = |map: &TensorMap, address| self.driver.encode_tensor_map(map, address);
        let commands = CommandList::write(call.plan, names, bases, load, encode)?;
        let runs = self.plans.borrow().runs(&key, self.lanes.len());
        let bound = Rc::new(BoundPlan::new(commands, call.plan.clone(), runs));
        self.plans.borrow_mut().insert(key, &bound);
        Ok(bound)
    }

    /// Makes a graph of the plan's steps once they ran often enough, or while the call `waits` for its turn.
    fn make_graph(
        &self,
        lane: LaneId,
        function: &Function<D>,
        call: &Call<'_>,
        bound: &BoundPlan<D>,
        waits: bool,
    ) -> Result<(), Stop<D::Error>> {
        if call.alone || !bound.wants_graph(waits) {
            return Ok(());
        }
        let graph = self.lanes[lane.index()].stream.capture(|stream| {
            bound.commands.submit(stream, &mut Cursor::default(), u32::MAX, &mut None).map(drop)
        });
        match graph {
            Ok(graph) => {
                let _ = bound.graph.set(graph);
                self.plans.borrow_mut().grown(&key_of(function, call, lane), call.plan.expanded_steps);
            }
            Err(e) if e.is_fatal() => return Err(Stop::Driver(e)),
            // The plan runs without a graph.
            Err(_) => bound.direct_only.set(true),
        }
        Ok(())
    }

    /// Memory with a session's state, mapped; memory that is new is zeroed, and its descriptor comes along.
    fn open_state(
        &mut self,
        bytes: u64,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Window<D>, Option<OwnedFd>), D::Error> {
        let bytes = bytes.next_multiple_of(self.driver.granularity()?);
        let memory = match descriptor {
            Some(descriptor) => self.driver.import_memory(descriptor, bytes)?,
            None => self.driver.create_memory(bytes, true)?,
        };
        let state = Window::open(&self.driver, &memory)?;
        if descriptor.is_some() {
            return Ok((state, None));
        }
        let export = memory.export()?;
        self.stream.fill(state.base(), 0, bytes)?;
        self.stream.synchronize()?;
        Ok((state, Some(export)))
    }

    /// Bytes between an arena, or the state in its place, and a lane's memory.
    fn transfer(
        &self,
        arena: ArenaId,
        offset: u64,
        bytes: u64,
        device: u64,
        call: &Call<'_>,
    ) -> Result<Transfer, Stop<D::Error>> {
        let mapping = call.arenas.range(arena, offset, bytes)?;
        let host = mapping.range(offset, bytes).map_err(|_| broken())?;
        let state = self.states.get(&arena);
        // The range is one of the state's, too, which has as many bytes at least.
        let host =
            state.map_or(host, |state| std::ptr::without_provenance_mut((state.base() + offset) as usize));
        Ok(Transfer { host, is_state: state.is_some(), device, bytes })
    }

    fn copy_in(
        &mut self,
        lane: LaneId,
        base: u64,
        input: &CopyIn,
        call: &Call<'_>,
    ) -> Result<(), Stop<D::Error>> {
        let to = base + input.to;
        match input.from {
            Source::Arena(arena) => {
                let transfer = self.transfer(arena, input.offset, input.bytes, to, call)?;
                self.lanes[lane.index()].bring(transfer);
                Ok(())
            }
            Source::Descriptor(index) => {
                let fd = call.descriptors.get(index).ok_or_else(broken)?;
                self.copy_through(lane, to, fd, index, input)
            }
        }
    }

    /// Reads a descriptor into pinned memory and on to the device, one half while the other travels.
    fn copy_through(
        &mut self,
        lane: LaneId,
        to: u64,
        fd: &OwnedFd,
        index: usize,
        input: &CopyIn,
    ) -> Result<(), Stop<D::Error>> {
        let half = BOUNCE_BYTES / 2;
        let mut done = 0;
        for turn in 0.. {
            let left = input.bytes - done;
            if left == 0 {
                break;
            }
            let (event, start) = (&self.bounce_events[turn % 2], turn % 2 * half);
            while turn >= 2 && !event.has_passed().map_err(Stop::Driver)? {
                std::hint::spin_loop();
            }
            let bytes = (half as u64).min(left) as usize;
            let at = input.offset.saturating_add(done);
            let part = &mut self.bounce.as_mut()[start..start + bytes];
            memfd::read_exact_at(fd.as_fd(), at, part).map_err(|e| {
                Fault::new(
                    FaultCode::BadInvoke,
                    format!("reading {bytes} bytes at {at} of descriptor {index}: {e}"),
                )
            })?;
            let stream = &self.lanes[lane.index()].stream;
            // SAFETY: inside the buffer, which is neither read nor written before the event below passed.
            let copied = unsafe { stream.copy_in(to + done, self.bounce.as_ptr().add(start), bytes as u64) };
            copied.and_then(|()| stream.record(event)).map_err(Stop::Driver)?;
            done += bytes as u64;
        }
        // All lanes use the two halves: both are free again before the next call uses them.
        for event in &self.bounce_events {
            while !event.has_passed().map_err(Stop::Driver)? {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Goes on with a lane where strangers share them: kernels of a call end whose time is over.
    fn poll_window(&mut self, lane: LaneId) -> Result<Ended, D::Error> {
        let own = &mut self.lanes[lane.index()];
        let Some(windows) = &mut self.windows else { return own.poll() };
        let now_ns = now_ns();
        if (own.is_late(now_ns) || windows.had_its_part(lane, own.steps(), now_ns)) && own.goes_on()? {
            windows.stop(lane)?;
            own.stopped();
        }
        let ended = own.poll()?;
        if ended.is_some() {
            windows.ends();
        }
        Ok(ended)
    }

    /// An error of the driver while a call was submitted or running.
    fn stopped(&mut self, lane: LaneId, error: D::Error) {
        if error.is_fatal() {
            self.lose(lane, error);
            return;
        }
        let guilty = self.lanes[lane.index()].last_kernel();
        let message = match &guilty {
            Some((_, name)) => format!("kernel `{name}` cannot be launched like this: {error}"),
            None => format!("the call cannot be submitted: {error}"),
        };
        let code = if error.is_out_of_memory() { FaultCode::OutOfMemory } else { FaultCode::KernelTrap };
        let kernel = guilty.map(|(index, _)| index);
        self.lanes[lane.index()].fail(Fault { code, kernel, message });
    }

    /// Looks whether a failure outside of any call came from a lost context: under MPS a kernel of one process that
    /// faults loses the contexts of all. Returns the failure.
    fn look(&mut self, fault: Fault) -> Fault {
        if let Err(error) = self.stream.has_ended()
            && error.is_fatal()
        {
            self.lost.get_or_insert_with(|| error.fault("the GPU or its driver failed"));
        }
        fault
    }

    /// A call that ran alone is only believed to have ended well once the device did more behind it. Under MPS, the driver says of
    /// a kernel that faulted that it is over, some milliseconds before it says why (two H100s of one host: each time).
    fn confirm(&mut self, lane: LaneId, end: Ended) -> Result<Ended, D::Error> {
        let own = &mut self.lanes[lane.index()];
        if own.is_alone() && matches!(end, Some(Ok(_))) {
            own.clear_range()?;
            self.driver.synchronize()?;
        }
        Ok(end)
    }

    /// Notes that the context is lost. The guilty kernel is known only where the call ran alone.
    fn lose(&mut self, lane: LaneId, error: D::Error) {
        let guilty = self.lanes[lane.index()].last_kernel().filter(|_| self.lanes[lane.index()].is_alone());
        let fault = match error.kernel_cause() {
            Some(cause) => {
                // Of calls beside each other, nobody knows whose it is; they run again.
                let reason = self.reason.as_ref().filter(|_| guilty.is_some()).and_then(Reason::text);
                let message = match (&guilty, reason) {
                    (Some((_, name)), Some(reason)) => format!("kernel `{name}` at {reason}"),
                    (Some((_, name)), None) => format!("kernel `{name}` failed: {cause} ({error})"),
                    (None, _) => format!("a kernel failed: {cause} ({error})"),
                };
                let kernel = guilty.map(|(index, _)| index);
                Fault { code: FaultCode::KernelTrap, kernel, message }
            }
            None => Fault::new(FaultCode::Device, format!("the GPU or its driver failed: {error}")),
        };
        self.lost.get_or_insert(fault);
    }
}

/// Under which the call's bound plan is kept.
fn key_of<D: Driver>(function: &Function<D>, call: &Call<'_>, lane: LaneId) -> Key {
    Key { function: function.key, plan: std::sync::Arc::as_ptr(call.plan) as usize, lane }
}

/// How a call ended, once it did.
type Ended = Option<Result<Done, Fault>>;

/// Why a call was not submitted.
enum Stop<E> {
    Driver(E),
    Call(Fault),
}

impl<E> From<Fault> for Stop<E> {
    fn from(fault: Fault) -> Self {
        Self::Call(fault)
    }
}
