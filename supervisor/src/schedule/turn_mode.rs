//! Whether turns are better than leaving it to the chip to slice its time between workers: found out while serving.
//!
//! Turns cost a change whenever they end, and bring nothing where each worker has little to run; slicing costs a change
//! whenever a slice ends, and interleaves what would have run better in a row. Which is better depends on the chip, the
//! calls and how many are in flight, so both are tried and the work that is completed is compared. The work of a call is
//! the least that calls of its function took on the device, so that calls count the same in both modes.
//!
//! ```text
//! watch the mode in force ──pause over──► probe the other: settle, then measure ──better──► that one is in force
//!        ▲                                                               └──not better──┐
//!        └──────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - Time counts while at least two parties want the device; all lengths below are of such time.
//! - A probe first lets turns settle, which is not counted, then measures as long as the last window of watching did.
//! - The other mode must be better by a tenth: that is the hysteresis.
//! - The pause between probes doubles while the answer stays the same, from half a second to a minute: a probe that
//!   costs a quarter of the rate for 50 ms costs a fortieth at first and less than a thousandth in the end. It is short
//!   again when the mode changes, when the number of parties changes, or when the rate of work halves or doubles.
//! - Slicing gives each worker the same time. Where tenants have different weights or classes, there are turns only.

/// How long a mode settles before its work counts.
const SETTLE_NS: u64 = 10_000_000;
/// How long its work is counted.
const WINDOW_NS: u64 = 40_000_000;
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
    /// Work that was completed in the window, and when that began.
    work_ns: u64,
    since_ns: u64,
    /// Thousandths of the device's time that work took, in the last window of watching.
    rate: Option<u64>,
    /// The same when the last probe began, and the parties then.
    probed: Option<(u64, u32)>,
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
            work_ns: 0,
            since_ns: 0,
            rate: None,
            probed: None,
        }
    }

    /// Whether the chip slices now, in force or as a probe.
    pub(super) fn slices(&self) -> bool {
        self.slicing != (self.phase != Phase::Watch)
    }

    /// A call ended whose work is this.
    pub(super) fn completed(&mut self, work_ns: u64) {
        self.work_ns = self.work_ns.saturating_add(work_ns);
    }

    /// Looks at the contended clock; `equal` says that all parties have the same share, and `parties` how many there
    /// are. Whether the chip slices from now on.
    pub(super) fn look(&mut self, clock_ns: u64, parties: u32, equal: bool) -> bool {
        if !equal {
            self.reset(clock_ns, false);
            return false;
        }
        let passed_ns = clock_ns.saturating_sub(self.since_ns);
        match self.phase {
            Phase::Watch if passed_ns >= WINDOW_NS => self.watched(clock_ns, passed_ns, parties),
            Phase::Settle if passed_ns >= SETTLE_NS => self.enter(clock_ns, Phase::Measure),
            Phase::Measure if passed_ns >= WINDOW_NS => self.measured(clock_ns, passed_ns),
            _ => {}
        }
        self.slices()
    }

    /// A window of watching is over.
    fn watched(&mut self, clock_ns: u64, passed_ns: u64, parties: u32) {
        let rate = self.rate_over(passed_ns);
        self.rate = Some(rate);
        let changed = self.probed.is_some_and(|(before, parties_before)| {
            parties != parties_before || rate > before.saturating_mul(2) || before > rate.saturating_mul(2)
        });
        if changed {
            self.pause_ns = SHORTEST_PAUSE_NS;
            self.probe_at_ns = self.probe_at_ns.min(clock_ns.saturating_add(SHORTEST_PAUSE_NS));
            self.probed = None;
        }
        let probe = clock_ns >= self.probe_at_ns;
        if probe {
            self.probed = Some((rate, parties));
        }
        self.enter(clock_ns, if probe { Phase::Settle } else { Phase::Watch });
    }

    /// The probe is over.
    fn measured(&mut self, clock_ns: u64, passed_ns: u64) {
        let other = self.rate_over(passed_ns);
        let better = self.rate.is_some_and(|rate| other > rate + rate / 10);
        if better {
            return self.reset(clock_ns, !self.slicing);
        }
        self.pause_ns = self.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
        self.probe_at_ns = clock_ns.saturating_add(self.pause_ns);
        self.enter(clock_ns, Phase::Watch);
    }

    fn reset(&mut self, clock_ns: u64, slicing: bool) {
        (self.slicing, self.rate, self.probed) = (slicing, None, None);
        self.pause_ns = SHORTEST_PAUSE_NS;
        self.probe_at_ns = clock_ns.saturating_add(SHORTEST_PAUSE_NS);
        self.enter(clock_ns, Phase::Watch);
    }

    fn enter(&mut self, clock_ns: u64, phase: Phase) {
        (self.phase, self.since_ns, self.work_ns) = (phase, clock_ns, 0);
    }

    fn rate_over(&self, passed_ns: u64) -> u64 {
        self.work_ns.saturating_mul(1000) / passed_ns.max(1)
    }

    /// How much contended time may pass before the next look.
    pub(super) fn next_look_ns(&self, clock_ns: u64) -> u64 {
        let length_ns = if self.phase == Phase::Settle { SETTLE_NS } else { WINDOW_NS };
        self.since_ns.saturating_add(length_ns).saturating_sub(clock_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Lets time pass while each mode completes so many thousandths of the device's time. How much of the time the chip
    /// sliced, in thousandths.
    fn run(mode: &mut TurnMode, clock_ns: &mut u64, for_ns: u64, turns: u64, slicing: u64) -> u64 {
        let (until, mut sliced) = (*clock_ns + for_ns, 0);
        while *clock_ns < until {
            *clock_ns += MS;
            let slices = mode.slices();
            sliced += u64::from(slices) * MS;
            mode.completed(MS * if slices { slicing } else { turns } / 1000);
            mode.look(*clock_ns, 2, true);
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
        assert!(!mode.look(clock, 2, false));
        for _ in 0..5_000 {
            clock += MS;
            assert!(!mode.look(clock, 2, false));
        }
    }

    #[test]
    fn without_work_nothing_is_better() {
        let (mut mode, mut clock) = (TurnMode::new(), 0);
        run(&mut mode, &mut clock, 10_000 * MS, 0, 0);
        assert!(!mode.slicing && mode.pause_ns > SHORTEST_PAUSE_NS);
    }
}
