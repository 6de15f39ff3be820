//! The command list of a bound plan: a plan's steps with the addresses of one lane filled in, as they are submitted
//! to a stream, directly or while a graph is captured.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use pappus_blueprint::{Location, ParamKind, Plan, Space, Step, TensorMap};
use pappus_protocol::{Fault, FaultCode};

use super::driver::{Driver, LoadedKernel, ParamPlace, Shape, Stream, TENSOR_MAP_SLOTS};

/// One thing to submit.
#[derive(Debug)]
enum Command<D: Driver> {
    Launch {
        index: u32,
        kernel: D::Kernel,
        shape: Shape,
        params: std::ops::Range<u32>,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Fill {
        to: u64,
        bytes: u64,
        byte: u8,
    },
    /// The next `body` entries, `count` times.
    Repeat {
        count: u64,
        body: u32,
    },
}

/// A plan's steps for one lane.
#[derive(Debug)]
pub(super) struct CommandList<D: Driver> {
    commands: Vec<Command<D>>,
    /// Parameter memory of all launches; equal lists are shared.
    params: Vec<u8>,
    /// Names of the blueprint's kernels.
    names: Rc<[String]>,
}

/// How far a command list was submitted.
#[derive(Debug, Default, Clone)]
pub(super) struct Cursor {
    at: usize,
    /// The repeats around `at`, outermost first: start and end of the body, and runs left with this one.
    open: Vec<(usize, usize, u64)>,
}

impl Cursor {
    /// Back to the start, keeping the memory.
    pub(super) fn rewind(&mut self) {
        self.at = 0;
        self.open.clear();
    }
}

/// Bytes of the parameter that tells a fenced kernel its window.
pub(super) const WINDOW_PARAM_BYTES: u32 = 4;

/// Where a lane's calls have their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bases {
    pub(super) pool: u64,
    pub(super) weights: u64,
}

impl Bases {
    /// The high word of all addresses in the window that the pool lies in.
    fn window(self) -> u32 {
        (self.pool >> 32) as u32
    }

    fn address(self, location: Location) -> u64 {
        match location.space {
            Space::Pool => self.pool + location.offset,
            Space::Weights => self.weights + location.offset,
        }
    }
}

