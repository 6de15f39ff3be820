//! Along which dimension calls may be put side by side, and what must be so for that.

use super::Resolver;
use crate::blueprint::{BatchDimension, BufferId};
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
        if !self.words.is_empty() {
            let message = "sizes depend on words of inputs, which each call has its own of; expected sizes without `FromInput`";
            self.notes.note(place, message);
        }
        let size = self.sizes.leaf(Node::Free(free));
        let all = self.inputs.iter().chain(&self.outputs).copied();
        // Shapes with mistakes are left out.
        let along: Vec<BufferId> = if self.notes.concern("blueprint") { Vec::new() } else { all.collect() };
        for id in along {
            self.check_along(id, size, &batch.dimension, place);
        }
        Some(BatchDimension { free: free as usize, most })
    }

    /// Notes it if a buffer's outermost dimension, and no other one, is not the batch.
    fn check_along(&mut self, id: BufferId, size: SizeId, dimension: &str, place: &Path<'_>) {
        let buffer = &self.buffers[id.index()];
        let dims = buffer.shape.as_deref().unwrap_or_default();
        if dims.first() != Some(&size) || dims[1..].contains(&size) {
            let message = format_args!(
                "the shape of {:?} does not begin with {dimension:?}, expected it as the first dimension of every input and \
                 output, and as no other one",
                buffer.name
            );
            self.notes.note(&place.key("dimension"), message);
        }
    }
}
