//! What the kernels of a checked call may reach: a table in linear memory that their [checks](super::instrument) search,
//! and the words for a range that is not in it.
//!
//! ```text
//! CHECKS_AT  entries                       the number of them
//!       +8   address, bytes, place, column what strayed: written before the trap
//!      +64   start, end for loads, end for stores; …   ordered, none overlaps
//! ```
//! A range must lie in one entry. Which of them a pointer was made of is not known: kernels may reach every buffer of the
//! call, also one that they were not given.

use std::fmt;

use pappus_blueprint::{Blueprint, DType, PRINTED, Plan, Role, Space};

use super::layout::*;

/// Where what strayed is written.
pub(super) const STRAY_AT: u64 = CHECKS_AT as u64 + 8;
/// Bytes of that.
pub(super) const STRAY_BYTES: usize = 20;
/// Where the entries are.
pub(super) const ENTRIES_AT: u64 = CHECKS_AT as u64 + 64;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u32 = 12;
/// Where in an entry the end is for loads, and for stores: its start where nothing may be stored.
pub(super) const FOR_LOADS: i32 = 4;
pub(super) const FOR_STORES: i32 = 8;

const _: () = {
    use pappus_blueprint::limits;
    // Besides the buffers: low part, call, shared memory, what is printed.
    assert!(ENTRIES_AT + (limits::BUFFERS as u64 + 4) * ENTRY_BYTES as u64 <= POOL_AT);
};

/// The first bytes are nobody's, unless there is data: what points there is null.
const NULL_BYTES: u64 = 8;

/// The buffers of a function whose calls are checked, by their names.
#[derive(Debug)]
pub(super) struct Buffers(Vec<Named>);

#[derive(Debug)]
struct Named {
    name: String,
    role: Role,
    dtype: Option<DType>,
}

impl Buffers {
    /// Those of a blueprint; none where its calls are not checked.
    pub(super) fn of(blueprint: &Blueprint) -> Option<Self> {
        let named = blueprint.buffers().iter().map(|buffer| Named {
            name: buffer.name.clone(),
            role: buffer.role,
            dtype: buffer.dtype,
        });
        blueprint.is_checked().then(|| Self(named.collect()))
    }

    /// Which one takes what kernels print.
    pub(super) fn printed(&self) -> Option<usize> {
        self.0.iter().position(|buffer| buffer.name == PRINTED)
    }
}

/// What a kernel may reach in one call.
#[derive(Debug)]
pub(super) struct Bounds<'a> {
    buffers: &'a Buffers,
    /// In the order of their addresses.
    entries: Vec<Entry>,
}

/// A range that may be reached.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u64,
    end: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Low,
    Call,
    Shared,
    Buffer(usize),
}

impl<'a> Bounds<'a> {
    /// Of a launch of a module with this low part, with so much shared memory.
    pub(super) fn new(
        buffers: &'a Buffers,
        plan: &Plan,
        weights_at: u64,
        low: &LowPart,
        shared_bytes: u32,
    ) -> Self {
        let has_data_there = !low.data.is_empty() && low.data.start < NULL_BYTES;
        let low_start = if has_data_there { 0 } else { NULL_BYTES };
        let shared_at = u64::from(SCRATCH_AT);
        let mut entries = vec![
            Entry { start: low_start, end: low.bytes, what: What::Low },
            Entry { start: LAUNCH_AT.into(), end: u64::from(LAUNCH_AT) + CALL_BYTES, what: What::Call },
            Entry { start: shared_at, end: shared_at + u64::from(shared_bytes), what: What::Shared },
        ];
        let placed = plan.buffers.iter().zip(0..).map(|(placement, nth)| {
            let start = placement.offset
                + match placement.space {
                    Space::Pool => POOL_AT,
                    Space::Weights => weights_at,
                };
            Entry { start, end: start + placement.bytes, what: What::Buffer(nth) }
        });
        entries.extend(placed);
        entries.retain(|entry| entry.start < entry.end);
        entries.sort_unstable_by_key(|entry| entry.start);
        Self { buffers, entries }
    }

