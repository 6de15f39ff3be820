//! The worker's turn: whether it may submit, and when it must stop.
//!
//! ```text
//!  none ──Grant──► held ──Revoke──► revoked ──quantum over, or nothing to run──► ending ──idle──► none
//! ```
//!
//! A worker without calls waits a moment for the next one before it yields, where that costs less than a change of turns
//! (`turn_wait`).
//!
//! Running calls are never interrupted, so a turn is rounds of calls on all lanes: `turn_wait` says how many.
//!
//! Calls are taken and prepared at any time (on a GPU with memory, code and graph); only the holder submits. A turn that
//! ends lets the lanes run empty, clears, and is given back before the last answers are written.

use std::time::{Duration, Instant};

use pappus_protocol::{TurnId, now_ns};

use super::turn_wait::{Prices, TurnWait};

/// How long a grant that was announced is waited for without sleeping.
const SOON: Duration = Duration::from_millis(20);

/// The turn of a worker that needs one, and how much it used.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// False if the worker may always submit.
    needed: bool,
    held: Option<Held>,
    /// Since when something has been running.
    busy_since: Option<Instant>,
    used: Duration,
    soon_until: Option<Instant>,
    /// How long calls take lately.
    call: Duration,
    /// How long to wait for the next one.
    wait: TurnWait,
}

#[derive(Debug)]
struct Held {
    turn: TurnId,
    since: Instant,
    quantum: Duration,
    revoked: bool,
    ending: bool,
    /// What a change of turns costs.
    change: Duration,
    /// True while the turn is kept for the next call.
    waits: bool,
}

impl Held {
    /// True if the turn has no time for another call, where calls take as long as `call`.
    fn is_over(&self, call: Duration) -> bool {
        self.since.elapsed() >= Duration::from_nanos(prices(self, call).last_start_ns())
    }
}

/// What a turn has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing changes.
    Stay,
    /// The worker stops submitting; its lanes run empty.
    Ending(TurnId),
    /// The turn is over, once the device is idle.
    Over(TurnId),
}

impl Turn {
    /// Sets whether turns are in use at all.
    pub(super) fn require(&mut self, needed: bool) {
        self.needed = needed;
    }

    /// True if calls may be submitted now.
    pub(super) fn may_submit(&self) -> bool {
        !self.needed || self.held.as_ref().is_some_and(|held| !held.ending)
    }

    /// A grant arrived. A change of turns costs about so much.
    pub(super) fn grant(&mut self, turn: TurnId, quantum: Duration, change: Duration) {
        self.soon_until = None;
        self.wait.begin();
        let since = Instant::now();
        self.held = Some(Held { turn, since, quantum, revoked: false, ending: false, change, waits: false });
    }

    /// Other workers wait for `turn`; true if that turn is held now.
    pub(super) fn revoke(&mut self, turn: TurnId) -> bool {
        match &mut self.held {
            Some(held) if held.turn == turn => {
                held.revoked = true;
                true
            }
            _ => false,
        }
    }

    /// A call arrived.
    pub(super) fn feed(&mut self) {
        let in_turn = self.held.as_ref().is_some_and(|held| !held.ending);
        self.wait.arrived(now_ns(), in_turn);
    }

