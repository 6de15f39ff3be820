//! Calls that need the whole device, and how its memory moves to their worker and back.
//!
//! ```text
//! shared ──first in line, lanes empty──► shrinking: all others give up their lease ──► growing: it gets all
//!   ▲                                                                                      │
//!   └── spreading: all get their own ◄── returning: it gives all up ◄──over── whole ◄──────┘
//! ```
//!
//! Each of the steps with a colon is over when every process confirmed its settings and no process that served is
//! still to be reaped. So nothing is given out before it is free.
//!
//! Where a fault hits the calls of all workers, suspects are such calls, too, but no memory moves for them:
//!
//! ```text
//! shared ──first in line, lanes empty──► alone ──over──► shared
//! ```
//!
//! They stand in a line of their own, which is fair among callers (`fair_line`). All other calls together are one more
//! party there: its tag is charged for the time in which memory is shared, divided by the number of callers that wait.
//! So a waiting call of either kind gets its turn, however many of the other kind there are:
//!
//! ```text
//!             ┌─ other calls had less ──► open: other calls start ──had as much, or nothing left──┐
//! shared ─────┤                                                                                   ▼
//!             └─ they had as much, or none waits ───────────────────────────► ending: lanes run empty ──► over
//! ```
//!
//! What comes before a turn is charged to those who want it, but not the time until a process is there for other calls.
//!
//! Where the first of them comes to an empty line, calls that came before it may start for a while, those behind it
//! not: without contention, calls run in the order in which they came.

use super::fair_line::{FairLine, First};
use super::types::{CallId, Share};
use crate::defences::Defence;
use crate::ids::{Generation, TenantId, WorkerId};
use crate::limits::{SETTLE_NS, SHARED_PHASE_NS, WORKER_START_S};

/// Calls that need the whole device, and how far the first one is.
#[derive(Debug)]
pub(super) struct Exclusive {
    /// Those that wait; the one that memory moves for is still among them.
    line: FairLine<CallId>,
    stage: Stage,
    /// While memory is shared and calls stand in line: whether others start.
    phase: Phase,
    /// The caller that has the whole device, or for which it is prepared.
    served: Option<TenantId>,
    /// The tag of all calls that do not need the whole device.
    shared_tag_ns: u64,
    /// Until when device time is charged.
    charged_ns: u64,
    leases: Vec<Lease>,
    /// Processes that served and are not reaped.
    dying: Vec<(WorkerId, Generation)>,
    /// When processes that did not confirm their settings are killed.
    deadline_ns: Option<u64>,
}

/// What one worker has of the memory.
#[derive(Debug, Clone, Copy)]
struct Lease {
    share: Share,
    /// The process in the worker's slot.
    process: Option<Generation>,
    /// Settings that it was sent and did not confirm.
    unconfirmed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Every worker has its own lease.
    Shared,
    /// The worker has a call that runs alone, and its own lease.
    Alone(WorkerId),
    /// All but one worker give up their leases, for a call.
    Shrinking(CallId, WorkerId),
    /// It is being given everything.
    Growing(CallId, WorkerId),
    /// It has everything, and the call.
    Whole(WorkerId),
    /// It gives everything up.
    Returning,
    /// Every worker is being given its own lease again.
    Spreading,
}

/// What calls may do that do not need the whole device, while others stand in line for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They start: those that came before this one, or all. So many callers are charged for it, and one `began` or none
    /// has a process yet.
    Open { before: Option<CallId>, callers: u64, began: bool },
    /// None starts any more; those in lanes go on.
    Ending { callers: u64 },
    /// They are charged for what they had.
    Over,
}

impl Stage {
    /// What a worker has in this stage.
    fn share(self, worker: WorkerId) -> Share {
        match self {
            Self::Shared | Self::Alone(_) | Self::Spreading => Share::Own,
            Self::Shrinking(_, to) if to == worker => Share::Own,
            Self::Growing(_, to) | Self::Whole(to) if to == worker => Share::All,
            Self::Shrinking(..) | Self::Growing(..) | Self::Whole(_) | Self::Returning => Share::Nothing,
        }
    }

    /// The call that memory moves for.
    fn prepared(self) -> Option<CallId> {
        match self {
            Self::Shrinking(id, _) | Self::Growing(id, _) => Some(id),
            _ => None,
        }
    }

