//! Which functions' weights stay on a device: decisions only.
//!
//! ```text
//!            claim                        loaded                      lowest, and not in use
//!   absent ────────► loading in one worker ────► shared with others ────────────────────────► leaving ──► absent
//!                          ▲                                                                     │
//!                          └───────────── their memory is taken by what replaces them ◄──────────┘
//! ```
//!
//! GreedyDual-Size with frequency (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997; Cherkasova, HP Labs
//! 1998): a function's priority is the clock plus what a reload costs per byte, times how often it was used; the lowest
//! goes, and the clock moves up to its priority, so that functions that are not used sink. What calls in workers use
//! never goes, nor what is on its way; what calls use that are about to start goes last, and never for a call behind
//! them.

use std::collections::{BTreeMap, HashMap};

use self::leaving::{Leaving, WeightHolder, Who, own_copies};
use super::limits::{COPIED_PER_US, COUNTED_USES, RELOAD_NS};
use crate::ids::{FunctionId, IdMap, TenantId, WorkerId};
use crate::metrics::WeightCounts;

/// The weights on one device; `T` names memory of the device.
#[derive(Debug)]
pub struct Weights<T> {
    budget_bytes: u64,
    used_bytes: u64,
    clock: f64,
    uses: u64,
    entries: IdMap<FunctionId, Entry<T>>,
    /// Of these, those that may go.
    idle: IdleWeights,
    /// What no worker gets any more and some process still has.
    leaving: Vec<Leaving<T>>,
    /// What names memory that no process has any more.
    released: Vec<T>,
    /// Calls in workers whose function's weights were given up under them: no call says at its end which weights it had, so that
    /// these count as calls of weights that came since.
    outliving: IdMap<FunctionId, u32>,
    /// Functions of calls that are about to start in workers, as they were said last.
    ahead: HashMap<WorkerId, Vec<FunctionId>>,
    counts: WeightCounts,
}

#[derive(Debug)]
struct Entry<T> {
    bytes: u64,
    /// Whose function it is, once it is known.
    owner: Option<TenantId>,
    state: State<T>,
    /// Workers that have the weights, one entry for each time of sending.
    holders: Vec<WeightHolder>,
    /// Calls of the function that are in workers.
    calls: u32,
    /// How often they were used since they came.
    uses: u32,
    /// True if a worker got the memory from another one: a process in whose place others came may still have it.
    passed_on: bool,
    /// Of equal priority, who was used longest ago goes first.
    priority: (f64, u64),
    /// Bytes that count among the idle weights.
    listed_bytes: Option<u64>,
}

#[derive(Debug)]
enum State<T> {
    /// A worker loads the weights, into memory that has this name, or whose name follows.
    Loading(WorkerId, Option<T>),
    /// A worker has them for itself alone.
    Private(WorkerId),
    Shared(T),
}

/// A priority, and when it was used last: floats that are not negative are ordered like their bits. No two are equal.
type Rank = (u64, u64);

/// Weights that no call uses and no worker loads, in the order in which they go: what a decision costs does not grow with how many
/// there are.
#[derive(Debug, Default)]
struct IdleWeights {
    functions: BTreeMap<Rank, FunctionId>,
    bytes: u64,
}

impl IdleWeights {
    /// What they take.
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One more, which takes so much.
    fn add(&mut self, rank: Rank, function: FunctionId, bytes: u64) {
        self.functions.insert(rank, function);
        self.bytes += bytes;
    }

    /// One less.
    fn remove(&mut self, rank: Rank, bytes: u64) {
        self.functions.remove(&rank);
        self.bytes -= bytes;
    }

    /// All of them.
    #[cfg(test)]
    fn all(&self) -> impl Iterator<Item = (Rank, FunctionId)> {
        self.functions.iter().map(|(rank, function)| (*rank, *function))
    }

    /// The weights of lowest priority that need not `stay`. Weights that calls are expected to need come last.
    fn lowest(&self, stay: &[FunctionId], is_expected: impl Fn(FunctionId) -> bool) -> Option<FunctionId> {
        let may_go = || self.functions.values().copied().filter(|function| !stay.contains(function));
        may_go().find(|function| !is_expected(*function)).or_else(|| may_go().next())
    }
}

/// What weights are loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A call that starts.
    Now,
    /// A call that waits.
    Soon,
}

/// What a worker is told of weights that it is to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supply<T> {
    /// How it gets them.
    pub source: Source<T>,
    /// The function whose memory in the worker is used for these weights.
    pub instead_of: Option<FunctionId>,
}

/// How a worker gets a function's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source<T> {
    /// From the host, for itself.
    Host,
    /// From the host, and what names them is to be sent back.
    Export,
    /// They are on the device already.
    Device(T, u64),
}

