//! Which functions' weights stay on a device: decisions only.
//!
//! GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997): a function's
//! priority is the clock plus what a reload costs per byte; the lowest goes, and the clock moves up to
//! its priority, so that functions that are not used sink.

use std::collections::HashMap;

use crate::ids::{FunctionId, TenantId, WorkerId};

/// What a reload costs however small the weights are, in nanoseconds.
const LATENCY_NS: f64 = 200_000.0;
/// What it costs for each byte: pinned copies run at about 50 GB/s.
const BYTE_NS: f64 = 0.02;

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
    /// What no worker gets any more and some process still has.
    leaving: Vec<Leaving>,
    zombies: u64,
    /// What workers are about to load, by function and worker: its owner and bytes.
    promised: HashMap<(FunctionId, WorkerId), (TenantId, u64)>,
}

/// Who has weights mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Worker(WorkerId),
    /// A process that is not reaped.
    Zombie(ZombieId),
}

/// Names a process that is gone and not reaped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZombieId(u64);

/// One that has weights mapped.
#[derive(Debug, Clone, Copy)]
struct Holder {
    who: Who,
    /// It loaded them for itself, because they were not shared yet.
    own: bool,
}

/// Weights that were given up, until all workers confirmed that they forgot them.
#[derive(Debug)]
struct Leaving {
    function: FunctionId,
    bytes: u64,
    holders: Vec<Holder>,
}

impl Leaving {
    fn taken_bytes(&self) -> u64 {
        let own = own_copies(&self.holders);
        let shared = u64::from(self.holders.len() as u64 > own);
        self.bytes.saturating_mul(own + shared)
    }
}

fn own_copies(holders: &[Holder]) -> u64 {
    holders.iter().filter(|holder| holder.own).count() as u64
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
    /// Of equal priority, who was used longest ago goes first.
    priority: (f64, u64),
}

#[derive(Debug)]
enum State<T> {
    /// A worker loads them, and sends back what names them.
    Loading(WorkerId),
    Shared(T),
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

/// No room: all others are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that all weights of the device may take.
    pub budget_bytes: u64,
    /// They may, but calls were lent so much that nothing is left for these.
    pub short: bool,
}

