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

use std::collections::HashMap;

use super::idle_weights::{IdleWeights, Rank};
pub use super::weight_holders::ZombieId;
use super::weight_holders::{Holder, Leaving, Who, own_copies};
use crate::ids::{FunctionId, TenantId, WorkerId};
use crate::metrics::WeightCounts;

/// What a reload costs however small the weights are, in nanoseconds.
const LATENCY_NS: f64 = 200_000.0;
/// What it costs for each byte: pinned copies run at about 50 GB/s.
const BYTE_NS: f64 = 0.02;
/// Uses that count; more make a function's weights no dearer.
const USES: u32 = 64;

/// The weights on one device; `T` names memory of the device.
#[derive(Debug)]
pub struct Weights<T> {
    budget_bytes: u64,
    /// What may be taken beside what is there already.
    room_bytes: u64,
    used_bytes: u64,
    clock: f64,
    uses: u64,
    entries: HashMap<FunctionId, Entry<T>>,
    /// Of these, those that may go.
    idle: IdleWeights,
    /// What no worker gets any more and some process still has.
    leaving: Vec<Leaving<T>>,
    zombies: u64,
    /// What workers are about to load, by function and worker: its owner and bytes.
    promised: HashMap<(FunctionId, WorkerId), (TenantId, u64)>,
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
    /// Workers that have them, once for each time that they were sent.
    holders: Vec<Holder>,
    /// Calls of the function that are in workers.
    calls: u32,
    /// How often they were used since they came.
    uses: u32,
    /// A worker got their memory from another one: who was taken over meanwhile may still have it.
    passed_on: bool,
    /// Of equal priority, who was used longest ago goes first.
    priority: (f64, u64),
    /// What it takes, while it stands among those that may go.
    listed_bytes: Option<u64>,
}

#[derive(Debug)]
enum State<T> {
    /// A worker loads them, into memory that is known by this or that it sends the name of.
    Loading(WorkerId, Option<T>),
    /// A worker has them for itself alone.
    Private(WorkerId),
    Shared(T),
}

/// What weights are loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A call that starts.
    Now,
    /// A call that waits.
    Soon,
}

/// How a worker gets a function's weights.
#[derive(Debug, PartialEq, Eq)]
pub enum Source<T> {
    /// From the host, for itself.
    Host,
    /// From the host, and what names them is to be sent back.
    Export,
    /// They are on the device already.
    Device(T, u64),
}

/// Whether memory of one size suits weights that need another: little of it is wasted.
fn suits(has: u64, needed: u64) -> bool {
    has >= needed && has - needed <= needed / 8
}

/// No room: all others are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that all weights of the device may take.
    pub budget_bytes: u64,
    /// They may, but calls were lent so much that nothing is left for these.
    pub short: bool,
}

