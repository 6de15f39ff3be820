//! Small cases of the weights on a device, and random ones against what must always hold.

use proptest::prelude::*;

use super::*;
use crate::ids::{FunctionId, Generation, TenantId, WorkerId};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const W2: WorkerId = WorkerId::new(2);
const GIB: u64 = 1 << 30;
const G1: Generation = Generation::new(1);

/// Loads a function's weights in worker 0 and shares them.
fn load(weights: &mut Weights<u64>, function: u64, bytes: u64) -> Vec<FunctionId> {
    let mut evicted = Vec::new();
    assert_eq!(
        weights.claim(FunctionId::new(function), W0, bytes, When::Now, u64::MAX, &mut evicted),
        Ok(Source::Export)
    );
    assert!(weights.loaded(FunctionId::new(function), W0, Some(function), bytes));
    evicted
}

#[test]
fn weights_are_loaded_once_and_shared() {
    let mut weights = Weights::new(10 * GIB);
    assert_eq!(load(&mut weights, 1, GIB), []);
    for worker in 1..4 {
        assert_eq!(
            weights.claim(
                FunctionId::new(1),
                WorkerId::new(worker),
                GIB,
                When::Now,
                u64::MAX,
                &mut Vec::new()
            ),
            Ok(Source::Device(1, GIB))
        );
    }
    assert_eq!(weights.used_bytes(), GIB);
    // Sharing them outlives the worker that loaded them.
    weights.worker_gone(W0, G1);
    assert_eq!(
        weights.claim(FunctionId::new(1), W0, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Device(1, GIB))
    );
    weights.forget(FunctionId::new(1));
    assert_eq!(weights.used_bytes(), 0);
}

#[test]
fn weights_count_until_every_worker_forgot_them_or_is_reaped() {
    let mut weights = Weights::new(10 * GIB);
    let held = |weights: &Weights<u64>| (weights.used_bytes() / GIB, weights.held_bytes() / GIB);
    load(&mut weights, 1, GIB);
    weights.claim(FunctionId::new(1), W1, GIB, When::Now, u64::MAX, &mut Vec::new()).unwrap();
    weights.claim(FunctionId::new(1), W2, GIB, When::Now, u64::MAX, &mut Vec::new()).unwrap();
    weights.forget(FunctionId::new(1));
    assert_eq!(held(&weights), (0, 1));
    // Loaded again before all forgot: what is confirmed is the older one.
    load(&mut weights, 1, 2 * GIB);
    assert_eq!(held(&weights), (2, 3));
    weights.uninstalled(FunctionId::new(1), W0);
    weights.uninstalled(FunctionId::new(1), W1);
    assert_eq!(held(&weights), (2, 3));
    weights.worker_gone(W2, G1);
    assert_eq!(held(&weights), (2, 3));
    weights.reaped(W2, G1);
    assert_eq!(held(&weights), (2, 2));
    // A copy that a worker made for itself goes with it.
    assert_eq!(
        weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Export)
    );
    assert_eq!(
        weights.claim(FunctionId::new(2), W1, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Host)
    );
    weights.worker_gone(W0, G1);
    assert_eq!(held(&weights), (3, 4));
    weights.reaped(W0, G1);
    assert_eq!(held(&weights), (3, 3));
    weights.forget(FunctionId::new(2));
    weights.uninstalled(FunctionId::new(2), W1);
    assert_eq!(held(&weights), (2, 2));
}

#[test]
fn a_call_that_cannot_wait_for_shared_weights_loads_a_copy() {
    let mut weights = Weights::new(2 * GIB);
    let claim = |weights: &mut Weights<u64>, worker| {
        weights.claim(FunctionId::new(1), worker, GIB, When::Now, u64::MAX, &mut Vec::new())
    };
    assert_eq!(claim(&mut weights, W0), Ok(Source::Export));
    assert_eq!(claim(&mut weights, W1), Ok(Source::Host));
    assert_eq!(weights.used_bytes(), 2 * GIB);
    assert_eq!(claim(&mut weights, W2), Err(NoRoom::InUse));
    assert!(!weights.loaded(FunctionId::new(1), W1, Some(7), GIB), "it was not asked");
    assert!(weights.loaded(FunctionId::new(1), W0, Some(7), GIB));
    weights.uninstalled(FunctionId::new(1), W1);
    assert_eq!(weights.used_bytes(), GIB);
}