/// True if memory of one size suits weights that need another: little of it is wasted.
fn suits(has: u64, needed: u64) -> bool {
    has >= needed && has - needed <= needed / 8
}

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// Calls use the weights that are there.
    InUse,
    /// Not enough memory is free.
    Short,
}

impl<T> Entry<T> {
    /// True if they may go: no call uses them, and they are not on their way.
    fn is_idle(&self) -> bool {
        self.calls == 0 && !matches!(self.state, State::Loading(..))
    }

    fn rank(&self) -> Rank {
        (self.priority.0.to_bits(), self.priority.1)
    }

    fn taken_bytes(&self) -> u64 {
        self.bytes.saturating_mul(1 + own_copies(&self.holders))
    }
}

impl<T: Clone> Weights<T> {
    /// A device without weights.
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            used_bytes: 0,
            clock: 0.0,
            uses: 0,
            entries: IdMap::default(),
            idle: IdleWeights::default(),
            leaving: Vec::new(),
            released: Vec::new(),
            outliving: IdMap::default(),
            ahead: HashMap::new(),
            counts: WeightCounts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> WeightCounts {
        self.counts
    }

    /// Device memory of the weights that are there.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Device memory that is taken: also by weights that were given up and not forgotten yet.
    pub fn held_bytes(&self) -> u64 {
        self.used_bytes + self.leaving.iter().map(Leaving::taken_bytes).sum::<u64>()
    }

    /// Before an entry changes: it does not stand among those that may go.
    fn unlist(&mut self, function: FunctionId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        if let Some(bytes) = entry.listed_bytes.take() {
            self.idle.remove(entry.rank(), bytes);
        }
    }

    /// Behind that: it does, if it may go.
    fn list(&mut self, function: FunctionId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        if entry.is_idle() && entry.listed_bytes.is_none() {
            let bytes = entry.taken_bytes();
            entry.listed_bytes = Some(bytes);
            self.idle.add(entry.rank(), function, bytes);
        }
    }

    fn change<R>(&mut self, function: FunctionId, how: impl FnOnce(&mut Entry<T>) -> R) -> Option<R> {
        self.unlist(function);
        let changed = self.entries.get_mut(&function).map(how);
        self.list(function);
        changed
    }

    fn priority(&mut self, bytes: u64, uses: u32) -> (f64, u64) {
        self.uses += 1;
        let bytes = bytes.max(1) as f64;
        (
            self.clock
                + f64::from(uses.min(COUNTED_USES)) * (RELOAD_NS + bytes * 1000.0 / COPIED_PER_US as f64)
                    / bytes,
            self.uses,
        )
    }

