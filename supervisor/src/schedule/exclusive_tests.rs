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
    b.finish(0, ids[0]);
    b.expect("3 on 0.0");
    b.finish(1, ids[1]);
    b.expect("");
    b.finish(0, ids[2]);
    b.expect("all to 0");
    b.scheduler.whole_ready(b.now, 1, &mut b.actions);
    b.expect("");
    b.scheduler.whole_ready(b.now, 0, &mut b.actions);
    b.expect("4 on 0.0");
    b.finish(0, whole);
    b.expect("back");
    b.scheduler.whole_over(b.now, &mut b.actions);
    b.expect("5 on 0.0");
    b.now = 100 * MS;
    b.scheduler.expire(b.now, &mut b.actions);
    b.expect("replace 1");
}

#[test]
fn an_idle_device_is_given_at_once_and_a_foreign_one_after_a_replacement() {
    let mut b = Bench::new(1, 4);
    let first = b.submit_sized(1, ALICE, Size::Exclusive);
    b.expect("all to 0");
    b.scheduler.whole_ready(b.now, 0, &mut b.actions);
    b.finish(0, first);
    b.scheduler.whole_over(b.now, &mut b.actions);
    b.expect("1 on 0.0, back");
    b.submit_sized(2, BOB, Size::Exclusive);
    b.expect("replace 0");
    b.dies(0);
    b.ready(0);
    b.expect("all to 0");
}

#[test]
fn who_gives_up_while_memory_moves_gives_it_back() {
    let mut b = Bench::new(1, 1);
    let whole = b.submit_sized(1, ALICE, Size::Exclusive);
    b.submit(2, ALICE);
    b.expect("all to 0");
    assert_eq!(b.scheduler.cancel(b.now, whole, &mut b.actions), Some(1));
    b.expect("back");
    b.scheduler.whole_ready(b.now, 0, &mut b.actions);
    b.expect("");
    b.scheduler.whole_over(b.now, &mut b.actions);
    b.expect("2 on 0.0");
}

#[test]
fn one_that_gives_up_in_line_holds_nobody_up() {
    let mut b = Bench::new(1, 2);
    b.submit(1, ALICE);
    b.submit_sized(2, ALICE, Size::Exclusive);
    b.now = MS;
    b.submit(3, ALICE);
    b.expect("1 on 0.0");
    b.now = 1000 * MS;
    b.scheduler.expire(b.now, &mut b.actions);
    b.expect("2 expired, 3 on 0.1");
}

#[test]
fn its_worker_may_end_and_it_runs_again() {
    let mut b = Bench::new(2, 1);
    b.submit_sized(1, ALICE, Size::Exclusive);
    b.expect("all to 0");
    b.dies(0);
    b.expect("back");
    b.scheduler.whole_over(b.now, &mut b.actions);
    b.expect("all to 1");
    b.scheduler.whole_ready(b.now, 1, &mut b.actions);
    b.dies(1);
    b.ready(0);
    b.expect("1 on 1.0, back");
    b.scheduler.whole_over(b.now, &mut b.actions);
    b.expect("all to 0");
    b.scheduler.whole_ready(b.now, 0, &mut b.actions);
    b.expect("1 on 0.0 alone");
    assert_eq!(b.dies(0), [(1, Ended::Guilty)]);
}