#[test]
fn a_loader_that_tells_another_size_tells_that_of_all_copies() {
    let mut weights = Weights::new(10 * GIB);
    let mut claim =
        |worker| weights.claim(FunctionId::new(1), worker, GIB, When::Now, u64::MAX, &mut Vec::new());
    assert_eq!((claim(W0), claim(W1)), (Ok(Source::Export), Ok(Source::Host)));
    assert_eq!(weights.used_bytes(), 2 * GIB);
    assert!(weights.loaded(FunctionId::new(1), W0, Some(1), GIB + 1));
    assert_eq!(weights.used_bytes(), 2 * (GIB + 1));
    weights.forget(FunctionId::new(1));
    assert_eq!(weights.used_bytes(), 0);
}

#[test]
fn what_a_dying_worker_did_not_share_is_not_there() {
    let mut weights = Weights::<u64>::new(2 * GIB);
    assert_eq!(
        weights.claim(FunctionId::new(1), W0, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Export)
    );
    weights.worker_gone(W0, G1);
    assert_eq!(weights.used_bytes(), 0);
    assert_eq!(
        weights.claim(FunctionId::new(1), W1, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Export)
    );
    assert_eq!(
        weights.claim(FunctionId::new(1), W2, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Host)
    );
    weights.worker_gone(W1, G1);
    assert_eq!(weights.used_bytes(), GIB);
    weights.worker_gone(W2, G1);
    assert_eq!(weights.used_bytes(), 0);
}

#[test]
fn the_least_recently_used_of_equals_goes() {
    let mut weights = Weights::new(3 * GIB);
    for function in 1..=3 {
        load(&mut weights, function, GIB);
    }
    weights.begin(FunctionId::new(1), true);
    weights.end(FunctionId::new(1));
    assert_eq!(load(&mut weights, 4, GIB), [FunctionId::new(2)]);
    assert_eq!(load(&mut weights, 5, GIB), [FunctionId::new(3)]);
    assert_eq!(load(&mut weights, 6, GIB), [FunctionId::new(1)]);
}

#[test]
fn small_ones_cost_more_per_byte_and_stay() {
    let mut weights = Weights::new(2 * GIB);
    load(&mut weights, 1, 4096);
    load(&mut weights, 2, GIB);
    load(&mut weights, 3, GIB / 2);
    assert_eq!(load(&mut weights, 4, GIB), [FunctionId::new(2)]);
}

#[test]
fn what_calls_use_stays_and_what_cannot_fit_evicts_nothing() {
    let mut weights = Weights::new(2 * GIB);
    load(&mut weights, 1, GIB);
    load(&mut weights, 2, GIB);
    weights.begin(FunctionId::new(1), true);
    let mut evicted = Vec::new();
    assert_eq!(
        weights.claim(FunctionId::new(3), W0, 2 * GIB, When::Now, u64::MAX, &mut evicted),
        Err(NoRoom::InUse)
    );
    assert_eq!(evicted, []);
    assert_eq!(load(&mut weights, 3, GIB), [FunctionId::new(2)]);
    weights.end(FunctionId::new(1));
    assert_eq!(load(&mut weights, 4, 2 * GIB).len(), 2);
}

#[test]
fn a_call_that_outlives_its_weights_takes_none_from_the_next_one() {
    let mut weights = Weights::new(GIB);
    let one = FunctionId::new(1);
    load(&mut weights, 1, GIB);
    weights.begin(one, true);
    weights.forget(one);
    load(&mut weights, 1, GIB);
    weights.begin(one, true);
    // One of the two ends: which one, nobody knows here.
    weights.end(one);
    let mut claim =
        || weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()).is_ok();
    assert!(!claim());
    weights.end(one);
    assert!(weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()).is_ok());
}

/// What happens to weights in a random sequence: which event, which function, in which worker.
fn events() -> impl Strategy<Value = Vec<(u8, u64, usize)>> {
    proptest::collection::vec((0..13u8, 0..6u64, 0..3usize), 0..300)
}

