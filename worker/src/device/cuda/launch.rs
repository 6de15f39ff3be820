//! A plan with addresses filled in for one lane: what is submitted, step by step or as a graph.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use pappus_blueprint::{Location, Plan, Space, Step};
use pappus_protocol::{Fault, FaultCode};

use super::driver::module::Kernel;
use super::driver::stream::Shape;
use super::driver::{Context, CudaError, Stream};
use super::function::Function;
use super::module::KernelEntry;

/// One thing to submit.
#[derive(Debug, Clone)]
enum Op {
    Launch {
        index: u32,
        kernel: Kernel,
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

/// A plan for one lane.
#[derive(Debug)]
pub(super) struct Script {
    ops: Vec<Op>,
    /// Parameter memory of all launches; equal lists are shared.
    params: Vec<u8>,
    /// Names of the blueprint's kernels.
    names: Rc<[String]>,
}

/// How far a script was submitted.
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

/// Where a lane's calls have their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bases {
    pub(super) pool: u64,
    pub(super) weights: u64,
}

impl Bases {
    fn address(self, location: Location) -> u64 {
        match location.space {
            Space::Pool => self.pool + location.offset,
            Space::Weights => self.weights + location.offset,
        }
    }
}

impl Script {
    /// Fills addresses and kernels in.
    pub(super) fn write(
        context: &Context,
        stream: &Stream,
        function: &mut Function,
        plan: &Plan,
        lane: usize,
        bases: Bases,
    ) -> Result<Self, Fault> {
        let names = function.names();
        let mut script = Self { ops: Vec::with_capacity(plan.steps.len()), params: Vec::new(), names };
        let mut written = HashMap::new();
        let mut kernels: HashMap<u32, KernelEntry> = HashMap::new();
        for step in &plan.steps {
            let op = match *step {
                Step::Repeat { count, body } => Op::Repeat { count, body },
                Step::Copy { from, to, bytes } => {
                    Op::Copy { to: bases.pool + to, from: bases.address(from), bytes }
                }
                Step::Fill { offset, bytes, byte } => Op::Fill { to: bases.pool + offset, bytes, byte },
                Step::Launch { kernel: index, grid, block, shared_bytes, ref params } => {
                    let entry = match kernels.entry(index) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => {
                            unknown.insert(function.kernel(context, stream, lane, index)?)
                        }
                    };
                    let key = (index, params.start, params.end);
                    let range = match written.get(&key) {
                        Some(range) => std::ops::Range::clone(range),
                        None => {
                            let range =
                                script.write_params(plan, params.clone(), entry, bases).map_err(|why| {
                                    Fault {
                                        code: FaultCode::BadInvoke,
                                        kernel: Some(index),
                                        message: format!("kernel `{}`: {why}", script.name(index)),
                                    }
                                })?;
                            written.insert(key, range.clone());
                            range
                        }
                    };
                    Op::Launch {
                        index,
                        kernel: entry.kernel,
                        shape: Shape { grid, block, shared_bytes },
                        params: range,
                    }
                }
            };
            script.ops.push(op);
        }
        Ok(script)
    }

    /// Lays a parameter list out as the kernel expects it; what does not fit is told.
    fn write_params(
        &mut self,
        plan: &Plan,
        params: std::ops::Range<u32>,
        kernel: &KernelEntry,
        bases: Bases,
    ) -> Result<std::ops::Range<u32>, String> {
        let table = &plan.params;
        let list =
            table.params.get(params.start as usize..params.end as usize).ok_or("no such parameters")?;
        if list.len() != kernel.params.len() {
            return Err(format!(
                "it takes {} arguments, the blueprint passes {}",
                kernel.params.len(),
                list.len()
            ));
        }
        let start = self.params.len().next_multiple_of(16);
        let bytes = kernel.params.iter().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0) as usize;
        self.params.resize(start + bytes, 0);
        for (position, (param, &(offset, bytes))) in list.iter().zip(&kernel.params).enumerate() {
            if param.bytes != bytes {
                let position = position + 1;
                return Err(format!(
                    "argument {position} takes {bytes} bytes, the blueprint passes {}",
                    param.bytes
                ));
            }
            let (first, count) = (param.slot as usize, param.bytes.div_ceil(8) as usize);
            let slots = table.slots.get(first..first + count).ok_or("no such slots")?;
            // Relocations lie in the order of their slots.
            let mut relocation = table.relocations.partition_point(|r| (r.slot as usize) < first);
            let target = start + offset as usize;
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
        Ok(start as u32..(start + bytes) as u32)
    }

    /// A kernel's name, for people.
    pub(super) fn name(&self, kernel: u32) -> &str {
        self.names.get(kernel as usize).map_or("?", |name| name)
    }

    /// Roughly what it occupies.
    pub(super) fn approx_bytes(&self) -> u64 {
        (self.ops.len() * size_of::<Op>() + self.params.len()) as u64
    }

    /// Submits steps from the cursor on, at most `limit`; says whether the script is at its end, and
    /// tells the kernel of the last launch, also of one that the driver refuses.
    pub(super) fn submit(
        &self,
        stream: &Stream,
        cursor: &mut Cursor,
        limit: u32,
        last: &mut Option<u32>,
    ) -> Result<bool, CudaError> {
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
            let Some(op) = self.ops.get(cursor.at) else {
                return Ok(true);
            };
            if submitted == limit {
                return Ok(false);
            }
            cursor.at += 1;
            match op {
                Op::Repeat { count, body } => {
                    cursor.open.push((cursor.at, cursor.at + *body as usize, *count));
                    continue;
                }
                Op::Launch { index, kernel, shape, params } => {
                    *last = Some(*index);
                    let params = &self.params[params.start as usize..params.end as usize];
                    stream.launch(*kernel, shape, params)?;
                }
                Op::Copy { to, from, bytes } => stream.copy(*to, *from, *bytes)?,
                Op::Fill { to, bytes, byte } => stream.fill(*to, *byte, *bytes)?,
            }
            submitted += 1;
        }
    }
}

/// A plan that does not fit its function: the planner's fault or ours, never the caller's.
#[cold]
pub(super) fn broken() -> Fault {
    Fault::new(FaultCode::Internal, "the plan does not fit the function it was made for")
}
