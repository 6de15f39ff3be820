//! Streams of work: copies, fills and launches in the order of submission; events, which mark a point in a stream;
//! graphs, which are many launches submitted as one.

use super::call;
use super::error::{HipError, check};
use super::memory::pointer;
use super::module::Kernel;
use crate::device::gpu::driver::{self, Shape};
use crate::device::hip::sys;

/// A queue of work that runs in order, beside other queues.
#[derive(Debug)]
pub struct Stream {
    raw: sys::hipStream_t,
}

/// How often a wait asks before it lets others have the processor between questions.
const EAGER: u32 = 4096;

impl Stream {
    /// A stream of the process's device.
    pub fn create() -> Result<Self, HipError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { call!(hipStreamCreateWithFlags(&mut raw, sys::hipStreamNonBlocking)) }?;
        Ok(Self { raw })
    }
}

impl driver::Stream for Stream {
    type Error = HipError;
    type Event = Event;
    type Graph = GraphExec;
    type Kernel = Kernel;
    type Launch = ();

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64) -> Result<(), HipError> {
        // SAFETY: as the caller promises; a device address that is not ours is an error.
        unsafe { call!(hipMemcpyHtoDAsync(pointer(to), from.cast(), bytes as usize, self.raw)) }
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64) -> Result<(), HipError> {
        // SAFETY: as the caller promises; a device address that is not ours is an error.
        unsafe { call!(hipMemcpyDtoHAsync(to.cast(), pointer(from), bytes as usize, self.raw)) }
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), HipError> {
        // SAFETY: device addresses only; those that are not ours are an error.
        unsafe { call!(hipMemcpyDtoDAsync(pointer(to), pointer(from), bytes as usize, self.raw)) }
    }

    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<(), HipError> {
        // SAFETY: a device address only; one that is not ours is an error.
        unsafe { call!(hipMemsetD8Async(pointer(to), byte, bytes as usize, self.raw)) }
    }

    fn launch(&self, kernel: Kernel, shape: &Shape, params: &[u8]) -> Result<(), HipError> {
        // The library copies as many bytes as the kernel's own list of arguments says, whatever it is told.
        if params.len() < kernel.param_bytes() {
            return check(sys::hipErrorInvalidValue);
        }
        let mut bytes = params.len();
        let buffer = params.as_ptr().cast_mut().cast();
        let mut extra = [
            sys::HIP_LAUNCH_PARAM_BUFFER_POINTER,
            buffer,
            sys::HIP_LAUNCH_PARAM_BUFFER_SIZE,
            (&raw mut bytes).cast(),
            sys::HIP_LAUNCH_PARAM_END,
        ];
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        // SAFETY: the kernel's module is loaded for as long as its function (`Kernel`); the parameters are copied by the
        // call, and there are as many bytes as it copies (above).
        unsafe {
            call!(hipModuleLaunchKernel(
                kernel.raw(),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared_bytes,
                self.raw,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            ))
        }
    }

    fn record(&self, event: &Event) -> Result<(), HipError> {
        // SAFETY: both handles are alive.
        unsafe { call!(hipEventRecord(event.raw, self.raw)) }
    }

    fn record_in_graph(&self, event: &Event) -> Result<(), HipError> {
        // SAFETY: both handles are alive; the owner of the graph keeps the event.
        unsafe { call!(hipEventRecordWithFlags(event.raw, self.raw, sys::hipEventRecordExternal)) }
    }

    /// The library's own wait may never end where the GPU has stopped.
    fn synchronize(&self) -> Result<(), HipError> {
        for _ in 0..EAGER {
            if self.has_ended()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        while !self.has_ended()? {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn has_ended(&self) -> Result<bool, HipError> {
        // SAFETY: the handle is alive.
        match unsafe { call!(hipStreamQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_ready() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn launch_graph(&self, graph: &GraphExec) -> Result<(), HipError> {
        // SAFETY: both handles are alive; the graph's owner keeps what it refers to.
        unsafe { call!(hipGraphLaunch(graph.raw, self.raw)) }
    }

    fn begin_capture(&self) -> Result<(), HipError> {
        // SAFETY: the stream is alive and is not capturing.
        unsafe { call!(hipStreamBeginCapture(self.raw, sys::hipStreamCaptureModeThreadLocal)) }
    }

    fn collected(&self) -> Result<(), HipError> {
        Ok(())
    }

    fn end_capture(&self, _: bool) -> Result<GraphExec, HipError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: writes one handle; ends the capture whatever became of it.
        unsafe { call!(hipStreamEndCapture(self.raw, &mut graph)) }?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: instantiates the graph just made; the template is not needed afterwards.
        let made = unsafe { call!(hipGraphInstantiateWithFlags(&mut raw, graph, 0)) };
        // SAFETY: the template was made above and is destroyed once.
        let _ = unsafe { call!(hipGraphDestroy(graph)) };
        made?;
        Ok(GraphExec { raw })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by this value; pending work goes on and its resources are released behind it.
        let _ = unsafe { call!(hipStreamDestroy(self.raw)) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::hipEvent_t,
}

impl Event {
    /// An event that says whether it has passed and, if `timed`, when; the other kind is cheaper. When it has passed, the
    /// host sees what kernels wrote to its memory.
    pub fn create(timed: bool) -> Result<Self, HipError> {
        let timing = if timed { 0 } else { sys::hipEventDisableTiming };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { call!(hipEventCreateWithFlags(&mut raw, sys::hipEventReleaseToSystem | timing)) }?;
        Ok(Self { raw })
    }
}

impl driver::Event for Event {
    type Error = HipError;

    fn has_passed(&self) -> Result<bool, HipError> {
        // SAFETY: the handle is alive.
        match unsafe { call!(hipEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_ready() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn ns_since(&self, earlier: &Event) -> u64 {
        let mut ms = 0.0;
        // SAFETY: writes one number; events that do not qualify are an error.
        match unsafe { call!(hipEventElapsedTime(&mut ms, earlier.raw, self.raw)) } {
            Ok(()) => (f64::from(ms) * 1e6) as u64,
            Err(_) => 0,
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this value.
        let _ = unsafe { call!(hipEventDestroy(self.raw)) };
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct GraphExec {
    raw: sys::hipGraphExec_t,
}

/// Launches are not changed. The library can (`hipGraphExecKernelNodeSetParams`), but in HIP 7 each change takes device memory that
/// is given back with the graph only, and where there is none, the launch stays as it was without an error (ROCm/rocm-systems,
/// issues 10713 and 10021).
impl driver::Graph for GraphExec {
    type Error = HipError;
    type Kernel = Kernel;
    type Launch = ();

    fn change(&self, (): (), _: Kernel, _: &Shape, _: &[u8]) -> Result<(), HipError> {
        check(sys::hipErrorNotSupported)
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: made by this value; a run in flight finishes first.
        let _ = unsafe { call!(hipGraphExecDestroy(self.raw)) };
    }
}
