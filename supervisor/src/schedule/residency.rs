//! Who keeps a process: beyond the ceiling of workers the resident that is worth least gives way, at a pace that costs
//! the others little.
//!
//! A resident is worth the more, the dearer it would be to have it again and the shorter ago it had a call: of two, the
//! one goes whose time without calls is the longer in terms of what it would have to do again.
//!
//! To make a process costs all who use the device. So a resident is replaced only while a standby is ready for its slot;
//! where none comes for a while, or none is kept, one after the other. To scrub a process costs the device some
//! milliseconds (with the graphs that are made again, up to 80 on an H100): a resident in use is scrubbed for another
//! domain only so often that this takes less than a tenth of the time; one that had no call for as long goes at once.
//! To make a process takes tens of times as long as to scrub one: a domain that waits does not wait for one that starts.

use super::asks::QueueKey;
use super::limits::{STANDBY_PATIENCE_NS, UNUSED_NS};
use super::types::{ResidentPrice, Shape};
use super::workers::{Worker, Workers};
use crate::ids::WorkerId;

/// How residents give way on one device.
#[derive(Debug)]
pub(super) struct Residency {
    shape: Shape,
    /// Standbys that are ready.
    ready: usize,
    /// When a resident was replaced last.
    replaced_ns: Option<u64>,
    /// When the next one in use may be scrubbed, and what decides that: see [`ResidentPrice`].
    scrubs_again_ns: u64,
    /// What the context of an urgent process takes, from a refusal on until one has its memory, and the queue that asks for it.
    short_of: Option<(u64, Option<QueueKey>)>,
}

impl Residency {
    /// Of a device without processes.
    pub(super) fn new(shape: &Shape) -> Self {
        Self { shape: *shape, ready: 0, replaced_ns: None, scrubs_again_ns: 0, short_of: None }
    }

    /// The device is set up otherwise.
    pub(super) fn resize(&mut self, shape: &Shape) {
        self.shape = *shape;
    }

    /// So many standbys are ready now.
    pub(super) fn set_ready(&mut self, ready: usize) {
        self.ready = ready;
    }

    /// What the context of an urgent process takes that was refused, and the queue that asks for it: empty slots stay empty meanwhile.
    pub(super) fn set_short_of(&mut self, short_of: Option<(u64, Option<QueueKey>)>) {
        self.short_of = short_of;
    }

    /// The bytes of a context that a queue asks for.
    pub(super) fn context_for(&self) -> Option<(u64, QueueKey)> {
        self.short_of.and_then(|(bytes, queue)| Some((bytes, queue?)))
    }

    /// What all who use the device lose while a domain is given a process that another one had, or while it is made. While a process is
    /// made, all others keep nine tenths of the device.
    pub(super) fn hand_over_ns(&self) -> u64 {
        let ResidentPrice { process_ns, made_ns, .. } = self.shape.resident_price;
        if self.shape.scrubs { process_ns } else { made_ns / 10 }
    }

    /// How long a domain keeps a worker that another one waits for.
    pub(super) fn least_ns(&self) -> u64 {
        self.shape.residency_ns
    }

    /// True if there are empty slots for those that wait, into which processes come.
    pub(super) fn fills_slots(&self, workers: &Workers) -> bool {
        self.short_of.is_none() && workers.first_empty().is_some()
    }

    /// A resident is about to be replaced.
    pub(super) fn replaces(&mut self, now_ns: u64) {
        self.replaced_ns = Some(now_ns);
    }

    /// A resident is about to be scrubbed: the next domain is expected to have as much to do in it as the last one had.
    pub(super) fn scrubs(&mut self, now_ns: u64, worker: &Worker) {
        self.scrubs_again_ns = now_ns.saturating_add(self.pause_ns(worker));
    }

    /// How long no other resident in use is scrubbed behind one, so that it costs the device little.
    fn pause_ns(&self, worker: &Worker) -> u64 {
        let price = self.shape.resident_price;
        price.scrub_share * worker.rebuild_cost.again_ns(price, true)
    }

    /// True if another process may come into an empty slot, while so many are `coming`: those that take a standby need not be made.
    pub(super) fn may_start(&self, coming: usize) -> bool {
        coming < self.shape.starting + self.ready
    }

