//! Calls by the moment at which something must happen to them.

use std::collections::BTreeSet;

use super::CallId;

/// An ordered set of (moment, call), in `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug, Default)]
pub struct Deadlines(BTreeSet<(u64, CallId)>);

impl Deadlines {
    /// Adds a call.
    pub fn insert(&mut self, at_ns: u64, call: CallId) {
        self.0.insert((at_ns, call));
    }

    /// Removes a call that was added for `at_ns`.
    pub fn remove(&mut self, at_ns: u64, call: CallId) {
        self.0.remove(&(at_ns, call));
    }

    /// The earliest moment.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes one call whose moment has come.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        match self.0.first() {
            Some((at, _)) if *at <= now_ns => self.0.pop_first().map(|(_, call)| call),
            _ => None,
        }
    }
}
