//! Memory of lanes comes and goes: what comes again holds nothing of before, and calls go on as if it had stayed.

use std::os::fd::AsFd;

use pappus_protocol::FaultCode;
use pappus_protocol::to_worker::{Load, WeightsForm};
use pappus_shmem::memfd;

use super::UnderTest;
use super::blueprints::{Blueprint, filling, i64, launch, ptr};
use crate::harness::Worker;

const BYTES: u64 = 64 << 10;
/// Less than the least memory of a lane.
const PART: u64 = 1024;

/// Leaves a pattern all over the lane's memory, which is not cleared behind the call where `worker` is uncleared.
fn leave<T: UnderTest>(worker: &mut Worker) {
    let fill = launch("fill", &[ptr("out"), i64(0xaa), i64(BYTES)].join(","));
    worker.install(1, &filling(BYTES, &[fill]), T::probes(), &[]);
    worker.call(1, &[], &[BYTES]).unwrap();
}

/// True if the pattern is found.
fn finds<T: UnderTest>(worker: &mut Worker) -> bool {
    worker.install(2, &filling(BYTES, &[launch("work", "")]), T::probes(), &[]);
    worker.call(2, &[], &[BYTES]).unwrap()[0].contains(&0xaa)
}

pub fn memory_is_empty_when_it_comes_again<T: UnderTest>() {
    let mut control = T::uncleared_worker();
    leave::<T>(&mut control);
    assert!(finds::<T>(&mut control), "the control finds nothing");
    control.end().unwrap();
    let mut worker = T::uncleared_worker();
    for _ in 0..3 {
        leave::<T>(&mut worker);
        assert_eq!(worker.give_back(1), 0);
        assert!(!finds::<T>(&mut worker), "memory came back with what was in it");
    }
    worker.end().unwrap();
}

pub fn lanes_grow_and_give_back<T: UnderTest>() {
    let mut worker = T::worker();
    assert_eq!(worker.give_back(1), 0, "nothing is lent before a call needs it");
    let large = 4 * T::LANE_BYTES;
    worker.install(1, &filling(PART, &[launch("work", "")]), T::probes(), &[]);
    worker.install(2, &filling(large, &[launch("work", "")]), T::probes(), &[]);
    for _ in 0..2 {
        worker.lane_bytes = T::SMALL_LANE_BYTES;
        worker.call(1, &[], &[PART]).unwrap();
        assert_eq!(worker.call(2, &[], &[0]).unwrap_err().code, FaultCode::OutOfMemory);
        assert_eq!(worker.give_back(0), T::SMALL_LANE_BYTES);
        worker.lane_bytes = large;
        assert_eq!(
            worker.call(2, &[], &[0]).unwrap_err().code,
            FaultCode::BadInvoke,
            "no room for the output"
        );
        worker.call(1, &[], &[PART]).unwrap();
        assert_eq!(worker.give_back(0), large);
        // What it has stays, whatever it is lent from then on.
        worker.lane_bytes = T::SMALL_LANE_BYTES;
        worker.call(1, &[], &[PART]).unwrap();
        assert_eq!((worker.give_back(0), worker.give_back(1)), (large, 0));
    }
    worker.end().unwrap();
}

pub fn calls_that_come_again_survive_the_loss_of_their_memory<T: UnderTest>() {
    let mut worker = T::worker();
    let fill = launch("fill", &[ptr("out"), i64(7), i64(1000)].join(","));
    worker.install(1, &filling(1000, &[fill.clone(), fill]), T::probes(), &[]);
    for _ in 0..4 {
        // From the fifth on, a device that makes graphs runs one.
        for _ in 0..6 {
            assert_eq!(worker.call(1, &[], &[1000]).unwrap(), [[7; 1000]]);
        }
        worker.give_back(1);
    }
    worker.end().unwrap();
}

/// Bytes of weights that a kernel looks at.
const LOOK: usize = 4096;

/// A function that returns what lies where its weights begin, as far as `LOOK`.
fn looking<T: UnderTest>(worker: &mut Worker, function: u64, weights: &[u8]) {
    let json = Blueprint {
        inputs: &[],
        weights: &["w"],
        buffers: &[("out", LOOK as u64)],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), i64(LOOK as u64)].join(","))],
    };
    worker.install_without_weights(function, &json.json(), T::probes(), vec![weights.len() as u64]);
}

/// Has weights loaded, perhaps in the place of others.
fn bring(worker: &mut Worker, function: u64, weights: &[u8], instead_of: Option<u64>) {
    let mut packed = weights.to_vec();
    packed.resize(packed.len().next_multiple_of(256), 0);
    let packed = memfd::sealed("weights", &packed).unwrap();
    worker.load(function, Load { weights: WeightsForm::Host, instead_of }, packed.as_fd());
}

pub fn weights_come_and_go_and_leave_nothing<T: UnderTest>() {
    let mut worker = T::worker();
    let (long, short) = ([0x5e; LOOK], [7; 300]);
    looking::<T>(&mut worker, 1, &long);
    looking::<T>(&mut worker, 2, &short);
    let mut expected = short.to_vec();
    expected.resize(LOOK, 0);
    for round in 0..4 {
        bring(&mut worker, 1, &long, (round > 0).then_some(2));
        // The control: while the weights are there, a look finds them. Calls that come again are graphs on a
        // GPU.
        for _ in 0..3 {
            assert_eq!(worker.call(1, &[], &[LOOK as u64]).unwrap(), [long.to_vec()]);
        }
        bring(&mut worker, 2, &short, Some(1));
        for _ in 0..3 {
            assert_eq!(worker.call(2, &[], &[LOOK as u64]).unwrap(), [expected.clone()]);
        }
        // Without their weights, calls of the first one are refused.
        let fault = worker.call(1, &[], &[LOOK as u64]).unwrap_err();
        assert_eq!(fault.code, FaultCode::BadInvoke, "{fault}");
    }
    worker.unload(2);
    worker.until_unloaded();
    bring(&mut worker, 2, &short, None);
    assert_eq!(worker.call(2, &[], &[LOOK as u64]).unwrap(), [expected]);
    worker.end().unwrap();
}
