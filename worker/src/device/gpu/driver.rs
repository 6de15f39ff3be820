//! What a GPU's driver must offer: the seam between this folder, which runs calls, and a backend such as
//! [`cuda`](crate::device::cuda), which binds one driver library.
//!
//! ```text
//!  Gpu<D> (mod, lane, plan_cache …)  ──calls──►  D: Driver  ──calls──►  libcuda.so.1, libamdhip64.so …
//! ```
//!
//! What holds for every backend:
//! - Addresses are device addresses as kernels see them, sizes are bytes. An address without memory is an
//!   error of the call or of the work, never undefined behaviour of the host.
//! - A process has one context on one device, and one thread calls the driver; nothing here is `Send`.
//! - Owning types give back what they own when they are dropped. Their owners drop them in the right order:
//!   graphs before the modules whose kernels are in them, mappings before the memory's range.
//! - Work on one stream runs in the order of submission; work on different streams may overlap.
//! - An error of work that was submitted earlier may be returned by any later call. [`DriverError::is_fatal`]
//!   tells it from a refusal of the call itself: behind a fatal error nothing runs in the process any more.
//! - Nothing allocates host memory while work is submitted, and nothing waits but what says so.

use std::fmt::{Debug, Display};
use std::os::fd::{BorrowedFd, OwnedFd};

use pappus_blueprint::TensorMap;
use pappus_blueprint::limits::MAP_BYTES;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::{Fault, FaultCode};

use crate::device::CodeError;

/// Slots of a tensor map.
pub const TENSOR_MAP_SLOTS: usize = MAP_BYTES as usize / 8;

/// A driver with its context on one device.
pub trait Driver: Debug + Sized {
    /// An error of the driver.
    type Error: DriverError;
    /// A queue of work.
    type Stream: Stream<
            Error = Self::Error,
            Event = Self::Event,
            Graph = Self::Graph,
            Kernel = Self::Kernel,
            Launch = Self::Launch,
        >;
    /// A point in a stream.
    type Event: Event<Error = Self::Error>;
    /// Work that was captured and is ready to be submitted as one.
    type Graph: Graph<Error = Self::Error, Kernel = Self::Kernel, Launch = Self::Launch>;
    /// A launch in captured work.
    type Launch: Copy + Debug;
    /// Loaded machine code.
    type Module: Module<Error = Self::Error, Kernel = Self::Kernel>;
    /// A kernel of a loaded module; its holder holds the module.
    type Kernel: Copy + Debug;
    /// Device memory without an address.
    type Memory: Memory<Error = Self::Error>;
    /// Host memory that the device may copy from and to by itself; unpinned when dropped.
    type Pinned: Debug;
    /// Pinned host memory of the worker's own.
    type HostBuffer: HostBuffer;
    /// A small allocation of device memory.
    type DeviceBuffer: DeviceBuffer;

    /// The greeting of both roles: who this is, and what compiled code depends on.
    fn hello(&self) -> Hello;

    /// What the device is like.
    fn properties(&self) -> &Properties;

    /// Waits until everything that was submitted to any stream is over.
    fn synchronize(&self) -> Result<(), Self::Error>;

    /// Makes room for stacks of this many bytes, behind all kernels of the process. No launch of a kernel that needs no more makes
    /// room itself then, which would wait as long.
    fn make_stacks(&self, _bytes: u32) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A stream that does not wait for any other.
    fn create_stream(&self) -> Result<Self::Stream, Self::Error>;

    /// An event that says whether it has passed and, if `timed`, when.
    fn create_event(&self, timed: bool) -> Result<Self::Event, Self::Error>;

    /// What this process loads of an image from the compiling role: the `fenced` code or the plain one.
    fn open(image: Vec<u8>, fenced: bool) -> Result<Code, CodeError> {
        match fenced {
            true => Err("this device has no fenced code".into()),
            false => Ok(Code { machine: image, variables_bytes: 0, initial: Vec::new() }),
        }
    }

    /// The memory of machine code that kernels can write, which outlives a call. The image comes from the compiling
    /// role and is judged once more: everything that its headers name must lie inside it.
    fn writable_sections(image: &[u8]) -> Result<Vec<Section>, CodeError>;

