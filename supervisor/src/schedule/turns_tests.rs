//! Small cases of the turns of a device.

use super::*;
use crate::ids::WorkerId;

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const W2: WorkerId = WorkerId::new(2);
const QUANTUM_US: u32 = 5000;

const MS: u64 = 1_000_000;

fn expect(orders: &mut Vec<Order>, wanted: &[Order]) {
    assert_eq!(std::mem::take(orders), wanted);
}

fn grant(worker: WorkerId, turn: u64) -> Order {
    Order::Grant { worker, turn: TurnId::new(turn) }
}

fn revoke(worker: WorkerId, turn: u64) -> Order {
    Order::Revoke { worker, turn: TurnId::new(turn) }
}

#[test]
fn a_worker_that_is_alone_keeps_its_turn() {
    let (mut turns, mut orders) = (Turns::new(2, QUANTUM_US), Vec::new());
    turns.has_work(0, W0, &mut orders);
    expect(&mut orders, &[grant(W0, 1)]);
    turns.idle(1, W0);
    turns.has_work(2, W0, &mut orders);
    expect(&mut orders, &[]);
    assert_eq!(turns.next_deadline_ns(), None);
}

#[test]
fn workers_with_calls_get_turns_round_robin() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    for worker in [2, 0, 1, 0] {
        turns.has_work(0, WorkerId::new(worker), &mut orders);
    }
    expect(&mut orders, &[grant(W2, 1), revoke(W2, 1)]);
    // Others wait, so each grant comes with its end; who still has calls goes to the end of the ring.
    assert_eq!(turns.yielded(5, W2, TurnId::new(1), 5, true, &mut orders), Some(5));
    expect(&mut orders, &[grant(W0, 2), revoke(W0, 2)]);
    assert_eq!(turns.yielded(9, W0, TurnId::new(2), 3, false, &mut orders), Some(3));
    expect(&mut orders, &[grant(W1, 3), revoke(W1, 3)]);
    assert_eq!(turns.yielded(10, W1, TurnId::new(3), 1, true, &mut orders), Some(1));
    expect(&mut orders, &[grant(W2, 4), revoke(W2, 4)]);
    assert_eq!(turns.yielded(12, W2, TurnId::new(4), 2, false, &mut orders), Some(2));
    expect(&mut orders, &[grant(W1, 5)]);
    assert_eq!([0, 1, 2].map(|worker| turns.used_ns(WorkerId::new(worker))), [3, 1, 7]);
}

#[test]
fn the_next_one_is_woken_in_time_and_once() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    turns.has_work(0, W0, &mut orders);
    turns.has_work(0, W1, &mut orders);
    orders.clear();
    assert!(turns.yielding(W0, TurnId::new(1), &mut orders));
    expect(&mut orders, &[Order::Soon { worker: W1 }]);
    assert!(turns.yielding(W0, TurnId::new(1), &mut orders));
    turns.has_work(0, W2, &mut orders);
    expect(&mut orders, &[]);
}

#[test]
fn a_worker_without_calls_gets_no_turn() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    WorkerId::first(3).for_each(|worker| turns.has_work(0, worker, &mut orders));
    turns.idle(1, W1);
    orders.clear();
    turns.yielded(2, W0, TurnId::new(1), 2, false, &mut orders);
    expect(&mut orders, &[grant(W2, 2)]);
    turns.gone(3, W2, &mut orders);
    expect(&mut orders, &[]);
    turns.has_work(4, W1, &mut orders);
    expect(&mut orders, &[grant(W1, 3)]);
}

#[test]
fn a_turn_that_no_worker_has_is_not_yielded() {
    let (mut turns, mut orders) = (Turns::new(2, QUANTUM_US), Vec::new());
    turns.has_work(0, W0, &mut orders);
    orders.clear();
    for (worker, turn) in [(0, 0), (0, 2), (1, 1)] {
        assert!(!turns.yielding(WorkerId::new(worker), TurnId::new(turn), &mut orders));
        assert_eq!(turns.yielded(1, WorkerId::new(worker), TurnId::new(turn), 1, true, &mut orders), None);
    }
    expect(&mut orders, &[]);
}

#[test]
fn patience_with_an_idle_holder_counts_from_what_came_later() {
    let (mut turns, mut orders) = (Turns::new(2, QUANTUM_US), Vec::new());
    turns.has_work(0, W0, &mut orders);
    turns.has_work(MS, W1, &mut orders);
    assert_eq!(turns.next_deadline_ns(), None, "it still has a call");
    turns.idle(3 * MS, W0);
    assert_eq!(turns.next_deadline_ns(), Some(3 * MS + YIELD_NS));
    assert_eq!(turns.expire(3 * MS + YIELD_NS - 1), None);
    turns.has_work(4 * MS, W0, &mut orders);
    assert_eq!(turns.next_deadline_ns(), None, "it has one again");
    turns.idle(5 * MS, W0);
    assert_eq!(turns.expire(5 * MS + YIELD_NS), Some(W0));
    assert_eq!(turns.expire(5 * MS + YIELD_NS), None);
}
