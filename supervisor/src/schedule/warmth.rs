//! Which functions' weights workers have, as far as the scheduler was told: so that it asks for those only that calls which
//! wait will need and that are not there. Where it is wrong, a load begins late, or is asked for in vain.

use std::collections::HashSet;

use crate::ids::{FunctionId, WorkerId};

/// What workers have of functions with weights.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    warm: HashSet<(WorkerId, FunctionId)>,
}

impl Warmth {
    /// Whether any function with weights ran, so that it is worth asking.
    pub(super) fn is_of_use(&self) -> bool {
        !self.warm.is_empty()
    }

    /// A worker has a function's weights, or loads them.
    pub(super) fn warm(&mut self, worker: WorkerId, function: FunctionId) {
        self.warm.insert((worker, function));
    }

    /// A function's weights are nowhere any more.
    pub(super) fn cooled(&mut self, function: FunctionId) {
        self.warm.retain(|(_, warm)| *warm != function);
    }

    /// A worker has nothing any more.
    pub(super) fn gone(&mut self, worker: WorkerId) {
        self.warm.retain(|(warm, _)| *warm != worker);
    }

    /// If weights of these functions, which calls are about to need in a worker in this order, are missing there: one call
    /// of each function. They count as there from now on.
    pub(super) fn missing<'a, C: Clone + 'a>(
        &mut self,
        worker: WorkerId,
        next: impl Iterator<Item = (FunctionId, &'a C)> + Clone,
    ) -> Vec<C> {
        if next.clone().all(|(function, _)| self.warm.contains(&(worker, function))) {
            return Vec::new();
        }
        let mut functions = Vec::new();
        let mut calls = Vec::new();
        for (function, call) in next {
            if !functions.contains(&function) {
                functions.push(function);
                calls.push(call.clone());
                self.warm(worker, function);
            }
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W0: WorkerId = WorkerId::new(0);
    const W1: WorkerId = WorkerId::new(1);

    fn missing(warmth: &mut Warmth, worker: WorkerId, next: &[u64]) -> Vec<u64> {
        warmth.missing(worker, next.iter().map(|function| (FunctionId::new(*function), function)))
    }

    #[test]
    fn what_is_missing_is_asked_for_once_with_what_is_needed_before_it() {
        let mut warmth = Warmth::default();
        assert!(!warmth.is_of_use());
        warmth.warm(W0, FunctionId::new(1));
        assert!(missing(&mut warmth, W0, &[1, 1]).is_empty());
        assert_eq!(missing(&mut warmth, W0, &[1, 2, 1, 3]), [1, 2, 3], "what is there is to stay");
        assert!(missing(&mut warmth, W0, &[1, 2, 3]).is_empty());
        assert_eq!(missing(&mut warmth, W1, &[3]), [3]);
        warmth.cooled(FunctionId::new(3));
        assert_eq!(missing(&mut warmth, W0, &[3, 2]), [3, 2]);
        warmth.gone(W0);
        assert_eq!(missing(&mut warmth, W0, &[2]), [2]);
        assert_eq!(missing(&mut warmth, W1, &[3]), [3]);
    }
}