    /// The worker itself did something else for so long.
    pub(super) fn worked(&mut self, took: Duration) {
        self.wait.worked(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The turn that is held.
    pub(super) fn held(&self) -> Option<TurnId> {
        self.held.as_ref().map(|held| held.turn)
    }

    /// Forgets how long calls take: the next ones are another domain's.
    pub(super) fn forget(&mut self) {
        self.call = Duration::ZERO;
        self.wait = TurnWait::default();
    }

    /// A call took so long on the device.
    pub(super) fn took(&mut self, call: Duration) {
        self.wait.call_over();
        self.call = if self.call.is_zero() { call } else { (self.call * 3 + call) / 4 };
    }

    /// How much longer to wait for a call before giving the turn back; none without such a wait.
    pub(super) fn lingers(&mut self) -> Option<Duration> {
        let held = self.held.as_ref().filter(|held| held.waits)?;
        let prices = prices(held, self.call);
        Some(Duration::from_nanos(self.wait.left_ns(now_ns(), prices)))
    }

    /// A grant is about to come.
    pub(super) fn soon(&mut self) {
        self.soon_until = Some(Instant::now() + SOON);
    }

    /// How much longer not to sleep because of a grant that was announced.
    pub(super) fn alert(&self) -> Duration {
        self.soon_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Something runs, or nothing does any more.
    pub(super) fn note(&mut self, busy: bool) {
        match (busy, self.busy_since) {
            (true, None) => self.busy_since = Some(Instant::now()),
            (false, Some(since)) => {
                self.used += since.elapsed();
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// Decides if the turn ends; `waiting` says that prepared calls want to run.
    pub(super) fn step(&mut self, busy: bool, waiting: bool) -> Step {
        if !busy && !waiting {
            self.wait.idle(now_ns());
        }
        let call = self.call;
        let Some(held) = self.held.as_mut() else { return Step::Stay };
        held.waits = false;
        if !held.revoked {
            return Step::Stay;
        }
        if !busy && (held.ending || !waiting) {
            held.waits =
                !held.ending && !held.is_over(call) && self.wait.left_ns(now_ns(), prices(held, call)) > 0;
            return if held.waits { Step::Stay } else { Step::Over(held.turn) };
        }
        if !held.ending && held.is_over(call) {
            held.ending = true;
            return if busy { Step::Ending(held.turn) } else { Step::Over(held.turn) };
        }
        Step::Stay
    }

    /// The turn is given back: the device time that was used since the last time.
    pub(super) fn give_back(&mut self) -> Duration {
        self.held = None;
        self.wait.over();
        self.note(false);
        std::mem::take(&mut self.used)
    }
}

/// What waiting in this turn is weighed by.
fn prices(held: &Held, call: Duration) -> Prices {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Prices { change_ns: ns(held.change), quantum_ns: ns(held.quantum), call_ns: ns(call) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: TurnId = TurnId::new(7);
    const ANOTHER: TurnId = TurnId::new(6);
    /// Long enough for a test that looks at once.
    const DEAR: Duration = Duration::from_secs(1);

    #[test]
    fn a_turn_ends_early_when_there_is_nothing_to_run() {
        let mut turn = Turn::default();
        assert!(turn.may_submit(), "turns are not in use");
        turn.require(true);
        assert!(!turn.may_submit());
        turn.grant(TURN, Duration::from_secs(3600), Duration::ZERO);
        assert!(turn.may_submit());
        assert_eq!(turn.step(false, false), Step::Stay, "no other worker waits for it");
        assert!(!turn.revoke(ANOTHER) && turn.revoke(TURN));
        assert_eq!(turn.step(true, false), Step::Stay, "the quantum is not over");
        assert_eq!(turn.step(false, true), Step::Stay, "a prepared call comes first");
        assert_eq!(turn.step(false, false), Step::Over(TURN));
        turn.give_back();
        assert!(!turn.may_submit());
    }

    #[test]
    fn a_turn_waits_for_more_as_long_as_a_change_costs() {
        let mut turn = Turn::default();
        turn.require(true);
        turn.grant(TURN, Duration::from_secs(3600), Duration::from_millis(1));
        turn.revoke(TURN);
        assert_eq!(turn.step(true, false), Step::Stay);
        assert_eq!(turn.lingers(), None, "it runs");
        assert_eq!(turn.step(false, false), Step::Stay);
        assert!(turn.lingers().is_some_and(|left| left <= Duration::from_millis(1)));
        turn.feed();
        assert_eq!(turn.step(true, false), Step::Stay);
        assert_eq!(turn.lingers(), None, "it runs again");
        while turn.step(false, false) == Step::Stay {}
        assert_eq!(turn.step(false, false), Step::Over(TURN));
    }

    #[test]
    fn a_turn_ends_where_a_round_of_calls_does() {
        // Hundredths of a second: the margin below is one of 0.9 s, for a thread that the machine lets wait.
        let cs = |cs: u64| Duration::from_millis(10 * cs);
        let after = |elapsed: Duration| Held {
            turn: TURN,
            since: Instant::now().checked_sub(elapsed).unwrap(),
            quantum: cs(1000),
            revoked: true,
            ending: false,
            change: cs(1000),
            waits: false,
        };
        for (call, first_over) in
            [(0, 1000), (100, 950), (400, 800), (500, 750), (800, 1200), (1200, 1800), (1300, 500)]
        {
            assert!(!after(cs(first_over - 90)).is_over(cs(call)), "{call}");
            assert!(after(cs(first_over)).is_over(cs(call)), "{call}");
        }
        // Much longer ones: whatever comes in the first half.
        assert!(!after(cs(400)).is_over(cs(60_000)));
        assert!(after(cs(500)).is_over(cs(60_000)));
    }

    #[test]
    fn expected_durations_follow_recent_calls() {
        let mut turn = Turn::default();
        turn.took(Duration::from_millis(8));
        assert_eq!(turn.call, Duration::from_millis(8));
        (0..20).for_each(|_| turn.took(Duration::from_millis(1)));
        assert!(turn.call < Duration::from_micros(1100), "{:?}", turn.call);
    }

    #[test]
    fn a_turn_ends_with_its_quantum_once_the_lanes_are_empty() {
        let mut turn = Turn::default();
        turn.require(true);
        turn.grant(TURN, Duration::ZERO, DEAR);
        assert!(turn.revoke(TURN));
        assert_eq!(turn.step(true, true), Step::Ending(TURN));
        assert!(!turn.may_submit());
        assert_eq!(turn.step(true, true), Step::Stay, "said once");
        assert_eq!(turn.step(false, true), Step::Over(TURN), "prepared calls wait for the next turn");
    }
}