proptest! {
    #[test]
    fn the_account_is_right_and_the_budget_is_kept(events in events()) {
        let mut weights = Weights::<u64>::new(20);
        let (mut zombies, mut processes, mut calls) = (Vec::new(), 0, [0u32; 6]);
        for (event, number, worker) in events {
            let (function, worker) = (FunctionId::new(number), WorkerId::new(worker));
            let bytes = 1 + number * 2;
            match event {
                0..=3 => {
                    let when = if event == 3 { When::Soon } else { When::Now };
                    let idle = |weights: &Weights<u64>, expected: bool| -> Vec<FunctionId> {
                        let waits = |function: &FunctionId| weights.ahead.values().any(|a| a.contains(function));
                        let all = weights.entries.iter().filter(|(_, entry)| entry.is_idle());
                        all.map(|(function, _)| *function).filter(|f| expected || !waits(f)).collect()
                    };
                    let may_go = idle(&weights, when == When::Now);
                    let mut evicted = Vec::new();
                    let claimed = weights.claim(function, worker, bytes, when, u64::MAX, &mut evicted);
                    prop_assert!(claimed.is_ok() || evicted.is_empty());
                    prop_assert!(!evicted.contains(&function));
                    prop_assert!(evicted.iter().all(|one| may_go.contains(one)), "{evicted:?} of {may_go:?}");
                    let before = (evicted.clone(), weights.held_bytes(), weights.leaving.len());
                    if event == 1 && claimed == Ok(Source::Export) {
                        let taken = weights.take_over(function, worker, &mut evicted);
                        if let Some(taken) = taken {
                            // What the other one had is this one's now, and nothing more.
                            prop_assert!(before.0.contains(&taken) && !evicted.contains(&taken));
                            prop_assert_eq!(weights.held_bytes(), before.1 - bytes);
                            prop_assert_eq!(weights.leaving.len(), before.2 - 1);
                        }
                    }
                }
                4 | 5 => {
                    weights.loaded(function, worker, Some(number), weights.entries.get(&function).map_or(bytes, |e| e.bytes));
                }
                6 => calls[number as usize] += u32::from(weights.begin(function, true)),
                7 => {
                    weights.end(function);
                    calls[number as usize] = calls[number as usize].saturating_sub(1);
                }
                // Told to forget it, and says so.
                8 => {
                    weights.told(function, worker);
                    prop_assert!(!weights.has(function, worker) || weights.entries[&function].holders.len() > 1);
                    weights.uninstalled(function, worker);
                }
                9 => match number % 2 {
                    0 => weights.forget(function),
                    // They do not load there: the worker says later that nothing is left.
                    _ => drop(weights.told(function, worker)),
                },
                10 => {
                    processes += 1;
                    weights.worker_gone(worker, Generation::new(processes));
                    zombies.push((worker, Generation::new(processes)));
                }
                11 => weights.expect(worker, vec![function]),
                _ => zombies.drain(..).for_each(|(worker, generation)| weights.reaped(worker, generation)),
            }
            let taken: u64 = weights.entries.values().map(Entry::taken_bytes).sum();
            prop_assert_eq!(weights.used_bytes(), taken);
            prop_assert!(taken <= 20);
            prop_assert!(weights.held_bytes() >= taken);
            for (function, calls) in (0..6).map(FunctionId::new).zip(calls) {
                let counted = weights.entries.get(&function).map(|entry| entry.calls);
                prop_assert_eq!(counted.or(weights.outliving.get(&function).copied()).unwrap_or(0), calls);
            }
            let idle = weights.entries.iter().filter(|(_, entry)| entry.is_idle());
            let mut idle: Vec<_> = idle.map(|(function, entry)| (entry.rank(), *function)).collect();
            idle.sort_unstable();
            prop_assert!(weights.idle.all().eq(idle.iter().copied()), "{:?} {idle:?}", weights.idle);
            let idle = idle.iter().map(|(_, function)| weights.entries[function].taken_bytes());
            prop_assert_eq!(weights.idle.bytes(), idle.sum::<u64>());
            let counts = weights.counts();
            prop_assert!(counts.hits <= counts.calls && counts.ahead.max(counts.reused) <= counts.loads);
        }
        // Once no worker is there and no call waits, nothing is taken.
        for worker in 0..3 {
            weights.worker_gone(WorkerId::new(worker), Generation::new(0));
            weights.reaped(WorkerId::new(worker), Generation::new(0));
        }
        zombies.drain(..).for_each(|(worker, generation)| weights.reaped(worker, generation));
        prop_assert!(weights.leaving.is_empty() && weights.ahead.is_empty());
        (0..6).for_each(|function| weights.forget(FunctionId::new(function)));
        prop_assert_eq!((weights.used_bytes(), weights.held_bytes()), (0, 0));
    }

    /// Whatever is in use: once it is not any more and all loads are over, everything that fits at all gets room.
    #[test]
    fn nothing_waits_for_ever(events in events(), last in 0..6u64) {
        let mut weights = Weights::<u64>::new(20);
        for (event, number, worker) in events {
            let (function, worker) = (FunctionId::new(number), WorkerId::new(worker));
            match event {
                0..=5 => drop(weights.claim(function, worker, 1 + number * 2, When::Now, u64::MAX, &mut Vec::new())),
                6..=8 => drop(weights.begin(function, true)),
                _ => weights.expect(worker, vec![function]),
            }
        }
        for number in 0..6 {
            let function = FunctionId::new(number);
            while weights.entries.get(&function).is_some_and(|entry| entry.calls > 0) {
                weights.end(function);
            }
            for worker in 0..3 {
                weights.loaded(function, WorkerId::new(worker), Some(0), 1 + number * 2);
            }
        }
        let claimed = weights.claim(FunctionId::new(last), W0, 1 + last * 2, When::Now, u64::MAX, &mut Vec::new());
        prop_assert!(claimed.is_ok(), "{claimed:?}");
    }
}

