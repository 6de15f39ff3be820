//! Whether turns are better than leaving it to the chip to slice its time between workers: found out while serving.
//!
//! Turns cost a change whenever they end, and bring nothing where each worker has little to run; slicing costs a change
//! whenever a slice ends, and interleaves what would have run better in a row. Which is better depends on the chip, the
//! calls and how many are in flight, so both are tried and the work that is completed is compared. The work of a call is
//! the least that calls of its function took on the device, so that calls count the same in both modes.
//!
//! A sum alone hides what most tenants lose behind what one gains. So workers must not lose by it on average, either, each
//! counted by the ratio of what it completes in both modes (the geometric mean); how they share a short window is left to
//! chance.
//!
//! ```text
//! watch the mode in force ──pause over──► probe the other: settle, then measure ──better──► that one is in force
//!        ▲                                                               └──not better──┐
//!        └──────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - Time counts while at least two parties want the device; all lengths below are of such time.
//! - A probe first lets turns settle, which is not counted. Windows last two rounds of turns: shorter ones count tenants
//!   that happened to have a turn.
//! - The other mode must be better by a tenth: that is the hysteresis.
//! - The pause between probes doubles while the answer stays the same, from half a second to a minute: a probe that
//!   costs a quarter of the rate for 100 ms costs a twentieth at first and less than a thousandth in the end. It is short
//!   again when the mode changes, when the number of parties changes by more than an eighth, or when the rate of work halves
//!   or doubles.
//! - Slicing gives each worker the same time. Where tenants have different weights or classes, there are turns only.
//!   While a call overruns its turn, or its tenant stands behind what that used, slicing is not tried.

use crate::ids::WorkerId;
use crate::limits::MAX_WORKERS;

/// How long a mode settles before its work counts.
const SETTLE_NS: u64 = 10_000_000;
/// How long its work is counted at least.
const WINDOW_NS: u64 = 40_000_000;
/// No window is longer, however many parties there are.
const LONGEST_WINDOW_NS: u64 = 1_000_000_000;
/// What is added to the rates that are compared, as a part of their mean: a worker that happened to have no turn in a
/// window, or no process, does not outweigh all others.
const LITTLE: f64 = 0.5;
/// Below this mean ratio the other mode is not better, whatever the sum is.
const LEAST_GAIN: f64 = 0.8;
/// The shortest and the longest pause between probes.
const SHORTEST_PAUSE_NS: u64 = 500_000_000;
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;

/// The mode in force, and what is known of both.
#[derive(Debug)]
pub(super) struct TurnMode {
    /// The chip slices.
    slicing: bool,
    phase: Phase,
    pause_ns: u64,
    /// Until the next probe, on the contended clock.
    probe_at_ns: u64,
    /// How long a window is.
    window_ns: u64,
    /// Work that each worker completed in the window, and when that began.
    work_ns: Vec<u64>,
    since_ns: u64,
    /// Work that each completed in the mode in force since the last probe, in so much time.
    watched_ns: Vec<u64>,
    watched_for_ns: u64,
    /// Thousandths of the device's time that work took, in the last window of watching.
    rate: Option<u64>,
    /// The same when the last probe began, and the parties then.
    probed: Option<(u64, u32)>,
}

/// Who wants the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// How many parties.
    pub(super) parties: u32,
    /// How long it takes until all of them had a turn.
    pub(super) round_ns: u64,
    /// All of them have the same share.
    pub(super) equal: bool,
    /// None is in the way of others, or has to stand behind them.
    pub(super) may_probe: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Watch,
    /// The other mode is tried; work does not count yet.
    Settle,
    /// Its work counts.
    Measure,
}

impl TurnMode {
    /// Turns, until slicing was found to be better.
    pub(super) fn new() -> Self {
        Self {
            slicing: false,
            phase: Phase::Watch,
            pause_ns: SHORTEST_PAUSE_NS,
            probe_at_ns: SHORTEST_PAUSE_NS,
            window_ns: WINDOW_NS,
            work_ns: vec![0; MAX_WORKERS],
            since_ns: 0,
            watched_ns: vec![0; MAX_WORKERS],
            watched_for_ns: 0,
            rate: None,
            probed: None,
        }
    }

    /// Whether the chip slices now, in force or as a probe.
    pub(super) fn slices(&self) -> bool {
        self.slicing != (self.phase != Phase::Watch)
    }

    /// A call of a worker ended whose work is this.
    pub(super) fn completed(&mut self, worker: WorkerId, work_ns: u64) {
        if let Some(sum_ns) = self.work_ns.get_mut(worker.get()) {
            *sum_ns = sum_ns.saturating_add(work_ns);
        }
    }

