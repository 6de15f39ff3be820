//! AMD's driver, as much of it as the bare programs need: HIP's library, found at run time, through the table of functions that
//! the worker has.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

use pappus_worker::device::hip::sys;

use super::driver::{self, Stream as _, file_for, pointers};
use crate::Result;

/// The library's functions; it is opened once in a process and stays.
static TABLE: OnceLock<sys::Hip> = OnceLock::new();

/// Calls a function of the library; its result becomes an error in words.
macro_rules! hip {
    ($name:ident($($argument:expr),* $(,)?)) => {
        table().and_then(|table| check(stringify!($name), (table.$name)($($argument),*)))
    };
}

fn table() -> Result<&'static sys::Hip> {
    TABLE.get().ok_or_else(|| "HIP's library is not open".into())
}

fn check(name: &str, code: sys::hipError_t) -> Result<()> {
    if code == sys::hipSuccess {
        return Ok(());
    }
    let text = table().map_or(ptr::null(), |table| {
        // SAFETY: it returns a pointer to a constant string, or null.
        unsafe { (table.hipGetErrorString)(code) }
    });
    // SAFETY: the library's constant strings end with a zero byte and live for ever.
    let words = if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } };
    Err(format!("{name}: error {code}: {}", words.to_string_lossy()).into())
}

fn open() -> Result<()> {
    let name = sys::LIBRARY.to_str()?;
    let missing =
        |why: libloading::Error| format!("no GPU here: {name} is missing ({why}); install ROCm 7.1 or newer");
    // SAFETY: what a library runs when it is opened is the driver's.
    let library = unsafe { libloading::Library::new(name) }.map_err(missing)?;
    let find = |name: &CStr| {
        // SAFETY: only the address is taken; who calls it knows the signature, and the library stays open.
        unsafe {
            let found = library.get::<*const c_void>(name.to_bytes_with_nul()).ok()?;
            Some(found.try_as_raw_ptr()?.cast_const().cast())
        }
    };
    // SAFETY: these are the library's functions, which the headers declare so.
    let table = unsafe { sys::Hip::load(find) };
    let table = table.map_err(|function| format!("no GPU here: {name} has no function {function:?}"))?;
    let _ = TABLE.set(table);
    // It stays open.
    std::mem::forget(library);
    Ok(())
}

/// A device that the process chose: contexts are the process's own.
#[derive(Debug)]
pub struct Gpu {
    ordinal: i32,
}

/// The text at the start of a field that ends in zeros.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Gpu {
    fn properties(&self) -> Result<sys::hipDeviceProp_tR0600> {
        let mut properties = sys::hipDeviceProp_tR0600::EMPTY;
        // SAFETY: it writes one struct, which has room to grow.
        unsafe { hip!(hipGetDevicePropertiesR0600(&mut properties, self.ordinal)) }?;
        Ok(properties)
    }
}

impl driver::Gpu for Gpu {
    type Kernel = Kernel;
    type Module = Module;
    type Buffer = Buffer;
    type Pinned = Pinned;
    type Stream = Stream;

    fn open(ordinal: u32) -> Result<Self> {
        open()?;
        let refused = |error: Box<dyn std::error::Error>| format!("no GPU here: {error}");
        // SAFETY: no flags are defined.
        unsafe { hip!(hipInit(0)) }.map_err(refused)?;
        let gpu = Self { ordinal: ordinal.try_into()? };
        gpu.enter().map_err(refused)?;
        Ok(gpu)
    }

    fn enter(&self) -> Result<()> {
        // SAFETY: takes a number.
        unsafe { hip!(hipSetDevice(self.ordinal)) }
    }

    fn name(&self) -> Result<String> {
        Ok(text(&self.properties()?.name))
    }

    fn arch(&self) -> Result<String> {
        Ok(text(&self.properties()?.gcnArchName))
    }

