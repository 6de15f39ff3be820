//! Lending by itself.

use super::*;
use crate::schedule::types::CallId;

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);

fn need(lane_bytes: u64) -> Need {
    Need {
        payer: TenantId::new(1),
        lane_bytes,
        stack_bytes: 0,
        beside_bytes: 0,
        has_weights: false,
        own_weights_bytes: 0,
    }
}

/// Two workers of two lanes with 64 pages of 10 bytes.
fn lending() -> (Lending, Workers) {
    let shape = Shape { memory_bytes: 640, page_bytes: 10, lane_bytes: 300, ..Shape::new(2, 2) };
    let (mut lending, mut workers) = (Lending::new(&shape), Workers::new(2, 0, 2));
    for worker in [W0, W1] {
        workers.arrive(0, worker, Generation::new(1));
        lending.arrived(worker, Generation::new(1), 2);
    }
    (lending, workers)
}

fn lend(lending: &mut Lending, workers: &Workers, worker: WorkerId, bytes: u64) -> LanePlace {
    let place = lending.place(0, workers, worker, true, need(bytes)).unwrap().place;
    lending.lend(worker, place, need(bytes), false);
    place
}

#[test]
fn lanes_get_few_sizes_in_whole_pages() {
    let sizes = [0, 1, 11, 25, 41, 55, 70, 100].map(|bytes| rounded(bytes, 10));
    assert_eq!(sizes, [0, 10, 20, 30, 60, 60, 80, 120]);
    let (mut lending, workers) = lending();
    // Not more than a lane may have, and not more than there is.
    assert_eq!(lend(&mut lending, &workers, W0, 270).lane_bytes, 300);
    lending.set_contexts(200);
    assert_eq!(lend(&mut lending, &workers, W1, 131).lane_bytes, 140);
    assert_eq!(lending.place(0, &workers, W1, true, need(300)), Err(Short::Line));
}

#[test]
fn what_is_taken_elsewhere_is_not_lent() {
    let (mut lending, workers) = lending();
    lending.set_contexts(600);
    assert_eq!(lending.place(0, &workers, W0, true, need(41)), Err(Short::Line));
    assert_eq!(lending.place(0, &workers, W0, true, need(40)).map(|placed| placed.place.lane_bytes), Ok(40));
    // More than there is may be taken for a moment.
    lending.set_contexts(700);
    assert_eq!(lending.free_bytes(), 0);
    assert!(lending.place(0, &workers, W0, true, need(0)).is_ok());
}

#[test]
fn nothing_is_free_before_it_is_confirmed_and_nothing_twice() {
    let (mut lending, workers) = lending();
    lend(&mut lending, &workers, W0, 120);
    let mut taken = TakeBack::new();
    assert_eq!(lending.take_back(0, &workers, 640, None, &mut taken), 0);
    assert_eq!((&taken[..], lending.free_bytes()), (&[(W0, 1)][..], 520));
    assert_eq!(lending.next_ns(), Some(SETTLE_NS));
    taken.clear();
    lending.take_back(0, &workers, 640, None, &mut taken);
    assert!(taken.is_empty(), "asked twice");
    // It is lent again before it came back.
    lend(&mut lending, &workers, W0, 80);
    assert_eq!(lending.free_bytes(), 440);
    assert!(lending.gave_back(W0, 0));
    assert_eq!((lending.free_bytes(), lending.next_ns()), (560, None));
    assert!(!lending.gave_back(W0, 0));
}

#[test]
fn a_process_that_is_gone_has_everything_until_it_is_reaped() {
    let (mut lending, workers) = lending();
    lend(&mut lending, &workers, W0, 120);
    lending.take_back(0, &workers, 640, None, &mut TakeBack::new());
    lend(&mut lending, &workers, W0, 80);
    lending.gone(W0);
    assert_eq!((lending.free_bytes(), lending.next_ns(), lending.awaits()), (440, None, true));
    lending.arrived(W0, Generation::new(2), 2);
    lending.reaped(W0, Generation::new(2));
    assert_eq!(lending.free_bytes(), 440, "another process was reaped");
    lending.reaped(W0, Generation::new(1));
    assert_eq!((lending.free_bytes(), lending.awaits()), (640, false));
    assert_eq!(lending.account(), (640, 0, 0));
}

#[test]
fn lanes_with_calls_and_the_one_it_is_for_give_nothing() {
    let (mut lending, mut workers) = lending();
    for (worker, id) in [(W0, 1), (W0, 2), (W1, 3)] {
        let place = lend(&mut lending, &workers, worker, 120);
        workers.put(worker, CallId(id), place.lane, false);
    }
    workers.take(W0, CallId(1), 0, 5);
    workers.take(W1, CallId(3), 0, 9);
    let mut taken = TakeBack::new();
    // The worker without any call first, although the lane of the other one is empty for longer.
    assert_eq!(lending.take_back(10, &workers, 320, Some((W0, 0)), &mut taken), 0);
    assert_eq!(taken, [(W1, 1)]);
    assert_eq!(lending.take_back(10, &workers, 640, Some((W0, 0)), &mut taken), 240);
    assert_eq!(taken, [(W1, 1)]);
    assert_eq!(lending.take_back(10, &workers, 640, None, &mut taken), 120);
    assert_eq!(taken, [(W1, 1), (W0, 1)]);
}

#[test]
fn who_does_not_give_back_is_named_again_and_again() {
    let (mut lending, workers) = lending();
    lend(&mut lending, &workers, W1, 120);
    lending.take_back(0, &workers, 640, None, &mut TakeBack::new());
    assert!(lending.expire(SETTLE_NS - 1).is_empty());
    assert_eq!(lending.expire(SETTLE_NS), [W1]);
    assert!(lending.expire(SETTLE_NS).is_empty());
    assert_eq!(lending.expire(2 * SETTLE_NS), [W1]);
}

#[test]
fn who_waits_for_weights_that_calls_use_is_not_overtaken_for_ever() {
    let (mut lending, workers) = lending();
    let weighted = Need { has_weights: true, ..need(0) };
    lending.crowded(5);
    let late = 5 + WEIGHTS_PATIENCE_NS + 1;
    // What is free is for the first in line; others may use what they have, at first.
    assert_eq!(lending.place(late - 1, &workers, W0, false, weighted).map(|placed| placed.room_bytes), Ok(0));
    assert_eq!(lending.place(late, &workers, W0, false, weighted), Err(Short::Line));
    assert!(lending.place(late, &workers, W0, false, need(0)).is_ok(), "it needs no weights");
    assert_eq!(lending.place(late, &workers, W0, true, weighted).map(|placed| placed.room_bytes), Ok(640));
    lending.reopen();
    assert!(lending.place(late, &workers, W0, true, weighted).is_ok());
}

#[test]
fn what_weights_are_about_to_leave_is_not_asked_for_again() {
    let (mut lending, workers) = lending();
    lending.set_weights(400, 100);
    let mut taken = TakeBack::new();
    assert_eq!(lending.take_back(0, &workers, 340, None, &mut taken), 0);
    assert_eq!(lending.take_back(0, &workers, 350, None, &mut taken), 10);
    assert!(lending.awaits());
}
