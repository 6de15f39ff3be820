//! Memory that comes and goes, memory for a call that waits for its turn, and that no kernel sees bytes of other tenants.

#![allow(clippy::unwrap_used, reason = "tests")]

use pappus_protocol::{FaultCode, LaneId};

use super::driver::Access;
use super::fake::{self, Did, Fake, FakeError, GRANULE};
use super::tests::{Fixture, LANE, MODULE, without_records};
use super::*;
use crate::device::{Lanes, Memory};

const NEXT: LaneId = LaneId::new(1);

/// True if something is launched while memory is mapped that was never filled with zeros.
fn shows_what_others_left(log: &[Did]) -> bool {
    let mut strange: Vec<(u64, u64)> = Vec::new();
    for did in log {
        match *did {
            Did::Map { at, bytes, access: Access::ReadWrite } => strange.push((at, bytes)),
            Did::Fill { to, byte: 0, bytes } => strange.retain(|range| *range != (to, bytes)),
            Did::Unmap { at, .. } => strange.retain(|(from, _)| *from != at),
            Did::Launch(_) | Did::Graph(_) if !strange.is_empty() => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn a_lane_grows_by_what_is_missing_and_keeps_its_addresses() {
    let mut gpu = Gpu::new(Fake::new(), 2, None).unwrap();
    let [base, other] = [0, 1].map(|lane: usize| gpu.memory[lane].base());
    fake::log();
    let maps = |at, bytes| Did::Map { at, bytes, access: Access::ReadWrite };
    let zeroed = |to, bytes| Did::Fill { to, byte: 0, bytes };
    let grown = |at, bytes| [Did::Synchronize, maps(at, bytes), zeroed(at, bytes), Did::Synchronize];
    gpu.grow(LANE, 5 * GRANULE - 1).unwrap();
    assert_eq!(fake::log(), grown(base, 5 * GRANULE), "whole pages, while nothing runs");
    gpu.grow(LANE, 8 * GRANULE).unwrap();
    assert_eq!(fake::log(), grown(base + 5 * GRANULE, 3 * GRANULE));
    gpu.grow(LaneId::new(1), GRANULE).unwrap();
    assert_eq!(fake::log(), grown(other, GRANULE));
    assert_eq!([0, 1].map(|lane| gpu.lane_bytes(LaneId::new(lane))), [8 * GRANULE, GRANULE]);
    // All of one lane goes, cleared; the other one is not waited for.
    gpu.give_back(LANE).unwrap();
    let unmapped =
        [(base + 5 * GRANULE, 3 * GRANULE), (base, 5 * GRANULE)].map(|(at, bytes)| Did::Unmap { at, bytes });
    assert_eq!(fake::log(), [&[zeroed(base, 8 * GRANULE)], &unmapped[..]].concat());
    assert_eq!([0, 1].map(|lane| gpu.lane_bytes(LaneId::new(lane))), [0, GRANULE]);
    gpu.grow(LANE, GRANULE).unwrap();
    assert_eq!(fake::log(), grown(base, GRANULE), "the same addresses");
    // More than the addresses that are reserved is refused.
    assert_eq!(gpu.grow(LANE, 1 << 40).unwrap_err().code, FaultCode::OutOfMemory);
    assert_eq!(gpu.lane_bytes(LANE), GRANULE);
}

#[test]
fn memory_that_cannot_be_zeroed_is_not_kept() {
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    let base = gpu.memory[0].base();
    fake::log();
    fake::fail(Did::Fill { to: base, byte: 0, bytes: GRANULE }, FakeError::Refused);
    gpu.grow(LANE, GRANULE).unwrap_err();
    assert_eq!(fake::log().last(), Some(&Did::Unmap { at: base, bytes: GRANULE }));
    assert_eq!(gpu.lane_bytes(LANE), 0);
}

#[test]
fn no_kernel_sees_memory_of_another_tenant_when_a_lane_grows() {
    let mut fixture = Fixture::new(2, MODULE);
    let mut log = Vec::new();
    for round in 1..4 {
        fixture.gpu.give_back(LANE).unwrap();
        for bytes in [GRANULE, round * 4 * GRANULE] {
            fixture.gpu.grow(LANE, bytes).unwrap();
            log.extend(fake::log());
            log.extend(fixture.call());
        }
    }
    assert!(log.contains(&Did::Launch("k")) && !shows_what_others_left(&log), "{log:?}");
    // The control: the same work without any one of the fills behind new memory is noticed.
    let fills = |at: &usize| {
        matches!(log[*at], Did::Fill { bytes, .. } if bytes >= GRANULE) && {
            matches!(log[*at - 1], Did::Map { .. })
        }
    };
    let new: Vec<usize> = (1..log.len()).filter(fills).collect();
    assert_eq!(new.len(), 6);
    for at in new {
        let mut without = log.clone();
        without.remove(at);
        assert!(shows_what_others_left(&without), "the control finds nothing");
    }
}

#[test]
fn graphs_stay_when_memory_goes_and_comes_again() {
    let mut fixture = Fixture::new(100, MODULE);
    (0..5).for_each(|_| drop(fixture.call()));
    let before = fixture.call();
    assert!(before.iter().any(|did| matches!(did, Did::Graph(_))));
    fixture.gpu.give_back(LANE).unwrap();
    fixture.gpu.grow(LANE, GRANULE).unwrap();
    assert!(!fake::log().iter().any(|did| matches!(did, Did::DropGraph(_))));
    // What the last call left clean is not known to be any more: it is cleared in front of the graph.
    assert_eq!(fixture.call(), [vec![fixture.cleared()], before].concat());
}

/// A call that waits for its turn on the second lane, which may have a page.
fn prepare(fixture: &mut Fixture) -> Vec<Did> {
    fixture.hand(0, u64::MAX, false, |gpu, function, call| gpu.prepare(NEXT, function, call, GRANULE));
    fake::log()
}

/// The same call, once it is its turn.
fn start(fixture: &mut Fixture) -> Vec<Did> {
    fixture.hand(0, u64::MAX, false, |gpu, function, call| gpu.start(NEXT, function, call));
    fixture.end_of(NEXT).unwrap();
    without_records(fake::log())
}

fn is_work(did: &Did) -> bool {
    matches!(did, Did::Launch(_) | Did::Graph(_) | Did::Fill { .. } | Did::CopyIn { .. } | Did::Copy { .. })
}

#[test]
fn a_call_that_waits_for_its_turn_has_memory_and_a_graph_and_submits_nothing() {
    let mut fixture = Fixture::new(100, MODULE);
    let at = fixture.gpu.memory[NEXT.index()].base();
    let ready = prepare(&mut fixture);
    assert_eq!(ready[0], Did::Map { at, bytes: GRANULE, access: Access::ReadWrite });
    assert!(ready.contains(&Did::Capture) && !ready.iter().any(is_work), "{ready:?}");
    assert_eq!(prepare(&mut fixture), [], "once");
    let run = start(&mut fixture);
    assert!(!run.contains(&Did::Capture) && run.iter().any(|did| matches!(did, Did::Graph(_))), "{run:?}");
    let all = [ready, run].concat();
    assert!(!shows_what_others_left(&all), "{all:?}");
}

#[test]
fn what_was_mapped_for_a_call_that_waits_is_zeroed_before_any_call_of_any_lane() {
    let mut fixture = Fixture::new(2, MODULE);
    let mut log = prepare(&mut fixture);
    log.extend(fixture.call());
    assert!(log.contains(&Did::Launch("k")) && !shows_what_others_left(&log), "{log:?}");
    // The control: without the fill it is noticed.
    let at = fixture.gpu.memory[NEXT.index()].base();
    log.retain(|did| *did != Did::Fill { to: at, byte: 0, bytes: GRANULE });
    assert!(shows_what_others_left(&log), "the control finds nothing");
    // Where it cannot be zeroed, the call fails, and the next one tries again.
    prepare(&mut fixture);
    fixture.gpu.give_back(NEXT).unwrap();
    prepare(&mut fixture);
    fake::fail(Did::Fill { to: at, byte: 0, bytes: GRANULE }, FakeError::Refused);
    fixture.hand(0, u64::MAX, false, |gpu, function, call| gpu.start(LANE, function, call));
    fixture.end_of(LANE).unwrap_err();
    let failed = fake::log();
    assert!(!failed.contains(&Did::Launch("k")), "{failed:?}");
    let zeroed = Did::Fill { to: at, byte: 0, bytes: GRANULE };
    assert!(fixture.call().starts_with(&[zeroed, Did::Synchronize]));
}

#[test]
fn a_call_whose_memory_is_not_free_yet_waits_for_it_when_it_starts() {
    let mut fixture = Fixture::new(100, MODULE);
    fake::out_of_memory(1);
    let ready = prepare(&mut fixture);
    assert!(!ready.contains(&Did::Capture), "nothing is copied to where no memory is: {ready:?}");
    assert_eq!(fixture.gpu.lane_bytes(NEXT), 0);
    // It starts all the same, as do calls that were never prepared; once there is memory, the next one is prepared.
    fixture.gpu.grow(NEXT, GRANULE).unwrap();
    start(&mut fixture);
    assert!(prepare(&mut fixture).contains(&Did::Capture));
}

#[test]
fn what_pays_on_one_lane_pays_on_the_others() {
    let mut fixture = Fixture::new(100, MODULE);
    fixture.gpu.grow(NEXT, GRANULE).unwrap();
    (0..2).for_each(|_| assert!(!fixture.call().contains(&Did::Capture)));
    assert!(start(&mut fixture).contains(&Did::Capture), "the other lane's first call");
    // Not what a lane of another plan ran.
    let mut fixture = Fixture::new(100, MODULE);
    fixture.gpu.grow(NEXT, GRANULE).unwrap();
    assert!(!start(&mut fixture).contains(&Did::Capture));
}

#[test]
fn short_calls_are_launched_one_by_one_until_they_come_again() {
    let mut fixture = Fixture::new(2, MODULE);
    let ready = prepare(&mut fixture);
    assert!(ready.iter().any(|did| matches!(did, Did::Map { .. })) && !ready.contains(&Did::Capture));
}
