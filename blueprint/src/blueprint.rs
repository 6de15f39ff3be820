//! A blueprint, resolved: indices instead of names, sizes in one table, steps flat with each
//! `Repeat` followed by its body. Built by `parse` alone, so all of it has been checked.

use std::ops::Range;

use serde::Serialize;

use crate::arrays::{Declared, Dimension};
use crate::error::{Error, Path};
use crate::limits;
use crate::size::{SizeId, SizeTable};
use crate::types::{BoxFill, DType, Isolation, ParamKind, Swizzle, heap_bytes};

/// An index into [`Blueprint::buffers`]. Inputs come first, in their order, then weights, then state, then
/// buffers in the order of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The same as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A file of compiled kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name kernels refer to it by.
    pub name: String,
    /// The file, as written.
    pub path: String,
}

/// A kernel the blueprint may launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The name the blueprint calls it by.
    pub name: String,
    /// An index into [`Blueprint::modules`].
    pub module: usize,
    /// Its symbol in the module.
    pub symbol: String,
}

/// A file that holds a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightFile {
    /// The weight.
    pub weight: BufferId,
    /// The file, as written.
    pub path: String,
}

/// Where a buffer's contents come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The caller.
    Input,
    /// The function; read-only.
    Weight,
    /// The call before in the same session; zeroes in the first one.
    State,
    /// Nowhere: it starts as zeroes.
    Buffer,
}

/// An input, a weight, state or a buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// Where its contents come from.
    pub role: Role,
    /// True if the buffer's contents are part of the result.
    pub output: bool,
    /// True if the device needs the buffer's bytes: a step names it, or the result does. Sizes are read
    /// elsewhere.
    pub reached: bool,
    /// True if a step names it.
    pub named: bool,
    /// True if anything uses it: a step, the result, a size, the type of another buffer.
    pub used: bool,
    /// The type of its elements, where the blueprint says.
    pub dtype: Option<DType>,
    /// Its bytes.
    pub(crate) size: SizeId,
    /// Its dimensions, where the blueprint says; a typed buffer without has one dimension.
    pub(crate) shape: Option<Box<[SizeId]>>,
}

/// A word that `FromInput` reads: an unsigned 64-bit little-endian integer in an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WordRef {
    /// A position in [`Blueprint::inputs`].
    pub input: u32,
    /// Which word of it, from 0.
    pub index: u64,
}

/// How weights are packed into their block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightLayout {
    /// Where each weight starts, in the order of [`Blueprint::weights`]; multiples of
    /// [`limits::BUFFER_ALIGN`].
    pub offsets: Vec<u64>,
    /// The bytes of the block; a multiple of [`limits::BUFFER_ALIGN`].
    pub total: u64,
}

/// The free dimension along which calls may be put side by side: the outermost one of every input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchDimension {
    /// Its position among the [free dimensions](Blueprint::free_dimensions).
    pub free: usize,
    /// The most items that calls may have together.
    pub most: u64,
    /// How long a call waits for others, in microseconds.
    pub delay_us: u64,
}

/// A function's buffers and control flow, checked and ready to plan.
#[derive(Debug)]
pub struct Blueprint {
    pub(crate) modules: Vec<Module>,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) weight_files: Vec<WeightFile>,
    pub(crate) isolation: Isolation,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) inputs: Vec<BufferId>,
    pub(crate) weights: Vec<BufferId>,
    pub(crate) outputs: Vec<BufferId>,
    /// Bytes of the state, in the order of the document. Its buffers are the last ones of inputs and of outputs.
    pub(crate) state_bytes: Vec<u64>,
    pub(crate) words: Vec<WordRef>,
    /// Where each word was written first.
    pub(crate) word_places: Vec<Box<str>>,
    /// Names of the free dimensions.
    pub(crate) free: Vec<Box<str>>,
    /// Along which of them calls may be put side by side.
    pub(crate) batch: Option<BatchDimension>,
    /// What is declared of each input.
    pub(crate) input_types: Vec<Option<Declared>>,
    pub(crate) sizes: SizeTable,
    pub(crate) steps: Vec<Step>,
    /// Every distinct parameter list, one after the other.
    pub(crate) items: Vec<Item>,
    /// Where each list is in `items`.
    pub(crate) lists: Vec<Range<u32>>,
    /// Every distinct tensor map.
    pub(crate) tensor_maps: Vec<TensorMap>,
    /// Unused bytes behind every buffer; more than none for checked calls only, whose buffers share no memory.
    pub(crate) guard_bytes: u64,
}

