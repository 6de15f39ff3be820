//! How long a turn lasts, and how long it waits for its tenant's next call once the worker has none.
//!
//! A turn ends where its quantum comes nearest to the end of a round of calls: a call that would mostly run beyond it, while
//! other lanes are empty already, waits for the next turn. Calls that take about a quantum get two rounds: a turn's first round
//! also pays for the change (5.5 ms instead of 4.7 for eight inferences at once on an H200).
//!
//! To wait costs the device's time; to yield costs one change of turns more, when the next call comes. That is the
//! problem of renting skis: whoever waits as long as the change costs and yields then pays at most twice what is best in
//! hindsight (A. Karlin, M. Manasse, L. McGeoch, S. Owicki, "Competitive randomized algorithms for nonuniform problems",
//! SODA 1990, Algorithmica 11, 1994). Where it is known how soon calls come, it is better to wait for as long as that is
//! expected, or not at all.
//!
//! The worker keeps in mind how long it had no call lately: apart for the first time in a turn, when clients were asleep
//! until its answers came, and for later times. The rule:
//!
//! - **The first time** saves more than one change: the calls that follow in the same turn need none either. If it is
//!   followed by `n` times as many calls as came before it, `n` turns more would have been needed for them: the wait is worth `n`
//!   changes, less the later waits of the turn. `n` is what it was lately, nothing where no call came. It waits if that is
//!   more than such waits take, twice as long as a call is expected to take (and no less than a change), and never longer than an
//!   eighth of the quantum. Calls are counted, not times without one: once all lanes are busy there may be no such time for
//!   the rest of the turn.
//! - **Later times**: a worker that yields pays a change, and the first wait of the next turn where it makes that. It waits for
//!   so long at most, if that is expected to cost less than to yield at once.
//! - How late a call comes counts no further than the wait for it would cost: the longest wait, and for a later time the yield behind
//!   it. A host that takes a processor away for some milliseconds delays one call, which says nothing of the next ones.
//! - A turn that does not wait learns nothing of `n`, and one that declines a later wait nothing of later times: behind one such
//!   turn the next one waits all the same, every time. Where that taught that it does not pay, it is tried again behind three of
//!   them, then behind 7, 15 and 31: one time that was long by chance costs two turns, a tenant whose calls always come late an
//!   eighth of every 32nd. A later time in which the worker did not wait counts for nothing: its client may have slept because
//!   the turn was over.
//! - What the worker itself did meanwhile, such as pinning an arena that came in front of the call, is no time without one.
//!
//! All times are nanoseconds of one clock, which the caller reads.

/// A turn that would not wait explores by waiting all the same: every second turn, up to every 32nd if that never
/// paid.
const EXPLORE: std::ops::RangeInclusive<u32> = 2..=32;
/// Changes that waits save in a turn, until that was seen.
const HOPED: u64 = 16;
/// The part of a quantum that a wait takes at most.
const QUANTUM_SHARE: u64 = 8;
/// No wait takes longer, whatever the quantum: the supervisor ends a worker that keeps its turn for twice as long without calls.
const LONGEST_WAIT_NS: u64 = 50_000_000;
/// So many turns, and so many later times without a call, count for what is expected. There are many of the latter in a
/// turn, and one of them that was long must not end the next turns.
const LAST_TURNS: u64 = 4;
/// See [`LAST_TURNS`].
const LAST_TIMES: u64 = 16;

/// Measurements of the times without calls.
#[derive(Debug, Default)]
pub struct TurnWait {
    /// Average length of the first time without a call in a turn, and of later times; cut off at the longest
    /// wait.
    first_ns: Option<u64>,
    later_ns: Option<u64>,
    /// Average cost of a later time: the wait, and a change of turns if no call came.
    later_cost_ns: Option<u64>,
    /// Changes that waits saved in a turn, and later times without a call between; in sixteenths.
    gained: Option<u64>,
    between: Option<u64>,
    /// The time without a call that lasts now, if one does.
    idle: Option<Idle>,
    /// Times without a call that ended in this turn.
    ended: u32,
    /// Calls of this turn that are over, and how many of them were before the first such time.
    calls: u64,
    first_calls: u64,
    /// `waited`: this turn waited at least once. `declined`: it refused at least once.
    waited: bool,
    declined: bool,
    /// Turns since the last one that waited each time.
    unexplored: u32,
    /// Times in a row that waiting all the same did not pay.
    in_vain: u32,
    /// True if this turn waits to explore.
    explores: bool,
    /// The prices by which waiting was last weighed.
    prices: Option<Prices>,
}

