//! How weights leave: workers are told to let them go and say that they did, or their processes end. Weights that were given up take
//! memory until no worker, and nothing that is left of a process that is gone, has them mapped.

use super::{State, Weights};
use crate::ids::{FunctionId, Generation, WorkerId};

/// Who has weights mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Worker(WorkerId),
    /// A process of that worker that is gone and not reaped.
    Zombie(WorkerId, Generation),
}

/// One that has weights mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightHolder {
    pub(super) who: Who,
    /// True if the worker loaded a copy of its own, before the weights were shared.
    pub(super) own: bool,
    /// True if it was told to let them go, and did not say that it did.
    pub(super) told: bool,
}

impl WeightHolder {
    /// A worker is told to load them, for itself or for all.
    pub(super) fn new(worker: WorkerId, own: bool) -> Self {
        Self { who: Who::Worker(worker), own, told: false }
    }

    /// True if that worker has them and was not told to let them go.
    pub(super) fn is_kept_by(&self, worker: WorkerId) -> bool {
        self.who == Who::Worker(worker) && !self.told
    }
}

/// Weights that were given up, until the last worker confirms that.
#[derive(Debug)]
pub(super) struct Leaving<T> {
    pub(super) function: FunctionId,
    pub(super) bytes: u64,
    pub(super) holders: Vec<WeightHolder>,
    /// The name of the memory, if it was shared and no process but its maker ever mapped it.
    pub(super) device: Option<T>,
}

impl<T> Leaving<T> {
    /// Device memory that they take.
    pub(super) fn taken_bytes(&self) -> u64 {
        let own = own_copies(&self.holders);
        let shared = u64::from(self.holders.len() as u64 > own);
        self.bytes.saturating_mul(own + shared)
    }
}

/// How many loaded them for themselves.
pub(super) fn own_copies(holders: &[WeightHolder]) -> u64 {
    holders.iter().filter(|holder| holder.own).count() as u64
}

impl<T: Clone> Weights<T> {
    /// A worker is told to let a function's weights go. True if it has them and was not told before.
    pub fn told(&mut self, function: FunctionId, worker: WorkerId) -> bool {
        let Some(entry) = self.entries.get_mut(&function) else { return false };
        let mut kept = entry.holders.iter_mut().filter(|holder| holder.is_kept_by(worker));
        kept.next().map(|holder| holder.told = true).is_some()
    }

    /// Workers that have weights of a function that were given up, and were not told so: they are told now.
    pub fn tell_left(&mut self, function: FunctionId) -> Vec<WorkerId> {
        let leaving = self.leaving.iter_mut().filter(|leaving| leaving.function == function);
        let holders = leaving.flat_map(|leaving| &mut leaving.holders);
        let tell = |holder: &mut WeightHolder| match holder.who {
            Who::Worker(worker) => (!std::mem::replace(&mut holder.told, true)).then_some(worker),
            Who::Zombie(..) => None,
        };
        holders.filter_map(tell).collect()
    }

    /// The function is gone, or its weights give way: the next worker that needs them loads them afresh.
    pub fn forget(&mut self, function: FunctionId) {
        self.unlist(function);
        if let Some(entry) = self.entries.remove(&function) {
            self.used_bytes -= entry.taken_bytes();
            if entry.calls > 0 {
                self.outliving.insert(function, entry.calls);
            }
            let device = match entry.state {
                State::Loading(_, device) => device,
                State::Private(_) => None,
                State::Shared(device) => Some(device),
            };
            let device = match entry.passed_on {
                true => {
                    self.released.extend(device);
                    None
                }
                false => device,
            };
            self.leave(function, entry.bytes, entry.holders, device);
        }
    }

    fn leave(&mut self, function: FunctionId, bytes: u64, holders: Vec<WeightHolder>, device: Option<T>) {
        match holders.is_empty() {
            true => self.released.extend(device),
            false => self.leaving.push(Leaving { function, bytes, holders, device }),
        }
    }

    /// A worker forgot one function, as often as it was sent to it: the oldest first.
    pub fn uninstalled(&mut self, function: FunctionId, worker: WorkerId) {
        let is_it = |holder: &WeightHolder| holder.who == Who::Worker(worker);
        for (at, leaving) in self.leaving.iter_mut().enumerate() {
            if leaving.function == function
                && let Some(holder) = leaving.holders.iter().position(is_it)
            {
                leaving.holders.remove(holder);
                if leaving.holders.is_empty() {
                    self.released.extend(self.leaving.remove(at).device);
                }
                return;
            }
        }
        let first = |holders: &[WeightHolder]| {
            holders
                .iter()
                .position(|holder| is_it(holder) && holder.told)
                .or_else(|| holders.iter().position(is_it))
        };
        let Some(holder) = self.entries.get(&function).map(|entry| first(&entry.holders)) else { return };
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
        let is_it = |holder: &WeightHolder| holder.who == Who::Worker(worker);
        let loads =
            matches!(entry.state, State::Loading(loader, _) | State::Private(loader) if loader == worker);
        if loads && !entry.holders.iter().any(is_it) {
            self.loader_gone(function);
        }
    }

    /// What a worker claimed last was never sent to it.
    pub fn not_sent(&mut self, function: FunctionId, worker: WorkerId) {
        let holders = self.entries.get(&function).map(|entry| &entry.holders);
        match holders.and_then(|holders| holders.iter().position(|holder| holder.is_kept_by(worker))) {
            Some(holder) => self.lets_go(function, worker, Some(holder)),
            // They were given up meanwhile, and the worker has nothing to say of that.
            None => self.uninstalled(function, worker),
        }
    }

    /// A worker's process is gone, with what it did not send. What it had counts until [`Weights::reaped`].
    pub fn worker_gone(&mut self, worker: WorkerId, generation: Generation) {
        self.ahead.remove(&worker);
        let zombie = Who::Zombie(worker, generation);
        let holders = self.leaving.iter_mut().flat_map(|leaving| &mut leaving.holders);
        for holder in holders.chain(self.entries.values_mut().flat_map(|entry| &mut entry.holders)) {
            if holder.who == Who::Worker(worker) {
                holder.who = zombie;
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
                .partition::<Vec<_>, _>(|holder| holder.own && holder.who == zombie);
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
    pub fn reaped(&mut self, worker: WorkerId, generation: Generation) {
        let is_other = |holder: &WeightHolder| holder.who != Who::Zombie(worker, generation);
        let released = &mut self.released;
        self.leaving.retain_mut(|leaving| {
            leaving.holders.retain(is_other);
            if leaving.holders.is_empty() {
                released.extend(leaving.device.take());
            }
            !leaving.holders.is_empty()
        });
        self.entries.values_mut().for_each(|entry| entry.holders.retain(is_other));
    }
}
