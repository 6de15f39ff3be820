//! Small cases of what follows for whose calls fail.

use super::*;
use crate::schedule::quarantine::Refusal;

const S: u64 = 1000 * MS;

fn bench(workers: usize, lanes: u32, quarantine_after: u32, fault_budget: u32) -> Bench {
    let policy = Policy { quarantine_after, fault_budget, ..Policy::default() };
    Bench::under(Shape::new(workers, lanes), policy)
}

impl Bench {
    fn submit_to(&mut self, function: u64, call: u64, domain: Domain) -> Result<CallId, NotNow> {
        let spec = CallSpec {
            domain,
            function: FunctionId::new(function),
            bytes: 1,
            deadline_ns: self.now + 300 * S,
            ..TERMS
        };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions)
    }

    fn faults(&mut self, worker: WorkerId, id: CallId) {
        self.scheduler
            .handle(self.now, Finished { worker, id, verdict: Verdict::Fault }, &mut self.actions)
            .unwrap();
    }

    /// The process ends and a fresh one comes, so often.
    fn dies_often(&mut self, worker: WorkerId, times: usize) {
        for _ in 0..times {
            self.dies(worker);
            self.ready(worker);
        }
        self.actions.clear();
    }

    fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.scheduler.handle(self.now, Tick {}, &mut self.actions);
    }
}

fn refused(failures: u32, retry_ns: u64) -> Result<CallId, NotNow> {
    Err(NotNow::Quarantined(Refusal { failures, retry_ns }))
}

#[test]
fn a_function_that_keeps_failing_is_refused_then_probed_alone() {
    let mut b = bench(1, 2, 2, 0);
    for call in 1..=2 {
        let id = b.submit_to(7, call, ALICE).unwrap();
        b.faults(W0, id);
    }
    b.actions.clear();
    assert_eq!(b.submit_to(7, 3, ALICE), refused(2, S));
    // Another function, and the same for another caller.
    let other = b.submit_to(8, 4, ALICE).unwrap();
    b.expect("4 on 0.0");
    b.wait(S);
    let probe = b.submit_to(7, 5, ALICE).unwrap();
    assert_eq!(b.submit_to(7, 6, ALICE), refused(2, S));
    let last = b.submit_to(8, 7, ALICE).unwrap();
    b.expect("");
    b.finish(W0, other);
    b.expect("5 on 0.0 alone");
    b.faults(W0, probe);
    assert_eq!(b.submit_to(7, 8, ALICE), refused(3, 2 * S));
    b.wait(2 * S);
    b.actions.clear();
    let probe = b.submit_to(7, 9, ALICE).unwrap();
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: probe }, &mut b.actions), Some(9));
    let probe = b.submit_to(7, 10, ALICE).unwrap();
    b.expect("");
    b.finish(W0, last);
    b.expect("10 on 0.0 alone");
    b.finish(W0, probe);
    assert!(b.submit_to(7, 11, ALICE).is_ok() && b.submit_to(7, 12, ALICE).is_ok());
    b.expect("11 on 0.0, 12 on 0.1");
}

#[test]
fn quarantine_refuses_waiting_calls_except_suspects() {
    let mut b = bench(1, 1, 1, 0);
    let first = b.submit_to(7, 1, ALICE).unwrap();
    let ids: Vec<_> = (2..=4).map(|call| b.submit_to(7, call, ALICE).unwrap()).collect();
    b.submit_to(8, 5, ALICE).unwrap();
    b.actions.clear();
    b.dies(W0);
    b.ready(W0);
    b.expect("1 on 0.0 alone");
    b.faults(W0, first);
    b.expect("2 refused for 1 s, 3 refused for 1 s, 4 refused for 1 s, 5 on 0.0");
    assert!(b.scheduler.handle(b.now, Cancel { id: ids[0] }, &mut b.actions).is_none());
    assert_eq!(b.scheduler.quarantined(b.now).len(), 1);
    b.scheduler.handle(b.now, FunctionGone { function: FunctionId::new(7) }, &mut b.actions);
    assert!(b.submit_to(7, 7, ALICE).is_ok());
}

