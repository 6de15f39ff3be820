//! A device that several tenants want: overruns, deadlines, shares, as the scheduler puts them together.

use super::*;
use crate::schedule::TenantShare;
use crate::schedule::device_time::Kind;

const S: u64 = 1000 * MS;
const CAROL: Domain = Domain { owner: TenantId::new(3), caller: TenantId::new(3) };

fn by_turns(workers: usize, lanes: u32) -> Shape {
    Shape { quantum_us: Some(5000), ..Shape::new(workers, lanes) }
}

fn submit_due(b: &mut Bench, call: u64, domain: Domain, deadline_ns: u64) -> Result<CallId, NotNow> {
    let spec = CallSpec { domain, deadline_ns, ..TERMS };
    b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions)
}

/// Lets time pass, with a look whenever one is due.
fn wait_until(b: &mut Bench, until_ns: u64) {
    while let Some(at_ns) = b.scheduler.next_deadline_ns().filter(|at_ns| *at_ns <= until_ns) {
        b.now = b.now.max(at_ns);
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    }
    b.now = until_ns;
}

#[test]
fn a_call_in_the_way_of_others_is_ended_after_its_limit() {
    let mut b = Bench::of(by_turns(2, 1));
    let endless = submit_due(&mut b, 1, ALICE, u64::MAX).unwrap();
    wait_until(&mut b, 100 * S);
    b.expect("1 on 0.0, grant 0 turn 1");
    submit_due(&mut b, 2, BOB, u64::MAX).unwrap();
    // Others are granted after a few quanta; the time before they came does not count.
    wait_until(&mut b, 101 * S);
    b.expect("2 on 1.0, revoke 0 turn 1, grant 1 turn 2");
    wait_until(&mut b, 102 * S + 51 * MS);
    b.expect("");
    // Both are in each other's way, and each had half of the chip since it could run.
    wait_until(&mut b, 104 * S + 101 * MS);
    b.expect("kill 0, kill 1");
    let lost = b.dies(W0);
    assert_eq!(lost, [(1, Ended::Overran)]);
    assert_eq!(b.scheduler.running_call(W0, endless), None);
    assert!(b.scheduler.device_time_of(ALICE.caller) >= 102 * S, "all the time that it had");
}

#[test]
fn calls_that_are_long_for_each_others_sake_are_not_ended() {
    let mut b = Bench::of(by_turns(4, 1));
    let tenants = [1, 2, 3, 4].map(TenantId::new).map(|tenant| Domain { owner: tenant, caller: tenant });
    let workers = [0, 1, 2, 3].map(WorkerId::new);
    let mut calls = tenants.map(|tenant| submit_due(&mut b, 1, tenant, u64::MAX).unwrap());
    // Each is 1.5 s of work, a quarter of which is done meanwhile.
    for round in 1..=3 {
        wait_until(&mut b, round * 6 * S);
        for (call, (worker, tenant)) in calls.iter_mut().zip(workers.into_iter().zip(tenants)) {
            b.finish(worker, *call);
            *call = submit_due(&mut b, 1, tenant, u64::MAX).unwrap();
        }
    }
    assert!(!b.actions.iter().any(|action| matches!(action, Action::Kill { .. })));
    // The control: one that takes all of it alone is ended, beside others that end and come again.
    let endless = calls[0];
    while b.scheduler.running_call(W0, endless).is_some() {
        assert!(b.now < 21 * S, "it is in the way for too long");
        let until_ns = b.now + 20 * MS;
        wait_until(&mut b, until_ns);
        for (call, (worker, tenant)) in calls.iter_mut().zip(workers.into_iter().zip(tenants)).skip(1) {
            b.finish(worker, *call);
            *call = submit_due(&mut b, 1, tenant, u64::MAX).unwrap();
        }
        if b.actions.drain(..).any(|action| matches!(action, Action::Kill { worker: W0, .. })) {
            assert_eq!(b.dies(W0), [(1, Ended::Overran)]);
        }
    }
}