impl Blueprint {
    /// The modules.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The kernels that may be launched.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Inputs, weights, state and buffers, by [`BufferId`].
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// What goes into a run: the inputs, in the order a call brings them, and behind these the state.
    pub fn inputs(&self) -> &[BufferId] {
        &self.inputs
    }

    /// The inputs that a call brings.
    pub fn brought(&self) -> &[BufferId] {
        &self.inputs[..self.inputs.len() - self.state_bytes.len()]
    }

    /// The state: buffers that stay from one call of a session to the next.
    pub fn state(&self) -> &[BufferId] {
        &self.inputs[self.brought().len()..]
    }

    /// The bytes of each, which no call changes.
    pub fn state_bytes(&self) -> &[u64] {
        &self.state_bytes
    }

    /// The weights.
    pub fn weights(&self) -> &[BufferId] {
        &self.weights
    }

    /// What comes out of a run: the outputs, in the order a call returns them, and behind these the state. An input may be an output.
    pub fn outputs(&self) -> &[BufferId] {
        &self.outputs
    }

    /// The outputs that a call returns.
    pub fn returned(&self) -> &[BufferId] {
        &self.outputs[..self.outputs.len() - self.state_bytes.len()]
    }

    /// The files of weights, where the function names some.
    pub fn weight_files(&self) -> &[WeightFile] {
        &self.weight_files
    }

    /// Whether calls may run in a worker that tenants share.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// The distinct words that a plan depends on.
    pub fn words(&self) -> &[WordRef] {
        &self.words
    }

    /// Names of the free dimensions, in the order of their values in [`Sizes`](crate::Sizes).
    pub fn free_dimensions(&self) -> &[Box<str>] {
        &self.free
    }

    /// Along which dimension calls may be put side by side, if the function says so.
    pub fn batch(&self) -> Option<BatchDimension> {
        self.batch
    }

    /// What is declared of a buffer.
    pub fn declared(&self, id: BufferId) -> Option<Declared> {
        let buffer = &self.buffers[id.index()];
        let dimension = |dim| match (self.sizes.constant(dim), self.sizes.free(dim)) {
            (Some(value), _) => Dimension::Fixed(value),
            (None, Some(free)) => Dimension::Free(free),
            (None, None) => Dimension::Computed,
        };
        let shape = buffer.shape.as_ref().map(|dims| dims.iter().map(|&dim| dimension(dim)).collect());
        Some(Declared { dtype: buffer.dtype?, shape })
    }

    /// What is declared of each input, in the order of [`Blueprint::inputs`].
    pub fn input_types(&self) -> &[Option<Declared>] {
        &self.input_types
    }

    /// The element type that is declared of an input; `None` if none is.
    pub fn input_type(&self, name: &str) -> Option<DType> {
        let at = self.inputs.iter().position(|id| self.buffers[id.index()].name == name)?;
        self.input_types[at].as_ref().map(|declared| declared.dtype)
    }

