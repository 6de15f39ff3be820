//! Calls that one connection's read brought: their workers are told by one write each, since each write wakes its reader.

use std::sync::Arc;

use super::unwritten::Unwritten;
use super::worker_slots::WorkerSlots;

/// Calls that one connection's read brought and whose workers were not told yet. They are told when it is
/// dropped, if not before.
#[derive(Debug, Default)]
pub struct Burst {
    /// True if bytes behind the request at hand were read already. The last request's frame need not wait.
    pub more: bool,
    /// The workers of the device that the calls went to.
    slots: Option<Arc<WorkerSlots>>,
    unwritten: Unwritten,
}

impl Burst {
    /// Where the next call to a device with these workers waits, unless it is the last.
    pub fn to(&mut self, slots: &Arc<WorkerSlots>) -> Option<&mut Unwritten> {
        if !self.more {
            return None;
        }
        if !self.slots.as_ref().is_some_and(|own| Arc::ptr_eq(own, slots)) {
            self.release();
            self.slots = Some(slots.clone());
        }
        Some(&mut self.unwritten)
    }

    /// Tells the workers.
    pub fn release(&mut self) {
        if let Some(slots) = &self.slots {
            slots.release(&mut self.unwritten);
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.release();
    }
}
