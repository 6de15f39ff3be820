//! The library's functions as a server of one's own would run them: the same machine code, launches and
//! bytes in and out as `kernels/configs` give, and nothing else. What tells sizes and repetitions is for Pappus alone.

#![allow(unsafe_code)]

use pappus_kernels::bytes::from_elements;

use super::cuda::{Buffer, Gpu, Graph, Kernel, Module, Pinned, Stream};
use crate::Result;
use crate::harness::functions::{PICTURE, SIDE, picture, square};

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// `inference` with so many repetitions.
    Inference(u32),
    /// `matmul` of a [`SIDE`]-sided matrix.
    Matmul,
    /// `hello`: a kernel that does nothing, and no bytes.
    Empty,
}

/// The side of the blocks in all functions with one thread for each element.
const BLOCK: u32 = 32;

/// Buffers begin at multiples of this, as in Pappus.
const ALIGN: usize = 256;

/// Blocks along a side of so many elements.
fn blocks(side: u64) -> u64 {
    side.div_ceil(BLOCK.into())
}

/// One launch: a step of a function.
#[derive(Debug)]
struct Launch {
    kernel: Kernel,
    grid: u32,
    block: u32,
    params: Vec<u64>,
}

/// Where a buffer is: in memory of the device and, for inputs and outputs, of the host.
#[derive(Debug, Clone, Copy)]
struct Place {
    device: usize,
    host: usize,
    bytes: usize,
}

/// A loaded module and the work that its kernels do.
#[derive(Debug)]
pub struct Program {
    work: Work,
    module: Module,
}

/// What a function needs: its inputs' bytes, the sizes of its inner buffers, and of its output.
#[derive(Debug)]
pub struct Needs {
    /// Bytes of each input.
    pub inputs: Vec<Vec<u8>>,
    /// Bytes of buffers that neither come in nor go out.
    pub inner: Vec<usize>,
    /// Bytes of the output, if there is one.
    pub output: Option<usize>,
}

impl Work {
    /// The library's module that has its kernels.
    pub fn module(self) -> &'static str {
        match self {
            Self::Inference(_) | Self::Matmul => "mlops",
            Self::Empty => "module",
        }
    }

    /// What it works on.
    pub fn needs(self) -> Needs {
        match self {
            Self::Inference(_) => {
                let (image, filter) = picture();
                let output = 4 * (2 + (PICTURE / 2).pow(2)) as usize;
                Needs { inner: vec![image.len()], inputs: vec![image, filter], output: Some(output) }
            }
            Self::Matmul => {
                let matrix = from_elements(&square());
                Needs { output: Some(matrix.len()), inputs: vec![matrix], inner: Vec::new() }
            }
            Self::Empty => Needs { inputs: Vec::new(), inner: Vec::new(), output: None },
        }
    }
}

impl Program {
    /// Loads machine code for it.
    pub fn load(work: Work, code: &[u8]) -> Result<Self> {
        Ok(Self { work, module: Module::load(code)? })
    }

    /// Compiles and loads it.
    pub fn compile(gpu: &Gpu, work: Work) -> Result<Self> {
        Self::load(work, &gpu.code(work.module())?)
    }

    /// Its launches for buffers at these addresses (inputs, inner ones, output), and how often.
    fn launches(&self, at: &[u64]) -> Result<(Vec<Launch>, u32)> {
        let launch = |name: &str, grid: u64, block: u32, params: &[u64]| -> Result<Launch> {
            let kernel = self.module.kernel(name)?;
            Ok(Launch { kernel, grid: u32::try_from(grid)?, block, params: params.to_vec() })
        };
        Ok(match self.work {
            Work::Inference(times) => {
                let (whole, pooled) = (blocks(PICTURE), blocks(PICTURE / 2));
                let [a, b, c, d] = at else { return Err("inference has four buffers".into()) };
                let steps = vec![
                    launch("convolution_f", whole, BLOCK, &[*c, *a, *b])?,
                    launch("relu_2d_f", whole, BLOCK, &[*c])?,
                    launch("maxpool_f", pooled, BLOCK, &[*d, *c, 2])?,
                ];
                (steps, times)
            }
            Work::Matmul => {
                let [a, b] = at else { return Err("matmul has two buffers".into()) };
                let bytes = 8 * (1 + SIDE * SIDE);
                (vec![launch("matmul_para", blocks(SIDE), BLOCK, &[*a, bytes, *b])?], 1)
            }
            Work::Empty => (vec![launch("hello_world", 1, 1, &[])?], 1),
        })
    }
}

/// One call at a time: a stream and everything the call uses. The module must outlive it.
#[derive(Debug)]
pub struct Lane {
    // First, since dropping it waits for what uses the rest.
    stream: Stream,
    graph: Option<Graph>,
    memory: Buffer,
    host: Pinned,
    inputs: Vec<Place>,
    output: Option<Place>,
    launches: Vec<Launch>,
    times: u32,
}

