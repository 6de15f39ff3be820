//! Streams of work: copies, fills and launches in the order of submission; events, which mark a point in a stream;
//! graphs, which are many launches submitted as one.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUevent_flags_enum, CUstream_flags_enum, CUstreamCaptureStatus};

use super::error::{CudaError, check};
use super::module::Kernel;
use crate::device::gpu::driver::{self, ALONE, Shape};

/// A queue of work that runs in order, beside other queues.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
}

impl Stream {
    /// A stream of the current context.
    pub fn create() -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check(unsafe { sys::cuStreamCreate(&mut raw, CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32) })?;
        Ok(Self { raw })
    }
}

impl driver::Stream for Stream {
    type Error = CudaError;
    type Event = Event;
    type Graph = GraphExec;
    type Kernel = Kernel;
    type Launch = GraphNode;

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: as the caller promises; a device address that is not ours is an error.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes as usize, self.raw) })
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: as the caller promises; a device address that is not ours is an error.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes as usize, self.raw) })
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: device addresses only; those that are not ours are an error.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.raw) })
    }

    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: a device address only; one that is not ours is an error.
        check(unsafe { sys::cuMemsetD8Async(to, byte, bytes as usize, self.raw) })
    }

    fn launch(&self, kernel: Kernel, shape: &Shape, params: &[u8]) -> Result<(), CudaError> {
        let mut bytes = params.len();
        let mut extra = extra(params, &mut bytes);
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        if shape.cluster != ALONE {
            let [x, y, z] = shape.cluster;
            let mut cluster = sys::CUlaunchAttribute_st {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z },
                },
            };
            let config = sys::CUlaunchConfig {
                gridDimX: gx,
                gridDimY: gy,
                gridDimZ: gz,
                blockDimX: bx,
                blockDimY: by,
                blockDimZ: bz,
                sharedMemBytes: shape.shared_bytes,
                hStream: self.raw,
                attrs: &raw mut cluster,
                numAttrs: 1,
            };
            // SAFETY: as below; the driver reads the one attribute, which outlives the call.
            return check(unsafe {
                sys::cuLaunchKernelEx(
                    &raw const config,
                    kernel.raw(),
                    std::ptr::null_mut(),
                    extra.as_mut_ptr(),
                )
            });
        }
        // SAFETY: the kernel's module is loaded for as long as its function (`Kernel`); the parameters are
        // copied by the call, exactly as many bytes as there are.
        check(unsafe {
            sys::cuLaunchKernel(
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
            )
        })
    }

    fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are alive.
        check(unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }

    fn record_in_graph(&self, event: &Event) -> Result<(), CudaError> {
        let flags = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both handles are alive; the owner of the graph keeps the event.
        check(unsafe { sys::cuEventRecordWithFlags(event.raw, self.raw, flags) })
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is alive.
        check(unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    fn has_ended(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is alive.
        match check(unsafe { sys::cuStreamQuery(self.raw) }) {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_ready() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn launch_graph(&self, graph: &GraphExec) -> Result<(), CudaError> {
        // SAFETY: both handles are alive; the graph's owner keeps what it refers to.
        check(unsafe { sys::cuGraphLaunch(graph.raw, self.raw) })
    }

    fn begin_capture(&self) -> Result<(), CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and is not capturing.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })
    }

    fn collected(&self) -> Result<GraphNode, CudaError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        let (id, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes one status, the address of an array of nodes, and its length.
        check(unsafe {
            sys::cuStreamGetCaptureInfo_v2(self.raw, &mut status, id, graph, &mut nodes, &mut count)
        })?;
        if count == 0 || nodes.is_null() {
            return Err(CudaError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        // SAFETY: the nodes that work submitted next would depend on, valid until then.
        Ok(GraphNode(unsafe { *nodes }))
    }

    fn end_capture(&self, keeps_template: bool) -> Result<GraphExec, CudaError> {
        let mut graph = GraphExec { raw: std::ptr::null_mut(), template: std::ptr::null_mut() };
        // SAFETY: writes one handle; ends the capture whatever became of it.
        check(unsafe { sys::cuStreamEndCapture(self.raw, &mut graph.template) })?;
        // SAFETY: instantiates the graph just made.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&mut graph.raw, graph.template, 0) })?;
        if !keeps_template {
            graph.drop_template();
        }
        Ok(graph)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by this value; pending work goes on and its resources are released behind it.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
}

impl Event {
    /// An event that says whether it has passed and, if `timed`, when; the other kind is cheaper.
    pub fn create(timed: bool) -> Result<Self, CudaError> {
        let flags = match timed {
            true => CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check(unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(Self { raw })
    }
}

impl driver::Event for Event {
    type Error = CudaError;

    fn has_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is alive.
        match check(unsafe { sys::cuEventQuery(self.raw) }) {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_ready() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn ns_since(&self, earlier: &Event) -> u64 {
        let mut ms = 0.0;
        // SAFETY: writes one number; events that do not qualify are an error.
        match check(unsafe { sys::cuEventElapsedTime(&mut ms, earlier.raw, self.raw) }) {
            Ok(()) => (f64::from(ms) * 1e6) as u64,
            Err(_) => 0,
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this value.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct GraphExec {
    raw: sys::CUgraphExec,
    /// The graph's template, whose nodes name the launches that change.
    template: sys::CUgraph,
}

/// A launch in a graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphNode(sys::CUgraphNode);

impl driver::Graph for GraphExec {
    type Error = CudaError;
    type Kernel = Kernel;
    type Launch = GraphNode;

    fn change(
        &self,
        launch: GraphNode,
        kernel: Kernel,
        shape: &Shape,
        params: &[u8],
    ) -> Result<(), CudaError> {
        let mut bytes = params.len();
        let mut extra = extra(params, &mut bytes);
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let launched = sys::CUDA_KERNEL_NODE_PARAMS {
            func: kernel.raw(),
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: shape.shared_bytes,
            kernelParams: std::ptr::null_mut(),
            extra: extra.as_mut_ptr(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the template that has the node is alive, as is the kernel's module; the parameters are copied by the call,
        // exactly as many bytes as there are.
        check(unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.raw, launch.0, &raw const launched) })
    }
}

impl GraphExec {
    fn drop_template(&mut self) {
        let template = std::mem::replace(&mut self.template, std::ptr::null_mut());
        if !template.is_null() {
            // SAFETY: made by this value, and destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(template) };
        }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        self.drop_template();
        if !self.raw.is_null() {
            // SAFETY: made by this value; a run in flight finishes first.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}

/// How the driver is told of parameters as they lie in memory.
fn extra(params: &[u8], bytes: &mut usize) -> [*mut c_void; 5] {
    const END: *mut c_void = std::ptr::null_mut();
    const BUFFER: *mut c_void = std::ptr::without_provenance_mut(1);
    const SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
    [BUFFER, params.as_ptr().cast_mut().cast(), SIZE, std::ptr::from_mut(bytes).cast(), END]
}
