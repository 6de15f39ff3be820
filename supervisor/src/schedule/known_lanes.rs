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

    /// True if a function ran in a lane.
    pub(super) fn has(&self, function: FunctionId, lane: u32) -> bool {
        self.0.get(&function).is_some_and(|lanes| lanes & 1 << lane != 0)
    }

    /// True if a function ran in any lane.
    pub(super) fn has_any(&self, function: FunctionId) -> bool {
        self.0.contains_key(&function)
    }

    /// Another process is there, or none.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
