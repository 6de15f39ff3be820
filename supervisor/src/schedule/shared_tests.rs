//! Workers that all domains share: whose calls run there, which payer is next, and what a payer is charged.

use super::*;
use crate::schedule::Outlast;
use crate::schedule::limits::APART_NS;

const LIMIT: u64 = SHARED_LIMIT_NS;

/// Two workers, of which the first is shared and has so many lanes.
fn bench(lanes: u32) -> Bench {
    Bench::of(Shape { shared_workers: 1, workers_per_domain: 1, ..Shape::new(2, lanes) })
}

fn domain(tenant: u32) -> Domain {
    Domain { owner: TenantId::new(tenant), caller: TenantId::new(tenant) }
}

impl Bench {
    fn share_of(&mut self, call: u64, tenant: u32, function: u64) -> CallId {
        let (domain, function) = (domain(tenant), FunctionId::new(function));
        let deadline_ns = self.now + 1000 * MS;
        let spec = CallSpec { domain, function, deadline_ns, sharing: Sharing::May, ..TERMS };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions).unwrap()
    }

    fn outlast(&mut self, worker: WorkerId, id: CallId) -> Outlast {
        self.scheduler.handle(self.now, Outlasted { worker, id }, &mut self.actions)
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.scheduler.handle(self.now, Tick {}, &mut self.actions);
    }
}

#[test]
fn calls_of_strangers_run_beside_each_other_and_others_in_workers_of_their_own() {
    let mut b = bench(3);
    b.share(1, ALICE);
    b.share(2, BOB);
    b.submit(3, BOB);
    b.submit(4, ALICE);
    b.share(5, domain(3));
    b.expect("1 on 0.0, 2 on 0.1, 3 on 1.0, 5 on 0.2");
    assert_eq!(b.scheduler.resident(W0).serves, Some(Compartment::Shared));
    assert_eq!(b.scheduler.resident(W1).serves, Some(Compartment::Of(BOB)));
}

#[test]
fn a_shared_worker_is_nobodys_and_stays() {
    let mut b = bench(1);
    b.submit(1, ALICE);
    b.submit(2, BOB);
    b.expect("1 on 1.0");
    b.now += 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("2 expired");
    assert!(b.dies(W0).is_empty());
    b.expect_all("bring 0");
    let second = Ready { worker: W0, generation: Generation::new(2) };
    b.scheduler.handle(b.now, second, &mut b.actions);
    b.share(3, domain(3));
    assert!(b.told(|_| true).ends_with("3 on 0.0"));
}

#[test]
fn a_shared_process_that_comes_is_none_for_a_domain_that_waits() {
    let mut b = bench(1);
    b.submit(1, ALICE);
    b.expect("1 on 1.0");
    let alice = b.scheduler.workers[W1].calls().next().unwrap();
    b.finish(W1, alice);
    b.dies(W0);
    b.now = 1000 * MS;
    b.submit(2, BOB);
    b.expect("replace 1");
}

#[test]
fn a_free_lane_is_for_the_payer_who_had_least() {
    let mut b = bench(1);
    let first = b.share(1, ALICE);
    (2..=4).for_each(|call| {
        b.share(call, ALICE);
    });
    b.share(5, BOB);
    b.share(6, BOB);
    b.expect("1 on 0.0");
    let mut running = first;
    let mut order = Vec::new();
    for _ in 0..5 {
        b.now += 5 * MS;
        b.finish(W0, running);
        let Some(Action::Tell { command: Command::Start { job: Job { id, call, .. }, .. }, .. }) =
            b.actions.pop()
        else {
            break;
        };
        order.push(call);
        running = id;
    }
    assert_eq!(order, [5, 2, 6, 3, 4], "who has many calls in line has no more of the device");
}

#[test]
fn a_call_that_takes_too_long_begins_again_in_a_worker_of_its_own() {
    let mut b = bench(2);
    let long = b.share(1, ALICE);
    let short = b.share(2, BOB);
    // A worker of several lanes counts by itself.
    const UNTIL: u64 = 1000 * MS;
    assert!(matches!(b.actions[0], Action::Tell { command: Command::Start { until_ns: UNTIL, .. }, .. }));
    b.expect("1 on 0.0, 2 on 0.1");
    b.now = LIMIT - 1;
    assert_eq!(b.outlast(W0, long), Outlast::Fails, "a worker that ends calls early is not believed");
    b.now = LIMIT;
    assert_eq!([b.outlast(W0, long), b.outlast(W0, long)], [Outlast::BeginsAgain, Outlast::Fails]);
    b.expect("1 on 1.0");
    // For a while the next ones are not tried again.
    let next = b.share(3, ALICE);
    b.expect("3 on 1.1");
    [(W0, short), (W1, long), (W1, next)].into_iter().for_each(|(worker, id)| b.finish(worker, id));
    b.pass(APART_NS);
    b.actions.clear();
    b.share(4, ALICE);
    b.expect("4 on 0.0");
}