#[test]
fn what_replaces_weights_in_the_only_worker_that_has_them_takes_their_memory() {
    let mut weights = Weights::new(2 * GIB);
    load(&mut weights, 1, GIB);
    load(&mut weights, 2, GIB);
    let mut evicted = Vec::new();
    let mut claim = |weights: &mut Weights<u64>, function: u64, bytes: u64| {
        evicted.clear();
        let function = FunctionId::new(function);
        assert_eq!(weights.claim(function, W0, bytes, When::Now, u64::MAX, &mut evicted), Ok(Source::Export));
        let taken = weights.take_over(function, W0, &mut evicted);
        (taken.map(FunctionId::get), evicted.clone())
    };
    // Somewhat smaller ones do not need another memory; and the old one's name is theirs.
    assert_eq!(claim(&mut weights, 3, GIB - GIB / 16), (Some(1), vec![]));
    assert_eq!((weights.used_bytes(), weights.held_bytes()), (2 * GIB, 2 * GIB));
    assert!(weights.loaded(FunctionId::new(3), W0, None, GIB));
    assert_eq!(
        weights.claim(FunctionId::new(3), W1, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Device(1, GIB))
    );
    // Not if the sizes differ much, if the worker was told to let them go, or if another one has them, too.
    let mut others = Weights::new(GIB);
    load(&mut others, 1, GIB);
    assert_eq!(claim(&mut others, 2, GIB / 2), (None, vec![FunctionId::new(1)]));
    let mut others = Weights::new(GIB);
    load(&mut others, 1, GIB);
    assert!(others.told(FunctionId::new(1), W0) && !others.has(FunctionId::new(1), W0));
    assert_eq!(claim(&mut others, 2, GIB), (None, vec![FunctionId::new(1)]));
    let mut others = Weights::new(GIB);
    load(&mut others, 1, GIB);
    others.claim(FunctionId::new(1), W1, GIB, When::Now, u64::MAX, &mut Vec::new()).unwrap();
    assert_eq!(claim(&mut others, 2, GIB), (None, vec![FunctionId::new(1)]));
    assert_eq!(others.counts().reused, 0);
}

#[test]
fn what_is_needed_sooner_stays() {
    let mut weights = Weights::new(2 * GIB);
    load(&mut weights, 1, GIB);
    load(&mut weights, 2, GIB);
    let claim = |weights: &mut Weights<u64>, function: u64, when: When| {
        let mut evicted = Vec::new();
        let claimed = weights.claim(FunctionId::new(function), W0, GIB, when, u64::MAX, &mut evicted);
        (claimed.is_ok(), evicted)
    };
    // Calls of 1, then of 3 are about to start: 2 goes for 3, though it came last.
    weights.expect(W0, vec![FunctionId::new(1), FunctionId::new(3)]);
    assert_eq!(claim(&mut weights, 3, When::Soon), (true, vec![FunctionId::new(2)]));
    // While they are on their way, and for a call that comes later, they stay.
    assert_eq!(claim(&mut weights, 4, When::Soon), (false, vec![]));
    assert!(weights.loaded(FunctionId::new(3), W0, Some(3), GIB));
    assert_eq!(claim(&mut weights, 4, When::Soon), (false, vec![]));
    // A call that starts comes before those that wait.
    assert_eq!(claim(&mut weights, 4, When::Now), (true, vec![FunctionId::new(1)]));
    assert_eq!((weights.counts().loads, weights.counts().ahead, weights.counts().evictions), (4, 1, 2));
}

