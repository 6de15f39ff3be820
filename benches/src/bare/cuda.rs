//! NVIDIA's driver, as much of it as the bare programs need. Nothing is ever shared between programs: a process measures one
//! thing and ends, which gives everything back, the context included.

#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use crate::Result;

/// A device with its context.
#[derive(Debug)]
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver lets any thread make a context its current one.
unsafe impl Send for Gpu {}
// SAFETY: a shared reference only makes the context current, which the driver allows on several threads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the device at a position for this thread. An error says what is missing.
    pub fn open(ordinal: u32) -> Result<Self> {
        // SAFETY: it opens the library and closes it; what a library runs when it is opened is the driver's.
        if !unsafe { sys::is_culib_present() } {
            return Err("no GPU here: libcuda is missing; install the NVIDIA driver, R550 or newer".into());
        }
        let refused = |error: DriverError| format!("no GPU here: the NVIDIA driver says {error}");
        result::init().map_err(refused)?;
        let device = result::device::get(ordinal.try_into()?).map_err(refused)?;
        // SAFETY: the device is one that the driver just named. It is released with the process.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(refused)?;
        let gpu = Self { device, context };
        gpu.enter()?;
        Ok(gpu)
    }

    /// Makes it this thread's.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as the process.
        Ok(unsafe { result::ctx::set_current(self.context) }?)
    }

    /// Its product name.
    pub fn name(&self) -> Result<String> {
        Ok(result::device::get_name(self.device)?)
    }

    /// Its architecture as `--list-devices` names it.
    pub fn arch(&self) -> Result<String> {
        let attribute = |which| {
            // SAFETY: the device is one that the driver named.
            unsafe { result::device::get_attribute(self.device, which) }
        };
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(format!("sm_{major}{minor}"))
    }

    /// What the driver speaks, in words.
    pub fn driver(&self) -> Result<String> {
        let mut version = 0;
        // SAFETY: it writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        Ok(format!("driver for CUDA {}.{}", version / 1000, version % 1000 / 10))
    }

    /// Machine code of one of the library's modules for this device, as Pappus has it at registration.
    pub fn code(&self, stem: &str) -> Result<Vec<u8>> {
        let file = format!("{stem}.ptx");
        link(pappus_kernels::artefact(&file).ok_or_else(|| format!("the library has no {file}"))?)
    }

    /// Waits until the device does nothing for this process.
    pub fn synchronize(&self) -> Result<()> {
        Ok(result::ctx::synchronize()?)
    }
}

/// Machine code for the device of this thread.
fn link(ptx: &[u8]) -> Result<Vec<u8>> {
    // The driver wants text that ends in a zero.
    let mut text = ptx.to_vec();
    text.push(0);
    let mut state = ptr::null_mut();
    // SAFETY: no options; `state` is written before it is used.
    unsafe { sys::cuLinkCreate_v2(0, ptr::null_mut(), ptr::null_mut(), &mut state) }.result()?;
    let linked = link_into(state, &mut text);
    // SAFETY: the state was created above, and its code has been copied.
    unsafe { sys::cuLinkDestroy(state) }.result()?;
    Ok(linked?)
}

