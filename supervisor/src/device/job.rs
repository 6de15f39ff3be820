//! A job as a worker is told it: where in the staging area each of its calls has its range, and the frame.

use std::sync::Arc;

use pappus_protocol::LaneId;
use pappus_protocol::to_worker::{Invoke, Item, STAGING_ARENA, Target};
use zerocopy::little_endian::U64;

use crate::call::Call;
use crate::limits::STAGING_BYTES;
use crate::schedule;

/// What a lane of the device runs.
pub(super) type Job = schedule::Job<Arc<Call>>;

/// The calls of a job, and where in the staging area each has its range.
pub(super) fn staged(job: &Job, lane: u32) -> impl Iterator<Item = (u64, &Arc<Call>)> + Clone {
    job.calls().scan(u64::from(lane) * STAGING_BYTES, |next, (_, call)| {
        let offset = *next;
        *next += call.staged_bytes;
        Some((offset, call))
    })
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
        job: &'a Job,
        lane: u32,
        memory_bytes: u64,
        deadline_ns: u64,
        flags: u32,
    ) -> Invoke<'a> {
        self.items.clear();
        self.outputs.clear();
        for (offset, call) in staged(job, lane) {
            self.items.extend(call.items.iter().map(|item| {
                let staged = item.kind.get() == Item::ARENA && item.source.get() == STAGING_ARENA.get();
                Item { offset: (item.offset.get() + if staged { offset } else { 0 }).into(), ..*item }
            }));
            self.outputs.extend(call.outputs.iter().map(|target| {
                let staged = target.arena.get() == STAGING_ARENA.get();
                Target { offset: (target.offset.get() + if staged { offset } else { 0 }).into(), ..*target }
            }));
        }
        let mut scalars = &job.call.scalars[..];
        if !job.others.is_empty() {
            // Those of an input in the order of the calls.
            self.items.sort_by_key(|item| item.input.get());
            self.scalars.clear();
            self.scalars.extend_from_slice(scalars);
            let items =
                job.calls().filter_map(|(_, call)| call.batch()).map(|batch| batch.items).sum::<u64>();
            let batch = job.call.function.blueprint.batch();
            if let Some(total) = batch.and_then(|batch| self.scalars.get_mut(batch.free)) {
                total.set(items);
            }
            scalars = &self.scalars;
        }
        Invoke {
            function: job.call.function.id,
            deadline_ns,
            memory_bytes,
            lane: LaneId::new(lane),
            descriptors: job.call.descriptors.len() as u32,
            flags,
            calls: 1 + job.others.len() as u32,
            items: &self.items,
            outputs: &self.outputs,
            scalars,
        }
    }
}
