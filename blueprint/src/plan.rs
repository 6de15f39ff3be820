//! What a worker executes: where buffers are, which steps follow each other, and the bytes of the
//! parameters. Repeats stay folded; nothing in it is an address yet.

use std::ops::Range;

use crate::types::{BoxFill, DType, ParamKind, Swizzle, heap_bytes};

/// A blueprint resolved for given sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The used range of the pool is `[0, pool_bytes)`: what must be cleared. A multiple of
    /// [`limits::BUFFER_ALIGN`](crate::limits::BUFFER_ALIGN).
    pub pool_bytes: u64,
    /// Where each buffer is, by [`BufferId`](crate::BufferId). Inputs do not overlap, outputs neither; in a large
    /// plan, other buffers may lie where an earlier one did that no later step uses. The steps then have fills that
    /// clear what is handed on.
    pub buffers: Vec<Placement>,
    /// The shapes of typed inputs, in the order of [`Blueprint::inputs`](crate::Blueprint::inputs).
    pub input_shapes: Vec<Option<Shape>>,
    /// The shapes of typed outputs, in the order of
    /// [`Blueprint::outputs`](crate::Blueprint::outputs).
    pub output_shapes: Vec<Option<Shape>>,
    /// What to execute. Steps without effect (copies of nothing, zero repetitions) are gone, so
    /// every `Repeat` executes something.
    pub steps: Vec<Step>,
    /// The parameters of the launches.
    pub params: ParamTable,
    /// Kernels launched by one invocation, repeats included.
    pub launches: u64,
    /// Launches, copies and fills executed by one invocation, repeats included, and those that clear shared memory.
    pub expanded_steps: u64,
}

impl Plan {
    /// The steps to execute, one by one, repeats unfolded.
    pub fn expanded(&self) -> Expanded<'_> {
        Expanded { steps: &self.steps, at: 0, open: Vec::new() }
    }

    /// Roughly what this plan occupies in memory.
    pub fn approx_bytes(&self) -> usize {
        let shapes = self.input_shapes.iter().chain(&self.output_shapes).flatten();
        size_of::<Self>()
            + heap_bytes(&self.buffers)
            + heap_bytes(&self.input_shapes)
            + heap_bytes(&self.output_shapes)
            + shapes.map(|shape| heap_bytes(&shape.dims)).sum::<usize>()
            + heap_bytes(&self.steps)
            + heap_bytes(&self.params.slots)
            + heap_bytes(&self.params.params)
            + heap_bytes(&self.params.relocations)
            + heap_bytes(&self.params.tensor_maps)
            + self.params.tensor_maps.iter().map(TensorMap::heap_bytes).sum::<usize>()
    }
}

/// A block of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The worker's pool.
    Pool,
    /// The block that holds the function's weights, read-only.
    Weights,
}

/// Where a buffer is. A buffer of zero bytes has an offset (at most the end of its space) that
/// other buffers may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The block it is in.
    pub space: Space,
    /// Bytes from the start of the block, a multiple of
    /// [`limits::BUFFER_ALIGN`](crate::limits::BUFFER_ALIGN).
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A byte of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// The block it is in.
    pub space: Space,
    /// Bytes from the start of the block.
    pub offset: u64,
}

/// The type and dimensions of an output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The type of its elements.
    pub dtype: DType,
    /// Elements along each dimension, outermost first.
    pub dims: Vec<u64>,
}

/// One step. Copies and fills write to the pool only: weights are never written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Launch a kernel.
    Launch {
        /// An index into [`Blueprint::kernels`](crate::Blueprint::kernels).
        kernel: u32,
        /// Blocks along x, y and z.
        grid: [u32; 3],
        /// Threads of a block along x, y and z.
        block: [u32; 3],
        /// Blocks of a cluster along x, y and z; all of them 1 where blocks are on their own.
        cluster: [u32; 3],
        /// Bytes of dynamic shared memory.
        shared_bytes: u32,
        /// Its parameters, a range of [`ParamTable::params`]; equal lists are shared.
        params: Range<u32>,
    },
    /// Copy bytes within device memory; the ranges do not overlap.
    Copy {
        /// Where to read.
        from: Location,
        /// Where in the pool to write.
        to: u64,
        /// How many, at least 1.
        bytes: u64,
    },
    /// Set bytes of the pool.
    Fill {
        /// Where in the pool.
        offset: u64,
        /// How many, at least 1.
        bytes: u64,
        /// The value of each.
        byte: u8,
    },
    /// Execute the `body` steps that follow `count` times.
    Repeat {
        /// How often, at least once.
        count: u64,
        /// How many of the following entries of [`Plan::steps`] belong to it, at least 1.
        body: u32,
    },
}

/// The parameters of all launches, in slots of 8 bytes.
///
/// A slot's bytes in memory (little endian) are the parameter's: a scalar takes the first bytes of
/// one slot, a struct as many slots as it needs. A device adds the base addresses once per plan, at
/// the relocations, and then passes the address of a parameter's first slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamTable {
    /// The bytes, with zeroes where addresses go.
    pub slots: Vec<u64>,
    /// Where each parameter is.
    pub params: Vec<Param>,
    /// Where addresses go.
    pub relocations: Vec<Relocation>,
    /// Where tensor maps go, which the device makes of their addresses; in the order of their slots.
    pub tensor_maps: Vec<TensorMap>,
}

/// Slots that hold a tensor map: an array and the box of it that a kernel copies at once. Dimensions are outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// The first of its slots.
    pub slot: u32,
    /// Where the array starts.
    pub at: Location,
    /// The type of its elements.
    pub dtype: DType,
    /// Elements along each of 1 to 5 dimensions.
    pub shape: Box<[u64]>,
    /// Bytes from one element to the next along each dimension but the last, where elements lie side by side.
    pub strides: Box<[u64]>,
    /// Elements of the box along each dimension.
    pub box_shape: Box<[u32]>,
    /// How the box is arranged.
    pub swizzle: Swizzle,
    /// What is read beyond the array.
    pub fill: BoxFill,
}

impl TensorMap {
    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.shape) + size_of_val(&*self.strides) + size_of_val(&*self.box_shape)
    }
}

/// One parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Param {
    /// Its first slot.
    pub slot: u32,
    /// Its bytes.
    pub bytes: u32,
    /// Its alignment.
    pub align: u32,
    /// What it is.
    pub kind: ParamKind,
}

/// A slot that holds an address: the base of `space` plus `addend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Relocation {
    /// The slot, all of it.
    pub slot: u32,
    /// Whose base address.
    pub space: Space,
    /// Bytes from it.
    pub addend: u64,
}

/// Iterates over the steps of a plan as they are executed: never a [`Step::Repeat`].
#[derive(Debug, Clone)]
pub struct Expanded<'a> {
    steps: &'a [Step],
    at: usize,
    /// The repeats around `at`, outermost first: where the body starts and ends, and how often it
    /// is still to be executed, this time included.
    open: Vec<(usize, usize, u64)>,
}

impl<'a> Iterator for Expanded<'a> {
    type Item = &'a Step;

    fn next(&mut self) -> Option<&'a Step> {
        loop {
            while let Some((start, end, left)) = self.open.last_mut() {
                if self.at < *end {
                    break;
                }
                *left -= 1;
                if *left > 0 {
                    self.at = *start;
                } else {
                    self.open.pop();
                }
            }
            let step = self.steps.get(self.at)?;
            self.at += 1;
            match *step {
                Step::Repeat { count, body } => {
                    self.open.push((self.at, self.at + body as usize, count));
                }
                _ => return Some(step),
            }
        }
    }
}
