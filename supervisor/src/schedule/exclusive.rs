//! Calls that need the whole device: all other lanes are empty while they run.
//!
//! ```text
//! shared ──first in line, lanes empty──► preparing: others give memory back ──there is enough──► running ──over──► shared
//! ```
//!
//! What memory they get, and from whom, is decided where it is for all calls (`lending`). Where a fault hits the calls of
//! all workers, suspects are such calls, too.
//!
//! They stand in a line of their own, which is fair among callers (`fair_line`). All other calls together are one more
//! party there: its tag is charged for the time in which the device is shared, divided by the number of callers that wait.
//! So a waiting call of either kind gets its turn, however many of the other kind there are:
//!
//! ```text
//!             ┌─ other calls had less ──► open: other calls start ──had as much, or nothing left──┐
//! shared ─────┤                                                                                   ▼
//!             └─ they had as much, or none waits ───────────────────────────► ending: lanes run empty ──► over
//! ```
//!
//! What comes before a turn is charged to those who want it, but not the time until a process is there for other calls.
//! Where several callers stand in line, others need not wait for a call of each: they have their part between any two.
//!
//! Where the first of them comes to an empty line, other calls may start for a while; of a caller that stands in line, only
//! those that came before: a caller's calls run in the order in which they came.

use super::fair_line::{FairLine, First};
use super::types::CallId;
use crate::defences::Defence;
use crate::ids::{TenantId, WorkerId};
use crate::limits::{SHARED_PHASE_NS, WORKER_START_S};

/// Calls that need the whole device, and how far the first one is.
#[derive(Debug)]
pub(super) struct Exclusive {
    /// Those that wait; the one that the device is prepared for is still among them.
    line: FairLine<CallId>,
    stage: Stage,
    /// While the device is shared and calls stand in line: whether others start.
    phase: Phase,
    /// The caller that has the whole device, or for which it is prepared.
    served: Option<TenantId>,
    /// The tag of all calls that do not need the whole device.
    shared_tag_ns: u64,
    /// Until when device time is charged.
    charged_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Calls of all workers may run.
    Shared,
    /// Others give memory back, for a call in this worker.
    Preparing(CallId, WorkerId),
    /// The worker has the call.
    Running(WorkerId),
}

/// What calls may do that do not need the whole device, while others stand in line for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They start, for `least_ns` at least; of callers in line those that came `before` this one, if it is there. So many
    /// callers are charged for it, and one `began` or none has a process yet.
    Open { before: Option<CallId>, callers: u64, began: bool, least_ns: u64 },
    /// None starts any more; those in lanes go on.
    Ending { callers: u64 },
    /// They are charged for what they had.
    Over,
}

impl Exclusive {
    /// No call waits.
    pub(super) fn new() -> Self {
        Self {
            line: FairLine::default(),
            stage: Stage::Shared,
            phase: Phase::Over,
            served: None,
            shared_tag_ns: 0,
            charged_ns: 0,
        }
    }

    /// Queued calls of a caller that came later than this one may not start; none says that all may.
    pub(super) fn barrier(&self, caller: TenantId) -> Option<CallId> {
        match (self.stage, self.phase) {
            (Stage::Shared, _) if !self.has_line() => None,
            (Stage::Shared, Phase::Open { before, .. }) => before.filter(|_| self.line.has(caller)),
            _ => Some(CallId(0)),
        }
    }

    /// Whether there is a barrier for any caller.
    pub(super) fn has_barrier(&self) -> bool {
        let is_open = matches!(self.phase, Phase::Open { before: None, .. });
        self.stage != Stage::Shared || self.has_line() && !is_open
    }

    /// The call to begin with, if the device is shared.
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

    /// Puts calls into the line. If they are the first there, others go on for a while.
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
        self.phase = Phase::Open { before, callers, began, least_ns: SHARED_PHASE_NS };
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