    /// Whether processes are waited for.
    fn is_moving(self) -> bool {
        matches!(self, Self::Shrinking(..) | Self::Growing(..) | Self::Returning | Self::Spreading)
    }
}

/// What a move of memory led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// The worker has everything for this call: [`Exclusive::run`] or [`Exclusive::give_back`] follows.
    Whole(CallId, WorkerId),
    /// Every worker has its own lease again: [`Exclusive::share`] follows.
    Shared,
}

/// Shares that workers are to be told, in this order.
pub(super) type Shares = Vec<(WorkerId, Share)>;

impl Exclusive {
    /// A device whose slots are all empty.
    pub(super) fn new(workers: usize) -> Self {
        let lease = Lease { share: Share::Own, process: None, unconfirmed: 0 };
        Self {
            line: FairLine::default(),
            stage: Stage::Shared,
            phase: Phase::Over,
            served: None,
            shared_tag_ns: 0,
            charged_ns: 0,
            leases: vec![lease; workers],
            dying: Vec::new(),
            deadline_ns: None,
        }
    }

    /// Queued calls that came later than this one may not start; none says that all may.
    pub(super) fn barrier(&self) -> Option<CallId> {
        match (self.stage, self.phase) {
            (Stage::Shared, _) if !self.has_line() => None,
            (Stage::Shared, Phase::Open { before, .. }) => before,
            _ => Some(CallId(0)),
        }
    }

    /// The call to begin with, if memory is shared.
    pub(super) fn next(&self) -> Option<CallId> {
        self.line.first().filter(|_| self.stage == Stage::Shared).map(|first| first.id)
    }

    /// Whether calls wait in line.
    pub(super) fn has_line(&self) -> bool {
        self.line.first().is_some()
    }

    /// Whether a caller has calls here.
    pub(super) fn has_calls_of(&self, caller: TenantId) -> bool {
        self.line.has(caller)
    }

    /// A call waits, for the first time or again, until its caller may start something again if that is `held`. Whether
    /// other calls run, and how many callers of such wait, is asked where the line was empty.
    pub(super) fn push(
        &mut self,
        now_ns: u64,
        caller: TenantId,
        id: CallId,
        held: bool,
        others: impl FnOnce() -> (bool, u64),
    ) {
        self.join(now_ns, others, |line| line.push(caller, id, held));
    }

    /// Calls of a caller wait until it may start something again; whether there were any in line.
    pub(super) fn put_aside(&mut self, caller: TenantId) -> bool {
        self.line.set_held(caller, true)
    }

    /// Calls of a caller that were put aside wait in line again; whether there were any. `others` as for
    /// [`Exclusive::push`].
    pub(super) fn come_back(
        &mut self,
        now_ns: u64,
        caller: TenantId,
        others: impl FnOnce() -> (bool, u64),
    ) -> bool {
        self.join(now_ns, others, |line| line.set_held(caller, false))
    }

    /// Puts calls into the line. If they are the first there, the calls before them go on for a while.
    fn join<T>(
        &mut self,
        now_ns: u64,
        others: impl FnOnce() -> (bool, u64),
        join: impl FnOnce(&mut FairLine<CallId>) -> T,
    ) -> T {
        if self.has_line() || self.stage != Stage::Shared {
            return join(&mut self.line);
        }
        let (began, waiting) = others();
        let callers = waiting.max(1);
        self.phase = Phase::Ending { callers };
        self.charge(now_ns);
        self.shared_tag_ns = self.shared_tag_ns.max(self.line.clock_ns());
        self.line.set_clock(self.shared_tag_ns);
        let joined = join(&mut self.line);
        let before =
            self.line.first().filter(|first| first.tag_ns <= self.shared_tag_ns).map(|first| first.id);
        self.phase = Phase::Open { before, callers, began };
        joined
    }

    /// Charges the caller that had the device since this was done last.
    fn charge(&mut self, now_ns: u64) {
        let used_ns = now_ns.saturating_sub(std::mem::replace(&mut self.charged_ns, now_ns));
        match (self.served.take(), self.phase) {
            // Without charges the oldest call is next.
            (Some(_), _) if Defence::WholeDevice.is_off() => {}
            (Some(caller), _) => self.line.charge(caller, used_ns),
            (None, Phase::Open { callers, .. } | Phase::Ending { callers }) => {
                self.shared_tag_ns = self.shared_tag_ns.saturating_add(used_ns / callers);
            }
            // No call had it.
            (None, Phase::Over) => {}
        }
    }

