//! The book of a device's memory: what processes take for themselves, what weights take, what lanes were lent for calls.
//!
//! ```text
//!            a call needs it             idle, and others need it          the worker says so
//!   free ─────────────────────► lent ──────────────────────────────► returning ─────────────► free
//!                                 └──────────── its process is gone ────────────► dying ─reaped─┘
//! ```
//!
//! A lane keeps what it was lent when its call is over: the next one need not wait. It is taken back only where other
//! calls need it, from the lanes idle longest, and never from a lane that has a call. Memory counts as free only once
//! the worker confirmed that it gave it back, or its process is reaped.
//!
//! Of the domains whose first call, or whose process, waits for memory (`asks`) only the first takes free memory. While what is
//! idle suffices for it, calls that need no memory start beside; otherwise no call starts that is not of the first domain, until
//! enough lanes are empty. So a domain waits for the calls that run and for those of domains before it, and for nothing else.

use std::collections::{HashMap, VecDeque};

use super::limits::{SETTLE_NS, WEIGHTS_PATIENCE_NS};
use super::types::{MemorySnapshot, Shape};
use super::weights::Weights;
use super::workers::{Worker, Workers};
use crate::ids::{FunctionId, Generation, TenantId, WorkerId};

/// What a call needs of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Who pays for it.
    pub(super) payer: TenantId,
    /// What runs.
    pub(super) function: FunctionId,
    /// Bytes of its lane.
    pub(super) lane_bytes: u64,
    /// Bytes that its process keeps for the stacks of its kernels.
    pub(super) stack_bytes: u64,
    /// Bytes that must be free besides, for weights of its function that are to be loaded.
    pub(super) beside_bytes: u64,
    /// True if its function has weights.
    pub(super) has_weights: bool,
}

/// Why a call cannot start for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// Others stand in line before it, or it would need more than is free.
    Line,
    /// Calls that run use the weights that would have to give way to its function's.
    Crowded,
    /// Its caller has as much as it may.
    OwnLimit,
    /// The owner of its function has so much, and may not have the weights besides.
    OwnerLimit(u64),
}

/// Where a call may start, and what that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LanePlace {
    /// Which lane.
    pub(super) lane: u32,
    /// What the lane has then.
    pub(super) lane_bytes: u64,
    /// Bytes that must be free for that.
    missing_bytes: u64,
    /// Bytes that the payer will have besides.
    pub(super) own_bytes: u64,
    /// What is left for weights besides.
    pub(super) room_bytes: u64,
}

/// What one worker has.
#[derive(Debug, Default)]
struct Lent {
    /// The process that has it.
    process: Option<Generation>,
    /// By lane.
    lanes: Vec<u64>,
    /// Of a shared worker, whose call is in each lane, and what that call needs: the rest of the lane is nobody's.
    payers: Vec<Option<(TenantId, u64)>>,
    /// What its process keeps for stacks.
    stack_bytes: u64,
    /// What it was told to give back and did not confirm, oldest first.
    returning: VecDeque<Returning>,
}

#[derive(Debug, Clone, Copy)]
struct Returning {
    bytes: u64,
    /// What its lanes may have left.
    left_bytes: u64,
    /// When it is killed if it does not confirm.
    until_ns: u64,
}

/// What a process that is gone and not reaped still has.
#[derive(Debug)]
struct Dying {
    process: (WorkerId, Generation),
    bytes: u64,
    /// Under whom it ended.
    caller: Option<TenantId>,
}

impl Lent {
    fn lanes_bytes(&self) -> u64 {
        self.lanes.iter().sum()
    }

    /// What a payer's calls need in lanes of a shared worker.
    fn bytes_of(&self, payer: TenantId) -> u64 {
        self.payers.iter().flatten().filter(|(whose, _)| *whose == payer).map(|(_, bytes)| bytes).sum()
    }

    fn returning_bytes(&self) -> u64 {
        self.returning.iter().map(|returning| returning.bytes).sum()
    }

    fn bytes(&self) -> u64 {
        self.lanes_bytes() + self.stack_bytes + self.returning_bytes()
    }
}

