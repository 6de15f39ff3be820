//! Small cases of queues, without a scheduler around it.

use super::super::types::Class;
use super::super::workers::{State, Workers};
use super::*;
use crate::ids::{Generation, TenantId, WorkerId};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const ALICE: Domain = Domain { owner: TenantId::new(1), caller: TenantId::new(1) };
const BOB: Domain = Domain { owner: TenantId::new(2), caller: TenantId::new(2) };

/// Two free workers of one lane, whose domains keep them for 100 ns.
fn two_workers() -> (Queues, Workers) {
    let mut workers = Workers::new(2, 0, 1);
    (0..2).for_each(|worker| workers.arrive(0, WorkerId::new(worker), Generation::new(1)));
    let shape = Shape { residency_ns: 100, workers_per_domain: 1, ..Shape::new(2, 1) };
    (Queues::new(&shape), workers)
}

/// At time 0.
fn view(workers: &Workers) -> View<'_> {
    View { now_ns: 0, workers }
}

fn bind(queues: &mut Queues, workers: &mut Workers, worker: WorkerId, domain: Domain) {
    workers.set_state(worker, State::Bound(Compartment::Of(domain)));
    queues.bound(worker, domain, false);
}

#[test]
fn a_domain_gets_its_own_worker_then_a_free_one() {
    let (mut queues, mut workers) = two_workers();
    bind(&mut queues, &mut workers, W1, ALICE);
    let find = |queues: &Queues, workers: &Workers, domain| {
        queues.find_lane(QueueKey::Of(domain), false, false, view(workers))
    };
    assert_eq!(find(&queues, &workers, ALICE), Some(W1));
    assert_eq!(find(&queues, &workers, BOB), Some(W0));
    queues.asks.push(Ask::Worker(QueueKey::Whole(BOB)));
    assert_eq!(find(&queues, &workers, ALICE), None, "she had no less than he");
    queues.asks.charge_device(BOB.caller, 1);
    assert_eq!(find(&queues, &workers, BOB), None, "a call of his waits for the whole device");
    assert_eq!(find(&queues, &workers, ALICE), Some(W1), "she had less");
    queues.exclusive.begin(0, BOB, CallId(9), W0);
    assert_eq!(find(&queues, &workers, ALICE), None, "it is his");
    queues.exclusive.end();
    workers.put(W1, CallId(1), 0, false);
    assert_eq!(find(&queues, &workers, ALICE), None, "it may have one worker only");
}

#[test]
fn the_domain_that_waited_longest_is_next_for_a_free_worker() {
    let (mut queues, workers) = two_workers();
    queues.enqueue(QueueKey::Of(BOB), CallId(1), (0, 0), false);
    queues.enqueue(QueueKey::Of(ALICE), CallId(2), (0, 0), false);
    queues.enqueue(QueueKey::Of(BOB), CallId(3), (0, 0), false);
    let next = |queues: &mut Queues| queues.next_for_free(view(&workers));
    for (worker, domain, id) in [(W0, BOB, 1), (W1, ALICE, 2)] {
        assert_eq!(next(&mut queues), Some(domain));
        queues.bound(worker, domain, false);
        queues.started(QueueKey::Of(domain), CallId(id), 0);
    }
    assert_eq!(next(&mut queues), None, "its worker takes the rest");
}

#[test]
fn a_call_that_comes_back_does_not_overtake_older_ones() {
    let (mut queues, mut workers) = two_workers();
    [2, 5, 1, 4].into_iter().for_each(|id| queues.enqueue(QueueKey::Of(ALICE), CallId(id), (0, 0), false));
    queues.unqueue(QueueKey::Of(ALICE), CallId(4), 0);
    bind(&mut queues, &mut workers, W0, ALICE);
    let mut order = Vec::new();
    let view = view(&workers);
    while let Some(id) = queues.next_of(&workers[W0], view) {
        queues.started(QueueKey::Of(ALICE), id, 0);
        order.push(id.0);
    }
    assert_eq!(order, [1, 2, 5]);
}

#[test]
fn the_worker_idle_longest_makes_room_after_its_residency() {
    let (mut queues, mut workers) = two_workers();
    bind(&mut queues, &mut workers, W0, ALICE);
    bind(&mut queues, &mut workers, W1, Domain { owner: TenantId::new(3), caller: TenantId::new(3) });
    workers[W0].idle_since_ns = 50;
    queues.enqueue(QueueKey::Of(BOB), CallId(1), (0, 0), false);
    let go = |now_ns| queues.one_to_go(true, View { now_ns, ..view(&workers) });
    assert_eq!((go(99), go(100)), (Err(Some(100)), Ok(W1)));
}

