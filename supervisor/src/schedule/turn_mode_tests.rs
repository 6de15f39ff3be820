//! Loads whose rates by turns and by slicing are known: which mode is in force, and what finding that out costs.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A mode, and two tenants that complete so many thousandths of the device's time by turns and where the chip slices.
struct Load {
    mode: TurnMode,
    clock_ns: u64,
    turns: [u64; 2],
    slicing: [u64; 2],
    /// Completed work.
    work_ns: u64,
}

impl Load {
    fn new(turns: u64, slicing: u64) -> Self {
        let mode = TurnMode::new();
        Self { mode, clock_ns: 0, turns: [turns / 2; 2], slicing: [slicing / 2; 2], work_ns: 0 }
    }

    fn is(&mut self, turns: u64, slicing: u64) {
        (self.turns, self.slicing) = ([turns / 2; 2], [slicing / 2; 2]);
    }

    /// Lets time pass. How much of it the chip sliced, in thousandths.
    fn run(&mut self, for_ns: u64) -> u64 {
        let (until, mut sliced) = (self.clock_ns + for_ns, 0);
        while self.clock_ns < until {
            self.clock_ns += MS;
            let slices = self.mode.slices();
            sliced += u64::from(slices) * MS;
            for (tenant, rate) in (0..).zip(if slices { self.slicing } else { self.turns }) {
                self.mode.completed(TenantId::new(tenant), MS * rate / 1000);
                self.work_ns += MS * rate / 1000;
            }
            self.mode.look(self.clock_ns, 2, true);
        }
        sliced * 1000 / for_ns
    }
}

#[test]
fn the_better_mode_is_in_force_and_the_other_is_tried_rarely() {
    for (turns, slicing, wanted) in [(900, 400, 0..10), (400, 900, 990..1001), (800, 840, 0..10)] {
        let mut load = Load::new(turns, slicing);
        load.run(2_000 * MS);
        load.run(60_000 * MS);
        let sliced = load.run(60_000 * MS);
        assert!(wanted.contains(&sliced), "{turns} against {slicing}: {sliced}");
    }
}

#[test]
fn a_change_of_the_load_is_noticed_soon() {
    let mut load = Load::new(900, 400);
    load.run(300_000 * MS);
    assert_eq!(load.mode.pause_ns, LONGEST_PAUSE_NS);
    load.is(200, 700);
    load.run(1_000 * MS);
    assert!(load.run(1_000 * MS) > 900);
    load.is(900, 300);
    load.run(5_000 * MS);
    assert!(load.run(1_000 * MS) < 100);
}

#[test]
fn slicing_that_only_some_gain_by_is_not_better() {
    let mut load = Load::new(0, 0);
    (load.turns, load.slicing) = ([300, 300], [800, 100]);
    load.run(10_000 * MS);
    assert!(load.run(10_000 * MS) < 100, "one gains, the other loses more than that");
    (load.turns, load.slicing) = ([300, 300], [500, 290]);
    load.run(60_000 * MS);
    assert!(load.run(10_000 * MS) > 900);
    // By turns again, as soon as tenants lose on average.
    (load.turns, load.slicing) = ([300, 300], [600, 100]);
    load.run(60_000 * MS);
    assert!(load.run(1_000 * MS) < 100);
}

#[test]
fn a_load_that_rises_during_a_probe_is_no_better_mode() {
    let mut load = Load::new(500, 400);
    while !load.mode.slices() {
        load.run(MS);
    }
    load.is(1000, 800);
    load.run(200 * MS);
    assert!(!load.mode.slicing && load.run(200 * MS) == 0);
}

#[test]
fn different_shares_are_kept_by_turns() {
    let mut load = Load::new(400, 900);
    load.run(2_000 * MS);
    assert!(load.mode.slices());
    assert!(!load.mode.look(load.clock_ns, 2, false));
    for _ in 0..5_000 {
        load.clock_ns += MS;
        assert!(!load.mode.look(load.clock_ns, 2, false));
    }
}

#[test]
fn without_work_nothing_is_better() {
    let mut load = Load::new(0, 0);
    load.run(10_000 * MS);
    assert!(!load.mode.slicing && load.mode.pause_ns > SHORTEST_PAUSE_NS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However the two compare: from the third second on, nearly as much is done as by the better one alone.
    #[test]
    fn what_is_done_is_nearly_what_the_better_mode_does(turns in 20u64..1000, slicing in 20u64..1000) {
        let mut load = Load::new(turns, slicing);
        load.run(3_000 * MS);
        load.work_ns = 0;
        for seconds in 1..6 {
            load.run(1_000 * MS);
            let all_ns = seconds * 1_000 * MS * turns.max(slicing) / 1000;
            // A tenth where they are nearly the same.
            let close = turns.abs_diff(slicing) * 9 < turns.max(slicing);
            let least = if close { 88 } else { 96 };
            prop_assert!(load.work_ns * 100 >= all_ns * least, "{} of {all_ns}", load.work_ns);
        }
    }

    /// Over any stretch that begins when the mode is found, probes that find nothing better cost a fiftieth and one
    /// probe more.
    #[test]
    fn probing_costs_a_fiftieth(worse in 0u64..900, seconds in 1u64..30) {
        let mut load = Load::new(900, worse);
        load.run(seconds * 1_000 * MS);
        let all_ns = seconds * 1_000 * MS * 900 / 1000;
        let lost_ns = all_ns - load.work_ns;
        let one_ns = (SETTLE_NS + WINDOW_NS + 2 * MS) * (900 - worse) / 1000;
        prop_assert!(lost_ns <= all_ns / 50 + one_ns, "{lost_ns} of {all_ns}");
    }
}