#[test]
fn weights_that_are_on_their_way_do_not_go() {
    let mut weights = Weights::<u64>::new(GIB);
    weights.claim(FunctionId::new(1), W0, GIB, When::Soon, u64::MAX, &mut Vec::new()).unwrap();
    let in_use = Err(NoRoom::InUse);
    assert_eq!(weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()), in_use);
    // Unless they will not come.
    weights.told(FunctionId::new(1), W0);
    assert_eq!(weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()), in_use);
    weights.uninstalled(FunctionId::new(1), W0);
    assert_eq!(
        weights.claim(FunctionId::new(2), W0, GIB, When::Now, u64::MAX, &mut Vec::new()),
        Ok(Source::Export)
    );
}

#[test]
fn what_is_used_often_stays_longer() {
    let mut weights = Weights::new(2 * GIB);
    load(&mut weights, 1, GIB);
    for _ in 0..9 {
        weights.begin(FunctionId::new(1), true);
        weights.end(FunctionId::new(1));
    }
    // Others come and go beside it, and at last it goes, too.
    assert_eq!(load(&mut weights, 2, GIB), []);
    let gone = (3..30).position(|function| load(&mut weights, function, GIB) == [FunctionId::new(1)]);
    assert!(gone.is_some_and(|gone| (5..20).contains(&gone)), "{gone:?}");
}

#[test]
fn an_owner_gets_what_it_may_have_and_its_own_give_way() {
    const OWNER: TenantId = TenantId::new(7);
    let mut weights = Weights::<u64>::new(100);
    let load = |weights: &mut Weights<u64>, function: u64, worker: WorkerId, owner: TenantId, room: u64| {
        let mut evicted = Vec::new();
        let fits = weights.fit_owner(owner, 10, room, &mut evicted);
        if fits.is_ok() {
            weights.claim(FunctionId::new(function), worker, 10, When::Now, u64::MAX, &mut evicted).unwrap();
            weights.own(FunctionId::new(function), owner);
        }
        (fits, evicted)
    };
    assert_eq!(load(&mut weights, 1, W0, OWNER, 9), (Err(0), vec![]));
    assert_eq!(load(&mut weights, 1, W0, OWNER, 20), (Ok(()), vec![]));
    // A worker that loads them for itself takes as much again.
    assert_eq!(load(&mut weights, 1, W1, OWNER, 20), (Ok(()), vec![]));
    assert_eq!(weights.used_by(OWNER), 20);
    assert!(
        weights.loaded(FunctionId::new(1), W0, Some(0), 10)
            && weights.loaded(FunctionId::new(1), W1, None, 10)
    );
    weights.begin(FunctionId::new(1), true);
    assert_eq!(load(&mut weights, 2, W0, OWNER, 20), (Err(20), vec![]), "under a call they stay");
    weights.end(FunctionId::new(1));
    assert_eq!(load(&mut weights, 3, W0, TenantId::new(8), 10), (Ok(()), vec![]), "another's are another's");
    assert_eq!(load(&mut weights, 2, W0, OWNER, 20), (Ok(()), vec![FunctionId::new(1)]));
    assert_eq!((weights.used_by(OWNER), weights.used_by(TenantId::new(8))), (10, 10));
}

#[test]
fn weights_take_what_calls_leave_them() {
    let (mut weights, mut evicted) = (Weights::<u32>::new(4 * GIB), Vec::new());
    let mut claim = |weights: &mut Weights<u32>, function: u64, room: u64| {
        evicted.clear();
        let claimed = weights.claim(FunctionId::new(function), W1, GIB, When::Now, room, &mut evicted);
        weights.loaded(FunctionId::new(function), W1, Some(0), GIB);
        (claimed.map(drop), evicted.len())
    };
    assert_eq!(claim(&mut weights, 1, GIB - 1), (Err(NoRoom::Short), 0));
    assert_eq!(claim(&mut weights, 1, GIB), (Ok(()), 0));
    // Others give way before calls have to.
    assert_eq!(claim(&mut weights, 2, 0), (Ok(()), 1));
    weights.begin(FunctionId::new(2), true);
    assert_eq!(claim(&mut weights, 3, 0), (Err(NoRoom::Short), 0));
}

