//! What a lane is told to run: one call, or several whose inputs and outputs lie side by side.

use std::sync::Arc;

use pappus_protocol::LaneId;
use pappus_protocol::to_worker::{Invoke, Item, STAGING_ARENA, Target};
use zerocopy::little_endian::U64;

use crate::call::Call;
use crate::limits::STAGING_BYTES;
use crate::schedule::CallId;

/// The calls that a lane runs together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    /// Names the job in the answer: the first call.
    pub(super) id: CallId,
    /// The first call.
    pub(super) first: &'a Arc<Call>,
    /// Those behind it.
    pub(super) others: &'a [(CallId, Arc<Call>)],
}

impl<'a> Job<'a> {
    /// Its calls, in the order in which they lie side by side.
    pub(super) fn calls(self) -> impl Iterator<Item = &'a Arc<Call>> + Clone {
        std::iter::once(self.first).chain(self.others.iter().map(|(_, call)| call))
    }

    /// Its calls with their names.
    pub(super) fn named(self) -> impl Iterator<Item = (CallId, &'a Arc<Call>)> {
        std::iter::once((self.id, self.first)).chain(self.others.iter().map(|(id, call)| (*id, call)))
    }

    /// Its calls, and where in the staging area each has its range.
    pub(super) fn staged(self, lane: u32) -> impl Iterator<Item = (u64, &'a Arc<Call>)> + Clone {
        self.calls().scan(u64::from(lane) * STAGING_BYTES, |next, call| {
            let offset = *next;
            *next += call.staged_bytes;
            Some((offset, call))
        })
    }
}

/// The lists of one frame, kept for their capacity.
#[derive(Debug, Default)]
pub(super) struct Lists {
    items: Vec<Item>,
    outputs: Vec<Target>,
    scalars: Vec<U64>,
}

impl Lists {
    /// The frame of a job, which has so much memory and so long.
    pub(super) fn invoke<'a>(
        &'a mut self,
        job: Job<'a>,
        lane: u32,
        memory_bytes: u64,
        deadline_ns: u64,
        flags: u32,
    ) -> Invoke<'a> {
        self.items.clear();
        self.outputs.clear();
        for (offset, call) in job.staged(lane) {
            self.items.extend(call.items.iter().map(|item| {
                let staged = item.kind.get() == Item::ARENA && item.source.get() == STAGING_ARENA.get();
                Item { offset: (item.offset.get() + if staged { offset } else { 0 }).into(), ..*item }
            }));
            self.outputs.extend(call.outputs.iter().map(|target| {
                let staged = target.arena.get() == STAGING_ARENA.get();
                Target { offset: (target.offset.get() + if staged { offset } else { 0 }).into(), ..*target }
            }));
        }
        let mut scalars = &job.first.scalars[..];
        if !job.others.is_empty() {
            // Those of an input in the order of the calls.
            self.items.sort_by_key(|item| item.input.get());
            self.scalars.clear();
            self.scalars.extend_from_slice(scalars);
            let items = job.calls().filter_map(|call| call.batch()).map(|batch| batch.items).sum::<u64>();
            let batch = job.first.function.blueprint.batch();
            if let Some(total) = batch.and_then(|batch| self.scalars.get_mut(batch.free)) {
                total.set(items);
            }
            scalars = &self.scalars;
        }
        Invoke {
            function: job.first.function.id,
            deadline_ns,
            memory_bytes,
            lane: LaneId::new(lane),
            descriptors: job.first.descriptors.len() as u32,
            flags,
            calls: 1 + job.others.len() as u32,
            items: &self.items,
            outputs: &self.outputs,
            scalars,
        }
    }
}
