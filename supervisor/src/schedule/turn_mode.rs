//! Whether turns are better than leaving it to the chip to slice its time between workers: found out while serving.
//!
//! Turns cost a change whenever they end, and bring nothing where each worker has little to run; slicing costs a change
//! whenever a slice ends, and interleaves what would have run better in a row. Which is better depends on the chip, the
//! calls and how many are in flight, so both are tried and the work that is completed is compared ([`Window`]).
//!
//! ```text
//!                                          ┌──────────── not better, or soon seen to be worse ─────────────┐
//!                                          ▼                                                               │
//! watch the mode in force ──pause over──► probe the other: settle, then measure ──better──► in force again: settle,
//!        ▲                                                                                  then measure
//!        └──────────────────────── not better ◄── compared with both ──► better: the other is in force ────┘
//! ```
//!
//! - Time counts while at least two parties want the device; all lengths below are of such time.
//! - A probe first lets turns settle, which is not counted: where the chip sliced, all that had a grant yield first, and
//!   what that takes is no fault of turns. What it measures is compared with the mode in force before it and after it: a load
//!   that changes meanwhile does not look like a better mode.
//! - Work is counted for as long as a round of turns takes at least, so that everybody's is in it, and until three times as many
//!   calls ended as there are in workers: where the chip slices, long ones end together. For the same reason a mode has
//!   settled once as many ended as there are, or after 100 ms. Where a quarter of a second, or two rounds, is not enough for that, a change of turns is cheap
//!   beside a call: there are turns, and no probes.
//! - The other mode must be better by a tenth: that is the hysteresis.
//! - A probe that found nothing better is paid for: the next one does not begin before fifty times what it cost has passed,
//!   so probing costs a fiftieth at most. Besides, the pause between probes doubles while the answer stays the same, from half a
//!   second to a minute; it is short again when the mode changes, and when the load does.
//! - Slicing gives each worker the same time. Where tenants have different weights or classes, there are turns only.
//!   While a call overruns its turn, or its tenant stands behind what that used, slicing is not tried.

use super::mode_window::Window;
use super::run_times::{Kind, RunTimes};
use crate::ids::TenantId;

/// How long a mode settles before its work counts.
const SETTLE_NS: u64 = 10_000_000;
/// How long it is waited before that, where the chip sliced, until all but one have yielded their grants.
const YIELDED_NS: u64 = 200_000_000;
/// How long its work is counted at least.
const WINDOW_NS: u64 = 40_000_000;
/// After so much of it, a probe ends that is much worse.
const GLANCE_NS: u64 = 10_000_000;
/// How long it is waited for calls to end: until a mode has settled, and until their work is known.
const LONGEST_SETTLE_NS: u64 = 100_000_000;
const LONGEST_WINDOW_NS: u64 = 250_000_000;
/// So many times as many as there are in workers must have ended for that.
const GENERATIONS: u64 = 3;
/// The shortest and the longest pause between probes.
const SHORTEST_PAUSE_NS: u64 = 500_000_000;
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;
/// A probe costs one part in so many.
const PAID_BY: u64 = 50;

/// The mode in force, and what is known of both.
#[derive(Debug)]
pub(super) struct TurnMode {
    /// The chip slices.
    slicing: bool,
    phase: Phase,
    pause_ns: u64,
    /// Until the next probe, on the contended clock; and when the last one is paid for.
    probe_at_ns: u64,
    paid_ns: u64,
    /// Work that is completed in this phase, and when that began.
    work: Window,
    since_ns: u64,
    /// The most calls that workers had when it was looked at in this phase.
    running: u64,
    /// When the last probe began.
    tried_ns: u64,
    /// Until when this phase may wait for all to yield.
    yielded_ns: u64,
    /// How long work is counted.
    window_ns: u64,
    /// The last window of watching.
    before: Window,
    /// What the probe completed.
    probed: Window,
    /// What was watched last when the last probe began, and how many parties there were.
    known: Option<(Window, u32)>,
}

/// What is seen of those who want the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// How many there are.
    pub(super) parties: u32,
    /// All have the same share.
    pub(super) equal: bool,
    /// The chip slices, or no grant is left from when it did.
    pub(super) settled: bool,
    /// How long it takes until each had a turn.
    pub(super) round_ns: u64,
    /// How many calls are in workers' processes.
    pub(super) running: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Watch,
    /// The other mode is tried; work does not count yet.
    Settle,
    /// Its work counts.
    Measure,
    /// It was better: the mode in force again. Work does not count yet.
    Return,
    /// Its work counts.
    Compare,
}