    /// A worker is to have weights of `bytes`, which may take `room_bytes` beside all that is there. Functions whose weights
    /// are to leave all workers are added to `evicted`.
    pub fn claim(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        bytes: u64,
        when: When,
        room_bytes: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<Source<T>, NoRoom> {
        let source = match self.entries.get(&function).map(|entry| &entry.state) {
            Some(State::Shared(device)) => {
                let device = device.clone();
                self.touch(function);
                Source::Device(device, self.entries.get(&function).map_or(bytes, |e| e.bytes))
            }
            // The worker was told to forget the weights before it could send their name.
            Some(State::Loading(loader, _)) if *loader == worker => Source::Export,
            Some(State::Loading(..) | State::Private(_)) => {
                self.make_room(bytes, function, when, room_bytes, evicted)?;
                self.used_bytes += self.entries.get(&function).map_or(0, |entry| entry.bytes);
                Source::Host
            }
            None => {
                self.make_room(bytes, function, when, room_bytes, evicted)?;
                let priority = self.priority(bytes, 1);
                let state = State::Loading(worker, None);
                let holders = Vec::new();
                let (owner, passed_on) = (None, false);
                let calls = self.outliving.remove(&function).unwrap_or(0);
                let (uses, listed_bytes) = (1, None);
                let entry =
                    Entry { bytes, owner, state, holders, calls, uses, passed_on, priority, listed_bytes };
                self.entries.insert(function, entry);
                self.used_bytes += bytes;
                Source::Export
            }
        };
        self.change(function, |entry| {
            entry.holders.push(WeightHolder::new(worker, matches!(source, Source::Host)));
            entry.passed_on |= matches!(source, Source::Device(..));
        });
        if !matches!(source, Source::Device(..)) {
            self.counts.loads += 1;
            self.counts.loaded_bytes += bytes;
            self.counts.ahead += u64::from(when == When::Soon);
        }
        Ok(source)
    }

    /// A worker that loads a function's weights uses the memory of evicted ones, where the size suits, and this worker made that
    /// memory and no other ever had it. Returns whose weights were there: these need not be told to leave.
    pub fn take_over(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        evicted: &mut Vec<FunctionId>,
    ) -> Option<FunctionId> {
        let entry = self.entries.get_mut(&function)?;
        let State::Loading(loader, known @ None) = &mut entry.state else { return None };
        if *loader != worker {
            return None;
        }
        let is_only = |holders: &[WeightHolder]| matches!(holders, [holder] if holder.is_kept_by(worker) && !holder.own);
        let at = self.leaving.iter().position(|leaving| {
            evicted.contains(&leaving.function)
                && leaving.device.is_some()
                && is_only(&leaving.holders)
                && suits(leaving.bytes, entry.bytes)
        })?;
        let taken = self.leaving.swap_remove(at);
        *known = taken.device;
        self.used_bytes -= entry.taken_bytes();
        entry.bytes = taken.bytes;
        self.used_bytes += entry.taken_bytes();
        evicted.retain(|other| *other != taken.function);
        self.counts.reused += 1;
        Some(taken.function)
    }

    /// Calls of these functions are about to start in a worker, the first one first.
    pub fn expect(&mut self, worker: WorkerId, functions: Vec<FunctionId>) {
        match functions.is_empty() {
            true => drop(self.ahead.remove(&worker)),
            false => drop(self.ahead.insert(worker, functions)),
        }
    }

    /// Evicts until `bytes` fit beside the rest; nothing if they never would.
    fn make_room(
        &mut self,
        bytes: u64,
        keep: FunctionId,
        when: When,
        room_bytes: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), NoRoom> {
        let mut stay = vec![keep];
        if when == When::Soon {
            stay.extend(self.ahead.values().flatten());
            stay.sort_unstable();
            stay.dedup();
        }
        let least = self.least_with(bytes, &stay).ok_or(NoRoom::InUse)?;
        let most = self.budget_bytes.min(self.used_bytes.saturating_add(room_bytes));
        if least > most {
            return Err(NoRoom::Short);
        }
        while self.used_bytes + bytes > most && self.evict_lowest(&stay, evicted) {}
        Ok(())
    }

    /// What all weights take at least with so much more, if they may: all but those that `stay` can give way.
    fn least_with(&self, bytes: u64, stay: &[FunctionId]) -> Option<u64> {
        let listed = |function| self.entries.get(function).and_then(|entry| entry.listed_bytes);
        let free = self.idle.bytes() - stay.iter().filter_map(listed).sum::<u64>();
        let least = (self.used_bytes - free).saturating_add(bytes);
        (least <= self.budget_bytes).then_some(least)
    }

    /// Memory that must be free for a worker to load a function's weights of `bytes`, besides what gives way: none where it
    /// does not help.
    pub fn missing_bytes(&self, function: FunctionId, worker: WorkerId, bytes: u64) -> u64 {
        if self.is_on_device(function) || self.has(function, worker) {
            return 0;
        }
        self.least_with(bytes, &[function]).map_or(0, |least| least.saturating_sub(self.used_bytes))
    }

    /// Evicts the idle weights of lowest priority, but those that `stay`. True if there were some.
    fn evict_lowest(&mut self, stay: &[FunctionId], evicted: &mut Vec<FunctionId>) -> bool {
        let is_expected = |function| self.ahead.values().any(|ahead| ahead.contains(&function));
        let Some(function) = self.idle.lowest(stay, is_expected) else { return false };
        let priority = self.entries.get(&function).map_or(0.0, |entry| entry.priority.0);
        self.clock = self.clock.max(priority);
        self.forget(function);
        self.counts.evictions += 1;
        evicted.push(function);
        true
    }

    /// Evicts weights that no call uses until so much is given up, or nothing is left. How much of it is free once all
    /// workers forgot them; the rest is free now.
    pub fn give_up(&mut self, bytes: u64, evicted: &mut Vec<FunctionId>) -> u64 {
        let leaving = |weights: &Self| weights.held_bytes() - weights.used_bytes;
        let (least, before) = (self.used_bytes.saturating_sub(bytes), leaving(self));
        while self.used_bytes > least && self.evict_lowest(&[], evicted) {}
        leaving(self) - before
    }

    /// Whose function it is.
    pub fn own(&mut self, function: FunctionId, owner: TenantId) {
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.owner = Some(owner);
        }
    }

    /// Whose function it is, if its weights are there.
    pub fn owner(&self, function: FunctionId) -> Option<TenantId> {
        self.entries.get(&function)?.owner
    }

    /// Device memory that weights of one owner's functions take.
    pub fn used_by(&self, owner: TenantId) -> u64 {
        let own = self.entries.values().filter(|entry| entry.owner == Some(owner));
        own.map(Entry::taken_bytes).sum()
    }

