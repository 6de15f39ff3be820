//! Which worker gives way to a domain without one: a busy worker takes no more calls, or an idle one is taken from its domain.
//! How long a domain keeps its worker, and at what pace workers give way, is decided in `residency`.

use super::super::limits::OVERSTAY_NS;
use super::super::residency::worth_least;
use super::super::share_line::Front;
use super::super::workers::Worker;
use super::{Queues, View};
use crate::ids::{TenantId, WorkerId};

/// The caller whose domain is the first that waits for a worker, and where it stands in line.
type First = Option<(TenantId, Front)>;

impl Queues {
    /// True if a worker serves a caller.
    fn has_worker(&self, caller: TenantId) -> bool {
        let mut queues = self.of_caller.get(&caller).into_iter().flatten();
        queues.any(|queue| self.queues.get(queue).is_some_and(|q| !q.workers.is_empty()))
    }

    /// True if a worker's caller had less of the device than the caller whose domain is the `first` that waits for a worker. A caller
    /// that has a worker gets another one only from callers that had more by a residency, or from itself: who has many domains,
    /// with a small call in each, would have all workers go round among these.
    fn goes_on(&self, first: First, worker: &Worker) -> bool {
        let (Some((asks, front)), Some(domain)) = (first, worker.served()) else { return false };
        let caller = domain.caller;
        let had_little_more = || {
            self.asks.line().goes_before(front.later(self.residency.least_ns()), caller)
                && self.has_worker(asks)
        };
        caller != asks && (self.asks.line().goes_before(front, caller) || had_little_more())
    }

    /// True if a busy worker takes no more calls: domains wait for a worker, this one's domain had it long enough, longest of
    /// those whose callers had their share, and one may give way.
    pub(super) fn must_leave(&self, worker: &Worker, view: View<'_>) -> bool {
        if !self.has_unplaced() || worker.is_idle() || self.ends_ns(worker) > view.now_ns {
            return false;
        }
        let coming = self.residency.come_soon(view.workers);
        let missing = self.asks.domains().saturating_sub(coming);
        if missing == 0 || self.residency.fills_slots(view.workers) {
            return false;
        }
        let first = self.asks.first();
        if self.goes_on(first, worker) {
            return false;
        }
        let most = self.residency.may_go(view.now_ns, coming, missing).unwrap_or(0);
        let place = |worker: &Worker| (!self.is_one_of_several(worker), worker.bound_ns);
        let before = |other: &Worker| {
            other.served().is_some() && place(other) < place(worker) && !self.goes_on(first, other)
        };
        view.workers.busy().filter(|(_, other)| before(other)).take(most).count() < most
    }

    /// True if the domain of a worker has others.
    fn is_one_of_several(&self, worker: &Worker) -> bool {
        self.several_workers > 0
            && worker.served().and_then(|domain| self.of(domain)).is_some_and(|q| q.workers.len() > 1)
    }

    /// When an idle worker may give way to a domain that has none, or to one that has some and more calls than those can
    /// take. A worker that is used again and again is not taken from a domain for another's second worker, nor while another
    /// domain has a second one, nor from a caller that had less than the one that waits.
    fn gives_way_ns(&self, first: First, worker: &Worker, for_unplaced: bool) -> u64 {
        let ends_ns = match for_unplaced {
            true => self.ends_ns(worker),
            false => self.residency.ends_ns(worker, true, false),
        };
        let stays_ns = self.residency.stays_ns(worker);
        let several = self.several_workers > 0;
        let stays =
            || !for_unplaced || several && !self.is_one_of_several(worker) || self.goes_on(first, worker);
        if stays_ns > ends_ns && stays() { stays_ns } else { ends_ns }
    }

    /// True if an idle worker was its domain's long enough and others may want it.
    pub(in crate::schedule) fn may_go(&self, worker: &Worker, view: View<'_>) -> bool {
        worker.is_idle() && self.has_unplaced() && self.ends_ns(worker) <= view.now_ns
    }

    /// True if an idle worker that [may go](Self::may_go) goes at any pace: its caller is far ahead of those that wait. At the pace of
    /// residents that give way one after the other, those that happen to be idle then would go in its place for ever.
    pub(in crate::schedule) fn overstays(&self, worker: &Worker, view: View<'_>) -> bool {
        self.is_far_ahead(worker)
            && !self.residency.fills_slots(view.workers)
            && self.missing(view, self.residency.come_soon(view.workers)).0 > 0
    }

    /// True if a worker's caller is far ahead of those that wait.
    fn is_far_ahead(&self, worker: &Worker) -> bool {
        worker.served().is_some_and(|domain| self.asks.line().ahead_ns(domain.caller) > OVERSTAY_NS)
    }

    /// When a worker may go to a domain without one.
    fn ends_ns(&self, worker: &Worker) -> u64 {
        self.residency.ends_ns(worker, false, self.is_far_ahead(worker))
    }

    /// The idle worker that makes room next, for a domain without workers or for another one; else when there may be one. The one that
    /// is worth least goes first, and no worker before its domain's residency is over. A domain that has workers gets another only from
    /// one idle for as long. One whose domain waits for memory stays.
    pub(in crate::schedule) fn one_to_go(
        &self,
        for_unplaced: bool,
        view: View<'_>,
    ) -> Result<WorkerId, Option<u64>> {
        let first = self.asks.first();
        let ends_ns = |worker: &Worker| self.gives_way_ns(first, worker, for_unplaced);
        let may_go = |worker: &Worker| worker.served().is_some_and(|domain| !self.waits_for_memory(domain));
        worth_least(view.now_ns, ends_ns, view.workers.idle().filter(|(_, worker)| may_go(worker)))
    }

    /// A search for workers that make room is over; at this moment one may find what it did not find now.
    pub(in crate::schedule) fn searched(&mut self, again_ns: Option<u64>) {
        self.room_ns = again_ns;
    }

    /// How many workers are missing: for domains without any, for which so many `come_soon`, and for others.
    pub(in crate::schedule) fn missing(&self, view: View<'_>, come_soon: usize) -> (usize, usize) {
        let (unplaced, others) = match self.exclusive.is_closed() || self.asks.has_device() {
            false => {
                let wants = self.wanting(view).any(|domain| self.may_use_lane(domain, view));
                (self.asks.domains(), usize::from(wants))
            }
            // Only domains count that may start before the device is one call's.
            true => {
                let device = self.asks.device();
                (self.asks.iter().filter(|d| self.may_start(*d, device, view)).count(), 0)
            }
        };
        let coming = view.workers.coming();
        let for_others = (unplaced + others).saturating_sub(coming) - unplaced.saturating_sub(coming);
        (unplaced.saturating_sub(come_soon), for_others)
    }

    /// True if a search for domains without workers just found that none may go before a later moment. Every event that changes
    /// this is followed by a search.
    pub(in crate::schedule) fn is_searched(&self, now_ns: u64) -> bool {
        self.has_unplaced() && self.room_ns.is_some_and(|at_ns| at_ns > now_ns)
    }

    /// True if a search just found that no worker may go yet, and one that is idle since then may not, either.
    pub(in crate::schedule) fn is_searched_with(&mut self, worker: &Worker, view: View<'_>) -> bool {
        if !self.is_searched(view.now_ns) {
            return false;
        }
        let at_ns = self.gives_way_ns(self.asks.first(), worker, true);
        self.room_ns = self.room_ns.min(Some(at_ns));
        at_ns > view.now_ns
    }

    /// When a search may find a worker that it did not find before.
    pub(in crate::schedule) fn next_ns(&self) -> Option<u64> {
        self.room_ns
    }
}
