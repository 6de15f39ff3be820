//! Tests of [`homes`](super).

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::super::load::WARM_NS;
use super::super::routed::{Routed, SharedHomes};
use super::*;
use crate::ids::TenantId;

const MS: u64 = 1_000_000;
const MATMUL: FunctionId = FunctionId::new(1);

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

fn now() -> u64 {
    NOW_NS.get()
}

fn pass(ns: u64) {
    NOW_NS.set(now() + ns);
}

fn domain(tenant: u32) -> Domain {
    Domain { owner: TenantId::new(tenant), caller: TenantId::new(tenant) }
}

fn candidates(devices: usize) -> Vec<Candidate> {
    (0..devices).map(|device| Candidate { device, lanes: 8, workers: 64, weights_ns: 0 }).collect()
}

fn route(homes: &Arc<SharedHomes>, tenant: u32, able: &[Candidate]) -> Routed {
    let known = |device: usize| able.iter().find(|one| one.device == device).copied();
    homes.route(now, domain(tenant), MATMUL, &known).unwrap()
}

/// The home of a domain.
fn home(homes: &SharedHomes, domain: Domain) -> Option<usize> {
    homes.0.lock().domains.get(&domain).map(|state| state.home)
}

/// One call of each tenant that is there at the same time, `times` over; each takes `ms` on a device that it has for
/// itself, and longer the more share it. Returns where the calls of the last round went.
fn rounds(
    homes: &Arc<SharedHomes>,
    tenants: &[u32],
    able: &[Candidate],
    times: usize,
    ms: u64,
) -> Vec<usize> {
    let mut last = Vec::new();
    for _ in 0..times {
        let calls: Vec<_> = tenants.iter().map(|tenant| route(homes, *tenant, able)).collect();
        last = calls.iter().map(Routed::device).collect();
        let fullest = (0..able.len()).map(|d| last.iter().filter(|went| **went == d).count()).max();
        pass(ms * MS * fullest.unwrap_or(1) as u64);
        for call in calls {
            call.ran(Duration::from_nanos(ms * MS));
        }
    }
    last
}

#[test]
fn new_domains_go_where_most_is_free_and_stay() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    let calls: Vec<_> = (0..4).map(|tenant| route(&homes, tenant, &able)).collect();
    assert_eq!(calls.iter().map(Routed::device).collect::<Vec<_>>(), [0, 1, 0, 1]);
    drop(calls);
    let places = rounds(&homes, &[0, 1, 2, 3], &able, 2000, 1);
    assert_eq!(places, [0, 1, 0, 1]);
    // Without calls on either device, homes decide.
    assert_eq!(route(&homes, 5, &able).device(), 0);
    assert_eq!(route(&homes, 6, &able).device(), 1);
}

#[test]
fn a_tenant_that_fits_one_device_stays_on_one() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    for _ in 0..1000 {
        let calls: Vec<_> = (0..8).map(|_| route(&homes, 1, &able)).collect();
        assert!(calls.iter().all(|call| call.device() == 0));
        pass(MS);
        calls.iter().for_each(|call| call.ran(Duration::from_nanos(MS)));
    }
}

#[test]
fn a_queue_that_costs_more_than_a_move_spreads_and_comes_back() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    let burst = |calls: usize, ms: u64| {
        let routed: Vec<_> = (0..calls).map(|_| route(&homes, 1, &able)).collect();
        let away = routed.iter().filter(|call| call.device() == 1).count();
        for call in routed {
            pass(ms * MS);
            call.ran(Duration::from_nanos(ms * MS));
        }
        away
    };
    // Calls of 10 ms, one after the other: two wait for less than a move takes.
    (0..20).for_each(|_| assert_eq!(burst(2, 10), 0));
    assert_eq!(burst(8, 10), 0, "they fit the lanes");
    let away = burst(64, 10);
    assert!((10..40).contains(&away), "{away} of 64 away from home");
    // Short again: at home.
    (0..20).for_each(|_| assert_eq!(burst(4, 10), 0));
}

