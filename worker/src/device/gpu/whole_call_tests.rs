//! Short calls as one graph each, and what is changed in it from call to call.

#![allow(clippy::unwrap_used, reason = "tests")]

use pappus_protocol::FaultCode;
use pappus_shmem::{Mapping, memfd};

use super::fake::{self, Did, Fake, FakeError, GRANULE};
use super::layout::RUNS_BEFORE_ANOTHER;
use super::tests::{ARENA, Fixture, LANE, MODULE, launch, without_records};
use super::*;
use crate::device::CopyOut;
use crate::device::{Lanes, Memory};

/// A device whose kernels reach host memory, with a plan of two steps that was called so often that its graph is there.
fn called() -> Fixture {
    let mut fixture = Fixture::with(driver(), 2, MODULE);
    (0..4).for_each(|_| drop(fixture.call()));
    fixture
}

fn driver() -> Fake {
    let mut driver = Fake::new();
    driver.properties.host_addresses = true;
    driver
}

/// A call with other regions, and what the driver was told.
fn call_at(fixture: &mut Fixture, offset: u64) -> Vec<Did> {
    fixture.start(offset, u64::MAX, false);
    fixture.end().unwrap();
    without_records(fake::log())
}

/// Where the graph that ran last read the input from, and where it wrote the output to.
fn copied() -> (u64, u64) {
    let ran = fake::ran();
    let [before, .., behind] = &ran[..] else { panic!("no copies") };
    let word = |params: &[u8], at: usize| u64::from_le_bytes(params[8 * at..8 * at + 8].try_into().unwrap());
    // The first range is the input's. Behind the steps, the first one is cleared, and the second is the output.
    assert_eq!((word(before, 0), word(behind, 0)), (1, 2));
    (word(before, 1), word(behind, 6))
}

/// Where the arena of the calls is.
fn arena(fixture: &Fixture) -> u64 {
    fixture.arenas.range(ARENA, 0, 1).unwrap().range(0, 1).unwrap().addr() as u64
}

/// Where the calls' output goes in the arena.
const OUTPUT: u64 = 8192;

fn runs(did: &Did) -> bool {
    matches!(did, Did::Graph(_))
}

const ONE_GRAPH: [Did; 4] = [Did::Launch("copy"), Did::Launch("k"), Did::Launch("k"), Did::Launch("copy")];

#[test]
fn a_short_call_that_comes_again_is_one_graph_with_its_copies_and_its_clearing() {
    let mut fixture = called();
    let submitted = fixture.call();
    let [Did::Graph(_), inside @ ..] = &submitted[..] else { panic!("{submitted:?}") };
    assert_eq!(inside, ONE_GRAPH);
}

#[test]
fn a_call_that_came_twice_at_most_is_no_graph() {
    let mut fixture = Fixture::with(driver(), 2, MODULE);
    for call in 0..2 {
        assert!(!fixture.call().iter().any(runs), "call {call}");
    }
}

#[test]
fn other_regions_are_changed_in_the_graph() {
    let mut fixture = called();
    let arena = arena(&fixture);
    for offset in [1024, 2048, 0] {
        let submitted = call_at(&mut fixture, offset);
        let [Did::Change(0), Did::Change(3), Did::Graph(_), inside @ ..] = &submitted[..] else {
            panic!("{submitted:?}")
        };
        assert_eq!(inside, ONE_GRAPH);
        assert_eq!(copied(), (arena + offset, arena + OUTPUT));
        let [Did::Graph(_), ..] = call_at(&mut fixture, offset)[..] else { panic!("changed again") };
    }
}

#[test]
fn a_graph_that_is_never_changed_serves_calls_that_copy_the_same() {
    let mut fixture = called();
    let arena = arena(&fixture);
    for nth in 1..=RUNS_BEFORE_ANOTHER {
        fake::fail(Did::Change(0), FakeError::Refused);
        let submitted = call_at(&mut fixture, 1024);
        assert!(!submitted.contains(&Did::Launch("copy")), "{nth}: {submitted:?}");
    }
    // Its own call runs as it did.
    assert!(runs(&fixture.call()[0]));
    assert_eq!(copied(), (arena, arena + OUTPUT));
    // After so many in a row, the graph is made anew for their regions.
    for nth in 0..=RUNS_BEFORE_ANOTHER {
        fake::fail(Did::Change(0), FakeError::Refused);
        let submitted = call_at(&mut fixture, 1024);
        assert_eq!(submitted.contains(&Did::Launch("copy")), nth == RUNS_BEFORE_ANOTHER, "{nth}");
    }
    assert_eq!(copied(), (arena + 1024, arena + OUTPUT));
}