#[test]
fn a_call_that_is_in_shared_workers_only_has_its_part_there_and_is_refused_elsewhere() {
    let mut b = bench(1);
    let only = |b: &mut Bench, call| {
        let spec = CallSpec { domain: ALICE, deadline_ns: u64::MAX, sharing: Sharing::Only, ..TERMS };
        b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions)
    };
    let long = only(&mut b, 1).unwrap();
    b.expect("1 on 0.0");
    b.now = LIMIT;
    assert_eq!(b.outlast(W0, long), Outlast::HadItsPart);
    b.finish(W0, long);
    assert_eq!(only(&mut b, 2), Err(NotNow::NotShared { left_ns: APART_NS }));
    b.pass(APART_NS);
    assert!(only(&mut b, 3).is_ok());
    b.expect("3 on 0.0");
}

#[test]
fn what_a_call_waits_for_its_turn_is_no_time_in_which_it_runs() {
    let mut b = Bench::of(Shape { shared_workers: 1, quantum_us: Some(5000), ..Shape::new(2, 1) });
    let until = |b: &mut Bench| match b.actions.drain(..).next() {
        Some(Action::Tell { command: Command::Start { until_ns, .. }, .. }) => until_ns,
        other => panic!("{other:?}"),
    };
    let first = b.share(1, ALICE);
    assert_eq!(until(&mut b), LIMIT, "no other worker has calls");
    b.finish(W0, first);
    b.submit(2, BOB);
    b.actions.clear();
    b.share(3, BOB);
    assert_eq!(until(&mut b), LIMIT + 15 * MS, "another one may overrun its turn before");
}

/// How many of so many turns each of two workers has, of which one has a call of each of so many payers and is shared.
fn turns_of(payers: u32, turns: usize) -> [usize; 2] {
    let mut b = Bench::of(Shape { shared_workers: 1, quantum_us: Some(5000), ..Shape::new(2, 2) });
    (1..=payers).for_each(|payer| {
        b.share(payer.into(), domain(payer));
    });
    b.submit(99, domain(99));
    let mut had = [0; 2];
    for _ in 0..turns {
        let granted = b.actions.drain(..).find_map(|action| match action {
            Action::Tell { to, command: Command::Turn(Order::Grant { turn, .. }) } => Some((to.worker, turn)),
            _ => None,
        });
        let (worker, turn) = granted.expect("one has the device");
        had[worker.get()] += 1;
        b.now += 5 * MS;
        let yielded = Yielded { worker, turn, used_ns: 5 * MS, answered: 0 };
        assert!(b.scheduler.handle(b.now, yielded, &mut b.actions));
    }
    had
}

#[test]
fn a_shared_worker_weighs_as_much_as_those_whose_calls_it_has() {
    assert_eq!(turns_of(1, 40), [20, 20]);
    assert_eq!(turns_of(2, 42), [28, 14]);
    assert_eq!(turns_of(7, 80), [70, 10], "five of them wait for a lane");
}

#[test]
fn who_keeps_a_shared_process_until_it_is_killed_pays_for_its_turn() {
    let mut b = Bench::of(Shape { shared_workers: 1, quantum_us: Some(5000), ..Shape::new(2, 2) });
    let of_bob = b.share(1, BOB);
    b.scheduler.handle(b.now, Ran { worker: W0, id: of_bob, device_ns: 0 }, &mut b.actions);
    b.finish(W0, of_bob);
    b.share(2, ALICE);
    b.submit(3, domain(3));
    b.pass(500 * MS);
    b.dies(W0);
    assert!(b.scheduler.device_time_of(ALICE.caller) >= 100 * MS, "{:?}", b.scheduler.device_times(9));
    assert!(b.scheduler.device_time_of(BOB.caller) < MS, "{:?}", b.scheduler.device_times(9));
}