    /// Loads machine code that [`Driver::writable_sections`] accepted, all of it and at once.
    fn load_module(&self, image: &[u8]) -> Result<Self::Module, Self::Error>;

    /// A tensor map over memory at `address`, as kernels take it; an error of the call where the driver refuses it. Asked
    /// only of devices that have [clusters](Properties::has_clusters).
    fn encode_tensor_map(&self, map: &TensorMap, address: u64) -> Result<[u64; TENSOR_MAP_SLOTS], Fault> {
        let _ = (map, address);
        Err(Fault::new(FaultCode::BadInvoke, "this device has no tensor maps"))
    }

    /// The kernel that `copy_kernels` launches, with its module.
    fn copy_kernel(&self) -> Result<(Self::Module, Self::Kernel), Fault>;

    /// Kernels that clear on-chip memory, but for stacks; in the order in which they run.
    fn scrub_kernels(&self) -> Result<Vec<ScrubKernelOf<Self>>, Fault>;

    /// A kernel that clears at least `stack_bytes` of each thread's stack.
    fn stack_scrub_kernel(&self, stack_bytes: u32) -> Result<ScrubKernelOf<Self>, Fault>;

    /// The unit of sizes of device memory and of offsets of mappings: a power of two.
    fn granularity(&self) -> Result<u64, Self::Error>;

    /// Device memory of `bytes`, a multiple of the granularity; other processes can map it if `export`.
    fn create_memory(&self, bytes: u64, export: bool) -> Result<Self::Memory, Self::Error>;

    /// Memory that another process exported. The descriptor stays open until the memory is mapped.
    fn import_memory(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Self::Memory, Self::Error>;

    /// Reserves addresses.
    fn reserve(&self, bytes: u64) -> Result<u64, Self::Error>;

    /// Gives reserved addresses back, in which nothing is mapped any more. A backend may keep them for the
    /// life of the process. Like [`Driver::unmap`] without `self`: destructors call it, and a process has one
    /// context.
    fn free(base: u64, bytes: u64);

    /// Maps all of `memory` at a reserved address where nothing is mapped. The hardware must enforce `access`.
    /// After an error nothing is mapped there.
    fn map(&self, at: u64, memory: &Self::Memory, access: Access) -> Result<(), Self::Error>;

    /// Unmaps memory that was mapped at `at` with this size, and that nothing running uses. May wait.
    fn unmap(at: u64, bytes: u64);

    /// Pins host memory; for copies to the device only if `read_only`.
    ///
    /// # Safety
    /// `base` starts a mapping of at least `bytes`, which outlives the value.
    unsafe fn pin(&self, base: *mut u8, bytes: u64, read_only: bool) -> Result<Self::Pinned, Self::Error>;

    /// Pinned host memory, zeroed.
    fn allocate_host(&self, bytes: usize) -> Result<Self::HostBuffer, Self::Error>;

    /// Device memory with undefined content.
    fn allocate_device(&self, bytes: u64) -> Result<Self::DeviceBuffer, Self::Error>;
}

/// A queue of work that runs in order. Submitting does not wait for the work.
pub trait Stream: Debug {
    /// As the driver's.
    type Error;
    /// As the driver's.
    type Event;
    /// As the driver's.
    type Graph;
    /// As the driver's.
    type Kernel;
    /// As the driver's.
    type Launch;

    /// Copies host memory to the device.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes` until the copy is over.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64) -> Result<(), Self::Error>;

    /// Copies device memory to the host.
    ///
    /// # Safety
    /// `to` is valid for writes of `bytes` until the copy is over.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Copies within the device.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Sets bytes of device memory.
    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<(), Self::Error>;

    /// Launches a kernel with its parameters as they lie in its parameter memory; they are copied before this
    /// returns. A shape that the device does not take is an error of the call.
    fn launch(&self, kernel: Self::Kernel, shape: &Shape, params: &[u8]) -> Result<(), Self::Error>;