#[test]
fn only_a_call_that_ran_alone_is_blamed() {
    let mut b = bench(1, 2, 1, 0);
    b.submit_to(7, 1, ALICE).unwrap();
    b.submit_to(8, 2, ALICE).unwrap();
    b.dies(W0);
    b.ready(W0);
    b.expect("1 on 0.0, 2 on 0.1, 1 on 0.0 alone");
    assert!(b.submit_to(7, 3, ALICE).is_ok(), "a suspect is not guilty");
    assert_eq!(b.dies(W0), [(1, Ended::Guilty)]);
    b.expect("3 refused for 1 s");
    b.ready(W0);
    b.expect("2 on 0.0 alone");
    // Overdue beside another one: who held the other up is not known.
    let mut b = bench(1, 2, 1, 0);
    b.submit(1, ALICE);
    b.submit_to(8, 2, ALICE).unwrap();
    b.wait(S);
    b.wait(DEADLINE_GRACE_NS);
    b.expect("1 on 0.0, 2 on 0.1, kill 0");
    assert!(b.submit_to(1, 3, ALICE).is_ok());
    // Overdue alone.
    let mut b = bench(1, 1, 1, 0);
    b.submit(1, ALICE);
    b.wait(S);
    b.wait(DEADLINE_GRACE_NS);
    b.expect("1 on 0.0, kill 0");
    assert_eq!(b.submit_to(1, 2, ALICE), refused(1, S));
}

#[test]
fn only_the_caller_that_spent_its_budget_waits() {
    let mut b = bench(1, 2, 0, 2);
    b.submit_to(1, 1, ALICE).unwrap();
    b.dies_often(W0, 2);
    let ids = [2, 3, 4, 5].map(|call| b.submit_to(1, call, ALICE).unwrap());
    b.expect("");
    let others = b.submit_to(1, 6, BOB).unwrap();
    b.expect("6 on 0.0");
    b.finish(W0, others);
    assert_eq!(b.scheduler.budgets(b.now)[0].waits_ns, 30 * S);
    assert_eq!(b.scheduler.next_deadline_ns(), Some(30 * S));
    b.wait(30 * S - 1);
    b.expect("");
    // A part of the budget is back. The idle worker of another caller makes room as always.
    b.wait(1);
    b.expect("replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("2 on 0.0");
    b.scheduler
        .handle(b.now, Finished { worker: W0, id: ids[0], verdict: Verdict::Neither }, &mut b.actions)
        .unwrap();
    b.expect("3 on 0.0");
    b.finish(W0, ids[1]);
    b.expect("4 on 0.0, 5 on 0.1");
}

#[test]
fn to_run_again_waits_for_the_budget_too() {
    let mut b = bench(2, 1, 0, 1);
    let first = b.submit_to(1, 1, ALICE).unwrap();
    b.submit_to(1, 2, ALICE).unwrap();
    b.expect("1 on 0.0, 2 on 1.0");
    assert!(b.dies(W1).is_empty());
    b.ready(W1);
    // Nor does what its caller has in other workers bring anything: that began before.
    b.finish(W0, first);
    b.expect("");
    b.wait(60 * S);
    b.expect("2 on 0.0 alone");
}

#[test]
fn a_spent_budget_is_named_when_a_call_expires() {
    let mut b = bench(1, 1, 0, 1);
    b.submit(1, ALICE);
    b.dies_often(W0, 1);
    b.wait(S);
    b.expect("1 expired, budget in 59 s");
    b.submit(2, BOB);
    b.submit(3, BOB);
    b.wait(S);
    b.expect("2 on 0.0, 3 expired");
}

#[test]
fn calls_do_not_wait_behind_a_caller_that_spent_its_budget() {
    let mut b = bench(2, 1, 0, 1);
    let running = b.submit_to(1, 1, BOB).unwrap();
    b.submit_to(1, 2, ALICE).unwrap();
    let spec = CallSpec {
        domain: ALICE,
        function: FUNCTION,
        bytes: 1,
        deadline_ns: 300 * S,
        memory_bytes: WHOLE,
        ..TERMS
    };
    let whole = b.scheduler.handle(0, Submit { call: 3, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.submit_to(1, 4, BOB).unwrap();
    b.expect("1 on 0.0, 2 on 1.0");
    b.dies(W1);
    b.finish(W0, running);
    b.expect("4 on 0.0");
    b.ready(W1);
    // One that comes now waits aside at once.
    let second = b.scheduler.handle(0, Submit { call: 5, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.submit_to(1, 6, BOB).unwrap();
    b.expect("6 on 1.0");
    b.dies(W0);
    b.dies(W1);
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: second }, &mut b.actions), Some(5));
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: whole }, &mut b.actions), Some(3));
    assert_eq!(b.scheduler.queued(), 3);
}