impl TurnMode {
    /// Turns, until slicing was found to be better.
    pub(super) fn new() -> Self {
        Self {
            slicing: false,
            phase: Phase::Watch,
            pause_ns: SHORTEST_PAUSE_NS,
            probe_at_ns: SHORTEST_PAUSE_NS,
            paid_ns: 0,
            work: Window::default(),
            since_ns: 0,
            running: 0,
            tried_ns: 0,
            yielded_ns: 0,
            window_ns: WINDOW_NS,
            before: Window::default(),
            probed: Window::default(),
            known: None,
        }
    }

    /// Whether the chip slices now, in force or as a probe.
    pub(super) fn slices(&self) -> bool {
        self.slicing != matches!(self.phase, Phase::Settle | Phase::Measure)
    }

    /// A tenant's call of this kind ended while several wanted the device.
    pub(super) fn completed(&mut self, tenant: TenantId, kind: Kind) {
        self.work.add(tenant, kind, 1);
    }

    /// A call overruns its turn, or its tenant stands behind what such a call used: slicing would let it in. It is not
    /// tried now.
    pub(super) fn postpone(&mut self, clock_ns: u64) {
        self.paid_ns = self.paid_ns.max(clock_ns.saturating_add(1));
    }

    /// A call is ended that was in the way of others: there are turns.
    pub(super) fn overran(&mut self, clock_ns: u64) {
        if self.slicing || self.phase != Phase::Watch {
            self.reset(clock_ns, false);
        }
    }

    /// Looks at the contended clock, where calls take so long. Whether the chip slices from now on.
    pub(super) fn look(&mut self, clock_ns: u64, sight: Sight, times: &RunTimes) -> bool {
        if !sight.equal {
            self.reset(clock_ns, false);
            return false;
        }
        let counts = matches!(self.phase, Phase::Measure | Phase::Compare);
        if !counts && !sight.settled && clock_ns < self.yielded_ns {
            self.since_ns = clock_ns;
            self.work.clear();
        }
        if self.phase == Phase::Watch {
            self.window_ns = WINDOW_NS.max(sight.round_ns);
        }
        let passed_ns = clock_ns.saturating_sub(self.since_ns);
        self.work.lasts(passed_ns);
        self.running = self.running.max(sight.running);
        let ended = |generations: u64| self.work.calls() >= generations.saturating_mul(self.running);
        let settled = ended(1) || passed_ns >= LONGEST_SETTLE_NS;
        let enough = ended(GENERATIONS);
        // Even if all calls that are in workers are about to end, no later part of the probe makes up for it.
        let much_less = || self.work.is_much_less_than(&self.before, self.running, times);
        match self.phase {
            Phase::Settle | Phase::Return if passed_ns < SETTLE_NS => {}
            Phase::Settle if settled => self.enter(clock_ns, Phase::Measure),
            Phase::Return if settled => self.enter(clock_ns, Phase::Compare),
            Phase::Settle | Phase::Measure if passed_ns >= GLANCE_NS && much_less() => {
                self.give_up(clock_ns, times);
            }
            Phase::Settle | Phase::Return => {}
            _ if passed_ns < self.window_ns => {}
            Phase::Watch if enough => self.watched(clock_ns, sight.parties, times),
            Phase::Measure if enough => self.measured(clock_ns, times),
            Phase::Compare if enough => self.compared(clock_ns, times),
            _ if passed_ns < LONGEST_WINDOW_NS.max(2 * self.window_ns) => {}
            // Nothing is known of the mode: that time is paid for like a probe by which all was lost.
            Phase::Watch if self.slicing => {
                self.reset(clock_ns, false);
                self.pay(clock_ns, passed_ns);
            }
            Phase::Watch => self.enter(clock_ns, Phase::Watch),
            Phase::Measure | Phase::Compare => {
                self.wait_for_next(clock_ns, clock_ns.saturating_sub(self.tried_ns))
            }
        }
        self.slices()
    }

