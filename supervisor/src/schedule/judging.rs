//! What follows from the ends of calls for their callers: functions are refused, budgets are drawn on, and who spent one is held up.

use super::asks::QueueKey;
use super::calls::Entry;
use super::quarantine::{Refusal, Use};
use super::scheduler::Scheduler;
use super::types::{Action, Call, Domain, Ended, Loss, Verdict};
use crate::ids::TenantId;

impl<C: Call> Scheduler<C> {
    /// A call is over. Where it ran, [`Scheduler::review`] must follow.
    pub(super) fn judge(&mut self, entry: &Entry<C>, verdict: Verdict) {
        self.judge_use(entry.domain, entry.used(), verdict, entry.probe);
    }

    /// The same of a use of a function, by a call of a domain that may be a `probe`.
    pub(super) fn judge_use(&mut self, domain: Domain, used: Use, verdict: Verdict, probe: bool) {
        let now_ns = self.now_ns;
        match verdict {
            Verdict::Fault => {
                if let Some(refusal) = self.quarantine.failed(now_ns, used, probe) {
                    self.refuse(domain, used, refusal);
                }
            }
            _ if self.quarantine.is_empty() && self.budgets.is_empty() && self.unproven.is_empty() => {}
            Verdict::Well => {
                self.quarantine.ended_well(used);
                self.budgets.ended_well(now_ns, used.caller);
                self.unproven.ended_well(used);
            }
            Verdict::Neither if probe => self.quarantine.probed_in_vain(used),
            Verdict::Neither => {}
        }
    }

    /// True if nothing of a caller may start now.
    pub(super) fn holds(&self, caller: TenantId) -> bool {
        let now_ns = self.now_ns;
        self.budgets.waits_ns(now_ns, caller).is_some()
            || self.budgets.is_careful(now_ns, caller) && (self.runs(caller) || self.book.dies_under(caller))
    }

    /// A lost call does not run again. Where faults hit the calls of all, it is not known then whether it was why.
    pub(super) fn left_open(&mut self, entry: &Entry<C>, loss: Loss, ended: Ended) {
        let is_open = matches!(ended, Ended::Deadline | Ended::Detached)
            && matches!(loss, Loss::InIt | Loss::Unexplained);
        if self.shape.shared_faults
            && is_open
            && !entry.paid
            && self.unproven.left_open(self.now_ns, entry.used(), entry.started_ns, loss == Loss::InIt)
        {
            self.draw(entry.domain.caller);
        }
    }

    /// Waiting calls of a function are refused. Not suspects: whether they are guilty is about to be found out, and
    /// each that is not proves something.
    pub(super) fn refuse(&mut self, domain: Domain, used: Use, refusal: Refusal) {
        let calls = &self.calls;
        let is_one =
            |id| calls.get(id).is_some_and(|entry| !entry.attempts.is_suspect() && entry.used() == used);
        // All calls of a function by one caller are of one domain.
        let mut refused = self.company.take(used, self.now_ns, is_one);
        for queue in [QueueKey::Of(domain), QueueKey::Shared(domain.caller), QueueKey::Whole(domain)] {
            refused.extend(self.queues.take(queue, is_one));
        }
        refused.sort_unstable();
        let any = !refused.is_empty();
        for id in refused {
            let call = self.calls.remove(id).map(|entry| entry.call);
            self.actions.extend(call.map(|call| Action::Refused { call, refusal }));
        }
        // Those behind them may start, too.
        self.waits_no_more(any);
    }

    /// A process ended under a caller, and not from outside, or is about to.
    pub(super) fn draw(&mut self, caller: TenantId) {
        self.budgets.draw(self.now_ns, caller);
        if self.holds(caller) {
            let asked = self.queues.hold(caller);
            // Other callers' calls do not wait behind those of this one.
            self.serve_line();
            if asked {
                self.resume();
            }
        }
    }

    /// Something changed for a caller: calls that were held up and may start now do.
    pub(super) fn review(&mut self, caller: TenantId) {
        if self.holds(caller) {
            return;
        }
        if self.queues.release(caller) {
            self.resume();
        }
    }
}
