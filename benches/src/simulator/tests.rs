//! The real scheduler against virtual devices, held to bounds: what CI runs of the simulator. Kernels of a millisecond
//! keep the number of events small; all times are virtual.

use std::collections::BTreeMap;

use pappus_supervisor::schedule::TenantShare;

use super::costs::{Costs, Work};
use super::outcome::Outcome;
use super::random::{Odds, Random};
use super::rules;
use super::scenarios::{ALL, Case, Options, Run, Runs};
use super::traces;
use super::world::{Group, Setup, World};
use crate::machine::Machine;
use crate::report::Report;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// A kernel of which four fit side by side.
const KERNEL: Work = Work::lasting("kernel", MS, 4.0);

fn simulate(settings: &str, devices: usize, groups: Vec<Group>, warm_ms: u64, measured_ms: u64) -> Outcome {
    let setup = Setup {
        shape: rules::shape(settings).unwrap(),
        devices,
        costs: Costs::H200,
        groups,
        warm_ns: warm_ms * MS,
        measured_ns: measured_ms * MS,
        window_ns: S / 2,
    };
    World::new(setup).unwrap().run()
}

fn busy(tenants: usize, in_flight: usize) -> Vec<Group> {
    vec![Group::looping("busy", tenants, in_flight, KERNEL)]
}

#[test]
fn a_simulation_is_the_same_for_its_seed() {
    let run = |seed| {
        let odds = Odds::zipf(100, 1.0);
        let trace = traces::poisson(&Random::new(seed), &odds, 300.0, 4 * S, KERNEL);
        let outcome =
            simulate("workers=8,memory=16GiB", 2, vec![Group::tracing("t", 100, trace)], 1000, 3000);
        serde_json::to_string(&outcome).unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn one_tenant_gets_what_the_device_gives() {
    let outcome = simulate("workers=1,memory=16GiB", 1, busy(1, 16), 1000, 1000);
    // Four at a time, each for a millisecond.
    assert!((3_900.0..=4_000.0).contains(&outcome.per_second), "{}", outcome.per_second);
    assert_eq!((outcome.kills, outcome.evictions, outcome.groups[0].failed), (0, 0, 0));
}

#[test]
fn tenants_that_call_now_and_then_stay_resident() {
    let trace = traces::regular(32, 500 * MS, 35 * S, Work::MATMUL);
    let outcome = simulate("", 1, vec![Group::tracing("sparse", 32, trace)], 25_000, 10_000);
    let all = &outcome.groups[0];
    assert!(all.p50_ms <= 1.0 && all.p99_ms <= 5.0, "{all:?}");
    assert_eq!((outcome.most_residents, outcome.evictions), (32, 0));
}

#[test]
fn eight_tenants_by_turns_lose_little() {
    let one = simulate("workers=8,memory=64GiB,turns=on", 1, busy(1, 16), 1000, 1000);
    let eight = simulate("workers=8,memory=64GiB,turns=on", 1, busy(8, 16), 5000, 1000);
    assert!(eight.per_second >= 0.9 * one.per_second, "{} of {}", eight.per_second, one.per_second);
    assert!(eight.jain.is_some_and(|jain| jain.whole > 0.99), "{:?}", eight.jain);
}

#[test]
fn tenants_with_one_call_in_flight_are_waited_for_where_a_change_is_dear() {
    let rate = |turns: &str| {
        let settings = format!("workers=8,memory=64GiB,turns={turns}");
        simulate(&settings, 1, vec![Group::looping("t", 8, 1, Work::MATMUL)], 2000, 500).per_second
    };
    let (on, off) = (rate("on"), rate("off"));
    assert!(on >= 1.5 * off, "on {on}, off {off}");
}

#[test]
fn nine_busy_tenants_on_eight_workers_lose_little() {
    let rate = |settings: &str, tenants| {
        let settings = format!("workers=8,memory=64GiB,{settings}");
        let kernel = Work::lasting("long", 3 * MS, 4.0);
        // Those that come first have more of the device until all have a process; the others make up for it.
        simulate(&settings, 1, vec![Group::looping("busy", tenants, 16, kernel)], 14_000, 4000)
    };
    let eight = rate("", 8).per_second;
    for (switch, least) in [("replace", 0.6), ("scrub", 0.8)] {
        let nine = rate(&format!("tenant-switch={switch}"), 9);
        assert!(nine.per_second >= least * eight, "{switch}: {} of {eight}", nine.per_second);
        assert!(nine.jain.is_some_and(|jain| jain.whole >= 0.95), "{switch}: {:?}", nine.jain);
    }
}

#[test]
fn weights_are_kept() {
    let group = |weight| Group {
        share: TenantShare { weight, ..TenantShare::default() },
        ..Group::looping(format!("{weight}"), 1, 32, KERNEL)
    };
    let outcome = simulate("workers=8,memory=64GiB", 1, [1, 2, 4].map(group).into(), 2000, 3500);
    for (group, weight) in outcome.groups.iter().zip([1.0, 2.0, 4.0]) {
        assert!((group.device_share * 7.0 / weight - 1.0).abs() <= 0.05, "{group:?}");
    }
}

#[test]
fn neighbours_of_an_endless_kernel_go_on() {
    let groups = vec![
        Group::looping("neighbour", 1, 8, KERNEL),
        Group { deadline_ns: Some(10 * S), ..Group::looping("endless", 1, 1, Work::ENDLESS) },
    ];
    let outcome = simulate("workers=8,memory=64GiB", 1, groups, 1000, 10_000);
    let neighbour = &outcome.groups[0];
    assert!(neighbour.p99_ms <= 50.0 && neighbour.per_second >= 0.4 * 4_000.0, "{neighbour:?}");
    assert!(outcome.kills > 0 && outcome.groups[1].failed > 0);
}

#[test]
fn two_devices_do_twice_as_much_and_one_tenant_stays_where_it_is() {
    let rate = |devices| simulate("", devices, busy(4, 16), 3000, 500).per_second;
    let (one, two) = (rate(1), rate(2));
    assert!(two >= 1.9 * one, "{two} and {one}");
    let alone = simulate("", 2, busy(1, 8), 1000, 1000);
    assert_eq!(alone.most_residents, 1);
}

#[test]
fn every_scenario_has_cases_of_its_own_that_its_judge_knows() {
    // Nothing came of them: what a judge asks for is there all the same.
    let nothing = simulate("workers=1,memory=16GiB", 1, busy(2, 1), 500, 500);
    let options = Options { seed: 1, scale: 0.01 };
    let mut names = BTreeMap::new();
    for scenario in ALL {
        let cases: Vec<Case> = (scenario.cases)(&options);
        assert!(!cases.is_empty(), "{}", scenario.name);
        let groups = cases.iter().map(|case| case.groups.len()).max().unwrap_or(0);
        let runs = cases.iter().map(|case| {
            rules::shape(&case.settings).unwrap();
            let mut outcome = nothing.clone();
            outcome.groups = vec![outcome.groups[0].clone(); groups];
            Run { case: case.name.clone(), outcome }
        });
        let runs = Runs(runs.collect());
        (scenario.judge)(&runs, &mut Report::new(Machine::describe())).unwrap();
        assert!(names.insert(scenario.name, ()).is_none(), "{} twice", scenario.name);
    }
}
