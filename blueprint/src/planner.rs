//! The planner: blueprint + sizes → [`Plan`], in one pass over the steps as written (and one before it where buffers may
//! share memory, see [`layout`]). Repeats are counted, never unfolded. Steps without effect for these sizes are left out,
//! so the executor of a plan does work for every step of it.

use std::ops::Range;

use crate::blueprint::{self, Blueprint, Buffer, BufferId, Bump, FieldValue, Item, Role, check_count};
use crate::error::{Error, Path};
use crate::launch::{self, LaunchError};
use crate::layout::{self, Clearing, SharedPool};
use crate::limits;
use crate::plan::{Location, Param, ParamTable, Placement, Plan, Relocation, Shape, Space, Step, TensorMap};
use crate::size::{Leaves, SizeId, Values};
use crate::terms;
use crate::types::ParamKind;

/// The inputs of a plan besides its blueprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes<'a> {
    /// Bytes of each input, in the order of [`Blueprint::inputs`].
    pub inputs: &'a [u64],
    /// Bytes of each weight, in the order of [`Blueprint::weights`].
    pub weights: &'a [u64],
    /// The words of the inputs that sizes read, in the order of [`Blueprint::words`].
    pub words: &'a [u64],
    /// The values of the free dimensions, in the order of [`Blueprint::free_dimensions`].
    pub free: &'a [u64],
}

impl<'a> Sizes<'a> {
    pub(crate) fn leaves(&self) -> Leaves<'a> {
        Leaves { inputs: self.inputs, weights: self.weights, words: self.words, free: self.free }
    }

    /// Checks that there are as many as the blueprint needs.
    pub(crate) fn check(&self, blueprint: &Blueprint) -> Result<(), Error> {
        check_count("blueprint.inputs", self.inputs, blueprint.inputs.len())?;
        check_count("blueprint.weights", self.weights, blueprint.weights.len())?;
        check_count("the words of `FromInput`", self.words, blueprint.words.len())?;
        check_count("the free dimensions", self.free, blueprint.free.len())
    }
}

impl Blueprint {
    /// Plans an invocation. Pure: the same sizes give the same plan everywhere.
    pub fn plan(&self, sizes: &Sizes<'_>) -> Result<Plan, Error> {
        self.plan_with(sizes, |own_bytes, values| {
            if self.is_checked() {
                return None;
            }
            // Where a size has no value, the pass below says so.
            layout::share(self, &layout::RULE, own_bytes, |id| values.known(id)).unwrap_or(None)
        })
    }