impl Lane {
    /// A lane with its inputs in pinned memory.
    pub fn new(program: &Program) -> Result<Self> {
        let Needs { inputs, inner, output } = program.work.needs();
        let sizes: Vec<usize> = inputs.iter().map(Vec::len).chain(inner).chain(output).collect();
        let mut end = 0;
        let offsets: Vec<usize> = sizes
            .iter()
            .map(|bytes| {
                let offset = end;
                end = (offset + bytes).next_multiple_of(ALIGN);
                offset
            })
            .collect();
        let memory = Buffer::new(end.max(ALIGN))?;
        let mut host = Pinned::new(end.max(ALIGN))?;
        let place = |nth: usize| Place { device: offsets[nth], host: offsets[nth], bytes: sizes[nth] };
        for (nth, bytes) in inputs.iter().enumerate() {
            host.write(offsets[nth], bytes);
        }
        let addresses: Vec<u64> = offsets.iter().map(|offset| memory.address() + *offset as u64).collect();
        let (launches, times) = program.launches(&addresses)?;
        Ok(Self {
            stream: Stream::new()?,
            graph: None,
            inputs: (0..inputs.len()).map(place).collect(),
            output: output.map(|_| place(sizes.len() - 1)),
            memory,
            host,
            launches,
            times,
        })
    }

    /// From now on its calls are one graph, copies included.
    pub fn capture(&mut self) -> Result<()> {
        let graph = self.stream.capture(|| self.submit_direct())?;
        self.graph = Some(graph);
        Ok(())
    }

    /// Submits a call; with `clearing`, a fill of everything it used behind it.
    pub fn submit(&self, clearing: bool) -> Result<()> {
        match &self.graph {
            // SAFETY: it was captured with this lane's memory, which stays until its stream has ended.
            Some(graph) => unsafe { self.stream.launch_graph(graph) }?,
            None => self.submit_direct()?,
        }
        self.stream.mark()?;
        if clearing {
            // SAFETY: all of the lane's own memory, which stays until its stream has ended.
            unsafe { self.stream.clear(self.memory.address(), self.memory.bytes()) }?;
        }
        Ok(())
    }

    /// Calls that are submitted from here on begin once the first word of `gate` is `least` or more.
    pub fn hold(&self, gate: &Pinned, least: u32) -> Result<()> {
        // SAFETY: who waits for the lane's calls writes the word, and keeps the memory until they are over.
        unsafe { self.stream.hold(gate, least) }
    }

    /// Waits until its calls are over.
    pub fn wait(&self) -> Result<()> {
        self.stream.wait()
    }

    /// True if the call is over.
    pub fn passed(&self) -> Result<bool> {
        self.stream.passed()
    }

    /// The output of the last call that is over.
    pub fn result(&self) -> Vec<u8> {
        self.output.map_or_else(Vec::new, |place| self.host.read(place.host, place.bytes))
    }

    fn submit_direct(&self) -> Result<()> {
        for place in &self.inputs {
            let to = self.memory.address() + place.device as u64;
            // SAFETY: the place is inside both memories of this lane, which stay until its stream has ended.
            unsafe { self.stream.copy_in(&self.host, place.host, to, place.bytes) }?;
        }
        for _ in 0..self.times {
            for launch in &self.launches {
                let (grid, block) = ([launch.grid; 2], [launch.block; 2]);
                // SAFETY: parameters as in `kernels/c`, of buffers of this lane; the module outlives it.
                unsafe { self.stream.launch(launch.kernel, grid, block, &launch.params) }?;
            }
        }
        if let Some(place) = self.output {
            let from = self.memory.address() + place.device as u64;
            // SAFETY: the place is inside both memories of this lane, which stay until its stream has ended.
            unsafe { self.stream.copy_out(from, &self.host, place.host, place.bytes) }?;
        }
        Ok(())
    }
}

/// A request of the ancestors' design: nothing of it is kept between two.
#[derive(Debug)]
pub struct Request {
    work: Work,
    needs: Needs,
    /// Where the output goes.
    output: Vec<u8>,
}

impl Request {
    /// Its inputs lie in ordinary memory, as in the contexts that the ancestors' workers map.
    pub fn new(work: Work) -> Self {
        let needs = work.needs();
        Self { work, output: vec![0; needs.output.unwrap_or(0)], needs }
    }

    /// Serves it in the pool's memory and clears what it used.
    pub fn run(&mut self, gpu: &Gpu, code: &[u8], pool: &Buffer) -> Result<()> {
        let program = Program::load(self.work, code)?;
        let Needs { inputs, inner, output } = &self.needs;
        let mut used = 0;
        let mut at = Vec::new();
        for bytes in inputs.iter().map(Vec::len).chain(inner.iter().copied()).chain(*output) {
            at.push(pool.address() + used as u64);
            used = (used + bytes).next_multiple_of(ALIGN);
        }
        if used > pool.bytes() {
            return Err("the pool is smaller than what the function needs".into());
        }
        for (bytes, to) in inputs.iter().zip(&at) {
            pool.copy_in(bytes, *to)?;
        }
        let stream = Stream::new()?;
        let (launches, times) = program.launches(&at)?;
        for _ in 0..times {
            for launch in &launches {
                let (grid, block) = ([launch.grid; 2], [launch.block; 2]);
                // SAFETY: parameters as in `kernels/c`, of buffers in the pool; all is over before the module goes.
                unsafe { stream.launch(launch.kernel, grid, block, &launch.params) }?;
            }
        }
        stream.wait()?;
        if let (Some(_), Some(from)) = (output, at.last()) {
            pool.copy_out(*from, &mut self.output)?;
        }
        // SAFETY: inside the pool, which the caller keeps; waited for below.
        unsafe { stream.clear(pool.address(), used) }?;
        gpu.synchronize()
    }
}
