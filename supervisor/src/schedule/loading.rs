//! How calls get their functions' weights: room is found, and what gives way is told to, in the decision that starts a
//! call. What workers say of weights later is taken in here, too.

use super::asks::QueueKey;
use super::book::{LanePlace, Need, Short};
use super::events::Loaded;
use super::limits::LOADED_AHEAD;
use super::scheduler::Scheduler;
use super::types::{Action, Call, CallId, CallSpec, Command, Domain, Verdict};
use super::weights::{NoRoom, Source, Supply, When};
use super::workers::State;
use crate::ids::{FunctionId, TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// How a worker gets the weights that a call needs which is about to start there; none if it has them.
    pub(super) fn supply_for(
        &mut self,
        worker: WorkerId,
        id: CallId,
        place: LanePlace,
    ) -> Result<Option<Supply<C::Memory>>, Short> {
        let Some(spec) = self.calls.get(id).map(|entry| **entry) else { return Ok(None) };
        let has = self.book.weights.has(spec.function, worker);
        let load = match has {
            true => None,
            false => Some(self.claim(worker, spec, When::Now, place.room_bytes, place.own_bytes)?),
        };
        self.book.weights.begin(spec.function, has);
        Ok(load)
    }

    /// Takes room for a call's weights in a worker, for which others that no call uses give way, and `room_bytes` of memory that is free.
    /// The caller is lent `own_bytes` for the call.
    fn claim(
        &mut self,
        worker: WorkerId,
        spec: CallSpec,
        when: When,
        room_bytes: u64,
        own_bytes: u64,
    ) -> Result<Supply<C::Memory>, Short> {
        let CallSpec { function, domain: Domain { owner, caller }, weight_bytes: bytes, .. } = spec;
        let lent_bytes = if owner == caller { own_bytes } else { 0 };
        let mut evicted = Vec::new();
        let before = self.book.weights.used_bytes();
        if let Some(most) = self.book.most_bytes(owner)
            && !self.book.weights.is_on_device(function)
        {
            let room = most.saturating_sub(self.book.bytes_of(owner, &self.workers) + lent_bytes);
            self.book.weights.fit_owner(owner, bytes, room, &mut evicted).map_err(Short::OwnerLimit)?;
        }
        // What gave way for the owner's sake makes room, too.
        let room_bytes = match self.shape.weights_take_memory {
            true => room_bytes.saturating_add(before - self.book.weights.used_bytes()),
            false => u64::MAX,
        };
        let claimed = self.book.weights.claim(function, worker, bytes, when, room_bytes, &mut evicted);
        let supply = claimed.map(|source| {
            self.book.weights.own(function, owner);
            let instead_of = match source {
                Source::Export => self.book.weights.take_over(function, worker, &mut evicted),
                Source::Host | Source::Device(..) => None,
            };
            Supply { source, instead_of }
        });
        self.unload(&evicted);
        supply.map_err(|why| match why {
            NoRoom::InUse => Short::Crowded,
            NoRoom::Short => Short::Line,
        })
    }

    /// Weights were given up: who has them is told.
    fn unload(&mut self, functions: &[FunctionId]) {
        for &function in functions {
            for worker in self.book.weights.tell_left(function) {
                self.tell(worker, Command::Unload { function });
            }
        }
    }

    /// Weights that no call uses give way, until so much is free soon. How much of it is.
    pub(super) fn give_up_weights(&mut self, bytes: u64) -> u64 {
        if bytes == 0 || !self.shape.weights_take_memory {
            return 0;
        }
        let mut evicted = Vec::new();
        let before = self.book.weights.used_bytes();
        self.book.weights.give_up(bytes, &mut evicted);
        self.unload(&evicted);
        before - self.book.weights.used_bytes()
    }

    /// Weights of a caller's own functions that no call uses give way to the caller's call in a worker, where its limit is too
    /// small for both. True if the call fits then.
    pub(super) fn give_up_own_weights(&mut self, worker: WorkerId, need: Need) -> bool {
        let excess = self.book.excess_bytes(&self.workers, worker, need);
        if excess == 0 {
            return false;
        }
        let Some(room) = self.book.weights.used_by(need.payer).checked_sub(excess) else { return false };
        let mut evicted = Vec::new();
        let fits = self.book.weights.fit_owner(need.payer, 0, room, &mut evicted).is_ok();
        self.unload(&evicted);
        fits
    }

    /// Has a worker load the weights of calls that are about to start there, where they are not there and there is room.
    /// Those of an owner that may have so much only are loaded when they are needed.
    pub(super) fn look_ahead(&mut self, worker: WorkerId, domain: Domain) {
        if self.book.weights.is_empty() || self.book.most_bytes(domain.owner).is_some() {
            return;
        }
        let calls = &self.calls;
        let next = self.queues.next_few(QueueKey::Of(domain), LOADED_AHEAD);
        let next = next.filter_map(|id| calls.get(id)).filter(|entry| entry.weight_bytes > 0);
        if next.clone().all(|entry| self.book.weights.has(entry.function, worker)) {
            self.book.weights.expect(worker, Vec::new());
            return;
        }
        let next: Vec<(C, CallSpec)> = next.map(|entry| (entry.call.clone(), **entry)).collect();
        self.book.weights.expect(worker, next.iter().map(|(_, spec)| spec.function).collect());
        for (call, spec) in next {
            if self.book.weights.has(spec.function, worker) {
                continue;
            }
            // Weights that gave way to a call would come again, in place of the call, and give way again.
            let room_bytes = if self.is_memory_awaited() { 0 } else { self.book.free_bytes() };
            if let Ok(load) = self.claim(worker, spec, When::Soon, room_bytes, 0) {
                self.tell(worker, Command::Load { call, load });
            }
        }
    }

    /// The same, for all workers of a domain.
    pub(super) fn look_ahead_for(&mut self, domain: Domain) {
        for worker in self.serving(domain) {
            self.look_ahead(worker, domain);
        }
    }

    /// A call that waits is refused, since its caller or the owner of its function may not have what it needs.
    pub(super) fn refuse_memory(&mut self, id: CallId, is_caller: bool, has_bytes: u64, needs_bytes: u64) {
        let Some(entry) = self.unqueue(id) else { return };
        self.judge(&entry, Verdict::Neither);
        let held_up = entry.wants_device();
        self.actions.push(Action::OverQuota { is_caller, has_bytes, needs_bytes, call: entry.call });
        self.waits_no_more(held_up);
    }

    pub(super) fn loaded(&mut self, loaded: Loaded<C::Memory>) -> bool {
        let Loaded { worker, function, memory, bytes } = loaded;
        let as_told = self.book.weights.loaded(function, worker, memory, bytes);
        // Weights on their way could not give way.
        self.weights_moved(self.book.weights.owner(function));
        as_told
    }

    pub(super) fn not_sent(&mut self, worker: WorkerId, function: FunctionId) {
        let owner = self.book.weights.owner(function);
        self.book.weights.not_sent(function, worker);
        self.weights_moved(owner);
    }

    /// Weights do not load in a worker, which has them loaded afresh by its next call. Nothing is known of other workers: if this
    /// one was to load them for all, the weights go once nothing is left in it, or another worker's copy becomes the one that
    /// counts.
    pub(super) fn not_loaded(&mut self, worker: WorkerId, function: FunctionId) {
        if self.book.weights.told(function, worker) {
            self.tell(worker, Command::Unload { function });
        }
    }

    pub(super) fn weights_left(&mut self, worker: WorkerId, function: FunctionId) {
        let owner = self.book.weights.owner(function);
        self.book.weights.uninstalled(function, worker);
        self.weights_moved(owner);
    }

    pub(super) fn uninstall_for(&mut self, domain: Domain, function: FunctionId) {
        for worker in self.serving(domain) {
            self.uninstall(worker, function);
        }
    }

    pub(super) fn function_gone(&mut self, function: FunctionId) {
        self.quarantine.forget(function);
        self.run_times.forget(function);
        self.apart.forget(function);
        self.unshared.forget(function);
        for worker in WorkerId::first(self.workers.len()) {
            if matches!(self.workers[worker].state, State::Free | State::Bound(_)) {
                self.uninstall(worker, function);
            }
        }
        self.forget_weights(function);
    }

    /// A worker is to forget a function, its weights included.
    pub(super) fn uninstall(&mut self, worker: WorkerId, function: FunctionId) {
        self.book.weights.told(function, worker);
        self.tell(worker, Command::Uninstall { function });
    }

    /// A function's weights leave all workers. What no process has of them is free at once.
    fn forget_weights(&mut self, function: FunctionId) {
        let owner = self.book.weights.owner(function);
        self.book.weights.forget(function);
        self.unload(&[function]);
        self.weights_moved(owner);
    }

    /// Weights of an owner came or went, or may give way now: who waits for memory, or for what the owner may have, may be next.
    fn weights_moved(&mut self, owner: Option<TenantId>) {
        self.memory_came();
        owner.into_iter().for_each(|owner| self.feed_limited(owner));
    }
}