#[derive(Debug, Clone, Copy)]
struct Idle {
    since_ns: u64,
    first: bool,
    /// True if the turn was kept, if only for a while.
    waited: bool,
}

/// What a turn costs and lasts.
#[derive(Debug, Clone, Copy)]
pub struct Prices {
    /// What a change of turns costs.
    pub change_ns: u64,
    /// How long the turn may last while others wait.
    pub quantum_ns: u64,
    /// How long a call takes lately.
    pub call_ns: u64,
}

impl Prices {
    /// How long after its beginning a turn has no time for another call.
    pub fn last_start_ns(&self) -> u64 {
        let rounds_ns = match self.call_ns > self.quantum_ns + self.quantum_ns / 4 {
            true => self.quantum_ns,
            false => self.quantum_ns.max(2 * self.call_ns),
        };
        rounds_ns.saturating_sub(self.call_ns / 2).max(self.quantum_ns / 2)
    }

    /// No wait takes longer.
    fn longest_wait_ns(&self) -> u64 {
        (self.quantum_ns / QUANTUM_SHARE).min(LONGEST_WAIT_NS)
    }
}

/// A moving average: about so many of the last values count.
fn follow(known: Option<u64>, value: u64, last: u64) -> Option<u64> {
    Some(match known {
        None => value,
        Some(known) => known.saturating_mul(last - 1).saturating_add(value) / last,
    })
}

impl TurnWait {
    /// A turn begins.
    pub fn begin(&mut self) {
        (self.ended, self.waited, self.declined) = (0, false, false);
        (self.calls, self.first_calls) = (0, 0);
        let every = (EXPLORE.start() << self.in_vain.min(16)).min(*EXPLORE.end());
        self.explores = self.unexplored >= every - 1;
    }

    /// The worker itself did something for so long, which does not count as a time without a call.
    pub fn worked(&mut self, ns: u64) {
        if let Some(idle) = &mut self.idle {
            idle.since_ns = idle.since_ns.saturating_add(ns);
        }
    }

    /// A call is over.
    pub fn call_over(&mut self) {
        self.calls += 1;
    }

    /// The worker has no call.
    pub fn idle(&mut self, now_ns: u64) {
        let first = self.ended == 0;
        if first {
            self.first_calls = self.calls;
        }
        self.idle.get_or_insert(Idle { since_ns: now_ns, first, waited: false });
    }

    /// A call came; `in_turn` says that the worker has the device.
    pub fn arrived(&mut self, now_ns: u64, in_turn: bool) {
        let Some(Idle { since_ns, first, waited }) = self.idle.take() else { return };
        let length_ns = now_ns.saturating_sub(since_ns);
        if let Some(prices) = self.prices {
            if first {
                self.first_ns = follow(self.first_ns, length_ns.min(prices.longest_wait_ns()), LAST_TURNS);
            } else if waited || in_turn {
                let restart_ns = self.restart_ns(prices);
                let cost_ns = if length_ns <= restart_ns { length_ns } else { 2 * restart_ns };
                self.later_ns = follow(self.later_ns, length_ns.min(restart_ns), LAST_TIMES);
                self.later_cost_ns = follow(self.later_cost_ns, cost_ns, LAST_TIMES);
            }
        }
        self.ended += u32::from(in_turn);
    }