    /// Looks at the contended clock. Whether the chip slices from now on.
    pub(super) fn look(&mut self, clock_ns: u64, seen: Seen) -> bool {
        self.window_ns = seen.round_ns.saturating_mul(2).clamp(WINDOW_NS, LONGEST_WINDOW_NS);
        if !seen.equal {
            self.reset(clock_ns, false);
            return false;
        }
        let passed_ns = clock_ns.saturating_sub(self.since_ns);
        match self.phase {
            Phase::Watch if passed_ns >= self.window_ns => self.watched(clock_ns, passed_ns, seen),
            Phase::Settle if passed_ns >= SETTLE_NS => self.enter(clock_ns, Phase::Measure),
            Phase::Measure if passed_ns >= self.window_ns => self.measured(clock_ns, passed_ns),
            _ => {}
        }
        self.slices()
    }

    /// A window of watching is over.
    fn watched(&mut self, clock_ns: u64, passed_ns: u64, seen: Seen) {
        let parties = seen.parties;
        let rate = self.rate_over(passed_ns);
        self.rate = Some(rate);
        let changed = self.probed.is_some_and(|(before, parties_before)| {
            parties.abs_diff(parties_before) > parties.max(parties_before) / 8
                || rate > before.saturating_mul(2)
                || before > rate.saturating_mul(2)
        });
        if changed {
            self.forget_watched();
            self.pause_ns = SHORTEST_PAUSE_NS;
            self.probe_at_ns = self.probe_at_ns.min(clock_ns.saturating_add(SHORTEST_PAUSE_NS));
            self.probed = None;
        }
        for (watched_ns, work_ns) in self.watched_ns.iter_mut().zip(&self.work_ns) {
            *watched_ns = watched_ns.saturating_add(*work_ns);
        }
        self.watched_for_ns = self.watched_for_ns.saturating_add(passed_ns);
        let probe = clock_ns >= self.probe_at_ns && seen.may_probe;
        if probe {
            self.probed = Some((rate, parties));
        }
        self.enter(clock_ns, if probe { Phase::Settle } else { Phase::Watch });
    }

    /// The probe is over.
    fn measured(&mut self, clock_ns: u64, passed_ns: u64) {
        let other = self.rate_over(passed_ns);
        let is_more = self.rate.is_some_and(|rate| other > rate + rate / 10);
        if is_more && self.gain(passed_ns) >= LEAST_GAIN {
            return self.reset(clock_ns, !self.slicing);
        }
        self.forget_watched();
        self.pause_ns = self.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
        self.probe_at_ns = clock_ns.saturating_add(self.pause_ns);
        self.enter(clock_ns, Phase::Watch);
    }

    /// A call is ended that was in the way of others: there are turns.
    pub(super) fn overran(&mut self, clock_ns: u64) {
        if self.slicing || self.phase != Phase::Watch {
            self.reset(clock_ns, false);
        }
    }

    fn reset(&mut self, clock_ns: u64, slicing: bool) {
        (self.slicing, self.rate, self.probed) = (slicing, None, None);
        self.forget_watched();
        self.pause_ns = SHORTEST_PAUSE_NS;
        self.probe_at_ns = clock_ns.saturating_add(SHORTEST_PAUSE_NS);
        self.enter(clock_ns, Phase::Watch);
    }

    fn enter(&mut self, clock_ns: u64, phase: Phase) {
        (self.phase, self.since_ns) = (phase, clock_ns);
        self.work_ns.fill(0);
    }

    fn forget_watched(&mut self) {
        self.watched_ns.fill(0);
        self.watched_for_ns = 0;
    }

    fn rate_over(&self, passed_ns: u64) -> u64 {
        let work_ns = self.work_ns.iter().fold(0, |sum: u64, work_ns| sum.saturating_add(*work_ns));
        work_ns.saturating_mul(1000) / passed_ns.max(1)
    }

    /// How many times as much workers complete in the mode that is measured as in that in force, on average.
    fn gain(&self, passed_ns: u64) -> f64 {
        let rate = |work_ns: u64, for_ns: u64| work_ns as f64 / for_ns.max(1) as f64;
        let both = self.work_ns.iter().zip(&self.watched_ns).filter(|(one, other)| **one > 0 || **other > 0);
        let rates = both.map(|(one, other)| (rate(*one, passed_ns), rate(*other, self.watched_for_ns)));
        let (watched, count) =
            rates.clone().fold((0.0, 0.0), |(sum, count), (_, one)| (sum + one, count + 1.0));
        if watched == 0.0 {
            return 1.0;
        }
        let little = LITTLE * watched / count;
        let ratios = rates.map(|(measured, watched)| ((measured + little) / (watched + little)).log2());
        (ratios.sum::<f64>() / count).exp2()
    }

