//! A worker that has a grant, what is known of its turn, and the clock of what each of several had: plain state that `turns` decides with.

use crate::ids::{TenantId, TurnId, WorkerId};

/// A worker with a grant.
#[derive(Debug)]
pub(super) struct TurnHolder {
    pub(super) worker: WorkerId,
    pub(super) tenant: TenantId,
    pub(super) turn: TurnId,
    pub(super) granted_ns: u64,
    /// The clock by which calls are in the way of others at that time.
    pub(super) granted_clock_ns: u64,
    /// The clock of what each holder had at that time.
    pub(super) granted_part_ns: u64,
    pub(super) revoked_ns: Option<u64>,
    /// What that clock showed then.
    pub(super) revoked_part_ns: Option<u64>,
    /// From when on it is still to be charged: since then others want the device, too.
    pub(super) charged_from_ns: Option<u64>,
    /// How much of its time is accounted for: others waited meanwhile, or it is known to have used it.
    pub(super) accounted_ns: u64,
    /// Up to when what it used alone was counted.
    pub(super) counted_ns: u64,
    /// Since when it has no calls, if it has none.
    pub(super) idle_ns: Option<u64>,
    /// True if the next worker was told to be next.
    pub(super) announced: bool,
    /// True if the worker did not yield in time.
    pub(super) overran: bool,
    /// Time since then that it is not charged for yet: what is beyond its equal part, before the others' is subtracted.
    pub(super) overrun_ns: u64,
    /// [`Turns::beside_ns`](super::turns::Turns) when it overran.
    pub(super) beside_from_ns: u64,
    /// True if the worker is killed for keeping its turn.
    pub(super) given_up: bool,
}

impl TurnHolder {
    /// A worker gets its grant, while both clocks show nothing.
    pub(super) fn new(worker: WorkerId, tenant: TenantId, turn: TurnId, now_ns: u64) -> Self {
        Self {
            worker,
            tenant,
            turn,
            granted_ns: now_ns,
            granted_clock_ns: 0,
            granted_part_ns: 0,
            revoked_ns: None,
            revoked_part_ns: None,
            charged_from_ns: None,
            accounted_ns: 0,
            counted_ns: now_ns,
            idle_ns: None,
            announced: false,
            overran: false,
            overrun_ns: 0,
            beside_from_ns: 0,
            given_up: false,
        }
    }
}

/// A clock that runs as much slower as several share what it measures: what each of them had. One that had the device beside
/// seven others for 40 ms had 5 ms of it, however few are left by then.
#[derive(Debug)]
pub(super) struct SlowedClock {
    /// The time shown when the followed clock showed `at_ns`.
    shown_ns: u64,
    at_ns: u64,
    sharers: u64,
}

impl SlowedClock {
    /// Nobody shares yet: it runs as fast as the clock that it follows.
    pub(super) fn new() -> Self {
        Self { shown_ns: 0, at_ns: 0, sharers: 1 }
    }

    /// What it shows.
    pub(super) fn ns(&self, now_ns: u64) -> u64 {
        self.shown_ns + now_ns.saturating_sub(self.at_ns) / self.sharers
    }

    /// When it shows so much, if as many share until then.
    pub(super) fn shows_at_ns(&self, shown_ns: u64) -> u64 {
        self.at_ns.saturating_add(shown_ns.saturating_sub(self.shown_ns).saturating_mul(self.sharers))
    }

    /// So many share from now on; none is as one.
    pub(super) fn set_sharers(&mut self, now_ns: u64, sharers: usize) {
        (self.shown_ns, self.at_ns) = (self.ns(now_ns), now_ns.max(self.at_ns));
        self.sharers = (sharers as u64).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_has_its_part() {
        let mut clock = SlowedClock::new();
        clock.set_sharers(100, 4);
        assert_eq!((clock.ns(100), clock.ns(140), clock.shows_at_ns(110)), (100, 110, 140));
        clock.set_sharers(140, 1);
        assert_eq!((clock.ns(150), clock.shows_at_ns(120), clock.shows_at_ns(5)), (120, 150, 140));
        clock.set_sharers(150, 0);
        assert_eq!(clock.ns(160), 130);
    }
}
