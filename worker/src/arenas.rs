//! The memory a worker shares with its client (arenas) and with the supervisor (staging).

use std::collections::{HashMap, HashSet};

use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{ArenaId, Fault, FaultCode};
use pappus_shmem::{Mapping, ValidatedMemfd};

/// Every arena that is open, the staging arena included.
#[derive(Debug)]
pub struct Arenas {
    mappings: HashMap<ArenaId, Mapping>,
    /// Those in whose place the device has memory: no byte of them is used.
    replaced: HashSet<ArenaId>,
    /// States of sessions that the device could not map, and why.
    refused: HashMap<ArenaId, String>,
    /// Arenas that could not be mapped yet.
    postponed: HashMap<ArenaId, ValidatedMemfd>,
}

impl Arenas {
    /// With nothing but the staging arena.
    pub fn new(staging: Mapping) -> Self {
        Self {
            mappings: HashMap::from([(STAGING_ARENA, staging)]),
            replaced: HashSet::new(),
            refused: HashMap::new(),
            postponed: HashMap::new(),
        }
    }

    /// True if the arena is mapped.
    pub fn contains(&self, arena: ArenaId) -> bool {
        self.mappings.contains_key(&arena)
    }

    /// True if the arena was opened, mapped or not.
    pub fn knows(&self, arena: ArenaId) -> bool {
        self.contains(arena) || self.postponed.contains_key(&arena)
    }

    /// Keeps an arena that could not be mapped, for another attempt.
    pub fn postpone(&mut self, arena: ArenaId, memfd: ValidatedMemfd) {
        self.postponed.insert(arena, memfd);
    }

    /// True if an arena could not be mapped yet.
    pub fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Takes the memory of an arena out that could not be mapped yet.
    pub fn take_postponed(&mut self, arena: ArenaId) -> Option<ValidatedMemfd> {
        self.postponed.remove(&arena)
    }

    /// Forgets an arena that was not mapped.
    pub fn drop_unmapped(&mut self, arena: ArenaId) {
        self.postponed.remove(&arena);
        self.refused.remove(&arena);
    }

    /// Forgets every arena that was not mapped.
    pub fn drop_all_unmapped(&mut self) {
        self.refused.clear();
        self.postponed.clear();
    }

    /// Keeps an arena that is mapped.
    pub fn insert(&mut self, arena: ArenaId, mapping: Mapping) {
        self.mappings.insert(arena, mapping);
    }

    /// Each call that names the state fails like this.
    pub fn refuse(&mut self, arena: ArenaId, why: String) {
        self.refused.insert(arena, why);
    }

    /// Keeps an arena in whose place the device has memory.
    pub fn insert_replaced(&mut self, arena: ArenaId, mapping: Mapping) {
        self.insert(arena, mapping);
        self.replaced.insert(arena);
    }

    /// Unmaps an arena; true if it was mapped.
    pub fn remove(&mut self, arena: ArenaId) -> bool {
        self.replaced.remove(&arena);
        self.mappings.remove(&arena).is_some()
    }

    /// Every mapped arena but the staging arena.
    pub fn of_clients(&self) -> Vec<ArenaId> {
        self.mappings.keys().copied().filter(|arena| *arena != STAGING_ARENA).collect()
    }

    /// Zeroes all of an arena.
    pub fn zero_all(&self, arena: ArenaId) {
        let bytes = self.mappings.get(&arena).map_or(0, Mapping::bytes);
        self.zero(arena, 0, bytes);
    }

    /// The mapping of an arena, once a range is known to lie inside.
    pub fn range(&self, arena: ArenaId, offset: u64, bytes: u64) -> Result<&Mapping, Fault> {
        let bad = |message| Fault::new(FaultCode::BadInvoke, message);
        let missing = || match self.refused.get(&arena) {
            Some(why) => {
                Fault::new(FaultCode::Exhausted, format!("a session's state is out of reach: {why}"))
            }
            None => bad(format!("arena {arena} is not open here")),
        };
        let mapping = self.mappings.get(&arena).ok_or_else(missing)?;
        mapping.range(offset, bytes).map_err(|e| bad(format!("arena {arena}: {e}")))?;
        Ok(mapping)
    }

    /// Zeroes a range, as far as it exists. What the device has in place of an arena stays as it is.
    pub fn zero(&self, arena: ArenaId, offset: u64, bytes: u64) {
        if let Some(mapping) = self.mappings.get(&arena).filter(|_| !self.replaced.contains(&arena)) {
            // A range outside was refused before anything was written to it.
            let _ = mapping.zero(offset, bytes);
        }
    }
}
