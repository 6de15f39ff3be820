//! NVIDIA GPUs: several calls in flight on the lanes of one context.
//!
//! In reading order:
//! - `driver`: the driver's library, its results, and types that own what it gives.
//! - `check`, `elf`, [`compiler`]: from a module to machine code (the compiling role); [`survey`]: which
//!   devices there are.
//! - `engine`, `nvml`: the context that both roles need, and what it costs.
//! - `memory`, `module`, `function`: from machine code to something that runs (the serving role).
//! - `launch`, `scripts`: plans with addresses filled in, and graphs of them.
//! - `lane`: a call from its first copy to its clearing; `moves`: both for small calls; `scrub`: what no
//!   fill reaches.

#![allow(unsafe_code, reason = "the driver is a C library")]

mod check;
pub mod compiler;
mod driver;
mod elf;
mod engine;
mod function;
mod lane;
mod launch;
mod layout;
mod memory;
mod module;
mod moves;
mod nvml;
mod scripts;
mod scrub;
pub mod survey;

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::{Fault, FaultCode, now_ns};
use pappus_shmem::{Mapping, memfd};

use self::driver::CudaError;
use self::driver::Stream;
use self::driver::memory::{HostBuffer, Pinned};
use self::engine::Engine;
pub use self::function::Function;
use self::lane::{Lane, Start, Transfer};
use self::launch::{Bases, Script};
use self::layout::{BOUNCE_BYTES, GRAPH_STEPS, RUNS_BEFORE_GRAPH};
use self::memory::{Pool, WeightsLoader};
use self::moves::Mover;
use self::scripts::{Key, Prepared, Scripts};
use self::scrub::Scrubber;
use super::{Call, CopyIn, Device, FunctionImage, Source};

/// Whether a module's bytes may be given to a driver, which is told no length: the part of compiling that needs no
/// GPU.
pub fn judge(module: &[u8]) -> Result<(), String> {
    match check::format(module)? {
        check::Format::Cubin => elf::judge(module).map(drop),
        check::Format::Fatbin => Ok(()),
        check::Format::Ptx => {
            std::str::from_utf8(module).map(check::ptx_params).map(drop).map_err(|e| e.to_string())
        }
    }
}

/// One GPU, or a slice of one.
#[derive(Debug)]
pub struct Cuda {
    // In the order in which they must go; the context last.
    lanes: Vec<Lane>,
    scripts: Rc<RefCell<Scripts>>,
    pool: Pool,
    loader: WeightsLoader,
    /// Pinned arenas by number.
    arenas: std::collections::HashMap<u64, Pinned>,
    bounce: HostBuffer,
    bounce_events: [driver::Event; 2],
    /// For work that belongs to no lane.
    stream: Stream,
    /// None where kernels cannot use the addresses of pinned memory.
    mover: Option<Mover>,
    scrubber: Option<Scrubber>,
    /// The largest stack that a thread of any kernel loaded so far can have had.
    stack_bytes: u32,
    lost: Option<Fault>,
    engine: Engine,
}

impl Cuda {
    /// The first GPU that the process sees, without a lease.
    pub fn new(lanes: usize) -> Result<Self, Fault> {
        let engine = Engine::start()?;
        let failed = |e: CudaError| e.fault("preparing the device");
        Ok(Self {
            lanes: (0..lanes.max(1)).map(|_| Lane::create()).collect::<Result<_, _>>().map_err(failed)?,
            scripts: Rc::default(),
            pool: Pool::reserve(&engine.context, lanes.max(1))?,
            loader: WeightsLoader::default(),
            arenas: Default::default(),
            bounce: HostBuffer::allocate(BOUNCE_BYTES).map_err(failed)?,
            bounce_events: [
                driver::Event::untimed().map_err(failed)?,
                driver::Event::untimed().map_err(failed)?,
            ],
            stream: Stream::create().map_err(failed)?,
            mover: engine.context.info.host_addresses.then(Mover::load).transpose()?,
            scrubber: None,
            stack_bytes: 0,
            lost: None,
            engine,
        })
    }

    /// Submits a call; an error is the driver's or the call's own.
    fn submit(&mut self, lane: usize, function: &mut Function, call: &Call<'_>) -> Result<(), Stop> {
        let wide = call.plan.pool_bytes > self.pool.lane_bytes();
        let base = self.pool.base(lane, wide);
        self.lanes[lane].begin(&Start {
            base,
            used_bytes: call.plan.pool_bytes,
            deadline_ns: call.deadline_ns,
            alone: call.alone,
            wide,
        })?;
        if now_ns() > call.deadline_ns {
            return Err(Stop::Call(Fault::new(
                FaultCode::Deadline,
                "the deadline passed before the call ran",
            )));
        }
        for input in call.inputs.iter().filter(|input| input.bytes > 0) {
            self.copy_in(lane, base, input, call)?;
        }
        let prepared = self.prepare(
            lane,
            function,
            call,
            Bases { pool: base, weights: function.weights.as_ref().map_or(0, |weights| weights.base()) },
            wide,
        )?;
        for output in call.outputs.iter().filter(|output| output.bytes > 0) {
            let arena = call.arenas.range(output.arena, output.offset, output.bytes)?;
            let to = arena.range(output.offset, output.bytes).map_err(|_| launch::broken())?;
            self.lanes[lane].expect(Transfer { host: to, device: base + output.from, bytes: output.bytes });
        }
        if !self.lanes[lane].run_whole(&prepared, self.mover.as_ref())? {
            self.lanes[lane].run(prepared)?;
        }
        Ok(())
    }