/// The memory of one device.
#[derive(Debug)]
pub(super) struct Book<M> {
    all_bytes: u64,
    page_bytes: u64,
    /// The most that a lane may have.
    lane_bytes: u64,
    /// Taken by processes for themselves.
    contexts_bytes: u64,
    /// The weights that are there.
    pub(super) weights: Weights<M>,
    /// False if the device has no memory of its own: weights take nothing of what there is.
    weights_take_memory: bool,
    /// Of all workers, and of processes that are not reaped.
    lent_bytes: u64,
    workers: Vec<Lent>,
    dying: Vec<Dying>,
    /// How often workers were told to give memory back and did not confirm.
    outstanding: usize,
    /// Which lanes of which worker are to be told to give their memory back.
    taken: Vec<(WorkerId, u64)>,
    /// True if idle memory does not suffice for the first in line.
    closed: bool,
    /// Since when the first in line waits for weights that calls use.
    crowded_ns: Option<u64>,
    /// The most that tenants may have, for those with a limit.
    limits: HashMap<TenantId, u64>,
}

/// The size that a lane gets for a call: whole pages, and few different sizes, so that it rarely changes.
fn rounded(bytes: u64, page_bytes: u64) -> u64 {
    let pages = bytes.div_ceil(page_bytes);
    let power = pages.checked_next_power_of_two().unwrap_or(pages);
    let sizes = [power / 4 * 3, power];
    let pages = sizes.into_iter().find(|size| *size >= pages).unwrap_or(pages);
    pages.saturating_mul(page_bytes)
}