/// So many calls of one tenant at once, of 8 ms on one of eight lanes, while the devices start a process for so long; how many
/// went to the second one.
fn burst_beside_a_start(
    homes: &Arc<SharedHomes>,
    able: &[Candidate],
    calls: usize,
    start_ms: [u64; 2],
) -> usize {
    let mut queued = [0; 2];
    let routed = (0..calls).map(|_| {
        let call = route(homes, 1, able);
        let device = call.device();
        let place = queued[device];
        queued[device] += 1;
        (start_ms[device] + (place / 8 + 1) * 8, call)
    });
    let mut routed: Vec<_> = routed.collect();
    routed.sort_by_key(|(ends_ms, _)| *ends_ms);
    let begin = now();
    for (ends_ms, call) in routed {
        pass(begin + ends_ms * MS - now());
        call.ran(Duration::from_nanos(8 * MS));
    }
    queued[1] as usize
}

#[test]
fn what_came_while_a_process_started_is_measured_from_its_start() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // The home has to start one, too.
    assert_eq!(burst_beside_a_start(&homes, &able, 64, [600, 0]), 0, "nothing is known");
    let first = burst_beside_a_start(&homes, &able, 64, [0, 600]);
    assert!(first > 8, "{first} of 64 found no process");
    for _ in 0..3 {
        let away = burst_beside_a_start(&homes, &able, 64, [0, 0]);
        assert!((16..=48).contains(&away), "{away} of 64");
    }
}

#[test]
fn its_own_earlier_queue_elsewhere_keeps_no_domain_at_home() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // Most of these wait there for several rounds of eight.
    for _ in 0..4 {
        burst_beside_a_start(&homes, &able, 256, [0, 0]);
    }
    let away = burst_beside_a_start(&homes, &able, 24, [0, 0]);
    assert!((8..=16).contains(&away), "{away} of 24");
}

#[test]
fn a_busy_neighbour_without_a_call_for_a_moment_makes_no_room() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // Two tenants on each device.
    let there = || (0..4).map(|tenant| route(&homes, tenant, &able)).collect::<Vec<_>>();
    for _ in 0..100 {
        let calls = there();
        pass(5 * MS);
        calls.iter().for_each(|call| call.ran(Duration::from_nanos(5 * MS)));
    }
    let mut calls = there();
    let many = || (0..200).map(|_| route(&homes, 0, &able)).collect::<Vec<_>>();
    let away = |calls: &[Routed]| calls.iter().filter(|call| call.device() == 1).count();
    // One of the second device is answered and has not called again yet.
    calls.truncate(3);
    pass(MS / 10);
    assert_eq!(away(&many()), 0);
    // The control: it does not call again.
    pass(500 * MS);
    assert!(away(&many()) > 0);
}

#[test]
fn a_domain_moves_away_from_others_once_that_has_paid_and_then_stays() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // Four tenants on two devices; those of the second one leave.
    rounds(&homes, &[0, 1, 2, 3], &able, 100, 2);
    homes.0.lock().devices[1].homes = 0;
    homes.0.lock().domains.retain(|domain, _| domain.caller.get() % 2 == 0);
    let before: Vec<_> = [0, 2].map(|tenant| home(&homes, domain(tenant))).to_vec();
    assert_eq!(before, [Some(0), Some(0)]);
    let early = rounds(&homes, &[0, 2], &able, 5, 2);
    assert_eq!(early, [0, 0], "a few calls do not pay for a move");
    let mut late = rounds(&homes, &[0, 2], &able, 1000, 2);
    late.sort_unstable();
    assert_eq!(late, [0, 1]);
    // From here on nothing moves.
    let settled = rounds(&homes, &[0, 2], &able, 1, 2);
    (0..100).for_each(|_| assert_eq!(rounds(&homes, &[0, 2], &able, 10, 2), settled));
}

#[test]
fn devices_of_different_speed_are_compared_by_time() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // The second device takes twenty times as long.
    for tenant in 0..6 {
        let call = route(&homes, tenant, &able);
        let ns = if call.device() == 0 { MS } else { 20 * MS };
        pass(ns);
        call.ran(Duration::from_nanos(ns));
        drop(call);
        let again = route(&homes, tenant, &able);
        let ns = if again.device() == 0 { MS } else { 20 * MS };
        pass(ns);
        again.ran(Duration::from_nanos(ns));
    }
    let busy: Vec<_> = (10..20).map(|tenant| route(&homes, tenant, &able)).collect();
    let slow = busy.iter().filter(|call| call.device() == 1).count();
    assert_eq!(slow, 0, "ten that share the fast one are done before one on the slow one");
}

