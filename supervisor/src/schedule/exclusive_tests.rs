//! Small cases of calls that need the whole device.

use super::*;

#[test]
fn it_waits_for_those_before_it_and_those_behind_it_wait() {
    let mut b = Bench::new(2, 1);
    let ids = [1, 2, 3].map(|call| b.submit(call, ALICE));
    let whole = b.submit_sized(4, ALICE, Size::Exclusive);
    b.submit(5, ALICE);
    b.submit(6, BOB);
    b.expect("1 on 0.0, 2 on 1.0");
    b.finish(W0, ids[0]);
    b.expect("3 on 0.0");
    b.finish(W1, ids[1]);
    b.expect("");
    b.finish(W0, ids[2]);
    b.expect("none to 1");
    b.confirm(W1);
    b.expect("all to 0");
    b.confirm(W0);
    b.expect("4 on 0.0");
    b.finish(W0, whole);
    b.expect("none to 0");
    b.confirm(W0);
    b.expect("own to 0, own to 1");
    b.confirm(W1);
    b.expect("");
    b.confirm(W0);
    b.expect("5 on 0.0");
    b.now = 100 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("replace 1");
}

#[test]
fn an_idle_device_is_given_at_once_and_a_foreign_one_after_a_replacement() {
    let mut b = Bench::new(1, 4);
    let first = b.submit_sized(1, ALICE, Size::Exclusive);
    b.expect("all to 0");
    b.confirm(W0);
    b.finish(W0, first);
    b.expect("1 on 0.0, none to 0");
    b.confirm(W0);
    b.confirm(W0);
    b.expect("own to 0");
    b.submit_sized(2, BOB, Size::Exclusive);
    b.expect("replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("all to 0");
}

#[test]
fn a_call_cancelled_during_a_memory_move_returns_the_memory() {
    let mut b = Bench::new(1, 1);
    let whole = b.submit_sized(1, ALICE, Size::Exclusive);
    b.submit(2, ALICE);
    b.expect("all to 0");
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: whole }, &mut b.actions), Some(1));
    b.expect("none to 0");
    // It confirms all that it had, then that it has nothing.
    b.confirm(W0);
    b.expect("");
    b.confirm(W0);
    b.expect("own to 0");
    b.confirm(W0);
    b.expect("2 on 0.0");
}

#[test]
fn a_cancelled_exclusive_call_does_not_block_the_queue() {
    let mut b = Bench::new(1, 2);
    b.submit(1, ALICE);
    b.submit_sized(2, ALICE, Size::Exclusive);
    b.now = MS;
    b.submit(3, ALICE);
    b.expect("1 on 0.0");
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("2 expired, 3 on 0.1");
}

#[test]
fn its_worker_may_end_and_it_runs_again() {
    let mut b = Bench::new(2, 1);
    b.submit_sized(1, ALICE, Size::Exclusive);
    b.expect("none to 1");
    b.dies(W0);
    b.expect("");
    b.confirm(W1);
    b.expect("own to 1");
    b.confirm(W1);
    b.expect("all to 1");
    b.confirm(W1);
    b.dies(W1);
    b.ready(W0);
    b.expect("1 on 1.0, all to 0");
    b.confirm(W0);
    b.expect("1 on 0.0 alone");
    assert_eq!(b.dies(W0), [(1, Ended::Guilty)]);
}

#[test]
fn a_worker_that_does_not_confirm_is_killed() {
    let mut b = Bench::new(2, 1);
    let terms =
        Terms { domain: ALICE, function: FUNCTION, bytes: 1, deadline_ns: u64::MAX, size: Size::Exclusive };
    b.scheduler.handle(b.now, Submit { call: 1, terms, limits: LIMITS }, &mut b.actions).unwrap();
    b.expect("none to 1");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(SETTLE_NS));
    b.now = SETTLE_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 1");
    b.dies(W1);
    b.expect("all to 0");
}

#[test]
fn a_line_of_one_caller_keeps_no_other_waiting() {
    let mut b = Bench::new(1, 1);
    let line = [1, 2, 3].map(|call| b.submit_sized(call, ALICE, Size::Exclusive));
    b.expect("all to 0");
    b.confirm(W0);
    b.expect("1 on 0.0");
    b.submit(4, ALICE);
    b.now = 10 * MS;
    b.finish(W0, line[0]);
    b.expect("none to 0");
    b.confirm(W0);
    b.expect("own to 0");
    b.confirm(W0);
    b.expect("4 on 0.0");
    // Another caller had nothing of the device: its call goes before those that came first.
    b.submit_sized(5, BOB, Size::Exclusive);
    let fourth = b.scheduler.calls.running();
    assert_eq!(fourth, 1);
    assert_eq!(b.scheduler.exclusive.next().map(|id| b.scheduler.calls.get(id).unwrap().call), Some(5));
}
