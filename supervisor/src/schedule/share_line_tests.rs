//! Shares of tenants in one line, in virtual time.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const ALICE: TenantId = TenantId::new(1);
const BOB: TenantId = TenantId::new(2);

fn share(weight: u32, class: Class) -> TenantShare {
    TenantShare { weight, class, ..TenantShare::default() }
}

/// Serves tenants that always want more, each for as long as it is given at a time, until so much time passed: what
/// each had.
fn serve(
    line: &mut ShareLine<u64>,
    until_ns: u64,
    at_a_time_ns: impl Fn(TenantId) -> u64,
) -> HashMap<TenantId, u64> {
    let (mut had, mut now_ns) = (HashMap::new(), 0);
    while now_ns < until_ns {
        let Some((tenant, item)) = line.first() else { break };
        line.serve(tenant);
        line.remove(tenant, item);
        let used_ns = at_a_time_ns(tenant).max(1);
        now_ns += used_ns;
        *had.entry(tenant).or_default() += used_ns;
        line.charge(tenant, used_ns);
        line.push(tenant, item);
    }
    had
}

#[test]
fn weights_divide_device_time_and_not_turns() {
    let mut line = ShareLine::new(5 * MS, 0);
    for (nth, weight) in [1, 2, 4].into_iter().enumerate() {
        let tenant = TenantId::new(nth as u32);
        line.set_share(tenant, share(weight, Class::Normal));
        line.push(tenant, nth as u64);
    }
    // The first one's turns are the longest.
    let had = serve(&mut line, 70_000 * MS, |tenant| (5 - u64::from(tenant.get())) * MS);
    let parts = [0, 1, 2].map(|tenant| had[&TenantId::new(tenant)] / MS);
    for (part, wanted) in parts.into_iter().zip([10_000, 20_000, 40_000]) {
        assert!(part.abs_diff(wanted) < 20, "{parts:?}");
    }
}

#[test]
fn a_changed_weight_counts_from_then_on() {
    let mut line = ShareLine::new(5 * MS, 0);
    line.push(ALICE, 1);
    line.push(BOB, 2);
    let before = serve(&mut line, 1_000 * MS, |_| MS);
    assert_eq!(before[&ALICE], before[&BOB]);
    line.set_share(BOB, share(3, Class::Normal));
    let after = serve(&mut line, 1_000 * MS, |_| MS);
    assert!(after[&BOB].abs_diff(3 * after[&ALICE]) <= 8 * MS, "{after:?}");
}

#[test]
fn a_higher_class_goes_first_and_the_lower_one_gets_a_twentieth() {
    let mut line = ShareLine::new(5 * MS, 0);
    line.set_share(ALICE, share(1, Class::Latency));
    line.set_share(BOB, share(1000, Class::Batch));
    line.push(BOB, 1);
    line.push(ALICE, 2);
    assert_eq!(line.first(), Some((ALICE, 2)));
    let had = serve(&mut line, 10_000 * MS, |_| 5 * MS);
    let part = had[&BOB] as f64 / had[&ALICE] as f64;
    assert!((0.04..0.06).contains(&part), "{had:?}");
}

#[test]
fn who_moves_to_another_class_is_there_once() {
    let mut line = ShareLine::new(MS, 0);
    line.push(ALICE, 1);
    line.push(ALICE, 2);
    line.set_share(ALICE, share(1, Class::Latency));
    assert_eq!((line.len(), line.iter().collect::<Vec<_>>()), (2, vec![(ALICE, 1), (ALICE, 2)]));
    line.remove(ALICE, 1);
    line.remove(ALICE, 1);
    assert_eq!((line.len(), line.first()), (1, Some((ALICE, 2))));
    line.set_share(ALICE, TenantShare::default());
    assert!(line.shares.is_empty());
}

#[test]
fn a_tenant_goes_on_until_it_had_as_much_as_the_first_in_line() {
    let front = |line: &ShareLine<_>| line.place_of(line.first().unwrap().0);
    let mut line = ShareLine::new(MS, 0);
    line.push(BOB, 1);
    line.serve(BOB);
    line.charge(BOB, 10 * MS);
    line.charge(ALICE, 9 * MS);
    assert!(line.goes_before(front(&line), ALICE));
    line.charge(ALICE, 2 * MS);
    assert!(!line.goes_before(front(&line), ALICE));
    line.set_share(BOB, share(1, Class::Batch));
    assert!(line.goes_before(front(&line), ALICE), "of a higher class");
}

fn classes() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Latency), Just(Class::Normal), Just(Class::Batch)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the weights and classes are, and however long each one's turns last: a tenant that wants the device
    /// gets it, and no tenant of its class gets much more by its weight.
    #[test]
    fn none_starves_and_equals_get_equal_shares(
        tenants in proptest::collection::vec((1..20u32, classes(), 1..20u64), 2..8)
    ) {
        let mut line = ShareLine::new(5 * MS, 0);
        for (nth, (weight, class, _)) in tenants.iter().enumerate() {
            line.set_share(TenantId::new(nth as u32), share(*weight, *class));
            line.push(TenantId::new(nth as u32), nth as u64);
        }
        let at_a_time = |tenant: TenantId| tenants[tenant.get() as usize].2 * MS;
        let total = 40_000 * MS;
        let had = serve(&mut line, total, at_a_time);
        for (nth, (weight, class, _)) in tenants.iter().enumerate() {
            let mine = had.get(&TenantId::new(nth as u32)).copied().unwrap_or(0);
            let of_class: u32 = tenants.iter().filter(|(_, c, _)| c == class).map(|(w, ..)| w).sum();
            // A lower class is owed a twentieth of what higher ones use.
            let least = total / 25 * u64::from(*weight) / u64::from(of_class);
            prop_assert!(mine + 100 * MS >= least / 2, "{nth} had {} of {} ms", mine / MS, least / MS);
            for (other, (other_weight, _, _)) in
                tenants.iter().enumerate().filter(|(_, (_, other, _))| other == class)
            {
                let theirs = had.get(&TenantId::new(other as u32)).copied().unwrap_or(0);
                let lag = (mine / u64::from(*weight)).abs_diff(theirs / u64::from(*other_weight));
                // Start-time fair queueing: never further apart than a turn of each.
                prop_assert!(lag <= 40 * MS, "{nth} and {other} are {} ms apart", lag / MS);
            }
        }
    }
}

#[test]
fn a_tenant_that_comes_back_is_owed_the_same_whatever_its_weight() {
    // How long Alice is first, by turns of a millisecond, after Bob had the device for long.
    let owed_ms = |weight| {
        let mut line = ShareLine::new(5 * MS, 8 * MS);
        line.set_share(ALICE, share(weight, Class::Normal));
        line.push(BOB, 1);
        (0..100).for_each(|_| {
            line.serve(BOB);
            line.charge(BOB, MS);
        });
        line.push(ALICE, 2);
        let turns = std::iter::repeat_with(|| {
            let first = line.first().unwrap().0;
            line.serve(first);
            line.charge(first, MS);
            first
        });
        turns.take_while(|first| *first == ALICE).count()
    };
    let owed = [1, 2, 8].map(owed_ms);
    assert!((8..=10).contains(&owed[0]), "{owed:?}");
    // The turns of its own weight beside one of Bob's come on top.
    assert!(owed[1] <= owed[0] + 2 && owed[2] <= owed[0] + 8, "{owed:?}");
}
