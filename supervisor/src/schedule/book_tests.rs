//! The book by itself.

use super::*;
use crate::ids::FunctionId;
use crate::schedule::types::CallId;
use crate::schedule::weights::When;

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);

fn need(lane_bytes: u64) -> Need {
    Need {
        payer: TenantId::new(1),
        function: FunctionId::new(1),
        lane_bytes,
        stack_bytes: 0,
        beside_bytes: 0,
        has_weights: false,
    }
}

/// Two workers of two lanes with 64 pages of 10 bytes.
fn book() -> (Book<u64>, Workers) {
    let shape = Shape { memory_bytes: 640, page_bytes: 10, lane_bytes: 300, ..Shape::new(2, 2) };
    let (mut book, mut workers) = (Book::<u64>::new(&shape), Workers::new(2, 0, 2));
    for worker in [W0, W1] {
        workers.arrive(0, worker, Generation::new(1));
        book.arrived(worker, Generation::new(1), 2);
    }
    (book, workers)
}

fn lend(book: &mut Book<u64>, workers: &Workers, worker: WorkerId, bytes: u64) -> LanePlace {
    let place = book.place(0, workers, worker, true, need(bytes)).unwrap();
    book.lend(worker, place, need(bytes), false);
    place
}

#[test]
fn lanes_get_few_sizes_in_whole_pages() {
    let sizes = [0, 1, 11, 25, 41, 55, 70, 100].map(|bytes| rounded(bytes, 10));
    assert_eq!(sizes, [0, 10, 20, 30, 60, 60, 80, 120]);
    let (mut book, workers) = book();
    // Not more than a lane may have, and not more than there is.
    assert_eq!(lend(&mut book, &workers, W0, 270).lane_bytes, 300);
    book.context_changed(0, 200);
    assert_eq!(lend(&mut book, &workers, W1, 131).lane_bytes, 140);
    assert_eq!(book.place(0, &workers, W1, true, need(300)), Err(Short::Line));
}

#[test]
fn a_function_runs_again_in_the_lane_in_which_it_ran() {
    let (mut book, mut workers) = book();
    let of = |function| Need { function: FunctionId::new(function), ..need(10) };
    let place = |book: &Book<u64>, workers: &Workers, function| {
        book.place(0, workers, W0, true, of(function)).unwrap()
    };
    for (call, function) in [(CallId(1), 1), (CallId(2), 2)] {
        let found = place(&book, &workers, function);
        book.lend(W0, found, of(function), false);
        workers.put(W0, call, found.lane, false);
        workers[W0].rebuild_cost.ran(found.lane, FunctionId::new(function), 0);
    }
    [(CallId(1), 0), (CallId(2), 1)].into_iter().for_each(|(call, lane)| workers.take(W0, call, lane, 0));
    assert_eq!([1, 2, 3].map(|function| place(&book, &workers, function).lane), [0, 1, 0]);
}

#[test]
fn what_is_taken_elsewhere_is_not_lent() {
    let (mut book, workers) = book();
    book.context_changed(0, 600);
    assert_eq!(book.place(0, &workers, W0, true, need(41)), Err(Short::Line));
    assert_eq!(book.place(0, &workers, W0, true, need(40)).map(|place| place.lane_bytes), Ok(40));
    // More than there is may be taken for a moment.
    book.context_changed(600, 700);
    assert_eq!(book.free_bytes(), 0);
    assert!(book.place(0, &workers, W0, true, need(0)).is_ok());
}

#[test]
fn nothing_is_free_before_it_is_confirmed_and_nothing_twice() {
    let (mut book, workers) = book();
    lend(&mut book, &workers, W0, 120);
    assert_eq!(book.take_back(0, &workers, 640, None), 0);
    assert_eq!((&book.taken[..], book.free_bytes()), (&[(W0, 1)][..], 520));
    assert_eq!(book.next_ns(), Some(SETTLE_NS));
    book.taken.clear();
    book.take_back(0, &workers, 640, None);
    assert!(book.taken.is_empty(), "asked twice");
    // It is lent again before it came back.
    lend(&mut book, &workers, W0, 80);
    assert_eq!(book.free_bytes(), 440);
    assert!(book.gave_back(W0, 0));
    assert_eq!((book.free_bytes(), book.next_ns()), (560, None));
    assert!(!book.gave_back(W0, 0));
}

