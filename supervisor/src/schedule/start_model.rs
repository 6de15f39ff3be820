//! What must hold whenever a call starts.

use super::memory::{batch, may_share};
use super::{Known, World};
use crate::ids::WorkerId;
use crate::limits::MAX_WORKERS;
use crate::schedule::CallId;
use crate::schedule::limits::OVERRUN_QUANTA;

impl World {
    /// Calls run in one job if they are alike, of one caller, and bring no more than a job may have.
    pub(super) fn check_job(&self, job: &[(CallId, u64)]) {
        let [(_, first), others @ ..] = job else { panic!("an empty job") };
        if others.is_empty() {
            return;
        }
        let items: u64 = job.iter().map(|(_, call)| batch(*call).unwrap().items).sum();
        assert!(items <= batch(*first).unwrap().most, "{items} items");
        let first = &self.calls[first];
        for known in job.iter().map(|(_, call)| &self.calls[call]) {
            assert_eq!((known.domain, known.function), (first.domain, first.function));
            assert!(!known.suspect && !known.whole && !known.apart, "{known:?} in a job");
        }
    }

    /// A call starts, behind those of its job in the same lane.
    pub(super) fn started(
        &mut self,
        worker: WorkerId,
        lane: u32,
        alone: bool,
        id: CallId,
        call: u64,
        job: &[(CallId, u64)],
    ) {
        assert!(self.present.contains(&worker), "{call} started on an absent worker");
        for (other, known) in self.calls.iter().filter(|(_, k)| k.running.is_some_and(|(w, _)| w == worker)) {
            let is_beside = job.iter().any(|(_, beside)| beside == other);
            assert_eq!(known.running == Some((worker, lane)), is_beside, "lane taken");
            assert!(!known.suspect, "{call} beside {other}, which must be alone");
            assert!(!alone, "{call}, which must be alone, beside {other}");
        }
        let is_whole = self.calls[&call].whole;
        let others = self.calls.values().filter(|k| k.running.is_some());
        assert!(
            !others.clone().any(|k| k.whole) && (!is_whole || others.count() == 0),
            "{call} beside others, and one of them needs the device"
        );
        if self.shape.shared_faults {
            let others: Vec<_> = self.calls.values().filter(|k| k.running.is_some()).collect();
            assert!(!alone || others.is_empty(), "{call}, a suspect, is not alone on the device");
            assert!(!others.iter().any(|k| k.suspect), "{call} beside a suspect");
        }
        let caller = self.calls[&call].domain;
        assert!(self.trouble.may_start(self.now, caller), "{call} started though its budget is spent");
        // Those in a worker that is being killed do not count.
        let beside =
            |k: &&Known| k.domain == caller && k.running.is_some_and(|(w, _)| self.present.contains(&w));
        let others = self.calls.values().filter(beside).count();
        assert!(!self.trouble.is_careful(self.now, caller) || others == 0, "{call} is not the only one");
        for (other, known) in self.calls.iter().filter(|(_, known)| known.running.is_none()) {
            // A caller's calls for the whole device go in their order, others wait for their callers' turn
            // (`exclusive_fairness_tests.rs`). A caller that spent its budget may be overtaken, and so may a call that ran
            // before or came back from another device: the next one may have been prepared when it came back.
            let in_order = known.domain == caller && known.whole && is_whole;
            let in_order = in_order && !known.started && !known.came_back;
            if in_order && !known.lost && !self.trouble.ever_spent(caller) {
                assert!(*other >= call, "{call} overtook {other}");
            }
        }
        let is_shared = self.is_shared(worker);
        let known = self.calls.get_mut(&call).expect("started and not open");
        match is_shared {
            true => {
                assert!(may_share(call) && !known.whole && !alone && !known.moved_out, "{call} beside others")
            }
            false => {
                let serves = self.serves.entry(worker).or_insert(known.domain);
                assert_eq!(*serves, known.domain, "a worker of two domains");
                self.since.entry(worker).or_insert(self.now);
            }
        }
        assert_eq!(alone, known.suspect);
        assert!(known.id.is_none_or(|known| known == id));
        assert!(!known.lost && known.running.replace((worker, lane)).is_none(), "{call} started twice");
        known.started = true;
        known.started_ns = self.now;
        known.runs += 1;
        assert!(known.runs <= 3, "{call} ran too often");
        let domain = known.domain;
        // Those that the same event sent away do not count, though they were not told yet.
        let stays = |w: &WorkerId| self.scheduler.workers[*w].served().is_some();
        let workers =
            self.serves.iter().filter(|(w, d)| **d == domain && self.present.contains(w) && stays(w));
        let workers = workers.count();
        assert!(workers <= self.shape.workers_per_domain, "a domain has too many workers");
    }

    /// A worker is told to end a job when the first of its calls is overdue, or its time in a shared worker is over: not before it had its
    /// turn, where all others, and those that have no worker, overrun theirs before.
    pub(super) fn ends_in_time(&self, worker: WorkerId, job: &[(CallId, u64)], until_ns: u64) {
        let deadline_ns = job.iter().map(|(_, call)| self.calls[call].deadline_ns).min().unwrap();
        let turn_ns = self.shape.quantum_us.map_or(0, |us| OVERRUN_QUANTA * u64::from(us) * 1000);
        let waits_ns = (MAX_WORKERS as u64 + 1) * turn_ns;
        let limit_ns = self.now.saturating_add(self.shape.shared_limit_ns);
        let ends = match self.is_shared(worker) && self.shape.lanes == 1 {
            true => deadline_ns.min(limit_ns)..=deadline_ns.min(limit_ns + waits_ns),
            false => deadline_ns..=deadline_ns,
        };
        assert!(ends.contains(&until_ns), "{job:?} is ended at {until_ns}, not in {ends:?}");
    }
}
