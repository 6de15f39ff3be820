//! What kernels reach: ranges of addresses, which are addresses of this process too. A launch and a copy look at those
//! that there were when they began; what takes a range away waits for them before.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use gfx9::memory::{Access, Memory, Reason};

/// A range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// True if kernels may write the range. Ranges that kernels cannot read are not listed.
    pub(crate) writable: bool,
    /// True if the range is host memory.
    pub(crate) host: bool,
}

impl Range {
    fn end(&self) -> u64 {
        self.base + self.bytes
    }
}

/// All ranges at one time, by address.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    all: Vec<Range>,
    /// Neighbours of one kind as one.
    joined: Vec<Range>,
}

static CURRENT: RwLock<Option<Arc<Ranges>>> = RwLock::new(None);
static CHANGES: Mutex<()> = Mutex::new(());

/// The ranges as they are now.
pub(crate) fn current() -> Arc<Ranges> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

fn change(f: impl FnOnce(&mut Vec<Range>)) {
    let _one: MutexGuard<'_, ()> = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = current().all.clone();
    f(&mut all);
    all.sort_by_key(|range| range.base);
    let mut joined: Vec<Range> = Vec::new();
    for range in &all {
        match joined.last_mut() {
            Some(last)
                if last.end() == range.base && last.writable == range.writable && last.host == range.host =>
            {
                last.bytes += range.bytes;
            }
            _ => joined.push(*range),
        }
    }
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Ranges { all, joined }));
}

/// Adds a range, which overlaps none.
pub(crate) fn add(range: Range) {
    change(|all| all.push(range));
}

/// Takes away the range that begins at an address.
pub(crate) fn remove(base: u64) -> Option<Range> {
    let mut removed = None;
    change(|all| {
        if let Some(index) = all.iter().position(|range| range.base == base) {
            removed = Some(all.swap_remove(index));
        }
    });
    removed
}

impl Ranges {
    /// The range that begins at an address.
    pub(crate) fn starting(&self, base: u64) -> Option<Range> {
        self.all.iter().find(|range| range.base == base).copied()
    }

    /// True if a range shares an address with any.
    pub(crate) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        self.all.iter().any(|range| base < range.end() && range.base < base.saturating_add(bytes))
    }

    /// The range that has all these addresses.
    pub(crate) fn around(&self, base: u64, bytes: u64) -> Option<Range> {
        let index = self.joined.partition_point(|range| range.base <= base).checked_sub(1)?;
        let range = self.joined[index];
        (base.checked_add(bytes)? <= range.end()).then_some(range)
    }
}

/// The ranges as a kernel sees them, with the one that it used last.
#[derive(Debug)]
pub(crate) struct View {
    ranges: Arc<Ranges>,
    last: Cell<Option<Range>>,
}

impl View {
    pub(crate) fn new() -> Self {
        Self { ranges: current(), last: Cell::new(None) }
    }
}

impl Memory for View {
    fn at(&self, address: u64, bytes: u64, access: Access) -> Result<&[Cell<u8>], Reason> {
        let inside = |range: &Range| {
            address >= range.base && address.checked_add(bytes).is_some_and(|end| end <= range.end())
        };
        let range = match self.last.get().filter(inside) {
            Some(range) => range,
            None => self.ranges.around(address, bytes).ok_or(Reason::NotPresent)?,
        };
        self.last.set(Some(range));
        if access == Access::Write && !range.writable {
            return Err(Reason::ReadOnly);
        }
        let pointer: *const Cell<u8> = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the range is mapped and stays so while this view lives (see above). Others that write to it at the same
        // time, the host or another process, do what they would do to a GPU's memory: bytes are read or not yet.
        Ok(unsafe { std::slice::from_raw_parts(pointer, bytes as usize) })
    }
}