    /// Marks how far the stream got.
    fn record(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// As [`Stream::record`], and a captured stream marks the event whenever its graph runs.
    fn record_in_graph(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Waits until everything submitted to it is over.
    fn synchronize(&self) -> Result<(), Self::Error>;

    /// True if everything submitted so far has run; a fatal error says that the context is lost.
    fn has_ended(&self) -> Result<bool, Self::Error>;

    /// Submits a graph.
    fn launch_graph(&self, graph: &Self::Graph) -> Result<(), Self::Error>;

    /// From here on, what this thread submits to the stream is collected and does not run.
    fn begin_capture(&self) -> Result<(), Self::Error>;

    /// The launch that was collected last, for [`Graph::change`].
    fn collected(&self) -> Result<Self::Launch, Self::Error>;

    /// Ends the capture, also a failed one, and makes a graph of the collected work. What launches of it are known by stays
    /// only with `keeps_template`.
    fn end_capture(&self, keeps_template: bool) -> Result<Self::Graph, Self::Error>;

    /// Collects what `submit` submits into a graph that stays as it is.
    fn capture(
        &self,
        submit: impl FnOnce(&Self) -> Result<(), Self::Error>,
    ) -> Result<Self::Graph, Self::Error> {
        self.begin_capture()?;
        let submitted = submit(self);
        let graph = self.end_capture(false);
        submitted?;
        graph
    }

    /// Collects what `submit` submits into a graph with launches that can be changed, which it returns.
    fn capture_to_change<T>(
        &self,
        submit: impl FnOnce(&Self) -> Result<T, Self::Error>,
    ) -> Result<(Self::Graph, T), Self::Error> {
        self.begin_capture()?;
        let submitted = submit(self);
        let graph = self.end_capture(true);
        let launches = submitted?;
        Ok((graph?, launches))
    }
}

/// Work that is submitted as one.
pub trait Graph: Debug {
    /// As the driver's.
    type Error;
    /// As the driver's.
    type Kernel;
    /// As the driver's.
    type Launch;

    /// Changes a launch of the same kernel, from the next time on that the graph is submitted. After an error the launch is as it
    /// was; a backend that changes none has no other answer.
    fn change(
        &self,
        launch: Self::Launch,
        kernel: Self::Kernel,
        shape: &Shape,
        params: &[u8],
    ) -> Result<(), Self::Error>;
}

/// A point in a stream.
pub trait Event: Debug {
    /// As the driver's.
    type Error;

    /// True if everything before the event is over. A fatal error of earlier work shows here.
    fn has_passed(&self) -> Result<bool, Self::Error>;

    /// Nanoseconds since an earlier event; zero unless both are timed and have passed.
    fn ns_since(&self, earlier: &Self) -> u64;
}

/// Loaded machine code; unloaded when dropped.
pub trait Module: Debug {
    /// As the driver's.
    type Error;
    /// As the driver's.
    type Kernel;

    /// A kernel by name, ready to be launched with as much dynamic shared memory as the device has.
    fn kernel(&self, name: &str) -> Result<Option<LoadedKernel<Self::Kernel>>, Self::Error>;

    /// Address and bytes of a variable, if the driver knows it by name.
    fn variable(&self, name: &str) -> Option<(u64, u64)>;
}

/// Device memory without an address; lives on while it is mapped anywhere.
pub trait Memory: Debug {
    /// As the driver's.
    type Error;

    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// A descriptor by which another process can import it; asked for once.
    fn export(&self) -> Result<OwnedFd, Self::Error>;
}

/// Pinned host memory of the worker's own.
pub trait HostBuffer: Debug {
    /// Its bytes, while the device does not use them.
    fn as_mut(&mut self) -> &mut [u8];

    /// Its first byte, for the device.
    fn as_ptr(&self) -> *mut u8;
}

/// A small allocation of device memory; freed when dropped, which may wait.
pub trait DeviceBuffer: Debug {
    /// Its address.
    fn address(&self) -> u64;
}

/// A result of the driver other than success.
pub trait DriverError: Copy + Debug + Display {
    /// The error for a lack of memory.
    fn out_of_memory() -> Self;

    /// True if memory is lacking, or is not in one piece.
    fn is_out_of_memory(self) -> bool;

    /// The illegal operation of a kernel, if the error reports one; such an error is fatal.
    fn kernel_cause(self) -> Option<&'static str>;

    /// True if the context is lost, so that the process must end.
    fn is_fatal(self) -> bool;

    /// The error as a fault of the device's own.
    fn fault(self, what: &str) -> Fault {
        let code = if self.is_out_of_memory() { FaultCode::OutOfMemory } else { FaultCode::Device };
        Fault::new(code, format!("{what}: {self}"))
    }
}

/// Properties of a device that this folder uses.
#[derive(Debug, Clone, Default)]
pub struct Properties {
    /// Its name, for people.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Multiprocessors (CUDA) or compute units (HIP).
    pub multiprocessors: u32,
    /// Host memory that cannot be written can be pinned.
    pub pins_read_only: bool,
    /// Kernels reach pinned host memory at the host's own addresses.
    pub host_addresses: bool,
    /// Kernels may find on the chip what those of other processes left there, and can have it cleared.
    pub finds_others: bool,
    /// Kernels of different streams have their stacks in different memory.
    pub stacks_per_stream: bool,
    /// Blocks can be launched in clusters, and kernels can read tensor maps.
    pub has_clusters: bool,
    /// True if there are kernels that cannot leave a window of addresses, and the chip is known to keep what else there is apart.
    pub has_windows: bool,
}

/// What kernels may do with mapped memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Kernels may read it.
    Read,
    /// Kernels may read and write it.
    ReadWrite,
}

/// The cluster of blocks that are on their own.
pub const ALONE: [u32; 3] = [1, 1, 1];

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster along x, y, z; [`ALONE`] on devices without.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: u32,
}

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub struct LoadedKernel<K> {
    /// What is launched.
    pub kernel: K,
    /// Where its parameters lie in its parameter memory, in their order.
    pub params: Vec<ParamPlace>,
    /// Bytes of stack of each thread.
    pub local_bytes: u32,
    /// Where in its parameter memory the high word of its window goes, of a fenced kernel.
    pub window: Option<u32>,
}

/// Where a parameter lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamPlace {
    /// Its first byte.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
}

