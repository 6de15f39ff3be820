//! Small cases of workers that submit by turns.

use super::*;

#[test]
fn workers_of_several_domains_take_turns() {
    let mut b = Bench::of(Shape { quantum_us: Some(5000), ..Shape::new(2, 2) });
    let first = b.submit(1, ALICE);
    b.expect("1 on 0.0, grant 0 turn 1");
    b.submit(2, BOB);
    b.expect("2 on 1.0, revoke 0 turn 1");
    b.now = 7 * MS;
    assert!(b.scheduler.handle(b.now, Yielding { worker: W0, turn: TurnId::new(1) }, &mut b.actions));
    b.finish(W0, first);
    b.expect("soon 1");
    assert!(b.scheduler.handle(
        b.now,
        Yielded { worker: W0, turn: TurnId::new(1), used_ns: 6 * MS, answered: 0 },
        &mut b.actions
    ));
    b.expect("grant 1 turn 2");
    // All that others waited for, whatever it says.
    assert_eq!((b.scheduler.device_ns(W0), b.scheduler.device_ns(W1)), (7 * MS, 0));
    // A worker is not charged for time that it cannot have used, and yields only the turn that it has.
    b.now = 9 * MS;
    assert!(!b.scheduler.handle(
        b.now,
        Yielded { worker: W0, turn: TurnId::new(2), used_ns: 1, answered: 0 },
        &mut b.actions
    ));
    assert!(!b.scheduler.handle(b.now, Yielding { worker: W0, turn: TurnId::new(1) }, &mut b.actions));
    assert!(b.scheduler.handle(
        b.now,
        Yielded { worker: W1, turn: TurnId::new(2), used_ns: u64::MAX, answered: 0 },
        &mut b.actions
    ));
    // It still has its call.
    b.expect("grant 1 turn 3");
    assert_eq!(b.scheduler.device_ns(W1), 2 * MS);
    b.now = 10 * MS;
    b.dies(W1);
    assert_eq!(b.scheduler.device_ns(W1), 3 * MS, "all the time that it had");
    b.submit(3, ALICE);
    b.expect("3 on 0.0, grant 0 turn 4");
}

#[test]
fn a_worker_that_keeps_an_idle_turn_is_killed() {
    let mut b = Bench::of(Shape { quantum_us: Some(5000), ..Shape::new(2, 1) });
    let first = b.submit(1, ALICE);
    b.finish(W0, first);
    b.now = 5 * MS;
    b.submit(2, BOB);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 1.0, revoke 0 turn 1, soon 1");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(105 * MS));
    b.now = 105 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 0");
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("");
    b.dies(W0);
    b.expect("grant 1 turn 2");
}

#[test]
fn a_call_that_waits_for_a_turn_costs_no_worker_at_its_deadline() {
    let mut b = Bench::of(Shape { quantum_us: Some(1_000_000), ..Shape::new(2, 1) });
    b.submit(1, ALICE);
    b.now = MS;
    let waits = b.submit(2, BOB);
    b.actions.clear();
    let later = |b: &mut Bench, ms: u64, words: &str| {
        b.now = ms * MS;
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
        b.expect(words);
    };
    // Who has the device is answerable, who waits for it is not.
    later(&mut b, 1000, "");
    later(&mut b, 1010, "kill 0");
    later(&mut b, 1300, "");
    b.dies(W0);
    b.expect("grant 1 turn 2");
    later(&mut b, 1309, "");
    b.finish(W1, waits);
    let stuck = b.submit(3, BOB);
    b.actions.clear();
    later(&mut b, 2309, "");
    later(&mut b, 2319, "kill 1");
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: stuck }, &mut b.actions), None);
}

#[test]
fn a_turn_is_given_back_before_its_last_answers_are_heard() {
    let gives_back = |b: &mut Bench, answered: u64| {
        let yielded = Yielded { worker: W0, turn: TurnId::new(1), used_ns: MS, answered };
        b.now = MS;
        assert!(b.scheduler.handle(b.now, yielded, &mut b.actions));
    };
    let mut b = Bench::of(Shape { quantum_us: Some(5000), ..Shape::new(2, 2) });
    let first = b.submit(1, ALICE);
    b.submit(2, BOB);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 1.0, revoke 0 turn 1");
    gives_back(&mut b, 1);
    b.expect("grant 1 turn 2");
    b.finish(W0, first);
    b.submit(3, ALICE);
    b.expect("3 on 0.0, revoke 1 turn 2");
    // It has a call that it did not know of, or did not answer: it waits for its next turn.
    let mut b = Bench::of(Shape { quantum_us: Some(5000), ..Shape::new(2, 2) });
    let first = b.submit(1, ALICE);
    b.submit(2, BOB);
    b.submit(3, ALICE);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 1.0, revoke 0 turn 1, 3 on 0.1");
    gives_back(&mut b, 1);
    b.expect("grant 1 turn 2, revoke 1 turn 2");
    b.finish(W0, first);
    b.expect("");
}