/// The machine code of `text` in this linker.
fn link_into(state: sys::CUlinkState, text: &mut [u8]) -> Result<Vec<u8>, DriverError> {
    let (mut code, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the driver reads `text` during the call; no options, no name.
    let added = unsafe {
        sys::cuLinkAddData_v2(
            state,
            sys::CUjitInputType::CU_JIT_INPUT_PTX,
            text.as_mut_ptr().cast(),
            text.len(),
            ptr::null(),
            0,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    added.result()?;
    // SAFETY: what it returns belongs to the state, which the caller destroys later.
    unsafe { sys::cuLinkComplete(state, &mut code, &mut bytes) }.result()?;
    // SAFETY: the driver said that so many bytes are there.
    Ok(unsafe { std::slice::from_raw_parts(code.cast::<u8>(), bytes) }.to_vec())
}

/// Loaded machine code.
#[derive(Debug)]
pub struct Module(sys::CUmodule);

// SAFETY: the driver lets any thread of the context use it.
unsafe impl Send for Module {}
// SAFETY: a shared reference only looks kernels up, which the driver allows on several threads.
unsafe impl Sync for Module {}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(sys::CUfunction);

// SAFETY: the driver lets any thread of the context launch it.
unsafe impl Send for Kernel {}
// SAFETY: the handle is a copy of the driver's, and nothing is changed through it.
unsafe impl Sync for Kernel {}

impl Module {
    /// Loads machine code.
    pub fn load(code: &[u8]) -> Result<Self> {
        // SAFETY: the driver made the image itself, and reads as much as the image's header says.
        Ok(Self(unsafe { result::module::load_data(code.as_ptr().cast()) }?))
    }

    /// A kernel by its name. It must not be launched after the module was dropped.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let name = CString::new(name)?;
        // SAFETY: the module is loaded.
        Ok(Kernel(unsafe { result::module::get_function(self.0, name) }?))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // It fails only where the context is lost, and everything with it.
        // SAFETY: loaded once, unloaded once.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// Memory of the device.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// So many zeros.
    pub fn new(bytes: usize) -> Result<Self> {
        // SAFETY: freed on drop.
        let address = unsafe { result::malloc_sync(bytes) }?;
        let buffer = Self { address, bytes };
        // SAFETY: all of it was just allocated.
        unsafe { result::memset_d8_sync(address, 0, bytes) }?;
        // A fill of device memory is on the null stream: neither the host nor the lanes' streams wait for that.
        // SAFETY: the null stream is the context's own.
        unsafe { result::stream::synchronize(ptr::null_mut()) }?;
        Ok(buffer)
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Checks that so many bytes from an address on lie inside the buffer.
    fn check(&self, address: u64, bytes: usize) -> Result<()> {
        let offset = address.checked_sub(self.address);
        let inside = offset.is_some_and(|at| at as usize + bytes <= self.bytes);
        if inside { Ok(()) } else { Err("a copy outside a buffer".into()) }
    }

    /// Copies ordinary memory to an address inside and waits until that is done.
    pub fn copy_in(&self, from: &[u8], to: u64) -> Result<()> {
        self.check(to, from.len())?;
        // SAFETY: inside the buffer, as just checked.
        Ok(unsafe { result::memcpy_htod_sync(to, from) }?)
    }

    /// Copies from an address inside to ordinary memory and waits until that is done.
    pub fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.check(from, to.len())?;
        // SAFETY: inside the buffer, as just checked.
        Ok(unsafe { result::memcpy_dtoh_sync(to, from) }?)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for what uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Memory of the host that the device copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it is memory like any other, and owned.
unsafe impl Send for Pinned {}

impl Pinned {
    /// So many zeros.
    pub fn new(bytes: usize) -> Result<Self> {
        // SAFETY: freed on drop.
        let start = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: all of it was just allocated.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Self { start, bytes })
    }

    /// Writes at an offset. Nothing may be copying from there.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "a write behind the end of pinned memory");
        // SAFETY: inside, as just checked; the source is not pinned memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.cast::<u8>().add(at), bytes.len());
        }
    }

    /// The bytes at an offset.
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes, "a read behind the end of pinned memory");
        // SAFETY: inside, as just checked; initialised when it was allocated.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().add(at), bytes) }.to_vec()
    }

    fn at(&self, at: usize, bytes: usize) -> *mut c_void {
        assert!(at + bytes <= self.bytes, "a copy behind the end of pinned memory");
        // SAFETY: inside, as just checked.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for what uses it.
        let _ = unsafe { result::free_host(self.start) };
    }
}

/// An order in which the device works, and an event to ask how far it is.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    event: sys::CUevent,
}

// SAFETY: the driver lets any thread of the context submit; one at a time does, since it is owned.
unsafe impl Send for Stream {}

