//! Small cases of calls that need the whole device.

use super::*;

#[test]
fn it_waits_for_those_before_it_and_those_behind_it_wait() {
    let mut b = Bench::new(2, 1);
    let ids = [1, 2, 3].map(|call| b.submit(call, ALICE));
    let whole = b.submit_sized(4, ALICE, WHOLE);
    b.submit(5, ALICE);
    b.submit(6, BOB);
    b.expect("1 on 0.0, 2 on 1.0");
    b.finish(W0, ids[0]);
    b.expect("3 on 0.0");
    b.finish(W1, ids[1]);
    b.expect("");
    b.finish(W0, ids[2]);
    b.expect("4 on 0.0");
    b.finish(W0, whole);
    b.expect("5 on 0.0");
    b.now = 100 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("replace 1");
}

#[test]
fn an_idle_device_is_given_at_once_and_a_foreign_one_after_a_replacement() {
    let mut b = Bench::new(1, 4);
    let first = b.submit_sized(1, ALICE, WHOLE);
    b.expect("1 on 0.0");
    b.finish(W0, first);
    b.submit_sized(2, BOB, WHOLE);
    b.expect("replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("2 on 0.0");
}

#[test]
fn what_others_were_lent_comes_back_before_it_starts() {
    let mut b = Bench::of(Shape { memory_bytes: 100, ..Shape::new(3, 2) });
    let small = [(1, ALICE), (2, ALICE), (3, BOB)].map(|(call, domain)| b.submit_sized(call, domain, 16));
    b.expect("1 on 0.0, 2 on 0.1, 3 on 1.0");
    let whole = b.submit_sized(4, ALICE, 90);
    small.into_iter().zip([W0, W0, W1]).for_each(|(id, worker)| b.finish(worker, id));
    // The lane that it is for keeps what it has.
    b.expect("1 gives 1, 0 gives 10");
    b.gave_back(W1, 0);
    b.expect("");
    b.gave_back(W0, 16);
    b.expect("4 on 0.0");
    b.finish(W0, whole);
    // It keeps all until others need it.
    b.submit_sized(5, ALICE, 16);
    b.submit_sized(6, BOB, 16);
    b.expect("5 on 0.0");
}

#[test]
fn a_call_cancelled_while_memory_comes_back_leaves_it_to_others() {
    let mut b = Bench::of(Shape { memory_bytes: 100, ..Shape::new(2, 1) });
    let small = b.submit_sized(1, BOB, 32);
    b.finish(W0, small);
    b.expect("1 on 0.0");
    let whole = b.submit_sized(2, ALICE, 90);
    b.submit_sized(3, BOB, 32);
    b.expect("0 gives 1");
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: whole }, &mut b.actions), Some(2));
    // There is enough besides.
    b.expect("3 on 0.0");
}

#[test]
fn a_cancelled_exclusive_call_does_not_block_the_queue() {
    let mut b = Bench::new(1, 2);
    b.submit(1, ALICE);
    b.submit_sized(2, ALICE, WHOLE);
    b.now = MS;
    b.submit(3, ALICE);
    b.expect("1 on 0.0");
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("2 expired, 3 on 0.1");
}

#[test]
fn its_worker_may_end_and_it_runs_again() {
    let mut b = Bench::of(Shape { memory_bytes: 100, ..Shape::new(2, 1) });
    let small = b.submit_sized(1, BOB, 32);
    b.finish(W0, small);
    b.submit_sized(2, ALICE, 90);
    b.expect("1 on 0.0, 0 gives 1");
    // The worker that it is prepared for ends.
    b.dies(W1);
    b.expect("");
    b.ready(W1);
    b.expect("");
    b.gave_back(W0, 0);
    b.expect("2 on 1.0");
    b.dies(W1);
    b.ready(W1);
    b.expect("2 on 1.0 alone");
    assert_eq!(b.dies(W1), [(2, Ended::Guilty)]);
}

#[test]
fn a_worker_that_gives_nothing_back_is_killed() {
    let mut b = Bench::of(Shape { memory_bytes: 100, ..Shape::new(2, 1) });
    let small = b.submit_sized(1, BOB, 32);
    b.finish(W0, small);
    let spec = CallSpec { domain: ALICE, memory_bytes: 90, ..TERMS };
    b.scheduler.handle(b.now, Submit { call: 2, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.expect("1 on 0.0, 0 gives 1");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(SETTLE_NS));
    b.now = SETTLE_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 0");
    b.dies(W0);
    b.expect("2 on 1.0");
}

#[test]
fn a_line_of_one_caller_keeps_no_other_waiting() {
    let mut b = Bench::new(2, 1);
    let bobs = b.submit(0, BOB);
    b.finish(W0, bobs);
    let line = [1, 2, 3].map(|call| b.submit_sized(call, ALICE, WHOLE));
    b.expect("0 on 0.0, 1 on 1.0");
    b.submit(4, BOB);
    b.now = 10 * MS;
    b.finish(W1, line[0]);
    b.expect("4 on 0.0");
    // His call for the whole device goes before those that came first, too.
    b.submit_sized(5, BOB, WHOLE);
    let fourth = b.scheduler.calls.running();
    assert_eq!(fourth, 1);
    assert_eq!(b.scheduler.queues.asks.device().map(|(domain, _)| domain), Some(BOB));
}

#[test]
fn what_came_before_a_callers_own_call_does_not_go_before_anothers() {
    let mut b = Bench::new(2, 1);
    let first = b.submit(1, ALICE);
    b.submit_sized(2, BOB, WHOLE);
    // She had no less than he, and her further calls would keep the lanes from running empty.
    b.submit(3, ALICE);
    b.submit_sized(4, ALICE, WHOLE);
    b.now = MS;
    b.finish(W0, first);
    b.expect("1 on 0.0, 2 on 1.0");
}

#[test]
fn a_call_is_in_the_way_of_who_asks_for_the_device() {
    let mut b = Bench::of(Shape { quantum_us: Some(1000), ..Shape::new(2, 1) });
    b.submit(1, ALICE);
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert_eq!(b.scheduler.next_overrun_check_ns(), None, "no other wants it");
    b.submit_sized(2, BOB, WHOLE);
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert!(b.scheduler.next_overrun_check_ns().is_some());
}

#[test]
fn a_call_that_has_the_device_is_in_the_way_of_who_has_a_worker() {
    let mut b = Bench::of(Shape { quantum_us: Some(1000), ..Shape::new(2, 1) });
    let first = b.submit(1, BOB);
    b.finish(W0, first);
    b.submit_sized(2, ALICE, WHOLE);
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert_eq!(b.scheduler.next_overrun_check_ns(), None, "no other wants it");
    b.submit(3, ALICE);
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert_eq!(b.scheduler.next_overrun_check_ns(), None, "her own call");
    b.submit(4, BOB);
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert!(b.scheduler.next_overrun_check_ns().is_some());
}