    /// The turn is given back.
    pub fn over(&mut self) {
        if self.waited {
            let ended = u64::from(self.ended);
            // How many turns the calls behind the first time without one would have needed, each as long as up to that.
            let turns = (self.calls - self.first_calls).saturating_mul(16) / self.first_calls.max(1);
            let hoped = Some(HOPED * 16);
            self.gained = follow(self.gained.or(hoped), turns.max(ended * 16), LAST_TURNS);
            self.between = follow(self.between.or(hoped), ended.saturating_sub(1) * 16, LAST_TURNS);
        }
        // Of what it declined nothing was learned.
        let learned = self.waited && !self.declined;
        match (learned, self.explores) {
            (true, true) => (self.unexplored, self.in_vain) = (0, self.in_vain.saturating_add(1)),
            (true, false) => (self.unexplored, self.in_vain) = (0, 0),
            (false, _) => self.unexplored = self.unexplored.saturating_add(1),
        }
        self.begin();
    }

    /// How much longer to wait now, if at all. A time without a call has begun.
    pub fn left_ns(&mut self, now_ns: u64, prices: Prices) -> u64 {
        self.prices = Some(prices);
        let Some(Idle { since_ns, first, .. }) = self.idle else { return 0 };
        let budget_ns = match first {
            true => self.first_budget_ns(prices),
            false => self.later_budget_ns(prices),
        };
        let budget_ns = budget_ns.min(prices.longest_wait_ns());
        match self.idle.as_mut().filter(|_| budget_ns > 0) {
            Some(idle) => (idle.waited, self.waited) = (true, true),
            None => self.declined = true,
        }
        budget_ns.saturating_sub(now_ns.saturating_sub(since_ns))
    }

    /// What it is worth to wait the first time in a turn.
    fn first_worth_ns(&self, Prices { change_ns, quantum_ns, call_ns }: Prices) -> u64 {
        let later_ns = self.later_ns.unwrap_or(0);
        // No more than fit.
        let fits = quantum_ns / call_ns.saturating_add(later_ns).max(1);
        let gained = self.gained.unwrap_or(HOPED * 16).min(fits.saturating_mul(16));
        let saved_ns = gained.saturating_mul(change_ns) / 16;
        let between = self.between.unwrap_or(HOPED * 16).min(gained.saturating_sub(16));
        saved_ns.saturating_sub(between.saturating_mul(later_ns) / 16)
    }

    fn first_budget_ns(&self, prices: Prices) -> u64 {
        let expected_ns = self.first_ns.unwrap_or(0);
        let longest_ns = prices.change_ns.max(expected_ns.saturating_mul(2));
        match self.first_worth_ns(prices) {
            worth_ns if expected_ns <= worth_ns => longest_ns.min(worth_ns),
            _ if self.explores => longest_ns,
            _ => 0,
        }
    }

    /// What it costs to yield while the tenant's calls go on.
    fn restart_ns(&self, prices: Prices) -> u64 {
        let first_ns = self.first_ns.unwrap_or(0);
        let waits = first_ns <= self.first_worth_ns(prices);
        prices.change_ns.saturating_add(if waits { first_ns } else { 0 })
    }

