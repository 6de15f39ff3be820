//! The driver with the process's one device, as both roles start it; what `gpu` asks of it.

use std::os::fd::BorrowedFd;

use pappus_blueprint::hsaco::Target;
use pappus_protocol::Fault;
use pappus_protocol::from_worker::Hello;

use super::driver::memory::{self, DeviceBuffer, HostBuffer, Physical, Pinned};
use super::driver::module::{self, Kernel, Module};
use super::driver::stream::{Event, GraphExec, Stream};
use super::driver::{DeviceInfo, HipError, Library, device};
use super::kernels;
use crate::device::CodeError;
use crate::device::gpu::driver::{
    Access, Driver, DriverError, HostBuffer as _, Properties, ScrubKernel, Section, silence,
};

/// The driver and the process's device.
#[derive(Debug)]
pub struct Engine {
    pub(super) info: DeviceInfo,
    pub(super) target: Target,
    properties: Properties,
    library: Library,
    /// Device memory that the process took.
    context_bytes: u64,
}

impl Engine {
    /// The first device that the process sees: the supervisor lets it see one.
    pub(super) fn start() -> Result<Self, Fault> {
        silence()?;
        let library = Library::open()?;
        let info = DeviceInfo::read(&library, 0).map_err(|e| e.fault("asking for GPU 0"))?;
        if !info.maps_memory {
            return Err(device(format!(
                "{} ({}) maps no memory piece by piece (hipMemMap), which lanes and weights need: this kernel's amdgpu \
                 driver is too old, or the GPU is not one for computing",
                info.name, info.arch
            )));
        }
        let target = Target::of_text(&info.arch).ok_or_else(|| {
            device(format!("{} is a {}, which this build does not know", info.name, info.arch))
        })?;
        let before = info.used_bytes();
        device::select(info.ordinal).map_err(|e| e.fault("preparing GPU 0"))?;
        let host_addresses = info.host_addresses && kernels::can_copy(&target) && has_host_addresses()?;
        let grown = before.zip(info.used_bytes()).map(|(before, after)| after.saturating_sub(before));
        // Where the kernel does not tell, the memory used by all processes: right for the first process.
        let (free, total) = device::memory().map_err(|e| e.fault("asking for free memory"))?;
        let context_bytes = grown.filter(|&bytes| bytes > 0).unwrap_or(total - free);
        let properties = Properties {
            name: info.name.clone(),
            memory_bytes: info.memory_bytes,
            multiprocessors: info.multiprocessors,
            // The kernel asks for write permission even where only the device reads.
            pins_read_only: false,
            host_addresses,
            finds_others: kernels::can_scrub(&target, info.shared_bytes)
                && !info.is_cleaned_between_processes(),
            // Each hardware queue has memory of its own for stacks.
            stacks_per_stream: true,
            // Neither exists on AMD GPUs in this form.
            has_clusters: false,
            has_windows: false,
        };
        Ok(Self { info, target, properties, library, context_bytes })
    }
}

/// True if the device's addresses of pinned memory are the host's, as they are where the library says so.
fn has_host_addresses() -> Result<bool, Fault> {
    let failed = |e: HipError| e.fault("preparing pinned memory");
    let probe = HostBuffer::allocate(1 << 12).map_err(failed)?;
    Ok(memory::device_pointer(probe.as_ptr()).map_err(failed)? == probe.as_ptr().addr() as u64)
}

impl Driver for Engine {
    type Error = HipError;
    type Stream = Stream;
    type Event = Event;
    type Graph = GraphExec;
    type Launch = ();
    type Module = Module;
    type Kernel = Kernel;
    type Memory = Physical;
    type Pinned = Pinned;
    type HostBuffer = HostBuffer;
    type DeviceBuffer = DeviceBuffer;

    fn hello(&self) -> Hello {
        let arch = &self.info.arch;
        let fingerprint = format!("hip-{}-{}", arch.replace([':', '+'], "_"), self.library.version);
        Hello { arch: arch.clone(), context_bytes: self.context_bytes, ..Hello::new("hip", fingerprint) }
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn synchronize(&self) -> Result<(), HipError> {
        device::synchronize()
    }

    fn create_stream(&self) -> Result<Stream, HipError> {
        Stream::create()
    }

    fn create_event(&self, timed: bool) -> Result<Event, HipError> {
        Event::create(timed)
    }

    fn writable_sections(image: &[u8]) -> Result<Vec<Section>, CodeError> {
        module::judge(image).map(|object| module::writable(&object))
    }

    fn load_module(&self, image: &[u8]) -> Result<Module, HipError> {
        Module::load(image)
    }

    fn copy_kernel(&self) -> Result<(Module, Kernel), Fault> {
        kernels::copy(&self.target)
    }

    fn scrub_kernels(&self) -> Result<Vec<ScrubKernel<Module, Kernel>>, Fault> {
        kernels::chip(&self.target, self.info.shared_bytes)
    }

    fn stack_scrub_kernel(&self, stack_bytes: u32) -> Result<ScrubKernel<Module, Kernel>, Fault> {
        kernels::stack(&self.target, stack_bytes, self.info.shared_bytes)
    }

    fn granularity(&self) -> Result<u64, HipError> {
        memory::granularity(self.info.ordinal)
    }

    fn create_memory(&self, bytes: u64, _: bool) -> Result<Physical, HipError> {
        Physical::create(self.info.ordinal, bytes)
    }

    fn import_memory(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Physical, HipError> {
        Physical::import(self.info.ordinal, descriptor, bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<u64, HipError> {
        memory::reserve(bytes)
    }

    fn free(base: u64, bytes: u64) {
        memory::free(base, bytes);
    }

    fn map(&self, at: u64, memory: &Physical, access: Access) -> Result<(), HipError> {
        memory::map(at, memory, access)
    }

    fn unmap(at: u64, bytes: u64) {
        memory::unmap(at, bytes);
    }

    unsafe fn pin(&self, base: *mut u8, bytes: u64, _: bool) -> Result<Pinned, HipError> {
        // SAFETY: as the caller promises.
        unsafe { Pinned::register(base, bytes, self.properties.host_addresses) }
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostBuffer, HipError> {
        HostBuffer::allocate(bytes)
    }

    fn allocate_device(&self, bytes: u64) -> Result<DeviceBuffer, HipError> {
        DeviceBuffer::allocate(bytes)
    }
}