    /// True if a function's weights are there, or are about to be, in memory that a worker can be given.
    pub fn is_on_device(&self, function: FunctionId) -> bool {
        self.entries.get(&function).is_some_and(|entry| matches!(entry.state, State::Shared(_)))
    }

    /// True if there are no weights.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if a worker has a function's weights, or was told to load them, and not to let them go since.
    pub fn has(&self, function: FunctionId, worker: WorkerId) -> bool {
        let holders = self.entries.get(&function).map(|entry| &entry.holders);
        holders.is_some_and(|holders| holders.iter().any(|holder| holder.is_kept_by(worker)))
    }

    /// Takes a name of memory that no process has any more.
    pub fn take_released(&mut self) -> Option<T> {
        self.released.pop()
    }

    /// Evicts weights of an owner until `bytes` more fit into the `room` that its weights may take; else says what they
    /// take, and evicts none.
    pub fn fit_owner(
        &mut self,
        owner: TenantId,
        bytes: u64,
        room: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), u64> {
        let may_go = |(_, entry): &(&FunctionId, &Entry<T>)| entry.owner == Some(owner) && entry.is_idle();
        let free: u64 = self.entries.iter().filter(may_go).map(|(_, entry)| entry.taken_bytes()).sum();
        let used = self.used_by(owner);
        if (used - free).saturating_add(bytes) > room {
            return Err(used);
        }
        while self.used_by(owner) + bytes > room {
            let oldest = self.entries.iter().filter(may_go).min_by_key(|(_, entry)| entry.priority.1);
            let Some(function) = oldest.map(|(function, _)| *function) else { break };
            self.forget(function);
            self.counts.evictions += 1;
            evicted.push(function);
        }
        Ok(())
    }

    fn touch(&mut self, function: FunctionId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        entry.uses = entry.uses.saturating_add(1);
        let (bytes, uses) = (entry.bytes, entry.uses);
        let priority = self.priority(bytes, uses);
        self.change(function, |entry| entry.priority = priority);
    }

    /// True if a worker was asked to load weights for all.
    pub fn is_loader(&self, function: FunctionId, worker: WorkerId) -> bool {
        let state = self.entries.get(&function).map(|entry| &entry.state);
        matches!(state, Some(State::Loading(loader, _)) if *loader == worker)
    }

    /// True if weights of an owner's functions are on their way.
    pub fn loads_for(&self, owner: TenantId) -> bool {
        let loads =
            |entry: &Entry<T>| matches!(entry.state, State::Loading(..)) && entry.owner == Some(owner);
        self.entries.values().any(loads)
    }

    /// What a worker loaded is there, in memory that `device` names, or that was known before. False if that worker was
    /// not asked for it; if it was evicted meanwhile, nothing happens.
    pub fn loaded(&mut self, function: FunctionId, worker: WorkerId, device: Option<T>, bytes: u64) -> bool {
        let as_asked = self.is_there(function, worker, device, bytes);
        self.list(function);
        as_asked
    }

    fn is_there(&mut self, function: FunctionId, worker: WorkerId, device: Option<T>, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&function) else { return true };
        let State::Loading(loader, known) = &mut entry.state else { return true };
        if *loader != worker {
            // For itself, while the other one still loads.
            let is_it = |holder: &WeightHolder| holder.own && holder.who == Who::Worker(worker);
            return device.is_none() && entry.holders.iter().any(is_it);
        }
        let device = match (device, known.take()) {
            (Some(device), known) => {
                // It was not loaded there after all.
                self.released.extend(known);
                device
            }
            (None, Some(known)) => known,
            (None, None) => return false,
        };
        entry.state = State::Shared(device);
        // Others may have copies of their own.
        self.used_bytes -= entry.taken_bytes();
        entry.bytes = bytes;
        self.used_bytes += entry.taken_bytes();
        true
    }

    /// A call of the function is about to be in a worker; whether its weights were there before, or on their way.
    /// False if they are not known.
    pub fn begin(&mut self, function: FunctionId, hit: bool) -> bool {
        if !self.entries.contains_key(&function) {
            return false;
        }
        self.counts.calls += 1;
        self.counts.hits += u64::from(hit);
        self.touch(function);
        self.change(function, |entry| entry.calls += 1);
        true
    }

    /// It is not any more.
    pub fn end(&mut self, function: FunctionId) {
        if self.change(function, |entry| entry.calls = entry.calls.saturating_sub(1)).is_some() {
            return;
        }
        if let Some(calls) = self.outliving.get_mut(&function) {
            *calls -= 1;
            if *calls == 0 {
                self.outliving.remove(&function);
            }
        }
    }
}

mod leaving;
#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