    /// The plan with addresses for this lane, as a graph once it ran often enough.
    fn prepare(
        &mut self,
        lane: usize,
        function: &mut Function,
        call: &Call<'_>,
        bases: Bases,
        wide: bool,
    ) -> Result<Rc<Prepared>, Stop> {
        let key = Key { function: function.id, plan: std::sync::Arc::as_ptr(call.plan) as usize, lane, wide };
        let known = self.scripts.borrow_mut().get(&key);
        let stream = &self.lanes[lane].stream;
        let prepared = match known {
            Some(prepared) => prepared,
            None => {
                let script = Script::write(&self.engine.context, stream, function, call.plan, lane, bases)?;
                let prepared = Rc::new(Prepared::new(script, call.plan.clone()));
                self.scripts.borrow_mut().insert(key, &prepared);
                prepared
            }
        };
        let pays =
            prepared.runs.get() >= RUNS_BEFORE_GRAPH && GRAPH_STEPS.contains(&call.plan.expanded_steps);
        if pays && prepared.graph.get().is_none() && !prepared.direct_only.get() && !call.alone {
            let graph = stream.capture(|stream| {
                prepared.script.submit(stream, &mut launch::Cursor::default(), u32::MAX, &mut None).map(drop)
            });
            match graph {
                Ok(graph) => {
                    let _ = prepared.graph.set(graph);
                    self.scripts.borrow_mut().grown(&key, call.plan.expanded_steps);
                }
                Err(e) if e.is_fatal() => return Err(e.into()),
                // It runs without.
                Err(_) => prepared.direct_only.set(true),
            }
        }
        Ok(prepared)
    }

    fn copy_in(&mut self, lane: usize, base: u64, input: &CopyIn, call: &Call<'_>) -> Result<(), Stop> {
        let to = base + input.to;
        match input.from {
            Source::Arena(arena) => {
                let arena = call.arenas.range(arena, input.offset, input.bytes)?;
                let from = arena.range(input.offset, input.bytes).map_err(|_| launch::broken())?;
                self.lanes[lane].bring(Transfer { host: from, device: to, bytes: input.bytes });
                Ok(())
            }
            Source::Descriptor(index) => {
                let fd = call.descriptors.get(index).ok_or_else(launch::broken)?;
                self.copy_through(lane, to, fd, index, input)
            }
        }
    }

