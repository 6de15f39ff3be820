//! Small cases of lost calls: never handed over, or their outputs are being cleared.

use super::*;
use crate::schedule::limits::CLEAR_NS;

#[test]
fn a_call_runs_again_only_once_it_is_cleared_and_nothing_else_waits_for_that() {
    let mut b = Bench::new(2, 1);
    b.submit(1, ALICE);
    b.submit(2, BOB);
    b.submit_sized(3, BOB, WHOLE);
    b.expect("1 on 0.0, 2 on 1.0");
    let lost = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
    let reaped = Reaped { worker: W0, generation: Generation::new(1), from_outside: false };
    b.scheduler.handle(b.now, reaped, &mut b.actions);
    let second = b.scheduler.workers.take_all(W1)[0];
    b.finish(W1, second);
    b.expect("");
    // The call for the whole device does not wait for the clearing of another's outputs.
    let until = b.scheduler.handle(b.now, Clearing { id: lost[0].0 }, &mut b.actions);
    assert_eq!(until, Some(CLEAR_NS));
    b.expect("3 on 1.0");
    b.ready(W0);
    let whole = b.scheduler.workers.take_all(W1)[0];
    b.finish(W1, whole);
    b.actions.clear();
    let buried = Buried { id: lost[0].0, loss: Loss::InIt };
    assert_eq!(b.scheduler.handle(b.now, buried, &mut b.actions), None);
    b.expect("1 on 0.0 alone");
}

#[test]
fn a_call_that_is_not_cleared_in_time_is_over() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    b.expect("1 on 0.0");
    let lost = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
    let id = lost[0].0;
    b.now = 500 * MS;
    assert_eq!(b.scheduler.handle(b.now, Clearing { id }, &mut b.actions), Some(500 * MS + CLEAR_NS));
    assert_eq!(b.scheduler.handle(b.now, Clearing { id }, &mut b.actions), None);
    assert_eq!(b.scheduler.next_deadline_ns(), Some(500 * MS + CLEAR_NS));
    b.now += CLEAR_NS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("1 not cleared");
    // It was cleared after all, and no call waits for it.
    assert_eq!(b.scheduler.handle(b.now, Buried { id, loss: Loss::InIt }, &mut b.actions), None);
    b.expect("");
    assert_eq!(b.scheduler.running(), 0);
}

#[test]
fn a_call_that_is_cleared_after_its_deadline_does_not_run_again() {
    let mut b = Bench::new(1, 1);
    b.submit(1, ALICE);
    b.expect("1 on 0.0");
    let (id, _) = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions)[0];
    b.now = 900 * MS;
    b.scheduler.handle(b.now, Clearing { id }, &mut b.actions);
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("");
    let buried = Buried { id, loss: Loss::InIt };
    assert_eq!(b.scheduler.handle(b.now, buried, &mut b.actions), Some((1, Ended::Deadline)));
}

#[test]
fn a_call_that_was_never_handed_over_is_no_suspect() {
    let mut b = Bench::new(1, 1);
    for _ in 0..9 {
        let id =
            if b.scheduler.queued() + b.scheduler.running() == 0 { Some(b.submit(1, ALICE)) } else { None };
        b.expect("1 on 0.0");
        let lost = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
        assert!(id.is_none_or(|id| lost == [(id, 1)]));
        assert_eq!(
            b.scheduler.handle(b.now, Buried { id: lost[0].0, loss: Loss::NeverHanded }, &mut b.actions),
            None
        );
        b.ready(W0);
    }
    b.expect("1 on 0.0");
}
