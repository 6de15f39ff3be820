//! Loads whose rates by turns and by slicing are known: which mode is in force, and what finding that out costs.

use super::*;
use crate::ids::FunctionId;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// How long a call takes, at least.
const CALL_NS: u64 = 1_000;

/// All calls are of one kind.
fn kind() -> Kind {
    Kind::of(FunctionId::new(1), TenantId::new(1), 1)
}

const SIGHT: Sight = Sight { parties: 2, equal: true, settled: true, round_ns: 10 * MS, running: 16 };

impl TurnMode {
    /// How many calls are counted.
    pub(in crate::schedule) fn counted(&self) -> u64 {
        self.work.calls()
    }
}

/// A mode, and two tenants that complete so many thousandths of the device's time by turns and where the chip slices.
struct Load {
    mode: TurnMode,
    times: RunTimes,
    clock_ns: u64,
    turns: [u64; 2],
    slicing: [u64; 2],
    /// Completed work.
    work_ns: u64,
    /// How long workers take to yield when the chip slices no more, in which nothing is completed; and how long it lasts.
    yields_ns: u64,
    yielding_ns: u64,
}

impl Load {
    fn new(turns: u64, slicing: u64) -> Self {
        let (mode, mut times) = (TurnMode::new(), RunTimes::default());
        times.ended(kind(), CALL_NS);
        let (turns, slicing) = ([turns / 2; 2], [slicing / 2; 2]);
        Self { mode, times, clock_ns: 0, turns, slicing, work_ns: 0, yields_ns: 0, yielding_ns: 0 }
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
            self.yielding_ns = if slices { self.yields_ns } else { self.yielding_ns.saturating_sub(MS) };
            let settled = slices || self.yielding_ns == 0;
            let rates = if slices { self.slicing } else { self.turns };
            for (tenant, rate) in (0..).zip(rates.map(|rate| if settled { rate } else { 0 })) {
                self.mode.work.add(TenantId::new(tenant), kind(), MS * rate / 1000 / CALL_NS);
                self.work_ns += MS * rate / 1000;
            }
            self.mode.look(self.clock_ns, Sight { settled, ..SIGHT }, &self.times);
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
fn what_workers_take_to_yield_says_nothing_about_turns() {
    // By turns twice as much is done, once all yielded.
    let mut load = Load::new(900, 450);
    load.yields_ns = 30 * MS;
    load.run(60_000 * MS);
    assert!(!load.mode.slicing && load.run(60_000 * MS) < 20, "they are kept");
    load.mode.reset(load.clock_ns, true);
    load.run(2_000 * MS);
    assert!(load.run(10_000 * MS) < 50, "they are found again");
    // Workers that do not yield are waited for only so long.
    load.yields_ns = 10_000 * MS;
    load.mode.reset(load.clock_ns, true);
    load.run(20_000 * MS);
    assert!(load.mode.slicing, "a probe came to its end, and nothing was completed by it");
    assert_eq!(load.mode.phase, Phase::Watch);
}

#[test]
fn functions_that_were_first_called_while_the_chip_sliced_do_not_keep_it_slicing() {
    // By turns twice as much is done; but calls seemed to take ten times as long before there were any.
    let mut load = Load::new(900, 450);
    load.times = RunTimes::default();
    load.times.ended_beside_others(kind(), 10 * CALL_NS);
    load.mode.reset(0, true);
    while load.mode.slices() {
        load.run(MS);
    }
    load.times.ended(kind(), CALL_NS);
    load.run(2_000 * MS);
    assert!(load.run(10_000 * MS) < 50);
}

#[test]
fn work_is_counted_for_a_round_of_turns() {
    let (mut mode, times) = (TurnMode::new(), RunTimes::default());
    let sight = Sight { running: 0, ..SIGHT };
    mode.look(MS, Sight { round_ns: 320 * MS, ..sight }, &times);
    assert_eq!(mode.next_look_ns(MS), 319 * MS);
    mode.look(300 * MS, sight, &times);
    assert_eq!(mode.next_look_ns(300 * MS), WINDOW_NS, "a shorter one ended that window");
}

#[test]
fn the_most_calls_of_a_phase_say_how_many_must_end() {
    let (mut mode, times) = (TurnMode::new(), RunTimes::default());
    (0..70).for_each(|_| mode.completed(TenantId::new(1), kind()));
    mode.look(MS, Sight { running: 64, ..SIGHT }, &times);
    // All ended together, and the next ones are not here yet.
    mode.look(WINDOW_NS + MS, Sight { running: 0, ..SIGHT }, &times);
    assert_eq!(mode.counted(), 70, "three times 64 are waited for");
}

#[test]
fn slicing_of_which_nothing_is_known_is_paid_for() {
    let mut load = Load::new(400, 900);
    load.mode.reset(0, true);
    // More calls than end.
    load.mode.look(MS, Sight { running: u64::MAX, ..SIGHT }, &load.times);
    load.run(LONGEST_WINDOW_NS + MS);
    assert!(!load.mode.slices(), "there are turns");
    assert_eq!(load.run(PAID_BY * LONGEST_WINDOW_NS - 2 * MS), 0);
    load.run(2_000 * MS);
    assert!(load.run(1_000 * MS) > 900, "slicing is better, and found again");
}

#[test]
fn different_shares_are_kept_by_turns() {
    let mut load = Load::new(400, 900);
    load.run(2_000 * MS);
    assert!(load.mode.slices());
    assert!(!load.mode.look(load.clock_ns, Sight { equal: false, ..SIGHT }, &load.times));
    for _ in 0..5_000 {
        load.clock_ns += MS;
        assert!(!load.mode.look(load.clock_ns, Sight { equal: false, ..SIGHT }, &load.times));
    }
}

#[test]
fn without_work_nothing_is_better() {
    let mut load = Load::new(0, 0);
    assert_eq!(load.run(10_000 * MS), 0);
    load.mode.reset(load.clock_ns, true);
    load.run(LONGEST_WINDOW_NS + MS);
    assert_eq!(load.run(10_000 * MS), 0, "there are turns again");
}

/// Eight tenants with eight calls each, which take nearly a whole turn: eight end at about the same time, turn after turn; where
/// the chip slices, all 64. What is done in a turn is so much; where it slices, so many thousandths of that.
struct LongCalls {
    mode: TurnMode,
    times: RunTimes,
    chance: u64,
    /// What is left of each tenant's calls, in nanoseconds of the whole device; nothing where it waits for its turn.
    left: [[u64; 8]; 8],
    holder: usize,
    slicing: u64,
}

impl LongCalls {
    const STEP_NS: u64 = 100_000;
    const CALL_NS: u64 = 675_000;

    fn new(chance: u64, slicing: u64) -> Self {
        let (mode, mut times) = (TurnMode::new(), RunTimes::default());
        times.ended(kind(), 4 * MS);
        let mut all = Self { mode, times, chance, left: [[0; 8]; 8], holder: 0, slicing };
        all.left[0] = [Self::CALL_NS; 8];
        all
    }

    fn call_ns(&mut self) -> u64 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Self::CALL_NS - Self::CALL_NS / 16 + (self.chance >> 33) % (Self::CALL_NS / 8)
    }

    /// Whether the chip sliced in each step.
    fn run(&mut self, for_ns: u64) -> Vec<bool> {
        (0..for_ns / Self::STEP_NS).map(|step| self.step(step * Self::STEP_NS)).collect()
    }

    fn step(&mut self, clock_ns: u64) -> bool {
        let slices = self.mode.slices();
        let others = |all: &Self, holder: usize| {
            (0..8).any(|tenant| tenant != holder && all.left[tenant].iter().any(|left| *left > 0))
        };
        let settled = slices || !others(self, self.holder);
        let running = self.left.iter().flatten().filter(|left| **left > 0).count() as u64;
        let done_ns = if settled && !slices { Self::STEP_NS } else { Self::STEP_NS * self.slicing / 1000 };
        for tenant in 0..8 {
            for call in 0..8 {
                let before = self.left[tenant][call];
                let after = before.saturating_sub(done_ns / running.max(1));
                self.left[tenant][call] = after;
                if before > 0 && after == 0 {
                    self.mode.completed(TenantId::new(tenant as u32), kind());
                }
            }
        }
        let idle = self.left.iter().flatten().all(|left| *left == 0);
        if !slices && idle {
            self.holder = (self.holder + 1) % 8;
            self.left[self.holder] = std::array::from_fn(|_| self.call_ns());
        }
        for tenant in 0..8 {
            for call in 0..8 {
                if slices && self.left[tenant][call] == 0 {
                    self.left[tenant][call] = self.call_ns();
                }
            }
        }
        let sight = Sight { parties: 8, equal: true, settled, round_ns: 40 * MS, running: 64 };
        self.mode.look(clock_ns, sight, &self.times);
        slices
    }
}

/// How much of the time the chip slices that does so much by it, in thousandths, from the third second on.
fn sliced_of_long_calls(slicing: u64) -> Vec<u64> {
    let of = |seed| {
        let steps = LongCalls::new(seed, slicing).run(14_000 * MS);
        let late = &steps[steps.len() / 7..];
        late.iter().filter(|slices| **slices).count() as u64 * 1000 / late.len() as u64
    };
    (1..5).map(of).collect()
}

#[test]
fn calls_that_end_together_make_no_mode_seem_better() {
    for (slicing, wanted) in [(500, 0..100), (860, 0..100), (1000, 0..100), (1300, 900..1001)] {
        let sliced = sliced_of_long_calls(slicing);
        assert!(sliced.iter().all(|sliced| wanted.contains(sliced)), "{slicing}: {sliced:?}");
    }
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