#[test]
fn who_has_no_limit_is_not_ended_and_who_has_its_own_is() {
    let mut b = Bench::of(by_turns(2, 1));
    let limit = |overrun_ns| TenantShare { overrun_ns: Some(overrun_ns), ..TenantShare::default() };
    b.scheduler.handle(0, SetShare { tenant: ALICE.caller, share: limit(0) }, &mut b.actions);
    b.scheduler.handle(0, SetShare { tenant: BOB.caller, share: limit(300 * MS) }, &mut b.actions);
    submit_due(&mut b, 1, ALICE, u64::MAX).unwrap();
    submit_due(&mut b, 2, BOB, u64::MAX).unwrap();
    wait_until(&mut b, 700 * MS);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 1.0, revoke 0 turn 1, grant 1 turn 2, kill 1");
    assert_eq!(b.dies(W1), [(2, Ended::Overran)]);
    wait_until(&mut b, 3600 * S);
    b.expect("");
}

#[test]
fn of_several_calls_in_a_worker_none_is_blamed_for_an_overrun() {
    let mut b = Bench::of(by_turns(2, 2));
    submit_due(&mut b, 1, ALICE, u64::MAX).unwrap();
    submit_due(&mut b, 2, ALICE, u64::MAX).unwrap();
    // One that ends and comes again always wants the device, and is never in the way.
    let mut other = submit_due(&mut b, 3, BOB, u64::MAX).unwrap();
    b.actions.clear();
    let mut killed = false;
    while !killed {
        let until_ns = b.now + 100 * MS;
        wait_until(&mut b, until_ns);
        killed = b.actions.drain(..).any(|action| matches!(action, Action::Kill { worker: W0, .. }));
        b.finish(W1, other);
        other = submit_due(&mut b, 3, BOB, u64::MAX).unwrap();
        assert!(b.now < 5 * S);
    }
    assert_eq!(b.dies(W0), [], "both run again");
    b.ready(W0);
    let alone = b.actions.drain(..).map(short).find(|words| words.ends_with("alone"));
    assert_eq!(alone.as_deref(), Some("1 on 0.0 alone"));
}

#[test]
fn an_overrun_counts_as_a_failure_of_its_function() {
    let mut b =
        Bench::under(by_turns(2, 1), Policy { quarantine_after: 1, fault_budget: 0, ..Policy::default() });
    submit_due(&mut b, 1, ALICE, u64::MAX).unwrap();
    let mut other = submit_due(&mut b, 2, BOB, u64::MAX).unwrap();
    while !b.actions.iter().any(|action| matches!(action, Action::Kill { worker: W0, .. })) {
        let until_ns = b.now + 500 * MS;
        wait_until(&mut b, until_ns);
        b.finish(W1, other);
        other = submit_due(&mut b, 2, BOB, u64::MAX).unwrap();
        assert!(b.now < 10 * S);
    }
    let again = submit_due(&mut b, 3, ALICE, u64::MAX);
    assert!(matches!(again, Err(NotNow::Quarantined(_))), "{again:?}");
}

#[test]
fn calls_of_a_domain_start_by_their_deadlines() {
    let mut b = Bench::new(1, 1);
    let first = submit_due(&mut b, 1, ALICE, 9 * S).unwrap();
    for (call, deadline_ns) in [(2, 9 * S), (3, 5 * S), (4, 7 * S)] {
        submit_due(&mut b, call, ALICE, deadline_ns).unwrap();
    }
    b.expect("1 on 0.0");
    b.finish(W0, first);
    b.expect("3 on 0.0");
}

#[test]
fn a_worker_goes_to_the_tenant_that_had_least_by_its_weight() {
    let mut b = Bench::of(Shape { residency_ns: 0, ..Shape::new(1, 1) });
    let share = TenantShare { weight: 3, ..TenantShare::default() };
    b.scheduler.handle(0, SetShare { tenant: BOB.caller, share }, &mut b.actions);
    // Each has a call running or waiting at any time; each takes a millisecond.
    let mut running = vec![(b.submit(0, ALICE), ALICE)];
    b.submit(1, BOB);
    b.submit(2, ALICE);
    b.actions.clear();
    let mut had = [0, 0];
    for call in 3..403 {
        let (id, domain) = running.pop().unwrap();
        had[usize::from(domain == BOB)] += 1;
        b.now += MS;
        b.submit(call, domain);
        b.finish(W0, id);
        while running.is_empty() {
            for action in std::mem::take(&mut b.actions) {
                match action {
                    Action::Tell { command: Command::Start { job: Job { id, call, .. }, .. }, .. } => {
                        let entry = b.scheduler.calls.get(id).unwrap();
                        running.push((id, entry.domain));
                        assert_eq!(entry.call, call);
                    }
                    Action::Tell { command: Command::Leave, .. } => {
                        assert_eq!(b.dies(W0), []);
                        b.ready(W0);
                    }
                    _ => {}
                }
            }
        }
    }
    assert!((90..=110).contains(&had[0]), "a quarter of 400: {had:?}");
    assert_eq!(b.scheduler.device_times(9).len(), 2);
}

