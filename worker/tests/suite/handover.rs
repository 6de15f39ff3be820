//! A worker that is scrubbed for another domain is like a fresh one. Workers here do not clear between calls, so that
//! the scrub alone has to do it; without one, the same probes find what was left.

use pappus_protocol::FaultCode;

use super::UnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, ptr};
use crate::harness::{Call, Worker, target};

const BYTES: u64 = 64 << 10;

/// Leaves a pattern in the pool and in the probe module's variables.
fn leave<T: UnderTest>(worker: &mut Worker) {
    let fill = launch("fill", &[ptr("out"), i64(0xaa), i64(BYTES)].join(","));
    worker.install(1, &filling(BYTES, &[fill]), T::probes(), &[]);
    worker.install(2, &filling(8, &[launch("module_global", &ptr("out"))]), T::probes(), &[]);
    worker.call(1, &[], &[BYTES]).unwrap();
    worker.call(2, &[], &[8]).unwrap();
    // Not over the pattern's end.
    worker.call(1, &[], &[BYTES]).unwrap();
}

/// What is in the pool, and in the variables.
fn found<T: UnderTest>(worker: &mut Worker) -> (bool, Vec<Vec<u8>>) {
    worker.install(3, &filling(BYTES, &[launch("work", "")]), T::probes(), &[]);
    let pool = worker.call(3, &[], &[BYTES]).unwrap();
    worker.install(2, &filling(8, &[launch("module_global", &ptr("out"))]), T::probes(), &[]);
    (pool[0].contains(&0xaa), worker.call(2, &[], &[8]).unwrap())
}

pub fn memory_is_empty_for_the_next_domain<T: UnderTest>() {
    let mut fresh = T::worker();
    let expected = found::<T>(&mut fresh);
    assert!(!expected.0);
    fresh.end().unwrap();
    let mut control = T::uncleared_worker();
    leave::<T>(&mut control);
    assert!(found::<T>(&mut control).0, "the control finds nothing");
    control.end().unwrap();
    let mut worker = T::uncleared_worker();
    for _ in 0..3 {
        leave::<T>(&mut worker);
        worker.scrub();
        assert_eq!(found::<T>(&mut worker), expected);
    }
    worker.end().unwrap();
}

pub fn nothing_is_installed_for_the_next_domain<T: UnderTest>() {
    let mut worker = T::worker();
    let json = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", 256)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(256)].join(","))],
    }
    .json();
    worker.install(1, &json, T::probes(), &[&[0xaa; 256]]);
    assert_eq!(worker.call(1, &[], &[256]).unwrap(), [[0xaa; 256]]);
    worker.scrub();
    let gone = worker.call(1, &[], &[256]).unwrap_err();
    assert_eq!(gone.code, FaultCode::BadInvoke, "{gone}");
    // Arenas of the one before are closed: another one may have the number.
    let kept = pappus_shmem::memfd::arena("second", 4096).unwrap();
    worker.open_arena(9, &kept);
    worker.scrub();
    worker.install(1, &json, T::probes(), &[&[0xbb; 256]]);
    let call = Call { outputs: vec![target(9, 0, 256)], ..worker.arena_call(1, &[], &[256]) };
    let gone = worker.invoke(&call).unwrap_err();
    assert!(gone.message.contains("arena 9 is not open"), "{gone}");
    worker.open_arena(9, &kept);
    assert_eq!(worker.call(1, &[], &[256]).unwrap(), [[0xbb; 256]]);
    worker.end().unwrap();
}

pub fn staging_is_empty_for_the_next_domain<T: UnderTest>() {
    let mut worker = T::worker();
    // As the supervisor stages it, and as no call clears it.
    let bytes = worker.staging.bytes();
    worker.staging.fill(0, bytes, 0xaa).unwrap();
    worker.scrub();
    let mut left = vec![1; bytes as usize];
    worker.staging.read(0, &mut left).unwrap();
    assert!(left.iter().all(|byte| *byte == 0));
    worker.end().unwrap();
}

pub fn a_scrubbed_worker_serves_on<T: UnderTest>() {
    let mut worker = T::worker();
    for round in 0..4u8 {
        let size = r#"{"Sizeof": "in"}"#;
        let copy = launch("copy", &[ptr("in"), ptr("out"), format!(r#"{{"I64": {size}}}"#)].join(","));
        let json = Blueprint {
            inputs: &["in"],
            weights: &[],
            buffers: &[("out", 64)],
            outputs: &["out"],
            steps: &[copy],
        }
        .json();
        worker.install(1, &json, T::probes(), &[]);
        assert_eq!(worker.call(1, &[&[round; 64]], &[64]).unwrap(), [[round; 64]]);
        worker.scrub();
        // A second one finds nothing to do.
        worker.scrub();
    }
    worker.end().unwrap();
}
