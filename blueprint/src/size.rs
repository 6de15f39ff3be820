//! Sizes that compute. All sizes of a blueprint form one table of shared expressions, operands
//! before their users, so that evaluating it is one pass and equal sizes are computed once.
//! `Sizeof` is gone: it became the expression of the buffer it names.

use std::collections::HashMap;

use crate::error::Path;
use crate::limits;
use crate::types::heap_bytes;

/// An entry of a [`SizeTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SizeId(u32);

impl SizeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One expression. `Input`, `Weight`, `Word` and `Free` are positions in the caller's [`Leaves`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Const(u64),
    Input(u32),
    Weight(u32),
    Word(u32),
    Free(u32),
    Binary(Op, SizeId, SizeId),
}

/// The operation of a computed size on its two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    CeilDiv,
    FloorDiv,
    Mod,
    Min,
    Max,
}

impl Op {
    /// `None` where the result does not exist or does not fit.
    pub(crate) fn apply(self, a: u64, b: u64) -> Option<u64> {
        match self {
            Op::Add => a.checked_add(b),
            Op::Sub => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::CeilDiv => (b != 0).then(|| a.div_ceil(b)),
            Op::FloorDiv => a.checked_div(b),
            Op::Mod => a.checked_rem(b),
            Op::Min => Some(a.min(b)),
            Op::Max => Some(a.max(b)),
        }
    }

    /// True if the second operand may not be zero.
    fn divides(self) -> bool {
        matches!(self, Op::CeilDiv | Op::FloorDiv | Op::Mod)
    }

    /// Why [`Op::apply`] had no result.
    pub(crate) fn complaint(self, a: u64, b: u64) -> String {
        match self {
            Op::Add => format!("{a} + {b} is too large, expected at most {}", u64::MAX),
            Op::Sub => format!("{a} − {b} is negative, expected at least 0"),
            Op::Mul => format!("{a} × {b} is too large, expected at most {}", u64::MAX),
            Op::CeilDiv | Op::FloorDiv | Op::Mod => {
                format!("{a} is divided by zero, expected a divisor of at least 1")
            }
            // They have a result whatever they are given.
            Op::Min | Op::Max => format!("{a} and {b} have no result"),
        }
    }
}

/// The inputs of a table's values.
pub(crate) struct Leaves<'a> {
    pub(crate) inputs: &'a [u64],
    pub(crate) weights: &'a [u64],
    pub(crate) words: &'a [u64],
    pub(crate) free: &'a [u64],
}

/// The distinct sizes of a blueprint.
#[derive(Debug, Default)]
pub(crate) struct SizeTable {
    nodes: Vec<Node>,
    /// Where each computed size was written first, in the order of the nodes.
    places: Vec<(SizeId, Box<str>)>,
}

impl SizeTable {
    /// One more size, behind all others.
    pub(crate) fn add(&mut self, node: Node) -> SizeId {
        self.nodes.push(node);
        SizeId(self.nodes.len() as u32 - 1)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The size at this place among the nodes.
    pub(crate) fn id(&self, at: usize) -> SizeId {
        SizeId(at as u32)
    }

    /// The free dimension that a size is, if it is one.
    pub(crate) fn free(&self, id: SizeId) -> Option<u32> {
        match self.nodes[id.index()] {
            Node::Free(free) => Some(free),
            _ => None,
        }
    }

    /// The value of a size that depends on nothing.
    pub(crate) fn constant(&self, id: SizeId) -> Option<u64> {
        match self.nodes[id.index()] {
            Node::Const(value) => Some(value),
            _ => None,
        }
    }

    /// Evaluates everything. A size that has no value is an error only where it is used: it may
    /// belong to a step that is repeated zero times.
    pub(crate) fn evaluate(&self, leaves: &Leaves<'_>) -> Values<'_> {
        let mut values: Vec<Option<u64>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            values.push(match *node {
                Node::Const(value) => Some(value),
                Node::Input(i) => Some(leaves.inputs[i as usize]),
                Node::Weight(i) => Some(leaves.weights[i as usize]),
                Node::Word(i) => Some(leaves.words[i as usize]),
                Node::Free(i) => Some(leaves.free[i as usize]),
                Node::Binary(op, a, b) => match (values[a.index()], values[b.index()]) {
                    (Some(a), Some(b)) => op.apply(a, b),
                    _ => None,
                },
            });
        }
        Values { table: self, values }
    }

    pub(crate) fn place(&self, id: SizeId) -> &str {
        match self.places.binary_search_by_key(&id.0, |(id, _)| id.0) {
            Ok(found) => &self.places[found].1,
            Err(_) => "",
        }
    }

    pub(crate) fn approx_bytes(&self) -> usize {
        let places: usize = self.places.iter().map(|(_, place)| place.len()).sum();
        heap_bytes(&self.nodes) + heap_bytes(&self.places) + places
    }
}

/// The values of a table for one set of leaves.
pub(crate) struct Values<'a> {
    table: &'a SizeTable,
    values: Vec<Option<u64>>,
}

