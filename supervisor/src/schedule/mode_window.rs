//! The work that was completed in a while, in all and by tenant, to compare the modes of `turn_mode` by. The work of a call
//! is the least that calls of its function took on the device, so that calls count the same in both modes.

use std::collections::HashMap;

use crate::ids::TenantId;

/// Fewer calls of a tenant on average say nothing about tenants.
const ENOUGH_CALLS: u64 = 4;
/// What one tenant gains or loses counts up to this factor.
const MOST_GAIN: f64 = 4.0;

/// Completed work.
#[derive(Debug, Default)]
pub(super) struct Window {
    work_ns: u64,
    calls: u64,
    passed_ns: u64,
    /// By tenant; at most as many as had calls in workers meanwhile.
    tenants: HashMap<TenantId, u64>,
}

impl Window {
    /// A tenant's call ended whose work is this.
    pub(super) fn add(&mut self, tenant: TenantId, work_ns: u64) {
        self.work_ns = self.work_ns.saturating_add(work_ns);
        self.calls += 1;
        let of_tenant = self.tenants.entry(tenant).or_default();
        *of_tenant = of_tenant.saturating_add(work_ns);
    }

    /// It lasts for so long now.
    pub(super) fn lasts(&mut self, passed_ns: u64) {
        self.passed_ns = passed_ns;
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        (self.work_ns, self.calls, self.passed_ns) = (0, 0, 0);
        self.tenants.clear();
    }

    /// Becomes the other one, which begins anew.
    pub(super) fn take(&mut self, other: &mut Self) {
        std::mem::swap(self, other);
        other.clear();
    }

    /// Thousandths of the device's time.
    pub(super) fn rate(&self) -> u64 {
        self.work_ns.saturating_mul(1000) / self.passed_ns.max(1)
    }

    /// Whether a tenth more was done than in the other one.
    pub(super) fn gains(&self, other: &Self) -> bool {
        let rate = other.rate();
        self.passed_ns > 0 && other.passed_ns > 0 && self.rate() > rate.saturating_add(rate / 10)
    }

    /// Whether so much less was done that no later part of it makes up for that.
    pub(super) fn is_much_less_than(&self, other: &Self) -> bool {
        self.rate().saturating_mul(4) < other.rate().saturating_mul(3)
    }

    /// Whether tenants got more than in the other one, on average: by the geometric mean of what each gained, so that
    /// one that has twice as much weighs as much as one that has half. None if too few calls ended to say so.
    pub(super) fn tenants_gain(&self, other: &Self) -> Option<bool> {
        let tenants =
            self.tenants.keys().chain(other.tenants.keys().filter(|t| !self.tenants.contains_key(t)));
        let rate = |window: &Self, tenant: &TenantId| {
            let work_ns = window.tenants.get(tenant).copied().unwrap_or(0);
            work_ns as f64 / window.passed_ns.max(1) as f64
        };
        let (mut count, mut sum) = (0, 0.0);
        for tenant in tenants {
            let gain = rate(self, tenant) / rate(other, tenant).max(f64::MIN_POSITIVE);
            sum += gain.clamp(MOST_GAIN.recip(), MOST_GAIN).ln();
            count += 1;
        }
        let enough = self.calls.min(other.calls) >= ENOUGH_CALLS * count.max(1);
        enough.then_some(sum > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(works_ns: &[u64]) -> Window {
        let mut window = Window::default();
        for (tenant, work_ns) in (0..).zip(works_ns) {
            (0..20).for_each(|_| window.add(TenantId::new(tenant), work_ns / 20));
        }
        window.lasts(1_000);
        window
    }

    #[test]
    fn more_work_is_more_by_a_tenth() {
        assert_eq!(window(&[300, 200]).rate(), 500);
        assert!(window(&[400, 200]).gains(&window(&[300, 200])));
        assert!(!window(&[340, 200]).gains(&window(&[300, 200])));
        assert!(!window(&[1]).gains(&Window::default()), "nothing was watched");
        assert!(window(&[300]).is_much_less_than(&window(&[500])));
        assert!(!window(&[400]).is_much_less_than(&window(&[500])));
    }

    #[test]
    fn tenants_gain_on_average_or_not() {
        let before = window(&[100, 100, 100, 100]);
        // More in all, since one of four has four times as much.
        let one = window(&[400, 60, 60, 60]);
        assert!(one.gains(&before));
        assert_eq!(one.tenants_gain(&before), Some(false));
        assert_eq!(before.tenants_gain(&one), Some(true));
        assert_eq!(window(&[120, 120, 120, 90]).tenants_gain(&before), Some(true));
        assert_eq!(window(&[500]).tenants_gain(&before), Some(false), "three have nothing");
        let mut few = Window::default();
        few.add(TenantId::new(0), 1_000);
        assert_eq!(few.tenants_gain(&before), None);
    }
}