impl<T> Entry<T> {
    /// Whether they may go: no call uses them, and they are not on their way.
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
            room_bytes: u64::MAX,
            used_bytes: 0,
            clock: 0.0,
            uses: 0,
            entries: HashMap::new(),
            idle: IdleWeights::default(),
            leaving: Vec::new(),
            zombies: 0,
            promised: HashMap::new(),
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
        (self.clock + f64::from(uses.min(USES)) * (LATENCY_NS + bytes * BYTE_NS) / bytes, self.uses)
    }

    /// A worker is to have weights of `bytes`. Functions whose weights are to leave all workers are added to
    /// `evicted`.
    pub fn claim(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        bytes: u64,
        when: When,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<Source<T>, NoRoom> {
        let source = match self.entries.get(&function).map(|entry| &entry.state) {
            Some(State::Shared(device)) => {
                let device = device.clone();
                self.touch(function);
                Source::Device(device, self.entries.get(&function).map_or(bytes, |e| e.bytes))
            }
            // It was told to forget them before it could send them.
            Some(State::Loading(loader, _)) if *loader == worker => Source::Export,
            Some(State::Loading(..) | State::Private(_)) => {
                self.make_room(bytes, function, when, evicted)?;
                self.used_bytes += self.entries.get(&function).map_or(0, |entry| entry.bytes);
                Source::Host
            }
            None => {
                self.make_room(bytes, function, when, evicted)?;
                let priority = self.priority(bytes, 1);
                let state = State::Loading(worker, None);
                let holders = Vec::new();
                let (owner, passed_on) = (None, false);
                let (calls, uses, listed_bytes) = (0, 1, None);
                let entry =
                    Entry { bytes, owner, state, holders, calls, uses, passed_on, priority, listed_bytes };
                self.entries.insert(function, entry);
                self.used_bytes += bytes;
                Source::Export
            }
        };
        self.change(function, |entry| {
            entry.holders.push(Holder { who: Who::Worker(worker), own: matches!(source, Source::Host) });
            entry.passed_on |= matches!(source, Source::Device(..));
        });
        if !matches!(source, Source::Device(..)) {
            self.counts.loads += 1;
            self.counts.loaded_bytes += bytes;
            self.counts.ahead += u64::from(when == When::Soon);
        }
        Ok(source)
    }

    /// The memory of weights that were just evicted is for what a worker loads in their place, where it suits, that worker
    /// made it and `has` them, and no other ever had it: whose they are. They need not be told to leave.
    pub fn take_over(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        evicted: &mut Vec<FunctionId>,
        has: impl Fn(FunctionId) -> bool,
    ) -> Option<FunctionId> {
        let entry = self.entries.get_mut(&function)?;
        let State::Loading(loader, known @ None) = &mut entry.state else { return None };
        if *loader != worker {
            return None;
        }
        let is_only = |holders: &[Holder]| matches!(holders, [Holder { who: Who::Worker(only), own: false }] if *only == worker);
        let at = self.leaving.iter().position(|leaving| {
            evicted.contains(&leaving.function)
                && leaving.device.is_some()
                && is_only(&leaving.holders)
                && suits(leaving.bytes, entry.bytes)
                && has(leaving.function)
        })?;
        let taken = self.leaving.swap_remove(at);
        *known = taken.device;
        self.used_bytes = self.used_bytes - entry.bytes + taken.bytes;
        entry.bytes = taken.bytes;
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
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), NoRoom> {
        let mut stay = vec![keep];
        if when == When::Soon {
            stay.extend(self.ahead.values().flatten());
            stay.sort_unstable();
            stay.dedup();
        }
        let listed = |function| self.entries.get(function).and_then(|entry| entry.listed_bytes);
        let free = self.idle.bytes() - stay.iter().filter_map(listed).sum::<u64>();
        let least = (self.used_bytes - free).saturating_add(bytes);
        let most = self.budget_bytes.min(self.used_bytes.saturating_add(self.room_bytes));
        if least > most {
            return Err(NoRoom { budget_bytes: self.budget_bytes, short: least <= self.budget_bytes });
        }
        while self.used_bytes + bytes > most && self.evict_lowest(&stay, evicted) {}
        Ok(())
    }

    /// Evicts the one of lowest priority of those that may go and need not `stay`; whether there was one.
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

    /// What may be taken from now on beside what is there already.
    pub fn set_room(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
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

    /// Device memory that weights of one owner's functions take, what is promised included.
    pub fn used_by(&self, owner: TenantId) -> u64 {
        let own = self.entries.values().filter(|entry| entry.owner == Some(owner));
        let promised = self.promised.values().filter(|(theirs, _)| *theirs == owner);
        own.map(Entry::taken_bytes).sum::<u64>() + promised.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Promises a worker that weights of `bytes` fit into what their owner may have, evicting others of the same
    /// owner; else says how much was missing. The promise holds until [`Weights::settled`].
    pub fn reserve(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        (owner, bytes): (TenantId, u64),
        room: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), u64> {
        let is_there = self.entries.get(&function).is_some_and(|entry| match entry.state {
            State::Shared(_) => true,
            State::Loading(loader, _) | State::Private(loader) => {
                loader == worker || entry.holders.iter().any(|holder| holder.who == Who::Worker(worker))
            }
        });
        if is_there {
            return Ok(());
        }
        let may_go = |(other, entry): &(&FunctionId, &Entry<T>)| {
            **other != function && entry.owner == Some(owner) && entry.is_idle()
        };
        let free: u64 = self.entries.iter().filter(may_go).map(|(_, entry)| entry.taken_bytes()).sum();
        if (self.used_by(owner) - free).saturating_add(bytes) > room {
            return Err(bytes);
        }
        while self.used_by(owner) + bytes > room {
            let oldest = self.entries.iter().filter(may_go).min_by_key(|(_, entry)| entry.priority.1);
            let Some(function) = oldest.map(|(function, _)| *function) else { break };
            self.forget(function);
            self.counts.evictions += 1;
            evicted.push(function);
        }
        self.promised.insert((function, worker), (owner, bytes));
        Ok(())
    }

    /// What was promised to a worker is loaded, or not wanted any more.
    pub fn settled(&mut self, function: FunctionId, worker: WorkerId) {
        self.promised.remove(&(function, worker));
    }

    fn touch(&mut self, function: FunctionId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        entry.uses = entry.uses.saturating_add(1);
        let (bytes, uses) = (entry.bytes, entry.uses);
        let priority = self.priority(bytes, uses);
        self.change(function, |entry| entry.priority = priority);
    }

    /// Whether a worker was asked to load weights for all.
    pub fn is_loader(&self, function: FunctionId, worker: WorkerId) -> bool {
        let state = self.entries.get(&function).map(|entry| &entry.state);
        matches!(state, Some(State::Loading(loader, _)) if *loader == worker)
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
        let is_it = |holder: &Holder| holder.own && holder.who == Who::Worker(worker);
        match device.or(known.take()) {
            Some(device) if *loader == worker => {
                entry.state = State::Shared(device);
                self.used_bytes = self.used_bytes - entry.bytes + bytes;
                entry.bytes = bytes;
                true
            }
            // For itself, while the other one still loads.
            None => *loader != worker && entry.holders.iter().any(is_it),
            Some(_) => false,
        }
    }

    /// What a worker was to load does not: the next one that needs it loads it afresh.
    pub fn not_loaded(&mut self, function: FunctionId, worker: WorkerId) {
        if self.is_loader(function, worker) {
            self.forget(function);
        }
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
        self.change(function, |entry| entry.calls = entry.calls.saturating_sub(1));
    }

    /// The function is gone, or its weights do not load: the next worker that needs them loads them afresh.
    pub fn forget(&mut self, function: FunctionId) {
        self.unlist(function);
        if let Some(entry) = self.entries.remove(&function) {
            self.used_bytes -= entry.taken_bytes();
            let device = match entry.state {
                State::Loading(_, device) => device,
                State::Private(_) => None,
                State::Shared(device) => Some(device),
            };
            let device = device.filter(|_| !entry.passed_on);
            self.leave(function, entry.bytes, entry.holders, device);
        }
    }

    fn leave(&mut self, function: FunctionId, bytes: u64, holders: Vec<Holder>, device: Option<T>) {
        if !holders.is_empty() {
            self.leaving.push(Leaving { function, bytes, holders, device });
        }
    }

    /// A worker forgot one function, as often as it was sent to it: the oldest first.
    pub fn uninstalled(&mut self, function: FunctionId, worker: WorkerId) {
        let is_it = |holder: &Holder| holder.who == Who::Worker(worker);
        for (at, leaving) in self.leaving.iter_mut().enumerate() {
            if leaving.function == function
                && let Some(holder) = leaving.holders.iter().position(is_it)
            {
                leaving.holders.remove(holder);
                if leaving.holders.is_empty() {
                    self.leaving.remove(at);
                }
                return;
            }
        }
        let Some(holder) = self.entries.get(&function).map(|entry| entry.holders.iter().position(is_it))
        else {
            return;
        };
        self.lets_go(function, worker, holder);
    }

    /// A worker's holder goes, the one at `holder`.
    fn lets_go(&mut self, function: FunctionId, worker: WorkerId, holder: Option<usize>) {
        let own_bytes = self.change(function, |entry| {
            let own = holder.is_some_and(|at| entry.holders.remove(at).own);
            own.then_some(entry.bytes)
        });
        match own_bytes.flatten() {
            Some(bytes) => self.used_bytes -= bytes,
            None => self.may_be_gone(function, worker),
        }
    }

    /// A worker does not have weights, or has them once less: if it was to load them for all, they will not come.
    fn may_be_gone(&mut self, function: FunctionId, worker: WorkerId) {
        let Some(entry) = self.entries.get(&function) else { return };
        let is_it = |holder: &Holder| holder.who == Who::Worker(worker);
        let loads =
            matches!(entry.state, State::Loading(loader, _) | State::Private(loader) if loader == worker);
        if loads && !entry.holders.iter().any(is_it) {
            self.loader_gone(function);
        }
    }

    /// What a worker claimed last was never sent to it.
    pub fn not_sent(&mut self, function: FunctionId, worker: WorkerId) {
        let Some(entry) = self.entries.get(&function) else { return };
        let is_it = |holder: &Holder| holder.who == Who::Worker(worker);
        let holder = entry.holders.iter().rposition(is_it);
        self.lets_go(function, worker, holder);
    }

    /// A worker's process is gone, with what it did not send. What it had counts until it is reaped.
    pub fn worker_gone(&mut self, worker: WorkerId) -> ZombieId {
        self.zombies += 1;
        self.ahead.remove(&worker);
        let zombie = ZombieId(self.zombies);
        let holders = self.leaving.iter_mut().flat_map(|leaving| &mut leaving.holders);
        for holder in holders.chain(self.entries.values_mut().flat_map(|entry| &mut entry.holders)) {
            if holder.who == Who::Worker(worker) {
                holder.who = Who::Zombie(zombie);
            }
        }
        let functions: Vec<FunctionId> = self.entries.keys().copied().collect();
        for function in functions {
            self.unlist(function);
            let Some(entry) = self.entries.get_mut(&function) else { continue };
            // Copies of its own are never shared.
            let (own, others) = entry
                .holders
                .iter()
                .copied()
                .partition::<Vec<_>, _>(|holder| holder.own && holder.who == Who::Zombie(zombie));
            entry.holders = others;
            let bytes = entry.bytes;
            self.used_bytes -= bytes * own.len() as u64;
            let loads =
                matches!(entry.state, State::Loading(loader, _) | State::Private(loader) if loader == worker);
            self.leave(function, bytes, own, None);
            self.list(function);
            if loads {
                self.loader_gone(function);
            }
        }
        zombie
    }

    /// The worker that loads a function's weights for all will not send them.
    fn loader_gone(&mut self, function: FunctionId) {
        self.unlist(function);
        let Some(entry) = self.entries.get_mut(&function) else { return };
        let other = entry.holders.iter_mut().find_map(|holder| match holder.who {
            Who::Worker(worker) if holder.own => Some((holder, worker)),
            _ => None,
        });
        let Some((holder, other)) = other else { return self.forget(function) };
        // Another worker's own copy is the one that counts; it cannot be shared.
        holder.own = false;
        entry.state = State::Private(other);
        let bytes = entry.bytes;
        let gone = entry.holders.extract_if(.., |holder| !holder.own && holder.who != Who::Worker(other));
        let gone = gone.collect();
        self.used_bytes -= bytes;
        self.leave(function, bytes, gone, None);
        self.list(function);
    }

    /// Nothing is left of a process.
    pub fn reaped(&mut self, zombie: ZombieId) {
        let is_other = |holder: &Holder| holder.who != Who::Zombie(zombie);
        self.leaving.retain_mut(|leaving| {
            leaving.holders.retain(is_other);
            !leaving.holders.is_empty()
        });
        self.entries.values_mut().for_each(|entry| entry.holders.retain(is_other));
    }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
