//! The built-in device: wasm kernels on the worker's own thread.
//!
//! In reading order:
//! - [`layout`]: the ABI of wasm modules.
//! - `check`, `rewrite`, `bulk`, `polls`, `instrument`, `lines`, [`compiler`]: from a module to machine code (the compiling role).
//! - `engine`: the settings that both roles share.
//! - `memory`, `module`, `function`: from machine code to something that runs (the serving role).
//! - `bounds`, `prints`: what the kernels of a checked call may reach, and what they print.
//! - `launch`: running it.
//! - `alarm`: the thread that ends kernels in the middle of a block, where the device is interruptible.
//! - `policy`: what its processes may do.

mod alarm;
mod bounds;
mod bulk;
mod check;
pub mod compiler;
mod engine;
mod function;
mod instrument;
mod launch;
pub mod layout;
mod lines;
mod memory;
mod module;
mod policy;
mod polls;
mod prints;
mod rewrite;

use std::sync::Arc;
use std::time::Instant;

use pappus_protocol::from_worker::{Done, Hello, Survey};
use pappus_protocol::{ArenaId, Fault, FaultCode, LaneId, now_ns};
use pappus_shmem::{Mapping, memfd};
use wasmtime::Engine;

use self::alarm::{Alarm, Ringing};
use self::compiler::CpuCompiler;
use self::memory::{Handover, Pool};
use super::{
    Backend, Call, CopyIn, Device, FunctionImage, Functions, Hygiene, Lanes, Loading, Memory, Mode, Source,
    Weights, broken,
};
use crate::sandbox::policy::Policy;
pub use engine::settings;
pub use function::Function;

/// Bytes read from a descriptor at a time; they pass through the cache on their way to the pool.
const BOUNCE_BYTES: usize = 64 << 10;

/// The CPU: one lane, synchronous.
pub struct Cpu {
    engine: Engine,
    /// Ends calls in the middle of a block; none where machine code takes no notice of it.
    alarm: Option<Alarm>,
    handover: Arc<Handover>,
    hello: Hello,
    pool: Arc<Pool>,
    bounce: Box<[u8]>,
    finished: Option<Result<Done, Fault>>,
    /// Bytes of the pool that the last call may have written.
    used_bytes: u64,
    clear_ns: u64,
}

impl Cpu {
    /// The device, whose lane has no memory yet. An `interruptible` one runs code that was compiled as such, and no other; the
    /// thread that this takes has started when this returns.
    pub fn new(interruptible: bool) -> Result<Self, Fault> {
        let handover = Arc::new(Handover::default());
        Ok(Self {
            engine: engine::serving(handover.clone())?,
            alarm: interruptible.then(Alarm::start).transpose()?,
            handover,
            // Only a compiling engine has the fingerprint of its code, so one is made and dropped.
            hello: engine::hello(&engine::compiling()?, interruptible),
            pool: Arc::new(Pool::new(0).map_err(module::mapping)?),
            bounce: vec![0; BOUNCE_BYTES].into(),
            finished: None,
            used_bytes: 0,
            clear_ns: 0,
        })
    }

    fn execute(&mut self, function: &mut Function, call: &Call<'_>) -> Result<Done, Fault> {
        if now_ns() > call.deadline_ns {
            return Err(Fault::new(FaultCode::Deadline, "the deadline passed before the call ran"));
        }
        function.adopt(&self.pool, call.plan.pool_bytes)?;
        let start = Instant::now();
        // From here on the range is dirty, also if the call fails.
        self.used_bytes = call.plan.pool_bytes;
        for input in call.brought() {
            self.copy_in(input, call)?;
        }
        let copied_in = Instant::now();
        let deadline_ns = call.deadline_ns;
        let alarm = self.alarm.as_ref().map(|alarm| alarm.set(function.poll_pages.clone(), deadline_ns));
        let (plan, pool, set) = (call.plan, &*self.pool, alarm.as_ref());
        let mut execution =
            launch::Execution { function: &mut *function, pool, plan, deadline_ns, alarm: set };
        let ran = execution.run_and_print();
        function.interrupted = alarm.is_some_and(Ringing::end);
        ran?;
        let executed = Instant::now();
        for output in call.outputs {
            let arena = call.arenas.range(output.arena, output.offset, output.bytes)?;
            let copied = arena.copy_from(output.offset, &self.pool.mapping, output.from, output.bytes);
            copied.map_err(|_| broken())?;
        }
        let ns = |from: Instant, to: Instant| ((to - from).as_nanos() as u64).into();
        Ok(Done {
            copy_in_ns: ns(start, copied_in),
            execute_ns: ns(copied_in, executed),
            copy_out_ns: ns(executed, Instant::now()),
            clear_ns: std::mem::take(&mut self.clear_ns).into(),
        })
    }

