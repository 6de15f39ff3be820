//! What a device must do. Backends lie in folders with the same file names and pass one suite
//! (`tests/conformance.rs`).
//!
//! ```text
//!            load                 start          poll: none       poll: result      clear
//!   image ─────────► Function;  idle ───► running ───────► running ────────► done ───────► idle   (a lane)
//! ```
//!
//! Lanes may be asynchronous: `start` submits, `poll` asks. The loop in [`serve`](crate::serve) holds
//! up to [`Lanes::lanes`] calls in flight, answers as they finish, and clears a lane behind its answer
//! and before its next call. It drops no function, arena or descriptor that a running lane uses.

pub mod cpu;
pub mod cuda;
pub mod gpu;
pub mod hip;

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pappus_blueprint::{Blueprint, Plan};
use pappus_protocol::from_worker::{CodeInfo, Done, Hello, Reading, Survey};
use pappus_protocol::{ArenaId, Fault, FaultCode, LaneId};
use pappus_shmem::{Mapping, ValidatedMemfd};

use crate::arenas::Arenas;
use crate::sandbox::policy::Policy;

pub use pappus_blueprint::kernel_info::CodeError;
pub use pappus_protocol::limits::MAX_MODULE_BYTES;

/// One device, or the part of it that a worker may use, in four roles.
pub trait Device: Memory + Lanes + Hygiene {
    /// The greeting: the device's name and the fingerprint that machine code must have.
    fn hello(&self) -> Hello;
}

/// Loads functions and their weights.
pub trait Functions {
    /// A loaded function: its kernels ready to launch, its weights mapped once they are there. Dropping it unloads it.
    type Function;

    /// Loads a function, without its weights.
    fn load(&mut self, image: FunctionImage<'_>) -> Result<Self::Function, Fault>;

    /// Begins to bring a function's absent weights to the device; [`Functions::poll_weights`] goes on. Calls of the
    /// function wait for the weights, calls of other functions do not.
    fn load_weights(&mut self, function: &mut Self::Function, weights: Weights);

    /// Goes on with [`Functions::load_weights`], without waiting. Functions are polled in the order in which their
    /// loads began, none behind a load that is [`Loading::Submitting`].
    fn poll_weights(&mut self, function: &mut Self::Function) -> Loading;

    /// Removes a function's weights, whether there or on their way; no call of the function runs. With `keep`, the next
    /// load that suits takes their memory, which is freed otherwise.
    fn unload_weights(&mut self, function: &mut Self::Function, keep: bool) -> Result<(), Fault>;

    /// Unloads a function and clears its variables and weights, because another domain follows.
    fn unload(&mut self, function: Self::Function) -> Result<(), Fault> {
        drop(function);
        Ok(())
    }
}

/// The memory that lanes have, and that of clients.
pub trait Memory {
    /// Bytes of memory that a lane has.
    fn lane_bytes(&self, lane: LaneId) -> u64;

    /// Gives a lane at least `bytes` of memory, in what the device can map; its addresses and what it has stay. What is
    /// new is zeroed before a kernel can see it. All lanes are idle, or this one where [lanes are shared](Lanes::are_shared). After
    /// a failure the lane has what it had.
    fn grow(&mut self, lane: LaneId, bytes: u64) -> Result<(), Fault>;

    /// Takes all memory from an idle lane: it is cleared and free for other processes when this returns. Other lanes may
    /// be busy. An error ends the worker.
    fn give_back(&mut self, lane: LaneId) -> Result<(), Fault>;

    /// An arena was mapped: a device that copies by itself pins it here.
    fn map_arena(&mut self, arena: ArenaId, mapping: &Mapping) -> Result<(), Fault>;

    /// The state of a session is in memory of the device from now on, in place of an arena of so many bytes: in memory that other
    /// workers have a descriptor of, or in new memory, zeroed, whose descriptor comes back. No lane runs a call with that state. An
    /// error where the device has no such memory.
    fn hold_state(
        &mut self,
        _arena: ArenaId,
        _bytes: u64,
        _descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, Fault> {
        Err(Fault::new(FaultCode::Device, "the device has no memory of its own"))
    }

    /// The arena, or what is in its place, is about to be unmapped.
    fn unmap_arena(&mut self, arena: ArenaId);

    /// True if [`Memory::rest`] has something to do.
    fn wants_rest(&self) -> bool {
        false
    }

    /// The worker has nothing to do: goes a short step on in making ready what a later call may need.
    fn rest(&mut self) {}
}

/// Runs calls, each on a lane.
pub trait Lanes: Functions {
    /// How many calls may be in flight.
    fn lanes(&self) -> usize;

