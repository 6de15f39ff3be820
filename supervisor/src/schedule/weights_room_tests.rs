//! Calls whose weights find no room beside those in use, and weights that are loaded for calls that wait.

use super::*;

const MIB: u64 = 1 << 20;

/// With room for the weights of so many functions.
fn bench(workers: usize, lanes: u32, functions: u64) -> Bench {
    Bench::of(Shape { weights_bytes: functions * MIB, ..Shape::new(workers, lanes) })
}

impl Bench {
    /// A call of a function with weights.
    fn submit_weighted(&mut self, call: u64, domain: Domain, function: u64) -> CallId {
        let spec = CallSpec {
            domain,
            function: FunctionId::new(function),
            deadline_ns: 1_000_000 * MS,
            weight_bytes: MIB,
            ..TERMS
        };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions).unwrap()
    }

    /// A worker loaded weights as it was told.
    fn loaded(&mut self, worker: WorkerId, function: u64) {
        let loaded =
            Loaded { worker, function: FunctionId::new(function), memory: Some(function), bytes: MIB };
        assert!(self.scheduler.handle(self.now, loaded, &mut self.actions));
    }

    /// A worker let weights go.
    fn left(&mut self, worker: WorkerId, function: u64) {
        let left = WeightsLeft { worker, function: FunctionId::new(function) };
        self.scheduler.handle(self.now, left, &mut self.actions);
    }
}

#[test]
fn a_call_waits_for_room_until_a_call_that_uses_weights_ends() {
    let mut b = bench(2, 2, 1);
    let first = b.submit_weighted(1, ALICE, 1);
    b.loaded(W0, 1);
    b.submit_weighted(2, BOB, 2);
    b.expect("1 on 0.0");
    // Calls without weights do not wait for it, nor do others that use weights, at first.
    let plain = b.submit(3, ALICE);
    let weighted = b.submit_weighted(4, ALICE, 1);
    b.expect("3 on 0.1");
    b.finish(W0, plain);
    b.expect("4 on 0.1");
    b.finish(W0, first);
    b.expect("");
    b.finish(W0, weighted);
    b.expect("0 unloads 1, 2 on 1.0");
    b.left(W0, 1);
    b.expect("drop 1");
}

#[test]
fn what_waits_for_room_for_long_is_not_overtaken_for_ever() {
    let mut b = bench(2, 2, 1);
    let first = b.submit_weighted(1, ALICE, 1);
    b.loaded(W0, 1);
    b.submit_weighted(2, BOB, 2);
    let third = b.submit_weighted(3, ALICE, 1);
    b.expect("1 on 0.0, 3 on 0.1");
    b.now = 200 * MS;
    b.submit_weighted(4, ALICE, 1);
    b.submit(5, ALICE);
    b.finish(W0, first);
    // From now on other domains' calls that use weights stand behind it.
    b.expect("5 on 0.0");
    b.finish(W0, third);
    b.expect("0 unloads 1, 2 on 1.0");
}

#[test]
fn what_loads_gives_no_room_before_it_is_there() {
    let mut b = bench(1, 2, 1);
    let first = b.submit_weighted(1, ALICE, 1);
    b.finish(W0, first);
    b.submit_weighted(2, ALICE, 2);
    b.expect("1 on 0.0");
    b.loaded(W0, 1);
    // In the same memory: nothing leaves.
    b.expect("2 on 0.0");
}

#[test]
fn a_call_that_waits_for_room_can_be_given_up_and_expires() {
    let mut b = bench(1, 2, 1);
    b.submit_weighted(1, ALICE, 1);
    let second = b.submit_weighted(2, ALICE, 2);
    b.expect("1 on 0.0");
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: second }, &mut b.actions), Some(2));
    b.submit_weighted(3, ALICE, 3);
    b.expect("");
    b.now = 1_000_001 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("3 expired");
    assert_eq!(b.scheduler.queued(), 0);
}

#[test]
fn weights_of_calls_that_wait_are_loaded_once() {
    let mut b = bench(1, 1, 3);
    let first = b.submit_weighted(1, ALICE, 1);
    b.loaded(W0, 1);
    b.submit_weighted(2, ALICE, 1);
    b.expect("1 on 0.0");
    b.submit_weighted(3, ALICE, 2);
    b.expect("0 loads for 3");
    b.loaded(W0, 2);
    b.submit_weighted(4, ALICE, 2);
    b.submit_weighted(5, ALICE, 1);
    // No further ahead than that.
    b.submit_weighted(6, ALICE, 3);
    b.expect("");
    b.finish(W0, first);
    b.expect("2 on 0.0, 0 loads for 6");
    // What does not load is tried again.
    b.scheduler.handle(b.now, NotLoaded { worker: W0, function: FunctionId::new(3) }, &mut b.actions);
    b.expect("0 unloads 3");
    let last = b.submit_weighted(7, ALICE, 1);
    b.expect("0 loads for 6");
    b.left(W0, 3);
    b.scheduler.handle(b.now, Cancel { id: last }, &mut b.actions);
    b.expect("");
}

#[test]
fn a_function_that_is_gone_leaves_every_worker() {
    let mut b = bench(2, 1, 1);
    let first = b.submit_weighted(1, ALICE, 1);
    b.loaded(W0, 1);
    b.finish(W0, first);
    b.expect("1 on 0.0");
    b.scheduler.handle(b.now, FunctionGone { function: FunctionId::new(1) }, &mut b.actions);
    b.expect("0 uninstalls 1, 1 uninstalls 1");
    assert_eq!((b.scheduler.weights().used_bytes(), b.scheduler.weights().held_bytes()), (0, MIB));
    b.left(W0, 1);
    b.expect("drop 1");
    assert_eq!(b.scheduler.weights().held_bytes(), 0);
}

#[test]
fn the_owner_of_a_function_may_have_so_much_for_weights() {
    let mut b = bench(2, 2, 9);
    b.scheduler.handle(0, Allow { tenant: ALICE.owner, most_bytes: Some(MIB) }, &mut b.actions);
    let first = b.submit_weighted(1, ALICE, 1);
    b.loaded(W0, 1);
    // Under a call they stay: her own call waits, and others' calls of her functions are refused.
    b.submit_weighted(2, ALICE, 2);
    b.submit_weighted(3, Domain { owner: ALICE.owner, caller: BOB.caller }, 3);
    b.expect("1 on 0.0, 3 may not have 1048576");
    b.finish(W0, first);
    b.expect("2 on 0.0");
}
