//! Small cases of slots, without a scheduler around it.

use super::super::exclusive::Exclusive;
use super::super::workers::{State, Workers};
use super::*;
use crate::ids::{Generation, TenantId, WorkerId};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const ALICE: Domain = Domain { owner: TenantId::new(1), caller: TenantId::new(1) };
const BOB: Domain = Domain { owner: TenantId::new(2), caller: TenantId::new(2) };

/// Two free workers of one lane, whose domains keep them for 100 ns.
fn two_workers() -> (Slots, Workers, Residency) {
    let mut workers = Workers::new(2, 0, 1);
    (0..2).for_each(|worker| workers.arrive(0, WorkerId::new(worker), Generation::new(1)));
    let shape = Shape { residency_ns: 100, workers_per_domain: 1, ..Shape::new(2, 1) };
    (Slots::new(&shape), workers, Residency::new(&shape))
}

fn bind(slots: &mut Slots, workers: &mut Workers, worker: WorkerId, domain: Domain) {
    workers.set_state(worker, State::Bound(Compartment::Of(domain)));
    slots.bound(worker, domain, || false);
}

#[test]
fn a_domain_gets_its_own_worker_then_a_free_one() {
    let (mut slots, mut workers, residency) = two_workers();
    bind(&mut slots, &mut workers, W1, ALICE);
    let mut exclusive = Exclusive::default();
    let find = |slots: &Slots, workers: &Workers, domain, exclusive: &Exclusive| {
        slots.find_lane(0, QueueKey::Of(domain), false, || false, View::new(workers, exclusive), &residency)
    };
    assert_eq!(find(&slots, &workers, ALICE, &exclusive), Some(W1));
    assert_eq!(find(&slots, &workers, BOB, &exclusive), Some(W0));
    slots.ask_for_device(BOB.caller);
    assert_eq!(find(&slots, &workers, ALICE, &exclusive), None, "she had no less than he");
    slots.charge_device(BOB.caller, 1);
    assert_eq!(find(&slots, &workers, BOB, &exclusive), None, "a call of his waits for the whole device");
    assert_eq!(find(&slots, &workers, ALICE, &exclusive), Some(W1), "she had less");
    exclusive.begin(0, BOB.caller, CallId(9), W0);
    assert_eq!(find(&slots, &workers, ALICE, &exclusive), None, "it is his");
    exclusive.end();
    workers.put(W1, CallId(1), 0, false);
    assert_eq!(find(&slots, &workers, ALICE, &exclusive), None, "it may have one worker only");
}

#[test]
fn the_domain_that_waited_longest_is_next_for_a_free_worker() {
    let (mut slots, workers, _) = two_workers();
    slots.enqueue(QueueKey::Of(BOB), CallId(1), (0, 0), || false);
    slots.enqueue(QueueKey::Of(ALICE), CallId(2), (0, 0), || false);
    slots.enqueue(QueueKey::Of(BOB), CallId(3), (0, 0), || false);
    let next = |slots: &mut Slots| slots.next_for_free(View::new(&workers, &Exclusive::default()));
    for (worker, domain, id) in [(W0, BOB, 1), (W1, ALICE, 2)] {
        assert_eq!(next(&mut slots), Some(domain));
        slots.bound(worker, domain, || false);
        slots.started(QueueKey::Of(domain), CallId(id), 0);
    }
    assert_eq!(next(&mut slots), None, "its worker takes the rest");
}

#[test]
fn a_call_that_comes_back_does_not_overtake_older_ones() {
    let (mut slots, mut workers, residency) = two_workers();
    [2, 5, 1, 4].into_iter().for_each(|id| slots.enqueue(QueueKey::Of(ALICE), CallId(id), (0, 0), || false));
    slots.unqueue(QueueKey::Of(ALICE), CallId(4), 0);
    bind(&mut slots, &mut workers, W0, ALICE);
    let mut order = Vec::new();
    let none_wait = Exclusive::default();
    let view = View::new(&workers, &none_wait);
    while let Some(id) = slots.next_of(0, &workers[W0], |_| false, view, &residency) {
        slots.started(QueueKey::Of(ALICE), id, 0);
        order.push(id.0);
    }
    assert_eq!(order, [1, 2, 5]);
}

#[test]
fn the_worker_idle_longest_makes_room_after_its_residency() {
    let (mut slots, mut workers, residency) = two_workers();
    bind(&mut slots, &mut workers, W0, ALICE);
    bind(&mut slots, &mut workers, W1, Domain { owner: TenantId::new(3), caller: TenantId::new(3) });
    workers[W0].idle_since_ns = 50;
    slots.enqueue(QueueKey::Of(BOB), CallId(1), (0, 0), || false);
    let go = |slots: &mut Slots, now_ns| {
        let mut search = slots.search();
        slots.next_to_go(now_ns, &mut search, View::new(&workers, &Exclusive::default()), &residency)
    };
    assert_eq!((go(&mut slots, 99), slots.next_ns()), (None, Some(100)));
    assert_eq!(go(&mut slots, 100), Some(W1));
}

#[test]
fn a_held_caller_stands_in_no_line() {
    let (mut slots, workers, _) = two_workers();
    slots.enqueue(QueueKey::Of(ALICE), CallId(1), (0, 0), || false);
    slots.hold(TenantId::new(1));
    slots.enqueue(QueueKey::Of(ALICE), CallId(2), (0, 0), || false);
    let next = |slots: &mut Slots| slots.next_for_free(View::new(&workers, &Exclusive::default()));
    assert_eq!(next(&mut slots), None);
    assert!(slots.release(TenantId::new(1)) && !slots.release(TenantId::new(1)));
    assert_eq!(next(&mut slots), Some(ALICE));
}

#[test]
fn what_is_taken_of_a_domain_leaves_nothing_behind() {
    let (mut slots, workers, _) = two_workers();
    (1..=3).for_each(|id| slots.enqueue(QueueKey::Of(ALICE), CallId(id), (0, 0), || false));
    assert_eq!(slots.take(QueueKey::Of(ALICE), |id| id != CallId(2)), [CallId(1), CallId(3)]);
    assert_eq!(slots.take(QueueKey::Of(ALICE), |_| true), [CallId(2)]);
    assert!(!slots.domains.contains_key(&ALICE) && slots.of_caller.is_empty() && !slots.is_wanted_outside());
    assert_eq!(slots.next_for_free(View::new(&workers, &Exclusive::default())), None);
}
