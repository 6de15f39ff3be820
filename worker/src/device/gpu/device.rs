//! What a device must do, done by a GPU: its four roles.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::{ArenaId, Fault, LaneId, now_ns};
use pappus_shmem::Mapping;

use super::driver::{Driver, DriverError, HostBuffer, Stream};
use super::lane::Lane;
use super::scrub::Scrubber;
use super::windows::Windows;
use super::{Function, Gpu, Stop};
use crate::device::{Call, Device, FunctionImage, Functions, Hygiene, Lanes, Loading, Memory, Weights};

/// What each thread's stack has room for in a new context.
const STACK_BYTES: u32 = 1024;

impl<D: Driver> Device for Gpu<D> {
    /// With what is kept ready for weights.
    fn hello(&self) -> Hello {
        let hello = self.driver.hello();
        let context_bytes = match hello.context_bytes {
            0 => 0,
            measured => {
                let windows = self.windows.as_ref().map_or(0, Windows::own_bytes);
                measured.saturating_add(self.loader.stock_bytes()).saturating_add(windows)
            }
        };
        Hello { context_bytes, ..hello }
    }
}

impl<D: Driver> Functions for Gpu<D> {
    type Function = Function<D>;

    fn load(&mut self, image: FunctionImage<'_>) -> Result<Function<D>, Fault> {
        let lanes = self.lanes.len();
        let fenced = self.windows.is_some();
        let loaded = Function::load(&self.driver, &self.stream, &self.plans, image, lanes, fenced);
        let loaded = loaded.map_err(|fault| self.look(fault))?;
        let stack_bytes = loaded.stack_bytes();
        if fenced && stack_bytes > self.stack_bytes.max(STACK_BYTES) {
            // Now, while no stranger's kernel runs.
            let made = self.driver.make_stacks(stack_bytes);
            made.map_err(|e| self.look(e.fault("making room for stacks")))?;
        }
        self.stack_bytes = self.stack_bytes.max(stack_bytes);
        if let Some(scrubber) = &mut self.scrubber {
            // Made now, not when a call or another domain waits for the scrub.
            scrubber.fit(&self.driver, self.stack_bytes)?;
        }
        Ok(loaded)
    }

    fn load_weights(&mut self, function: &mut Function<D>, weights: Weights) {
        // No kernel ran since the ready memory was mapped. If zeroing fails, the weights do not use that
        // memory.
        if self.has_unzeroed && self.loader.is_unzeroed() {
            let _ = self.zero();
        }
        function.weights.load(&self.driver, &mut self.loader, weights);
    }

    fn poll_weights(&mut self, function: &mut Function<D>) -> Loading {
        match function.weights.poll(&self.driver, &mut self.loader) {
            Loading::Over(Err(fault)) => Loading::Over(Err(self.look(fault))),
            loading => loading,
        }
    }

    fn unload_weights(&mut self, function: &mut Function<D>, keep: bool) -> Result<(), Fault> {
        let hidden = self.windows.as_mut().map_or(Ok(()), |windows| {
            let streams = self.lanes.iter().map(|lane| &lane.stream);
            windows.hide(function.key, &streams.collect::<Vec<_>>())
        });
        let unloaded = hidden.and_then(|()| function.weights.unload(&mut self.loader, keep));
        unloaded.map_err(|e| self.look(e.fault("giving weights up")))
    }

    /// Clears variables and their pristine copies, too: both hold data of the owner.
    fn unload(&mut self, mut function: Function<D>) -> Result<(), Fault> {
        self.unload_weights(&mut function, false)?;
        function.wipe(&self.stream).map_err(|e| e.fault("clearing variables"))?;
        self.settle()
    }
}

impl<D: Driver> Memory for Gpu<D> {
    fn lane_bytes(&self, lane: LaneId) -> u64 {
        self.memory[lane.index()].bytes()
    }

    fn grow(&mut self, lane: LaneId, bytes: u64) -> Result<(), Fault> {
        if self.windows.is_none() {
            // Clearing behind calls is over, too: nothing runs while memory is mapped that is not zeroed. Weights that are
            // on their way are no one's concern.
            self.settle()?;
        } else if bytes > self.lane_bytes(lane) {
            self.empty_window(lane).map_err(|e| e.fault("mapping what the lane was lent"))?;
        }
        // Kernels of other windows do not reach the new memory.
        let stream = &self.lanes[lane.index()].stream;
        let grown = self.memory[lane.index()].grow(&self.driver, stream, bytes);
        grown.map_err(|fault| self.look(fault))
    }

    fn give_back(&mut self, lane: LaneId) -> Result<(), Fault> {
        let memory = &mut self.memory[lane.index()];
        let lane = &mut self.lanes[lane.index()];
        // Behind the clearing of the lane's last call; other lanes go on.
        let cleared = memory.clear(&lane.stream).and_then(|()| lane.until_idle());
        if let Err(e) = cleared {
            return Err(self.look(e.fault("clearing what is given back")));
        }
        memory.unmap();
        lane.forget_memory();
        Ok(())
    }

    fn map_arena(&mut self, arena: ArenaId, mapping: &Mapping) -> Result<(), Fault> {
        // SAFETY: the mapping is this long, and `unmap_arena` comes before it goes.
        let pinned = unsafe { self.driver.pin(mapping.base(), mapping.bytes(), false) };
        let pinned = pinned.map_err(|e| self.look(e.fault("pinning the arena")))?;
        self.arenas.insert(arena, pinned);
        Ok(())
    }

