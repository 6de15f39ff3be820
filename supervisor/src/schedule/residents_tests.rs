//! Small cases of who gets a process, and who loses it.

use super::*;

fn domain(n: u32) -> Domain {
    Domain { owner: TenantId::new(n), caller: TenantId::new(n) }
}

/// A device whose slots are empty but for the first, which has a process.
fn bench(shape: Shape) -> Bench {
    let mut b = Bench { scheduler: Scheduler::new(shape), actions: Vec::new(), now: 0 };
    let policy = Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() };
    b.scheduler.handle(0, SetPolicy { policy }, &mut b.actions);
    b.ready(W0);
    b
}

#[test]
fn processes_are_brought_for_domains_that_have_none_up_to_the_ceiling() {
    let mut b = bench(Shape { workers_per_domain: 1, ..Shape::new(3, 1) });
    b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.submit(3, domain(3));
    b.expect_all("1 on 0.0, bring 1, bring 2");
    b.submit(4, domain(4));
    b.expect_all("");
    b.ready(W1);
    b.expect_all("2 on 1.0");
    // All stay where they are.
    b.ready(WorkerId::new(2));
    b.expect_all("3 on 2.0");
    let resident = b.scheduler.resident(W1);
    assert_eq!(
        (resident.serves, resident.functions, resident.last_gone),
        (Some(Compartment::Of(domain(2))), 1, None)
    );
}

#[test]
fn few_processes_come_at_the_same_time() {
    let mut b = bench(Shape { workers_per_domain: 1, starting: 2, ..Shape::new(8, 1) });
    for call in 1..=5 {
        b.submit(call, domain(call as u32));
    }
    b.expect_all("1 on 0.0, bring 1, bring 2");
    // The next one comes once one is there, though none ended a call.
    b.ready(W1);
    b.expect_all("2 on 1.0, bring 3");
    // One that takes a standby need not be made.
    b.scheduler.handle(b.now, StandbysReady { count: 1 }, &mut b.actions);
    b.expect_all("bring 4");
}

#[test]
fn an_idle_resident_is_scrubbed_rather_than_a_process_waited_for() {
    let shape =
        Shape { workers_per_domain: 1, starting: 1, scrubs: true, residency_ns: 0, ..Shape::new(8, 1) };
    let mut b = bench(shape);
    let first = b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.expect_all("1 on 0.0, bring 1");
    b.finish(W0, first);
    b.expect_all("scrub 0");
    b.scheduler.handle(b.now, Scrubbed { worker: W0 }, &mut b.actions);
    b.expect_all("2 on 0.0");
    // The process that starts all the same is for the next domain, and few start at a time.
    let third = b.submit(3, domain(3));
    b.submit(4, domain(4));
    b.expect_all("");
    b.ready(W1);
    b.expect_all("3 on 1.0, bring 2");
    // One that takes a standby is there as soon as a scrubbed one.
    b.scheduler.handle(b.now, StandbysReady { count: 1 }, &mut b.actions);
    b.now = 1000 * MS;
    b.finish(W1, third);
    b.expect_all("");
}

#[test]
fn nobody_loses_its_process_while_there_are_empty_slots() {
    let shape = |slots| Shape { workers_per_domain: 1, starting: 1, ..Shape::new(slots, 1) };
    let busy_for_two_seconds = |slots| {
        let mut b = bench(shape(slots));
        let first = b.submit(1, domain(1));
        b.submit(2, domain(2));
        b.submit(3, domain(3));
        b.expect_all("1 on 0.0, bring 1");
        b.now = 2000 * MS;
        b.finish(W0, first);
        b
    };
    let mut b = busy_for_two_seconds(3);
    b.expect_all("");
    b.ready(W1);
    b.expect_all("2 on 1.0, bring 2");
    // The control: all slots have a process, or get one.
    let mut b = busy_for_two_seconds(2);
    b.expect_all("replace 0");
    // Where there is no memory for its context, none is waited for, also where calls wait for the same worker.
    for (bytes, expected) in [(1, "5 on 0.0"), (u64::MAX, "replace 0")] {
        let mut b = busy_for_two_seconds(3);
        b.expect_all("");
        let again = b.submit(4, domain(1));
        b.submit(5, domain(1));
        b.expect_all("4 on 0.0");
        let is_there = b.scheduler.handle(b.now, ContextWanted { bytes, urgent: true }, &mut b.actions);
        assert_eq!(is_there, bytes == 1);
        b.actions.clear();
        b.finish(W0, again);
        b.expect_all(expected);
    }
}

#[test]
fn a_process_is_not_lost_for_a_function_that_it_installs() {
    let mut b = bench(Shape::new(2, 1));
    let first = b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.finish(W0, first);
    b.now = 990 * MS;
    b.ready(W1);
    b.expect("1 on 0.0, 2 on 1.0");
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    // It may answer by itself once the function is there.
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1190 * MS));
    b.now = 1190 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("kill 1");
    // The control: the function is there.
    let mut b = bench(Shape::new(2, 1));
    let first = b.submit(1, domain(1));
    b.finish(W0, first);
    b.now = 990 * MS;
    let late = CallSpec { domain: domain(1), deadline_ns: 1000 * MS, ..TERMS };
    b.scheduler.handle(b.now, Submit { call: 2, spec: late, limits: LIMITS }, &mut b.actions).unwrap();
    b.now = 1000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1000 * MS + DEADLINE_GRACE_NS));
}

