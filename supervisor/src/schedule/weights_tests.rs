//! Small cases of the weights on a device, and random ones against what must always hold.

use proptest::prelude::*;

use super::*;
use crate::ids::{FunctionId, TenantId, WorkerId};

const W0: WorkerId = WorkerId::new(0);
const W1: WorkerId = WorkerId::new(1);
const W2: WorkerId = WorkerId::new(2);
const GIB: u64 = 1 << 30;

/// Loads a function's weights in worker 0 and shares them.
fn load(weights: &mut Weights<u64>, function: u64, bytes: u64) -> Vec<FunctionId> {
    let mut evicted = Vec::new();
    assert_eq!(weights.claim(FunctionId::new(function), W0, bytes, &mut evicted), Ok(Source::Export));
    assert!(weights.exported(FunctionId::new(function), W0, function, bytes));
    evicted
}

#[test]
fn weights_are_loaded_once_and_shared() {
    let mut weights = Weights::new(10 * GIB);
    assert_eq!(load(&mut weights, 1, GIB), []);
    for worker in 1..4 {
        assert_eq!(
            weights.claim(FunctionId::new(1), WorkerId::new(worker), GIB, &mut Vec::new()),
            Ok(Source::Device(1, GIB))
        );
    }
    assert_eq!(weights.used_bytes(), GIB);
    // Sharing them outlives the worker that loaded them.
    weights.worker_gone(W0);
    assert_eq!(weights.claim(FunctionId::new(1), W0, GIB, &mut Vec::new()), Ok(Source::Device(1, GIB)));
    weights.forget(FunctionId::new(1));
    assert_eq!(weights.used_bytes(), 0);
}

#[test]
fn weights_count_until_every_worker_forgot_them_or_is_reaped() {
    let mut weights = Weights::new(10 * GIB);
    let held = |weights: &Weights<u64>| (weights.used_bytes() / GIB, weights.held_bytes() / GIB);
    load(&mut weights, 1, GIB);
    weights.claim(FunctionId::new(1), W1, GIB, &mut Vec::new()).unwrap();
    weights.claim(FunctionId::new(1), W2, GIB, &mut Vec::new()).unwrap();
    weights.forget(FunctionId::new(1));
    assert_eq!(held(&weights), (0, 1));
    // Loaded again before all forgot: what is confirmed is the older one.
    load(&mut weights, 1, 2 * GIB);
    assert_eq!(held(&weights), (2, 3));
    weights.uninstalled(FunctionId::new(1), W0);
    weights.uninstalled(FunctionId::new(1), W1);
    assert_eq!(held(&weights), (2, 3));
    let zombie = weights.worker_gone(W2);
    assert_eq!(held(&weights), (2, 3));
    weights.reaped(zombie);
    assert_eq!(held(&weights), (2, 2));
    // A copy that a worker made for itself goes with it.
    assert_eq!(weights.claim(FunctionId::new(2), W0, GIB, &mut Vec::new()), Ok(Source::Export));
    assert_eq!(weights.claim(FunctionId::new(2), W1, GIB, &mut Vec::new()), Ok(Source::Host));
    let zombie = weights.worker_gone(W0);
    assert_eq!(held(&weights), (3, 4));
    weights.reaped(zombie);
    assert_eq!(held(&weights), (3, 3));
    weights.forget(FunctionId::new(2));
    weights.uninstalled(FunctionId::new(2), W1);
    assert_eq!(held(&weights), (2, 2));
}

#[test]
fn a_call_that_cannot_wait_for_shared_weights_loads_a_copy() {
    let mut weights = Weights::new(2 * GIB);
    let claim =
        |weights: &mut Weights<u64>, worker| weights.claim(FunctionId::new(1), worker, GIB, &mut Vec::new());
    assert_eq!(claim(&mut weights, W0), Ok(Source::Export));
    assert_eq!(claim(&mut weights, W1), Ok(Source::Host));
    assert_eq!(weights.used_bytes(), 2 * GIB);
    assert_eq!(claim(&mut weights, W2), Err(NoRoom { budget_bytes: 2 * GIB, short: false }));
    assert!(!weights.exported(FunctionId::new(1), W1, 7, GIB), "it was not asked");
    assert!(weights.exported(FunctionId::new(1), W0, 7, GIB));
    weights.uninstalled(FunctionId::new(1), W1);
    assert_eq!(weights.used_bytes(), GIB);
}

