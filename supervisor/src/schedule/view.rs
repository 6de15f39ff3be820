//! The state that `slots` reads: workers, and calls for the whole device.

use super::exclusive::Exclusive;
use super::workers::{Worker, Workers};
use crate::ids::WorkerId;

/// The state that `slots` reads.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) workers: &'a Workers,
    pub(super) exclusive: &'a Exclusive,
}

impl<'a> View<'a> {
    /// Of these, beside calls for the whole device.
    pub(super) fn new(workers: &'a Workers, exclusive: &'a Exclusive) -> Self {
        Self { workers, exclusive }
    }

    /// Workers without calls of which this is true.
    pub(super) fn idle(
        self,
        is_one: impl Fn(&Worker) -> bool,
    ) -> impl Iterator<Item = (WorkerId, &'a Worker)> {
        self.workers.idle().filter(move |(_, worker)| is_one(worker))
    }
}