/// How often callers 1 and 2 lose a worker within two seconds, who have a call every 40 ms, beside one that has calls for so many
/// owners' functions at any time. Each call takes 20 ms.
fn lost_beside(owners: u32) -> usize {
    let mut b = bench(Shape { workers_per_domain: 1, residency_ns: 40 * MS, ..Shape::new(3, 1) });
    let domains = [domain(1), domain(2)];
    let granted =
        (10..10 + owners).map(|owner| Domain { owner: TenantId::new(owner), caller: TenantId::new(9) });
    let domains: Vec<Domain> = domains.into_iter().chain(granted).collect();
    let (mut serves, mut running, mut lost) = ([None; 3], Vec::new(), 0);
    for step in 0..100 {
        let over: Vec<_> = std::mem::take(&mut running);
        over.iter().for_each(|(worker, id, _)| b.finish(*worker, *id));
        for (nth, domain) in domains.iter().enumerate() {
            let is_over = step == 0 || over.iter().any(|(_, _, of)| *of == nth) && nth >= 2;
            if is_over || nth < 2 && step % 2 == 0 && !b.scheduler.queues.has_queued(Compartment::Of(*domain))
            {
                b.submit(nth as u64, *domain);
            }
        }
        while !b.actions.is_empty() {
            for action in std::mem::take(&mut b.actions) {
                match action {
                    Action::Tell { to, command: Command::Start { job: Job { id, call, .. }, .. } } => {
                        serves[to.worker.get()] = Some(call);
                        running.push((to.worker, id, call as usize));
                    }
                    Action::Tell { to, command: Command::Leave } => {
                        lost += usize::from(serves[to.worker.get()].is_some_and(|call| call < 2));
                        b.dies(to.worker);
                    }
                    Action::Bring { worker } => b.ready(worker),
                    _ => {}
                }
            }
        }
        b.now += 20 * MS;
    }
    lost
}

#[test]
fn a_caller_with_many_domains_does_not_take_the_workers_that_others_use() {
    assert_eq!(lost_beside(1), 0, "there is a worker for each");
    let lost = lost_beside(20);
    assert!(lost <= 4, "they lost {lost}");
}

#[test]
fn a_busy_resident_goes_on_while_a_process_comes_for_another_domain() {
    let mut b = bench(Shape { residency_ns: 0, ..Shape::new(2, 1) });
    let first = b.submit(1, domain(1));
    b.submit(2, domain(2));
    b.expect_all("1 on 0.0, bring 1");
    b.now = 1000 * MS;
    b.finish(W0, first);
    b.submit(3, domain(1));
    b.expect_all("3 on 0.0");
}

#[test]
fn a_call_that_comes_while_its_domains_process_is_replaced_gets_another_slot() {
    let mut b = bench(Shape { residency_ns: 0, ..Shape::new(2, 1) });
    let first = b.submit(1, domain(1));
    b.expect_all("1 on 0.0");
    b.scheduler.handle(0, Gone { worker: W0 }, &mut b.actions);
    // One process is coming, and one call waits for it.
    b.submit(2, domain(1));
    b.scheduler.handle(0, Buried { id: first, loss: Loss::InIt }, &mut b.actions);
    b.expect_all("bring 0");
    b.ready(W0);
    b.expect_all("1 on 0.0 alone, bring 1");
}

#[test]
fn the_resident_that_is_worth_least_gives_way_as_standbys_come() {
    let shape = Shape { standbys: 1, workers_per_domain: 1, residency_ns: 0, ..Shape::new(2, 1) };
    let mut b = bench(shape);
    let first = b.submit(1, domain(1));
    let heavy = CallSpec { domain: domain(2), weight_bytes: 50 << 30, ..TERMS };
    let second =
        b.scheduler.handle(0, Submit { call: 2, spec: heavy, limits: LIMITS }, &mut b.actions).unwrap();
    b.ready(W1);
    b.finish(W1, second);
    b.now = MS;
    b.finish(W0, first);
    b.expect("1 on 0.0, 2 on 1.0");
    b.now = 200 * MS;
    b.scheduler.handle(b.now, StandbysReady { count: 1 }, &mut b.actions);
    b.submit(3, domain(3));
    b.submit(4, domain(4));
    // The other one had a call longer ago, but its weights would have to be loaded again.
    b.expect_all("replace 0");
    b.scheduler.handle(b.now, StandbysReady { count: 0 }, &mut b.actions);
    b.dies(W0);
    b.expect_all("bring 0");
    assert_eq!(b.scheduler.resident(W0).last_gone, Some(WhyGone::SlotWanted));
    b.ready(W0);
    b.expect_all("3 on 0.0");
    // The next one waits for a standby, and not for ever.
    assert_eq!(b.scheduler.next_deadline_ns(), Some(1200 * MS));
    b.now = 300 * MS;
    b.scheduler.handle(b.now, StandbysReady { count: 1 }, &mut b.actions);
    b.expect_all("replace 1");
}