    /// A call starts: if it is one of others, their turn began.
    pub(super) fn started(&mut self, now_ns: u64) {
        if let Phase::Open { began, .. } = &mut self.phase
            && !std::mem::replace(began, true)
        {
            self.charged_ns = now_ns;
        }
    }

    /// Memory is shared again. Of other calls, those of so many callers wait: if they had less of the device than the
    /// first caller in line, they have it now.
    pub(super) fn share(&mut self, now_ns: u64, waiting: u64) {
        self.charge(now_ns);
        self.shared_tag_ns = self.shared_tag_ns.max(self.line.clock_ns());
        let shared_tag_ns = self.shared_tag_ns;
        let is_theirs = |first: First<CallId>| waiting > 0 && shared_tag_ns < first.tag_ns;
        self.phase = match self.line.first().is_some_and(is_theirs) {
            true => {
                self.line.set_clock(shared_tag_ns);
                Phase::Open { before: None, callers: waiting, began: false }
            }
            false => Phase::Over,
        };
    }

    /// When other calls had as much of the device as the first caller in line, but not before they had it for a while.
    fn phase_ends_ns(&self) -> Option<u64> {
        let Phase::Open { callers, began, .. } = self.phase else { return None };
        let first = self.line.first().filter(|_| self.stage == Stage::Shared)?;
        let owed_ns = first.tag_ns.saturating_sub(self.shared_tag_ns).saturating_mul(callers);
        let least_ns = if began { SHARED_PHASE_NS } else { WORKER_START_S * 1_000_000_000 };
        Some(self.charged_ns.saturating_add(owed_ns.max(least_ns)))
    }

    /// Whether it is still the turn of other calls: of those in lanes, if some are `running`, or of such that wait and
    /// came before a call, or at any time, which `waits` tells.
    pub(super) fn is_shared(
        &mut self,
        now_ns: u64,
        running: bool,
        waits: impl FnOnce(Option<CallId>) -> bool,
    ) -> bool {
        if let Phase::Open { before, callers, .. } = self.phase {
            let over = self.phase_ends_ns().is_none_or(|at_ns| at_ns <= now_ns) || !running && !waits(before);
            if !over {
                return true;
            }
            self.phase = Phase::Ending { callers };
        }
        if !running && self.phase != Phase::Over {
            self.charge(now_ns);
            self.phase = Phase::Over;
        }
        running
    }

    /// A call of a caller does not wait any more; whether memory was moved for it in vain.
    pub(super) fn remove(&mut self, caller: TenantId, id: CallId) -> bool {
        self.line.remove(caller, id);
        self.stage.prepared() == Some(id)
    }

    /// Takes out the calls of a caller of which this is true; whether memory was moved for one of them in vain.
    pub(super) fn take(&mut self, caller: TenantId, is_one: impl Fn(CallId) -> bool) -> (Vec<CallId>, bool) {
        let taken = self.line.take(caller, is_one);
        let in_vain = self.stage.prepared().is_some_and(|prepared| taken.contains(&prepared));
        (taken, in_vain)
    }

