//! Which functions ran in which lanes of a worker, where graphs of them are.

use super::limits::MAX_REMEMBERED;
use crate::ids::{FunctionId, IdMap};

/// The lanes of one worker in which each function ran, one bit for each.
#[derive(Debug, Default)]
pub(super) struct KnownLanes(IdMap<FunctionId, u64>);

impl KnownLanes {
    /// A function runs in a lane.
    pub(super) fn add(&mut self, function: FunctionId, lane: u32) {
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        *self.0.entry(function).or_default() |= 1 << lane;
    }

    /// The lanes in which a function ran, one bit for each.
    pub(super) fn of(&self, function: FunctionId) -> u64 {
        self.0.get(&function).copied().unwrap_or(0)
    }

    /// Another process is there, or none.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