    /// The table as it lies in memory, in two parts: the number of entries, and the entries.
    pub(super) fn to_bytes(&self) -> ([u8; 4], Vec<u8>) {
        let mut bytes = Vec::with_capacity(self.entries.len() * ENTRY_BYTES as usize);
        for entry in &self.entries {
            let stores = if self.may_be_written(entry.what) { entry.end } else { entry.start };
            for word in [entry.start, entry.end, stores] {
                bytes.extend((word as u32).to_le_bytes());
            }
        }
        ((self.entries.len() as u32).to_le_bytes(), bytes)
    }

    fn may_be_written(&self, what: What) -> bool {
        match what {
            What::Low | What::Shared => true,
            What::Call => false,
            What::Buffer(nth) => self.buffers.0[nth].role != Role::Weight,
        }
    }

    /// Describes a stray access, such as `writes 4 bytes at C[1024], behind the end of C (f32[1024])`.
    pub(super) fn describe(&self, stray: &Stray) -> String {
        let does = if stray.is_store { "writes" } else { "reads" };
        let bytes = Bytes(stray.bytes.into());
        let (at, end) = (stray.at, stray.at + u64::from(stray.bytes));
        if end <= NULL_BYTES {
            return format!("{does} {bytes} at address {at}: a pointer that is null");
        }
        let inside = self.entries.iter().find(|entry| entry.start <= at && at < entry.end);
        if let Some(entry) = inside
            && end <= entry.end
        {
            let (place, whose) = (self.place(entry, at), self.name(entry.what));
            return format!("{does} {bytes} at {place}: {whose} may only be read");
        }
        // The one whose bytes are nearest.
        let distance =
            |entry: &&Entry| if at >= entry.start { at.saturating_sub(entry.end) } else { entry.start - at };
        let Some(entry) = inside.or_else(|| self.entries.iter().min_by_key(distance)) else {
            return format!("{does} {bytes} at address {at}");
        };
        let (place, whose) = (self.place(entry, at), self.name(entry.what));
        let side = if at < entry.start { "before the start" } else { "behind the end" };
        let side = if inside.is_some() { "over the end" } else { side };
        format!("{does} {bytes} at {place}, {side} of {whose}{}", self.size(entry))
    }

    fn name(&self, what: What) -> &str {
        match what {
            What::Low => "the stack and data",
            What::Call => "the launch's parameters",
            What::Shared => "shared memory",
            What::Buffer(nth) => &self.buffers.0[nth].name,
        }
    }

    fn dtype(&self, what: What) -> Option<DType> {
        match what {
            What::Buffer(nth) => self.buffers.0[nth].dtype,
            _ => None,
        }
    }

    /// Such as `C[1024]`, or `byte -3 of C` where that is no element of it, or no element's first byte.
    fn place(&self, entry: &Entry, at: u64) -> String {
        let offset = i128::from(at) - i128::from(entry.start);
        let name = self.name(entry.what);
        match self.dtype(entry.what).map(|dtype| i128::from(dtype.bytes())) {
            Some(width) if offset % width == 0 => format!("{name}[{}]", offset / width),
            _ => format!("byte {offset} of {name}"),
        }
    }

    /// Such as ` (f32[1024])`.
    fn size(&self, entry: &Entry) -> String {
        let bytes = entry.end - entry.start;
        match self.dtype(entry.what) {
            Some(dtype) => format!(" ({}[{}])", dtype.name(), bytes / dtype.bytes()),
            None => format!(" ({})", Bytes(bytes)),
        }
    }
}

/// A range that is in no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stray {
    at: u64,
    bytes: u32,
    is_store: bool,
    /// Where the access stands in the module.
    pub(super) place: u32,
}

impl Stray {
    /// As a check wrote it down; none if it did not.
    pub(super) fn read(written: &[u8; STRAY_BYTES]) -> Option<Self> {
        let (at, words) = written.split_first_chunk::<8>()?;
        let word = |nth: usize| words.get(4 * nth..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        let is_store = match word(2)? as i32 {
            FOR_LOADS => false,
            FOR_STORES => true,
            _ => return None,
        };
        Some(Self { at: u64::from_le_bytes(*at), bytes: word(0)?, is_store, place: word(1)? })
    }
}

/// `1 byte`, `2 bytes`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} byte{s}", self.0)
    }
}
