//! One worker gets the memory of all for a call that needs it, and gives it back.
//!
//! ```text
//! shared ──► shrinking: all but one ──► growing: that one ──► whole ──► returning: that one ──► spreading ──► shared
//! ```
//!
//! A step is over when every worker said that its settings are in force and nobody who still holds
//! memory is about to be reaped. So nothing is given out before it is free.

use std::sync::atomic::Ordering;

use pappus_protocol::now_ns;

use super::runtime::{Actions, Device, lock};
use crate::limits::SETTLE_NS;
use crate::schedule::WorkerId;

/// How the memory of a device is divided.
#[derive(Debug, Default)]
pub struct Whole {
    phase: Phase,
    /// The last move that was begun. Whoever causes a decision carries it out, so a later one may come first.
    last: u64,
    /// When those who did not answer are killed.
    pub(super) deadline_ns: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Shared,
    Shrinking(WorkerId),
    Growing(WorkerId),
    Whole(WorkerId),
    Returning,
    Spreading,
}

impl Phase {
    /// What follows once everybody answered.
    fn next(self) -> Self {
        match self {
            Self::Shrinking(to) => Self::Growing(to),
            Self::Growing(to) => Self::Whole(to),
            Self::Returning => Self::Spreading,
            Self::Spreading | Self::Shared => Self::Shared,
            Self::Whole(to) => Self::Whole(to),
        }
    }

    /// What a worker has in this phase, of its own and of all.
    fn lease(self, worker: WorkerId, own: u64, all: u64) -> u64 {
        match self {
            Self::Shared | Self::Spreading => own,
            Self::Shrinking(to) if to == worker => own,
            Self::Growing(to) | Self::Whole(to) if to == worker => all,
            Self::Shrinking(_) | Self::Growing(_) | Self::Whole(_) | Self::Returning => 0,
        }
    }
}

impl Whole {
    /// What a worker may have now.
    pub(super) fn lease_of(&self, device: &Device, worker: WorkerId) -> u64 {
        let own = device.slot(worker).own_bytes.load(Ordering::Relaxed);
        self.phase.lease(worker, own, device.largest_call_bytes())
    }

    /// Whether a move is later than all that were begun: what is older is over.
    fn is_news(&mut self, nth: u64) -> bool {
        let news = nth > self.last;
        self.last = self.last.max(nth);
        news
    }

    fn enter(&mut self, device: &Device, phase: Phase) {
        self.phase = phase;
        for worker in 0..device.slots.len() {
            let lease = self.lease_of(device, worker);
            if device.slot(worker).lease_bytes.swap(lease, Ordering::Relaxed) != lease {
                device.link(worker).configure(device.configure(worker));
            }
        }
        let moving = !matches!(phase, Phase::Shared | Phase::Whole(_));
        self.deadline_ns = moving.then(|| now_ns().saturating_add(SETTLE_NS));
        if moving {
            device.clock.notify_one();
        }
    }

    /// Whether everybody answered and nobody is about to be reaped.
    fn is_settled(&self, device: &Device) -> bool {
        let mut there = 0;
        for worker in 0..device.slots.len() {
            let link = device.link(worker);
            if !link.is_configured() {
                return false;
            }
            there += usize::from(link.pid().is_some());
        }
        there == device.ledger.leases()
    }
}

impl Device {
    /// The worker is to have the memory of all.
    pub(super) fn give_all(&self, worker: WorkerId, nth: u64) {
        self.begin(Phase::Shrinking(worker), nth);
    }

    /// Everybody is to have their own memory again.
    pub(super) fn give_back(&self, nth: u64) {
        self.begin(Phase::Returning, nth);
    }

    fn begin(&self, phase: Phase, nth: u64) {
        let mut whole = lock(&self.whole);
        if whole.is_news(nth) {
            whole.enter(self, phase);
            drop(whole);
            self.advance();
        }
    }

    /// Goes on with what was waited for, if it is there.
    pub(super) fn advance(&self) {
        let mut actions = Actions::new();
        {
            let mut whole = lock(&self.whole);
            while whole.phase.next() != whole.phase && whole.is_settled(self) {
                let next = whole.phase.next();
                whole.enter(self, next);
                match next {
                    Phase::Whole(worker) => {
                        self.decide(|scheduler| scheduler.whole_ready(now_ns(), worker, &mut actions));
                    }
                    Phase::Shared => self.decide(|scheduler| scheduler.whole_over(now_ns(), &mut actions)),
                    _ => {}
                }
            }
        }
        self.perform(actions);
    }

    /// Kills who does not answer, so that nobody waits for it for ever.
    pub(super) fn whole_expire(&self, now_ns: u64) {
        let mut whole = lock(&self.whole);
        if whole.deadline_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        whole.deadline_ns = Some(now_ns.saturating_add(SETTLE_NS));
        for worker in 0..self.slots.len() {
            let link = self.link(worker);
            if !link.is_configured() {
                tracing::warn!(worker, pid = link.pid(), "a worker does not take new settings: killing it");
                link.kill_any();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_comes_late_is_over() {
        let mut whole = Whole::default();
        assert!(whole.is_news(1) && whole.is_news(3));
        assert!(!whole.is_news(2) && !whole.is_news(3) && whole.is_news(4));
    }

    #[test]
    fn at_no_moment_more_is_given_than_there_is() {
        const OWN: u64 = 10;
        const ALL: u64 = 30;
        // Between two phases each worker has what it had, or already what it gets.
        let mut phase = Phase::Shrinking(1);
        let mut before = [OWN; 3];
        for _ in 0..5 {
            let after = std::array::from_fn(|worker| phase.lease(worker, OWN, ALL));
            let most: u64 = before.iter().zip(after).map(|(b, a): (&u64, u64)| a.max(*b)).sum();
            assert!(most <= ALL, "{phase:?}: {before:?} → {after:?}");
            before = after;
            phase = match phase {
                Phase::Whole(_) => Phase::Returning,
                phase => phase.next(),
            };
        }
        assert_eq!((phase, before), (Phase::Shared, [OWN; 3]));
    }
}
