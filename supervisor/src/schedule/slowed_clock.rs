//! A clock that runs as much slower as several share what it measures: what each of them had. One that had the device beside
//! seven others for 40 ms had 5 ms of it, however few are left by then.

/// The clock.
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