#[test]
fn what_a_dying_worker_did_not_share_is_not_there() {
    let mut weights = Weights::<u64>::new(2 * GIB);
    assert_eq!(weights.claim(FunctionId::new(1), W0, GIB, &mut Vec::new()), Ok(Source::Export));
    weights.worker_gone(W0);
    assert_eq!(weights.used_bytes(), 0);
    assert_eq!(weights.claim(FunctionId::new(1), W1, GIB, &mut Vec::new()), Ok(Source::Export));
    assert_eq!(weights.claim(FunctionId::new(1), W2, GIB, &mut Vec::new()), Ok(Source::Host));
    weights.worker_gone(W1);
    assert_eq!(weights.used_bytes(), GIB);
    weights.worker_gone(W2);
    assert_eq!(weights.used_bytes(), 0);
}

#[test]
fn the_least_recently_used_of_equals_goes() {
    let mut weights = Weights::new(3 * GIB);
    for function in 1..=3 {
        load(&mut weights, function, GIB);
    }
    weights.begin(FunctionId::new(1));
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
    weights.begin(FunctionId::new(1));
    let mut evicted = Vec::new();
    assert_eq!(
        weights.claim(FunctionId::new(3), W0, 2 * GIB, &mut evicted),
        Err(NoRoom { budget_bytes: 2 * GIB, short: false })
    );
    assert_eq!(evicted, []);
    assert_eq!(load(&mut weights, 3, GIB), [FunctionId::new(2)]);
    weights.end(FunctionId::new(1));
    assert_eq!(load(&mut weights, 4, 2 * GIB).len(), 2);
}

proptest! {
    #[test]
    fn the_account_is_right_and_the_budget_is_kept(
        events in proptest::collection::vec((0..9u8, 0..6u64, 0..3usize), 0..300)
    ) {
        let mut weights = Weights::<u64>::new(20);
        let mut zombies = Vec::new();
        for (event, function, worker) in events {
            let bytes = 1 + function * 2;
            match event {
                0 | 1 => {
                    let mut evicted = Vec::new();
                    let claimed = weights.claim(FunctionId::new(function), WorkerId::new(worker), bytes, &mut evicted);
                    prop_assert!(claimed.is_ok() || evicted.is_empty());
                    prop_assert!(!evicted.contains(&FunctionId::new(function)));
                }
                2 => {
                    weights.exported(FunctionId::new(function), WorkerId::new(worker), function, bytes);
                }
                3 => weights.begin(FunctionId::new(function)),
                4 => weights.end(FunctionId::new(function)),
                5 => {
                    // Told to forget it, and says so.
                    weights.uninstalled(FunctionId::new(function), WorkerId::new(worker));
                }
                6 => weights.forget(FunctionId::new(function)),
                7 => zombies.push(weights.worker_gone(WorkerId::new(worker))),
                _ => zombies.drain(..).for_each(|zombie| weights.reaped(zombie)),
            }
            let taken: u64 = weights.entries.values().map(Entry::taken_bytes).sum();
            prop_assert_eq!(weights.used_bytes(), taken);
            prop_assert!(taken <= 20);
            prop_assert!(weights.held_bytes() >= taken);
        }
        // Once no worker is there and no call waits, nothing is taken.
        for worker in 0..3 {
            zombies.push(weights.worker_gone(WorkerId::new(worker)));
        }
        zombies.drain(..).for_each(|zombie| weights.reaped(zombie));
        prop_assert!(weights.leaving.is_empty());
        (0..6).for_each(|function| weights.forget(FunctionId::new(function)));
        prop_assert_eq!((weights.used_bytes(), weights.held_bytes()), (0, 0));
    }
}

