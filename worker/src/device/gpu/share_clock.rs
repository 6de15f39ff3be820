//! How much of a device each of several calls had that run beside each other: while there are n of them, each has an nth.

/// The most that counts between two looks. The worker looks all the time while calls run: where one look comes this long after another,
/// the worker was held up meanwhile, by the driver or by work for another call, which is no call's part of the device.
const LOOK_NS: u64 = 100_000;

/// A clock that n times slower goes while n calls run.
#[derive(Debug, Default)]
pub(super) struct ShareClock {
    calls: u64,
    part_ns: u64,
    /// When it was looked at last.
    seen_ns: u64,
}

impl ShareClock {
    /// What it shows. Without calls it stands still.
    pub(super) fn at(&mut self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.seen_ns).min(LOOK_NS);
        self.part_ns += passed_ns.checked_div(self.calls).unwrap_or(0);
        // Looks may follow each other within less than a nanosecond of each call.
        self.seen_ns = now_ns - passed_ns.checked_rem(self.calls).unwrap_or(0);
        self.part_ns
    }

    /// One more call runs; what the clock shows when the call begins.
    pub(super) fn begins(&mut self, now_ns: u64) -> u64 {
        let began_ns = self.at(now_ns);
        self.calls += 1;
        began_ns
    }

    /// One of them is over.
    pub(super) fn ends(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.calls = self.calls.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beside_each_other_have_their_part() {
        let mut clock = ShareClock::default();
        let first = clock.begins(1_000);
        assert_eq!(clock.at(1_100) - first, 100, "alone");
        let second = clock.begins(1_100);
        assert_eq!((clock.at(1_300) - first, clock.at(1_300) - second), (200, 100));
        for now_ns in 1_300..=1_320 {
            clock.at(now_ns);
        }
        assert_eq!(clock.at(1_320) - second, 110, "nothing is lost by looking often");
        clock.ends(1_320);
        assert_eq!(clock.at(1_350) - second, 140, "alone again");
        clock.ends(1_350);
        let third = clock.begins(9_000_000);
        assert_eq!(clock.at(9_000_010) - third, 10, "nothing ran meanwhile");
    }

    #[test]
    fn what_holds_the_worker_up_is_no_part_of_a_call() {
        let mut clock = ShareClock::default();
        let began_ns = clock.begins(1_000);
        assert_eq!(clock.at(20_001_000) - began_ns, LOOK_NS, "the driver was busy for 20 ms");
        let looks = (1..=20_u64).map(|nth| 20_001_000 + nth * LOOK_NS);
        assert_eq!(looks.map(|at_ns| clock.at(at_ns)).last(), Some(began_ns + 21 * LOOK_NS), "a kernel was");
    }
}
