//! Calls that are in the way of others for too long. A device that takes turns cannot interrupt what runs; while others want the
//! device, a call that has had it for its tenant's `overrun-limit` loses its process.
//!
//! What counts is the time in which the call could run and others wanted the device, divided among the long calls that
//! shared the chip meanwhile: of 32 tenants whose calls take 100 ms each, none is in the way for longer than that,
//! although each call takes three seconds. A clock of [`Turns`] counts such time; the call's began when it was handed
//! over, or when its worker got its grant, whichever came later.
//!
//! Its tenant is fined as much as that, beside what it is charged for its turns: its next call stands behind both.
//!
//! If the call was alone in its process, it is guilty, as one is that is overdue: it ends with an error of its own, and
//! counts as a failure of its function. If it was not, any of the calls there may have been in the way: all of them run
//! again, one by one.

use super::limits::{LONG_NS, OVERRUN_CHECK_NS};
use super::scheduler::Scheduler;
use super::turns::Turns;
use super::types::{Call, CallId};
use crate::ids::WorkerId;

impl<C: Call> Scheduler<C> {
    /// When calls are looked at next: now and then, while others wait.
    pub(super) fn next_overrun_check_ns(&self) -> Option<u64> {
        let contended = self.turns.as_ref().is_some_and(Turns::is_contended);
        contended.then_some(self.overrun_check_ns)
    }

    /// Ends what was in the way of others for too long.
    pub(super) fn check_overruns(&mut self) {
        let now_ns = self.now_ns;
        let waits = self.is_wanted_outside();
        let Some(turns) = &mut self.turns else { return };
        turns.set_outside(now_ns, waits);
        if now_ns < self.overrun_check_ns || !turns.is_contended() {
            return;
        }
        self.overrun_check_ns = now_ns.saturating_add(OVERRUN_CHECK_NS);
        let clock_ns = turns.in_the_way_ns(now_ns);
        let granted: Vec<(WorkerId, u64)> = turns.granted().collect();
        let mut long_calls = 0;
        for (worker, granted_clock_ns) in granted {
            let Some((ran_ns, id)) = self.longest(worker, granted_clock_ns, clock_ns) else { continue };
            long_calls += usize::from(ran_ns >= LONG_NS);
            let Some(tenant) = self.workers[worker].served().map(|domain| domain.caller) else { continue };
            let limit_ns = self.queues.asks.share_of(tenant).overrun_ns.unwrap_or(self.policy.overrun_ns);
            if limit_ns != 0 && ran_ns >= limit_ns {
                self.turns.iter_mut().for_each(|turns| turns.fine(tenant, ran_ns));
                self.kill_for(worker, id, true);
            }
        }
        self.turns.iter_mut().for_each(|turns| turns.set_long_calls(now_ns, long_calls));
    }

    /// The call of a worker that is in the way of others for longest, and for how long it is.
    fn longest(&self, worker: WorkerId, granted_clock_ns: u64, clock_ns: u64) -> Option<(u64, CallId)> {
        let ran_ns = |id: CallId| {
            let entry = self.calls.get(id)?;
            Some((clock_ns.saturating_sub(entry.started_clock_ns.max(granted_clock_ns)), id))
        };
        self.workers[worker].calls().filter_map(ran_ns).max()
    }
}
