//! Small cases of calls that share a device's memory.

use super::*;
use crate::schedule::asks::QueueKey;
use crate::schedule::{Class, TenantShare};

const CAROL: Domain = Domain { owner: TenantId::new(3), caller: TenantId::new(3) };
const W2: WorkerId = WorkerId::new(2);

/// So many workers of two lanes, and 100 bytes.
fn bench(workers: usize) -> Bench {
    Bench::of(Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(workers, 2) })
}

/// What the last call that started was lent.
fn lent(b: &Bench) -> u64 {
    let mut starts = b.actions.iter().filter_map(|action| match action {
        Action::Tell { command: Command::Start { memory_bytes, .. }, .. } => Some(*memory_bytes),
        _ => None,
    });
    starts.next_back().unwrap()
}

#[test]
fn a_lane_keeps_what_it_was_lent_and_the_best_one_is_chosen() {
    let mut b = bench(1);
    let first = b.submit_sized(1, ALICE, 13);
    assert_eq!(lent(&b), 16, "one of few sizes");
    let second = b.submit_sized(2, ALICE, 40);
    assert_eq!(lent(&b), 48);
    b.finish(W0, first);
    b.finish(W0, second);
    // The smallest that has enough, else the largest.
    let third = b.submit_sized(3, ALICE, 20);
    b.finish(W0, third);
    let fourth = b.submit_sized(4, ALICE, 2);
    b.finish(W0, fourth);
    b.submit_sized(5, ALICE, 49);
    assert_eq!(lent(&b), 64);
    b.expect("1 on 0.0, 2 on 0.1, 3 on 0.1, 4 on 0.0, 5 on 0.1");
    assert_eq!((b.scheduler.held_by(ALICE.caller), b.scheduler.memory().free_bytes), (80, 20));
}

#[test]
fn the_usual_size_is_not_waited_for() {
    let mut b = bench(2);
    b.submit_sized(1, ALICE, 48);
    b.submit_sized(2, BOB, 50);
    assert_eq!(lent(&b), 50);
    b.expect("1 on 0.0, 2 on 1.0");
}

#[test]
fn memory_comes_from_the_resident_idle_longest() {
    let mut b = bench(4);
    for (call, domain, worker) in [(1, ALICE, W0), (2, BOB, W1), (3, CAROL, W2)] {
        let id = b.submit_sized(call, domain, 32);
        b.now += MS;
        b.finish(worker, id);
    }
    // The first one again: it is idle shortest now.
    let again = b.submit_sized(4, ALICE, 32);
    b.now += MS;
    b.finish(W0, again);
    b.expect("1 on 0.0, 2 on 1.0, 3 on 2.0, 4 on 0.0");
    let dave = Domain { owner: TenantId::new(4), caller: TenantId::new(4) };
    b.submit_sized(5, dave, 40);
    b.expect("1 gives 1, 2 gives 1");
    assert_eq!(b.scheduler.memory().free_bytes, 4, "nothing is free before it is said to be");
    b.gave_back(W1, 0);
    b.expect("");
    b.gave_back(W2, 0);
    b.expect("5 on 3.0");
    // Of the first one nothing was taken.
    b.submit_sized(6, ALICE, 32);
    b.expect("6 on 0.0");
}

#[test]
fn a_lane_with_a_call_keeps_its_memory_and_others_wait_in_turn() {
    let mut b = bench(3);
    let first = b.submit_sized(1, ALICE, 48);
    let second = b.submit_sized(2, BOB, 48);
    b.expect("1 on 0.0, 2 on 1.0");
    b.submit_sized(3, CAROL, 40);
    // It comes later, and needs little; but what it needs is what the one before it waits for.
    b.submit_sized(4, ALICE, 8);
    b.expect("");
    b.finish(W1, second);
    b.expect("1 gives 1");
    b.gave_back(W1, 0);
    b.expect("3 on 2.0");
    b.finish(W0, first);
    b.expect("4 on 0.0");
}