    /// How many of the processes that come are there about as soon as a resident that gives way now.
    pub(super) fn come_soon(&self, workers: &Workers) -> usize {
        match self.shape.scrubs {
            true => workers.scrubbing() + workers.absent().min(self.ready),
            false => workers.coming(),
        }
    }

    /// How many residents may give way now, while so many processes are `coming` and so many are `missing`; else when
    /// one may.
    pub(super) fn may_go(&self, now_ns: u64, coming: usize, missing: usize) -> Result<usize, Option<u64>> {
        let most = match (self.shape.scrubs, self.shape.standbys) {
            (true, _) => missing,
            (false, 0) => usize::from(coming == 0),
            (false, _) if self.ready > coming => self.ready - coming,
            (false, _) => {
                let at_ns = self.replaced_ns.map_or(0, |at_ns| at_ns.saturating_add(STANDBY_PATIENCE_NS));
                if coming == 0 && at_ns > now_ns {
                    return Err(Some(at_ns));
                }
                usize::from(coming == 0)
            }
        };
        if most == 0 { Err(None) } else { Ok(most.min(missing)) }
    }

    /// When a domain need not keep a worker any longer that others wait for. A domain that has workers gets another
    /// only from one that was `idle` for as long. However dear the change is, it goes at once where its caller `had_enough`.
    pub(super) fn ends_ns(&self, worker: &Worker, idle: bool, had_enough: bool) -> u64 {
        let since_ns = if idle { worker.bound_ns.max(worker.idle_since_ns) } else { worker.bound_ns };
        let ends_ns = since_ns.saturating_add(self.shape.residency_ns);
        if !self.shape.scrubs || had_enough {
            return ends_ns;
        }
        let unused_ns = match worker.is_idle() {
            true => worker.idle_since_ns.saturating_add(UNUSED_NS.min(self.pause_ns(worker))),
            false => u64::MAX,
        };
        ends_ns.max(self.scrubs_again_ns.min(unused_ns))
    }

    /// Until when an idle worker is likely to be used again before it would be worth its price to have it made again.
    pub(super) fn stays_ns(&self, worker: &Worker) -> u64 {
        let Shape { residency_ns, resident_price, scrubs, .. } = self.shape;
        match residency_ns {
            0 => 0,
            _ => worker.idle_since_ns.saturating_add(worker.rebuild_cost.again_ns(resident_price, scrubs)),
        }
    }

    /// From now on domains keep their workers for so long, and are scrubbed at any pace.
    #[cfg(test)]
    pub(super) fn set_least(&mut self, least_ns: u64) {
        (self.shape.residency_ns, self.scrubs_again_ns, self.shape.resident_price.scrub_share) =
            (least_ns, 0, 0);
    }
}

/// True if of two residents without calls the first is worth less. Only the ratio of their prices counts, which is much the same on
/// any device.
fn is_worth_less(now_ns: u64, one: &Worker, other: &Worker) -> bool {
    let idle_ns = |worker: &Worker| u128::from(now_ns.saturating_sub(worker.idle_since_ns).saturating_add(1));
    let cost_ns = |worker: &Worker| u128::from(worker.rebuild_cost.rebuild_ns(ResidentPrice::GPU));
    idle_ns(one) * cost_ns(other) > idle_ns(other) * cost_ns(one)
}

/// Of these idle workers the one that is worth least and may go now; else when the first one may.
pub(super) fn worth_least<'a>(
    now_ns: u64,
    ends_ns: impl Fn(&Worker) -> u64,
    idle: impl Iterator<Item = (WorkerId, &'a Worker)>,
) -> Result<WorkerId, Option<u64>> {
    let (mut least, mut next_ns): (Option<(WorkerId, &Worker)>, Option<u64>) = (None, None);
    for one in idle {
        let ends_ns = ends_ns(one.1);
        if ends_ns > now_ns {
            next_ns = next_ns.into_iter().chain([ends_ns]).min();
        } else if least.is_none_or(|least| is_worth_less(now_ns, one.1, least.1)) {
            least = Some(one);
        }
    }
    least.map(|(id, _)| id).ok_or(next_ns)
}

