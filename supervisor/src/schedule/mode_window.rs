//! The work that was completed in a while, in all and by tenant, to compare the modes of `turn_mode` by. The work of a call
//! is the least that calls of its kind took on the device. That is looked up when windows are compared, so that a call counts
//! the same in all of them, whatever was learned between them: otherwise a function whose first calls ran while the chip
//! sliced would seem to do less work by turns.

use std::collections::HashMap;

use super::run_times::{Kind, RunTimes};
use crate::ids::{IdMap, TenantId};

/// Fewer calls of a tenant on average say nothing about tenants.
const ENOUGH_CALLS: u64 = 4;
/// So many kinds of calls of tenants have work in a window: one tenant with ever new functions must not make it large, nor
/// what it takes to compare windows long.
const MOST_KINDS: usize = 4096;
/// What one tenant gains or loses counts up to this factor.
const MOST_GAIN: f64 = 4.0;

/// Completed calls.
#[derive(Debug, Default, Clone)]
pub(super) struct Window {
    /// How many of each kind, by tenant.
    counts: IdMap<(TenantId, Kind), u64>,
    calls: u64,
    passed_ns: u64,
}

impl Window {
    /// So many calls of a tenant ended.
    pub(super) fn add(&mut self, tenant: TenantId, kind: Kind, calls: u64) {
        self.calls += calls;
        let key = (tenant, kind);
        if self.counts.len() < MOST_KINDS || self.counts.contains_key(&key) {
            *self.counts.entry(key).or_default() += calls;
        }
    }

    /// How many calls ended.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// It lasts for so long now.
    pub(super) fn lasts(&mut self, passed_ns: u64) {
        self.passed_ns = passed_ns;
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        (self.calls, self.passed_ns) = (0, 0);
        self.counts.clear();
    }

    /// Becomes the other one, which begins anew.
    pub(super) fn take(&mut self, other: &mut Self) {
        std::mem::swap(self, other);
        other.clear();
    }

    /// The work of each kind of a tenant's calls.
    fn works<'a>(&'a self, times: &'a RunTimes) -> impl Iterator<Item = (TenantId, u64)> + 'a {
        self.counts
            .iter()
            .map(|((tenant, kind), calls)| (*tenant, calls * times.shortest_ns(*kind).unwrap_or(0)))
    }

    /// Thousandths of the device's time.
    pub(super) fn rate(&self, times: &RunTimes) -> u64 {
        let work_ns = self.works(times).fold(0u64, |sum, (_, work_ns)| sum.saturating_add(work_ns));
        work_ns.saturating_mul(1000) / self.passed_ns.max(1)
    }

    /// Whether a tenth more was done than in the other one.
    pub(super) fn gains(&self, other: &Self, times: &RunTimes) -> bool {
        let rate = other.rate(times);
        self.passed_ns > 0 && other.passed_ns > 0 && self.rate(times) > rate.saturating_add(rate / 10)
    }

    /// Whether so much less was done that no later part of it makes up for that, even if so many more calls end now, which count
    /// as those do that ended: a few long ones among many short ones keep no probe going.
    pub(super) fn is_much_less_than(&self, other: &Self, more: u64, times: &RunTimes) -> bool {
        let expected = other.calls.saturating_mul(self.passed_ns) / other.passed_ns.max(1);
        let with_more = match self.calls {
            // Of the other one's kinds.
            0 => other.rate(times).saturating_mul(more) / expected.max(1),
            calls => self.rate(times).saturating_mul(calls.saturating_add(more)) / calls,
        };
        with_more.saturating_mul(4) < other.rate(times).saturating_mul(3)
    }