    fn driver(&self) -> Result<String> {
        let mut version = 0;
        // SAFETY: it writes one integer.
        unsafe { hip!(hipRuntimeGetVersion(&mut version)) }?;
        Ok(format!("HIP {}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000))
    }

    fn code(&self, stem: &str) -> Result<Vec<u8>> {
        let arch = self.arch()?;
        let processor = arch.split(':').next().unwrap_or_default();
        Ok(file_for(stem, processor, "hsaco")?.to_vec())
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: waits.
        unsafe { hip!(hipDeviceSynchronize()) }
    }
}

/// Waits until the stream that has no name has done everything.
fn done() -> Result<()> {
    // SAFETY: the stream without a name is always there.
    unsafe { hip!(hipStreamSynchronize(ptr::null_mut())) }
}

fn at(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Loaded machine code.
#[derive(Debug)]
pub struct Module(sys::hipModule_t);

// SAFETY: the driver lets any thread use it.
unsafe impl Send for Module {}
// SAFETY: a shared reference only looks kernels up, which the driver allows on several threads.
unsafe impl Sync for Module {}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(sys::hipFunction_t);

// SAFETY: the driver lets any thread launch it.
unsafe impl Send for Kernel {}
// SAFETY: the handle is a copy of the driver's, and nothing is changed through it.
unsafe impl Sync for Kernel {}

impl driver::Module for Module {
    type Kernel = Kernel;

    fn load(code: &[u8]) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle; the driver reads a file of the library, whose headers say how long it is.
        unsafe { hip!(hipModuleLoadData(&mut raw, code.as_ptr().cast())) }?;
        Ok(Self(raw))
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        let name = CString::new(name)?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle; the module is loaded.
        unsafe { hip!(hipModuleGetFunction(&mut raw, self.0, name.as_ptr())) }?;
        Ok(Kernel(raw))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // It fails only where the device is lost, and everything with it.
        // SAFETY: loaded once, unloaded once.
        let _ = unsafe { hip!(hipModuleUnload(self.0)) };
    }
}

/// Memory of the device.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
}

impl driver::Buffer for Buffer {
    fn new(bytes: usize) -> Result<Self> {
        let mut start = ptr::null_mut();
        // SAFETY: writes one address; freed on drop.
        unsafe { hip!(hipMalloc(&mut start, bytes)) }?;
        let buffer = Self { address: start.expose_provenance() as u64, bytes };
        // SAFETY: all of it was just allocated.
        unsafe { hip!(hipMemsetD8Async(start, 0, bytes, ptr::null_mut())) }?;
        done()?;
        Ok(buffer)
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn copy_in(&self, from: &[u8], to: u64) -> Result<()> {
        self.check(to, from.len())?;
        // SAFETY: inside the buffer, as just checked; waited for below.
        unsafe { hip!(hipMemcpyHtoDAsync(at(to), from.as_ptr().cast(), from.len(), ptr::null_mut())) }?;
        done()
    }

    fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.check(from, to.len())?;
        // SAFETY: inside the buffer, as just checked; waited for below.
        unsafe { hip!(hipMemcpyDtoHAsync(to.as_mut_ptr().cast(), at(from), to.len(), ptr::null_mut())) }?;
        done()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for what uses it.
        let _ = unsafe { hip!(hipFree(at(self.address))) };
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
    fn at(&self, at: usize, bytes: usize) -> *mut c_void {
        assert!(at + bytes <= self.bytes, "a copy behind the end of pinned memory");
        // SAFETY: inside, as just checked.
        unsafe { self.start.cast::<u8>().add(at).cast() }
    }
}

impl driver::Pinned for Pinned {
    fn new(bytes: usize) -> Result<Self> {
        let mut start = ptr::null_mut();
        // SAFETY: writes one address; freed on drop.
        unsafe { hip!(hipHostMalloc(&mut start, bytes, sys::hipHostMallocDefault)) }?;
        // SAFETY: all of it was just allocated.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Self { start, bytes })
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: inside, as just checked; the source is not pinned memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: inside, as it is checked; initialised when it was allocated.
        unsafe { std::slice::from_raw_parts(self.at(at, bytes).cast::<u8>(), bytes) }.to_vec()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for what uses it.
        let _ = unsafe { hip!(hipHostFree(self.start)) };
    }
}

/// An order in which the device works, and an event to ask how far it is.
#[derive(Debug)]
pub struct Stream {
    raw: sys::hipStream_t,
    event: sys::hipEvent_t,
}

// SAFETY: the driver lets any thread submit; one at a time does, since it is owned.
unsafe impl Send for Stream {}

impl driver::Stream for Stream {
    type Kernel = Kernel;
    type Pinned = Pinned;
    type Graph = Graph;

