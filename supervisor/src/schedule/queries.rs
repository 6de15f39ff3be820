//! What may be asked of a scheduler at any time.

use super::budget::Budget;
use super::calls::CallState;
use super::quarantine::{Quarantined, Use};
use super::scheduler::Scheduler;
use super::turns::Turns;
use super::types::{Call, CallId, Domain, MemorySnapshot, Resident, TenantShare};
use super::weights::Weights;
use super::workers::State;
use crate::ids::{Generation, TenantId, WorkerId};

impl<C: Call> Scheduler<C> {
    /// Calls waiting.
    pub fn queued(&self) -> u64 {
        self.calls.queued()
    }

    /// Calls in workers, and those whose process just ended.
    pub fn running(&self) -> u64 {
        self.calls.running()
    }

    /// Inline bytes of calls that wait.
    pub fn queued_bytes(&self) -> u64 {
        self.calls.queued_bytes()
    }

    /// How many calls of a caller wait, and their inline bytes.
    pub fn waiting_of(&self, caller: TenantId) -> (u64, u64) {
        self.calls.waiting_of(caller)
    }

    /// All calls that wait, oldest first.
    pub fn waiting(&self) -> Vec<(CallId, &C)> {
        self.calls.waiting()
    }

    /// The most device memory that a call needs that waits or runs, its function's weights included.
    pub fn largest_bytes(&self) -> u64 {
        self.calls.largest_bytes(self.shape.weights_take_memory)
    }

    /// The call that `worker` answers; `None` if the worker has no such call.
    pub fn running_call(&self, worker: WorkerId, id: CallId) -> Option<(&C, u32)> {
        let entry = self.calls.get(id)?;
        match entry.state {
            CallState::Running { worker: w, lane, .. } if w == worker => Some((&entry.call, lane)),
            _ => None,
        }
    }

    /// When [`Tick`](super::events::Tick) is due at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let turns = self.turns.as_ref().and_then(Turns::next_deadline_ns);
        let scrubs = self.shape.scrubs.then(|| {
            let until = self.workers.iter().filter_map(|(_, worker)| match worker.state {
                State::Scrubbing { until_ns } => Some(until_ns),
                _ => None,
            });
            until.min()
        });
        let all = [
            self.calls.next_due_ns(),
            turns,
            scrubs.flatten(),
            self.queues.next_ns(),
            self.budgets.next_ns(),
            self.next_overrun_check_ns(),
            self.book.next_ns(),
        ];
        all.into_iter().flatten().min()
    }

    /// The process that is ready in a worker's slot, if one is, and its lanes with a call.
    pub fn busy_lanes(&self, worker: WorkerId) -> Option<(Generation, u32)> {
        let worker = &self.workers[worker];
        let is_there = !worker.is_coming() && worker.state != State::Empty;
        is_there.then(|| (worker.generation, worker.busy_lanes()))
    }

    /// How long calls have waited for others of their function, all together, in nanoseconds.
    pub fn waited_for_company_ns(&self) -> u64 {
        self.company.waited_ns
    }

    /// True if a worker has calls.
    pub fn has_calls(&self, worker: WorkerId) -> bool {
        !self.workers[worker].is_idle()
    }

    /// True if calls wait for a lane of a worker.
    pub fn has_queued_for(&self, worker: WorkerId) -> bool {
        self.workers[worker].compartment().is_some_and(|compartment| self.queues.has_queued(compartment))
    }

    /// Device time that the turns of a worker used.
    pub fn device_ns(&self, worker: WorkerId) -> u64 {
        self.turns.as_ref().map_or(0, |turns| turns.used_ns(worker))
    }

    /// Device time that tenants used, and what each is given of the device; of so many at most.
    pub fn device_times(&self, most: usize) -> Vec<(TenantId, u64, TenantShare)> {
        let times = self.device_time.iter().take(most);
        times.map(|(tenant, ns)| (tenant, ns, self.queues.asks.line().share_of(tenant))).collect()
    }

    /// Device time that one tenant used.
    pub fn device_time_of(&self, tenant: TenantId) -> u64 {
        self.device_time.of(tenant)
    }

    /// Functions that are refused, and to whom.
    pub fn quarantined(&self, now_ns: u64) -> Vec<Quarantined> {
        self.quarantine.list(now_ns)
    }

    /// Uses of functions that keep out of shared workers, and until when; none until the function is replaced.
    pub fn kept_apart(&self, now_ns: u64) -> Vec<(Use, Option<u64>)> {
        self.unshared.all(now_ns).collect()
    }

    /// Budgets that are not whole.
    pub fn budgets(&self, now_ns: u64) -> Vec<Budget> {
        self.budgets.list(now_ns)
    }

    /// True if calls of a caller may have waited for its own fault budget just now.
    pub fn may_have_held(&self, now_ns: u64, caller: TenantId) -> bool {
        self.budgets.has_drawn(now_ns, caller)
    }

    /// Callers with a limit of memory.
    pub fn limited(&self) -> Vec<TenantId> {
        self.book.limited()
    }

    /// Device memory that a tenant has: its workers for its calls, and weights of its functions.
    pub fn held_by(&self, tenant: TenantId) -> u64 {
        self.book.tenant_bytes(tenant, &self.workers)
    }

    /// Who has the device's memory.
    pub fn memory(&self) -> MemorySnapshot {
        self.book.snapshot()
    }

    /// True if a call or a process waits for device memory: what comes free is for that one.
    pub fn is_memory_awaited(&self) -> bool {
        self.queues.asks.memory().is_some() || self.queues.exclusive.prepared().is_some()
    }

    /// Which weights are there.
    pub fn weights(&self) -> &Weights<C::Memory> {
        &self.book.weights
    }

    /// The process in a worker's slot.
    pub fn resident(&self, worker: WorkerId) -> Resident {
        let slot = &self.workers[worker];
        Resident {
            is_used: slot.state != State::Empty,
            serves: slot.compartment(),
            lent_bytes: self.book.worker_bytes(worker),
            functions: slot.rebuild_cost.functions(),
            last_gone: slot.last_gone,
        }
    }

    /// Processes that are ready in slots.
    pub fn residents(&self) -> usize {
        let is_there = |state| matches!(state, State::Free | State::Bound(_) | State::Scrubbing { .. });
        self.workers.iter().filter(|(_, worker)| is_there(worker.state)).count()
    }

    /// The workers that serve a domain alone.
    pub fn serving(&self, domain: Domain) -> Vec<WorkerId> {
        let serves = self.workers.iter().filter(|(_, worker)| worker.served() == Some(domain));
        serves.map(|(worker, _)| worker).collect()
    }
}
