//! Device time: how long calls take at least, what each tenant used, and who pays for the turns of shared workers.
//!
//! How long a caller's calls of a function take at least is known from those that ended lately: it is the least that was seen, which
//! rises slowly while none is as short. Where it is known from enough calls, a call that cannot end before its deadline, behind those
//! that wait before it, is refused at once; a call that could end in time is never refused for being expected to be slow.
//!
//! Calls of one function with more memory take longer: what needs about twice the memory is counted apart. So are calls of
//! different callers: no caller's slow calls have those of another refused.

use std::collections::BTreeMap;

use super::limits::{ENOUGH_CALLS, MAX_REMEMBERED, RISE};
use crate::ids::{FunctionId, IdMap, TenantId};

/// What was seen of one function.
#[derive(Debug, Clone, Copy)]
struct Seen {
    calls: u32,
    shortest_ns: u64,
}

/// Which calls take about as long: of which function, of which caller, and how many bits the number of bytes has that they
/// need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind(FunctionId, TenantId, u32);

impl Kind {
    /// The kind of a caller's calls of a function that need so many bytes of device memory.
    pub(super) fn of(function: FunctionId, caller: TenantId, memory_bytes: u64) -> Self {
        Self(function, caller, u64::BITS - memory_bytes.leading_zeros())
    }
}

/// What was seen of all functions that calls ended of.
#[derive(Debug, Default)]
pub(super) struct RunTimes(IdMap<Kind, Seen>);

impl RunTimes {
    /// A call was on the device for so long; how long the shortest was.
    pub(super) fn ended(&mut self, kind: Kind, device_ns: u64) -> u64 {
        if self.0.len() >= MAX_REMEMBERED && !self.0.contains_key(&kind) {
            self.0.clear();
        }
        let seen = self.0.entry(kind).or_insert(Seen { calls: 0, shortest_ns: device_ns });
        seen.calls = seen.calls.saturating_add(1);
        seen.shortest_ns = (seen.shortest_ns + seen.shortest_ns / RISE).min(device_ns);
        seen.shortest_ns
    }

    /// How long a call takes at least; none if too few ended.
    pub(super) fn at_least_ns(&self, kind: Kind) -> Option<u64> {
        self.0.get(&kind).filter(|seen| seen.calls >= ENOUGH_CALLS).map(|seen| seen.shortest_ns)
    }

    /// The shortest of the calls that ended, of few ones, too.
    #[cfg(test)]
    pub(super) fn shortest_ns(&self, kind: Kind) -> Option<u64> {
        self.0.get(&kind).map(|seen| seen.shortest_ns)
    }

    /// A function is gone for good.
    pub(super) fn forget(&mut self, function: FunctionId) {
        self.0.retain(|kind, _| kind.0 != function);
    }
}

/// Device time that each tenant used since the start.
#[derive(Debug, Default)]
pub(super) struct DeviceTime(BTreeMap<TenantId, u64>);

impl DeviceTime {
    /// A tenant used so much.
    pub(super) fn add(&mut self, tenant: TenantId, used_ns: u64) {
        if let Some(ns) = self.0.get_mut(&tenant) {
            *ns = ns.saturating_add(used_ns);
        } else if self.0.len() < MAX_REMEMBERED {
            self.0.insert(tenant, used_ns);
        }
    }

    /// What one tenant used.
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        self.0.get(&tenant).copied().unwrap_or(0)
    }

    /// Each tenant that used the device.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, u64)> {
        self.0.iter().map(|(tenant, ns)| (*tenant, *ns))
    }
}

/// Device time of shared workers' turns that was not paid for yet: the payers of calls that ended meanwhile pay, by how long their calls
/// were on the device.
#[derive(Debug, Default)]
pub(super) struct SharedCharges {
    /// How long calls were on the device, by payer.
    ran_ns: IdMap<TenantId, u64>,
    /// How long turns lasted.
    turns_ns: u64,
}

impl SharedCharges {
    /// A payer's call was on the device for so long.
    pub(super) fn ran(&mut self, payer: TenantId, device_ns: u64) {
        *self.ran_ns.entry(payer).or_default() += device_ns;
    }

