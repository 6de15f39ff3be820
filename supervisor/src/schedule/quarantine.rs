//! Functions that keep failing are refused for a while, longer each time. Counted is each pair of a function
//! and a caller by itself: what one caller does with a function, deadlines that are too short included,
//! says nothing to others.
//!
//! ```text
//! free ──failed often enough in a row──► refused ──time passes──► one probe alone ──► free, or refused for longer
//! ```

use std::collections::HashMap;

use super::limits::{FIRST_REFUSAL_NS, LONGEST_REFUSAL_NS, MAX_FAILED};
use crate::ids::{FunctionId, TenantId};

/// Whose use of which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Use {
    /// The function.
    pub function: FunctionId,
    /// Its caller.
    pub caller: TenantId,
}

/// All uses that failed lately.
#[derive(Debug)]
pub struct Quarantine {
    /// So many failures in a row are enough; 0: nothing is ever refused.
    after: u32,
    cases: HashMap<Use, Case>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Case {
    /// In a row.
    failures: u32,
    /// How often it was refused.
    refusals: u32,
    failed_ns: u64,
    /// Until when it is refused.
    until_ns: u64,
    /// True if a call is under way to find out.
    probing: bool,
}

/// What becomes of a new call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Nothing speaks against it.
    Free,
    /// It decides: it must run alone, and [`Quarantine::probe`] be told.
    Probe,
    /// It is refused.
    Refused(Refusal),
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Failures in a row.
    pub failures: u32,
    /// When to come back.
    pub retry_ns: u64,
}

/// A use that is refused, as `status` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantined {
    /// Whose use of which function.
    pub used: Use,
    /// How often, and for how long from now; 0: the next call is the probe.
    pub refusal: Refusal,
}

impl Quarantine {
    /// Nothing failed yet.
    pub fn new(after: u32) -> Self {
        Self { after, cases: HashMap::new() }
    }

    /// Another limit.
    pub fn set_after(&mut self, after: u32) {
        self.after = after;
    }

    /// True if nothing failed lately, which is nearly always so.
    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    fn refused(&self, case: &Case) -> bool {
        self.after > 0 && case.failures >= self.after
    }

    /// What becomes of a new call.
    pub fn admit(&self, now_ns: u64, used: Use) -> Admission {
        let Some(case) = self.cases.get(&used).filter(|case| self.refused(case)) else {
            return Admission::Free;
        };
        let left_ns = case.until_ns.saturating_sub(now_ns);
        match (left_ns, case.probing) {
            (0, false) => Admission::Probe,
            // How long the probe takes is not known.
            (0, true) => Admission::Refused(Refusal { failures: case.failures, retry_ns: FIRST_REFUSAL_NS }),
            (retry_ns, _) => Admission::Refused(Refusal { failures: case.failures, retry_ns }),
        }
    }

    /// The probe is accepted.
    pub fn probe(&mut self, used: Use) {
        if let Some(case) = self.cases.get_mut(&used) {
            case.probing = true;
        }
    }

    /// The probe is over without a result.
    pub fn probed_in_vain(&mut self, used: Use) {
        if let Some(case) = self.cases.get_mut(&used) {
            case.probing = false;
        }
    }

    /// A call ended well.
    pub fn ended_well(&mut self, used: Use) {
        self.cases.remove(&used);
    }

    /// A call failed by itself. Returns the refusal for waiting calls, if this failure begins a quarantine.
    pub fn failed(&mut self, now_ns: u64, used: Use, is_probe: bool) -> Option<Refusal> {
        if self.after == 0 {
            return None;
        }
        if self.cases.len() >= MAX_FAILED && !self.cases.contains_key(&used) {
            let oldest = self.cases.iter().min_by_key(|(_, case)| case.failed_ns).map(|(used, _)| *used);
            self.cases.remove(&oldest?);
        }
        let after = self.after;
        let case = self.cases.entry(used).or_default();
        // Of several that ran side by side, one refusal follows.
        if case.failures >= after && !is_probe {
            return None;
        }
        case.failures = case.failures.saturating_add(1);
        case.failed_ns = now_ns;
        case.probing &= !is_probe;
        if case.failures < after {
            return None;
        }
        let retry_ns = LONGEST_REFUSAL_NS.min(FIRST_REFUSAL_NS << case.refusals.min(16));
        case.refusals += 1;
        case.until_ns = now_ns.saturating_add(retry_ns);
        Some(Refusal { failures: case.failures, retry_ns })
    }