#[test]
fn weights_that_no_call_uses_are_given_up() {
    let (mut weights, mut evicted) = (Weights::<u32>::new(4 * GIB), Vec::new());
    for function in 1..4 {
        weights.claim(FunctionId::new(function), W1, GIB, When::Now, u64::MAX, &mut evicted).unwrap();
        weights.loaded(FunctionId::new(function), W1, Some(0), GIB);
    }
    weights.begin(FunctionId::new(1), true);
    assert_eq!(weights.give_up(1, &mut evicted), GIB, "its worker has it until it says that it forgot it");
    assert_eq!((weights.used_bytes(), weights.held_bytes()), (2 * GIB, 3 * GIB));
    weights.uninstalled(evicted[0], W1);
    assert_eq!(weights.held_bytes(), 2 * GIB);
    assert_eq!(weights.give_up(5 * GIB, &mut evicted), GIB);
    assert_eq!(weights.give_up(1, &mut evicted), 0, "a call uses the last one");
}

#[test]
fn what_was_never_sent_is_not_waited_for() {
    let mut weights = Weights::<u64>::new(4 * GIB);
    weights.claim(FunctionId::new(1), W0, GIB, When::Now, u64::MAX, &mut Vec::new()).unwrap();
    weights.not_sent(FunctionId::new(1), W0);
    assert_eq!((weights.used_bytes(), weights.held_bytes()), (0, 0));
    // The same where the function was gone before that was said.
    weights.claim(FunctionId::new(1), W0, GIB, When::Now, u64::MAX, &mut Vec::new()).unwrap();
    weights.forget(FunctionId::new(1));
    assert_eq!((weights.used_bytes(), weights.held_bytes()), (0, GIB));
    weights.not_sent(FunctionId::new(1), W0);
    assert_eq!(weights.held_bytes(), 0);
}

#[test]
fn a_copy_of_its_own_does_not_take_the_name_of_what_another_loads() {
    let mut weights = Weights::new(3 * GIB);
    load(&mut weights, 1, 2 * GIB);
    let mut evicted = Vec::new();
    let two = FunctionId::new(2);
    assert_eq!(weights.claim(two, W0, 2 * GIB, When::Now, u64::MAX, &mut evicted), Ok(Source::Export));
    assert_eq!(weights.take_over(two, W0, &mut evicted), Some(FunctionId::new(1)));
    // Another one loads them for itself, and is done first.
    weights.budget_bytes = 9 * GIB;
    assert_eq!(weights.claim(two, W1, 2 * GIB, When::Now, u64::MAX, &mut evicted), Ok(Source::Host));
    assert!(weights.loaded(two, W1, None, 2 * GIB));
    assert!(weights.loaded(two, W0, None, 2 * GIB), "in memory whose name is known");
    assert_eq!(
        weights.claim(two, W2, 2 * GIB, When::Now, u64::MAX, &mut evicted),
        Ok(Source::Device(1, 2 * GIB))
    );
}

#[test]
fn the_lowest_goes_and_what_is_expected_goes_last() {
    let [a, b, c] = [1, 2, 3].map(FunctionId::new);
    let rank = |priority: f64, used| (priority.to_bits(), used);
    let mut idle = IdleWeights::default();
    idle.add(rank(2.0, 1), a, 10);
    idle.add(rank(0.5, 3), b, 20);
    idle.add(rank(0.5, 2), c, 30);
    assert_eq!((idle.lowest(&[], |_| false), idle.bytes()), (Some(c), 60));
    assert_eq!(idle.lowest(&[c], |_| false), Some(b));
    assert_eq!(idle.lowest(&[], |function| function != a), Some(a));
    assert_eq!(idle.lowest(&[a], |_| true), Some(c));
    idle.remove(rank(0.5, 2), 30);
    assert_eq!((idle.lowest(&[], |_| false), idle.bytes()), (Some(b), 30));
    assert_eq!(idle.lowest(&[a, b], |_| false), None);
}