#[test]
fn of_busy_residents_one_after_the_other_makes_room() {
    let mut b = Bench::of(Shape { workers_per_domain: 1, ..Shape::new(2, 1) });
    let ids = [b.submit(1, domain(1)), b.submit(2, domain(2))];
    for (call, caller) in [(3, 1), (4, 2)] {
        b.submit(call, domain(caller));
    }
    b.submit(5, domain(3));
    b.now = 150 * MS;
    b.expect("1 on 0.0, 2 on 1.0");
    b.finish(W1, ids[1]);
    // Both were bound at the same time: the other one is not to go before this one is replaced.
    b.expect("replace 1");
    b.finish(W0, ids[0]);
    b.expect("3 on 0.0");
}

#[test]
fn a_domains_only_worker_is_not_taken_for_anothers_second_one_while_it_is_in_use() {
    let mut b = Bench::of(Shape { workers_per_domain: 2, residency_ns: 10 * MS, ..Shape::new(2, 1) });
    b.submit(1, domain(1));
    let other = b.submit(2, domain(2));
    b.submit(3, domain(1));
    b.now = 50 * MS;
    b.finish(W1, other);
    b.expect("1 on 0.0, 2 on 1.0");
    // For a domain that has none it is.
    b.now = 100 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("");
    let first = b.submit(4, domain(3));
    b.expect("replace 1");
    b.scheduler.handle(b.now, Cancel { id: first }, &mut b.actions).unwrap();
    b.dies(W1);
    b.ready(W1);
    b.actions.clear();
    // Nor is it kept for ever.
    let mut b = Bench::of(Shape { workers_per_domain: 2, residency_ns: 10 * MS, ..Shape::new(2, 1) });
    b.submit(1, domain(1));
    let other = b.submit(2, domain(2));
    b.submit(3, domain(1));
    b.finish(W1, other);
    b.expect("1 on 0.0, 2 on 1.0");
    b.now = 300 * MS;
    b.submit(4, domain(1));
    b.expect("replace 1");
}

#[test]
fn second_workers_go_before_only_ones() {
    let mut b = Bench::of(Shape { workers_per_domain: 2, residency_ns: 10 * MS, ..Shape::new(3, 1) });
    let small = b.submit(1, domain(1));
    b.submit(2, domain(2));
    let second = b.submit(3, domain(2));
    b.now = 50 * MS;
    b.finish(W0, small);
    b.submit(4, domain(3));
    b.expect("1 on 0.0, 2 on 1.0, 3 on 2.0");
    b.finish(WorkerId::new(2), second);
    b.expect("replace 2");
}

#[test]
fn a_caller_that_had_less_keeps_a_worker_that_it_uses_again_and_again() {
    let shape = Shape { workers_per_domain: 1, residency_ns: 10 * MS, ..Shape::new(2, 1) };
    let mut b = Bench::of(shape);
    let large = b.submit(1, domain(1));
    b.submit(2, domain(3));
    // Another one waits, so that what the first has is charged.
    let waits = b.submit(3, domain(4));
    b.now = 100 * MS;
    b.expect("1 on 0.0, 2 on 1.0");
    b.finish(W0, large);
    b.expect("replace 0");
    b.dies(W0);
    b.ready(W0);
    b.expect("3 on 0.0");
    b.now = 101 * MS;
    b.finish(W0, waits);
    b.submit(4, domain(1));
    b.now = 112 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("");
    b.now = 400 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    b.expect("replace 0");
}

#[test]
fn a_slot_whose_process_ended_gets_another_one() {
    let mut b = bench(Shape::new(2, 1));
    b.dies(W0);
    b.expect_all("bring 0");
    // The control: where there was none, none comes.
    b.dies(W1);
    b.expect_all("");
}

#[test]
fn a_slot_whose_process_leaves_for_its_memory_is_for_whom_it_was_kept_meanwhile() {
    let mut b = bench(Shape { memory_bytes: 100, residency_ns: 0, ..Shape::new(2, 1) });
    b.contexts(0, 40);
    let ids = [b.submit(1, domain(1)), b.submit(2, domain(2))];
    b.ready(W1);
    b.finish(W0, ids[0]);
    b.finish(W1, ids[1]);
    b.expect("1 on 0.0, 2 on 1.0");
    // More than is free: the other process is to leave.
    let large = b.submit_sized(3, domain(1), 71);
    assert_eq!(b.scheduler.resident(W1).last_gone, Some(WhyGone::MemoryWanted));
    b.scheduler.handle(b.now, Cancel { id: large }, &mut b.actions).unwrap();
    b.submit_sized(4, domain(2), 51);
    b.actions.clear();
    b.dies(W1);
    b.expect_all("bring 1");
    b.ready(W1);
    b.expect_all("4 on 1.0");
}
