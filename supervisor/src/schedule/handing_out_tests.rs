//! Who gets a worker, or may go on, once another event made room: nobody who could start waits for a later one.

use super::*;

const W2: WorkerId = WorkerId::new(2);
const W3: WorkerId = WorkerId::new(3);

/// No process is there yet, and no caller is punished.
fn empty(shape: Shape) -> Bench {
    Bench::empty(shape, Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() })
}

#[test]
fn a_further_worker_is_made_once_another_process_started() {
    let mut b = empty(Shape { starting: 1, ..Shape::new(3, 1) });
    b.ready(W0);
    b.submit(1, ALICE);
    b.submit(2, BOB);
    b.submit(3, ALICE);
    b.expect_all("1 on 0.0, bring 1");
    b.ready(W1);
    b.expect_all("2 on 1.0, bring 2");
}

#[test]
fn each_domain_that_wants_a_further_worker_gets_one() {
    let mut b = empty(Shape::new(4, 1));
    b.ready(W0);
    b.submit(1, ALICE);
    b.submit(2, BOB);
    b.ready(W1);
    b.expect_all("1 on 0.0, bring 1, 2 on 1.0");
    b.submit(3, ALICE);
    b.submit(4, BOB);
    b.expect_all("bring 2");
    b.ready(W2);
    b.expect_all("3 on 2.0, bring 3");
    b.ready(W3);
    b.expect_all("4 on 3.0");
}

#[test]
fn further_workers_are_shared_out() {
    let mut b = empty(Shape::new(8, 1));
    b.ready(W0);
    b.submit(1, ALICE);
    b.submit(2, BOB);
    (10..30).for_each(|call| {
        b.submit(call, ALICE);
    });
    b.ready(W1);
    (30..50).for_each(|call| {
        b.submit(call, BOB);
    });
    loop {
        let told = b.actions.drain(..);
        let brought = told.filter_map(|action| match action {
            Action::Bring { worker } if worker != W1 => Some(worker),
            _ => None,
        });
        let brought: Vec<WorkerId> = brought.collect();
        if brought.is_empty() {
            break;
        }
        brought.into_iter().for_each(|worker| b.ready(worker));
    }
    let workers_of = |domain| b.scheduler.workers.iter().filter(|(_, w)| w.served() == Some(domain)).count();
    assert_eq!([ALICE, BOB].map(workers_of), [4, 4]);
}

#[test]
fn who_had_less_goes_on_beside_a_call_for_the_device() {
    let shape = Shape { quantum_us: Some(5000), workers_per_domain: 1, ..Shape::new(2, 2) };
    let mut b = Bench::of(shape);
    let first = b.submit(1, ALICE);
    b.submit(2, ALICE);
    let bob = b.submit(3, BOB);
    b.submit_sized(4, ALICE, WHOLE);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 0.1, 3 on 1.0, revoke 0 turn 1");
    b.submit(5, BOB);
    b.now = 5 * MS;
    b.yields(W0, 1, 1, 0);
    b.now = 20 * MS;
    b.ran(W1, bob, 10);
    b.yields(W1, 2, 15, 1);
    b.finish(W1, bob);
    b.expect("grant 1 turn 2, revoke 1 turn 2, grant 0 turn 3");
    b.now = 120 * MS;
    b.ran(W0, first, 100);
    b.finish(W0, first);
    b.expect("");
    for _ in 0..6 {
        let at = b.scheduler.next_deadline_ns().unwrap().min(b.now + 100 * MS);
        b.now = b.now.max(at);
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    }
    assert!(b.now < 500 * MS, "{}", b.now / MS);
    assert!(b.told(|_| true).starts_with("5 on 1.0"));
}

#[test]
fn others_start_when_a_careful_caller_asks_for_the_device_no_more() {
    let policy = Policy { quarantine_after: 0, fault_budget: 2, ..Policy::default() };
    let mut b = Bench::under(Shape { workers_per_domain: 1, ..Shape::new(2, 1) }, policy);
    let long = |b: &mut Bench, call: u64, domain: Domain, memory_bytes: u64| {
        let spec = CallSpec {
            deadline_ns: b.now + 900_000 * MS,
            memory_bytes,
            domain,
            function: FunctionId::new(call),
            ..TERMS
        };
        b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap()
    };
    long(&mut b, 99, ALICE, 0);
    b.dies(W0);
    b.dies(W1);
    b.ready(W1);
    let first = long(&mut b, 10, BOB, 0);
    b.finish(W1, first);
    assert_eq!(b.scheduler.budgets(b.now)[0].left, 0);
    long(&mut b, 1, ALICE, 0);
    long(&mut b, 2, ALICE, WHOLE);
    b.now = 30_000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    long(&mut b, 3, BOB, 0);
    b.actions.clear();
    b.ready(W0);
    b.expect("1 on 0.0, 3 on 1.0");
}