impl<T> Entry<T> {
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
            leaving: Vec::new(),
            zombies: 0,
            promised: HashMap::new(),
        }
    }

    /// Device memory of the weights that are there.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Device memory that is taken: also by weights that were given up and not forgotten yet.
    pub fn held_bytes(&self) -> u64 {
        self.used_bytes + self.leaving.iter().map(Leaving::taken_bytes).sum::<u64>()
    }

    fn priority(&mut self, bytes: u64) -> (f64, u64) {
        self.uses += 1;
        let bytes = bytes.max(1) as f64;
        (self.clock + (LATENCY_NS + bytes * BYTE_NS) / bytes, self.uses)
    }

    /// A worker installs a function whose weights take `bytes`. Functions that are to be uninstalled
    /// everywhere are added to `evicted`.
    pub fn claim(
        &mut self,
        function: FunctionId,
        worker: WorkerId,
        bytes: u64,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<Source<T>, NoRoom> {
        let source = match self.entries.get(&function).map(|entry| &entry.state) {
            Some(State::Shared(device)) => {
                let device = device.clone();
                self.touch(function);
                Source::Device(device, self.entries.get(&function).map_or(bytes, |e| e.bytes))
            }
            // It was told to forget them before it could send them.
            Some(State::Loading(loader)) if *loader == worker => Source::Export,
            Some(State::Loading(_)) => {
                self.make_room(bytes, function, evicted)?;
                self.used_bytes += self.entries.get(&function).map_or(0, |entry| entry.bytes);
                Source::Host
            }
            None => {
                self.make_room(bytes, function, evicted)?;
                let priority = self.priority(bytes);
                let state = State::Loading(worker);
                let entry = Entry { bytes, owner: None, state, holders: Vec::new(), calls: 0, priority };
                self.entries.insert(function, entry);
                self.used_bytes += bytes;
                Source::Export
            }
        };
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.holders.push(Holder { who: Who::Worker(worker), own: matches!(source, Source::Host) });
        }
        Ok(source)
    }

    /// Evicts until `bytes` fit beside the rest; nothing if they never would.
    fn make_room(
        &mut self,
        bytes: u64,
        keep: FunctionId,
        evicted: &mut Vec<FunctionId>,
    ) -> Result<(), NoRoom> {
        let may_go = |(function, entry): &(&FunctionId, &Entry<T>)| **function != keep && entry.calls == 0;
        let free: u64 = self.entries.iter().filter(may_go).map(|(_, entry)| entry.taken_bytes()).sum();
        let least = (self.used_bytes - free).saturating_add(bytes);
        let most = self.budget_bytes.min(self.used_bytes.saturating_add(self.room_bytes));
        if least > most {
            return Err(NoRoom { budget_bytes: self.budget_bytes, short: least <= self.budget_bytes });
        }
        while self.used_bytes + bytes > most && self.evict_lowest(may_go, evicted) {}
        Ok(())
    }

    /// Evicts the one of lowest priority of those that may go; whether there was one.
    fn evict_lowest(
        &mut self,
        may_go: impl Fn(&(&FunctionId, &Entry<T>)) -> bool,
        evicted: &mut Vec<FunctionId>,
    ) -> bool {
        let candidates = self.entries.iter().filter(may_go);
        let lowest = candidates.min_by(|(_, a), (_, b)| {
            a.priority.0.total_cmp(&b.priority.0).then(a.priority.1.cmp(&b.priority.1))
        });
        let Some((function, priority)) = lowest.map(|(f, entry)| (*f, entry.priority)) else { return false };
        self.clock = priority.0;
        self.forget(function);
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
        while self.used_bytes > least && self.evict_lowest(|(_, entry)| entry.calls == 0, evicted) {}
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
            State::Loading(loader) => {
                loader == worker || entry.holders.iter().any(|holder| holder.who == Who::Worker(worker))
            }
        });
        if is_there {
            return Ok(());
        }
        let may_go = |(other, entry): &(&FunctionId, &Entry<T>)| {
            **other != function && entry.owner == Some(owner) && entry.calls == 0
        };
        let free: u64 = self.entries.iter().filter(may_go).map(|(_, entry)| entry.taken_bytes()).sum();
        if (self.used_by(owner) - free).saturating_add(bytes) > room {
            return Err(bytes);
        }
        while self.used_by(owner) + bytes > room {
            let oldest = self.entries.iter().filter(may_go).min_by_key(|(_, entry)| entry.priority.1);
            let Some(function) = oldest.map(|(function, _)| *function) else { break };
            self.forget(function);
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
        let Some(bytes) = self.entries.get(&function).map(|entry| entry.bytes) else { return };
        let priority = self.priority(bytes);
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.priority = priority;
        }
    }

    /// What a worker loaded can be shared now. False if that worker was not asked for it; if it was
    /// evicted meanwhile, nothing happens.
    pub fn exported(&mut self, function: FunctionId, worker: WorkerId, device: T, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&function) else { return true };
        match entry.state {
            State::Loading(loader) if loader == worker => {
                entry.state = State::Shared(device);
                self.used_bytes = self.used_bytes - entry.bytes + bytes;
                entry.bytes = bytes;
                true
            }
            State::Shared(_) => true,
            State::Loading(_) => false,
        }
    }

    /// A call of the function is in a worker.
    pub fn begin(&mut self, function: FunctionId) {
        self.touch(function);
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.calls += 1;
        }
    }

    /// It is not any more.
    pub fn end(&mut self, function: FunctionId) {
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.calls = entry.calls.saturating_sub(1);
        }
    }

    /// The function is gone, or its weights do not load: the next worker that needs them loads them afresh.
    pub fn forget(&mut self, function: FunctionId) {
        if let Some(entry) = self.entries.remove(&function) {
            self.used_bytes -= entry.taken_bytes();
            self.leave(function, entry.bytes, entry.holders);
        }
    }

    fn leave(&mut self, function: FunctionId, bytes: u64, holders: Vec<Holder>) {
        if !holders.is_empty() {
            self.leaving.push(Leaving { function, bytes, holders });
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
        if let Some(entry) = self.entries.get_mut(&function)
            && let Some(holder) = entry.holders.iter().position(is_it)
            && entry.holders.remove(holder).own
        {
            self.used_bytes -= entry.bytes;
        }
    }

    /// What a worker claimed last was never sent to it.
    pub fn not_sent(&mut self, function: FunctionId, worker: WorkerId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        let is_it = |holder: &Holder| holder.who == Who::Worker(worker);
        if let Some(holder) = entry.holders.iter().rposition(is_it)
            && entry.holders.remove(holder).own
        {
            self.used_bytes -= entry.bytes;
        } else if matches!(entry.state, State::Loading(loader) if loader == worker)
            && !entry.holders.iter().any(is_it)
        {
            self.loader_gone(function);
        }
    }

    /// A worker's process is gone, with what it did not send. What it had counts until it is reaped.
    pub fn worker_gone(&mut self, worker: WorkerId) -> ZombieId {
        self.zombies += 1;
        let zombie = ZombieId(self.zombies);
        let holders = self.leaving.iter_mut().flat_map(|leaving| &mut leaving.holders);
        for holder in holders.chain(self.entries.values_mut().flat_map(|entry| &mut entry.holders)) {
            if holder.who == Who::Worker(worker) {
                holder.who = Who::Zombie(zombie);
            }
        }
        let functions: Vec<FunctionId> = self.entries.keys().copied().collect();
        for function in functions {
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
            let loads = matches!(entry.state, State::Loading(loader) if loader == worker);
            self.leave(function, bytes, own);
            if loads {
                self.loader_gone(function);
            }
        }
        zombie
    }

    /// The worker that loads a function's weights for all will not send them.
    fn loader_gone(&mut self, function: FunctionId) {
        let Some(entry) = self.entries.get_mut(&function) else { return };
        let other = entry.holders.iter_mut().find_map(|holder| match holder.who {
            Who::Worker(worker) if holder.own => Some((holder, worker)),
            _ => None,
        });
        let Some((holder, other)) = other else { return self.forget(function) };
        // Another worker's own copy is the one that counts; it cannot be shared.
        holder.own = false;
        entry.state = State::Loading(other);
        let bytes = entry.bytes;
        let gone = entry.holders.extract_if(.., |holder| !holder.own && holder.who != Who::Worker(other));
        let gone = gone.collect();
        self.used_bytes -= bytes;
        self.leave(function, bytes, gone);
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
