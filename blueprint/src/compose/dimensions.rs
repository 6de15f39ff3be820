//! Dimensions of arrays between steps, and what is known of all of them once shapes were compared.

use std::collections::HashMap;

use super::wiring::From;
use crate::blueprint::BufferId;
use crate::expression::Sum;
use crate::types::DType;

/// A dimension: what it is, and how it is written.
#[derive(Debug, Clone)]
pub(super) struct Dim {
    pub(super) sum: Sum,
    pub(super) text: Text,
}

/// How a dimension is written in the linked function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    Number(u64),
    /// One of [`Fit::free`].
    Free(usize),
    /// A dimension of a buffer as its function declares it.
    Declared(Declared),
}

/// A dimension of a buffer of a step's function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Declared {
    pub(super) step: usize,
    pub(super) buffer: BufferId,
    pub(super) dim: usize,
}

/// What the shapes of a composition are.
#[derive(Default)]
pub(super) struct Fit {
    /// By step: its free dimensions, in the order of its function.
    pub(super) steps: Vec<Vec<Dim>>,
    /// By input of the composition: what its first user declares of it.
    pub(super) inputs: Vec<(Option<DType>, Option<Vec<Dim>>)>,
    /// Outputs of steps that only a user declares: step and input of that user.
    pub(super) adopted: HashMap<From, (usize, usize)>,
    /// Free dimensions of the composition's inputs.
    pub(super) free: Vec<Free>,
}

/// A free dimension of an input of the composition.
pub(super) struct Free {
    pub(super) name: String,
    /// What the dimension turned out to be, if not free by itself.
    pub(super) known: Option<Known>,
}

#[derive(Clone, Copy)]
pub(super) enum Known {
    Number(u64),
    Same(usize),
}

impl Fit {
    /// What a free dimension turned out to be.
    pub(super) fn resolved(&self, mut free: usize) -> Text {
        loop {
            match self.free[free].known {
                None => return Text::Free(free),
                Some(Known::Number(value)) => return Text::Number(value),
                Some(Known::Same(other)) => free = other,
            }
        }
    }
}