    /// The device is shared again. Of other calls, those of so many callers wait: if they had less of the device than the
    /// first caller in line, they have it now. If they had a little more, they have it `between` two calls of the line, too,
    /// each time their part of what the call took: otherwise a call of each caller in line would go before them.
    pub(super) fn share(&mut self, now_ns: u64, waiting: u64, between: bool) {
        let took_ns = self.served.filter(|_| between).map(|_| now_ns.saturating_sub(self.charged_ns));
        self.charge(now_ns);
        self.shared_tag_ns = self.shared_tag_ns.max(self.line.clock_ns());
        let ahead_ns = |first: First<CallId>| self.shared_tag_ns.checked_sub(first.tag_ns);
        let least_ns = match (self.line.first().filter(|_| waiting > 0).map(ahead_ns), took_ns) {
            (Some(None), _) => {
                self.line.set_clock(self.shared_tag_ns);
                SHARED_PHASE_NS
            }
            (Some(Some(..SHARED_PHASE_NS)), Some(took_ns)) => {
                SHARED_PHASE_NS.min(took_ns.saturating_mul(waiting) / self.line.callers().max(1))
            }
            _ => return self.phase = Phase::Over,
        };
        self.phase = Phase::Open { before: None, callers: waiting, began: false, least_ns };
    }

    /// When other calls had as much of the device as the first caller in line, but not before they had it for a while.
    fn phase_ends_ns(&self) -> Option<u64> {
        let Phase::Open { callers, began, least_ns, .. } = self.phase else { return None };
        let first = self.line.first().filter(|_| self.stage == Stage::Shared)?;
        let owed_ns = first.tag_ns.saturating_sub(self.shared_tag_ns).saturating_mul(callers);
        let least_ns = if began { least_ns } else { WORKER_START_S * 1_000_000_000 };
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

    /// A call of a caller does not wait any more; whether the device was prepared for it in vain.
    /// [`Exclusive::share`] follows then.
    pub(super) fn remove(&mut self, caller: TenantId, id: CallId) -> bool {
        self.line.remove(caller, id);
        self.gives_up(|prepared| prepared == id)
    }

    /// Takes out the calls of a caller of which this is true; whether the device was prepared for one of them in vain.
    /// [`Exclusive::share`] follows then.
    pub(super) fn take(&mut self, caller: TenantId, is_one: impl Fn(CallId) -> bool) -> (Vec<CallId>, bool) {
        let taken = self.line.take(caller, is_one);
        let in_vain = self.gives_up(|prepared| taken.contains(&prepared));
        (taken, in_vain)
    }

    /// Whether the device was prepared for such a call, which does not run now.
    fn gives_up(&mut self, is_it: impl FnOnce(CallId) -> bool) -> bool {
        let in_vain = matches!(self.stage, Stage::Preparing(id, _) if is_it(id));
        if in_vain {
            self.stage = Stage::Shared;
        }
        in_vain
    }

    /// Whether the device is that worker's, or is about to be.
    pub(super) fn is_for(&self, worker: WorkerId) -> bool {
        match self.stage {
            Stage::Preparing(_, w) | Stage::Running(w) => w == worker,
            Stage::Shared => false,
        }
    }

    /// The call that the device is prepared for, and where it is to run.
    pub(super) fn prepared(&self) -> Option<(CallId, WorkerId)> {
        match self.stage {
            Stage::Preparing(id, worker) => Some((id, worker)),
            Stage::Shared | Stage::Running(_) => None,
        }
    }

    /// The device is prepared for a caller's call in a worker.
    pub(super) fn begin(&mut self, caller: TenantId, id: CallId, worker: WorkerId) {
        self.line.serve(caller);
        self.served = Some(caller);
        self.stage = Stage::Preparing(id, worker);
    }

    /// The call is in the worker.
    pub(super) fn run(&mut self, caller: TenantId, id: CallId, worker: WorkerId) {
        self.stage = Stage::Running(worker);
        self.line.remove(caller, id);
    }

    /// The call is over, its worker is, or it gave up. [`Exclusive::share`] follows.
    pub(super) fn end(&mut self) {
        self.stage = Stage::Shared;
    }

    /// Whether no other call starts, whenever it came.
    pub(super) fn is_closed(&self) -> bool {
        self.stage != Stage::Shared
    }

    /// When another phase begins.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.phase_ends_ns()
    }
}

#[cfg(test)]
#[path = "exclusive_phases_tests.rs"]
mod tests;