#[test]
fn calls_that_need_nothing_more_go_on_while_memory_is_on_its_way() {
    let mut b = bench(3);
    let first = b.submit_sized(1, ALICE, 48);
    let second = b.submit_sized(2, BOB, 48);
    b.finish(W1, second);
    b.submit_sized(3, CAROL, 40);
    b.expect("1 on 0.0, 2 on 1.0, 1 gives 1");
    b.finish(W0, first);
    let again = b.submit_sized(4, ALICE, 48);
    b.expect("4 on 0.0");
    // But not if they are what the first in line needs.
    b.submit_sized(5, BOB, 48);
    b.gave_back(W1, 0);
    b.expect("3 on 2.0");
    b.submit_sized(6, ALICE, 4);
    b.expect("");
    b.finish(W0, again);
    b.expect("0 gives 1");
}

#[test]
fn one_that_waits_may_be_given_up_or_expire() {
    let mut b = bench(3);
    let first = b.submit_sized(1, ALICE, 48);
    b.submit_sized(2, BOB, 48);
    let waits = b.submit_sized(3, CAROL, 40);
    b.now = 10 * MS;
    b.submit_sized(4, ALICE, 8);
    b.expect("1 on 0.0, 2 on 1.0");
    assert_eq!(b.scheduler.handle(b.now, Cancel { id: waits }, &mut b.actions), Some(3));
    b.finish(W0, first);
    b.expect("4 on 0.0");
    b.submit_sized(5, CAROL, 49);
    b.now = 2000 * MS;
    b.scheduler.handle(b.now, Tick {}, &mut b.actions);
    assert!(b.told(|_| true).contains("5 expired"));
}

#[test]
fn what_a_process_had_is_free_once_it_is_reaped() {
    let mut b = bench(2);
    b.submit_sized(1, ALICE, 64);
    b.submit_sized(2, BOB, 50);
    b.expect("1 on 0.0");
    let lost = b.scheduler.handle(b.now, Gone { worker: W0 }, &mut b.actions);
    b.expect("");
    let reaped = Reaped { worker: W0, generation: Generation::new(1), from_outside: false };
    b.scheduler.handle(b.now, reaped, &mut b.actions);
    b.expect("2 on 1.0");
    assert_eq!(lost.len(), 1);
}

#[test]
fn who_says_more_is_left_than_may_be_lies() {
    for (left_bytes, well) in [(0, true), (1, false)] {
        let mut b = bench(2);
        b.contexts(0, 10);
        let first = b.submit_sized(1, ALICE, 48);
        b.finish(W0, first);
        b.submit_sized(2, BOB, 50);
        b.expect("1 on 0.0, 0 gives 1");
        let gave_back = GaveBack { worker: W0, left_bytes };
        assert_eq!(b.scheduler.handle(b.now, gave_back, &mut b.actions), well);
        b.expect("2 on 1.0");
        assert!(!b.scheduler.handle(b.now, gave_back, &mut b.actions), "not asked");
    }
}

#[test]
fn contexts_take_what_is_free_and_what_idle_residents_give() {
    let mut b = bench(2);
    let first = b.submit_sized(1, ALICE, 64);
    let wanted = |b: &mut Bench, bytes, urgent| {
        b.scheduler.handle(b.now, ContextWanted { bytes, urgent }, &mut b.actions)
    };
    assert!(wanted(&mut b, 36, true));
    assert!(!wanted(&mut b, 40, false));
    b.expect("1 on 0.0");
    b.finish(W0, first);
    assert!(!wanted(&mut b, 40, true));
    b.expect("0 gives 1");
    b.gave_back(W0, 0);
    assert!(wanted(&mut b, 40, true) && wanted(&mut b, 0, false));
}