    /// Whether tenants got more than in the other one, on average: by the geometric mean of what each gained, so that
    /// one that has twice as much weighs as much as one that has half. None if too few calls ended to say so.
    pub(super) fn tenants_gain(&self, other: &Self, times: &RunTimes) -> Option<bool> {
        let mut rates: HashMap<TenantId, [f64; 2]> = HashMap::new();
        for (at, window) in [self, other].into_iter().enumerate() {
            for (tenant, work_ns) in window.works(times) {
                rates.entry(tenant).or_default()[at] += work_ns as f64 / window.passed_ns.max(1) as f64;
            }
        }
        let gains = rates.values().map(|[own, other]| own / other.max(f64::MIN_POSITIVE));
        let sum: f64 = gains.map(|gain| gain.clamp(MOST_GAIN.recip(), MOST_GAIN).ln()).sum();
        let enough = self.calls.min(other.calls) >= ENOUGH_CALLS * (rates.len() as u64).max(1);
        enough.then_some(sum > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FunctionId;

    /// All calls are of one kind.
    fn kind() -> Kind {
        Kind::of(FunctionId::new(1), TenantId::new(1), 1)
    }

    /// They take a nanosecond each.
    fn times() -> RunTimes {
        let mut times = RunTimes::default();
        times.ended(kind(), 1);
        times
    }

    fn window(works_ns: &[u64]) -> Window {
        let mut window = Window::default();
        for (tenant, work_ns) in (0..).zip(works_ns) {
            window.add(TenantId::new(tenant), kind(), *work_ns);
        }
        window.lasts(1_000);
        window
    }

    #[test]
    fn more_work_is_more_by_a_tenth() {
        let times = &times();
        assert_eq!(window(&[300, 200]).rate(times), 500);
        assert!(window(&[400, 200]).gains(&window(&[300, 200]), times));
        assert!(!window(&[340, 200]).gains(&window(&[300, 200]), times));
        assert!(!window(&[1]).gains(&Window::default(), times), "nothing was watched");
        let much_less = |calls: &[u64], more| window(calls).is_much_less_than(&window(&[500]), more, times);
        assert!(much_less(&[300], 0) && !much_less(&[400], 0));
        assert!(much_less(&[300], 70) && !much_less(&[300], 80), "more are about to end");
        assert!(much_less(&[], 370) && !much_less(&[], 380));
    }

    #[test]
    fn a_window_has_so_many_kinds_at_most() {
        let mut window = Window::default();
        let kinds = MOST_KINDS as u64 + 10;
        (0..kinds).for_each(|nth| {
            window.add(TenantId::new(1), Kind::of(FunctionId::new(nth), TenantId::new(1), 1), 1)
        });
        window.add(TenantId::new(1), Kind::of(FunctionId::new(0), TenantId::new(1), 1), 1);
        assert_eq!((window.counts.len(), window.calls()), (MOST_KINDS, kinds + 1));
        assert_eq!(window.counts[&(TenantId::new(1), Kind::of(FunctionId::new(0), TenantId::new(1), 1))], 2);
    }

    #[test]
    fn tenants_gain_on_average_or_not() {
        let times = &times();
        let before = window(&[100, 100, 100, 100]);
        // More in all, since one of four has four times as much.
        let one = window(&[400, 60, 60, 60]);
        assert!(one.gains(&before, times));
        assert_eq!(one.tenants_gain(&before, times), Some(false));
        assert_eq!(before.tenants_gain(&one, times), Some(true));
        assert_eq!(window(&[120, 120, 120, 90]).tenants_gain(&before, times), Some(true));
        assert_eq!(window(&[500]).tenants_gain(&before, times), Some(false), "three have nothing");
        let few = window(&[3]);
        assert_eq!(few.tenants_gain(&before, times), None);
    }

    #[test]
    fn a_call_counts_the_same_in_all_windows() {
        let (mut times, other) = (RunTimes::default(), Kind::of(FunctionId::new(2), TenantId::new(1), 1));
        // The first call of a function shared the device, and took long for it.
        times.ended_beside_others(other, 1_000);
        let mut before = Window::default();
        before.add(TenantId::new(1), other, 10);
        before.lasts(10_000);
        assert_eq!(before.rate(&times), 1_000);
        // By turns it is seen what it takes.
        times.ended(other, 100);
        let mut by_turns = Window::default();
        by_turns.add(TenantId::new(1), other, 20);
        by_turns.lasts(10_000);
        assert!(by_turns.gains(&before, &times) && by_turns.rate(&times) == 200);
        // A function that is gone counts nowhere.
        times.forget(FunctionId::new(2));
        assert_eq!((before.rate(&times), by_turns.rate(&times)), (0, 0));
    }
}