    fn copy_in(&mut self, input: &CopyIn, call: &Call<'_>) -> Result<(), Fault> {
        let pool = &self.pool.mapping;
        match input.from {
            Source::Arena(arena) => {
                let arena = call.arenas.range(arena, input.offset, input.bytes)?;
                let copied = pool.copy_from(input.to, arena, input.offset, input.bytes);
                copied.map_err(|_| broken())
            }
            Source::Descriptor(index) => {
                let fd = call.descriptors.get(index).ok_or_else(broken)?;
                let mut done = 0;
                while done < input.bytes {
                    let part = (input.bytes - done).min(BOUNCE_BYTES as u64) as usize;
                    let part = &mut self.bounce[..part];
                    let at = input.offset.saturating_add(done);
                    memfd::read_exact_at(std::os::fd::AsFd::as_fd(fd), at, part).map_err(|e| {
                        Fault::new(
                            FaultCode::BadInvoke,
                            format!("reading {} bytes at {at} of descriptor {index}: {e}", part.len()),
                        )
                    })?;
                    pool.write(input.to + done, part).map_err(|_| broken())?;
                    done += part.len() as u64;
                }
                Ok(())
            }
        }
    }
}

impl Device for Cpu {
    fn hello(&self) -> Hello {
        self.hello.clone()
    }
}

impl Functions for Cpu {
    type Function = Function;

    fn load(&mut self, image: FunctionImage<'_>) -> Result<Function, Fault> {
        Function::load(&self.engine, &self.handover, image, self.alarm.is_some())
    }

    /// Weights are mapped where they lie in the host's memory, which takes no time.
    fn load_weights(&mut self, function: &mut Function, weights: Weights) {
        function.loaded = Some(function.map_weights(weights));
    }

    fn poll_weights(&mut self, function: &mut Function) -> Loading {
        Loading::Over(function.loaded.take().unwrap_or_else(|| Err(broken())))
    }

    fn unload_weights(&mut self, function: &mut Function, _keep: bool) -> Result<(), Fault> {
        function.unmap_weights()
    }
}

impl Memory for Cpu {
    fn lane_bytes(&self, _: LaneId) -> u64 {
        self.pool.bytes
    }

    /// Another pool, which is empty; the old memory is released with its contents.
    fn grow(&mut self, _: LaneId, bytes: u64) -> Result<(), Fault> {
        if bytes > layout::MAX_LEASE_BYTES {
            return Err(Fault::new(
                FaultCode::OutOfMemory,
                format!(
                    "{bytes} bytes for a lane, a kernel on this device can address at most {}",
                    layout::MAX_LEASE_BYTES
                ),
            ));
        }
        if bytes > self.pool.bytes {
            let pool = Pool::new(bytes).map_err(module::mapping)?;
            self.pool.release().map_err(module::mapping)?;
            self.pool = Arc::new(pool);
        }
        Ok(())
    }

    fn give_back(&mut self, _: LaneId) -> Result<(), Fault> {
        self.pool.release().map_err(module::mapping)?;
        self.pool = Arc::new(Pool::new(0).map_err(module::mapping)?);
        Ok(())
    }

    /// The CPU copies through the arena's own mapping.
    fn map_arena(&mut self, _: ArenaId, _: &Mapping) -> Result<(), Fault> {
        Ok(())
    }

    fn unmap_arena(&mut self, _: ArenaId) {}
}

impl Lanes for Cpu {
    fn lanes(&self) -> usize {
        1
    }

    fn start(&mut self, _: LaneId, function: &mut Function, call: &Call<'_>) {
        self.finished = Some(self.execute(function, call));
    }

    fn poll(&mut self, _: LaneId) -> Option<Result<Done, Fault>> {
        self.finished.take()
    }

    fn clear(&mut self, _: LaneId, function: &mut Function) -> Result<(), Fault> {
        let start = Instant::now();
        // Kernels reach whole pages.
        let used = std::mem::take(&mut self.used_bytes).next_multiple_of(layout::HOST_PAGE);
        let used = used.min(self.pool.mapping.bytes());
        self.pool.mapping.zero(0, used).map_err(|_| broken())?;
        function.restore()?;
        self.clear_ns = start.elapsed().as_nanos() as u64;
        Ok(())
    }
}

impl Hygiene for Cpu {
    /// Fresh memory for the pool; the old memory is released with its contents.
    fn forget(&mut self) -> Result<(), Fault> {
        self.pool.release().map_err(module::mapping)?;
        self.pool = Arc::new(Pool::new(self.pool.bytes).map_err(module::mapping)?);
        self.handover.take_back();
        self.bounce.fill(0);
        (self.finished, self.used_bytes, self.clear_ns) = (None, 0, 0);
        Ok(())
    }
}

impl Backend for Cpu {
    type Compiler = CpuCompiler;

    const POLICY: &'static Policy = &policy::POLICY;

    /// Its code in one form serves strangers as well.
    fn device(_: usize, mode: Mode) -> Result<Self, Fault> {
        Self::new(mode.interruptible)
    }

    fn compiler(interruptible: bool) -> Result<CpuCompiler, Fault> {
        CpuCompiler::new(interruptible)
    }

    /// There is nothing to look for.
    fn survey() -> Result<Survey, Fault> {
        Ok(Survey::default())
    }
}