#[cfg(test)]
mod tests {
    use super::super::types::CallId;
    use super::super::workers::Workers;
    use super::*;
    use crate::ids::{FunctionId, WorkerId};

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_is_dear_to_have_again_goes_later() {
        let mut workers = Workers::new(2, 0, 8);
        let [cheap, dear] = [0, 1].map(WorkerId::new);
        workers[dear].rebuild_cost.ran(0, FunctionId::new(1), 20 << 30);
        (workers[cheap].idle_since_ns, workers[dear].idle_since_ns) = (9 * S, 8 * S);
        assert!(is_worth_less(10 * S, &workers[cheap], &workers[dear]));
        assert!(!is_worth_less(10 * S, &workers[dear], &workers[cheap]));
        // But not for ever.
        workers[dear].idle_since_ns = 0;
        assert!(is_worth_less(10 * S, &workers[dear], &workers[cheap]));
    }

    #[test]
    fn residents_in_use_are_scrubbed_at_a_pace_and_others_at_once() {
        let mut residency = Residency::new(&Shape { scrubs: true, residency_ns: 0, ..Shape::new(2, 1) });
        let mut workers = Workers::new(2, 0, 8);
        let [busy, idle] = [0, 1].map(WorkerId::new);
        workers.put(busy, CallId(1), 0, false);
        workers[busy].rebuild_cost.ran(0, FunctionId::new(1), 0);
        assert_eq!(residency.ends_ns(&workers[busy], false, false), 0, "none was scrubbed yet");
        residency.scrubs(S, &workers[busy]);
        let next_ns = residency.ends_ns(&workers[busy], false, false);
        assert_eq!(
            next_ns,
            S + ResidentPrice::GPU.scrub_share
                * workers[busy].rebuild_cost.again_ns(ResidentPrice::GPU, true)
        );
        // Long unused; what ran in it makes it no dearer than that.
        workers[idle].rebuild_cost.ran(0, FunctionId::new(1), 0);
        workers[idle].idle_since_ns = S - UNUSED_NS;
        assert_eq!(residency.ends_ns(&workers[idle], false, false), S);
        workers[idle].idle_since_ns = 2 * S;
        assert_eq!(residency.ends_ns(&workers[idle], false, false), next_ns.min(2 * S + UNUSED_NS));
    }

    #[test]
    fn on_the_cpu_they_are_scrubbed_every_few_milliseconds() {
        let shape =
            Shape { scrubs: true, residency_ns: 0, resident_price: ResidentPrice::CPU, ..Shape::new(1, 1) };
        let (mut residency, mut workers) = (Residency::new(&shape), Workers::new(1, 0, 1));
        let only = WorkerId::new(0);
        workers.put(only, CallId(1), 0, false);
        workers[only].rebuild_cost.ran(0, FunctionId::new(1), 0);
        residency.scrubs(S, &workers[only]);
        assert!(residency.ends_ns(&workers[only], false, false) < S + 5_000_000);
        // Idle, it is not kept for the sake of what a fresh process would cost, which nobody makes.
        residency.set_least(1);
        assert!(residency.stays_ns(&workers[only]) < 1_000_000, "{}", residency.stays_ns(&workers[only]));
        let replaces = Residency::new(&Shape { scrubs: false, residency_ns: 1, ..shape });
        assert!(replaces.stays_ns(&workers[only]) > 10_000_000);
    }

    #[test]
    fn residents_go_as_standbys_come() {
        let mut residency = Residency::new(&Shape { standbys: 2, ..Shape::new(4, 1) });
        assert_eq!(residency.may_go(0, 0, 3), Ok(1), "the first need not wait for what may never come");
        residency.replaces(0);
        assert_eq!(residency.may_go(S / 2, 1, 3), Err(None));
        assert_eq!(residency.may_go(S / 2, 0, 3), Err(Some(S)));
        residency.set_ready(2);
        assert_eq!(residency.may_go(S / 2, 0, 3), Ok(2));
        assert_eq!(residency.may_go(S / 2, 1, 3), Ok(1));
        residency.set_ready(0);
        assert_eq!(residency.may_go(S, 0, 3), Ok(1), "it did not come for a while");
        let scrubs = Residency::new(&Shape { standbys: 2, scrubs: true, ..Shape::new(4, 1) });
        assert_eq!(scrubs.may_go(0, 3, 7), Ok(7));
        let none = Residency::new(&Shape::new(4, 1));
        assert_eq!((none.may_go(0, 0, 3), none.may_go(0, 1, 3)), (Ok(1), Err(None)));
    }
}