    /// How much contended time may pass before the next look.
    pub(super) fn next_look_ns(&self, clock_ns: u64) -> u64 {
        let length_ns = match self.phase {
            Phase::Settle => SETTLE_NS,
            Phase::Watch | Phase::Measure => self.window_ns,
        };
        self.since_ns.saturating_add(length_ns).saturating_sub(clock_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const W0: WorkerId = WorkerId::new(0);
    const TWO: Seen = Seen { parties: 2, round_ns: 10 * MS, equal: true, may_probe: true };

    /// Lets time pass while each mode completes so many thousandths of the device's time. How much of the time the chip
    /// sliced, in thousandths.
    fn run(mode: &mut TurnMode, clock_ns: &mut u64, for_ns: u64, turns: u64, slicing: u64) -> u64 {
        let (until, mut sliced) = (*clock_ns + for_ns, 0);
        while *clock_ns < until {
            *clock_ns += MS;
            let slices = mode.slices();
            sliced += u64::from(slices) * MS;
            mode.completed(W0, MS * if slices { slicing } else { turns } / 1000);
            mode.look(*clock_ns, TWO);
        }
        sliced * 1000 / for_ns
    }

    #[test]
    fn the_better_mode_is_in_force_and_the_other_is_tried_rarely() {
        for (turns, slicing, wanted) in [(900, 400, 0..10), (400, 900, 990..1001), (800, 840, 0..10)] {
            let (mut mode, mut clock) = (TurnMode::new(), 0);
            run(&mut mode, &mut clock, 2_000 * MS, turns, slicing);
            run(&mut mode, &mut clock, 60_000 * MS, turns, slicing);
            let sliced = run(&mut mode, &mut clock, 60_000 * MS, turns, slicing);
            assert!(wanted.contains(&sliced), "{turns} against {slicing}: {sliced}");
        }
    }

    #[test]
    fn a_change_of_the_load_is_noticed_soon() {
        let (mut mode, mut clock) = (TurnMode::new(), 0);
        run(&mut mode, &mut clock, 300_000 * MS, 900, 400);
        assert_eq!(mode.pause_ns, LONGEST_PAUSE_NS);
        run(&mut mode, &mut clock, 1_000 * MS, 200, 700);
        assert!(run(&mut mode, &mut clock, 1_000 * MS, 200, 700) > 900);
        run(&mut mode, &mut clock, 5_000 * MS, 900, 300);
        assert!(run(&mut mode, &mut clock, 1_000 * MS, 900, 300) < 100);
    }

    #[test]
    fn different_shares_are_kept_by_turns() {
        let (mut mode, mut clock) = (TurnMode::new(), 0);
        run(&mut mode, &mut clock, 2_000 * MS, 400, 900);
        assert!(mode.slices());
        assert!(!mode.look(clock, Seen { equal: false, ..TWO }));
        for _ in 0..5_000 {
            clock += MS;
            assert!(!mode.look(clock, Seen { equal: false, ..TWO }));
        }
    }

    #[test]
    fn what_one_gains_does_not_hide_what_others_lose() {
        // Under turns all have the same; where the chip slices, one has all that others lose, and more.
        for (first, others, wanted) in [(900, 50, 0), (150, 150, 1000)] {
            let (mut mode, mut clock, mut sliced) = (TurnMode::new(), 0, 0);
            for ms in 0..10_000 {
                clock += MS;
                let slices = mode.slices();
                sliced += u64::from(slices && ms >= 5_000);
                for worker in 0..8 {
                    let slicing = if worker == 0 { first } else { others };
                    let rate = if slices { slicing } else { 125 };
                    mode.completed(WorkerId::new(worker), MS * rate / 1000);
                }
                mode.look(clock, Seen { parties: 8, round_ns: 40 * MS, ..TWO });
            }
            assert!((sliced / 5).abs_diff(wanted) < 50, "{sliced}");
        }
    }

    #[test]
    fn slicing_is_not_tried_while_some_are_in_the_way() {
        let (mut mode, mut clock) = (TurnMode::new(), 0);
        for _ in 0..5_000 {
            clock += MS;
            assert!(!mode.look(clock, Seen { may_probe: false, ..TWO }));
        }
        assert!(run(&mut mode, &mut clock, 1_000 * MS, 400, 900) > 900, "then it is tried at once");
        mode.overran(clock);
        assert!(!mode.slices());
    }

    #[test]
    fn without_work_nothing_is_better() {
        let (mut mode, mut clock) = (TurnMode::new(), 0);
        run(&mut mode, &mut clock, 10_000 * MS, 0, 0);
        assert!(!mode.slicing && mode.pause_ns > SHORTEST_PAUSE_NS);
    }
}
