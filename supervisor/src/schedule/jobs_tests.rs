//! Calls that run together in one lane.

use super::*;
use crate::schedule::Batch;

/// One worker of one lane.
fn bench() -> Bench {
    Bench::of(Shape { memory_bytes: 1000, ..Shape::new(1, 1) })
}

impl Bench {
    /// A call that brings so many items, of which a job may have five, with so much memory for each.
    fn items(&mut self, call: u64, items: u64, item_bytes: u64) -> CallId {
        self.patient(call, (items, item_bytes), 0, 1000 * MS)
    }

    /// The same of a call that waits so long for others, and may take so long in all.
    fn patient(
        &mut self,
        call: u64,
        (items, item_bytes): (u64, u64),
        delay_ns: u64,
        patience_ns: u64,
    ) -> CallId {
        let batch = Some(Batch { items, most: 5, delay_ns, regions: 1, staged_bytes: 8 });
        let deadline_ns = self.now + patience_ns;
        let spec = CallSpec { batch, deadline_ns, memory_bytes: items * item_bytes, ..TERMS };
        self.scheduler.handle(self.now, Submit { call, spec, limits: LIMITS }, &mut self.actions).unwrap()
    }

    fn falls_apart(&mut self, worker: WorkerId, id: CallId) -> bool {
        self.scheduler.handle(self.now, FellApart { worker, id }, &mut self.actions)
    }
}

#[test]
fn what_waits_when_a_lane_is_free_runs_together_up_to_the_most() {
    let mut b = bench();
    // Calls are alike if both are even or both are odd.
    let first = b.items(2, 1, 0);
    [4, 6, 8].into_iter().for_each(|call| _ = b.items(call, 2, 0));
    let odd = b.items(9, 1, 0);
    b.items(11, 1, 0);
    b.expect("2 on 0.0");
    b.finish(W0, first);
    b.expect("4+6 on 0.0");
    let ids = b.running();
    b.finish(W0, ids[0]);
    b.expect_all("");
    b.finish(W0, ids[1]);
    b.expect("8 on 0.0");
    let ids = b.running();
    b.finish(W0, ids[0]);
    b.expect("9+11 on 0.0");
    assert_eq!(b.running()[0], odd);
}

#[test]
fn a_worker_answers_a_job_by_its_first_call() {
    let mut b = bench();
    let first = b.items(2, 1, 0);
    [4, 6].into_iter().for_each(|call| _ = b.items(call, 1, 0));
    b.finish(W0, first);
    let ids = b.running();
    let (job, lane) = b.scheduler.running_job(W0, ids[0]).unwrap();
    assert_eq!((job, lane), (Job { id: ids[0], call: 4, others: vec![(ids[1], 6)] }, 0));
    assert!(b.scheduler.running_job(W0, ids[1]).is_none() && b.scheduler.running_job(W0, first).is_none());
}

#[test]
fn a_job_has_the_memory_of_all_its_calls_or_fewer_calls() {
    for (memory_bytes, job) in [(1000, "4+6+8+10 on 0.0"), (620, "4+6+8 on 0.0"), (300, "4 on 0.0")] {
        let mut b = Bench::of(Shape { memory_bytes, ..Shape::new(1, 1) });
        let first = b.items(2, 1, 100);
        [4, 6, 8, 10].into_iter().for_each(|call| _ = b.items(call, 1, 100));
        b.expect("2 on 0.0");
        b.finish(W0, first);
        b.expect(job);
        let wanted = 100 * b.running().len() as u64;
        assert!(b.scheduler.memory().lease_bytes >= wanted, "{job}");
    }
}

#[test]
fn calls_of_a_job_that_failed_run_again_each_by_itself() {
    let mut b = bench();
    let first = b.items(2, 1, 0);
    [4, 6, 8].into_iter().for_each(|call| _ = b.items(call, 1, 0));
    b.expect("2 on 0.0");
    b.finish(W0, first);
    b.expect("4+6+8 on 0.0");
    let [one, given_up, other] = b.running()[..] else { panic!() };
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: given_up }, &mut b.actions), None);
    assert!(b.falls_apart(W0, one) && !b.falls_apart(W0, given_up) && b.falls_apart(W0, other));
    b.expect_all("");
    b.finish(W0, given_up);
    b.expect("4 on 0.0");
    assert!(!b.falls_apart(W0, one), "it was by itself");
    b.finish(W0, one);
    b.expect("8 on 0.0");
    // So do those that come soon after, and no longer.
    for (call, then) in [(10, "12 on 0.0, 14 on 0.0"), (16, "18+20 on 0.0")] {
        [call, call + 2, call + 4].into_iter().for_each(|call| _ = b.items(call, 1, 0));
        while let Some(id) = b.running().first().copied() {
            b.finish(W0, id);
        }
        assert!(b.told(|_| true).ends_with(then), "{then}");
        b.now += 10_000 * MS;
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    }
}