#[test]
fn slow_calls_of_one_caller_have_no_other_refused() {
    // Twenty slow calls of a caller's of a function that both may call; then one of the other's runs, one waits, and the next
    // one could end in time.
    let third = |slow: Domain| {
        let mut b = Bench::new(1, 1);
        for call in 0..20 {
            let id = submit_due(&mut b, call, slow, S).unwrap();
            b.now += 100 * MS;
            b.scheduler.handle(b.now, Ran { worker: W0, id, device_ns: 100 * MS }, &mut b.actions);
            b.finish(W0, id);
        }
        b.scheduler.handle(b.now, Tick {}, &mut b.actions);
        let due = b.now + 50 * MS;
        assert!((20..22).all(|call| submit_due(&mut b, call, ALICE, due).is_ok()));
        submit_due(&mut b, 22, ALICE, due)
    };
    let grantee = Domain { owner: ALICE.owner, caller: BOB.caller };
    assert!(third(grantee).is_ok());
    assert!(matches!(third(ALICE), Err(NotNow::TooLate { .. })), "the control: her own");
}

#[test]
fn a_call_that_cannot_end_in_time_is_refused_where_that_is_sure() {
    let mut b = Bench::new(1, 1);
    // Sixteen calls of 10 ms: now it is known how long they take.
    for call in 0..16 {
        let id = submit_due(&mut b, call, ALICE, S).unwrap();
        b.now += 10 * MS;
        b.scheduler.handle(b.now, Ran { worker: W0, id, device_ns: 10 * MS }, &mut b.actions);
        b.finish(W0, id);
    }
    let due = b.now + 45 * MS;
    submit_due(&mut b, 20, ALICE, due).unwrap();
    for call in 21..25 {
        submit_due(&mut b, call, ALICE, due).unwrap();
    }
    // Four wait, which take 40 ms.
    assert!(matches!(submit_due(&mut b, 25, ALICE, due), Err(NotNow::TooLate { queue_ms: 40, call_ms: 10 })),);
    let later = b.now + 50 * MS;
    submit_due(&mut b, 26, ALICE, later).unwrap();
    // One that goes before others is accepted: it is not known how long those before it take.
    submit_due(&mut b, 27, ALICE, due).unwrap();
    assert_eq!(b.scheduler.device_time_of(ALICE.caller), 160 * MS);
}

#[test]
fn a_call_that_fails_is_device_time_with_turns_and_without() {
    for shape in [by_turns(1, 1), Shape::new(1, 1)] {
        let mut b = Bench::of(shape);
        for (call, verdict) in [(0, Verdict::Neither), (1, Verdict::Fault)] {
            let id = submit_due(&mut b, call, ALICE, u64::MAX).unwrap();
            b.now += 200 * MS;
            b.scheduler.handle(b.now, Finished { worker: W0, id, verdict }, &mut b.actions).unwrap();
        }
        assert_eq!(b.scheduler.device_time_of(ALICE.caller), 400 * MS);
    }
}

#[test]
fn a_worker_that_says_too_much_is_believed_as_far_as_that_can_be() {
    let mut b = Bench::new(1, 1);
    for call in 0..20 {
        let id = submit_due(&mut b, call, ALICE, S).unwrap();
        b.now += MS;
        b.scheduler.handle(b.now, Ran { worker: W0, id, device_ns: u64::MAX }, &mut b.actions);
        b.finish(W0, id);
    }
    assert_eq!(
        b.scheduler.run_times.at_least_ns(Kind::of(FUNCTION, ALICE.caller, TERMS.memory_bytes)),
        Some(MS)
    );
}

