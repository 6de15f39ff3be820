//! The arrays of a call against the inputs of a blueprint: the free dimensions, and dimensions that are computed.

use crate::arrays::{self, Array, Misfit};
use crate::blueprint::Blueprint;
use crate::plan::Plan;
use crate::planner::Sizes;

impl Blueprint {
    /// Checks the arrays of a call, by the positions of their inputs, as far as no size has to be computed for it.
    /// Returns the values of the free dimensions; an error comes with the position of its input. Allocates nothing where
    /// nothing is free and no array came.
    pub fn bind<'a>(
        &self,
        input_bytes: &[u64],
        array_of: impl Fn(usize) -> Option<Array<'a>>,
    ) -> Result<Vec<u64>, (usize, Misfit)> {
        let mut free = vec![None; self.free.len()];
        for (at, (declared, &bytes)) in self.input_types.iter().zip(input_bytes).enumerate() {
            let outcome = match (declared, array_of(at)) {
                (Some(declared), Some(array)) => declared.fit(&array, bytes, &self.free, &mut free),
                (None, Some(array)) => array.check(bytes),
                (_, None) => Ok(()),
            };
            outcome.map_err(|why| (at, why))?;
        }
        if free.iter().any(Option::is_none) {
            let all = self.input_types.iter().zip(input_bytes).enumerate();
            let shapeless = all.filter(|(at, _)| array_of(*at).is_none());
            let shapeless =
                shapeless.filter_map(|(at, (declared, &bytes))| Some((at, declared.as_ref()?, bytes)));
            arrays::fit_all_bytes(shapeless, &self.free, &mut free)?;
        }
        // Every free dimension is one of an input, which told it.
        Ok(free.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Checks computed dimensions: whether an array that [fits](Blueprint::bind) has the shape that is planned.
    pub fn check_planned(&self, plan: &Plan, at: usize, array: &Array<'_>) -> Result<(), Misfit> {
        let shape = self.input_types[at].as_ref().and_then(|declared| declared.shape.as_ref());
        match (shape, &plan.input_shapes[at]) {
            (Some(_), Some(planned)) if planned.dims != array.shape => {
                let wanted = Array { dtype: planned.dtype, shape: &planned.dims }.to_string();
                Err(Misfit::Type { wanted, given: array.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The same for sizes that may have no plan: of another shape, an array has other bytes than its input declares.
    pub fn check_computed(&self, sizes: &Sizes<'_>, at: usize, array: &Array<'_>) -> Result<(), Misfit> {
        let buffer = self.inputs.get(at).map(|id| &self.buffers[id.index()]);
        let Some((dims, dtype)) = buffer.and_then(|buffer| buffer.shape.as_ref().zip(buffer.dtype)) else {
            return Ok(());
        };
        if sizes.check(self).is_err() {
            return Ok(());
        }
        let values = self.sizes.evaluate(&sizes.leaves());
        let planned: Option<Vec<u64>> = dims.iter().map(|&dim| values.known(dim)).collect();
        match planned {
            Some(planned) if planned != array.shape => {
                let wanted = Array { dtype, shape: &planned }.to_string();
                Err(Misfit::Type { wanted, given: array.to_string() })
            }
            _ => Ok(()),
        }
    }
}
