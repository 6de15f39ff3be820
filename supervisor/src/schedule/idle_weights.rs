//! Weights that may go, in the order in which they go: what a decision costs does not grow with how many there are.

use std::collections::BTreeMap;

use crate::ids::FunctionId;

/// A priority, and when it was used last: floats that are not negative are ordered like their bits. No two are equal.
pub(super) type Rank = (u64, u64);

/// Weights that no call uses and no worker loads.
#[derive(Debug, Default)]
pub(super) struct IdleWeights {
    functions: BTreeMap<Rank, FunctionId>,
    bytes: u64,
}

impl IdleWeights {
    /// What they take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One more, which takes so much.
    pub(super) fn add(&mut self, rank: Rank, function: FunctionId, bytes: u64) {
        self.functions.insert(rank, function);
        self.bytes += bytes;
    }

    /// One less.
    pub(super) fn remove(&mut self, rank: Rank, bytes: u64) {
        self.functions.remove(&rank);
        self.bytes -= bytes;
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (Rank, FunctionId)> {
        self.functions.iter().map(|(rank, function)| (*rank, *function))
    }

    /// The weights of lowest priority that need not `stay`. Weights that calls are expected to need come last.
    pub(super) fn lowest(
        &self,
        stay: &[FunctionId],
        is_expected: impl Fn(FunctionId) -> bool,
    ) -> Option<FunctionId> {
        let may_go = || self.functions.values().copied().filter(|function| !stay.contains(function));
        may_go().find(|function| !is_expected(*function)).or_else(|| may_go().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_goes_and_what_is_expected_goes_last() {
        let [a, b, c] = [1, 2, 3].map(FunctionId::new);
        let rank = |priority: f64, used| (priority.to_bits(), used);
        let mut idle = IdleWeights::default();
        idle.add(rank(2.0, 1), a, 10);
        idle.add(rank(0.5, 3), b, 20);
        idle.add(rank(0.5, 2), c, 30);
        assert_eq!((idle.lowest(&[], |_| false), idle.bytes()), (Some(c), 60));
        assert_eq!(idle.lowest(&[c], |_| false), Some(b));
        assert_eq!(idle.lowest(&[], |function| function != a), Some(a));
        assert_eq!(idle.lowest(&[a], |_| true), Some(c));
        idle.remove(rank(0.5, 2), 30);
        assert_eq!((idle.lowest(&[], |_| false), idle.bytes()), (Some(b), 30));
        assert_eq!(idle.lowest(&[a, b], |_| false), None);
    }
}
