//! What the bare programs need of a driver. NVIDIA's and AMD's are alike in it: a call here is one call there. Nothing is
//! ever shared between programs: a process measures one thing and ends, which gives everything back, the context included.

#![allow(unsafe_code)]

use std::fmt::Debug;

use crate::Result;

/// A device that the process uses.
pub trait Gpu: Debug + Send + Sync + Sized {
    /// A kernel of a loaded module.
    type Kernel: Debug + Copy + Send + Sync;
    /// Loaded machine code.
    type Module: Module<Kernel = Self::Kernel>;
    /// Memory of the device.
    type Buffer: Buffer;
    /// Memory of the host that the device copies from and to by itself.
    type Pinned: Pinned;
    /// An order in which the device works.
    type Stream: Stream<Kernel = Self::Kernel, Pinned = Self::Pinned>;

    /// Opens the device at a position for this thread. An error says what is missing.
    fn open(ordinal: u32) -> Result<Self>;
    /// Makes it this thread's.
    fn enter(&self) -> Result<()>;
    /// Its product name.
    fn name(&self) -> Result<String>;
    /// Its architecture as `--list-devices` names it.
    fn arch(&self) -> Result<String>;
    /// What the driver speaks, in words.
    fn driver(&self) -> Result<String>;
    /// Machine code of one of the library's modules for this device, as Pappus has it at registration.
    fn code(&self, stem: &str) -> Result<Vec<u8>>;
    /// Waits until the device does nothing for this process.
    fn synchronize(&self) -> Result<()>;
}

/// Loaded machine code.
pub trait Module: Debug + Send + Sync + Sized {
    /// One of its kernels.
    type Kernel;

    /// Loads machine code.
    fn load(code: &[u8]) -> Result<Self>;
    /// A kernel by its name. It must not be launched after the module was dropped.
    fn kernel(&self, name: &str) -> Result<Self::Kernel>;
}

/// Memory of the device.
pub trait Buffer: Debug + Sized {
    /// So many zeros.
    fn new(bytes: usize) -> Result<Self>;
    /// Where it is.
    fn address(&self) -> u64;
    /// How much.
    fn bytes(&self) -> usize;
    /// Copies ordinary memory to an address inside and waits until that is done.
    fn copy_in(&self, from: &[u8], to: u64) -> Result<()>;
    /// Copies from an address inside to ordinary memory and waits until that is done.
    fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<()>;

    /// Whether so many bytes from an address on are inside.
    fn check(&self, address: u64, bytes: usize) -> Result<()> {
        let offset = address.checked_sub(self.address());
        let inside = offset.is_some_and(|at| at as usize + bytes <= self.bytes());
        if inside { Ok(()) } else { Err("a copy outside a buffer".into()) }
    }
}

/// Memory of the host that the device copies from and to by itself.
pub trait Pinned: Debug + Send + Sized {
    /// So many zeros.
    fn new(bytes: usize) -> Result<Self>;
    /// How much.
    fn bytes(&self) -> usize;
    /// Writes at an offset. Nothing may be copying from there.
    fn write(&mut self, at: usize, bytes: &[u8]);
    /// The bytes at an offset.
    fn read(&self, at: usize, bytes: usize) -> Vec<u8>;
}

/// An order in which the device works, and an event to ask how far it is.
pub trait Stream: Debug + Send + Sized {
    /// What is launched.
    type Kernel;
    /// What is copied from and to.
    type Pinned;
    /// A graph that is ready to run.
    type Graph: Debug + Send;

    /// An idle one.
    fn new() -> Result<Self>;

    /// Copies pinned memory to the device.
    ///
    /// # Safety
    /// Both memories stay until the copy is over, and so many bytes are at `to`.
    unsafe fn copy_in(&self, from: &Self::Pinned, at: usize, to: u64, bytes: usize) -> Result<()>;

    /// Copies the device's memory to pinned memory.
    ///
    /// # Safety
    /// Both memories stay until the copy is over, and so many bytes are at `from`.
    unsafe fn copy_out(&self, from: u64, to: &Self::Pinned, at: usize, bytes: usize) -> Result<()>;

    /// Fills with zeros.
    ///
    /// # Safety
    /// So many bytes are at `start` until the fill is over.
    unsafe fn clear(&self, start: u64, bytes: usize) -> Result<()>;

    /// Launches a kernel whose parameters are all 8 bytes long.
    ///
    /// # Safety
    /// The module is loaded, the kernel takes these parameters, and what they point to stays until it is over.
    unsafe fn launch(
        &self,
        kernel: Self::Kernel,
        grid: [u32; 2],
        block: [u32; 2],
        params: &[u64],
    ) -> Result<()>;

    /// Keeps what `submit` submits as a graph, instead of running it.
    fn capture(&self, submit: impl FnOnce() -> Result<()>) -> Result<Self::Graph>;

    /// Runs a graph.
    ///
    /// # Safety
    /// What it was captured with is still there, and stays until it is over.
    unsafe fn launch_graph(&self, graph: &Self::Graph) -> Result<()>;

    /// From here on [`Stream::passed`] asks for what was submitted so far.
    fn mark(&self) -> Result<()>;
    /// What is submitted from here on begins once the first word of `gate` is `least` or more.
    ///
    /// # Safety
    /// The memory stays until the stream has ended, and something writes that word.
    unsafe fn hold(&self, gate: &Self::Pinned, least: u32) -> Result<()>;
    /// Whether everything before the mark is over.
    fn passed(&self) -> Result<bool>;
    /// Waits until everything is over.
    fn wait(&self) -> Result<()>;
}

/// The most parameters of a kernel.
const MOST: usize = 8;

/// Pointers to parameters of 8 bytes each, as drivers take them.
pub fn pointers(params: &[u64]) -> [*mut std::ffi::c_void; MOST] {
    let mut pointers = [std::ptr::null_mut(); MOST];
    for (pointer, param) in pointers[..params.len()].iter_mut().zip(params) {
        *pointer = std::ptr::from_ref(param).cast_mut().cast();
    }
    pointers
}

/// The library's file of a module for a processor: the one made for it, where there is one, or the one for all.
pub fn file_for(stem: &str, processor: &str, ending: &str) -> Result<&'static [u8]> {
    let named = |name: String| pappus_kernels::artefact(&name);
    let found = named(format!("{stem}.{processor}.{ending}")).or_else(|| named(format!("{stem}.{ending}")));
    Ok(found.ok_or_else(|| format!("the library has no {stem}.{ending}"))?)
}
