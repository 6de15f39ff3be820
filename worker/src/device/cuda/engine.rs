//! The driver with the process's one context, as both roles start it; what `gpu` asks of it.

use std::os::fd::BorrowedFd;

use pappus_blueprint::TensorMap;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::{Fault, FaultCode};

use super::driver::memory::{self, DeviceBuffer, HostBuffer, Physical, Pinned};
use super::driver::module::{Kernel, Module};
use super::driver::tensor_map;
use super::driver::{Context, CudaError, DeviceInfo, Event, GraphExec, GraphNode, Library, Stream};
use super::{copy_kernel, elf, image, nvml, scrub_kernels};
use crate::device::CodeError;
use crate::device::gpu::driver::{
    Access, Code, Driver, DriverError, Properties, ScrubKernel, Section, TENSOR_MAP_SLOTS, silence,
};

/// Chips whose shared memory, registers and stacks are known to be kept apart as fenced code needs it (docs/fence.md).
const MEASURED: [&str; 1] = ["sm_90"];

/// The driver and the process's context on its device.
#[derive(Debug)]
pub struct Engine {
    pub(super) context: Context,
    properties: Properties,
    library: Library,
    /// Device memory that the context took.
    context_bytes: u64,
    /// True if code is in the form that holds fenced code as well.
    pub(super) interruptible: bool,
}

impl Engine {
    /// The first device that the process sees: the supervisor lets it see one.
    pub(super) fn start(interruptible: bool) -> Result<Self, Fault> {
        // Output of kernels is dropped: the driver keeps a buffer for it even with a limit of zero.
        silence()?;
        let library = Library::open()?;
        let info = DeviceInfo::read(&library, 0);
        let uuid = info.map(|info| info.uuid).unwrap_or_default();
        let before = nvml::used_bytes(&uuid);
        let context = Context::create(&library, 0)?;
        let grown = before.zip(nvml::used_bytes(&uuid)).map(|(before, after)| after.saturating_sub(before));
        // Without the management library, the memory used by all processes: right for the first process.
        let (free, total) = context.memory().map_err(|e| e.fault("asking for free memory"))?;
        let context_bytes = grown.filter(|&bytes| bytes > 0).unwrap_or(total - free);
        let properties = Properties {
            name: context.info.name.clone(),
            memory_bytes: context.info.memory_bytes,
            multiprocessors: context.info.multiprocessors,
            pins_read_only: context.info.pins_read_only,
            host_addresses: context.info.host_addresses,
            // Measured: a process finds nothing of others.
            finds_others: false,
            stacks_per_stream: false,
            has_clusters: context.info.has_clusters,
            has_windows: MEASURED.contains(&context.info.arch.as_str()),
        };
        Ok(Self { context, properties, library, context_bytes, interruptible })
    }
}

impl Driver for Engine {
    type Error = CudaError;
    type Stream = Stream;
    type Event = Event;
    type Graph = GraphExec;
    type Launch = GraphNode;
    type Module = Module;
    type Kernel = Kernel;
    type Memory = Physical;
    type Pinned = Pinned;
    type HostBuffer = HostBuffer;
    type DeviceBuffer = DeviceBuffer;

    fn hello(&self) -> Hello {
        let arch = &self.context.info.arch;
        let release = Library::release().unwrap_or_default().replace('.', "-");
        let fingerprint = format!("cuda-{arch}-{}-{release}", self.library.version);
        let form = if self.interruptible { "-windows" } else { "" };
        Hello {
            arch: arch.clone(),
            context_bytes: self.context_bytes,
            ..Hello::new("cuda", format!("{}{form}", fingerprint.trim_end_matches('-')))
        }
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.context.synchronize()
    }

    fn make_stacks(&self, bytes: u32) -> Result<(), CudaError> {
        self.context.make_stacks(bytes)
    }

    fn create_stream(&self) -> Result<Stream, CudaError> {
        Stream::create()
    }

    fn create_event(&self, timed: bool) -> Result<Event, CudaError> {
        Event::create(timed)
    }

    fn open(image: Vec<u8>, fenced: bool) -> Result<Code, CodeError> {
        image::read(image, fenced)
    }

    fn writable_sections(image: &[u8]) -> Result<Vec<Section>, CodeError> {
        elf::judge(image)
    }

    fn load_module(&self, image: &[u8]) -> Result<Module, CudaError> {
        Module::load_for_calls(image, self.context.info.shared_bytes)
    }

    fn encode_tensor_map(&self, map: &TensorMap, address: u64) -> Result<[u64; TENSOR_MAP_SLOTS], Fault> {
        let refused = |e| Fault::new(FaultCode::BadInvoke, format!("the driver refuses its tensor map: {e}"));
        tensor_map::encode(map, address).map_err(refused)
    }

    fn copy_kernel(&self) -> Result<(Module, Kernel), Fault> {
        copy_kernel::load()
    }

    fn scrub_kernels(&self) -> Result<Vec<ScrubKernel<Module, Kernel>>, Fault> {
        scrub_kernels::chip(&self.context.info)
    }

    fn stack_scrub_kernel(&self, stack_bytes: u32) -> Result<ScrubKernel<Module, Kernel>, Fault> {
        scrub_kernels::stack(&self.context.info, stack_bytes)
    }

    fn granularity(&self) -> Result<u64, CudaError> {
        memory::granularity(self.context.info.ordinal)
    }

    fn create_memory(&self, bytes: u64, export: bool) -> Result<Physical, CudaError> {
        Physical::create(self.context.info.ordinal, bytes, export)
    }

    fn import_memory(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Physical, CudaError> {
        Physical::import(self.context.info.ordinal, descriptor, bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<u64, CudaError> {
        memory::reserve(bytes)
    }

    fn free(base: u64, bytes: u64) {
        memory::free(base, bytes);
    }

    fn map(&self, at: u64, memory: &Physical, access: Access) -> Result<(), CudaError> {
        memory::map(at, memory, access)
    }

    fn unmap(at: u64, bytes: u64) {
        memory::unmap(at, bytes);
    }

    unsafe fn pin(&self, base: *mut u8, bytes: u64, read_only: bool) -> Result<Pinned, CudaError> {
        // SAFETY: as the caller promises.
        unsafe { Pinned::register(base, bytes, read_only) }
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostBuffer, CudaError> {
        HostBuffer::allocate(bytes)
    }

    fn allocate_device(&self, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        DeviceBuffer::allocate(bytes)
    }
}