#[test]
fn a_whole_device_call_comes_back_from_aside() {
    let mut b = bench(1, 1, 0, 1);
    b.submit_to(1, 1, ALICE).unwrap();
    let spec = CallSpec {
        domain: ALICE,
        function: FUNCTION,
        bytes: 1,
        deadline_ns: 300 * S,
        memory_bytes: WHOLE,
        ..TERMS
    };
    b.scheduler.handle(0, Submit { call: 2, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.dies_often(W0, 1);
    b.wait(60 * S);
    b.expect("1 on 0.0 alone");
    b.dies(W0);
    b.ready(W0);
    b.wait(60 * S);
    b.expect("2 on 0.0");
}

#[test]
fn a_call_that_is_given_up_keeps_its_lane_for_a_moment_only() {
    let mut b = bench(1, 2, 1, 5);
    let spins = b.submit_to(7, 1, ALICE).unwrap();
    b.submit_to(7, 2, ALICE).unwrap();
    b.expect("1 on 0.0, 2 on 0.1");
    b.now = S;
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: spins }, &mut b.actions), None);
    // To say it again buys no time.
    b.now = S + S / 2;
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: spins }, &mut b.actions), None);
    b.wait(S / 2);
    b.expect("");
    b.wait(DEADLINE_GRACE_NS);
    b.expect("kill 0");
    assert!(!b.dies(W0).is_empty());
    b.ready(W0);
    b.expect("2 on 0.0 alone");
    // It cost its caller, and nothing is known about its function.
    assert_eq!(b.scheduler.budgets(b.now)[0].left, 4);
    assert!(b.scheduler.quarantined(b.now).is_empty());
    // A deadline before that counts.
    let mut b = bench(1, 1, 0, 0);
    let spins = b.submit(1, ALICE);
    b.now = S / 2;
    b.scheduler.handle(b.now, Cancel { id: spins }, &mut b.actions);
    b.wait(S / 2);
    b.wait(DEADLINE_GRACE_NS);
    b.expect("1 on 0.0, kill 0");
}

#[test]
fn where_faults_are_shared_only_the_guilty_pays() {
    let shape = Shape { shared_faults: true, ..Shape::new(2, 1) };
    let mut b = Bench::under(shape, Policy::default());
    b.submit_to(1, 1, ALICE).unwrap();
    let innocent = b.submit_to(1, 2, BOB).unwrap();
    WorkerId::first(2).for_each(|worker| assert!(b.dies(worker).is_empty()));
    WorkerId::first(2).for_each(|worker| b.ready(worker));
    b.expect("1 on 0.0, 2 on 1.0, 1 on 0.0 alone");
    assert_eq!(b.dies(W0), [(1, Ended::Guilty)]);
    b.expect("2 on 1.0 alone");
    b.finish(W1, innocent);
    let budgets = b.scheduler.budgets(b.now);
    assert_eq!((budgets.len(), budgets[0].caller, budgets[0].left), (1, TenantId::new(1), 4));
}

#[test]
fn where_faults_are_shared_a_deadline_is_no_way_out() {
    let shape = Shape { shared_faults: true, ..Shape::new(2, 1) };
    let mut b = Bench::under(shape, Policy::default());
    let fails_late = |b: &mut Bench, call| {
        b.now += 1;
        let deadline_ns = b.now + S;
        let spec = CallSpec { domain: ALICE, function: FunctionId::new(7), bytes: 1, deadline_ns, ..TERMS };
        b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap();
        b.now += S;
        let ended = b.dies(W0);
        b.ready(W0);
        assert_eq!(ended, [(call, Ended::Deadline)]);
    };
    // Once that may have been anybody's doing.
    fails_late(&mut b, 1);
    b.expect("1 on 0.0");
    assert!(b.scheduler.budgets(b.now).is_empty());
    // Then it runs alone, and it was.
    fails_late(&mut b, 2);
    b.expect("2 on 0.0 alone");
    assert_eq!(b.scheduler.budgets(b.now)[0].left, 4);
    // Other callers have nothing to do with it, and another function of its own shows nothing.
    for (function, call, ends) in [(8, 3, "3 on 0.0 alone"), (7, 4, "4 on 0.0 alone"), (7, 5, "5 on 0.0")] {
        let id = b.submit_to(function, call, ALICE).unwrap();
        b.expect(ends);
        b.finish(W0, id);
    }
    let id = b.submit_to(7, 6, BOB).unwrap();
    b.expect("6 on 1.0");
    b.finish(W1, id);
}

