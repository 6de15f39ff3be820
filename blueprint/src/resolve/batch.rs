//! Along which dimension calls may be put side by side, and what must be so for that.

use super::Resolver;
use crate::blueprint::{BatchDimension, Role};
use crate::error::Path;
use crate::format;
use crate::hints::{listed, nearest};
use crate::limits;
use crate::size::{Node, SizeId};

impl Resolver<'_> {
    /// Notes what keeps calls from running side by side. Inputs lie behind each other as the items of one longer array do, and so
    /// do outputs: the dimension is the outermost one of each.
    pub(super) fn batch(&mut self, batch: &format::Batch, place: &Path<'_>) -> Option<BatchDimension> {
        let most = batch.most;
        if !(2..=limits::BATCH).contains(&most) {
            let max = limits::BATCH;
            self.notes.note(&place.key("most"), format_args!("{most}, expected 2 to {max} items"));
        }
        let delay_us = batch.delay_us.unwrap_or(0);
        if delay_us > limits::BATCH_DELAY_US {
            let max = limits::BATCH_DELAY_US;
            self.notes.note(
                &place.key("delay_us"),
                format_args!("{delay_us}, expected at most {max} microseconds"),
            );
        }
        let Some(free) = self.free_ids.get(batch.dimension.as_str()).copied() else {
            if !self.unsure.free {
                let known = self.free.iter().map(|name| &**name);
                let (near, known) = (nearest(&batch.dimension, known.clone()), listed(known));
                let message = format_args!(
                    "{:?} is no free dimension{near}; expected one of the shapes of inputs: {known}",
                    batch.dimension
                );
                self.notes.note(&place.key("dimension"), message);
            }
            return None;
        };
        if !self.state_bytes.is_empty() {
            let message = "calls of a session run one after the other, expected a function without `state`";
            self.notes.note(place, message);
        }
        if !self.words.is_empty() {
            let message = "sizes depend on words of inputs, which each call has its own of; expected sizes without `FromInput`";
            self.notes.note(place, message);
        }
        let size = self.sizes.leaf(Node::Free(free));
        // By size: true if the size depends on the batch. Sizes stand behind those that they are computed from.
        let mut depends: Vec<bool> = Vec::new();
        for (at, node) in self.sizes.table().nodes().iter().enumerate() {
            let on = |id: &SizeId| depends[id.index()];
            depends.push(at == size.index() || matches!(node, Node::Binary(_, a, b) if on(a) || on(b)));
        }
        let is_along = |dims: &[SizeId]| match dims {
            [first, inner @ ..] => *first == size && !inner.iter().any(|dim| depends[dim.index()]),
            [] => false,
        };
        // Shapes with mistakes are left out.
        if self.notes.concern("blueprint") {
            return None;
        }
        for id in self.inputs.iter().chain(&self.outputs) {
            let buffer = &self.buffers[id.index()];
            if buffer.role != Role::State && !is_along(buffer.shape.as_deref().unwrap_or_default()) {
                let message = format_args!(
                    "the shape of {:?} does not begin with {:?}, expected it as the first dimension of every input and output, \
                     and no other one that depends on it",
                    buffer.name, batch.dimension
                );
                self.notes.note(&place.key("dimension"), message);
            }
        }
        Some(BatchDimension { free: free as usize, most, delay_us })
    }
}