    fn new() -> Result<Self> {
        let (mut raw, mut event) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: writes one handle.
        unsafe { hip!(hipStreamCreateWithFlags(&mut raw, sys::hipStreamNonBlocking)) }?;
        // What was copied to the host must be seen there when the event has passed.
        let flags = sys::hipEventDisableTiming | sys::hipEventReleaseToSystem;
        // SAFETY: writes one handle.
        unsafe { hip!(hipEventCreateWithFlags(&mut event, flags)) }?;
        Ok(Self { raw, event })
    }

    unsafe fn copy_in(&self, from: &Pinned, offset: usize, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; the source is checked.
        unsafe { hip!(hipMemcpyHtoDAsync(at(to), from.at(offset, bytes), bytes, self.raw)) }
    }

    unsafe fn copy_out(&self, from: u64, to: &Pinned, offset: usize, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; the destination is checked.
        unsafe { hip!(hipMemcpyDtoHAsync(to.at(offset, bytes), at(from), bytes, self.raw)) }
    }

    unsafe fn clear(&self, start: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { hip!(hipMemsetD8Async(at(start), 0, bytes, self.raw)) }
    }

    unsafe fn launch(&self, kernel: Kernel, grid: [u32; 2], block: [u32; 2], params: &[u64]) -> Result<()> {
        let mut pointers = pointers(params);
        let (parameters, none) = (pointers.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the caller's promise; the driver reads the parameters during the call.
        unsafe {
            hip!(hipModuleLaunchKernel(
                kernel.0, grid[0], grid[1], 1, block[0], block[1], 1, 0, self.raw, parameters, none
            ))
        }
    }

    fn capture(&self, submit: impl FnOnce() -> Result<()>) -> Result<Graph> {
        // SAFETY: the stream is ours; no other stream takes part.
        unsafe { hip!(hipStreamBeginCapture(self.raw, sys::hipStreamCaptureModeThreadLocal)) }?;
        let submitted = submit();
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: begun above; writes one handle.
        unsafe { hip!(hipStreamEndCapture(self.raw, &mut graph)) }?;
        submitted?;
        // SAFETY: the graph is whole; writes one handle.
        let made = unsafe { hip!(hipGraphInstantiateWithFlags(&mut exec, graph, 0)) };
        // SAFETY: what was instantiated does not need it.
        unsafe { hip!(hipGraphDestroy(graph)) }?;
        made?;
        Ok(Graph(exec))
    }

    unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { hip!(hipGraphLaunch(graph.0, self.raw)) }
    }

    fn mark(&self) -> Result<()> {
        // SAFETY: both are ours.
        unsafe { hip!(hipEventRecord(self.event, self.raw)) }
    }

    unsafe fn hold(&self, _: &Pinned, _: u32) -> Result<()> {
        Err("submitting ahead of a turn is measured on NVIDIA GPUs only".into())
    }

    fn passed(&self) -> Result<bool> {
        // SAFETY: the event is ours.
        match unsafe { (table()?.hipEventQuery)(self.event) } {
            sys::hipErrorNotReady => Ok(false),
            code => check("hipEventQuery", code).map(|()| true),
        }
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        unsafe { hip!(hipStreamSynchronize(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // All fail only where the device is lost, and everything with it.
        let _ = self.wait();
        // SAFETY: created once, destroyed once, and nothing runs on it any more.
        let _ = unsafe { hip!(hipEventDestroy(self.event)) };
        // SAFETY: created once, destroyed once; `wait` returned, so no work is left on it.
        let _ = unsafe { hip!(hipStreamDestroy(self.raw)) };
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Graph(sys::hipGraphExec_t);

// SAFETY: the driver lets any thread run it; one at a time does, since it is owned.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { hip!(hipGraphExecDestroy(self.0)) };
    }
}