    /// A window of watching is over.
    fn watched(&mut self, clock_ns: u64, parties: u32, times: &RunTimes) {
        self.before.take(&mut self.work);
        let changed = self.known.as_ref().is_some_and(|(before, parties_before)| {
            let (rate, rate_before, parties_before) =
                (self.before.rate(times), before.rate(times), *parties_before);
            let doubles = |now: u64, before: u64| now > before.saturating_mul(2);
            doubles(rate, rate_before)
                || doubles(rate_before, rate)
                || doubles(parties.into(), parties_before.into())
                || doubles(parties_before.into(), parties.into())
        });
        if changed {
            self.pause_ns = SHORTEST_PAUSE_NS;
            self.probe_at_ns = self.probe_at_ns.min(clock_ns.saturating_add(SHORTEST_PAUSE_NS));
            self.known = None;
        }
        let probe = clock_ns >= self.probe_at_ns.max(self.paid_ns);
        if probe {
            self.known = Some((self.before.clone(), parties));
            self.tried_ns = clock_ns;
        }
        self.enter(clock_ns, if probe { Phase::Settle } else { Phase::Watch });
    }

    /// The probe is over.
    fn measured(&mut self, clock_ns: u64, times: &RunTimes) {
        if self.is_better(&self.work, &self.before, times) {
            self.probed.take(&mut self.work);
            self.enter(clock_ns, Phase::Return);
        } else {
            self.give_up(clock_ns, times);
        }
    }

    /// The mode in force was measured again.
    fn compared(&mut self, clock_ns: u64, times: &RunTimes) {
        if self.is_better(&self.probed, &self.work, times) {
            return self.reset(clock_ns, !self.slicing);
        }
        self.before.take(&mut self.work);
        self.wait_for_next(clock_ns, 0);
    }

    /// Whether the other mode was better.
    fn is_better(&self, other: &Window, in_force: &Window, times: &RunTimes) -> bool {
        match self.slicing {
            // Slicing is better if more is done by it, and tenants gain by it on average, not only some of them.
            false => other.gains(in_force, times) && other.tenants_gain(in_force, times) != Some(false),
            true => other.gains(in_force, times) || in_force.tenants_gain(other, times) == Some(false),
        }
    }

    /// The other mode is not better.
    fn give_up(&mut self, clock_ns: u64, times: &RunTimes) {
        let (rate, passed_ns) = (self.before.rate(times), clock_ns.saturating_sub(self.tried_ns));
        let lost = rate.saturating_sub(self.work.rate(times));
        let lost_ns = passed_ns.saturating_mul(lost).checked_div(rate).unwrap_or(0);
        self.wait_for_next(clock_ns, lost_ns);
    }

    /// The mode in force stays, after a probe that cost so much.
    fn wait_for_next(&mut self, clock_ns: u64, lost_ns: u64) {
        self.pause_ns = self.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
        self.probe_at_ns = clock_ns.saturating_add(self.pause_ns);
        self.pay(clock_ns, lost_ns);
        self.enter(clock_ns, Phase::Watch);
    }

    /// So much was lost: no probe begins before it is paid for.
    fn pay(&mut self, clock_ns: u64, lost_ns: u64) {
        self.paid_ns = clock_ns.saturating_add(lost_ns.saturating_mul(PAID_BY));
    }

    fn reset(&mut self, clock_ns: u64, slicing: bool) {
        (self.slicing, self.known) = (slicing, None);
        self.pause_ns = SHORTEST_PAUSE_NS;
        self.probe_at_ns = clock_ns.saturating_add(SHORTEST_PAUSE_NS);
        self.enter(clock_ns, Phase::Watch);
    }

    fn enter(&mut self, clock_ns: u64, phase: Phase) {
        (self.phase, self.since_ns, self.running) = (phase, clock_ns, 0);
        self.yielded_ns = clock_ns.saturating_add(YIELDED_NS);
        self.work.clear();
    }

    /// How much contended time may pass before the next look.
    pub(super) fn next_look_ns(&self, clock_ns: u64) -> u64 {
        let passed_ns = clock_ns.saturating_sub(self.since_ns);
        let length_ns = match self.phase {
            Phase::Settle | Phase::Return => SETTLE_NS,
            Phase::Measure if passed_ns < GLANCE_NS => GLANCE_NS,
            Phase::Watch | Phase::Measure | Phase::Compare => self.window_ns,
        };
        match length_ns.saturating_sub(passed_ns) {
            // Calls are waited for.
            0 => SETTLE_NS,
            left_ns => left_ns,
        }
    }
}

#[cfg(test)]
#[path = "turn_mode_tests.rs"]
mod tests;
