//! No call finds anything of an earlier one. Every probe runs on a worker that does not clear as well,
//! where it must find something: a probe that sees nothing there proves nothing here.

use super::UnderTest;
use super::blueprints::{filling, i64, launch, launch_on, ptr};
use crate::harness::Worker;

/// Runs `dirty` and then `probe` on a worker that clears and on one that does not: the probe must see
/// the same as on a fresh worker on the first, and something else on the second.
fn check<T: UnderTest>(bytes: u64, dirty: &[String], probe: &[String]) {
    let seen = |mut worker: Worker, after: Option<&[String]>| {
        worker.install(2, &filling(bytes, probe), T::probes(), &[]);
        if let Some(dirty) = after {
            worker.install(1, &filling(bytes, dirty), T::probes(), &[]);
            let _ = worker.call(1, &[], &[bytes]);
            // A second call of the same function must not see the first one's bytes either.
            let _ = worker.call(2, &[], &[bytes]);
        }
        let seen = worker.call(2, &[], &[bytes]).unwrap();
        worker.end().unwrap();
        seen
    };
    let fresh = seen(T::worker(), None);
    assert_eq!(seen(T::worker(), Some(dirty)), fresh);
    assert_ne!(seen(T::uncleared_worker(), Some(dirty)), fresh, "the probe sees nothing");
}

fn fill(bytes: u64) -> String {
    launch("fill", &[ptr("out"), i64(0xaa), i64(bytes)].join(","))
}

pub fn the_pool<T: UnderTest>() {
    // 1000 bytes leave tails of alignment and pages.
    check::<T>(1000, &[fill(1000)], &[launch("work", "")]);
}

pub fn the_pool_beyond_the_plan<T: UnderTest>() {
    // The first call's plan has 256 bytes; what it writes behind them is found by a larger plan.
    let mut worker = T::worker();
    worker.install(1, &filling(100, &[fill(4096)]), T::probes(), &[]);
    worker.install(2, &filling(8192, &[launch("work", "")]), T::probes(), &[]);
    worker.call(1, &[], &[100]).unwrap();
    assert_eq!(worker.call(2, &[], &[8192]).unwrap(), [vec![0; 8192]]);
    worker.end().unwrap();
}

pub fn module_globals<T: UnderTest>() {
    let probe = [launch("module_global", &ptr("out"))];
    check::<T>(8, &probe, &probe);
}

pub fn local_memory<T: UnderTest>() {
    let probe = [launch("local_memory", &ptr("out"))];
    check::<T>(8, &probe, &probe);
}

pub fn the_stack_pointer<T: UnderTest>() {
    let probe = [launch("stack_pointer", &ptr("out"))];
    check::<T>(8, &probe, &probe);
}

pub fn shared_memory<T: UnderTest>() {
    // Within a call, a launch finds its shared memory zeroed even so: the control is one launch.
    let mut worker = T::worker();
    let probe = launch_on("shared_memory", &ptr("out"), [1, 1, 1], 1024);
    let twice = [probe.clone(), probe];
    worker.install(1, &filling(8, &twice), T::probes(), &[]);
    for _ in 0..2 {
        assert_eq!(worker.call(1, &[], &[8]).unwrap(), [[0; 8]]);
    }
    worker.end().unwrap();
}

pub fn parameters<T: UnderTest>() {
    // Looks behind its own two parameters, then leaves four.
    let probe = launch("arguments", &[ptr("out"), i64(24)].join(","));
    let dirty = launch("divide", &[i64(1), i64(2), i64(3), i64(4)].join(","));
    let steps = [probe, dirty];
    check::<T>(8, &steps, &steps);
}

pub fn after_faults<T: UnderTest>() {
    let probe = [launch("module_global", &ptr("out"))];
    let dirty = [fill(8), probe[0].clone()];
    for fault in [launch("trap", ""), launch("divide", &i64(0))] {
        let dirty = [&dirty[..], &[fault]].concat();
        check::<T>(8, &dirty, &probe);
        check::<T>(8, &dirty, &[launch("work", "")]);
    }
    // Ended by the deadline: everything ran, the answer came too late.
    let mut worker = T::worker();
    worker.install(1, &filling(8, &dirty), T::probes(), &[]);
    worker.install(2, &filling(8, &[launch("work", "")]), T::probes(), &[]);
    let mut late = worker.arena_call(1, &[], &[8]);
    late.deadline_ns = pappus_protocol::now_ns() + 20_000;
    for _ in 0..20 {
        let _ = worker.invoke(&late);
        assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[0; 8]]);
        late.deadline_ns = pappus_protocol::now_ns() + 20_000;
    }
    worker.end().unwrap();
}
