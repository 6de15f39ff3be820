//! How calls start: a call, or a group of calls, finds a lane that has the memory, and the lane's worker is told. A call that
//! finds no memory waits for some (`reclaim`).

use super::asks::QueueKey;
use super::book::{LanePlace, Need, Short};
use super::scheduler::Scheduler;
use super::types::{Call, CallId, Command, Job};
use super::weights::Supply;
use super::workers::State;
use crate::ids::{TenantId, WorkerId};

/// Calls that are about to run in one lane; from then on they are a [`Job`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// The call that is first in its queue.
    pub(super) first: CallId,
    /// Calls behind that one in the same queue.
    pub(super) others: Vec<CallId>,
}

impl Group {
    /// A call by itself.
    pub(super) fn of(first: CallId) -> Self {
        Self { first, others: Vec::new() }
    }

    /// All its calls, in the order in which they will lie side by side.
    fn calls(&self) -> impl Iterator<Item = CallId> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// Where a group starts, and how its worker gets the weights of its function, if it has to load them.
#[derive(Debug)]
pub(super) struct Fit<M> {
    place: LanePlace,
    /// What the group takes of the device's memory.
    need: Need,
    load: Option<Supply<M>>,
}

impl<C: Call> Scheduler<C> {
    /// A call that does not wait yet starts in a worker that has room for it, or waits for memory.
    pub(super) fn start_or_wait(&mut self, worker: WorkerId, id: CallId) {
        let Some(queue) = self.calls.get(id).map(|entry| entry.queue) else { return };
        if let QueueKey::Of(domain) = queue
            && self.workers[worker].state == State::Free
        {
            self.bind(worker, domain);
        }
        let group = Group::of(id);
        match self.fit(worker, &group) {
            Ok(fit) => self.start(worker, fit, &group),
            Err(short) => {
                self.enqueue(id);
                self.wait_for_memory(worker, id, short);
            }
        }
    }

    /// The first call of a queue starts in a worker that has room for it, with as many calls behind it as fit. True if the queue's next
    /// call may start, too: the first one started or was refused; else it waits for memory.
    pub(super) fn start_waiting(&mut self, worker: WorkerId, id: CallId) -> bool {
        let Some(queue) = self.calls.get(id).map(|entry| entry.queue) else { return false };
        let mut group = self.group_of(id);
        let fit = loop {
            match self.fit(worker, &group) {
                Err(_) if !group.others.is_empty() => group.others.truncate(group.others.len() / 2),
                fit => break fit,
            }
        };
        let has_memory = self.queues.asks.memory() == Some(queue);
        match fit {
            Ok(fit) => {
                if has_memory || matches!(queue, QueueKey::Shared(_)) {
                    self.queues.asks.serve(queue.payer());
                }
                // The next call asks again, if it needs more.
                self.asks_no_more(queue);
                for (id, order_ns) in
                    group.calls().filter_map(|id| Some((id, self.calls.get(id)?.order_ns())))
                {
                    self.queues.started(queue, id, order_ns);
                }
                self.start(worker, fit, &group);
                true
            }
            Err(short) => {
                if has_memory && matches!(short, Short::OwnLimit | Short::OwnerLimit(_)) {
                    self.memory_served(queue);
                }
                self.wait_for_memory(worker, id, short);
                self.calls.get(id).is_none()
            }
        }
    }

    /// What a group needs of the device's memory in a worker.
    pub(super) fn need_of(&self, worker: WorkerId, group: &Group) -> Option<Need> {
        let entry = self.calls.get(group.first)?;
        let mut need = Need {
            payer: entry.queue.payer(),
            function: entry.function,
            lane_bytes: entry.memory_bytes,
            stack_bytes: entry.stack_bytes,
            beside_bytes: 0,
            has_weights: entry.weight_bytes > 0,
        };
        if need.has_weights && self.shape.weights_take_memory {
            need.beside_bytes = self.book.weights.missing_bytes(entry.function, worker, entry.weight_bytes);
        }
        for id in &group.others {
            need.lane_bytes = need.lane_bytes.saturating_add(self.calls.get(*id)?.memory_bytes);
        }
        Some(need)
    }