    fn hold_state(
        &mut self,
        arena: ArenaId,
        bytes: u64,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, Fault> {
        let held = self.open_state(bytes, descriptor);
        let (state, export) = held.map_err(|e| self.look(e.fault("making room for a session's state")))?;
        self.states.insert(arena, state);
        Ok(export)
    }

    fn unmap_arena(&mut self, arena: ArenaId) {
        // A graph may name its addresses still: it does not run before it names those of another call.
        self.arenas.remove(&arena);
        self.states.remove(&arena);
    }

    fn wants_rest(&self) -> bool {
        self.loader.wants_stock()
    }

    fn rest(&mut self) {
        let step = self.loader.stock_up(&self.driver);
        self.has_unzeroed |= self.loader.is_unzeroed();
        if let Err(error) = step
            && error.is_fatal()
        {
            self.lost.get_or_insert_with(|| error.fault("the GPU or its driver failed"));
        }
    }
}

impl<D: Driver> Lanes for Gpu<D> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn are_shared(&self) -> bool {
        self.windows.is_some()
    }

    /// Memory, machine code, command list and graph; errors are met again when the call starts.
    fn prepare(&mut self, lane: LaneId, function: &mut Function<D>, call: &Call<'_>, memory_bytes: u64) {
        if self.lane_bytes(lane) < memory_bytes {
            let emptied = self.empty_window(lane);
            let mapped = self.memory[lane.index()].map(&self.driver, memory_bytes, Duration::ZERO);
            self.has_unzeroed = true;
            if emptied.is_err() || mapped.is_err() {
                return;
            }
        }
        let ready = self.bind(lane, function, call);
        let ready = ready.and_then(|bound| self.make_graph(lane, function, call, &bound, true));
        if let Err(Stop::Driver(error)) = ready
            && error.is_fatal()
        {
            self.lost.get_or_insert_with(|| error.fault("the GPU or its driver failed"));
        }
    }

    fn start(&mut self, lane: LaneId, function: &mut Function<D>, call: &Call<'_>) {
        self.windows.iter_mut().for_each(|windows| windows.begins(lane, now_ns()));
        match self.submit(lane, function, call) {
            Ok(()) => {}
            Err(Stop::Call(fault)) => self.lanes[lane.index()].fail(fault),
            Err(Stop::Driver(error)) => self.stopped(lane, error),
        }
    }

    fn poll(&mut self, lane: LaneId) -> Option<Result<Done, Fault>> {
        if let Some(fault) = &self.lost {
            return Some(Err(fault.clone()));
        }
        let ended = self.poll_window(lane).and_then(|end| self.confirm(lane, end));
        match ended {
            Ok(end) => end,
            Err(error) if error.is_fatal() => {
                self.lose(lane, error);
                self.lost.clone().map(Err)
            }
            Err(error) => {
                self.stopped(lane, error);
                None
            }
        }
    }

    fn clear(&mut self, lane: LaneId, function: &mut Function<D>) -> Result<(), Fault> {
        if let Some(reason) = self.reason.as_ref().filter(|_| self.lanes[lane.index()].clears()) {
            reason.clear();
        }
        let own = &mut self.lanes[lane.index()];
        let cleared = own.clear(function, lane).and_then(|()| match &mut self.windows {
            Some(windows) => windows.clear(lane, &own.stream, own.clears()),
            None => Ok(()),
        });
        cleared.map_err(|e| self.look(e.fault("clearing")))
    }

    fn lost(&self) -> Option<&Fault> {
        self.lost.as_ref()
    }
}

impl<D: Driver> Hygiene for Gpu<D> {
    /// Weights that are on their way are not waited for: their copies need none of what kernels need.
    fn settle(&mut self) -> Result<(), Fault> {
        let settled = self.loader.is_idle().and_then(|is_idle| match is_idle {
            true => self.driver.synchronize(),
            false => {
                let mut lanes = self.lanes.iter().map(|lane| &lane.stream).chain([&self.stream]);
                lanes.try_for_each(Stream::synchronize)
            }
        });
        settled.map_err(|e| {
            let fault = e.fault("waiting for the device");
            self.lost.get_or_insert_with(|| fault.clone());
            fault
        })
    }

    fn forget(&mut self) -> Result<(), Fault> {
        self.settle()?;
        self.plans.borrow_mut().forget_all();
        self.loader.forget();
        self.has_unzeroed |= self.loader.is_unzeroed();
        self.lanes.iter_mut().for_each(Lane::forget);
        self.bounce.as_mut().fill(0);
        let cleared = self.memory.iter().try_for_each(|memory| memory.clear(&self.stream));
        cleared.map_err(|e| e.fault("clearing the lanes' memory"))?;
        self.settle()
    }

    fn scrub(&mut self) -> Result<(), Fault> {
        self.settle()?;
        let scrubber = match self.scrubber.take() {
            Some(scrubber) => scrubber,
            None => Scrubber::load(&self.driver, self.stack_bytes)?,
        };
        let streams = [&self.stream].into_iter().chain(self.lanes.iter().map(|lane| &lane.stream));
        self.scrubber.insert(scrubber).run(&self.driver, streams)
    }

    fn finds_others(&self) -> bool {
        self.driver.properties().finds_others
    }
}