#[test]
fn a_domain_moves_to_a_faster_device_once_that_has_paid_with_its_weights() {
    let turns_out = |weights_ns: u64, calls: usize| {
        let able: Vec<_> = candidates(2).into_iter().map(|one| Candidate { weights_ns, ..one }).collect();
        let homes = SharedHomes::new(2);
        // The second device is known to be twice as fast; on the first one the tenant is alone.
        let mut speeds = Speeds::default();
        for (device, ms) in [2, 1].into_iter().enumerate() {
            (1..4).for_each(|other| speeds.add(device, TenantId::new(other), 0, (ms * MS) as f64));
        }
        homes.0.lock().functions.insert(MATMUL, speeds);
        (0..calls).for_each(|_| drop(rounds(&homes, &[0], &able[..1], 1, 2)));
        // Both can run its calls from now on.
        pass(2 * STAY_NS);
        let mut last = Vec::new();
        for _ in 0..calls {
            let call = route(&homes, 0, &able);
            last = vec![call.device()];
            let ms = if call.device() == 0 { 2 } else { 1 };
            pass(ms * MS);
            call.ran(Duration::from_nanos(ms * MS));
        }
        last
    };
    assert_eq!(turns_out(0, 10), [0], "a few calls do not pay for a move");
    assert_eq!(turns_out(0, 500), [1]);
    assert_eq!(turns_out(10_000 * MS, 500), [0], "its weights cost more than it gains");
}

#[test]
fn a_new_domain_goes_where_a_process_and_its_weights_cost_least() {
    let to = |able: &[Candidate]| route(&SharedHomes::new(2), 1, able).device();
    let [small, large] = [0, 1].map(|device| candidates(2)[device]);
    assert_eq!(to(&[Candidate { weights_ns: 5 * MS, ..small }, large]), 1);
    assert_eq!(to(&[Candidate { workers: 0, ..small }, large]), 1);
    // Three of four have a home on the larger one, which has three times as many processes.
    let (homes, able) =
        (SharedHomes::new(2), [Candidate { workers: 20, ..small }, Candidate { workers: 60, ..large }]);
    let mut counts = [0; 2];
    for tenant in 0..40 {
        counts[route(&homes, tenant, &able).device()] += 1;
    }
    assert_eq!(counts, [10, 30]);
}

#[test]
fn a_call_that_the_home_cannot_run_goes_elsewhere_and_a_lost_home_is_given_up() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    let at_home = route(&homes, 1, &able);
    assert_eq!(at_home.device(), 0);
    assert_eq!(route(&homes, 1, &able[1..]).device(), 1);
    assert_eq!(home(&homes, domain(1)), Some(0), "it has calls there");
    drop(at_home);
    pass(WARM_NS + 1);
    assert_eq!(route(&homes, 1, &able[1..]).device(), 1);
    assert_eq!(home(&homes, domain(1)), Some(1));
    assert!(homes.route(now, domain(1), MATMUL, &|_| None).is_none());
}

#[test]
fn what_is_counted_is_given_back() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    for tenant in 0..2 * MAX_IDLE as u32 {
        drop(route(&homes, tenant, &able));
    }
    let state = homes.0.lock();
    assert!(state.domains.len() <= MAX_IDLE);
    let taken: u32 = state.devices.iter().map(|device| device.homes).sum();
    assert_eq!(
        (taken as usize, state.devices.iter().map(|device| device.busy.now).sum::<u32>()),
        (state.domains.len(), 0)
    );
}

#[test]
fn nothing_is_kept_of_functions_that_are_gone_nor_of_too_many() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    let known = || homes.0.lock().functions.len();
    let ended = |call: Routed| {
        call.ran(Duration::from_nanos(MS));
        drop(call);
    };
    // A first call of a domain tells what a start costs, and no more.
    (0..2).for_each(|_| ended(route(&homes, 0, &able)));
    assert!(
        homes.0.lock().functions[&MATMUL].own(0, TenantId::new(0), now()).is_some(),
        "it is learned while it is there"
    );
    let late = route(&homes, 0, &able);
    homes.forget(MATMUL);
    ended(late);
    assert_eq!(known(), 0, "a call in flight adds nothing");
    let all = |device: usize| Some(able[device]);
    for nth in 0..=MAX_FUNCTIONS as u64 {
        drop(homes.route(now, domain(0), FunctionId::new(nth), &all).unwrap());
    }
    assert_eq!(known(), 1, "those before it are forgotten");
}