#[test]
fn a_process_that_is_gone_is_not_handed_on() {
    let shape = Shape { residency_ns: 0, ..Shape::new(2, 1) };
    let mut b = Bench::under(shape, Policy { quarantine_after: 0, fault_budget: 1, ..Policy::default() });
    let first = b.submit(1, ALICE);
    b.submit(2, BOB);
    b.finish(W0, first);
    b.submit_sized(3, ALICE, WHOLE);
    // Lanes run empty for it.
    b.submit(4, Domain { owner: TenantId::new(3), caller: TenantId::new(3) });
    b.expect("1 on 0.0, 2 on 1.0");
    // That spends the budget: 3 is put aside, and 4 does not wait for it any more.
    b.dies(W0);
    b.expect("");
    b.ready(W0);
    b.expect("4 on 0.0");
}

#[test]
fn a_suspect_stays_alone_although_its_worker_just_answered_another_call() {
    let shape = Shape { shared_faults: true, ..Shape::new(2, 1) };
    let mut b = Bench::under(shape, Policy { quarantine_after: 1, fault_budget: 0, ..Policy::default() });
    let first = b.submit_to(7, 1, ALICE).unwrap();
    let suspect = b.submit_to(8, 2, ALICE).unwrap();
    b.dies(W1);
    b.faults(W0, first);
    b.expect("1 on 0.0, 2 on 1.0, 2 on 0.0 alone");
    b.ready(W1);
    b.submit_to(9, 3, BOB).unwrap();
    b.expect("");
    b.finish(W0, suspect);
    b.expect("3 on 1.0");
}

#[test]
fn another_policy_counts_at_once() {
    let mut b = bench(1, 1, 1, 1);
    b.submit_to(7, 1, ALICE).unwrap();
    b.dies_often(W0, 1);
    b.submit_to(8, 2, ALICE).unwrap();
    let policy = Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() };
    b.scheduler.handle(b.now, SetPolicy { policy }, &mut b.actions);
    b.expect("1 on 0.0 alone");
    b.dies_often(W0, 1);
    assert!(b.submit_to(7, 3, ALICE).is_ok());
}

/// The process in worker 0 is ended from outside, and reaped: why its call does not run again, if so.
fn is_killed(b: &mut Bench, id: CallId) -> Option<(u64, Ended)> {
    b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
    let reaped = Reaped { worker: W0, generation: Generation::new(1), from_outside: true };
    b.scheduler.handle(b.now, reaped, &mut b.actions);
    let over = b.scheduler.handle(b.now, Buried { id, loss: Loss::EndedFromOutside }, &mut b.actions);
    b.ready(W0);
    over
}

#[test]
fn a_process_that_is_ended_from_outside_costs_its_caller_nothing() {
    let mut b = bench(1, 1, 1, 1);
    let id = b.submit_to(7, 1, ALICE).unwrap();
    for _ in 0..2 {
        assert_eq!(is_killed(&mut b, id), None);
        assert_eq!(b.scheduler.budgets(b.now), []);
    }
    b.expect("1 on 0.0, 1 on 0.0, 1 on 0.0");
    // It is given up then, and its function is not refused for it.
    assert_eq!(is_killed(&mut b, id), Some((1, Ended::Interrupted)));
    assert_eq!(b.scheduler.quarantined(b.now), []);
    let id = b.submit_to(7, 2, ALICE).unwrap();
    b.expect("2 on 0.0");
    // The control: a process that ends by itself costs its caller's budget, and a second one makes the call guilty.
    assert!(b.dies(W0).is_empty());
    assert_eq!(b.scheduler.budgets(b.now)[0].left, 0);
    b.ready(W0);
    b.wait(60 * S);
    b.expect("2 on 0.0 alone");
    // One that is ended from outside meanwhile says nothing.
    assert_eq!(is_killed(&mut b, id), None);
    b.expect("2 on 0.0 alone");
    assert_eq!(b.dies(W0), [(2, Ended::Guilty)]);
    assert_eq!(b.submit_to(7, 3, ALICE), refused(1, S));
}

#[test]
fn one_process_ends_under_a_careful_caller_at_a_time() {
    let mut b = bench(4, 1, 0, 2);
    let busy = |b: &Bench| b.scheduler.workers.busy().map(|(worker, _)| worker).next();
    b.submit_to(99, 99, ALICE).unwrap();
    for _ in 0..2 {
        let worker = busy(&b).unwrap();
        b.dies(worker);
        b.ready(worker);
    }
    assert_eq!(b.scheduler.budgets(b.now)[0].left, 0);
    (1..=8).for_each(|n| assert!(b.submit_to(n, n, ALICE).is_ok()));
    b.now = 30 * S;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    let mut ended = 0;
    while let Some(worker) = busy(&b) {
        b.scheduler.handle(b.now, Gone { worker }, &mut b.actions);
        ended += 1;
    }
    assert_eq!(ended, 1, "none of them is reaped");
}