#[test]
fn a_process_that_is_gone_has_everything_until_it_is_reaped() {
    let (mut book, workers) = book();
    lend(&mut book, &workers, W0, 120);
    book.take_back(0, &workers, 640, None);
    lend(&mut book, &workers, W0, 80);
    book.gone(W0, None);
    assert_eq!((book.free_bytes(), book.next_ns(), book.awaits()), (440, None, true));
    book.arrived(W0, Generation::new(2), 2);
    book.reaped(W0, Generation::new(2));
    assert_eq!(book.free_bytes(), 440, "another process was reaped");
    book.reaped(W0, Generation::new(1));
    assert_eq!((book.free_bytes(), book.awaits()), (640, false));
    assert_eq!(book.account(), (640, 0, 0));
}

#[test]
fn lanes_with_calls_and_the_one_it_is_for_give_nothing() {
    let (mut book, mut workers) = book();
    for (worker, id) in [(W0, 1), (W0, 2), (W1, 3)] {
        let place = lend(&mut book, &workers, worker, 120);
        workers.put(worker, CallId(id), place.lane, false);
    }
    workers.take(W0, CallId(1), 0, 5);
    workers.take(W1, CallId(3), 0, 9);
    // The worker without any call first, although the lane of the other one is empty for longer.
    assert_eq!(book.take_back(10, &workers, 320, Some((W0, 0))), 0);
    assert_eq!(book.taken, [(W1, 1)]);
    assert_eq!(book.take_back(10, &workers, 640, Some((W0, 0))), 240);
    assert_eq!(book.taken, [(W1, 1)]);
    assert_eq!(book.take_back(10, &workers, 640, None), 120);
    assert_eq!(book.taken, [(W1, 1), (W0, 1)]);
}

#[test]
fn who_does_not_give_back_is_named_again_and_again() {
    let (mut book, workers) = book();
    lend(&mut book, &workers, W1, 120);
    book.take_back(0, &workers, 640, None);
    assert!(book.expire(SETTLE_NS - 1).is_empty());
    assert_eq!(book.expire(SETTLE_NS), [W1]);
    assert!(book.expire(SETTLE_NS).is_empty());
    assert_eq!(book.expire(2 * SETTLE_NS), [W1]);
}

#[test]
fn who_waits_for_weights_that_calls_use_is_not_overtaken_for_ever() {
    let (mut book, workers) = book();
    let weighted = Need { has_weights: true, ..need(0) };
    book.crowded(5);
    let late = 5 + WEIGHTS_PATIENCE_NS + 1;
    // What is free is for the first in line; others may use what they have, at first.
    assert_eq!(book.place(late - 1, &workers, W0, false, weighted).map(|placed| placed.room_bytes), Ok(0));
    assert_eq!(book.place(late, &workers, W0, false, weighted), Err(Short::Line));
    assert!(book.place(late, &workers, W0, false, need(0)).is_ok(), "it needs no weights");
    assert_eq!(book.place(late, &workers, W0, true, weighted).map(|placed| placed.room_bytes), Ok(640));
    book.reopen();
    assert!(book.place(late, &workers, W0, true, weighted).is_ok());
}

#[test]
fn what_weights_are_about_to_leave_is_not_asked_for_again() {
    let (mut book, workers) = book();
    let [stays, leaves] = [1, 2].map(FunctionId::new);
    for (function, bytes) in [(stays, 300), (leaves, 100)] {
        let claimed = book.weights.claim(function, W0, bytes, When::Now, 640, &mut Vec::new());
        assert!(claimed.is_ok() && book.weights.loaded(function, W0, Some(function.get()), bytes));
        book.weights.begin(function, true);
    }
    book.weights.forget(leaves);
    assert_eq!(book.take_back(0, &workers, 340, None), 0);
    assert_eq!(book.take_back(0, &workers, 350, None), 10);
    assert!(book.awaits());
}