/// Where new tenants' calls go, after one tenant had two calls on each device, forty times. Those on the device `at` took so long
/// from their arrival to their end, and `ran_ms` of that on the device.
fn homes_after(at: usize, took_ms: u64, ran_ms: u64) -> [usize; 2] {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    let workers = 1;
    let able: Vec<_> = able.into_iter().map(|one| Candidate { workers, ..one }).collect();
    for _ in 0..40 {
        for device in 0..2 {
            let (took_ms, ran_ms) = if device == at { (took_ms, ran_ms) } else { (1, 1) };
            for _ in 0..2 {
                let call = route(&homes, 1_000, &able[device..=device]);
                pass(took_ms * MS);
                call.ran(Duration::from_millis(ran_ms));
            }
            pass(WARM_NS + 1);
        }
    }
    let mut counts = [0; 2];
    for tenant in 0..100 {
        counts[route(&homes, tenant, &able).device()] += 1;
    }
    counts
}

#[test]
fn what_one_tenants_calls_took_decides_for_no_other() {
    // The control: nothing was slow.
    let is_even = |homes: [usize; 2]| homes.iter().all(|homes| (49..=51).contains(homes));
    assert!(is_even(homes_after(0, 1, 1)));
    for at in 0..2 {
        let waited = homes_after(at, 30_000, 1);
        assert!(is_even(waited), "its calls waited, as for its own fault budget: {waited:?}");
        let ran = homes_after(at, 30_000, 30_000);
        assert!(is_even(ran), "its calls ran for long: {ran:?}");
    }
}

#[test]
fn a_tenants_long_calls_beside_others_keep_nobody_away() {
    // One tenant has a home on the second device, and calls there that take long for a reason of its own.
    let away = |took_ms: u64| {
        let (homes, able) = (SharedHomes::new(2), candidates(2));
        let (honest, slow) = (route(&homes, 1, &able), route(&homes, 2, &able));
        assert_eq!([honest.device(), slow.device()], [0, 1]);
        drop((honest, slow));
        let third = route(&homes, 3, &able[..1]);
        for _ in 0..40 {
            let calls = (route(&homes, 1, &able), route(&homes, 2, &able));
            pass(took_ms * MS);
            calls.1.ran(Duration::from_millis(1));
            calls.0.ran(Duration::from_millis(1));
        }
        // A queue at home that costs more than a move: 16 calls of 10 ms.
        for _ in 0..20 {
            let calls: Vec<_> = (0..8).map(|_| route(&homes, 1, &able[..1])).collect();
            for call in calls {
                pass(10 * MS);
                call.ran(Duration::from_millis(10));
            }
        }
        let slow = route(&homes, 2, &able);
        let own: Vec<_> = (0..64).map(|_| route(&homes, 1, &able)).collect();
        let away = own.iter().filter(|call| call.device() == 1).count();
        drop((slow, third));
        away
    };
    assert!(away(1) > 8, "the control: {}", away(1));
    assert_eq!(away(2_000), away(1));
}

#[test]
fn where_a_function_is_slow_is_known_once_several_callers_agree() {
    let (homes, able) = (SharedHomes::new(2), candidates(2));
    // Where most have a home, calls are over soon.
    let teach = |homes: &Arc<SharedHomes>, caller: u32| {
        for (device, ms) in [(0, 1), (1, 20)] {
            for _ in 0..2 {
                let call = route(homes, caller, &able[device..=device]);
                pass(ms * MS);
                call.ran(Duration::from_millis(ms));
            }
        }
    };
    (100..102).for_each(|caller| teach(&homes, caller));
    assert_eq!(route(&homes, 1, &able).device(), 1, "two tell nothing: it goes where fewest live");
    teach(&homes, 102);
    assert_eq!(route(&homes, 2, &able).device(), 0);
    // Who measured it needs no others.
    let alone = SharedHomes::new(2);
    teach(&alone, 1);
    alone.0.lock().domains.clear();
    assert_eq!(route(&alone, 2, &able).device(), 1);
    assert_eq!(route(&alone, 1, &able).device(), 0);
}