    /// True if strangers share the lanes: no kernel reaches another lane's memory, and each ends soon after its time is over,
    /// as long as its lane is polled.
    fn are_shared(&self) -> bool {
        false
    }

    /// Makes ready what [`Lanes::start`] will need for a call that waits for its turn, so that it starts at once then; nothing
    /// of it runs. Its lane may have `memory_bytes` of memory. All lanes are idle.
    fn prepare(
        &mut self,
        _lane: LaneId,
        _function: &mut Self::Function,
        _call: &Call<'_>,
        _memory_bytes: u64,
    ) {
    }

    /// Submits a call on an idle, cleared lane. [`Lanes::poll`] returns its failures.
    fn start(&mut self, lane: LaneId, function: &mut Self::Function, call: &Call<'_>);

    /// The end of the lane's call, once it is there: its timings, or why it failed. After a fault
    /// nothing writes to the call's regions any more.
    fn poll(&mut self, lane: LaneId) -> Option<Result<Done, Fault>>;

    /// Clears everything that the lane's finished call left in memory: its memory and its
    /// modules' variables; [`Hygiene::scrub`] clears on-chip memory. The clearing may still run when this returns, but
    /// ends before the lane's next call starts. An error ends the worker, and its memory with it.
    fn clear(&mut self, lane: LaneId, function: &mut Self::Function) -> Result<(), Fault>;

    /// Why no call can run in this process any more; none while calls can.
    fn lost(&self) -> Option<&Fault> {
        None
    }
}

/// Leaves nothing of one domain, or of one call, to the next.
pub trait Hygiene {
    /// Waits until the device does nothing for this worker any more, clearing included.
    fn settle(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Clears all memory that the domain served so far used, and drops its graphs and measured times. No function is
    /// loaded, all lanes are idle and cleared; arenas are unmapped later. [`Hygiene::scrub`] follows and clears on-chip memory.
    fn forget(&mut self) -> Result<(), Fault>;

    /// Clears what survives kernels outside of memory: shared memory, registers, stacks. All lanes are
    /// idle.
    fn scrub(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// True if kernels may find on the chip what another process's kernels left.
    fn finds_others(&self) -> bool {
        false
    }
}

/// The parts of a function, as they arrive.
#[derive(Debug)]
pub struct FunctionImage<'a> {
    /// The blueprint, already judged.
    pub blueprint: &'a Blueprint,
    /// One loadable file for each of the blueprint's modules.
    pub modules: Vec<File>,
    /// Bytes of its weights as they are packed.
    pub weight_bytes: u64,
}

impl FunctionImage<'_> {
    /// Checks that there is a file for each of the blueprint's modules.
    fn check(&self) -> Result<(), Fault> {
        let (named, given) = (self.blueprint.modules().len(), self.modules.len());
        if named == given {
            return Ok(());
        }
        Err(Fault::new(FaultCode::Load, format!("the blueprint names {named} modules, {given} were given")))
    }