#[test]
fn a_job_that_keeps_a_shared_worker_is_paid_for_by_its_caller() {
    let policy = Policy { quarantine_after: 0, fault_budget: 9, ..Policy::default() };
    let mut b = Bench::under(Shape { shared_workers: 1, ..Shape::new(2, 1) }, policy);
    let batch = Some(Batch { items: 1, most: 5, delay_ns: 0, regions: 1, staged_bytes: 8 });
    let spec = CallSpec { batch, deadline_ns: 1000 * MS, sharing: Sharing::May, ..TERMS };
    let submit = |b: &mut Bench, call| {
        b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap()
    };
    let first = submit(&mut b, 2);
    submit(&mut b, 4);
    submit(&mut b, 6);
    b.finish(W0, first);
    b.expect("2 on 0.0, 4+6 on 0.0");
    for _ in 0..2 {
        b.now += 2000 * MS;
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    }
    assert!(b.told(|_| true).contains("kill 0"));
    let budgets = b.scheduler.budgets.list(b.now);
    assert_eq!(budgets.iter().map(|budget| budget.caller).collect::<Vec<_>>(), [ALICE.caller]);
}

#[test]
fn a_call_of_a_job_that_is_given_up_changes_nothing_for_the_others() {
    let policy =
        Policy { quarantine_after: 0, fault_budget: 0, cancel_grace_ns: 100 * MS, ..Policy::default() };
    let mut b = Bench::under(Shape::new(1, 1), policy);
    let first = b.items(2, 1, 0);
    [4, 6].into_iter().for_each(|call| _ = b.items(call, 1, 0));
    b.finish(W0, first);
    b.expect("2 on 0.0, 4+6 on 0.0");
    let [one, other] = b.running()[..] else { panic!() };
    b.scheduler.handle(b.now, Cancel { id: one }, &mut b.actions);
    b.now += 500 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect_all("");
    // Nobody wants it any more.
    b.scheduler.handle(b.now, Cancel { id: other }, &mut b.actions);
    for _ in 0..2 {
        b.now += 200 * MS;
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    }
    b.expect_all("kill 0");
}

#[test]
fn the_time_of_a_job_is_charged_once() {
    let mut b = bench();
    let charged = |b: &Bench| b.scheduler.device_time_of(ALICE.caller);
    let first = b.items(2, 1, 0);
    [4, 6].into_iter().for_each(|call| _ = b.items(call, 1, 0));
    b.finish(W0, first);
    b.expect("2 on 0.0, 4+6 on 0.0");
    b.now += 10 * MS;
    for id in b.running() {
        b.finish(W0, id);
    }
    assert_eq!(charged(&b), 10 * MS);
    let first = b.items(8, 1, 0);
    [10, 12].into_iter().for_each(|call| _ = b.items(call, 1, 0));
    b.finish(W0, first);
    b.now += 10 * MS;
    assert!(b.dies(W0).is_empty());
    assert_eq!(charged(&b), 20 * MS, "also where their process ended");
}

#[test]
fn calls_wait_for_company_until_one_has_waited_enough_or_a_job_is_full() {
    let mut b = bench();
    b.patient(2, (1, 0), 3 * MS, 1000 * MS);
    b.now += MS;
    b.patient(4, (1, 0), 3 * MS, 1000 * MS);
    b.expect_all("");
    assert_eq!(b.scheduler.next_deadline_ns(), Some(b.now + 2 * MS), "the first one's time is next");
    b.now += 2 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("2+4 on 0.0");
    assert_eq!(b.scheduler.waited_for_company_ns(), 5 * MS);
    let ids = b.running();
    ids.into_iter().for_each(|id| b.finish(W0, id));
    // Full before the time is over; what is too much waits in the queue.
    [(6, 3), (8, 2), (10, 5)]
        .into_iter()
        .for_each(|(call, items)| _ = b.patient(call, (items, 0), 3 * MS, 1000 * MS));
    b.expect("6+8 on 0.0");
    let ids = b.running();
    ids.into_iter().for_each(|id| b.finish(W0, id));
    b.expect("10 on 0.0");
}

#[test]
fn calls_that_waited_for_company_start_each_where_it_may() {
    let mut b = Bench::of(Shape { shared_workers: 1, memory_bytes: 1000, ..Shape::new(2, 1) });
    let mut submit = |call, domain, delay_ns, sharing| {
        let batch = Some(Batch { items: 1, most: 5, delay_ns, regions: 1, staged_bytes: 8 });
        let spec = CallSpec { domain, batch, deadline_ns: 1000 * MS, sharing, ..TERMS };
        b.scheduler.handle(0, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap()
    };
    submit(1, BOB, 0, Sharing::May);
    submit(2, ALICE, 5 * MS, Sharing::May);
    submit(4, ALICE, 5 * MS, Sharing::Never);
    b.expect("1 on 0.0");
    b.now = 5 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    // The shared worker has no lane, and the other one is for the second call alone.
    b.expect("4 on 1.0");
}

#[test]
fn a_call_waits_for_company_as_long_as_its_deadline_and_its_client_let() {
    let mut b = bench();
    // Of what is left of the time no more than half.
    let first = b.patient(2, (1, 0), 3 * MS, 5 * MS);
    b.expect("2 on 0.0");
    b.finish(W0, first);
    let [second, third] = [4, 6].map(|call| b.patient(call, (1, 0), 3 * MS, 6 * MS));
    assert!(b.scheduler.handle(b.now, Cancel { id: second }, &mut b.actions).is_some(), "it is gone at once");
    b.expect_all("");
    b.now += 3 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("6 on 0.0");
    b.finish(W0, third);
    b.expect_all("");
    assert_eq!(b.scheduler.queued(), 0);
}