#[test]
fn who_takes_a_shared_process_from_all_is_not_shared_any_more() {
    let mut b = bench(2);
    b.share(1, ALICE);
    b.share(2, BOB);
    b.expect("1 on 0.0, 2 on 0.1");
    b.dies(W0);
    b.expect("1 on 1.0 alone");
    assert_eq!(b.dies(W1), [(1, Ended::Guilty)]);
    b.expect("");
    for worker in [W0, W1] {
        let ready = Ready { worker, generation: Generation::new(2) };
        b.scheduler.handle(b.now, ready, &mut b.actions);
    }
    assert!(b.told(|_| true).ends_with("2 on 1.0 alone"));
    let bob = b.scheduler.workers[W1].calls().next().unwrap();
    b.finish(W1, bob);
    b.actions.clear();
    let kept = b.scheduler.kept_apart(b.now);
    assert!(kept.len() == 1 && kept[0].0.caller == ALICE.caller && kept[0].1.is_none(), "{kept:?}");
    let mut used = |function, domain| {
        let spec = CallSpec { domain, function, deadline_ns: u64::MAX, sharing: Sharing::May, ..TERMS };
        let id = b.scheduler.handle(b.now, Submit { call: 9, spec, limits: LIMITS }, &mut b.actions).unwrap();
        let is_shared = b.scheduler.workers[W0].calls().any(|other| other == id);
        let worker = if is_shared { W0 } else { W1 };
        let runs = b.scheduler.workers[worker].calls().any(|other| other == id);
        if runs {
            b.finish(worker, id);
        } else {
            b.scheduler.handle(b.now, Cancel { id }, &mut b.actions);
        }
        is_shared
    };
    let other = FunctionId::new(2);
    assert_eq!([used(FUNCTION, ALICE), used(other, ALICE), used(FUNCTION, BOB)], [false, true, true]);
    b.scheduler.handle(b.now, FunctionGone { function: FUNCTION }, &mut b.actions);
    b.share(10, ALICE);
    assert_eq!(b.scheduler.workers[W0].calls().len(), 1, "nothing is kept of a function that is gone");
}

#[test]
fn a_shared_process_that_does_not_end_a_call_is_ended() {
    let stuck = |quantum_us, shared_stuck_ns| {
        let shape = Shape { shared_workers: 1, shared_stuck_ns, quantum_us, ..Shape::new(2, 2) };
        let mut b = Bench::of(shape);
        b.share(1, ALICE);
        b.now = LIMIT / 2;
        b.share(2, BOB);
        b.actions.clear();
        b
    };
    for quantum_us in [None, Some(5000)] {
        let mut b = stuck(quantum_us, 100 * MS);
        assert_eq!(b.scheduler.next_deadline_ns(), Some(2 * LIMIT + 100 * MS));
        b.pass(3 * LIMIT / 2 + 100 * MS - 1);
        b.expect("");
        b.pass(1);
        b.expect("kill 0");
        b.pass(LIMIT);
        b.expect("");
    }
    // A call that had its turn only lately is given that time from then on.
    let shape =
        Shape { shared_workers: 1, shared_stuck_ns: 100 * MS, quantum_us: Some(5000), ..Shape::new(2, 2) };
    let mut b = Bench::of(shape);
    b.submit(1, ALICE);
    b.share(2, BOB);
    b.pass(500 * MS);
    b.actions.clear();
    b.pass(100 * MS - 1);
    b.expect("");
    b.pass(1);
    b.expect("kill 0");
    // The control: a device whose kernels always end.
    let mut b = stuck(None, u64::MAX);
    b.pass(500 * MS);
    b.expect("");
}

#[test]
fn a_suspect_is_alone_in_a_worker_of_its_domain() {
    let mut b = bench(2);
    b.share(1, ALICE);
    b.share(2, BOB);
    b.expect("1 on 0.0, 2 on 0.1");
    assert!(b.dies(W0).is_empty(), "who is guilty is not known");
    b.expect("1 on 1.0 alone");
    assert_eq!(b.scheduler.budgets.list(b.now).len(), 0, "nobody pays for a process that all share");
}

#[test]
fn a_payer_may_have_so_much_in_shared_workers_too() {
    let shape = Shape { shared_workers: 1, memory_bytes: 100, ..Shape::new(2, 3) };
    let mut b = Bench::of(shape);
    let allow = Allow { tenant: ALICE.caller, most_bytes: Some(50) };
    b.scheduler.handle(0, allow, &mut b.actions);
    let sized = |b: &mut Bench, call, domain, memory_bytes| {
        let spec = CallSpec { domain, memory_bytes, sharing: Sharing::May, ..TERMS };
        b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap()
    };
    let first = sized(&mut b, 1, ALICE, 30);
    sized(&mut b, 2, ALICE, 30);
    sized(&mut b, 3, BOB, 30);
    b.expect("1 on 0.0, 3 on 0.1");
    assert_eq!((b.scheduler.held_by(ALICE.caller), b.scheduler.held_by(BOB.caller)), (30, 30));
    b.finish(W0, first);
    b.expect("2 on 0.0");
}