    /// The same, with buffers that share memory as `share` says, which is told what the pool takes without.
    pub(crate) fn plan_with(
        &self,
        sizes: &Sizes<'_>,
        share: impl FnOnce(u64, &Values<'_>) -> Option<SharedPool>,
    ) -> Result<Plan, Error> {
        sizes.check(self)?;
        for word in &self.words {
            self.word_offset(word, sizes.inputs[word.input as usize])?;
        }
        let values = self.sizes.evaluate(&sizes.leaves());
        let (mut buffers, mut pool_bytes) = place_buffers(self, &values)?;
        let mut clearings = Vec::new();
        if let Some(shared) = share(pool_bytes, &values) {
            for (placement, offset) in buffers.iter_mut().zip(shared.offsets) {
                if placement.space == Space::Pool {
                    placement.offset = offset;
                }
            }
            (pool_bytes, clearings) = (shared.bytes, shared.clearings);
        }
        let mut planner = Planner {
            blueprint: self,
            values,
            buffers,
            steps: Vec::with_capacity(self.steps.len() + clearings.len()),
            clearings: &clearings,
            params: ParamTable::default(),
            lists: vec![None; self.lists.len()],
        };
        planner.check_shapes()?;
        let input_shapes = planner.shapes(&self.inputs)?;
        let output_shapes = planner.shapes(&self.outputs)?;
        let counts = planner.steps(0..self.steps.len())?;
        planner.clear_before(self.steps.len());
        Ok(Plan {
            pool_bytes,
            buffers: planner.buffers,
            input_shapes,
            output_shapes,
            steps: planner.steps,
            params: planner.params,
            launches: counts.launches,
            // Clearings are executed once each.
            expanded_steps: counts.steps + clearings.len() as u64,
        })
    }
}

fn place_buffers(blueprint: &Blueprint, values: &Values<'_>) -> Result<(Vec<Placement>, u64), Error> {
    let bump = || Bump::with_guards(blueprint.guard_bytes);
    let (mut pool, mut weights) = (bump(), bump());
    let mut placements = Vec::with_capacity(blueprint.buffers.len());
    for (at, buffer) in blueprint.buffers.iter().enumerate() {
        let bytes = value_of(blueprint, values, buffer.size)?;
        let (space, block) = match buffer.role {
            Role::Weight => (Space::Weights, &mut weights),
            Role::Input | Role::State | Role::Buffer => (Space::Pool, &mut pool),
        };
        let offset = block
            .place(bytes)
            .map_err(|message| Error::new(blueprint.place_of(BufferId(at as u32)), message))?;
        placements.push(Placement { space, offset, bytes });
    }
    Ok((placements, pool.used))
}

/// What a list of steps executes, repeats included.
#[derive(Clone, Copy, Default)]
struct Counts {
    launches: u64,
    steps: u64,
}

struct Planner<'a> {
    blueprint: &'a Blueprint,
    values: Values<'a>,
    buffers: Vec<Placement>,
    steps: Vec<Step>,
    /// What is still to be cleared between steps, in their order.
    clearings: &'a [Clearing],
    params: ParamTable,
    /// Where each parameter list went, once a launch has used it.
    lists: Vec<Option<Range<u32>>>,
}

/// The value of a size.
#[inline]
fn value_of(blueprint: &Blueprint, values: &Values<'_>, id: SizeId) -> Result<u64, Error> {
    values.known(id).ok_or_else(|| terms::no_value(blueprint, values, id))
}