impl Values<'_> {
    /// The value, or none.
    pub(crate) fn known(&self, id: SizeId) -> Option<u64> {
        self.values[id.index()]
    }

    /// The innermost size without a value inside of `id`, which has no value either, and the reason.
    pub(crate) fn without_value(&self, mut id: SizeId) -> (SizeId, String) {
        while let Node::Binary(op, a, b) = self.table.nodes[id.index()] {
            match (self.values[a.index()], self.values[b.index()]) {
                (None, _) => id = a,
                (_, None) => id = b,
                (Some(a), Some(b)) => return (id, op.complaint(a, b)),
            }
        }
        (id, "a size without a value".to_owned())
    }

    /// Of a size that is 0, the part that makes it so: what the call brings, if that can be told.
    pub(crate) fn zero(&self, mut id: SizeId) -> Node {
        let is_zero = |id: SizeId| self.known(id) == Some(0);
        while let Node::Binary(op, a, b) = self.table.nodes[id.index()] {
            let depends = |id: SizeId| self.table.constant(id).is_none();
            id = match op {
                Op::Mul | Op::Min | Op::Add | Op::Max if is_zero(a) && depends(a) => a,
                Op::Mul | Op::Min | Op::Add | Op::Max if is_zero(b) && depends(b) => b,
                Op::CeilDiv | Op::FloorDiv | Op::Mod | Op::Sub if is_zero(a) && depends(a) => a,
                _ => break,
            };
        }
        self.table.nodes[id.index()]
    }
}

/// Builds a [`SizeTable`], sharing equal expressions and folding constants.
#[derive(Default)]
pub(crate) struct SizeBuilder {
    table: SizeTable,
    known: HashMap<Node, SizeId>,
}

impl SizeBuilder {
    pub(crate) fn leaf(&mut self, node: Node) -> SizeId {
        let table = &mut self.table;
        *self.known.entry(node).or_insert_with(|| table.add(node))
    }

    /// An operation on two sizes; an error is why it has no result whatever the sizes of a call are.
    pub(crate) fn binary(&mut self, op: Op, a: SizeId, b: SizeId, path: &Path<'_>) -> Result<SizeId, String> {
        if let (Some(a), Some(b)) = (self.table.constant(a), self.table.constant(b)) {
            return match op.apply(a, b) {
                Some(value) => Ok(self.leaf(Node::Const(value))),
                None => Err(op.complaint(a, b)),
            };
        }
        if op.divides() && self.table.constant(b) == Some(0) {
            return Err("the divisor is 0, expected at least 1".to_owned());
        }
        let before = self.table.nodes.len();
        let id = self.leaf(Node::Binary(op, a, b));
        if id.index() == before {
            if self.table.places.len() == limits::COMPUTED_SIZES {
                return Err(format!(
                    "one more distinct computed size, expected at most {}",
                    limits::COMPUTED_SIZES
                ));
            }
            self.table.places.push((id, path.to_string().into()));
        }
        Ok(id)
    }

    pub(crate) fn table(&self) -> &SizeTable {
        &self.table
    }

    pub(crate) fn finish(self) -> SizeTable {
        self.table
    }
}
