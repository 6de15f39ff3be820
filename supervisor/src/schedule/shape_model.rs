//! Devices and answers to failures for the model, at random; and a grant as its worker knows it.

use proptest::prelude::*;

use super::{MEMORY, OTHERS};
use crate::schedule::{Policy, Shape};

const MS: u64 = 1_000_000;

/// A worker with a grant, as it knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) turn: u64,
    pub(super) granted_ns: u64,
    pub(super) revoked: bool,
}

/// Small devices of every kind.
pub(super) fn shapes() -> impl Strategy<Value = Shape> {
    let residency_ms = prop_oneof![Just(0), 1..200u64];
    let parts = (1..4usize, 1..4u32, 1..4usize, any::<bool>(), prop::bool::weighted(0.2), any::<bool>());
    let shared = prop_oneof![2 => Just(0), 1 => Just(1), 1 => Just(2)];
    let stuck_ns = prop_oneof![Just(u64::MAX), Just(40 * MS)];
    (parts, residency_ms, 1..4usize, 2..6u64, (shared, stuck_ns)).prop_map(
        |(parts, residency_ms, starting, functions, (shared, shared_stuck_ns))| {
            let (workers, lanes, workers_per_domain, turns, shared_faults, scrubs) = parts;
            let residency_ns = residency_ms * MS;
            let quantum_us = turns.then_some(5000);
            Shape {
                workers_per_domain,
                shared_workers: shared.min(workers - 1),
                shared_stuck_ns,
                quantum_us,
                residency_ns,
                shared_faults,
                scrubs,
                standbys: 1,
                starting,
                memory_bytes: MEMORY,
                weights_bytes: functions * OTHERS,
                ..Shape::new(workers, lanes)
            }
        },
    )
}

/// Budgets that never come back in a case, and some that do.
pub(super) fn policies() -> impl Strategy<Value = Policy> {
    let budget = prop_oneof![Just(0), Just(2), Just(600), Just(6000)];
    let overrun = prop_oneof![Just(0), Just(100)];
    let parts = (0..4u32, budget, 1..100u64, overrun, any::<bool>());
    parts.prop_map(|(quarantine_after, fault_budget, grace_ms, overrun_ms, polls)| Policy {
        quarantine_after,
        fault_budget,
        cancel_grace_ns: grace_ms * MS,
        overrun_ns: overrun_ms * MS,
        polls,
    })
}