impl<M: Clone> Book<M> {
    /// Nothing is lent.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            all_bytes: shape.memory_bytes,
            page_bytes: shape.page_bytes.max(1),
            lane_bytes: shape.lane_bytes,
            contexts_bytes: 0,
            weights: Weights::new(shape.weights_bytes),
            weights_take_memory: shape.weights_take_memory,
            lent_bytes: 0,
            workers: (0..shape.workers).map(|_| Lent::default()).collect(),
            dying: Vec::new(),
            outstanding: 0,
            taken: Vec::new(),
            closed: false,
            crowded_ns: None,
            limits: HashMap::new(),
        }
    }

    /// There are so many workers and so much memory from now on.
    pub(super) fn resize(&mut self, workers: usize, all_bytes: u64) {
        self.workers.resize_with(workers, Lent::default);
        self.all_bytes = all_bytes;
    }

    /// By how much more is had than there is, since the device had more memory before.
    pub(super) fn deficit_bytes(&self) -> u64 {
        self.had_bytes().saturating_sub(self.all_bytes)
    }

    fn had_bytes(&self) -> u64 {
        self.contexts_bytes.saturating_add(self.weights_bytes()).saturating_add(self.lent_bytes)
    }

    /// The first in line waits for weights that calls use.
    pub(super) fn crowded(&mut self, now_ns: u64) {
        self.crowded_ns.get_or_insert(now_ns);
    }

    /// True if the first in line waited long enough for weights that calls use: other domains' calls of functions with
    /// weights stand behind it.
    fn is_crowded(&self, now_ns: u64) -> bool {
        self.crowded_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > WEIGHTS_PATIENCE_NS)
    }

    /// A process that took `before` bytes for itself takes `now` bytes: none before it began, and none once it is reaped.
    pub(super) fn context_changed(&mut self, before: u64, now: u64) {
        self.contexts_bytes = self.contexts_bytes.saturating_add(now).saturating_sub(before);
    }

    /// Bytes of weights, leaving ones included.
    fn weights_bytes(&self) -> u64 {
        if self.weights_take_memory { self.weights.held_bytes() } else { 0 }
    }

    /// Bytes of weights that are about to leave.
    fn leaving_bytes(&self) -> u64 {
        if self.weights_take_memory { self.weights.held_bytes() - self.weights.used_bytes() } else { 0 }
    }

    /// What nothing has.
    pub(super) fn free_bytes(&self) -> u64 {
        self.all_bytes.saturating_sub(self.had_bytes())
    }

    /// What is free or may be without the end of a process.
    pub(super) fn movable_bytes(&self) -> u64 {
        let stack_bytes = self.workers.iter().map(|lent| lent.stack_bytes).sum();
        self.all_bytes.saturating_sub(self.contexts_bytes).saturating_sub(stack_bytes)
    }

    /// Bytes that a worker has, those on their way back not counted.
    pub(super) fn worker_bytes(&self, worker: WorkerId) -> u64 {
        let lent = &self.workers[worker.get()];
        lent.lanes_bytes() + lent.stack_bytes
    }

    /// Who has what at this moment. Memory on its way back, or of dying processes, counts as the lanes'.
    pub(super) fn snapshot(&self) -> MemorySnapshot {
        let stack_bytes = self.workers.iter().map(|lent| lent.stack_bytes).sum();
        MemorySnapshot {
            total_bytes: self.all_bytes,
            context_bytes: self.contexts_bytes,
            stack_bytes,
            lease_bytes: self.lent_bytes.saturating_sub(stack_bytes),
            weight_bytes: self.weights_bytes(),
            free_bytes: self.free_bytes(),
        }
    }

    /// What a caller has: its workers, and lanes of shared workers with its calls.
    pub(super) fn bytes_of(&self, caller: TenantId, workers: &Workers) -> u64 {
        let own = workers.iter().filter(|(_, worker)| worker.serves(caller));
        let own: u64 = own.map(|(worker, _)| self.worker_bytes(worker)).sum();
        own + workers.shared().map(|worker| self.workers[worker.get()].bytes_of(caller)).sum::<u64>()
    }

    /// What a tenant has: as a caller, and for the weights of its functions.
    pub(super) fn tenant_bytes(&self, tenant: TenantId, workers: &Workers) -> u64 {
        self.bytes_of(tenant, workers).saturating_add(self.weights.used_by(tenant))
    }

    /// A tenant may have so much from now on, or as much as there is.
    pub(super) fn allow(&mut self, caller: TenantId, most_bytes: Option<u64>) {
        match most_bytes {
            Some(most) => drop(self.limits.insert(caller, most)),
            None => drop(self.limits.remove(&caller)),
        }
    }

    /// The most that a tenant may have, for calls and weights together.
    pub(super) fn most_bytes(&self, tenant: TenantId) -> Option<u64> {
        self.limits.get(&tenant).copied()
    }

    /// Tenants with a limit.
    pub(super) fn limited(&self) -> Vec<TenantId> {
        self.limits.keys().copied().collect()
    }

    /// What a call needs of a lane, in whole pages.
    fn exact(&self, need: Need) -> u64 {
        need.lane_bytes.div_ceil(self.page_bytes).saturating_mul(self.page_bytes)
    }

    /// The empty lane of a worker that needs the least memory for a call, and what it has then: the smallest that has
    /// enough, else the largest. Of equal lanes, one in which the function ran has graph and weights ready. `spare_bytes`
    /// may be used up to make it one of the usual sizes.
    fn lane_for(&self, id: WorkerId, worker: &Worker, need: Need, spare_bytes: u64) -> Option<LanePlace> {
        let lent = &self.workers[id.get()];
        let has = |lane: u32| lent.lanes.get(lane as usize).copied().unwrap_or(0);
        let empty = || (0..lent.lanes.len() as u32).filter(|lane| !worker.has_call_in(*lane));
        let known = worker.rebuild_cost.lanes_of(need.function);
        let is_new = |lane: u32| known & 1 << lane == 0;
        let enough = empty().filter(|lane| has(*lane) >= need.lane_bytes);
        let enough = enough.min_by_key(|lane| (has(*lane), is_new(*lane)));
        let stack = need.stack_bytes.saturating_sub(lent.stack_bytes);
        let exact = self.exact(need);
        let place = |lane, lane_bytes, missing_bytes| {
            // Of a lane of a shared worker, the rest is nobody's.
            let own_bytes = if worker.is_shared() { exact } else { missing_bytes };
            LanePlace { lane, lane_bytes, missing_bytes, own_bytes, room_bytes: 0 }
        };
        if let Some(lane) = enough {
            return Some(place(lane, has(lane), stack));
        }
        // Of equal ones the first.
        let lane = empty().rev().max_by_key(|lane| has(*lane))?;
        let usual = rounded(need.lane_bytes, self.page_bytes).min(self.lane_bytes).max(exact);
        let missing = |size: u64| (size - has(lane)).saturating_add(stack);
        let size =
            if missing(usual).saturating_add(need.beside_bytes) <= spare_bytes { usual } else { exact };
        Some(place(lane, size, missing(size)))
    }

    /// Where a call can start at once in a worker of its domain, which has an empty lane; `is_first`: no other domain waits for memory
    /// before its own.
    pub(super) fn place(
        &self,
        now_ns: u64,
        workers: &Workers,
        worker: WorkerId,
        is_first: bool,
        need: Need,
    ) -> Result<LanePlace, Short> {
        let free = self.free_bytes();
        let left = self.left_bytes(workers, need);
        let place = self.lane_for(worker, &workers[worker], need, free.min(left)).ok_or(Short::Line)?;
        let wanted = place.missing_bytes.saturating_add(need.beside_bytes);
        let goes_before = || wanted == 0 && !self.closed && !(need.has_weights && self.is_crowded(now_ns));
        if wanted > free || !is_first && !goes_before() {
            return Err(Short::Line);
        }
        match place.own_bytes > 0 && place.own_bytes > left {
            true => Err(Short::OwnLimit),
            // Only the first in line takes memory that is free.
            false => {
                Ok(LanePlace { room_bytes: if is_first { free - place.missing_bytes } else { 0 }, ..place })
            }
        }
    }

    /// What the payer of a call may have besides what it has.
    fn left_bytes(&self, workers: &Workers, need: Need) -> u64 {
        match self.most_bytes(need.payer) {
            Some(most) => most.saturating_sub(self.tenant_bytes(need.payer, workers)),
            None => u64::MAX,
        }
    }

    /// By how much a call in a worker would exceed what its payer may have, beside what the payer has elsewhere.
    pub(super) fn excess_bytes(&self, workers: &Workers, worker: WorkerId, need: Need) -> u64 {
        let Some(place) = self.lane_for(worker, &workers[worker], need, 0) else { return 0 };
        place.own_bytes.saturating_sub(self.left_bytes(workers, need))
    }

    /// Lends what [`Book::place`] said.
    pub(super) fn lend(&mut self, worker: WorkerId, place: LanePlace, need: Need, is_shared: bool) {
        let lent = &mut self.workers[worker.get()];
        let before = lent.bytes();
        if let Some(lane) = lent.lanes.get_mut(place.lane as usize) {
            *lane = (*lane).max(place.lane_bytes);
        }
        if let Some(payer) = lent.payers.get_mut(place.lane as usize).filter(|_| is_shared) {
            *payer = Some((need.payer, place.own_bytes));
        }
        lent.stack_bytes = lent.stack_bytes.max(need.stack_bytes);
        self.lent_bytes += lent.bytes() - before;
    }

    /// A call is out of its lane: in a shared worker, what the lane has is nobody's.
    pub(super) fn ended(&mut self, worker: WorkerId, lane: u32) {
        if let Some(payer) = self.workers[worker.get()].payers.get_mut(lane as usize) {
            *payer = None;
        }
    }

    /// Another call needs memory: until more is known, calls without that need start beside.
    pub(super) fn reopen(&mut self) {
        (self.closed, self.crowded_ns) = (false, None);
    }

    /// Takes memory back from idle lanes for a call in a worker. Returns the bytes that are missing even then: weights have to give
    /// way for these, or calls to end.
    pub(super) fn take_back_for(
        &mut self,
        now_ns: u64,
        workers: &Workers,
        worker: WorkerId,
        need: Need,
    ) -> u64 {
        let Some(place) = self.lane_for(worker, &workers[worker], need, 0) else { return 0 };
        let wanted = place.missing_bytes.saturating_add(need.beside_bytes);
        let mut short = self.take_back(now_ns, workers, wanted, Some((worker, place.lane)));
        let has = self.workers[worker.get()].lanes.get(place.lane as usize).copied().unwrap_or(0);
        if short > 0 && has > need.lane_bytes.next_multiple_of(self.page_bytes) {
            // Its own lane has more than it needs: it gets another size.
            let given = self.tell(now_ns, worker, 1 << place.lane);
            short = short.saturating_sub(given.saturating_sub(need.lane_bytes));
        }
        short
    }

    /// What is idle does not suffice for the first in line, or it does.
    pub(super) fn close(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Takes memory back from idle lanes, all but one, until so much is free or on its way. Returns the bytes that are missing even
    /// then.
    pub(super) fn take_back(
        &mut self,
        now_ns: u64,
        workers: &Workers,
        wanted: u64,
        but: Option<(WorkerId, u32)>,
    ) -> u64 {
        let coming: u64 = self.workers.iter().map(Lent::returning_bytes).sum();
        let dying: u64 = self.dying.iter().map(|dying| dying.bytes).sum();
        let there =
            [coming, dying, self.leaving_bytes()].into_iter().fold(self.free_bytes(), u64::saturating_add);
        let mut short = wanted.saturating_add(self.deficit_bytes()).saturating_sub(there);
        // Workers without calls first, the one idle longest first of all.
        let is_last = |id, worker: &Worker| !worker.is_idle() || but.is_some_and(|(but, _)| but == id);
        let mut order: Vec<(bool, u64, WorkerId)> =
            workers.iter().map(|(id, worker)| (is_last(id, worker), worker.idle_since_ns, id)).collect();
        order.sort_unstable();
        for (.., id) in order {
            if short == 0 {
                break;
            }
            let keep = but.and_then(|(worker, lane)| (worker == id).then_some(lane));
            let lanes = self.idle_lanes(id, &workers[id], keep);
            short = short.saturating_sub(self.tell(now_ns, id, lanes));
        }
        short
    }

    /// Takes memory back from a caller's own lanes without calls, but for the one that its call `wants` in a worker. True if something of
    /// the caller's comes back.
    pub(super) fn take_back_own(
        &mut self,
        now_ns: u64,
        workers: &Workers,
        caller: TenantId,
        wants: Option<(WorkerId, Need)>,
    ) -> bool {
        let keep = wants.and_then(|(worker, need)| {
            self.lane_for(worker, &workers[worker], need, 0).map(|place| (worker, place.lane))
        });
        let mut comes = false;
        for (id, own) in workers.iter().filter(|(_, own)| own.serves(caller)) {
            let lanes =
                self.idle_lanes(id, own, keep.and_then(|(worker, lane)| (worker == id).then_some(lane)));
            self.tell(now_ns, id, lanes);
            comes |= !self.workers[id.get()].returning.is_empty();
        }
        comes
    }

    /// A worker came to a caller: lanes that the last caller left full are emptied, where the caller would exceed its limit by
    /// them.
    pub(super) fn came_to(&mut self, now_ns: u64, workers: &Workers, worker: WorkerId, caller: TenantId) {
        if self.most_bytes(caller).is_some_and(|most| self.tenant_bytes(caller, workers) > most) {
            let lanes = self.idle_lanes(worker, &workers[worker], None);
            self.tell(now_ns, worker, lanes);
        }
    }

    /// Takes which lanes of which workers are to be told to give their memory back.
    pub(super) fn take_told(&mut self) -> impl Iterator<Item = (WorkerId, u64)> {
        self.taken.drain(..)
    }

    /// Takes all memory back from lanes of a worker: so much is on its way then.
    fn tell(&mut self, now_ns: u64, worker: WorkerId, lanes: u64) -> u64 {
        let lent = &mut self.workers[worker.get()];
        if lanes == 0 {
            return 0;
        }
        let told = lent.lanes.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1);
        let bytes = told.map(|(_, has)| std::mem::take(has)).sum();
        let until_ns = now_ns.saturating_add(SETTLE_NS);
        self.outstanding += 1;
        lent.returning.push_back(Returning { bytes, left_bytes: lent.lanes_bytes(), until_ns });
        self.taken.push((worker, lanes));
        bytes
    }

    /// Lanes of a worker without a call that have memory, but for one.
    fn idle_lanes(&self, id: WorkerId, worker: &Worker, but: Option<u32>) -> u64 {
        let lent = &self.workers[id.get()];
        if lent.process.is_none() {
            return 0;
        }
        let lanes = (0..)
            .zip(&lent.lanes)
            .filter(|(lane, has)| **has > 0 && !worker.has_call_in(*lane) && but != Some(*lane));
        lanes.fold(0, |lanes, (lane, _)| lanes | 1 << lane)
    }

    /// True if anything is on its way back.
    pub(super) fn awaits(&self) -> bool {
        !self.dying.is_empty() || self.outstanding > 0 || self.leaving_bytes() > 0
    }

    /// A fresh process of so many lanes is in a worker's slot.
    pub(super) fn arrived(&mut self, worker: WorkerId, generation: Generation, lanes: u32) {
        let lent = &mut self.workers[worker.get()];
        lent.process = Some(generation);
        lent.lanes.resize(lanes as usize, 0);
        lent.payers.resize(lanes as usize, None);
    }

    /// A worker's process is gone, which ended under this caller. Its memory counts until the process is reaped.
    pub(super) fn gone(&mut self, worker: WorkerId, caller: Option<TenantId>) {
        let lent = &mut self.workers[worker.get()];
        let bytes = lent.bytes();
        lent.lanes.fill(0);
        lent.payers.fill(None);
        lent.stack_bytes = 0;
        self.outstanding -= lent.returning.len();
        lent.returning.clear();
        match lent.process.take() {
            Some(generation) => self.dying.push(Dying { process: (worker, generation), bytes, caller }),
            None => self.lent_bytes -= bytes,
        }
    }

    /// True if a process ended under a caller and is not reaped.
    pub(super) fn dies_under(&self, caller: TenantId) -> bool {
        self.dying.iter().any(|dying| dying.caller == Some(caller))
    }

    /// It is reaped. Under whom it ended.
    pub(super) fn reaped(&mut self, worker: WorkerId, generation: Generation) -> Option<TenantId> {
        let at = self.dying.iter().position(|dying| dying.process == (worker, generation))?;
        let dying = self.dying.swap_remove(at);
        self.lent_bytes -= dying.bytes;
        dying.caller
    }

    /// A worker gave back what it was told first, and its lanes have so much left; false if it was not told, or has more
    /// than it may.
    pub(super) fn gave_back(&mut self, worker: WorkerId, left_bytes: u64) -> bool {
        let lent = &mut self.workers[worker.get()];
        let Some(returning) = lent.returning.pop_front() else { return false };
        self.lent_bytes -= returning.bytes;
        self.outstanding -= 1;
        left_bytes <= returning.left_bytes
    }

    /// When [`Book::expire`] has something to say.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if self.outstanding == 0 {
            return None;
        }
        self.workers.iter().filter_map(|lent| Some(lent.returning.front()?.until_ns)).min()
    }

    /// Workers that did not give back what they were told in time; told again later.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<WorkerId> {
        let mut late = Vec::new();
        if self.outstanding == 0 {
            return late;
        }
        for (at, lent) in self.workers.iter_mut().enumerate() {
            if let Some(first) = lent.returning.front_mut().filter(|first| first.until_ns <= now_ns) {
                first.until_ns = now_ns.saturating_add(SETTLE_NS);
                late.push(WorkerId::new(at));
            }
        }
        late
    }

    /// What there is in all, for invariants.
    #[cfg(test)]
    pub(super) fn account(&self) -> (u64, u64, u64) {
        let there: u64 = self.workers.iter().map(Lent::bytes).sum();
        let dying: u64 = self.dying.iter().map(|dying| dying.bytes).sum();
        (self.all_bytes, self.lent_bytes, there + dying)
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