impl Planner<'_> {
    #[inline]
    fn value(&self, id: SizeId) -> Result<u64, Error> {
        value_of(self.blueprint, &self.values, id)
    }

    /// Checks typed buffers against their shapes.
    fn check_shapes(&self) -> Result<(), Error> {
        let mut all = self.blueprint.buffers.iter().zip(&self.buffers);
        all.try_for_each(|(buffer, placement)| self.check_shape(buffer, placement.bytes))
    }

    /// The shapes of these buffers, where they are typed.
    fn shapes(&self, ids: &[BufferId]) -> Result<Vec<Option<Shape>>, Error> {
        let mut shapes = Vec::with_capacity(ids.len());
        for id in ids {
            let buffer = &self.blueprint.buffers[id.index()];
            let bytes = self.buffers[id.index()].bytes;
            shapes.push(match (buffer.dtype, &buffer.shape) {
                (None, _) => None,
                (Some(dtype), None) => Some(Shape { dtype, dims: vec![bytes / dtype.bytes()] }),
                (Some(dtype), Some(dims)) => {
                    let dims = dims.iter().map(|&dim| self.value(dim));
                    Some(Shape { dtype, dims: dims.collect::<Result<_, _>>()? })
                }
            });
        }
        Ok(shapes)
    }

    fn check_shape(&self, buffer: &Buffer, bytes: u64) -> Result<(), Error> {
        let Some(dtype) = buffer.dtype else { return Ok(()) };
        let complaint = match &buffer.shape {
            None if bytes.is_multiple_of(dtype.bytes()) => return Ok(()),
            None => format!("the buffer has {bytes} bytes, expected a multiple of {}", dtype.bytes()),
            Some(dims) => {
                let mut needed = Some(dtype.bytes());
                for &dim in dims {
                    let dim = self.value(dim)?;
                    needed = needed.and_then(|needed| needed.checked_mul(dim));
                }
                match needed {
                    Some(needed) if needed == bytes => return Ok(()),
                    Some(needed) => format!("the buffer has {bytes} bytes, expected {needed} for its shape"),
                    None => format!("the buffer has {bytes} bytes, expected more than any has for its shape"),
                }
            }
        };
        Err(Path::Root.key("blueprint").key("types").key(&buffer.name).error(complaint))
    }

    fn steps(&mut self, range: Range<usize>) -> Result<Counts, Error> {
        let blueprint = self.blueprint;
        let mut counts = Counts::default();
        let mut at = range.start;
        while at < range.end {
            self.clear_before(at);
            let mut added = Counts { launches: 0, steps: 1 };
            let mut next = at + 1;
            match blueprint.steps[at] {
                blueprint::Step::Launch { kernel, dims, list } => {
                    self.launch(at, kernel, dims, list)?;
                    added.launches = 1;
                }
                blueprint::Step::Copy { from, from_offset, to, to_offset, bytes } => {
                    let (from_at, bytes) = self.range(at, from, from_offset, bytes, "Copy.from_offset")?;
                    let (to_at, room) = self.range(at, to, to_offset, None, "Copy.to_offset")?;
                    if bytes > room {
                        let message = format!("{bytes} bytes into the {room} that are left, expected to fit");
                        return Err(self.error(at, "Copy.to", message));
                    }
                    if bytes == 0 {
                        added.steps = 0;
                    } else if from == to && from_at.abs_diff(to_at) < bytes {
                        let message = format!(
                            "{bytes} bytes at {from_at} to {to_at}, expected no overlap within a buffer"
                        );
                        return Err(self.error(at, "Copy", message));
                    } else {
                        let placement = self.buffers[from.index()];
                        self.steps.push(Step::Copy {
                            from: Location { space: placement.space, offset: placement.offset + from_at },
                            to: self.buffers[to.index()].offset + to_at,
                            bytes,
                        });
                    }
                }
                blueprint::Step::Fill { buffer, offset, bytes, byte } => {
                    let (offset, bytes) = self.range(at, buffer, offset, bytes, "Fill.offset")?;
                    if bytes == 0 {
                        added.steps = 0;
                    } else {
                        let offset = self.buffers[buffer.index()].offset + offset;
                        self.steps.push(Step::Fill { offset, bytes, byte });
                    }
                }
                blueprint::Step::Repeat { count, body } => {
                    next += body as usize;
                    added = self.repeat(count, at + 1..next)?;
                }
            }
            counts.launches = counts.launches.saturating_add(added.launches);
            counts.steps = counts.steps.saturating_add(added.steps);
            if counts.steps > limits::EXPANDED_STEPS {
                let message = format!(
                    "one invocation would execute more steps than allowed: {}, expected at most {}",
                    counts.steps,
                    limits::EXPANDED_STEPS
                );
                return Err(Error::new(blueprint::place_of_step(&blueprint.steps, at), message));
            }
            at = next;
        }
        Ok(counts)
    }

    /// Adds the fills that belong in front of a step as written.
    fn clear_before(&mut self, at: usize) {
        while let [clearing, rest @ ..] = self.clearings
            && clearing.before as usize <= at
        {
            self.steps.push(Step::Fill { offset: clearing.offset, bytes: clearing.bytes, byte: 0 });
            self.clearings = rest;
        }
    }

    fn repeat(&mut self, count: SizeId, body: Range<usize>) -> Result<Counts, Error> {
        let count = self.value(count)?;
        if count == 0 {
            return Ok(Counts::default());
        }
        let header = self.steps.len();
        self.steps.push(Step::Repeat { count, body: 0 });
        let once = self.steps(body)?;
        match (self.steps.len() - header - 1) as u32 {
            0 => self.steps.truncate(header),
            body => self.steps[header] = Step::Repeat { count, body },
        }
        Ok(Counts { launches: once.launches.saturating_mul(count), steps: once.steps.saturating_mul(count) })
    }

    fn launch(&mut self, at: usize, kernel: u32, dims: [SizeId; 10], list: u32) -> Result<(), Error> {
        let mut checked = [0; 10];
        for (key, &dim) in dims.iter().enumerate() {
            let value = self.value(dim)?;
            checked[key] = launch::check(key, value).map_err(|why| {
                let within = format!("ExecKernel[2].{}", launch::KEYS[key]);
                match why {
                    LaunchError::Value { min, max, .. } => {
                        let told = terms::told(self.blueprint, &self.values, dim, value);
                        self.error(at, &within, format_args!("{told}, expected {min} to {max}"))
                    }
                    why => self.error(at, &within, why),
                }
            })?;
        }
        let [gx, gy, gz, bx, by, bz, shared_bytes, cx, cy, cz] = checked;
        let (grid, block, cluster) = ([gx, gy, gz], [bx, by, bz], [cx, cy, cz]);
        launch::check_block(block)
            .and_then(|()| launch::check_cluster(grid, cluster))
            .map_err(|message| self.error(at, "ExecKernel[2]", message))?;
        let params = self.params(at, list)?;
        self.steps.push(Step::Launch { kernel, grid, block, cluster, shared_bytes, params });
        Ok(())
    }

    /// Writes a parameter list, unless an earlier launch of this plan has.
    fn params(&mut self, at: usize, list: u32) -> Result<Range<u32>, Error> {
        if let Some(range) = &self.lists[list as usize] {
            return Ok(range.clone());
        }
        let first = self.params.params.len();
        let mut param_slot = 0;
        let range = self.blueprint.lists[list as usize].clone();
        let items = &self.blueprint.items[range.start as usize..range.end as usize];
        for (position, item) in items.iter().enumerate() {
            match *item {
                Item::Param { kind, bytes, align } => {
                    param_slot = self.params.slots.len();
                    self.params.slots.resize(param_slot + bytes.div_ceil(8) as usize, 0);
                    self.params.params.push(Param { slot: param_slot as u32, bytes, align, kind });
                }
                Item::Field { offset, value } => {
                    // Fields are aligned: none crosses from one slot to the next.
                    let slot = param_slot + offset as usize / 8;
                    let shift = offset % 8 * 8;
                    match value {
                        FieldValue::Bits(bits) => self.params.slots[slot] |= bits << shift,
                        FieldValue::Size { size, max, name } => {
                            let value = self.value(size)?;
                            if value > max {
                                let told = terms::told(self.blueprint, &self.values, size, value);
                                let message = format!("{told}, expected at most {max}");
                                return Err(self.error(at, &field_place(&items[..=position], name), message));
                            }
                            self.params.slots[slot] |= value << shift;
                        }
                        FieldValue::Pointer { buffer, offset } => {
                            let placement = self.buffers[buffer.index()];
                            let offset = self.value(offset)?;
                            if offset > placement.bytes {
                                let place = field_place(&items[..=position], "Ptr.offset");
                                return Err(self.error(at, &place, beyond(offset, placement.bytes)));
                            }
                            self.params.relocations.push(Relocation {
                                slot: slot as u32,
                                space: placement.space,
                                addend: placement.offset + offset,
                            });
                        }
                        FieldValue::TensorMap(map) => {
                            let map = &self.blueprint.tensor_maps[map as usize];
                            let placed = self.tensor_map(map, slot as u32).map_err(|why| match why {
                                MapError::Size(error) => error,
                                MapError::Unfit { key, message } => {
                                    let key = format!("TensorMap.{key}");
                                    self.error(at, &field_place(&items[..=position], &key), message)
                                }
                            })?;
                            self.params.tensor_maps.push(placed);
                        }
                    }
                }
            }
        }
        let range = first as u32..self.params.params.len() as u32;
        self.lists[list as usize] = Some(range.clone());
        Ok(range)
    }

    /// Places a tensor map: all that its shape and strides reach lies inside its buffer.
    fn tensor_map(&self, map: &blueprint::TensorMap, slot: u32) -> Result<TensorMap, MapError> {
        let values =
            |ids: &[SizeId]| -> Result<Box<[u64]>, Error> { ids.iter().map(|&id| self.value(id)).collect() };
        let unfit = |key: &'static str, message: String| Err(MapError::Unfit { key, message });
        let placement = self.buffers[map.buffer.index()];
        let offset = self.value(map.offset)?;
        let (shape, strides) = (values(&map.shape)?, values(&map.strides)?);
        let align = limits::MAP_ALIGN;
        if !offset.is_multiple_of(align) {
            return unfit("offset", format!("byte {offset}, expected a multiple of {align}"));
        }
        let max = limits::MAP_ELEMENTS;
        if let Some(dim) = shape.iter().find(|dim| !(1..=max).contains(*dim)) {
            return unfit("shape", format!("a dimension of {dim} elements, expected 1 to {max}"));
        }
        let max = limits::MEMORY_BYTES - align;
        if let Some(stride) = strides.iter().find(|stride| **stride > max || !stride.is_multiple_of(align)) {
            return unfit(
                "strides",
                format!("a stride of {stride}, expected a multiple of {align} up to {max}"),
            );
        }
        // The last element's end. The factors are too small for a product, or their sum, to wrap.
        let (last, outer) = shape.split_last().map_or((0, &[][..]), |(last, outer)| (*last, outer));
        let row = u128::from(last) * u128::from(map.dtype.bytes());
        let reached =
            outer.iter().zip(&strides).map(|(dim, stride)| u128::from(dim - 1) * u128::from(*stride));
        let end = u128::from(offset) + row + reached.sum::<u128>();
        if end > u128::from(placement.bytes) {
            let bytes = placement.bytes;
            return unfit(
                "shape",
                format!("it ends at byte {end}, expected at most the {bytes} of the buffer"),
            );
        }
        Ok(TensorMap {
            slot,
            at: Location { space: placement.space, offset: placement.offset + offset },
            dtype: map.dtype,
            shape,
            strides,
            box_shape: map.box_shape.clone(),
            swizzle: map.swizzle,
            fill: map.fill,
        })
    }

    /// Bytes of a buffer: where in it they start and how many they are, all that follow by default.
    fn range(
        &self,
        at: usize,
        buffer: BufferId,
        offset: SizeId,
        bytes: Option<SizeId>,
        offset_key: &str,
    ) -> Result<(u64, u64), Error> {
        let size = self.buffers[buffer.index()].bytes;
        let offset = self.value(offset)?;
        let Some(left) = size.checked_sub(offset) else {
            return Err(self.error(at, offset_key, beyond(offset, size)));
        };
        let Some(bytes) = bytes else {
            return Ok((offset, left));
        };
        let bytes = self.value(bytes)?;
        if bytes > left {
            let action = offset_key.split('.').next().unwrap_or_default();
            let message =
                format!("{bytes} bytes from {offset}, expected at most {left} (the buffer has {size})");
            return Err(self.error(at, &format!("{action}.bytes"), message));
        }
        Ok((offset, bytes))
    }

    #[cold]
    fn error(&self, step: usize, within: &str, message: impl std::fmt::Display) -> Error {
        let place = blueprint::place_of_step(&self.blueprint.steps, step);
        Error::new(format_args!("{place}.{within}"), message)
    }
}

/// Why there is no tensor map.
enum MapError {
    /// One of its sizes has no value.
    Size(Error),
    /// What its key says does not do.
    Unfit { key: &'static str, message: String },
}

impl From<Error> for MapError {
    fn from(error: Error) -> Self {
        Self::Size(error)
    }
}

fn beyond(offset: u64, size: u64) -> String {
    format!("byte {offset} is beyond the buffer, expected at most its {size} bytes")
}

/// Where in its step the last of these items, a field, is written. The items start with the list.
#[cold]
fn field_place(items: &[Item], key: &str) -> String {
    let is_param = |item: &Item| matches!(item, Item::Param { .. });
    let param = items.iter().filter(|item| is_param(item)).count() - 1;
    let header = items.iter().rposition(is_param).unwrap_or_default();
    let within = match items[header] {
        Item::Param { kind: ParamKind::Struct, .. } => {
            format!("Struct.fields[{}].value.", items.len() - header - 2)
        }
        _ => String::new(),
    };
    format!("ExecKernel[1][{param}].{within}{key}")
}
