//! A short call as one graph: a kernel that copies inputs, the steps, a kernel that copies outputs and clears the range,
//! and the event for the answer.
//!
//! A plan has one such graph on each lane. Calls mostly differ in nothing but their regions: then the two launches that copy
//! are changed in the graph, which takes the host 0.8 µs on an H100; to make a graph takes it 10 to 60, and its first launch as
//! much again. A backend that changes none, and copies of another number, leave the graph as it is: such calls run without it, and
//! after some of them in a row it is made for theirs.

use super::copy_kernels::{Captured, SmallCopies};
use super::driver::{Driver, DriverError, Stream};
use super::layout::Transfer;

/// The graph, and its present copies.
#[derive(Debug)]
pub(super) struct WholeCall<D: Driver> {
    graph: D::Graph,
    captured: Captured<D>,
    copies: Vec<Transfer>,
    /// How many of the copies are inputs.
    inputs: usize,
    range: Range,
    /// True if the graph clears the call's range.
    clears: bool,
}

/// What is cleared behind a call: in a window all that the lane has, which may be more or less for the same plan's next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) bytes: u64,
}

/// What a call copies, inputs first, and what is cleared behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copies<'a> {
    pub(super) all: &'a [Transfer],
    pub(super) inputs: usize,
    pub(super) range: Range,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    All,
    /// It copies what it did.
    Not,
    /// It must not run any more.
    InPart,
}

impl<D: Driver> WholeCall<D> {
    /// Makes the graph of a call.
    pub(super) fn capture(
        stream: &D::Stream,
        small: &SmallCopies<D>,
        copies: Copies<'_>,
        done: &D::Event,
        steps: impl FnOnce(&D::Stream) -> Result<(), D::Error>,
    ) -> Result<Self, D::Error> {
        let (graph, captured) = stream.capture_to_change(|stream| {
            let captured = small.capture(stream, steps)?;
            stream.record_in_graph(done).map(|()| captured)
        })?;
        let Copies { inputs, range, .. } = copies;
        Ok(Self { graph, captured, copies: copies.all.to_vec(), inputs, range, clears: small.clears })
    }

    /// True if the graph has exactly these copies and was made for this range.
    pub(super) fn copies(&self, copies: Copies<'_>) -> bool {
        self.inputs == copies.inputs && self.range == copies.range && self.copies == copies.all
    }

    /// Changes the graph's copies, if possible.
    pub(super) fn change(&mut self, small: &SmallCopies<D>, copies: Copies<'_>) -> Result<Changed, D::Error> {
        if !small.has_launches(&self.captured) {
            return Ok(Changed::Not);
        }
        let mut changed = Changed::Not;
        for (at, launch) in self.captured.iter().enumerate() {
            let Some(launch) = launch else { continue };
            match small.change(&self.graph, at, *launch) {
                Ok(()) => changed = Changed::InPart,
                Err(e) if e.is_fatal() => return Err(e),
                Err(_) => return Ok(changed),
            }
        }
        self.copies.clear();
        self.copies.extend_from_slice(copies.all);
        (self.inputs, self.range, self.clears) = (copies.inputs, copies.range, small.clears);
        Ok(Changed::All)
    }

    /// Submits the call; says whether its range is cleared by that.
    pub(super) fn launch(&self, stream: &D::Stream) -> Result<bool, D::Error> {
        stream.launch_graph(&self.graph).map(|()| self.clears)
    }
}