#[test]
fn a_payer_whose_budget_is_spent_keeps_no_lane_from_others() {
    let policy = Policy { quarantine_after: 0, fault_budget: 1, ..Policy::default() };
    let mut b = Bench::under(Shape { shared_workers: 1, ..Shape::new(2, 1) }, policy);
    b.submit(1, ALICE);
    b.dies(W1);
    b.actions.clear();
    b.share(2, ALICE);
    b.share(3, BOB);
    b.expect("3 on 0.0");
}

#[test]
fn a_call_that_leaves_a_shared_process_holds_up_nothing_of_a_payer_who_may_run_one() {
    let policy = Policy { quarantine_after: 0, fault_budget: 2, ..Policy::default() };
    let mut b = Bench::under(Shape { shared_workers: 1, ..Shape::new(2, 1) }, policy);
    b.submit(1, ALICE);
    for _ in 0..2 {
        b.dies(W1);
        b.ready(W1);
    }
    while b.scheduler.holds(ALICE.caller) {
        b.pass(1000 * MS);
    }
    assert!(b.scheduler.budgets.is_careful(b.now, ALICE.caller));
    b.actions.clear();
    let beside = b.share(2, ALICE);
    b.submit(3, ALICE);
    b.expect("2 on 0.0");
    b.now += LIMIT;
    assert_eq!(b.outlast(W0, beside), Outlast::BeginsAgain);
    b.expect("2 on 1.0");
}

#[test]
fn who_alone_has_a_shared_process_ended_pays_for_it() {
    let policy = Policy { quarantine_after: 0, fault_budget: 9, ..Policy::default() };
    let mut b = Bench::under(Shape { shared_workers: 1, ..Shape::new(2, 1) }, policy);
    b.share(1, ALICE);
    b.pass(1000 * MS);
    b.pass(SHARED_GRACE_NS - 1);
    b.expect("1 on 0.0");
    b.pass(1);
    b.expect("kill 0");
    let budgets = b.scheduler.budgets.list(b.now);
    assert_eq!(budgets.iter().map(|budget| budget.caller).collect::<Vec<_>>(), [ALICE.caller]);
}

#[test]
fn who_has_a_shared_process_ended_beside_others_is_apart_for_a_while() {
    let mut b = bench(2);
    b.share(1, ALICE);
    b.pass(500 * MS);
    b.share(2, BOB);
    b.pass(500 * MS);
    b.actions.clear();
    b.pass(SHARED_GRACE_NS - 1);
    assert!(b.scheduler.kept_apart(b.now).is_empty());
    b.pass(1);
    b.expect("kill 0");
    let kept = b.scheduler.kept_apart(b.now);
    assert!(kept.len() == 1 && kept[0].0.caller == ALICE.caller, "{kept:?}");
    assert_eq!(kept[0].1, Some(b.now + APART_NS));
}

#[test]
fn a_call_that_is_given_up_takes_no_shared_process_that_ends_it() {
    let policy = Policy { cancel_grace_ns: MS, ..Policy::default() };
    let mut b = Bench::under(Shape { shared_workers: 1, ..Shape::new(2, 1) }, policy);
    let id = b.share(1, ALICE);
    b.scheduler.handle(b.now, Cancel { id }, &mut b.actions);
    b.pass(LIMIT + SHARED_GRACE_NS - 1);
    b.expect("1 on 0.0");
    assert_eq!(b.outlast(W0, id), Outlast::Fails, "it does not begin again");
    b.finish(W0, id);
    b.share(2, BOB);
    b.expect("2 on 0.0");
}

#[test]
fn a_call_goes_to_the_lane_that_knows_its_function_before_one_that_had_hardly_less() {
    for (had_ns, order) in [(0, ["6 on 0.0", "5 on 0.1"]), (100 * MS, ["5 on 0.0", "6 on 0.1"])] {
        let mut b = bench(2);
        let first = [b.share_of(1, 1, 1), b.share_of(2, 2, 2)];
        b.expect("1 on 0.0, 2 on 0.1");
        // The fourth tenant had so much more than the third.
        let [third, fourth] = [b.share_of(3, 3, 2), b.share_of(4, 4, 1)];
        first.into_iter().for_each(|call| b.finish(W0, call));
        b.expect("4 on 0.0, 3 on 0.1");
        let seventh = b.share_of(7, 7, 1);
        b.now += had_ns;
        b.finish(W0, fourth);
        b.expect("7 on 0.0");
        b.share_of(5, 5, 2);
        b.share_of(6, 4, 1);
        b.finish(W0, seventh);
        b.expect(order[0]);
        b.finish(W0, third);
        b.expect(order[1]);
    }
}