    /// Turns lasted so long: what each payer is charged. Where no call ended yet, those that end next pay.
    pub(super) fn took(&mut self, used_ns: u64) -> Vec<(TenantId, u64)> {
        self.turns_ns = self.turns_ns.saturating_add(used_ns);
        let sum_ns: u128 = self.ran_ns.values().map(|ns| u128::from(*ns)).sum();
        if sum_ns == 0 {
            return Vec::new();
        }
        let turns_ns = u128::from(std::mem::take(&mut self.turns_ns));
        let part =
            |(payer, ran_ns): (TenantId, u64)| (payer, (u128::from(ran_ns) * turns_ns / sum_ns) as u64);
        self.ran_ns.drain().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: FunctionId = FunctionId::new(1);
    const ALICE: TenantId = TenantId::new(1);
    const BOB: TenantId = TenantId::new(2);
    const B: u64 = 4096;

    fn kind(function: FunctionId) -> Kind {
        Kind::of(function, ALICE, B)
    }

    #[test]
    fn little_is_known_of_few_calls() {
        let mut times = RunTimes::default();
        (1..ENOUGH_CALLS).for_each(|_| {
            times.ended(kind(F), 70);
        });
        assert_eq!((times.at_least_ns(kind(F)), times.shortest_ns(kind(F))), (None, Some(70)));
        times.ended(kind(F), 90);
        assert!(times.at_least_ns(kind(F)).is_some_and(|ns| (70..=72).contains(&ns)));
        times.forget(F);
        assert_eq!(times.shortest_ns(kind(F)), None);
    }

    #[test]
    fn who_fills_it_keeps_others_out_for_a_moment_only() {
        let mut times = RunTimes::default();
        (2..MAX_REMEMBERED as u64 + 2).for_each(|other| {
            times.ended(kind(FunctionId::new(other)), 70);
        });
        (0..ENOUGH_CALLS).for_each(|_| {
            times.ended(kind(F), 70);
        });
        assert!(times.at_least_ns(kind(F)).is_some() && times.0.len() == 1);
    }

    #[test]
    fn the_least_follows_short_calls_at_once_and_long_ones_slowly() {
        let mut times = RunTimes::default();
        (0..100).for_each(|_| {
            times.ended(kind(F), 1_000_000);
        });
        times.ended(kind(F), 1_000);
        assert_eq!(times.at_least_ns(kind(F)), Some(1_000));
        (0..10).for_each(|_| {
            times.ended(kind(F), 1_000_000);
        });
        assert!(times.at_least_ns(kind(F)).is_some_and(|ns| ns < 1_200));
        (0..1000).for_each(|_| {
            times.ended(kind(F), 1_000_000);
        });
        assert_eq!(times.at_least_ns(kind(F)), Some(1_000_000));
    }

    #[test]
    fn small_calls_say_nothing_of_large_ones() {
        let mut times = RunTimes::default();
        let large = FunctionId::new(2);
        for (function, bytes, ns) in [(F, B, 10), (F, 8 * B, 80), (large, B, 5)] {
            (0..ENOUGH_CALLS).for_each(|_| {
                times.ended(Kind::of(function, ALICE, bytes), ns);
            });
        }
        let known = |bytes| times.at_least_ns(Kind::of(F, ALICE, bytes));
        assert_eq!([B, B + 1, 8 * B, 64 * B].map(known), [Some(10), Some(10), Some(80), None]);
        times.forget(F);
        assert_eq!(
            [(F, B), (F, 8 * B), (large, B)].map(|(f, b)| times.shortest_ns(Kind::of(f, ALICE, b))),
            [None, None, Some(5)]
        );
    }

    #[test]
    fn calls_of_one_caller_say_nothing_of_anothers() {
        let mut times = RunTimes::default();
        for (caller, ns) in [(ALICE, 10), (BOB, 80)] {
            (0..ENOUGH_CALLS).for_each(|_| {
                times.ended(Kind::of(F, caller, B), ns);
            });
        }
        let known = |caller| times.at_least_ns(Kind::of(F, caller, B));
        assert_eq!([ALICE, BOB, TenantId::new(3)].map(known), [Some(10), Some(80), None]);
        times.forget(F);
        assert!(times.0.is_empty());
    }

    #[test]
    fn a_turn_is_paid_for_by_those_whose_calls_ran_in_it() {
        let mut charges = SharedCharges::default();
        let [alice, bob] = [1, 2].map(TenantId::new);
        assert_eq!(charges.took(100), [], "no call ended yet");
        charges.ran(alice, 30);
        charges.ran(bob, 10);
        charges.ran(alice, 30);
        let mut paid = charges.took(40);
        paid.sort_unstable();
        assert_eq!(paid, [(alice, 120), (bob, 20)]);
        charges.ran(bob, u64::MAX);
        assert_eq!(charges.took(7), [(bob, 7)]);
    }
}
