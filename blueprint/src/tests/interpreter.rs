//! A small interpreter of plans, beside one of blueprints that gives every buffer bytes of its own. Both execute the same
//! calls step by step; wherever a step of the plan finds something else in a buffer than in the blueprint's, it is told.

use crate::blueprint::{self, FieldValue, Item};
use crate::limits::BUFFER_ALIGN;
use crate::size::{SizeId, Values};
use crate::{Blueprint, BufferId, Plan, Role, Sizes, Space, Step};

/// A step that is executed, by the names of the blueprint.
#[derive(Debug, Clone)]
enum Event {
    /// The buffers that the arguments name, in their order.
    Launch(Vec<BufferId>),
    Copy {
        from: (BufferId, u64),
        to: (BufferId, u64),
        bytes: u64,
    },
    Fill {
        to: (BufferId, u64),
        bytes: u64,
        byte: u8,
    },
}

impl Event {
    fn buffers(&self) -> Vec<BufferId> {
        match self {
            Event::Launch(buffers) => buffers.clone(),
            Event::Copy { from, to, .. } => vec![from.0, to.0],
            Event::Fill { to, .. } => vec![to.0],
        }
    }
}

/// A call of a blueprint, as it is executed step by step.
pub(crate) struct Interpreter<'a> {
    blueprint: &'a Blueprint,
    sizes: Sizes<'a>,
    events: Vec<Event>,
}

impl<'a> Interpreter<'a> {
    /// For sizes of which there is a plan.
    pub(crate) fn new(blueprint: &'a Blueprint, sizes: Sizes<'a>) -> Self {
        let mut unfolder =
            Unfolder { blueprint, values: blueprint.sizes.evaluate(&sizes.leaves()), events: Vec::new() };
        unfolder.steps(0, blueprint.steps.len());
        Self { blueprint, sizes, events: unfolder.events }
    }

    /// Buffers that are in use at one time and share a byte, up to their alignment; none in a good plan.
    pub(crate) fn overlap(&self, plan: &Plan) -> Option<(BufferId, BufferId)> {
        let mut used: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
        let mut touch = |id: BufferId, at: usize| {
            let (first, last) = used[id.index()].unwrap_or((at, at));
            used[id.index()] = Some((first.min(at), last.max(at)));
        };
        self.blueprint.inputs.iter().for_each(|&id| touch(id, 0));
        for (at, event) in self.events.iter().enumerate() {
            event.buffers().into_iter().for_each(|id| touch(id, at + 1));
        }
        self.blueprint.outputs.iter().for_each(|&id| touch(id, self.events.len() + 1));
        let ids = (0..plan.buffers.len()).filter(|&id| plan.buffers[id].bytes > 0);
        let ids: Vec<usize> = ids.filter(|&id| plan.buffers[id].space == Space::Pool).collect();
        let end = |id: usize| plan.buffers[id].offset + plan.buffers[id].bytes.next_multiple_of(BUFFER_ALIGN);
        for (nth, &a) in ids.iter().enumerate() {
            for &b in &ids[nth + 1..] {
                let (Some(when_a), Some(when_b)) = (used[a], used[b]) else { continue };
                let meet = when_a.0 <= when_b.1 && when_b.0 <= when_a.1;
                if meet && plan.buffers[a].offset < end(b) && plan.buffers[b].offset < end(a) {
                    return Some((BufferId(a as u32), BufferId(b as u32)));
                }
            }
        }
        None
    }