/// Machine code as a process loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// For [`Driver::load_module`].
    pub machine: Vec<u8>,
    /// Bytes of the variables that fenced code has in its window.
    pub variables_bytes: u64,
    /// Their first bytes before each call; the others are zero.
    pub initial: Vec<u8>,
}

/// A section of variables that kernels can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Variables in it, by offset.
    pub variables: Vec<Variable>,
}

/// A variable of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name, for [`Module::variable`].
    pub name: String,
    /// Where it lies in the section.
    pub offset: u64,
}

/// Bytes of the counters of scrubbing kernels, of four bytes each: arrivals of blocks first, then the blocks that each
/// multiprocessor ran, by its number; the last is always zero.
pub const COUNTERS_BYTES: u64 = 4 << 10;

/// A kernel that scrubs. Its parameters are the address of the counters (u64), the number of blocks (u32) and the
/// bytes of dynamic shared memory of each (u32).
#[derive(Debug)]
pub struct ScrubKernel<M, K> {
    /// What is launched.
    pub kernel: K,
    /// How, one run after the other.
    pub runs: Vec<ScrubRun>,
    /// Threads of each block.
    pub threads: u32,
    /// Keeps the kernel loaded.
    pub module: M,
}

/// A scrubbing kernel of a driver.
pub type ScrubKernelOf<D> = ScrubKernel<<D as Driver>::Module, <D as Driver>::Kernel>;

/// How a scrubbing kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubRun {
    /// Dynamic shared memory of each block.
    pub shared_bytes: u32,
    /// Blocks for each multiprocessor.
    pub blocks_each: u32,
    /// Blocks that each multiprocessor must have run.
    pub least: u32,
}

/// What drivers and kernels print goes nowhere from here on: the log is for one line of Pappus's own.
pub(in crate::device) fn silence() -> Result<(), Fault> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null");
    nowhere
        .and_then(|nowhere| Ok(rustix::stdio::dup2_stdout(nowhere)?))
        .map_err(|e| Fault::new(FaultCode::Internal, format!("opening /dev/null: {e}")))
}