#[test]
fn stacks_stay_with_their_process() {
    let mut b = bench(2);
    let spec = CallSpec { stack_bytes: 30, memory_bytes: 8, ..TERMS };
    let first = b.scheduler.handle(0, Submit { call: 1, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.finish(W0, first);
    let lent = |b: &Bench| (b.scheduler.memory().lease_bytes, b.scheduler.memory().stack_bytes);
    assert_eq!(lent(&b), (8, 30));
    b.submit_sized(2, BOB, 50);
    b.expect("1 on 0.0, 2 on 1.0");
    let third = b.submit_sized(3, BOB, 12);
    b.expect("3 on 1.1");
    b.finish(W1, third);
    b.dies(W0);
    assert_eq!(lent(&b), (62, 0));
}

/// A call of a function with so many bytes of weights, in a worker where they are there then.
fn weighted(b: &mut Bench, worker: WorkerId, call: u64, domain: Domain, weight_bytes: u64) {
    let function = FunctionId::new(call);
    let spec = CallSpec { domain, function, weight_bytes, deadline_ns: 1000 * MS, ..TERMS };
    let id = b.scheduler.handle(b.now, Submit { call, spec, limits: LIMITS }, &mut b.actions).unwrap();
    let loaded = Loaded { worker, function, memory: Some(call), bytes: weight_bytes };
    assert!(b.scheduler.handle(b.now, loaded, &mut b.actions));
    b.finish(worker, id);
}

#[test]
fn weights_give_way_then_residents() {
    let mut b = bench(2);
    weighted(&mut b, W0, 1, ALICE, 10);
    b.contexts(0, 70);
    b.submit_sized(2, BOB, 50);
    b.expect_all("1 on 0.0, 0 unloads 1");
    let left = WeightsLeft { worker: W0, function: FunctionId::new(1) };
    b.scheduler.handle(b.now, left, &mut b.actions);
    // What is left are contexts: the resident without calls goes.
    b.expect("replace 0, drop 1");
    assert!(b.dies(W0).is_empty());
    b.expect_all("");
    b.contexts(70, 50);
    b.expect_all("2 on 1.0");
    let gone = b.scheduler.resident(W0);
    assert_eq!((gone.is_used, gone.last_gone), (false, Some(WhyGone::MemoryWanted)));
}

#[test]
fn a_call_waits_for_weights_that_do_not_fit() {
    let mut b = bench(2);
    let first = b.submit_sized(1, BOB, 64);
    b.finish(W0, first);
    let spec = CallSpec { weight_bytes: 60, memory_bytes: 8, deadline_ns: 1000 * MS, ..TERMS };
    b.scheduler.handle(b.now, Submit { call: 2, spec, limits: LIMITS }, &mut b.actions).unwrap();
    b.expect("1 on 0.0, 0 gives 1");
    b.gave_back(W0, 0);
    b.expect("2 on 1.0");
    assert_eq!(b.scheduler.memory().free_bytes, 100 - 8 - 60);
}

#[test]
fn weights_give_way_to_a_process() {
    let mut b = bench(1);
    weighted(&mut b, W0, 1, ALICE, 10);
    b.contexts(0, 60);
    let wanted = ContextWanted { bytes: 40, urgent: true };
    assert!(!b.scheduler.handle(b.now, wanted, &mut b.actions));
    b.expect_all("1 on 0.0, 0 unloads 1");
    let left = WeightsLeft { worker: W0, function: FunctionId::new(1) };
    b.scheduler.handle(b.now, left, &mut b.actions);
    assert!(b.scheduler.handle(b.now, wanted, &mut b.actions));
}

#[test]
fn weights_that_no_process_has_are_free_at_once_for_who_waits() {
    let mut b = bench(2);
    weighted(&mut b, W0, 1, ALICE, 60);
    assert!(b.dies(W0).is_empty());
    b.submit_sized(2, BOB, 50);
    b.expect("1 on 0.0, 2 on 1.0, drop 1");
}

#[test]
fn a_function_that_is_gone_leaves_its_memory_to_who_waits() {
    let mut b = bench(2);
    let spec = CallSpec { weight_bytes: 60, deadline_ns: 1000 * MS, ..TERMS };
    b.scheduler.handle(b.now, Submit { call: 1, spec, limits: LIMITS }, &mut b.actions).unwrap();
    let loaded = Loaded { worker: W0, function: FUNCTION, memory: Some(1), bytes: 60 };
    assert!(b.scheduler.handle(b.now, loaded, &mut b.actions));
    b.submit_sized(2, BOB, 50);
    b.expect("1 on 0.0");
    b.scheduler.handle(b.now, FunctionGone { function: FUNCTION }, &mut b.actions);
    b.expect("0 uninstalls 1, 1 uninstalls 1");
    b.scheduler.handle(b.now, WeightsLeft { worker: W0, function: FUNCTION }, &mut b.actions);
    b.expect("2 on 1.0, drop 1");
}

#[test]
fn who_comes_to_the_front_of_the_line_finds_memory_that_is_free() {
    let mut b = Bench::of(Shape { memory_bytes: 200, workers_per_domain: 1, ..Shape::new(4, 1) });
    b.contexts(0, 74);
    let allow = Allow { tenant: ALICE.caller, most_bytes: Some(50) };
    b.scheduler.handle(b.now, allow, &mut b.actions);
    weighted(&mut b, W0, 1, ALICE, 10);
    let second = b.submit_sized(2, BOB, 80);
    let third = b.submit_sized(3, CAROL, 8);
    b.expect("1 on 0.0, 2 on 1.0, 3 on 2.0");
    assert!(b.dies(W0).is_empty());
    b.ready(W0);
    b.finish(W1, second);
    b.submit_sized(4, ALICE, 41);
    b.now = 10 * MS;
    b.finish(W2, third);
    b.submit_sized(5, CAROL, 12);
    b.expect("1 gives 1");
    // No process has her weights, which leave no room for her call within her limit.
    b.gave_back(W1, 0);
    b.expect("4 on 0.0, 5 on 2.0, drop 1");
}

/// Gives back what workers are told to; the calls that start.
fn started_now(b: &mut Bench) -> Vec<(WorkerId, CallId, u64)> {
    let mut started = Vec::new();
    while !b.actions.is_empty() {
        for action in std::mem::take(&mut b.actions) {
            match action {
                Action::Tell { to, command: Command::Start { job: Job { id, call, .. }, .. } } => {
                    started.push((to.worker, id, call));
                }
                Action::Tell { to, command: Command::GiveBack { .. } } => b.gave_back(to.worker, 0),
                _ => {}
            }
        }
    }
    started
}

#[test]
fn who_comes_later_is_not_owed_the_memory_that_others_had() {
    let mut b = Bench::of(Shape { memory_bytes: 50, workers_per_domain: 1, ..Shape::new(3, 1) });
    // One call of 25 bytes fits.
    b.contexts(0, 10);
    let carol = Domain { owner: TenantId::new(3), caller: TenantId::new(3) };
    let of = |call: u64| [ALICE, BOB, carol][(call % 3) as usize];
    let (mut next, mut started) = (3, Vec::new());
    b.submit_sized(0, ALICE, 25);
    b.submit_sized(1, BOB, 25);
    for round in 0..32 {
        if round == 20 {
            for call in [2, 5] {
                b.submit_sized(call, carol, 25);
            }
        }
        let [(worker, id, call)] = started_now(&mut b)[..] else { panic!("round {round}: not one runs") };
        started.push(of(call));
        b.now += 10 * MS;
        b.finish(worker, id);
        if of(call) != carol {
            next += 3;
            b.submit_sized(next + call % 3, of(call), 25);
        }
    }
    let hers: Vec<usize> = (20..32).filter(|round| started[*round] == carol).collect();
    assert!(hers.len() == 2 && hers[1] > hers[0] + 1, "{hers:?}");
}

/// Alice and Bob have calls of so many bytes that come again and again, and use `others` of 100 bytes besides. After how many of these
/// calls a process gets ten bytes for Carol's call.
fn process_waits_for(bytes: u64, others: u64) -> Option<usize> {
    let mut b = Bench::empty(
        Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(3, 1) },
        Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() },
    );
    b.contexts(0, others);
    [W0, W1].into_iter().for_each(|worker| b.ready(worker));
    b.submit_sized(0, ALICE, bytes);
    b.submit_sized(1, BOB, bytes);
    b.submit_sized(2, CAROL, 1);
    let mut running = Vec::new();
    for ended in 0..64 {
        if b.scheduler.handle(b.now, ContextWanted { bytes: 10, urgent: true }, &mut b.actions) {
            return Some(ended);
        }
        running.extend(started_now(&mut b));
        if running.is_empty() {
            continue;
        }
        let (worker, id, call) = running.remove(0);
        // The next one is there before this one is over.
        b.submit_sized(call + 3, if call % 3 == 0 { ALICE } else { BOB }, bytes);
        b.now += 10 * MS;
        b.finish(worker, id);
    }
    None
}