    /// A function is gone; another one gets another name.
    pub fn forget(&mut self, function: FunctionId) {
        self.cases.retain(|used, _| used.function != function);
    }

    /// Uses that are refused.
    pub fn list(&self, now_ns: u64) -> Vec<Quarantined> {
        let refused = self.cases.iter().filter(|(_, case)| self.refused(case));
        let mut all: Vec<_> = refused
            .map(|(used, case)| {
                let retry_ns = case.until_ns.saturating_sub(now_ns);
                Quarantined { used: *used, refusal: Refusal { failures: case.failures, retry_ns } }
            })
            .collect();
        all.sort_unstable_by_key(|one| (one.used.function, one.used.caller));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const F: Use = Use { function: FunctionId::new(1), caller: TenantId::new(1) };

    fn refused(failures: u32, retry_ns: u64) -> Admission {
        Admission::Refused(Refusal { failures, retry_ns })
    }

    #[test]
    fn three_in_a_row_then_longer_each_time() {
        let mut q = Quarantine::new(3);
        for _ in 0..2 {
            assert_eq!((q.failed(0, F, false), q.admit(0, F)), (None, Admission::Free));
        }
        assert_eq!(q.failed(0, F, false), Some(Refusal { failures: 3, retry_ns: S }));
        let mut now = 0;
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(matches!(q.admit(now, F), Admission::Refused(r) if r.retry_ns == wait * S), "{wait}");
            now += wait * S;
            assert_eq!(q.admit(now, F), Admission::Probe);
            q.probe(F);
            assert!(matches!(q.admit(now, F), Admission::Refused(_)), "one probe at a time");
            assert!(q.failed(now, F, true).is_some());
        }
    }

    #[test]
    fn a_good_end_lifts_everything_and_in_between_the_count() {
        let mut q = Quarantine::new(2);
        for _ in 0..5 {
            assert_eq!(q.failed(0, F, false), None);
            q.ended_well(F);
        }
        assert_eq!((q.failed(0, F, false), q.failed(0, F, false).is_some()), (None, true));
        assert_eq!(q.admit(0, F), refused(2, S));
        q.ended_well(F);
        assert_eq!((q.admit(0, F), q.is_empty()), (Admission::Free, true));
    }

    #[test]
    fn callers_and_functions_are_apart() {
        let mut q = Quarantine::new(1);
        q.failed(0, F, false);
        assert_eq!(q.admit(0, Use { caller: TenantId::new(2), ..F }), Admission::Free);
        assert_eq!(q.admit(0, Use { function: FunctionId::new(2), ..F }), Admission::Free);
        q.failed(0, Use { caller: TenantId::new(2), ..F }, false);
        assert_eq!(q.list(S / 2).len(), 2);
        q.forget(FunctionId::new(1));
        assert_eq!((q.list(0), q.admit(0, F)), (vec![], Admission::Free));
    }

    #[test]
    fn calls_side_by_side_are_refused_once() {
        let mut q = Quarantine::new(1);
        assert!(q.failed(0, F, false).is_some());
        (0..9).for_each(|_| assert_eq!(q.failed(0, F, false), None));
        assert_eq!(q.admit(0, F), refused(1, S));
        // Nor do they end the probe that came later.
        q.probe(F);
        q.failed(S, F, false);
        assert_eq!(q.admit(S, F), refused(1, S));
        q.probed_in_vain(F);
        assert_eq!(q.admit(S, F), Admission::Probe);
    }

    #[test]
    fn off_and_bounded() {
        let mut q = Quarantine::new(0);
        (0..9).for_each(|_| assert_eq!(q.failed(0, F, false), None));
        assert!(q.is_empty());
        q.set_after(1);
        for function in 0..2 * MAX_FAILED as u64 {
            q.failed(function, Use { function: FunctionId::new(function), caller: TenantId::new(1) }, false);
        }
        assert_eq!(q.cases.len(), MAX_FAILED);
        assert_eq!(q.admit(0, F), Admission::Free, "the oldest went");
    }
}
