//! Small cases of the turns of a device.

use super::*;
use crate::ids::WorkerId;

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
    turns.has_work(0, WorkerId::new(0), &mut orders);
    expect(&mut orders, &[grant(WorkerId::new(0), 1)]);
    turns.idle(1, WorkerId::new(0));
    turns.has_work(2, WorkerId::new(0), &mut orders);
    expect(&mut orders, &[]);
    assert_eq!(turns.next_deadline_ns(), None);
}

#[test]
fn workers_with_calls_get_turns_round_robin() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    for worker in [2, 0, 1, 0] {
        turns.has_work(0, WorkerId::new(worker), &mut orders);
    }
    expect(&mut orders, &[grant(WorkerId::new(2), 1), revoke(WorkerId::new(2), 1)]);
    // Others wait, so each grant comes with its end; who still has calls goes to the end of the ring.
    assert_eq!(turns.yielded(5, WorkerId::new(2), TurnId::new(1), 5, true, &mut orders), Some(5));
    expect(&mut orders, &[grant(WorkerId::new(0), 2), revoke(WorkerId::new(0), 2)]);
    assert_eq!(turns.yielded(9, WorkerId::new(0), TurnId::new(2), 3, false, &mut orders), Some(3));
    expect(&mut orders, &[grant(WorkerId::new(1), 3), revoke(WorkerId::new(1), 3)]);
    assert_eq!(turns.yielded(10, WorkerId::new(1), TurnId::new(3), 1, true, &mut orders), Some(1));
    expect(&mut orders, &[grant(WorkerId::new(2), 4), revoke(WorkerId::new(2), 4)]);
    assert_eq!(turns.yielded(12, WorkerId::new(2), TurnId::new(4), 2, false, &mut orders), Some(2));
    expect(&mut orders, &[grant(WorkerId::new(1), 5)]);
    assert_eq!([0, 1, 2].map(|worker| turns.used_ns(WorkerId::new(worker))), [3, 1, 7]);
}

#[test]
fn the_next_one_is_woken_in_time_and_once() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    turns.has_work(0, WorkerId::new(0), &mut orders);
    turns.has_work(0, WorkerId::new(1), &mut orders);
    orders.clear();
    assert!(turns.yielding(WorkerId::new(0), TurnId::new(1), &mut orders));
    expect(&mut orders, &[Order::Soon { worker: WorkerId::new(1) }]);
    assert!(turns.yielding(WorkerId::new(0), TurnId::new(1), &mut orders));
    turns.has_work(0, WorkerId::new(2), &mut orders);
    expect(&mut orders, &[]);
}

#[test]
fn a_worker_without_calls_gets_no_turn() {
    let (mut turns, mut orders) = (Turns::new(3, QUANTUM_US), Vec::new());
    WorkerId::first(3).for_each(|worker| turns.has_work(0, worker, &mut orders));
    turns.idle(1, WorkerId::new(1));
    orders.clear();
    turns.yielded(2, WorkerId::new(0), TurnId::new(1), 2, false, &mut orders);
    expect(&mut orders, &[grant(WorkerId::new(2), 2)]);
    turns.gone(3, WorkerId::new(2), &mut orders);
    expect(&mut orders, &[]);
    turns.has_work(4, WorkerId::new(1), &mut orders);
    expect(&mut orders, &[grant(WorkerId::new(1), 3)]);
}

#[test]
fn turns_that_nobody_has_are_not_yielded() {
    let (mut turns, mut orders) = (Turns::new(2, QUANTUM_US), Vec::new());
    turns.has_work(0, WorkerId::new(0), &mut orders);
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
    turns.has_work(0, WorkerId::new(0), &mut orders);
    turns.has_work(MS, WorkerId::new(1), &mut orders);
    assert_eq!(turns.next_deadline_ns(), None, "it still has a call");
    turns.idle(3 * MS, WorkerId::new(0));
    assert_eq!(turns.next_deadline_ns(), Some(3 * MS + YIELD_NS));
    assert_eq!(turns.expire(3 * MS + YIELD_NS - 1), None);
    turns.has_work(4 * MS, WorkerId::new(0), &mut orders);
    assert_eq!(turns.next_deadline_ns(), None, "it has one again");
    turns.idle(5 * MS, WorkerId::new(0));
    assert_eq!(turns.expire(5 * MS + YIELD_NS), Some(WorkerId::new(0)));
    assert_eq!(turns.expire(5 * MS + YIELD_NS), None);
}
