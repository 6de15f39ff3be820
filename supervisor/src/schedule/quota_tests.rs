//! A caller that may be lent less memory than there is.

use super::*;

/// Two workers of two lanes, 100 bytes, of which Alice may have 40.
fn bench() -> Bench {
    let shape = Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(3, 2) };
    let mut b = Bench::of(shape);
    let allow = Allow { tenant: ALICE.caller, most_bytes: Some(40) };
    b.scheduler.handle(b.now, allow, &mut b.actions);
    b
}

#[test]
fn a_caller_is_lent_no_more_than_it_may_have() {
    let mut b = bench();
    let first = b.submit_sized(1, ALICE, 32);
    b.submit_sized(2, ALICE, 16);
    // The control: one without a limit, whose calls do not wait behind those of the first.
    b.submit_sized(3, BOB, 32);
    b.submit_sized(4, BOB, 16);
    b.expect("1 on 0.0, 3 on 1.0, 4 on 1.1");
    b.finish(W0, first);
    // Its own lane has enough.
    b.expect("2 on 0.0");
    assert_eq!((b.scheduler.held_by(ALICE.caller), b.scheduler.limited()), (32, vec![ALICE.caller]));
}

#[test]
fn what_it_does_not_use_gives_way_to_its_own_calls() {
    let mut b = bench();
    let other = Domain { owner: BOB.owner, caller: ALICE.caller };
    let first = b.submit_sized(1, ALICE, 32);
    b.finish(W0, first);
    b.submit_sized(2, other, 32);
    b.expect("1 on 0.0, 0 gives 1");
    b.gave_back(W0, 0);
    b.expect("2 on 1.0");
}

#[test]
fn a_whole_device_call_keeps_to_the_limit_too() {
    let mut b = Bench::of(Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(2, 2) });
    let allow = Allow { tenant: ALICE.caller, most_bytes: Some(60) };
    b.scheduler.handle(b.now, allow, &mut b.actions);
    let first = b.submit_sized(1, ALICE, 32);
    let second = b.submit_sized(2, ALICE, 16);
    b.finish(W0, first);
    b.finish(W0, second);
    b.submit_sized(3, ALICE, 52);
    b.expect("1 on 0.0, 2 on 0.1, 0 gives 10");
    b.gave_back(W0, 32);
    b.expect("3 on 0.0");
}

#[test]
fn a_whole_device_call_that_never_fits_beside_its_stacks_keeps_nobody_waiting() {
    let mut b = Bench::of(Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(2, 1) });
    let allow = Allow { tenant: ALICE.caller, most_bytes: Some(60) };
    b.scheduler.handle(b.now, allow, &mut b.actions);
    let spec = CallSpec { memory_bytes: 55, stack_bytes: 10, deadline_ns: 1000 * MS, ..TERMS };
    let submit = Submit { call: 1, spec, limits: LIMITS };
    b.scheduler.handle(b.now, submit, &mut b.actions).unwrap();
    b.submit(2, BOB);
    b.expect("1 may not have 65, 2 on 1.0");
}

#[test]
fn a_limited_callers_call_starts_when_a_killed_process_of_the_caller_had_its_memory() {
    let mut b = bench();
    let other = Domain { owner: BOB.owner, caller: ALICE.caller };
    b.submit_sized(1, ALICE, 32);
    let beside = b.submit_sized(2, other, 4);
    b.now = 500 * MS;
    b.submit_sized(3, other, 16);
    b.expect("1 on 0.0, 2 on 1.0");
    // The first two calls are overdue, and the process of the first one is killed.
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.finish(W1, beside);
    b.expect("");
    b.now = b.scheduler.next_deadline_ns().unwrap();
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 0");
    b.dies(W0);
    b.expect("3 on 1.0");
}

#[test]
fn calls_behind_one_that_is_cancelled_move_up() {
    let mut b = bench();
    b.submit_sized(1, ALICE, 32);
    let large = b.submit_sized(2, ALICE, 16);
    b.submit_sized(3, ALICE, 4);
    b.expect("1 on 0.0");
    b.scheduler.handle(b.now, Cancel { id: large }, &mut b.actions);
    b.expect("3 on 0.1");
}

#[test]
fn more_is_allowed_while_calls_wait() {
    let mut b = bench();
    b.submit_sized(1, ALICE, 32);
    b.submit_sized(2, ALICE, 16);
    b.expect("1 on 0.0");
    b.scheduler.handle(b.now, Allow { tenant: ALICE.caller, most_bytes: None }, &mut b.actions);
    b.scheduler.handle(b.now, LimitsChanged {}, &mut b.actions);
    b.expect("2 on 0.1");
    assert_eq!(b.scheduler.limited(), vec![]);
    assert_eq!(b.scheduler.serving(ALICE), [W0]);
}

#[test]
fn its_own_weights_give_way_to_its_own_calls() {
    // More than half of all is for a call that has the whole device.
    for memory_bytes in [36, 55] {
        let mut b = Bench::of(Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(2, 2) });
        b.scheduler.handle(b.now, Allow { tenant: ALICE.caller, most_bytes: Some(60) }, &mut b.actions);
        let spec = CallSpec { weight_bytes: 30, deadline_ns: 1000 * MS, ..TERMS };
        let first = Submit { call: 1, spec, limits: LIMITS };
        let first = b.scheduler.handle(b.now, first, &mut b.actions).unwrap();
        let loaded = Loaded { worker: W0, function: FUNCTION, memory: Some(1), bytes: 30 };
        assert!(b.scheduler.handle(b.now, loaded, &mut b.actions));
        b.submit_sized(2, ALICE, memory_bytes);
        b.expect("1 on 0.0");
        b.finish(W0, first);
        b.expect("0 unloads 1, 2 on 0.0");
        b.scheduler.handle(b.now, WeightsLeft { worker: W0, function: FUNCTION }, &mut b.actions);
        b.expect("drop 1");
    }
}