    /// Where a group can start in a worker at once. Its function's weights are in use from here on: it has to start.
    pub(super) fn fit(&mut self, worker: WorkerId, group: &Group) -> Result<Fit<C::Memory>, Short> {
        let queue = self.calls.get(group.first).ok_or(Short::Line)?.queue;
        let need = self.need_of(worker, group).ok_or(Short::Line)?;
        // Who has the whole device stands before all.
        let is_first = self.queues.exclusive.is_for(worker)
            || self.queues.asks.memory().is_none_or(|first| first == queue);
        let place = self.book.place(self.now_ns, &self.workers, worker, is_first, need)?;
        let load = match need.has_weights {
            true => self.supply_for(worker, group.first, place)?,
            false => None,
        };
        Ok(Fit { place, need, load })
    }

    /// Gives a group to a worker that has room for it, in a lane that has the memory.
    pub(super) fn start(
        &mut self,
        worker: WorkerId,
        Fit { place, need, load }: Fit<C::Memory>,
        group: &Group,
    ) {
        let now_ns = self.now_ns;
        let id = group.first;
        let Some(entry) = self.calls.get(id) else { return };
        let (alone, call, caller) = (entry.attempts.is_suspect(), entry.call.clone(), entry.domain.caller);
        let (function, weight_bytes, wants_all) =
            (entry.function, entry.weight_bytes, entry.wants_all_lanes());
        let is_shared = self.workers[worker].is_shared();
        let over_ns = match is_shared {
            true => entry.deadline_ns.min(self.shared_until_ns(worker)),
            false => entry.deadline_ns,
        };
        // A worker with several lanes counts by itself what part of the device each call had.
        let until_ns = if self.shape.lanes == 1 { over_ns } else { entry.deadline_ns };
        // Where kernels may not end by themselves, the call is looked for before its deadline.
        let stuck_ns = if is_shared { over_ns.saturating_add(self.shape.shared_stuck_ns) } else { u64::MAX };
        self.book.lend(worker, place, need, is_shared);
        if self.workers[worker].rebuild_cost.functions() == 0 && !is_shared {
            // All others paid for its process, too.
            self.queues.asks.charge(caller, self.queues.residency.hand_over_ns());
        }
        let installs = self.workers[worker].rebuild_cost.ran(place.lane, function, weight_bytes);
        let clock_ns = self.turns.as_ref().map_or(0, |turns| turns.in_the_way_ns(now_ns));
        let LanePlace { lane, lane_bytes: memory_bytes, .. } = place;
        for id in group.calls() {
            self.workers.put(worker, id, lane, wants_all);
            self.calls.started(id, worker, lane, installs, [now_ns, clock_ns, over_ns, stuck_ns]);
        }
        let mut others = Vec::new();
        for &other in &group.others {
            others.extend(self.calls.get(other).map(|entry| (other, entry.call.clone())));
            if weight_bytes > 0 {
                self.book.weights.begin(function, true);
            }
        }
        let start =
            Command::Start { lane, alone, memory_bytes, until_ns, job: Job { id, call, others }, load };
        self.tell(worker, start);
        let party = if is_shared { TenantId::EVERYBODY } else { caller };
        if is_shared {
            self.weigh_everybody();
        }
        self.turn(|turns| turns.has_work(now_ns, worker, party));
        self.note_contention();
        if self.budgets.is_careful(now_ns, caller) {
            let asked = self.queues.hold(caller);
            self.waits_no_more(asked);
        }
    }

    /// When a shared worker has ended a call that it gets now. The call gets `shared-limit` of the device, of which it has a part while
    /// other lanes are busy, and waiting for a turn is not held against it.
    fn shared_until_ns(&self, worker: WorkerId) -> u64 {
        let waits_ns = self.turns.as_ref().map_or(0, |turns| turns.waits_at_most_ns(worker));
        let at_most_ns = self.shape.shared_limit_ns.saturating_mul(self.shape.lanes.into());
        self.now_ns.saturating_add(at_most_ns).saturating_add(waits_ns)
    }
}