    /// Executes the plan; says where a buffer does not hold what it should.
    pub(crate) fn run(&self, plan: &Plan) -> Result<(), String> {
        let mut own: Vec<Vec<u8>> = plan.buffers.iter().map(|at| vec![0; at.bytes as usize]).collect();
        let mut pool = Memory { plan, pool: vec![0; plan.pool_bytes as usize], weights: Vec::new() };
        let weights = self.blueprint.weight_layout(self.sizes.weights).unwrap();
        pool.weights = vec![0; weights.total as usize];
        for (id, buffer) in self.blueprint.buffers.iter().enumerate() {
            if buffer.role != Role::Buffer {
                own[id].iter_mut().zip(1..).for_each(|(byte, at)| *byte = (at * 7 + id) as u8 | 1);
                pool.buffer_mut(BufferId(id as u32)).copy_from_slice(&own[id]);
            }
        }
        let mut events = self.events.iter().peekable();
        for step in plan.expanded() {
            let expected = events.peek().map(|&event| event.clone());
            match (step, expected) {
                (Step::Launch { params, .. }, Some(Event::Launch(buffers))) => {
                    self.check_pointers(plan, params, &buffers)?;
                    launch(&buffers, &mut own, &mut pool, self.blueprint)?;
                }
                (Step::Copy { from, to, bytes }, Some(Event::Copy { from: a, to: b, bytes: n })) => {
                    let at = |(id, offset): (BufferId, u64)| plan.buffers[id.index()].offset + offset;
                    if (from.offset, *to, *bytes) != (at(a), at(b), n) {
                        return Err(format!("{step:?} copies something else"));
                    }
                    pool.check(a.0, &own)?;
                    let source = own[a.0.index()][a.1 as usize..][..n as usize].to_vec();
                    own[b.0.index()][b.1 as usize..][..n as usize].copy_from_slice(&source);
                    pool.buffer_mut(b.0)[b.1 as usize..][..n as usize].copy_from_slice(&source);
                }
                (&Step::Fill { offset, bytes, byte }, Some(Event::Fill { to, bytes: n, byte: value }))
                    if (offset, bytes, byte) == (plan.buffers[to.0.index()].offset + to.1, n, value) =>
                {
                    own[to.0.index()][to.1 as usize..][..n as usize].fill(byte);
                    pool.pool[offset as usize..][..bytes as usize].fill(byte);
                }
                // One that the planner added.
                (&Step::Fill { offset, bytes, byte: 0 }, _) => {
                    pool.pool[offset as usize..][..bytes as usize].fill(0);
                    continue;
                }
                (step, event) => return Err(format!("{step:?} instead of {event:?}")),
            }
            events.next();
        }
        if let Some(event) = events.next() {
            return Err(format!("{event:?} is missing"));
        }
        self.blueprint.outputs.iter().try_for_each(|&id| pool.check(id, &own))
    }

    /// Checks that a launch's pointers lead to the buffers named by the step.
    fn check_pointers(
        &self,
        plan: &Plan,
        params: &std::ops::Range<u32>,
        named: &[BufferId],
    ) -> Result<(), String> {
        let params = &plan.params.params[params.start as usize..params.end as usize];
        let slots = match (params.first(), params.last()) {
            (Some(first), Some(last)) => first.slot..last.slot + last.bytes.div_ceil(8),
            _ => 0..0,
        };
        let relocations =
            plan.params.relocations.iter().map(|pointer| (pointer.slot, pointer.space, pointer.addend));
        let maps = plan.params.tensor_maps.iter().map(|map| (map.slot, map.at.space, map.at.offset));
        let mut pointers: Vec<_> =
            relocations.chain(maps).filter(|(slot, ..)| slots.contains(slot)).collect();
        pointers.sort_by_key(|(slot, ..)| *slot);
        let fits = |(&(_, space, offset), id): (&(u32, Space, u64), &BufferId)| {
            let at = plan.buffers[id.index()];
            space == at.space && (at.offset..=at.offset + at.bytes).contains(&offset)
        };
        match pointers.len() == named.len() && pointers.iter().zip(named).all(fits) {
            true => Ok(()),
            false => Err(format!("{pointers:?} for {named:?}")),
        }
    }
}

