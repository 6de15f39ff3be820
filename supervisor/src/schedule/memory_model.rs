//! What processes have of a device's memory, as they were told and confirmed.

use std::collections::VecDeque;

use crate::ids::{TenantId, WorkerId};
use crate::schedule::Share;

/// What a process has of the device's memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// None before it confirmed its first settings.
    pub(super) in_force: Option<Share>,
    /// What it was told and did not confirm.
    pub(super) told: VecDeque<Share>,
}

impl Memory {
    /// Its share once it confirmed everything.
    pub(super) fn promised(&self) -> Option<Share> {
        self.told.back().copied().or(self.in_force)
    }

    /// All that it may have now.
    pub(super) fn may_have(&self) -> impl Iterator<Item = Share> {
        self.told.iter().copied().chain(self.in_force)
    }
}

/// A process that is gone and not reaped.
pub(super) struct Dying {
    pub(super) worker: WorkerId,
    pub(super) generation: u64,
    pub(super) memory: Memory,
    pub(super) from_outside: bool,
    /// Whose budget was drawn on, and whether it was careful before.
    pub(super) drawn: Option<(TenantId, bool)>,
}
