//! Short calls as one graph each, and what is changed in it from call to call.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::fake::{self, Did, Fake, FakeError, GRANULE};
use super::tests::{ARENA, Fixture, LANE, MODULE, launch, without_records};
use super::*;

/// A device whose kernels reach host memory, with a plan of two steps that was called so often that its graph is there.
fn called() -> Fixture {
    let mut fixture = Fixture::with(driver(), 2, MODULE);
    (0..4).for_each(|_| drop(fixture.call()));
    fake::launched();
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

/// Where the call's input is read from, by what the copying kernels were told last.
fn inputs_come_from() -> u64 {
    let launched = fake::launched();
    let copying: Vec<_> =
        launched.iter().filter(|(_, params)| params.len() == copy_kernels::PARAM_BYTES).collect();
    let [.., (_, copied_in), _] = &copying[..] else { panic!("no copies") };
    u64::from_le_bytes(copied_in[8..16].try_into().unwrap())
}

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
    let arena = fixture.arenas.range(ARENA, 0, 1).unwrap().range(0, 1).unwrap().addr() as u64;
    for offset in [1024, 2048, 0] {
        let submitted = call_at(&mut fixture, offset);
        let [Did::Change("copy"), Did::Change("copy"), Did::Graph(_), inside @ ..] = &submitted[..] else {
            panic!("{submitted:?}")
        };
        assert_eq!(inside, ONE_GRAPH);
        assert_eq!(inputs_come_from(), arena + offset);
        let [Did::Graph(_), ..] = call_at(&mut fixture, offset)[..] else { panic!("changed again") };
    }
}

#[test]
fn a_graph_that_cannot_be_changed_is_made_again() {
    let mut fixture = called();
    fake::fail(Did::Change("copy"), FakeError::Refused);
    let submitted = call_at(&mut fixture, 1024);
    let made = |did: &&Did| matches!(did, Did::Capture | Did::DropGraph(_) | Did::Graph(_));
    let made: Vec<_> = submitted.iter().filter(made).collect();
    assert!(matches!(made[..], [Did::DropGraph(_), Did::Capture, Did::Graph(_)]), "{submitted:?}");
}

#[test]
fn a_call_with_fewer_copies_gets_a_graph_without_them() {
    let mut fixture = called();
    fixture.hand(0, u64::MAX, false, |gpu, function, call| {
        gpu.start(LANE, function, &Call { inputs: &[], ..*call });
    });
    fixture.end().unwrap();
    let submitted = without_records(fake::log());
    assert!(submitted.ends_with(&ONE_GRAPH[1..]), "{submitted:?}");
    assert!(fixture.call().ends_with(&ONE_GRAPH), "and back");
}

#[test]
fn the_arena_of_a_graph_may_go_and_the_next_call_names_its_own() {
    let mut fixture = called();
    fixture.gpu.unmap_arena(ARENA);
    assert_eq!(fake::log(), [Did::Unpin]);
    let submitted = call_at(&mut fixture, 1024);
    let first = submitted.iter().position(runs).unwrap();
    assert_eq!(submitted[..first], [Did::Change("copy"), Did::Change("copy")], "before it runs");
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
