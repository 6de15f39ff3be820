//! Calls, spelled out: their regions, descriptors and scalars.

use std::os::fd::BorrowedFd;

use pappus_protocol::pipe::Outbox;
use pappus_protocol::to_worker::{Invoke, Item, STAGING_ARENA, Target};
use pappus_protocol::{FunctionId, LaneId, ToWorker};

use super::ARENA;

/// A call, spelled out.
pub struct Call<'a> {
    pub function: u64,
    pub items: Vec<Item>,
    pub outputs: Vec<Target>,
    pub scalars: Vec<u64>,
    pub descriptors: Vec<BorrowedFd<'a>>,
    pub deadline_ns: u64,
    pub lane: u32,
    /// Bytes for the call's lane, if not as the worker says.
    pub memory_bytes: Option<u64>,
    /// A suspect.
    pub alone: bool,
    /// How many calls it is, side by side.
    pub calls: u32,
}

impl<'a> Call<'a> {
    /// Inputs of these sizes one behind the other in the arena, and outputs likewise.
    pub fn on(function: u64, inputs_at: u64, inputs: &[u64], outputs_at: u64, outputs: &[u64]) -> Call<'a> {
        let mut at = inputs_at;
        let items = (0..).zip(inputs).map(|(input, &bytes)| {
            let item = item(input, Item::ARENA, ARENA, at, bytes);
            at += bytes;
            item
        });
        let items = items.collect();
        let mut at = outputs_at;
        let outputs = outputs.iter().map(|&bytes| {
            let target = target(ARENA, at, bytes);
            at += bytes;
            target
        });
        let outputs = outputs.collect();
        Call {
            function,
            items,
            outputs,
            scalars: vec![],
            descriptors: vec![],
            deadline_ns: u64::MAX,
            lane: 0,
            memory_bytes: None,
            alone: false,
            calls: 1,
        }
    }

    pub fn lane(self, lane: u32) -> Self {
        Self { lane, ..self }
    }

    /// Appends the call to the next write, with so much memory for its lane.
    pub fn push(&self, id: u64, lane_bytes: u64, to: &mut Outbox) {
        let scalars: Vec<_> = self.scalars.iter().map(|&word| word.into()).collect();
        let invoke = Invoke {
            function: FunctionId::new(self.function),
            deadline_ns: self.deadline_ns,
            memory_bytes: self.memory_bytes.unwrap_or(lane_bytes),
            lane: LaneId::new(self.lane),
            descriptors: self.descriptors.len() as u32,
            flags: if self.alone { Invoke::ALONE } else { 0 },
            calls: self.calls,
            items: &self.items,
            outputs: &self.outputs,
            scalars: &scalars,
        };
        to.push_to_worker(&ToWorker::Invoke { call: id, invoke });
    }
}

pub fn item(input: u32, kind: u32, source: u64, offset: u64, bytes: u64) -> Item {
    Item {
        input: input.into(),
        kind: kind.into(),
        source: source.into(),
        offset: offset.into(),
        bytes: bytes.into(),
    }
}

pub fn target(arena: u64, offset: u64, bytes: u64) -> Target {
    Target { arena: arena.into(), offset: offset.into(), bytes: bytes.into() }
}

pub fn staged(input: u32, offset: u64, bytes: u64) -> Item {
    item(input, Item::ARENA, STAGING_ARENA.get(), offset, bytes)
}