    /// The words that are read at this place of the JSON, or inside it, and nowhere before.
    pub fn words_first_read_in<'a>(&'a self, place: &'a str) -> impl Iterator<Item = &'a WordRef> {
        let inside = move |read: &str| {
            read.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let all = self.words.iter().zip(&self.word_places);
        all.filter(move |(_, read)| inside(read)).map(|(word, _)| word)
    }

    /// The buffer of that name.
    pub fn buffer_named(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().position(|buffer| buffer.name == name).map(|at| BufferId(at as u32))
    }

    /// Where in an input of `input_bytes` a word starts; an error where it is not all inside. To be
    /// asked before reading it.
    pub fn word_offset(&self, word: &WordRef, input_bytes: u64) -> Result<u64, Error> {
        let end = word.index.checked_add(1).and_then(|words| words.checked_mul(8));
        match end {
            Some(end) if end <= input_bytes => Ok(end - 8),
            _ => {
                let at = self.words.iter().position(|other| other == word);
                let place = at.map_or("blueprint.inputs", |at| &*self.word_places[at]);
                let input = self.inputs.get(word.input as usize);
                let name = input.map_or("an input", |id| self.buffers[id.index()].name.as_str());
                Err(Error::new(
                    place,
                    format_args!(
                        "word {} is beyond the {input_bytes} bytes of {name:?}, expected an input that holds it",
                        word.index
                    ),
                ))
            }
        }
    }

    /// Packs weights of these sizes (in the order of [`Blueprint::weights`]) into one block.
    pub fn weight_layout(&self, weight_bytes: &[u64]) -> Result<WeightLayout, Error> {
        check_count("blueprint.weights", weight_bytes, self.weights.len())?;
        let mut offsets = Vec::with_capacity(weight_bytes.len());
        let mut block = Bump::with_guards(self.guard_bytes);
        for (at, &bytes) in weight_bytes.iter().enumerate() {
            let offset = block.place(bytes);
            offsets.push(offset.map_err(|message| Error::new(self.place_of(self.weights[at]), message))?);
        }
        Ok(WeightLayout { offsets, total: block.used })
    }

    /// Roughly what this blueprint occupies in memory.
    pub fn approx_bytes(&self) -> usize {
        let buffers = self
            .buffers
            .iter()
            .map(|buffer| buffer.name.capacity() + buffer.shape.as_deref().map_or(0, size_of_val));
        let kernels = self.kernels.iter().map(|kernel| kernel.name.capacity() + kernel.symbol.capacity());
        let modules = self.modules.iter().map(|module| module.name.capacity() + module.path.capacity());
        let files = self.weight_files.iter().map(|file| file.path.capacity());
        let types = self.input_types.iter().flatten().flat_map(|declared| &declared.shape);
        let places = self.word_places.iter().chain(&self.free).map(|text| text.len());
        size_of::<Self>()
            + heap_bytes(&self.modules)
            + heap_bytes(&self.kernels)
            + heap_bytes(&self.weight_files)
            + heap_bytes(&self.buffers)
            + heap_bytes(&self.state_bytes)
            + heap_bytes(&self.words)
            + heap_bytes(&self.word_places)
            + heap_bytes(&self.free)
            + heap_bytes(&self.input_types)
            + types.map(heap_bytes).sum::<usize>()
            + heap_bytes(&self.steps)
            + heap_bytes(&self.items)
            + heap_bytes(&self.lists)
            + heap_bytes(&self.tensor_maps)
            + self.tensor_maps.iter().map(TensorMap::heap_bytes).sum::<usize>()
            + buffers.chain(kernels).chain(modules).chain(files).chain(places).sum::<usize>()
            + self.sizes.approx_bytes()
    }

    /// Where a buffer is declared.
    pub(crate) fn place_of(&self, id: BufferId) -> String {
        let blueprint = Path::Root.key("blueprint");
        let buffer = &self.buffers[id.index()];
        match buffer.role {
            Role::Input => blueprint.key("inputs").index(id.index()).to_string(),
            Role::Weight => blueprint.key("weights").index(id.index() - self.brought().len()).to_string(),
            Role::State => blueprint.key("state").key(&buffer.name).to_string(),
            Role::Buffer => blueprint.key("buffers").key(&buffer.name).to_string(),
        }
    }
}

/// A parsed step. A `Repeat` is followed by the `body` steps it repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Launch {
        kernel: u32,
        /// Grid x, y, z; block x, y, z; bytes of dynamic shared memory; cluster x, y, z.
        dims: [SizeId; 10],
        /// An index into [`Blueprint::lists`].
        list: u32,
    },
    Copy {
        from: BufferId,
        from_offset: SizeId,
        to: BufferId,
        to_offset: SizeId,
        bytes: Option<SizeId>,
    },
    Fill {
        buffer: BufferId,
        offset: SizeId,
        bytes: Option<SizeId>,
        byte: u8,
    },
    Repeat {
        count: SizeId,
        body: u32,
    },
}

