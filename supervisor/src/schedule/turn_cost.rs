//! What a change of turns costs, measured: from the moment at which one worker gave the device back until the first
//! call of the next one ended, less what this call takes by itself. It begins with what is known of the
//! kind of device. A worker gives the device back before it says how its last calls ended: what is heard of them afterwards
//! counts up to that moment. A call that runs beside others of its worker takes longer for their sake: it says nothing.
//!
//! What a call takes by itself is the least that such calls took lately, not what this one did: it waits on the device
//! for the chip to change, which is most of the cost on a GPU. With that left out, a change on an H200 seemed to cost so
//! little that no worker waited for its tenant's next call, and eight tenants with one call in flight each made 6300
//! calls a second instead of 16 000.
//!
//! A worker says itself how long its calls ran, so one sample moves the cost little: none counts for more than twice
//! what is known, and the cost stays within bounds.

use super::limits::{CHANGE_SHARE, LEAST_CHANGE_NS, MOST_CHANGE_NS};
use crate::ids::WorkerId;

/// The cost of a change, and the change that is being measured.
#[derive(Debug)]
pub(super) struct ChangeCost {
    cost_ns: u64,
    open: Option<(u64, WorkerId)>,
    /// The one before, if its worker gave the device back before its first call was heard of: since when, who, until when.
    late: Option<(u64, WorkerId, u64)>,
}

impl ChangeCost {
    /// Known to be about so much.
    pub(super) fn new(cost_ns: u64) -> Self {
        Self { cost_ns: cost_ns.clamp(LEAST_CHANGE_NS, MOST_CHANGE_NS), open: None, late: None }
    }

    /// The cost in nanoseconds.
    pub(super) fn ns(&self) -> u64 {
        self.cost_ns
    }

    /// The device went from one worker to worker `to`, which has calls.
    pub(super) fn changed(&mut self, now_ns: u64, to: WorkerId) {
        self.late = self.open.replace((now_ns, to)).map(|(since_ns, worker)| (since_ns, worker, now_ns));
    }

    /// Something came in between: this change says nothing.
    pub(super) fn disturbed(&mut self) {
        (self.open, self.late) = (None, None);
    }

    /// A worker's call ended, which takes `own_ns` by itself; `None` if it ran beside others.
    pub(super) fn finished(&mut self, now_ns: u64, worker: WorkerId, own_ns: Option<u64>) {
        let late =
            self.late.take_if(|(_, to, _)| *to == worker).map(|(since_ns, _, until_ns)| (since_ns, until_ns));
        let open = || self.open.take_if(|(_, to)| *to == worker).map(|(since_ns, _)| (since_ns, now_ns));
        let Some(((since_ns, until_ns), own_ns)) = late.or_else(open).zip(own_ns) else { return };
        let sample_ns = until_ns.saturating_sub(since_ns).saturating_sub(own_ns).min(2 * self.cost_ns);
        let moved = match sample_ns >= self.cost_ns {
            true => self.cost_ns + (sample_ns - self.cost_ns).div_ceil(CHANGE_SHARE),
            false => self.cost_ns - (self.cost_ns - sample_ns).div_ceil(CHANGE_SHARE),
        };
        self.cost_ns = moved.clamp(LEAST_CHANGE_NS, MOST_CHANGE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W0: WorkerId = WorkerId::new(0);
    const US: u64 = 1_000;

    fn sample(cost: &mut ChangeCost, took_ns: u64, own_ns: u64) {
        cost.changed(1_000_000, W0);
        cost.finished(1_000_000 + took_ns, W0, Some(own_ns));
    }

    #[test]
    fn the_cost_follows_what_changes_take_beyond_their_calls() {
        let mut cost = ChangeCost::new(140 * US);
        (0..200).for_each(|_| sample(&mut cost, 100 * US, 60 * US));
        assert!((40 * US..42 * US).contains(&cost.ns()), "{}", cost.ns());
        (0..200).for_each(|_| sample(&mut cost, 260 * US, 60 * US));
        assert!((198 * US..=200 * US).contains(&cost.ns()), "{}", cost.ns());
    }

    #[test]
    fn one_change_counts_once_and_only_where_its_worker_answers() {
        let mut cost = ChangeCost::new(100 * US);
        cost.finished(5, W0, Some(0));
        cost.changed(0, W0);
        cost.finished(90, WorkerId::new(1), Some(0));
        assert_eq!(cost.ns(), 100 * US);
        cost.finished(0, W0, Some(0));
        let moved = cost.ns();
        cost.finished(1_000 * US, W0, Some(0));
        assert_eq!((moved < 100 * US, cost.ns()), (true, moved));
        cost.changed(0, W0);
        cost.disturbed();
        cost.finished(0, W0, Some(0));
        assert_eq!(cost.ns(), moved);
    }

    #[test]
    fn a_call_beside_others_says_nothing() {
        let mut cost = ChangeCost::new(100 * US);
        cost.changed(0, W0);
        cost.finished(900 * US, W0, None);
        // Nor does the next one: the change is over.
        cost.finished(901 * US, W0, Some(US));
        assert_eq!(cost.ns(), 100 * US);
    }

    #[test]
    fn a_call_that_is_heard_of_late_counts_up_to_its_turns_end() {
        let (mut cost, mut said) = (ChangeCost::new(140 * US), ChangeCost::new(140 * US));
        let (mut now_ns, w1) = (0, WorkerId::new(1));
        for turn in 0..400 {
            let (last, next) = if turn % 2 == 0 { (w1, W0) } else { (W0, w1) };
            cost.changed(now_ns, next);
            // The last one's answer comes while the next one runs.
            cost.finished(now_ns + 30 * US, last, Some(60 * US));
            sample(&mut said, 100 * US, 60 * US);
            now_ns += 100 * US;
        }
        assert!(cost.ns().abs_diff(said.ns()) < US, "{} and {}", cost.ns(), said.ns());
    }

    #[test]
    fn a_worker_that_lies_moves_it_slowly_and_within_bounds() {
        let mut cost = ChangeCost::new(100 * US);
        sample(&mut cost, u64::MAX / 2, 0);
        assert!(cost.ns() <= 107 * US, "{}", cost.ns());
        (0..1000).for_each(|_| sample(&mut cost, u64::MAX / 2, 0));
        assert_eq!(cost.ns(), MOST_CHANGE_NS);
        (0..1000).for_each(|_| sample(&mut cost, 0, u64::MAX));
        assert_eq!(cost.ns(), LEAST_CHANGE_NS);
    }
}