#[test]
fn a_process_waits_for_few_calls_that_always_lack_memory() {
    for bytes in [30, 40, 45, 60] {
        let waited = process_waits_for(bytes, 30);
        assert!(waited.is_some_and(|calls| calls <= 3), "beside calls of {bytes}: {waited:?}");
    }
}

#[test]
fn the_next_in_line_for_a_worker_asks_for_the_memory_of_its_process() {
    let mut b = Bench::empty(
        Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(2, 1) },
        Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() },
    );
    b.contexts(0, 50);
    b.ready(W0);
    let dave = Domain { owner: TenantId::new(4), caller: TenantId::new(4) };
    let batch = TenantShare { class: Class::Batch, ..TenantShare::default() };
    b.scheduler.handle(b.now, SetShare { tenant: BOB.caller, share: batch }, &mut b.actions);
    let first = b.submit_sized(1, ALICE, 50);
    b.submit_sized(2, BOB, 1);
    let asks = |b: &mut Bench| {
        let wanted = ContextWanted { bytes: 10, urgent: true };
        assert!(!b.scheduler.handle(b.now, wanted, &mut b.actions), "there is nothing");
        (b.scheduler.queues.residency.context_for().map(|(_, queue)| queue), b.scheduler.queues.asks.memory())
    };
    assert_eq!(asks(&mut b), (Some(QueueKey::Of(BOB)), Some(QueueKey::Of(BOB))));
    // One that goes before him comes later.
    b.submit_sized(3, dave, 1);
    assert_eq!(asks(&mut b), (Some(QueueKey::Of(dave)), Some(QueueKey::Of(dave))));
    assert!(!b.scheduler.queues.waits_for_memory(BOB), "he asks for a worker alone");
    // What runs ends, and her lane gives back what it has: none starts in between.
    b.actions.clear();
    b.finish(W0, first);
    b.expect("0 gives 1");
    b.gave_back(W0, 0);
    let wanted = ContextWanted { bytes: 10, urgent: true };
    assert!(b.scheduler.handle(b.now, wanted, &mut b.actions));
    assert_eq!(b.scheduler.queues.asks.memory(), None);
}

#[test]
fn who_got_a_process_otherwise_asks_for_none() {
    let mut b = Bench::empty(
        Shape { memory_bytes: 100, workers_per_domain: 1, ..Shape::new(3, 1) },
        Policy { quarantine_after: 0, fault_budget: 0, ..Policy::default() },
    );
    b.contexts(0, 50);
    [W0, W1].into_iter().for_each(|worker| b.ready(worker));
    let first = b.submit_sized(1, ALICE, 48);
    b.finish(W0, first);
    b.submit_sized(2, CAROL, 20);
    b.submit(3, BOB);
    b.expect("1 on 0.0, 0 gives 1");
    let wanted = ContextWanted { bytes: 30, urgent: true };
    assert!(!b.scheduler.handle(b.now, wanted, &mut b.actions));
    assert!(b.scheduler.queues.waits_for_memory(BOB), "behind her");
    b.ready(W2);
    b.expect("3 on 2.0");
    assert!(!b.scheduler.queues.waits_for_memory(BOB) && b.scheduler.queues.waits_for_memory(CAROL));
}
