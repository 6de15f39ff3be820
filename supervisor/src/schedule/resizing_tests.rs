//! Small cases of a device that is set up otherwise while it serves.

use super::*;

fn domain(n: u32) -> Domain {
    Domain { owner: TenantId::new(n), caller: TenantId::new(n) }
}

/// A device of so many workers and lanes, with 100 bytes.
fn size(workers: usize, lanes: u32) -> Shape {
    Shape { workers_per_domain: 1, residency_ns: 0, memory_bytes: 100, ..Shape::new(workers, lanes) }
}

fn bench(workers: usize, lanes: u32) -> Bench {
    Bench::of(size(workers, lanes))
}

impl Bench {
    fn resize(&mut self, to: Shape) {
        self.scheduler.handle(self.now, Resize { to, remakes: false }, &mut self.actions);
    }

    /// A process that was told to leave does.
    fn leaves(&mut self, worker: WorkerId) {
        assert_eq!(self.dies(worker), []);
    }
}

#[test]
fn a_higher_ceiling_counts_at_once() {
    let mut b = bench(1, 1);
    b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.submit(3, domain(3));
    b.expect_all("1 on 0.0");
    b.resize(size(2, 1));
    b.expect_all("bring 1");
    b.ready(W1);
    b.expect_all("2 on 1.0");
}

#[test]
fn residents_beyond_a_lower_ceiling_leave_once_they_are_idle() {
    let mut b = bench(3, 1);
    let calls: Vec<_> = (1..=3).map(|n| b.submit(n, domain(n as u32))).collect();
    b.now = MS;
    b.finish(W1, calls[1]);
    b.expect_all("1 on 0.0, 2 on 1.0, 3 on 2.0");
    b.resize(size(1, 1));
    // The idle one at once; of those that are busy one takes no more calls.
    b.expect_all("replace 1");
    b.leaves(W1);
    b.submit(11, domain(1));
    b.now = 2 * MS;
    b.finish(W0, calls[0]);
    b.expect_all("replace 0");
    b.leaves(W0);
    b.expect_all("");
    // The domain that lost its worker waits for another one, like any that has none.
    b.finish(WorkerId::new(2), calls[2]);
    b.expect_all("replace 2");
    b.leaves(WorkerId::new(2));
    b.expect_all("bring 2");
    b.ready(WorkerId::new(2));
    b.expect_all("11 on 2.0");
    assert_eq!(b.scheduler.resident(W0).last_gone, Some(WhyGone::SettingsChanged));
}

#[test]
fn processes_with_other_lanes_are_replaced_one_after_the_other() {
    let mut b = bench(2, 1);
    let first = b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.expect_all("1 on 0.0, 2 on 1.0");
    b.resize(size(2, 2));
    // Of two that are busy the first takes no more calls.
    b.submit(3, domain(2));
    b.submit(4, domain(1));
    b.finish(W0, first);
    b.expect_all("replace 0");
    b.leaves(W0);
    b.expect_all("bring 0");
    b.ready(W0);
    b.expect_all("4 on 0.0");
    b.submit(5, domain(1));
    b.expect_all("5 on 0.1");
}

#[test]
fn less_memory_is_taken_back_from_lanes_without_calls_first() {
    let mut b = bench(2, 1);
    let first = b.submit_sized(1, domain(1), 40);
    b.submit_sized(2, domain(2), 40);
    b.now = MS;
    b.finish(W0, first);
    b.expect_all("1 on 0.0, 2 on 1.0");
    b.resize(Shape { memory_bytes: 60, ..size(2, 1) });
    assert_eq!(b.scheduler.memory().free_bytes, 0);
    b.expect("0 gives 1");
    // Until it is there, nothing is lent.
    b.submit_sized(3, domain(1), 10);
    b.expect("");
    b.gave_back(W0, 0);
    b.expect("3 on 0.0");
    assert_eq!(b.scheduler.largest_bytes(), 40);
}

#[test]
fn more_memory_counts_at_once() {
    let mut b = bench(2, 1);
    b.contexts(0, 60);
    b.submit_sized(1, domain(1), 30);
    b.submit_sized(2, domain(2), 30);
    b.expect("1 on 0.0");
    b.resize(Shape { memory_bytes: 140, ..size(2, 1) });
    b.expect("2 on 1.0");
}

#[test]
fn a_tenants_calls_that_wait_have_a_limit_of_their_own() {
    let mut b = bench(1, 1);
    let limits = Limits { own_calls: 2, own_bytes: 10, ..LIMITS };
    let submit = |b: &mut Bench, call, domain, bytes| {
        let submit = Submit { call, spec: CallSpec { domain, bytes, ..TERMS }, limits };
        b.scheduler.handle(0, submit, &mut b.actions)
    };
    let first = submit(&mut b, 1, ALICE, 100).unwrap();
    submit(&mut b, 2, ALICE, 4).unwrap();
    assert_eq!(submit(&mut b, 3, ALICE, 7), Err(NotNow::OwnBytes(4)));
    submit(&mut b, 3, ALICE, 6).unwrap();
    assert_eq!(submit(&mut b, 4, ALICE, 0), Err(NotNow::OwnCalls(2)));
    assert_eq!(b.scheduler.waiting_of(ALICE.caller), (2, 10));
    b.finish(W0, first);
    assert_eq!(b.scheduler.waiting_of(ALICE.caller), (1, 6));
    assert!(submit(&mut b, 5, ALICE, 4).is_ok());
    assert!(submit(&mut b, 6, BOB, 10).is_ok(), "another tenant's");
}

#[test]
fn calls_that_wait_go_elsewhere_with_what_is_known_of_them() {
    let mut b = bench(1, 1);
    b.submit(1, ALICE);
    b.submit(2, ALICE);
    assert_eq!(b.dies(W0), []);
    // The one that ran is a suspect.
    let waiting: Vec<_> = b.scheduler.waiting().into_iter().map(|(id, call)| (id, *call)).collect();
    assert_eq!(waiting.iter().map(|(_, call)| *call).collect::<Vec<_>>(), [1, 2]);
    let mut other = bench(1, 4);
    for (id, _) in waiting {
        let withdrawn = b.scheduler.handle(0, Withdraw { id }, &mut b.actions).unwrap();
        let adopt = Adopt { call: withdrawn.call, spec: TERMS, attempts: withdrawn.attempts };
        other.scheduler.handle(0, adopt, &mut other.actions).unwrap();
        assert_eq!(b.scheduler.handle(0, Withdraw { id }, &mut b.actions), None, "once");
    }
    assert_eq!((b.scheduler.queued(), b.scheduler.running()), (0, 0));
    other.expect("1 on 0.0 alone");
    assert_eq!(other.dies(W0), [(1, Ended::Guilty)]);
}

#[test]
fn turns_stay_where_one_worker_says_no_quantum() {
    let mut b = Bench::of(Shape { quantum_us: Some(5000), ..size(2, 1) });
    b.resize(size(1, 1));
    assert_eq!(b.scheduler.shape.quantum_us, Some(5000));
    b.resize(Shape { quantum_us: Some(2000), ..size(2, 1) });
    assert_eq!(b.scheduler.shape.quantum_us, Some(2000));
    // Where no turns are taken, none begin.
    let mut b = bench(2, 1);
    b.resize(Shape { quantum_us: Some(5000), ..size(2, 1) });
    assert_eq!(b.scheduler.shape.quantum_us, None);
}