    fn later_budget_ns(&self, prices: Prices) -> u64 {
        let restart_ns = self.restart_ns(prices);
        if self.later_cost_ns.unwrap_or(0) <= restart_ns || self.explores { restart_ns } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const PRICES: Prices = Prices { change_ns: 140 * US, quantum_ns: 5_000 * US, call_ns: 50 * US };

    /// One turn whose calls come so long after the last answer; how many of them came while it waited, and whether it
    /// waited at all.
    fn turn(wait: &mut TurnWait, now_ns: &mut u64, gaps: &[u64]) -> (usize, bool) {
        wait.begin();
        let mut came = 0;
        let mut waited = false;
        for gap in gaps {
            wait.idle(*now_ns);
            let left = wait.left_ns(*now_ns, PRICES);
            waited |= left > 0;
            if left < *gap {
                wait.over();
                *now_ns += gap;
                wait.arrived(*now_ns, false);
                return (came, waited);
            }
            came += 1;
            *now_ns += gap;
            wait.arrived(*now_ns, true);
            *now_ns += PRICES.call_ns;
            wait.call_over();
        }
        wait.over();
        (came, waited)
    }

    #[test]
    fn calls_that_come_soon_are_waited_for() {
        let (mut wait, mut now) = (TurnWait::default(), 0);
        for _ in 0..100 {
            assert_eq!(turn(&mut wait, &mut now, &[30 * US; 40]).0, 40);
        }
    }

    #[test]
    fn a_first_call_that_comes_late_is_worth_the_wait_if_more_follow() {
        // The client slept; its later calls come soon.
        let mut gaps = vec![300 * US];
        gaps.extend([30 * US; 30]);
        let (mut wait, mut now) = (TurnWait::default(), 0);
        let came: usize = (0..100).map(|_| turn(&mut wait, &mut now, &gaps).0).sum();
        assert!(came > 90 * gaps.len(), "{came}");
    }

    #[test]
    fn calls_that_come_late_are_not_waited_for() {
        let (mut wait, mut now) = (TurnWait::default(), 0);
        let turns = 3200;
        let waited = (0..turns).filter(|_| turn(&mut wait, &mut now, &[5_000 * US]).1).count();
        // More often at first, then each 32nd.
        assert!((turns / 33..turns / 33 + 20).contains(&waited), "{waited}");
    }

    #[test]
    fn a_tenant_whose_calls_begin_to_come_sooner_is_waited_for_again() {
        let (mut wait, mut now) = (TurnWait::default(), 0);
        for _ in 0..100 {
            turn(&mut wait, &mut now, &[5_000 * US]);
        }
        let came: usize = (0..200).map(|_| turn(&mut wait, &mut now, &[30 * US; 20]).0).sum();
        assert!(came > 100 * 20, "{came}");
    }

    #[test]
    fn a_tenant_that_sleeps_between_its_turns_is_found_to_be_worth_the_wait() {
        // While its turn is not kept for it, each call comes late, since its client sleeps; once it is awake, soon.
        let (mut wait, mut now) = (TurnWait::default(), 0);
        for _ in 0..100 {
            turn(&mut wait, &mut now, &[500 * US]);
        }
        let mut gaps = vec![500 * US];
        gaps.extend([30 * US; 30]);
        let came: usize = (0..200).map(|_| turn(&mut wait, &mut now, &gaps).0).sum();
        assert!(came > 100 * gaps.len(), "{came}");
    }

    #[test]
    fn one_wait_that_keeps_all_lanes_busy_for_the_rest_of_a_turn_is_worth_it() {
        // Eight calls wait for each turn; the next ones come 250 µs after the answers to them, and then there is always one.
        let (mut wait, mut now) = (TurnWait::default(), 0);
        let mut turn = |first_ns: u64| {
            wait.begin();
            (0..8).for_each(|_| wait.call_over());
            wait.idle(now);
            let kept = wait.left_ns(now, PRICES) >= first_ns;
            if kept {
                wait.arrived(now + first_ns, true);
                (0..400).for_each(|_| wait.call_over());
            }
            wait.over();
            if !kept {
                wait.arrived(now + first_ns, false);
            }
            now += 10_000 * US;
            kept
        };
        assert!(!turn(250 * US), "nothing is known of how soon calls come");
        assert!((0..200).all(|_| turn(250 * US)));
        // While another process is made, all comes late; then turns are kept again.
        assert!(!(0..20).any(|_| turn(100_000 * US)));
        let kept = (0..200).filter(|_| turn(250 * US)).count();
        assert!(kept > 120, "{kept}");
    }

    #[test]
    fn a_call_that_comes_very_late_now_and_then_stops_no_waiting() {
        // The host of a virtual machine takes a processor away for a while.
        let (mut wait, mut now) = (TurnWait::default(), 0);
        let gap = |nth: usize| if nth.is_multiple_of(9) { 4_000 * US } else { 20 * US };
        let mut calls = 0;
        let turns = 1000;
        for _ in 0..turns {
            let mut gaps = vec![200 * US];
            gaps.extend((calls + 1..calls + 100).map(gap));
            calls += turn(&mut wait, &mut now, &gaps).0 + 1;
        }
        // All calls up to the late one, for which no turn waits.
        assert!(calls > 7 * turns, "{calls}");
    }

    #[test]
    fn later_waits_come_back_where_the_first_one_is_made_all_along() {
        let mut gaps = vec![50 * US];
        gaps.extend([20 * US; 60]);
        for late in 1..20 {
            let (mut wait, mut now) = (TurnWait::default(), 0);
            let good = |wait: &mut TurnWait, now: &mut u64| -> usize {
                (0..200).map(|_| turn(wait, now, &gaps).0).sum()
            };
            good(&mut wait, &mut now);
            // Later calls come late in so many turns, one after the other.
            for _ in 0..late {
                turn(&mut wait, &mut now, &[50 * US, 3_000 * US]);
            }
            let came = good(&mut wait, &mut now);
            assert!(came > 150 * gaps.len(), "{late}: {came}");
        }
    }

    #[test]
    fn one_long_time_without_a_call_costs_two_turns() {
        let gaps = [vec![40 * US], vec![20 * US; 60]].concat();
        for late in [[100 * US, 2_000 * US], [300 * US, 100_000 * US], [5_000 * US, 5_000 * US]] {
            let (mut wait, mut now) = (TurnWait::default(), 0);
            turn(&mut wait, &mut now, &late);
            let kept = (0..40).filter(|_| turn(&mut wait, &mut now, &gaps).0 == gaps.len()).count();
            assert!(kept >= 38, "{late:?}: {kept}");
        }
    }

    #[test]
    fn what_the_worker_does_itself_is_no_time_without_a_call() {
        for (worked, waits, learned) in [(0, false, 625 * US), (4_900 * US, true, 40 * US)] {
            let mut wait = TurnWait::default();
            wait.begin();
            wait.call_over();
            wait.idle(0);
            assert!(wait.left_ns(0, PRICES) > 0);
            // Arenas came in front of the call.
            wait.worked(worked);
            assert_eq!(wait.left_ns(4_940 * US, PRICES) > 0, waits);
            wait.arrived(4_940 * US, true);
            assert_eq!(wait.first_ns, Some(learned));
        }
    }

    #[test]
    fn a_later_time_in_which_none_was_waited_for_counts_for_nothing() {
        let (mut wait, mut now) = (TurnWait::default(), 0);
        for gap in [30 * US, 300 * US] {
            wait.begin();
            wait.arrived(now, true);
            wait.ended = 1;
            (wait.later_ns, wait.later_cost_ns) = (Some(gap), Some(gap));
            wait.idle(now);
            let waits = wait.left_ns(now, PRICES) > 0;
            wait.over();
            now += 5_000 * US;
            wait.arrived(now, false);
            assert_eq!((waits, wait.later_ns == Some(gap)), (gap == 30 * US, gap == 300 * US));
        }
    }

    #[test]
    fn no_wait_costs_more_than_its_bound() {
        let (mut wait, mut now) = (TurnWait::default(), 0);
        // The worst: each call comes just after the wait ended.
        for _ in 0..1000 {
            wait.begin();
            wait.idle(now);
            let left = wait.left_ns(now, PRICES);
            assert!(left <= PRICES.quantum_ns / QUANTUM_SHARE);
            now += left + 1;
            assert_eq!(wait.left_ns(now, PRICES), 0);
            wait.over();
            wait.arrived(now, false);
        }
        // However long the quantum.
        let long = Prices { quantum_ns: 1_000_000 * US, change_ns: 90_000 * US, ..PRICES };
        let mut other = TurnWait::default();
        other.idle(0);
        assert_eq!(other.left_ns(0, long), LONGEST_WAIT_NS);
        // Where no first wait is worth it, a later one takes no longer than a change.
        wait.begin();
        wait.arrived(now, true);
        wait.ended = 1;
        wait.idle(now);
        assert!(wait.left_ns(now, PRICES) <= PRICES.change_ns);
    }

    #[test]
    fn a_change_that_costs_nothing_is_not_waited_for() {
        let free = Prices { change_ns: 0, ..PRICES };
        let mut wait = TurnWait::default();
        wait.begin();
        wait.idle(0);
        assert_eq!(wait.left_ns(0, free), 0);
    }
}
