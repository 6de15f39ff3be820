//! When buffers are live: one pass over the steps as written. A launch uses the buffers that its arguments name.

use super::Unknown;
use crate::blueprint::{Blueprint, BufferId, FieldValue, Item, Role, Step};
use crate::limits::BUFFER_ALIGN;
use crate::size::SizeId;

/// The moments from one to another, both included. At moment 0 the inputs arrive, step `n` is executed at moment `n + 1`,
/// and behind the last step the outputs leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Lifetime {
    /// No moment at all: of a buffer that no step uses and whose bytes come from nowhere and go nowhere.
    pub(super) const NEVER: Self = Self { first: u32::MAX, last: 0 };

    fn at(moment: u32) -> Self {
        Self { first: moment, last: moment }
    }

    fn extend(&mut self, by: Self) {
        self.first = self.first.min(by.first);
        self.last = self.last.max(by.last);
    }

    /// True if a moment belongs to both lifetimes.
    pub(super) fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// True if this lifetime is over before `other` begins.
    pub(super) fn ends_before(self, other: Self) -> bool {
        self.last < other.first
    }

    /// The step at which the lifetime begins; the first step if that is with the inputs.
    pub(super) fn first_step(self) -> u32 {
        self.first.saturating_sub(1)
    }
}

/// What the steps do with a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) live: Lifetime,
    /// True if the buffer's first step is a copy or a fill of all its bytes: what the memory held before does not
    /// matter.
    pub(super) is_overwritten: bool,
}

/// Where something is used, a list of arguments or a buffer.
#[derive(Debug, Clone, Copy)]
struct Touched {
    live: Lifetime,
    /// The first step that uses it, as written.
    first_step: u32,
}

impl Touched {
    const NEVER: Self = Self { live: Lifetime::NEVER, first_step: u32::MAX };

    fn add(&mut self, other: Self) {
        self.live.extend(other.live);
        self.first_step = self.first_step.min(other.first_step);
    }
}

/// When each buffer is live, by [`BufferId`], for these sizes.
///
/// A buffer that a repeated step uses is live from the first repetition to the last: what one repetition leaves in it, the
/// next one finds. A launch costs the same however many arguments it has; each list of arguments is read once.
pub(super) fn find(
    blueprint: &Blueprint,
    value: &impl Fn(SizeId) -> Option<u64>,
) -> Result<Vec<Use>, Unknown> {
    let mut lists = vec![Touched::NEVER; blueprint.lists.len()];
    let mut buffers = vec![Touched::NEVER; blueprint.buffers.len()];
    let mut overwritten_by = vec![u32::MAX; blueprint.buffers.len()];
    // The outermost repeat around `at` that executes its body more than once: when, and where the body ends.
    let mut repeated: Option<(Lifetime, usize)> = None;
    let mut at = 0;
    while at < blueprint.steps.len() {
        repeated = repeated.filter(|(_, end)| at < *end);
        let live = repeated.map_or(Lifetime::at(moment(at)), |(live, _)| live);
        let touched = Touched { live, first_step: at as u32 };
        match blueprint.steps[at] {
            Step::Repeat { count, body } => {
                let end = at + 1 + body as usize;
                match value(count).ok_or(Unknown)? {
                    0 => at = end - 1,
                    1 => {}
                    _ if repeated.is_none() => {
                        repeated = Some((Lifetime { first: moment(at), last: moment(end - 1) }, end));
                    }
                    _ => {}
                }
            }
            Step::Launch { list, .. } => lists[list as usize].add(touched),
            Step::Copy { from, from_offset, to, to_offset, bytes } => {
                buffers[from.index()].add(touched);
                buffers[to.index()].add(touched);
                let size = |id: BufferId| value(blueprint.buffers[id.index()].size);
                let copied = match bytes {
                    Some(bytes) => value(bytes),
                    None => {
                        size(from).zip(value(from_offset)).map(|(size, offset)| size.saturating_sub(offset))
                    }
                };
                if from != to && is_all(size(to), value(to_offset), copied) {
                    note(&mut overwritten_by[to.index()], at);
                }
            }
            Step::Fill { buffer, offset, bytes, .. } => {
                buffers[buffer.index()].add(touched);
                let size = value(blueprint.buffers[buffer.index()].size);
                let filled = bytes.map_or(size, value);
                if is_all(size, value(offset), filled) {
                    note(&mut overwritten_by[buffer.index()], at);
                }
            }
        }
        at += 1;
    }
    for (list, touched) in blueprint.lists.iter().zip(&lists) {
        if touched.first_step == u32::MAX {
            continue;
        }
        for item in &blueprint.items[list.start as usize..list.end as usize] {
            let buffer = match item {
                Item::Field { value: FieldValue::Pointer { buffer, .. }, .. } => *buffer,
                Item::Field { value: FieldValue::TensorMap(at), .. } => {
                    blueprint.tensor_maps[*at as usize].buffer
                }
                _ => continue,
            };
            buffers[buffer.index()].add(*touched);
        }
    }
    let end = Lifetime::at(moment(blueprint.steps.len()));
    let all = blueprint.buffers.iter().zip(&buffers).zip(&overwritten_by);
    Ok(all
        .map(|((buffer, touched), overwritten_by)| {
            let is_used = touched.first_step != u32::MAX;
            let mut live = touched.live;
            if matches!(buffer.role, Role::Input | Role::State) {
                live.extend(Lifetime::at(0));
            }
            if buffer.output {
                live.extend(end);
            }
            Use { live, is_overwritten: is_used && touched.first_step == *overwritten_by }
        })
        .collect())
}

/// When a step is executed.
fn moment(step: usize) -> u32 {
    step as u32 + 1
}

/// True if a write of `written` bytes at an offset covers the whole buffer, up to its alignment.
fn is_all(size: Option<u64>, offset: Option<u64>, written: Option<u64>) -> bool {
    offset == Some(0) && size == written && size.is_some_and(|size| size.is_multiple_of(BUFFER_ALIGN))
}

/// Keeps the first step that was noted.
fn note(first: &mut u32, step: usize) {
    *first = (*first).min(step as u32);
}