    /// Whether the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        match self.stage {
            Stage::Alone(w) | Stage::Shrinking(_, w) | Stage::Growing(_, w) | Stage::Whole(w) => w == worker,
            Stage::Shared | Stage::Returning | Stage::Spreading => false,
        }
    }

    /// A caller's call runs alone in a worker, with no memory moved.
    pub(super) fn run_alone(&mut self, caller: TenantId, id: CallId, worker: WorkerId) {
        self.stage = Stage::Alone(worker);
        self.serve(caller);
        self.line.remove(caller, id);
    }

    /// The call that ran alone in that worker is over; false if none did. [`Exclusive::share`] follows.
    pub(super) fn end_alone(&mut self, worker: WorkerId) -> bool {
        let alone = self.stage == Stage::Alone(worker);
        if alone {
            self.stage = Stage::Shared;
        }
        alone
    }

    /// Memory moves to a worker for a caller's call.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        caller: TenantId,
        id: CallId,
        to: WorkerId,
        shares: &mut Shares,
    ) {
        self.serve(caller);
        self.enter(now_ns, Stage::Shrinking(id, to), shares);
    }

    fn serve(&mut self, caller: TenantId) {
        self.line.serve(caller);
        self.served = Some(caller);
    }

    /// After [`Moved::Whole`]: the caller's call is in the worker.
    pub(super) fn run(&mut self, caller: TenantId, id: CallId, worker: WorkerId) {
        self.stage = Stage::Whole(worker);
        self.line.remove(caller, id);
        self.deadline_ns = None;
    }

    /// The call is over, its worker is, or it gave up: every worker is to have its own lease again.
    pub(super) fn give_back(&mut self, now_ns: u64, shares: &mut Shares) {
        self.enter(now_ns, Stage::Returning, shares);
    }

    fn enter(&mut self, now_ns: u64, stage: Stage, shares: &mut Shares) {
        self.stage = stage;
        for (worker, lease) in self.each() {
            let share = stage.share(worker);
            if std::mem::replace(&mut lease.share, share) != share && lease.process.is_some() {
                lease.unconfirmed += 1;
                shares.push((worker, share));
            }
        }
        self.deadline_ns = stage.is_moving().then(|| now_ns.saturating_add(SETTLE_NS));
    }

    /// Every worker, with its lease.
    fn each(&mut self) -> impl Iterator<Item = (WorkerId, &mut Lease)> {
        WorkerId::first(self.leases.len()).zip(&mut self.leases)
    }

    /// A process is in a worker's slot: returns its share of the memory.
    pub(super) fn arrived(&mut self, worker: WorkerId, generation: Generation) -> Share {
        let share = self.stage.share(worker);
        self.leases[worker.get()] = Lease { share, process: Some(generation), unconfirmed: 1 };
        share
    }

    /// It serves no more, and holds its memory until it is reaped.
    pub(super) fn gone(&mut self, worker: WorkerId) {
        let lease = &mut self.leases[worker.get()];
        lease.unconfirmed = 0;
        self.dying.extend(lease.process.take().map(|generation| (worker, generation)));
    }

    /// It is reaped.
    pub(super) fn reaped(&mut self, worker: WorkerId, generation: Generation) {
        self.dying.retain(|dying| *dying != (worker, generation));
    }

    /// Settings of a worker are in force; false if all that it was sent were already.
    pub(super) fn confirmed(&mut self, worker: WorkerId) -> bool {
        let lease = &mut self.leases[worker.get()];
        let asked = lease.unconfirmed > 0;
        lease.unconfirmed -= u32::from(asked);
        asked
    }

    /// Other settings changed: all workers are to be told theirs.
    pub(super) fn tell_all(&mut self, shares: &mut Shares) {
        for (worker, lease) in self.each().filter(|(_, lease)| lease.process.is_some()) {
            lease.unconfirmed += 1;
            shares.push((worker, lease.share));
        }
    }

    /// Goes on with what was waited for, if it is there.
    pub(super) fn advance(&mut self, now_ns: u64, shares: &mut Shares) -> Option<Moved> {
        while self.stage.is_moving()
            && self.dying.is_empty()
            && self.leases.iter().all(|lease| lease.unconfirmed == 0)
        {
            match self.stage {
                Stage::Shrinking(id, to) => self.enter(now_ns, Stage::Growing(id, to), shares),
                Stage::Growing(id, to) => return Some(Moved::Whole(id, to)),
                Stage::Returning => self.enter(now_ns, Stage::Spreading, shares),
                _ => {
                    self.enter(now_ns, Stage::Shared, shares);
                    return Some(Moved::Shared);
                }
            }
        }
        None
    }

    /// When [`Exclusive::expire`] has something to say, or another phase begins.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.deadline_ns.into_iter().chain(self.phase_ends_ns()).min()
    }

    /// Workers that hold a move up since they do not confirm their settings; told again and again.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<WorkerId> {
        if self.deadline_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return Vec::new();
        }
        self.deadline_ns = Some(now_ns.saturating_add(SETTLE_NS));
        let late = self.each().filter(|(_, lease)| lease.unconfirmed > 0);
        late.map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
#[path = "exclusive_moves_tests.rs"]
mod tests;
