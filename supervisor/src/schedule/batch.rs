//! What calls bring into a job of several, and how much that may be.

use super::limits::MAX_JOB_REGIONS;
use crate::limits::STAGING_BYTES;

/// What a call brings into a job with others of its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Items of the dimension along which calls are put side by side.
    pub items: u64,
    /// The most items that a job may have.
    pub most: u64,
    /// How long the call may wait for others.
    pub delay_ns: u64,
    /// Regions of its inputs and outputs.
    pub regions: usize,
    /// Bytes of a lane's staging range that it takes.
    pub staged_bytes: u64,
}

impl Batch {
    /// Both together; none if that is more than a job may have.
    pub(super) fn with(self, other: Self) -> Option<Self> {
        let both = Self {
            items: self.items.checked_add(other.items)?,
            most: self.most.min(other.most),
            delay_ns: self.delay_ns,
            regions: self.regions + other.regions,
            staged_bytes: self.staged_bytes + other.staged_bytes,
        };
        let fits =
            both.items <= both.most && both.regions <= MAX_JOB_REGIONS && both.staged_bytes <= STAGING_BYTES;
        fits.then_some(both)
    }
}
