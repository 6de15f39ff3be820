//! Sharing of the pool: where the buffers of a large plan lie when those that are not live together take the same memory,
//! and what must be cleared in between. Smaller plans lie one buffer behind the other, and this module is not asked.
//!
//! - `lifetimes`: from which step to which each buffer is live
//! - `packing`: an offset for each, so that what is live together does not overlap
//!
//! The result of a call is the one it has without sharing: every buffer is zero bytes when a step uses it for the first
//! time. Memory of an earlier buffer is cleared directly before that step, unless the step overwrites all of it.

mod lifetimes;
mod packing;

use std::cmp::Reverse;

use self::lifetimes::Lifetime;
use self::packing::Block;
use crate::blueprint::{Blueprint, BufferId, Bump, Role};
use crate::limits;
use crate::size::SizeId;

/// When sharing is worth its price: each clearing between two steps costs a GPU the time of a short kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Plans of fewer bytes share nothing.
    pub(crate) min_plan_bytes: u64,
    /// Buffers of fewer bytes keep memory of their own.
    pub(crate) min_buffer_bytes: u64,
    /// A plan shares where that saves at least its bytes divided by this.
    pub(crate) min_saving: u64,
}

/// The rule that plans are made by; `docs/blueprint.md` gives the figures behind it.
pub(crate) const RULE: Rule = Rule { min_plan_bytes: 8 << 20, min_buffer_bytes: 256 << 10, min_saving: 4 };

/// A pool in which buffers share memory.
#[derive(Debug)]
pub(crate) struct SharedPool {
    /// Where each buffer starts, by [`BufferId`]; 0 for weights, which are not in the pool.
    pub(crate) offsets: Vec<u64>,
    /// Bytes of the pool; a multiple of [`limits::BUFFER_ALIGN`].
    pub(crate) bytes: u64,
    /// What must be cleared, in the order of the steps.
    pub(crate) clearings: Vec<Clearing>,
}

/// A range of the pool that is zeroed between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clearing {
    /// The index of the step that follows, or the number of steps. Never inside of what is repeated more than once.
    pub(crate) before: u32,
    /// Where it starts.
    pub(crate) offset: u64,
    /// How long it is, at least 1.
    pub(crate) bytes: u64,
}

/// A size that the layout depends on has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unknown;

/// The pool of a call in which buffers share memory; none where that is not worth it. `own_bytes` is what the pool takes
/// with memory for every buffer; `value` knows the sizes of buffers and how often steps are repeated.
pub(crate) fn share(
    blueprint: &Blueprint,
    rule: &Rule,
    own_bytes: u64,
    value: impl Fn(SizeId) -> Option<u64>,
) -> Result<Option<SharedPool>, Unknown> {
    if own_bytes < rule.min_plan_bytes {
        return Ok(None);
    }
    let mut blocks = Vec::new();
    for (at, buffer) in blueprint.buffers.iter().enumerate() {
        if buffer.role == Role::Weight {
            continue;
        }
        let bytes = value(buffer.size).ok_or(Unknown)?;
        if bytes >= rule.min_buffer_bytes.max(1) {
            let id = BufferId(at as u32);
            blocks.push(Block { id, bytes: aligned(bytes), live: Lifetime::NEVER, offset: 0 });
        }
    }
    if blocks.len() < 2 {
        return Ok(None);
    }
    let uses = lifetimes::find(blueprint, &value)?;
    for block in &mut blocks {
        block.live = uses[block.id.index()].live;
    }
    if all_live_together(&blocks) {
        return Ok(None);
    }
    blocks.sort_unstable_by_key(|block| (Reverse(block.bytes), block.live.first, block.id));
    blocks.truncate(limits::SHARING_BUFFERS);

    let apart = own_bytes - blocks.iter().map(|block| block.bytes).sum::<u64>();
    let bytes = apart + packing::place(&mut blocks);
    if own_bytes - bytes < own_bytes.div_ceil(rule.min_saving) {
        return Ok(None);
    }
    let mut offsets = vec![u64::MAX; blueprint.buffers.len()];
    for block in &mut blocks {
        block.offset += apart;
        offsets[block.id.index()] = block.offset;
    }
    let mut rest = Bump::default();
    for (offset, buffer) in offsets.iter_mut().zip(&blueprint.buffers) {
        if buffer.role == Role::Weight {
            *offset = 0;
        } else if *offset == u64::MAX {
            // They all fit: the sum of all buffers did.
            *offset = rest.place(value(buffer.size).ok_or(Unknown)?).map_err(|_| Unknown)?;
        }
    }
    let is_overwritten = |block: &Block| uses[block.id.index()].is_overwritten;
    Ok(Some(SharedPool { offsets, bytes, clearings: clearings(&blocks, is_overwritten) }))
}

/// True if all blocks are live at the same moment.
fn all_live_together(blocks: &[Block]) -> bool {
    let last_first = blocks.iter().map(|block| block.live.first).max();
    let first_last = blocks.iter().map(|block| block.live.last).min();
    last_first <= first_last
}

/// The clearings that blocks, sorted by offset, need.
fn clearings(blocks: &[Block], is_overwritten: impl Fn(&Block) -> bool) -> Vec<Clearing> {
    let mut clearings = Vec::new();
    let used = |block: &&Block| block.live != Lifetime::NEVER;
    for block in blocks.iter().filter(used).filter(|block| !is_overwritten(block)) {
        let end = block.offset + block.bytes;
        let mut below = blocks.iter().take_while(|other| other.offset < end).filter(used);
        if below.any(|other| other.end() > block.offset && other.live.ends_before(block.live)) {
            let before = block.live.first_step();
            clearings.push(Clearing { before, offset: block.offset, bytes: block.bytes });
        }
    }
    // Ranges that lie side by side and are needed by the same step are cleared at once.
    clearings.sort_unstable_by_key(|clearing| (clearing.before, clearing.offset));
    clearings.dedup_by(|next, clearing| {
        let joins = next.before == clearing.before && next.offset == clearing.offset + clearing.bytes;
        if joins {
            clearing.bytes += next.bytes;
        }
        joins
    });
    clearings
}

/// The bytes that a buffer takes. Saturates where no plan can be made.
fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(limits::BUFFER_ALIGN).unwrap_or(u64::MAX)
}