#[test]
fn where_several_have_the_device_at_once_shares_decide_how_many_lanes_each_uses() {
    let mut b = Bench::of(Shape { workers_per_domain: 1, ..Shape::new(2, 8) });
    let share = |weight| TenantShare { weight, ..TenantShare::default() };
    let give = |b: &mut Bench, domain: Domain, weight| {
        b.scheduler.handle(b.now, SetShare { tenant: domain.caller, share: share(weight) }, &mut b.actions);
    };
    give(&mut b, ALICE, 4);
    give(&mut b, BOB, 2);
    let mut alices: Vec<_> = (0..8).map(|call| submit_due(&mut b, call, ALICE, u64::MAX).unwrap()).collect();
    let bobs: Vec<_> = (10..20).map(|call| submit_due(&mut b, call, BOB, u64::MAX).unwrap()).collect();
    let running = |b: &Bench, worker: WorkerId, calls: &[CallId]| {
        calls.iter().filter(|call| b.scheduler.running_call(worker, **call).is_some()).count()
    };
    assert_eq!((running(&b, W0, &alices), running(&b, W1, &bobs)), (8, 4));
    b.finish(W1, bobs[0]);
    assert_eq!(running(&b, W1, &bobs), 4, "another one takes its lane, and no more");
    // More of them once he is given as much, and once she has no calls.
    give(&mut b, BOB, 3);
    assert_eq!(running(&b, W1, &bobs), 6);
    let last = alices.pop().unwrap();
    alices.into_iter().for_each(|call| b.finish(W0, call));
    assert_eq!(running(&b, W1, &bobs), 6);
    b.finish(W0, last);
    assert_eq!(running(&b, W1, &bobs), 8);
    // Now he was first, and she gets all hers.
    let calls: Vec<_> = (20..28).map(|call| submit_due(&mut b, call, ALICE, u64::MAX).unwrap()).collect();
    assert_eq!((running(&b, W0, &calls), running(&b, W1, &bobs)), (8, 8));
    b.finish(W1, bobs[1]);
    assert_eq!(running(&b, W1, &bobs), 7, "until he is back at his part");
}

#[test]
fn payers_pay_for_their_own_turn() {
    let shape =
        Shape { quantum_us: Some(5000), shared_workers: 1, workers_per_domain: 1, ..Shape::new(2, 1) };
    let mut b = Bench::of(shape);
    let alice = b.share(1, ALICE);
    let carol = b.submit(2, CAROL);
    b.expect("1 on 0.0, grant 0 turn 1, 2 on 1.0, revoke 0 turn 1");
    b.now = 5 * MS;
    b.ran(W0, alice, 5);
    b.finish(W0, alice);
    b.yields(W0, 1, 5, 0);
    b.expect("grant 1 turn 2");
    let first = b.scheduler.device_time_of(ALICE.caller) / MS;
    let bob = b.share(3, BOB);
    b.now = 6 * MS;
    b.ran(W1, carol, 1);
    b.finish(W1, carol);
    b.yields(W1, 2, 1, 0);
    b.submit(4, CAROL);
    b.expect("3 on 0.0, revoke 1 turn 2, grant 0 turn 3, 4 on 1.0, revoke 0 turn 3");
    b.now = 7 * MS;
    b.ran(W0, bob, 1);
    b.finish(W0, bob);
    b.yields(W0, 3, 1, 0);
    let paid = [ALICE, BOB].map(|d| b.scheduler.device_time_of(d.caller) / MS);
    assert_eq!((first, paid), (5, [5, 1]));
}

#[test]
fn all_whose_calls_were_there_pay_for_a_shared_worker_that_ends() {
    let shape =
        Shape { quantum_us: Some(5000), shared_workers: 1, workers_per_domain: 1, ..Shape::new(2, 2) };
    let mut b = Bench::of(shape);
    b.share(1, ALICE);
    b.now = 10 * MS;
    b.share(2, BOB);
    b.now = 100 * MS;
    b.dies(W0);
    let paid = [ALICE, BOB].map(|d| b.scheduler.device_time_of(d.caller) / MS);
    assert_eq!(paid, [52, 47]);
}