#[test]
fn a_held_caller_stands_in_no_line() {
    let (mut queues, workers) = two_workers();
    queues.enqueue(QueueKey::Of(ALICE), CallId(1), (0, 0), false);
    queues.hold(TenantId::new(1));
    queues.enqueue(QueueKey::Of(ALICE), CallId(2), (0, 0), false);
    let next = |queues: &mut Queues| queues.next_for_free(view(&workers));
    assert_eq!(next(&mut queues), None);
    assert!(queues.release(TenantId::new(1)) && !queues.release(TenantId::new(1)));
    assert_eq!(next(&mut queues), Some(ALICE));
}

#[test]
fn what_is_taken_of_a_domain_leaves_nothing_behind() {
    let (mut queues, workers) = two_workers();
    (1..=3).for_each(|id| queues.enqueue(QueueKey::Of(ALICE), CallId(id), (0, 0), false));
    assert_eq!(queues.take(QueueKey::Of(ALICE), |id| id != CallId(2)), [CallId(1), CallId(3)]);
    assert_eq!(queues.take(QueueKey::Of(ALICE), |_| true), [CallId(2)]);
    assert!(
        !queues.queues.contains_key(&QueueKey::Of(ALICE))
            && queues.of_caller.is_empty()
            && !queues.is_wanted_outside()
    );
    assert_eq!(queues.next_for_free(view(&workers)), None);
}

#[test]
fn payers_ask_for_a_lane_as_long_as_their_calls_wait_and_may_start() {
    let (mut queues, workers) = two_workers();
    let [alice, bob] = [ALICE, BOB].map(|domain| QueueKey::Shared(domain.caller));
    queues.enqueue(alice, CallId(2), (20, 0), false);
    queues.enqueue(alice, CallId(1), (10, 0), true);
    queues.enqueue(bob, CallId(3), (30, 0), true);
    let lanes = |queues: &Queues| queues.asks.lanes().collect::<Vec<_>>();
    assert_eq!(lanes(&queues), [ALICE.caller], "a payer that is held asks for nothing");
    assert!(queues.release(BOB.caller) && !queues.release(BOB.caller));
    assert_eq!(lanes(&queues), [ALICE.caller, BOB.caller]);
    queues.started(alice, CallId(1), 10);
    assert_eq!(queues.take(alice, |id| id == CallId(2)), [CallId(2)]);
    queues.hold(BOB.caller);
    assert!(lanes(&queues).is_empty() && queues.next_few(bob, 2).eq([CallId(3)]));
    queues.unqueue(bob, CallId(3), 30);
    assert!(queues.queues.is_empty() && queues.of_caller.is_empty());
    let is_held = true;
    let view = view(&workers);
    assert_eq!(queues.find_lane(bob, false, is_held, view), None);
}

fn share(weight: u32, class: Class) -> TenantShare {
    TenantShare { weight, class, ..TenantShare::default() }
}

#[test]
fn lanes_go_by_weights_within_a_class_and_one_is_everybodys() {
    let normal = |weight| share(weight, Class::Normal);
    let beside = |own: TenantShare, others: &[TenantShare]| most_lanes(8, own, others.iter().copied());
    assert_eq!(beside(normal(1), &[]), 8);
    assert_eq!(beside(normal(3), &[normal(3), normal(1)]), 8);
    assert_eq!([1, 2, 4].map(|weight| beside(normal(weight), &[1, 2, 4].map(normal))), [2, 4, 8]);
    assert_eq!(beside(normal(1), &[normal(1000)]), 1);
    assert_eq!(most_lanes(4, normal(u32::MAX), [normal(u32::MAX)].into_iter()), 4);
}

#[test]
fn a_lower_class_has_one_lane_and_takes_none_from_a_higher_one() {
    let (latency, batch) = (share(1, Class::Latency), share(1000, Class::Batch));
    assert_eq!(most_lanes(8, batch, [latency].into_iter()), 1);
    assert_eq!(most_lanes(8, latency, [batch].into_iter()), 8);
    assert_eq!(most_lanes(1, batch, [latency].into_iter()), 1);
}
