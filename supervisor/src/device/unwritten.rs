//! Frames to workers that wait for company: one write for many wakes its reader once.

use crate::call::Call;
use crate::ids::WorkerId;

/// A worker waits no longer for its frames than it takes to prepare so many calls.
const MAX_HELD: u32 = 8;
/// Nor longer than it takes to copy so many bytes; answers wait no longer either.
pub(super) const FULL_BYTES: usize = 64 << 10;

/// Workers with calls in their outbox that wait to be written.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// One bit for each worker; a device has at most 64.
    workers: u64,
    calls: u32,
    /// Bytes of inline inputs that were copied for the calls.
    bytes: usize,
}

impl Unwritten {
    /// Takes out a worker that waits: it is told now.
    pub(super) fn pop(&mut self) -> Option<WorkerId> {
        if self.workers == 0 {
            *self = Self::default();
            return None;
        }
        let worker = self.workers.trailing_zeros();
        self.workers &= self.workers - 1;
        Some(WorkerId::new(worker as usize))
    }

    /// Counts one more call that waits; true if it is time to write.
    pub(super) fn add(&mut self, worker: WorkerId, call: &Call) -> bool {
        self.workers |= 1 << worker.get();
        self.calls += 1;
        self.bytes += call.inline.iter().map(|inline| inline.bytes.len()).sum::<usize>();
        self.calls >= MAX_HELD || self.bytes >= FULL_BYTES
    }
}