/// A kernel that reads all of its buffers and changes about two thirds of the bytes of those that it may write.
fn launch(
    named: &[BufferId],
    own: &mut [Vec<u8>],
    pool: &mut Memory<'_>,
    blueprint: &Blueprint,
) -> Result<(), String> {
    let mut hash = 17u64;
    for &id in named {
        pool.check(id, own)?;
        for &byte in &own[id.index()] {
            hash = hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
    }
    for &id in named.iter().filter(|id| blueprint.buffers[id.index()].role != Role::Weight) {
        let bytes = &mut own[id.index()];
        for (at, byte) in
            bytes.iter_mut().enumerate().filter(|(at, _)| !hash.wrapping_add(*at as u64).is_multiple_of(3))
        {
            *byte = byte.wrapping_mul(31) ^ (hash >> (at % 56)) as u8 | 1;
        }
        pool.buffer_mut(id).copy_from_slice(bytes);
    }
    Ok(())
}

/// The memory of a plan's call.
struct Memory<'a> {
    plan: &'a Plan,
    pool: Vec<u8>,
    weights: Vec<u8>,
}

impl Memory<'_> {
    fn buffer_mut(&mut self, id: BufferId) -> &mut [u8] {
        let at = self.plan.buffers[id.index()];
        let memory = match at.space {
            Space::Pool => &mut self.pool,
            Space::Weights => &mut self.weights,
        };
        &mut memory[at.offset as usize..][..at.bytes as usize]
    }

    /// Checks that a buffer that shares memory holds the same as with bytes of its own.
    fn check(&mut self, id: BufferId, own: &[Vec<u8>]) -> Result<(), String> {
        let found = self.buffer_mut(id);
        match found.iter().zip(&own[id.index()]).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} of buffer {} is {}, not {}", id.0, found[at], own[id.index()][at]))
            }
        }
    }
}

/// Unfolds the steps of a blueprint.
struct Unfolder<'a> {
    blueprint: &'a Blueprint,
    values: Values<'a>,
    events: Vec<Event>,
}

impl Unfolder<'_> {
    fn value(&self, id: SizeId) -> u64 {
        self.values.known(id).unwrap()
    }

    fn size(&self, id: BufferId) -> u64 {
        self.value(self.blueprint.buffers[id.index()].size)
    }

    fn steps(&mut self, mut at: usize, end: usize) {
        while at < end {
            let mut next = at + 1;
            match self.blueprint.steps[at] {
                blueprint::Step::Launch { list, .. } => {
                    let list = self.blueprint.lists[list as usize].clone();
                    let items = &self.blueprint.items[list.start as usize..list.end as usize];
                    let pointers = items.iter().filter_map(|item| match item {
                        Item::Field { value: FieldValue::Pointer { buffer, .. }, .. } => Some(*buffer),
                        Item::Field { value: FieldValue::TensorMap(at), .. } => {
                            Some(self.blueprint.tensor_maps[*at as usize].buffer)
                        }
                        _ => None,
                    });
                    self.events.push(Event::Launch(pointers.collect()));
                }
                blueprint::Step::Copy { from, from_offset, to, to_offset, bytes } => {
                    let from = (from, self.value(from_offset));
                    let to = (to, self.value(to_offset));
                    let bytes = bytes.map_or_else(|| self.size(from.0) - from.1, |bytes| self.value(bytes));
                    if bytes > 0 {
                        self.events.push(Event::Copy { from, to, bytes });
                    }
                }
                blueprint::Step::Fill { buffer, offset, bytes, byte } => {
                    let to = (buffer, self.value(offset));
                    let bytes = bytes.map_or_else(|| self.size(buffer) - to.1, |bytes| self.value(bytes));
                    if bytes > 0 {
                        self.events.push(Event::Fill { to, bytes, byte });
                    }
                }
                blueprint::Step::Repeat { count, body } => {
                    next += body as usize;
                    for _ in 0..self.value(count) {
                        let before = self.events.len();
                        self.steps(at + 1, next);
                        // What does nothing may be repeated any number of times.
                        if self.events.len() == before {
                            break;
                        }
                    }
                }
            }
            at = next;
        }
    }
}
