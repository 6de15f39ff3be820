//! Keeping something on a core, to tell what a wake-up costs on the same core and on another.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// The cores this thread may run on.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// This thread stays on one core until this is dropped; processes that it starts meanwhile always do.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Moves this thread to `core`.
    pub fn to(core: usize) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It fails only where the core was taken away: then there is nothing to go back to.
        let _ = sched_setaffinity(None, &self.before);
    }
}