#[test]
fn a_graph_that_was_changed_in_part_does_not_run() {
    let mut fixture = called();
    let arena = arena(&fixture);
    fake::fail(Did::Change(3), FakeError::Refused);
    let submitted = call_at(&mut fixture, 1024);
    let made = |did: &&Did| matches!(did, Did::Capture | Did::DropGraph(_) | Did::Graph(_));
    let made: Vec<_> = submitted.iter().filter(made).collect();
    assert!(matches!(made[..], [Did::DropGraph(_), Did::Capture, Did::Graph(_)]), "{submitted:?}");
    assert_eq!(copied(), (arena + 1024, arena + OUTPUT));
    // Where none can be made either, the call runs without.
    fake::fail(Did::Change(3), FakeError::Kernel);
    fixture.start(2048, u64::MAX, false);
    assert_eq!(fixture.end().unwrap_err().code, FaultCode::KernelTrap);
    assert!(!fake::log().iter().any(runs), "a change that lost the device");
}

#[test]
fn a_graph_without_inputs_that_is_never_changed_is_not_made_again_either() {
    let mut fixture = Fixture::with(driver(), 2, MODULE);
    let mut call = |offset: u64| {
        fixture.hand(0, u64::MAX, false, |gpu, function, call| {
            let outputs = [CopyOut { offset, ..call.outputs[0] }];
            gpu.start(LANE, function, &Call { inputs: &[], outputs: &outputs, ..*call });
        });
        fixture.end().unwrap();
        fake::log()
    };
    (0..4).for_each(|_| drop(call(OUTPUT)));
    assert!(runs(&call(OUTPUT)[0]));
    fake::fail(Did::Change(2), FakeError::Refused);
    assert!(!call(OUTPUT + 1024).contains(&Did::Launch("copy")), "beside it");
    assert!(runs(&call(OUTPUT)[0]), "it is there still");
}

#[test]
fn a_call_with_fewer_copies_runs_beside_the_graph() {
    let mut fixture = called();
    for _ in 0..2 {
        fixture.hand(0, u64::MAX, false, |gpu, function, call| {
            gpu.start(LANE, function, &Call { inputs: &[], ..*call });
        });
        fixture.end().unwrap();
        let submitted = without_records(fake::log());
        assert!(submitted.contains(&Did::Launch("k")) && !submitted.contains(&Did::Launch("copy")));
        assert!(runs(&fixture.call()[0]), "the graph is there still");
    }
}

#[test]
fn the_arena_of_a_graph_may_go_and_the_next_call_names_its_own() {
    let mut fixture = called();
    fixture.gpu.unmap_arena(ARENA);
    assert_eq!(fake::log(), [Did::Unpin]);
    let before = arena(&fixture);
    let another = Mapping::writable(&memfd::arena("another", 16 << 10).unwrap()).unwrap();
    fixture.gpu.map_arena(ARENA, &another).unwrap();
    fake::log();
    // In its place, so that the first one's addresses are used by nothing else meanwhile.
    fixture.arenas.insert(ARENA, another);
    let now = arena(&fixture);
    let submitted = fixture.call();
    assert_eq!(submitted[..2], [Did::Change(0), Did::Change(3)], "before it runs: {before:#x}, {now:#x}");
    assert_eq!(copied(), (now, now + OUTPUT));
}

#[test]
fn a_range_that_kernels_would_clear_slowly_is_filled_behind_the_graph() {
    let large = r#"{"Absolute": 8388608}"#;
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{
            "inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}, "C": {large}}}, "outputs": ["B"],
            "control_flow": [{}, {}]}}}}"#,
        launch("A", "C", r#"{"Absolute": 1}"#),
        launch("C", "B", r#"{"Absolute": 1}"#),
    );
    let blueprint = pappus_blueprint::parse(json.as_bytes()).unwrap();
    let mut fixture = Fixture::over(driver(), blueprint, 16 * GRANULE, MODULE);
    (0..4).for_each(|_| drop(fixture.call()));
    let submitted = fixture.call();
    let [Did::Graph(_), inside @ .., cleared] = &submitted[..] else { panic!("{submitted:?}") };
    assert_eq!(inside, ONE_GRAPH);
    assert_eq!(*cleared, Did::Fill { to: fixture.base, byte: 0, bytes: fixture.plan.pool_bytes });
}