/// An element of a parameter list: each `Param` is followed by the fields that fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Param { kind: ParamKind, bytes: u32, align: u32 },
    Field { offset: u32, value: FieldValue },
}

/// What a field of a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FieldValue {
    /// Little-endian bits, as wide as they need to be.
    Bits(u64),
    /// A size, at most `max`; the argument is written as `name`.
    Size { size: SizeId, max: u64, name: &'static str },
    /// An address.
    Pointer { buffer: BufferId, offset: SizeId },
    /// One of [`Blueprint::tensor_maps`].
    TensorMap(u32),
}

/// An array in a buffer and the box of it that a kernel copies at once; its dimensions are outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TensorMap {
    pub(crate) buffer: BufferId,
    pub(crate) offset: SizeId,
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[SizeId]>,
    pub(crate) strides: Box<[SizeId]>,
    pub(crate) box_shape: Box<[u32]>,
    pub(crate) swizzle: Swizzle,
    pub(crate) fill: BoxFill,
}

impl TensorMap {
    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.shape) + size_of_val(&*self.strides) + size_of_val(&*self.box_shape)
    }
}

/// A range that does not fit behind those that were placed.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes after {used} others, expected at most {max} in all", max = limits::MEMORY_BYTES)]
pub(crate) struct NoRoom {
    bytes: u64,
    used: u64,
}

/// Places ranges one after the other, each aligned.
#[derive(Default)]
pub(crate) struct Bump {
    /// The end of what has been placed, aligned.
    pub(crate) used: u64,
    /// Bytes that are left behind each range.
    guard_bytes: u64,
}

impl Bump {
    pub(crate) fn with_guards(guard_bytes: u64) -> Self {
        Self { used: 0, guard_bytes }
    }

    pub(crate) fn place(&mut self, bytes: u64) -> Result<u64, NoRoom> {
        let end = bytes
            .checked_next_multiple_of(limits::BUFFER_ALIGN)
            .and_then(|bytes| self.used.checked_add(bytes)?.checked_add(self.guard_bytes))
            .filter(|&end| end <= limits::MEMORY_BYTES);
        let end = end.ok_or(NoRoom { bytes, used: self.used })?;
        Ok(std::mem::replace(&mut self.used, end))
    }
}

pub(crate) fn check_count(place: &str, given: &[u64], expected: usize) -> Result<(), Error> {
    if given.len() == expected {
        return Ok(());
    }
    Err(Error::new(place, format_args!("{} values given for it, expected {expected}", given.len())))
}

/// Where a step is written. Walks the tree from the top: only errors ask.
pub(crate) fn place_of_step(steps: &[Step], target: usize) -> String {
    let mut place = String::from("blueprint.control_flow");
    let (mut at, mut ordinal) = (0, 0);
    while at < target {
        let body = match steps[at] {
            Step::Repeat { body, .. } => body as usize,
            _ => 0,
        };
        if target <= at + body {
            place.push_str(&format!("[{ordinal}].Repeat[1]"));
            (at, ordinal) = (at + 1, 0);
        } else {
            (at, ordinal) = (at + 1 + body, ordinal + 1);
        }
    }
    format!("{place}[{ordinal}]")
}