    /// Refuses launches that need something the device lacks, although the supervisor sends no such function.
    fn check_plain(&self) -> Result<(), Fault> {
        let special = self.blueprint.launches().find_map(|launch| Some((launch.kernel, launch.special()?)));
        let Some((kernel, what)) = special else { return Ok(()) };
        let kernel = &self.blueprint.kernels()[kernel].name;
        let message = format!("kernel `{kernel}` is launched with {what}, which this device does not have");
        Err(Fault::new(FaultCode::Load, message))
    }
}

/// A function's packed weights.
#[derive(Debug)]
pub enum Weights {
    /// In host memory.
    Host {
        /// The bytes.
        memfd: ValidatedMemfd,
        /// Other workers will want the device's copy.
        export: bool,
    },
    /// In memory of the device, from a worker that loaded them before.
    Device {
        /// Names the memory.
        descriptor: OwnedFd,
        /// Bytes of the memory; the weights may be shorter.
        bytes: u64,
    },
}

/// How far weights are on their way to the device.
#[derive(Debug)]
pub enum Loading {
    /// Not all copies are submitted.
    Submitting,
    /// They are, and are not over.
    Copying,
    /// They are there, or do not load.
    Over(Result<LoadedWeights, Fault>),
}

/// Weights that are on the device.
#[derive(Debug)]
pub struct LoadedWeights {
    /// Bytes of device memory that they take.
    pub bytes: u64,
    /// Their memory for other workers, where that was asked for and they do not have it yet.
    pub export: Option<OwnedFd>,
}

/// One call, every range of it checked: arenas, pool offsets and lengths are inside what they name.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What to execute. Equal calls come with the same plan, so work done for a plan can be kept.
    pub plan: &'a Arc<Plan>,
    /// Where each part of its inputs is: what [`Call::brought`] says goes into the pool first.
    pub inputs: &'a [CopyIn],
    /// Bytes to bring back at the end.
    pub outputs: &'a [CopyOut],
    /// What the ranges of inputs and outputs refer to.
    pub arenas: &'a Arenas,
    /// What [`Source::Descriptor`] refers to.
    pub descriptors: &'a [OwnedFd],
    /// `CLOCK_MONOTONIC` nanoseconds after which the call has failed.
    pub deadline_ns: u64,
    /// No other lane is busy, and kernels run one by one, so that a fault names the guilty one.
    pub alone: bool,
}

impl Call<'_> {
    /// What is brought into the pool: inputs that the device needs.
    pub fn brought(&self) -> impl Iterator<Item = &CopyIn> {
        self.inputs.iter().filter(|input| input.bytes > 0 && input.reached)
    }
}

/// Where input bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An open arena.
    Arena(ArenaId),
    /// One of the call's descriptors, read with `pread`: it may be shorter than announced.
    Descriptor(usize),
}

/// A contiguous part of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyIn {
    /// Where from.
    pub from: Source,
    /// First byte there.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Offset in the pool.
    pub to: u64,
    /// True if the device needs the buffer.
    pub reached: bool,
}

/// An output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOut {
    /// Offset in the pool.
    pub from: u64,
    /// The arena that takes it.
    pub arena: ArenaId,
    /// First byte there.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// A plan that does not fit its function: the planner's fault or ours, never the caller's.
#[cold]
fn broken() -> Fault {
    Fault::new(FaultCode::Internal, "the plan does not fit the function it was made for")
}

/// What machine code a device runs, and for whom.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mode {
    /// True if calls end in the middle of a kernel, where that takes machine code of its own.
    pub interruptible: bool,
    /// How long a call may have the device where strangers' calls run beside each other and that takes code of its own: only
    /// kernels are loaded that cannot leave a window of addresses, and each lane is one.
    pub shared: Option<Duration>,
}

/// A kind of device, as the roles start it: each backend's folder has one.
pub trait Backend: Device + Sized {
    /// Turns modules into machine code for the device.
    type Compiler: Compiler;

    /// What its processes may do.
    const POLICY: &'static Policy;

    /// The first device that the process sees, whose lanes have no memory yet.
    fn device(lanes: usize, mode: Mode) -> Result<Self, Fault>;

    /// A compiler for devices that are as [`interruptible`](Mode::interruptible).
    fn compiler(interruptible: bool) -> Result<Self::Compiler, Fault>;

    /// Which devices there are; an error says what is missing. None of them is kept busy.
    fn survey() -> Result<Survey, Fault>;

    /// What the devices with these UUIDs measure of themselves, in the same order; an error says what is missing.
    fn readings(_devices: &[String]) -> Result<Vec<Reading>, Fault> {
        Err(Fault::new(FaultCode::Device, "devices of this kind are not asked what they measure"))
    }
}

/// A compiler for modules of one kind of device.
pub trait Compiler {
    /// As the device's own, so that both agree on the fingerprint.
    fn hello(&self) -> Hello;

    /// Judges a module and turns it into what [`Functions::load`] takes.
    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault>;

    /// As [`Compiler::compile`], with checks of every access to memory, for calls of a
    /// [checked](pappus_blueprint::Blueprint::checked) blueprint.
    fn compile_checked(&self, _module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        Err(Fault::new(FaultCode::BadModule, "kernels for this device have no checks"))
    }
}