impl<D: Driver> CommandList<D> {
    /// Fills addresses and kernels in; `load` gives a kernel by its index in the blueprint.
    pub(super) fn write(
        plan: &Plan,
        names: Rc<[String]>,
        bases: Bases,
        mut load: impl FnMut(u32) -> Result<LoadedKernel<D::Kernel>, Fault>,
        encode: impl Fn(&TensorMap, u64) -> Result<[u64; TENSOR_MAP_SLOTS], Fault>,
    ) -> Result<Self, Fault> {
        let mut list = Self { commands: Vec::with_capacity(plan.steps.len()), params: Vec::new(), names };
        let mut written = HashMap::new();
        let mut kernels: HashMap<u32, LoadedKernel<D::Kernel>> = HashMap::new();
        for step in &plan.steps {
            let command = match *step {
                Step::Repeat { count, body } => Command::Repeat { count, body },
                Step::Copy { from, to, bytes } => {
                    Command::Copy { to: bases.pool + to, from: bases.address(from), bytes }
                }
                Step::Fill { offset, bytes, byte } => Command::Fill { to: bases.pool + offset, bytes, byte },
                Step::Launch { kernel: index, grid, block, cluster, shared_bytes, ref params } => {
                    let entry = match kernels.entry(index) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => unknown.insert(load(index)?),
                    };
                    let key = (index, params.start, params.end);
                    let range = match written.get(&key) {
                        Some(range) => std::ops::Range::clone(range),
                        None => {
                            let range = list.write_params(plan, params.clone(), entry, bases, &encode);
                            let range = range.map_err(|why| Fault {
                                code: FaultCode::BadInvoke,
                                kernel: Some(index),
                                message: format!("kernel `{}`: {why}", list.name(index)),
                            })?;
                            written.insert(key, range.clone());
                            range
                        }
                    };
                    Command::Launch {
                        index,
                        kernel: entry.kernel,
                        shape: Shape { grid, block, cluster, shared_bytes },
                        params: range,
                    }
                }
            };
            list.commands.push(command);
        }
        Ok(list)
    }

    /// Lays a parameter list out as the kernel expects it; what does not fit is told.
    fn write_params(
        &mut self,
        plan: &Plan,
        params: std::ops::Range<u32>,
        kernel: &LoadedKernel<D::Kernel>,
        bases: Bases,
        encode: &impl Fn(&TensorMap, u64) -> Result<[u64; TENSOR_MAP_SLOTS], Fault>,
    ) -> Result<std::ops::Range<u32>, ArgumentError> {
        let table = &plan.params;
        let list =
            table.params.get(params.start as usize..params.end as usize).ok_or(ArgumentError::Broken)?;
        if list.len() != kernel.params.len() {
            return Err(ArgumentError::Count { takes: kernel.params.len(), passed: list.len() });
        }
        let start = self.params.len().next_multiple_of(16);
        let window = kernel.window.map(|offset| ParamPlace { offset, bytes: WINDOW_PARAM_BYTES });
        let places = kernel.params.iter().chain(&window);
        let bytes = places.map(|place| place.offset + place.bytes).max().unwrap_or(0) as usize;
        self.params.resize(start + bytes, 0);
        for (position, (param, &ParamPlace { offset, bytes })) in list.iter().zip(&kernel.params).enumerate()
        {
            if param.bytes != bytes {
                return Err(ArgumentError::Size {
                    position: position + 1,
                    takes: bytes,
                    passed: param.bytes,
                });
            }
            let (first, count) = (param.slot as usize, param.bytes.div_ceil(8) as usize);
            let slots = table.slots.get(first..first + count).ok_or(ArgumentError::Broken)?;
            // Relocations lie in the order of their slots.
            let mut relocation = table.relocations.partition_point(|r| (r.slot as usize) < first);
            let target = start + offset as usize;
            let map;
            let slots = match param.kind {
                ParamKind::TensorMap => {
                    let found = table.tensor_maps.binary_search_by_key(&param.slot, |map| map.slot);
                    let found = &table.tensor_maps[found.map_err(|_| ArgumentError::Broken)?];
                    map = encode(found, bases.address(found.at)).map_err(|fault| {
                        ArgumentError::TensorMap { position: position + 1, why: fault.message }
                    })?;
                    &map[..]
                }
                _ => slots,
            };
            for (nth, slot) in slots.iter().enumerate() {
                let mut value = *slot;
                if let Some(r) = table.relocations.get(relocation).filter(|r| r.slot as usize == first + nth)
                {
                    value = bases.address(Location { space: r.space, offset: r.addend });
                    relocation += 1;
                }
                let length = (bytes as usize - nth * 8).min(8);
                let at = target + nth * 8;
                self.params[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
            }
        }
        if let Some(at) = kernel.window.map(|offset| start + offset as usize) {
            let place = at..at + WINDOW_PARAM_BYTES as usize;
            self.params[place].copy_from_slice(&bases.window().to_le_bytes());
        }
        Ok(start as u32..(start + bytes) as u32)
    }

    /// A kernel's name, for people.
    pub(super) fn name(&self, kernel: u32) -> &str {
        self.names.get(kernel as usize).map_or("?", |name| name)
    }

    /// Roughly what it occupies.
    pub(super) fn approx_bytes(&self) -> u64 {
        (self.commands.len() * size_of::<Command<D>>() + self.params.len()) as u64
    }

    /// Submits steps from the cursor on, at most `limit`; says whether the list is at its end, and
    /// tells the kernel of the last launch, also of one that the driver refuses.
    pub(super) fn submit(
        &self,
        stream: &D::Stream,
        cursor: &mut Cursor,
        limit: u32,
        last: &mut Option<u32>,
    ) -> Result<bool, D::Error> {
        let mut submitted = 0;
        loop {
            while let Some((start, end, left)) = cursor.open.last_mut() {
                if cursor.at < *end {
                    break;
                }
                *left -= 1;
                if *left > 0 {
                    cursor.at = *start;
                } else {
                    cursor.open.pop();
                }
            }
            let Some(command) = self.commands.get(cursor.at) else {
                return Ok(true);
            };
            if submitted == limit {
                return Ok(false);
            }
            cursor.at += 1;
            match command {
                Command::Repeat { count, body } => {
                    cursor.open.push((cursor.at, cursor.at + *body as usize, *count));
                    continue;
                }
                Command::Launch { index, kernel, shape, params } => {
                    *last = Some(*index);
                    let params = &self.params[params.start as usize..params.end as usize];
                    stream.launch(*kernel, shape, params)?;
                }
                Command::Copy { to, from, bytes } => stream.copy(*to, *from, *bytes)?,
                Command::Fill { to, bytes, byte } => stream.fill(*to, *byte, *bytes)?,
            }
            submitted += 1;
        }
    }
}

/// Why a launch's arguments are not what its kernel takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ArgumentError {
    #[error("it takes {takes} arguments, the blueprint passes {passed}")]
    Count { takes: usize, passed: usize },
    #[error("argument {position} takes {takes} bytes, the blueprint passes {passed}")]
    Size { position: usize, takes: u32, passed: u32 },
    #[error("argument {position}: {why}")]
    TensorMap { position: usize, why: String },
    #[error("its parameters are not in the plan")]
    Broken,
}