#[test]
fn an_owner_gets_what_it_may_have_and_its_own_give_way() {
    const OWNER: TenantId = TenantId::new(7);
    let mut weights = Weights::<u64>::new(100);
    let load = |weights: &mut Weights<u64>, function: u64, worker: WorkerId, owner: TenantId, room: u64| {
        let mut evicted = Vec::new();
        let promised = weights.reserve(FunctionId::new(function), worker, (owner, 10), room, &mut evicted);
        if promised.is_ok() {
            weights.claim(FunctionId::new(function), worker, 10, &mut evicted).unwrap();
            weights.own(FunctionId::new(function), owner);
        }
        weights.settled(FunctionId::new(function), worker);
        (promised, evicted)
    };
    assert_eq!(load(&mut weights, 1, W0, OWNER, 9), (Err(10), vec![]));
    assert_eq!(load(&mut weights, 1, W0, OWNER, 20), (Ok(()), vec![]));
    // A worker that loads them for itself takes as much again; where they are there, nothing more.
    assert_eq!(load(&mut weights, 1, W1, OWNER, 20), (Ok(()), vec![]));
    assert_eq!(weights.reserve(FunctionId::new(1), W1, (OWNER, 10), 0, &mut Vec::new()), Ok(()));
    assert_eq!(weights.used_by(OWNER), 20);
    weights.begin(FunctionId::new(1));
    assert_eq!(load(&mut weights, 2, W0, OWNER, 20), (Err(10), vec![]), "under a call they stay");
    weights.end(FunctionId::new(1));
    assert_eq!(load(&mut weights, 3, W0, TenantId::new(8), 10), (Ok(()), vec![]), "another's are another's");
    assert_eq!(load(&mut weights, 2, W0, OWNER, 20), (Ok(()), vec![FunctionId::new(1)]));
    assert_eq!((weights.used_by(OWNER), weights.used_by(TenantId::new(8))), (10, 10));
    // What is promised counts until it is settled.
    weights.reserve(FunctionId::new(4), W1, (OWNER, 10), 20, &mut Vec::new()).unwrap();
    assert_eq!(weights.used_by(OWNER), 20);
    weights.settled(FunctionId::new(4), W1);
    assert_eq!(weights.used_by(OWNER), 10);
}

#[test]
fn weights_take_what_calls_leave_them() {
    let (mut weights, mut evicted) = (Weights::<u32>::new(4 * GIB), Vec::new());
    let mut claim = |weights: &mut Weights<u32>, function: u64, room: u64| {
        weights.set_room(room);
        evicted.clear();
        let claimed = weights.claim(FunctionId::new(function), W1, GIB, &mut evicted);
        (claimed.map(drop), evicted.len())
    };
    assert_eq!(claim(&mut weights, 1, GIB - 1), (Err(NoRoom { budget_bytes: 4 * GIB, short: true }), 0));
    assert_eq!(claim(&mut weights, 1, GIB), (Ok(()), 0));
    // Others give way before calls have to.
    assert_eq!(claim(&mut weights, 2, 0), (Ok(()), 1));
    weights.begin(FunctionId::new(2));
    assert_eq!(claim(&mut weights, 3, 0), (Err(NoRoom { budget_bytes: 4 * GIB, short: true }), 0));
}

#[test]
fn weights_that_no_call_uses_are_given_up() {
    let (mut weights, mut evicted) = (Weights::<u32>::new(4 * GIB), Vec::new());
    for function in 1..4 {
        weights.claim(FunctionId::new(function), W1, GIB, &mut evicted).unwrap();
        weights.exported(FunctionId::new(function), W1, 0, GIB);
    }
    weights.begin(FunctionId::new(1));
    assert_eq!(weights.give_up(1, &mut evicted), GIB, "its worker has it until it says that it forgot it");
    assert_eq!((weights.used_bytes(), weights.held_bytes()), (2 * GIB, 3 * GIB));
    weights.uninstalled(evicted[0], W1);
    assert_eq!(weights.held_bytes(), 2 * GIB);
    assert_eq!(weights.give_up(5 * GIB, &mut evicted), GIB);
    assert_eq!(weights.give_up(1, &mut evicted), 0, "a call uses the last one");
}