impl Stream {
    /// An idle one.
    pub fn new() -> Result<Self> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { raw, event })
    }

    /// Copies pinned memory to the device.
    ///
    /// # Safety
    /// Both memories stay until the copy is over, and so many bytes are at `to`.
    pub unsafe fn copy_in(&self, from: &Pinned, at: usize, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; the source is checked.
        Ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.at(at, bytes), bytes, self.raw) }.result()?)
    }

    /// Copies the device's memory to pinned memory.
    ///
    /// # Safety
    /// Both memories stay until the copy is over, and so many bytes are at `from`.
    pub unsafe fn copy_out(&self, from: u64, to: &Pinned, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; the destination is checked.
        Ok(unsafe { sys::cuMemcpyDtoHAsync_v2(to.at(at, bytes), from, bytes, self.raw) }.result()?)
    }

    /// Fills with zeros.
    ///
    /// # Safety
    /// So many bytes are at `start` until the fill is over.
    pub unsafe fn clear(&self, start: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { result::memset_d8_async(start, 0, bytes, self.raw) }?)
    }

    /// Launches a kernel whose parameters are all 8 bytes long.
    ///
    /// # Safety
    /// The module is loaded, the kernel takes these parameters, and what they point to stays until it is over.
    pub unsafe fn launch(
        &self,
        kernel: Kernel,
        grid: [u32; 2],
        block: [u32; 2],
        params: &[u64],
    ) -> Result<()> {
        let mut pointers = pointers(params);
        let (grid, block) = ((grid[0], grid[1], 1), (block[0], block[1], 1));
        // SAFETY: the caller's promise; the driver reads the parameters during the call.
        Ok(unsafe { result::launch_kernel(kernel.0, grid, block, 0, self.raw, &mut pointers) }?)
    }

    /// Keeps what `submit` submits as a graph, instead of running it.
    pub fn capture(&self, submit: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours; no other stream takes part.
        unsafe { result::stream::begin_capture(self.raw, mode) }?;
        let submitted = submit();
        // SAFETY: begun above.
        let graph = unsafe { result::stream::end_capture(self.raw) }?;
        submitted?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is whole; `exec` is written before it is used.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }.result();
        // SAFETY: what was instantiated does not need it.
        unsafe { result::graph::destroy(graph) }?;
        made?;
        Ok(Graph(exec))
    }

    /// Runs a graph.
    ///
    /// # Safety
    /// What it was captured with is still there, and stays until it is over.
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { result::graph::launch(graph.0, self.raw) }?)
    }

    /// From here on [`Stream::passed`] asks for what was submitted so far.
    pub fn mark(&self) -> Result<()> {
        // SAFETY: both are ours.
        Ok(unsafe { result::event::record(self.event, self.raw) }?)
    }

    /// What is submitted from here on begins once the first word of `gate` is `least` or more.
    ///
    /// # Safety
    /// The memory stays until the stream has ended, and something writes that word.
    pub unsafe fn hold(&self, gate: &Pinned, least: u32) -> Result<()> {
        let at = gate.at(0, 4) as u64;
        let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the caller's promise; pinned memory has the same address on the device.
        Ok(unsafe { sys::cuStreamWaitValue32_v2(self.raw, at, least, flags) }.result()?)
    }

    /// True if everything before the mark is over.
    pub fn passed(&self) -> Result<bool> {
        // SAFETY: the event is ours.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => Err(DriverError(other).into()),
        }
    }

    /// Waits until everything is over.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        Ok(unsafe { result::stream::synchronize(self.raw) }?)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // All fail only where the context is lost, and everything with it.
        let _ = self.wait();
        // SAFETY: created once, destroyed once, and nothing runs on it any more.
        let _ = unsafe { result::event::destroy(self.event) };
        // SAFETY: created once, destroyed once; `wait` returned, so no work is left on it.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Graph(sys::CUgraphExec);

// SAFETY: the driver lets any thread of the context run it; one at a time does, since it is owned.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// The most parameters of a kernel.
const MOST: usize = 8;

/// Pointers to parameters of 8 bytes each, as the driver takes them.
fn pointers(params: &[u64]) -> [*mut c_void; MOST] {
    let mut pointers = [ptr::null_mut(); MOST];
    for (pointer, param) in pointers[..params.len()].iter_mut().zip(params) {
        *pointer = ptr::from_ref(param).cast_mut().cast();
    }
    pointers
}