    /// Reads a descriptor into pinned memory and on to the device, one half while the other travels.
    fn copy_through(
        &mut self,
        lane: usize,
        to: u64,
        fd: &OwnedFd,
        index: usize,
        input: &CopyIn,
    ) -> Result<(), Stop> {
        let half = BOUNCE_BYTES / 2;
        let mut done = 0;
        for turn in 0.. {
            let left = input.bytes - done;
            if left == 0 {
                break;
            }
            let (event, start) = (&self.bounce_events[turn % 2], turn % 2 * half);
            while turn >= 2 && !event.has_passed()? {
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
            let stream = &self.lanes[lane].stream;
            // SAFETY: inside the buffer, which is neither read nor written before the event below passed.
            unsafe { stream.copy_in(to + done, self.bounce.as_ptr().add(start), bytes as u64) }?;
            stream.record(event)?;
            done += bytes as u64;
        }
        // The halves are everybody's: they are free again before anything else uses them.
        for event in &self.bounce_events {
            while !event.has_passed()? {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// An error of the driver while a call was submitted or running.
    fn stopped(&mut self, lane: usize, error: CudaError) {
        if error.is_fatal() {
            self.lose(lane, error);
            return;
        }
        let guilty = self.lanes[lane].last_kernel();
        let message = match &guilty {
            Some((_, name)) => format!("kernel `{name}` cannot be launched like this: {error}"),
            None => format!("the call cannot be submitted: {error}"),
        };
        let code = if error.is_out_of_memory() { FaultCode::OutOfMemory } else { FaultCode::KernelTrap };
        let kernel = guilty.map(|(index, _)| index);
        self.lanes[lane].fail(Fault { code, kernel, message });
    }

    /// Something failed outside of any call: perhaps because the context is lost, as all are under MPS when a kernel
    /// of another process faults. Returns the failure.
    fn look(&mut self, fault: Fault) -> Fault {
        if let Err(error) = self.stream.has_ended()
            && error.is_fatal()
        {
            self.lost.get_or_insert_with(|| error.fault("the GPU or its driver failed"));
        }
        fault
    }

    /// The context is lost. Only of a call that ran alone is it known which kernel it was.
    fn lose(&mut self, lane: usize, error: CudaError) {
        let guilty = self.lanes[lane].last_kernel().filter(|_| self.lanes[lane].is_alone());
        let fault = match error.kernel_cause() {
            Some(cause) => {
                let who = match &guilty {
                    Some((_, name)) => format!("kernel `{name}` failed"),
                    None => "a kernel failed".to_owned(),
                };
                let kernel = guilty.map(|(index, _)| index);
                Fault { code: FaultCode::KernelTrap, kernel, message: format!("{who}: {cause} ({error})") }
            }
            None => Fault::new(FaultCode::Device, format!("the GPU or its driver failed: {error}")),
        };
        self.lost.get_or_insert(fault);
    }
}

/// Why a call was not submitted.
enum Stop {
    Driver(CudaError),
    Call(Fault),
}

impl From<CudaError> for Stop {
    fn from(error: CudaError) -> Self {
        Self::Driver(error)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Call(fault)
    }
}

impl Device for Cuda {
    type Function = Function;

    fn hello(&self) -> Hello {
        self.engine.hello()
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn lane_bytes(&self) -> u64 {
        self.pool.lane_bytes()
    }

    fn lease(&mut self, bytes: u64) -> Result<u64, Fault> {
        self.settle()?;
        self.scripts.borrow_mut().forget_all();
        self.lanes.iter_mut().for_each(Lane::forget_pool);
        let resized = self.pool.resize(&self.engine.context, &self.stream, bytes);
        resized.map_err(|fault| self.look(fault))?;
        Ok(self.pool.bytes())
    }

    fn load(&mut self, image: FunctionImage<'_>) -> Result<Function, Fault> {
        let lanes = self.lanes.len();
        let loaded =
            Function::load(&self.engine.context, &self.stream, &mut self.loader, &self.scripts, image, lanes);
        let loaded = loaded.map_err(|fault| self.look(fault))?;
        self.stack_bytes = self.stack_bytes.max(loaded.stack_bytes());
        if let Some(scrubber) = &mut self.scrubber {
            // Made now, not when a call or another domain waits for the scrub.
            scrubber.fit(self.stack_bytes)?;
        }
        Ok(loaded)
    }

    /// Also variables, as the module says they begin: they are the owner's.
    fn unload(&mut self, function: Function) -> Result<(), Fault> {
        function.wipe(&self.stream).map_err(|e| e.fault("clearing variables"))?;
        self.settle()
    }

    fn forget(&mut self) -> Result<(), Fault> {
        self.settle()?;
        self.scripts.borrow_mut().forget_all();
        self.loader.forget();
        self.lanes.iter_mut().for_each(Lane::forget);
        self.bounce.as_mut().fill(0);
        self.pool.clear(&self.stream).map_err(|e| e.fault("clearing the pool"))?;
        self.settle()
    }

    fn export_weights(&mut self, function: &mut Function) -> Option<(OwnedFd, u64)> {
        function.weights.as_mut()?.take_export()
    }

    fn map_arena(&mut self, arena: u64, mapping: &Mapping) -> Result<(), Fault> {
        // SAFETY: the mapping is this long, and `unmap_arena` comes before it goes.
        let pinned = unsafe { Pinned::register(mapping.base(), mapping.bytes(), false) };
        let pinned = pinned.map_err(|e| self.look(e.fault("pinning the arena")))?;
        self.arenas.insert(arena, pinned);
        Ok(())
    }

    fn unmap_arena(&mut self, arena: u64) {
        if let Some(pinned) = self.arenas.remove(&arena) {
            self.scripts.borrow_mut().forget_host(pinned.base().addr(), pinned.bytes());
        }
    }

    fn start(&mut self, lane: usize, function: &mut Function, call: &Call<'_>) {
        match self.submit(lane, function, call) {
            Ok(()) => {}
            Err(Stop::Call(fault)) => self.lanes[lane].fail(fault),
            Err(Stop::Driver(error)) => self.stopped(lane, error),
        }
    }

    fn poll(&mut self, lane: usize) -> Option<Result<Done, Fault>> {
        if let Some(fault) = &self.lost {
            return Some(Err(fault.clone()));
        }
        match self.lanes[lane].poll() {
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

    fn clear(&mut self, lane: usize, function: &mut Function) -> Result<(), Fault> {
        let cleared = self.lanes[lane].clear(function, lane);
        cleared.map_err(|e| self.look(e.fault("clearing")))
    }

    fn settle(&mut self) -> Result<(), Fault> {
        self.engine.context.synchronize().map_err(|e| {
            let fault = e.fault("waiting for the device");
            self.lost.get_or_insert_with(|| fault.clone());
            fault
        })
    }

    fn scrub(&mut self) -> Result<(), Fault> {
        self.settle()?;
        let scrubber = match self.scrubber.take() {
            Some(scrubber) => scrubber,
            None => Scrubber::load(&self.engine.context, self.stack_bytes)?,
        };
        self.scrubber.insert(scrubber).run(&self.engine.context, &self.stream)
    }

    fn lost(&self) -> Option<&Fault> {
        self.lost.as_ref()
    }
}
