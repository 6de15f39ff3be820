//! Offsets for blocks of which some are never live together: the problem of dynamic storage allocation. Solved greedily by
//! size, as in Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020): the largest
//! block first, each in the smallest gap among those that are live with it. For networks this is at or near the least
//! possible, the bytes that are live at one moment.

use super::lifetimes::Lifetime;
use crate::blueprint::BufferId;

/// A buffer that may share its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) id: BufferId,
    /// With its alignment.
    pub(super) bytes: u64,
    pub(super) live: Lifetime,
    pub(super) offset: u64,
}

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Places blocks, which come in the order of their sizes, and leaves them in the order of their offsets. Returns the bytes
/// that they take together. At worst a comparison for each pair: the number of blocks has a limit.
pub(super) fn place(blocks: &mut Vec<Block>) -> u64 {
    let mut placed: Vec<Block> = Vec::with_capacity(blocks.len());
    let mut height = 0;
    for block in blocks.iter() {
        let mut end = 0;
        let mut best: Option<(u64, u64)> = None;
        for other in placed.iter().filter(|other| other.live.meets(block.live)) {
            let gap = other.offset.saturating_sub(end);
            if gap >= block.bytes && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, end));
            }
            end = end.max(other.end());
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        let at = placed.partition_point(|other| other.offset <= offset);
        let block = Block { offset, ..*block };
        height = height.max(block.end());
        placed.insert(at, block);
    }
    *blocks = placed;
    height
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places blocks of these bytes and moments; their offsets, and the bytes of all.
    fn offsets(blocks: &[(u64, u32, u32)]) -> (Vec<u64>, u64) {
        let block = |(id, &(bytes, first, last))| Block {
            id: BufferId(id),
            bytes,
            live: Lifetime { first, last },
            offset: 0,
        };
        let mut placed: Vec<_> = (0..).zip(blocks).map(block).collect();
        placed.sort_by_key(|block| std::cmp::Reverse(block.bytes));
        let height = place(&mut placed);
        assert!(placed.is_sorted_by_key(|block| block.offset));
        for (at, a) in placed.iter().enumerate() {
            for b in &placed[at + 1..] {
                let apart = a.end() <= b.offset || b.end() <= a.offset;
                assert!(apart || !a.live.meets(b.live), "{a:?} {b:?}");
            }
        }
        placed.sort_by_key(|block| block.id);
        (placed.iter().map(|block| block.offset).collect(), height)
    }

    #[test]
    fn a_chain_takes_its_two_largest_neighbours() {
        let chain = [(4, 0, 1), (4, 1, 2), (4, 2, 3), (4, 3, 4), (4, 4, 5)];
        assert_eq!(offsets(&chain), (vec![0, 4, 0, 4, 0], 8));
    }

    #[test]
    fn what_meets_in_one_moment_lies_apart() {
        assert_eq!(offsets(&[(4, 0, 1), (4, 1, 1), (4, 1, 9)]).1, 12);
        assert_eq!(offsets(&[(4, 0, 0), (4, 1, 1), (4, 2, 2)]).1, 4);
        assert_eq!(offsets(&[]), (vec![], 0));
    }

    #[test]
    fn the_smallest_gap_that_is_large_enough_is_taken() {
        // Once the second and the fourth are dead, there are gaps of 6 at 10 and of 4 at 21.
        let around = [(10, 0, 9), (6, 0, 3), (5, 0, 9), (4, 0, 3), (3, 0, 9)];
        let with = |more: &[(u64, u32, u32)]| offsets(&[&around[..], more].concat());
        assert_eq!(with(&[(3, 5, 9)]), (vec![0, 10, 16, 21, 25, 21], 28));
        assert_eq!(with(&[(5, 5, 9), (3, 5, 9)]), (vec![0, 10, 16, 21, 25, 10, 21], 28));
    }
}
