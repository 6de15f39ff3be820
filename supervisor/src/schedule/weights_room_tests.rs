//! Calls whose weights find no room beside those in use, and weights that are loaded for calls that wait.

use super::*;

impl Bench {
    /// A call of a function with weights.
    fn submit_weighted(&mut self, call: u64, domain: Domain, function: u64) -> CallId {
        let terms = Terms {
            domain,
            function: FunctionId::new(function),
            deadline_ns: 1_000_000 * MS,
            weight_bytes: 1 << 20,
            ..TERMS
        };
        self.scheduler.handle(self.now, Submit { call, terms, limits: LIMITS }, &mut self.actions).unwrap()
    }

    /// There is no room for the weights of a call that was started, as it was at a moment.
    fn in_use_at(&mut self, worker: WorkerId, id: CallId, moment: u64) {
        let in_use = WeightsInUse { worker, id, moment };
        assert!(self.scheduler.handle(self.now, in_use, &mut self.actions));
    }

    fn in_use(&mut self, worker: WorkerId, id: CallId) {
        self.in_use_at(worker, id, self.scheduler.weights_moment());
    }
}

#[test]
fn a_call_waits_for_room_until_a_call_that_uses_weights_ends() {
    let mut b = Bench::new(2, 2);
    let first = b.submit_weighted(1, ALICE, 1);
    let second = b.submit_weighted(2, BOB, 2);
    b.expect("1 on 0.0, 2 on 1.0");
    b.in_use(W1, second);
    b.expect("1 looks ahead to [2]");
    // Calls without weights do not wait for it, nor do others that use weights, at first.
    let plain = b.submit(3, ALICE);
    let weighted = b.submit_weighted(4, ALICE, 1);
    b.expect("3 on 0.1");
    b.finish(W0, plain);
    b.expect("4 on 0.1");
    b.finish(W0, first);
    b.expect("2 on 1.0");
    b.in_use(W1, second);
    b.finish(W0, weighted);
    b.expect("1 looks ahead to [2], 2 on 1.0");
}

#[test]
fn what_waits_for_room_for_long_is_not_overtaken_for_ever() {
    let mut b = Bench::new(2, 2);
    let first = b.submit_weighted(1, ALICE, 1);
    let second = b.submit_weighted(2, BOB, 2);
    b.in_use(W1, second);
    b.actions.clear();
    let third = b.submit_weighted(3, ALICE, 1);
    b.expect("3 on 0.1");
    b.now = 200 * MS;
    b.finish(W0, first);
    b.expect("2 on 1.0");
    b.in_use(W1, second);
    b.actions.clear();
    // From now on other domains' calls that use weights stand behind it.
    b.submit_weighted(4, ALICE, 1);
    b.submit(5, ALICE);
    b.actions.clear();
    b.finish(W0, third);
    b.expect("2 on 1.0, 5 on 0.0, 4 on 0.1");
}

#[test]
fn room_that_came_meanwhile_is_seen() {
    let mut b = Bench::new(1, 2);
    let first = b.submit_weighted(1, ALICE, 1);
    b.expect("1 on 0.0");
    let moment = b.scheduler.weights_moment();
    b.scheduler.handle(b.now, MemoryCame {}, &mut b.actions);
    b.in_use_at(W0, first, moment);
    b.expect("1 on 0.0");
    b.in_use(W0, first);
    b.expect("");
    b.scheduler.handle(b.now, MemoryCame {}, &mut b.actions);
    b.expect("1 on 0.0");
}

#[test]
fn a_call_that_waits_for_room_can_be_given_up_and_expires() {
    let mut b = Bench::new(1, 2);
    b.submit_weighted(1, ALICE, 1);
    let second = b.submit_weighted(2, ALICE, 2);
    b.expect("1 on 0.0, 2 on 0.1");
    b.in_use(W0, second);
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: second }, &mut b.actions), Some(2));
    b.actions.clear();
    let third = b.submit_weighted(3, ALICE, 3);
    b.expect("3 on 0.1");
    b.in_use(W0, third);
    b.actions.clear();
    b.now = 1_000_001 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("3 expired");
    assert_eq!(b.scheduler.queued(), 0);
}

#[test]
fn weights_of_calls_that_wait_are_asked_for_once() {
    let mut b = Bench::new(1, 1);
    let first = b.submit_weighted(1, ALICE, 1);
    b.expect("1 on 0.0");
    b.submit_weighted(2, ALICE, 1);
    b.expect("");
    b.submit_weighted(3, ALICE, 2);
    b.expect("0 looks ahead to [2, 3]");
    b.submit_weighted(4, ALICE, 2);
    b.submit_weighted(5, ALICE, 1);
    // No further ahead than that.
    b.submit_weighted(6, ALICE, 3);
    b.expect("");
    b.finish(W0, first);
    b.expect("2 on 0.0, 0 looks ahead to [3, 5, 6]");
    // Those that left are asked for again.
    b.scheduler.handle(b.now, Cooled { function: FunctionId::new(2) }, &mut b.actions);
    let last = b.submit_weighted(7, ALICE, 1);
    b.expect("0 looks ahead to [3, 5, 6]");
    b.scheduler.handle(b.now, Cancel { id: last }, &mut b.actions);
    b.expect("");
}

#[test]
fn what_weights_are_about_to_give_up_is_no_room_yet() {
    let mut b = Bench::new(2, 2);
    b.submit_weighted(1, ALICE, 1);
    let second = b.submit_weighted(2, BOB, 2);
    b.in_use(W1, second);
    b.actions.clear();
    let moment = b.scheduler.weights_moment();
    b.scheduler.handle(0, WeightsGivenUp { coming_bytes: 0 }, &mut b.actions);
    assert_eq!(b.scheduler.weights_moment(), moment);
    b.expect("");
    b.scheduler.handle(0, MemoryCame {}, &mut b.actions);
    b.expect("2 on 1.0");
}
