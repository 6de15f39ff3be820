//! Large blueprints: what must be accepted, what must be refused, and how long it takes.

use std::time::{Duration, Instant};

use super::{launch, launch_as, mistake, processor_time, with, with_steps};
use crate::{CacheBounds, Known, PlanCache, Sizes, describe, parse};

/// Every launch differs, so nothing is shared.
fn launches(count: usize) -> String {
    let launches =
        (0..count).map(|i| launch(&format!(r#"{{"Ptr": "A"}}, {{"Sizeof": "B"}}, {{"I32": {i}}}"#)));
    launches.collect::<Vec<_>>().join(",").replace([' ', '\n'], "")
}

#[test]
fn a_large_blueprint_is_accepted() {
    let buffers: Vec<String> = (0..1021)
        .map(|i| format!(r#""b{i}": {{"Sum": [{{"Sizeof": "A"}}, {{"Absolute": {i}}}]}}"#))
        .collect();
    let flow = format!(r#"{{"Repeat": [{{"Absolute": 32}}, [{}]]}}"#, launches(4096));
    let json = with(&format!(r#"{}, "B": {{"Sizeof": "A"}}"#, buffers.join(",")), &flow);
    assert!(json.len() > 1 << 20, "{} bytes", json.len());
    let blueprint = parse(json.as_bytes()).unwrap();
    assert!(blueprint.buffers().len() >= 1024);
    let plan = blueprint.plan(&Sizes { inputs: &[8, 64], weights: &[0], words: &[], free: &[] }).unwrap();
    assert_eq!(plan.launches, 131_072);
    assert_eq!(plan.steps.len(), 4097);
    assert_eq!(plan.expanded().count(), 131_072);
}

#[test]
fn many_launches_fit_unfolded() {
    let step = launch_as("", r#"{"Absolute":1}"#).replace([' ', '\n'], "");
    let flow = vec![step; 16_000].join(",");
    assert_eq!(super::plan(&with_steps(&flow), &[]).unwrap().launches, 16_000);
}

#[test]
fn more_than_a_million_steps_are_refused() {
    let repeat = |count: u64| format!(r#"{{"Repeat": [{{"Absolute": {count}}}, [{}]]}}"#, launch(""));
    assert_eq!(super::plan(&with_steps(&repeat(1_000_000)), &[]).unwrap().launches, 1_000_000);
    assert!(parse(with_steps(&repeat(1_000_001)).as_bytes()).is_err());
    let one_more = format!("{}, {}", repeat(1_000_000), launch(""));
    let error = mistake(&with_steps(&one_more));
    assert_eq!(error.path, "blueprint.control_flow[1]");
}

/// A bound on processor time that only a wrong complexity breaks; `--nocapture` shows how long it took.
#[test]
fn checking_is_fast() {
    let json = with_steps(&format!(r#"{{"Repeat": [{{"Absolute": 30}}, [{}]]}}"#, launches(2400)));
    let (start, before) = (Instant::now(), processor_time());
    let blueprint = parse(json.as_bytes()).unwrap();
    let parsed = start.elapsed();
    describe(&blueprint, &Known::default()).unwrap();
    let described = start.elapsed() - parsed;
    let plan = blueprint.plan(&Sizes { inputs: &[8, 64], weights: &[0], words: &[], free: &[] }).unwrap();
    let planned = start.elapsed() - parsed - described;
    println!("{} bytes: parse {parsed:?}, describe {described:?}, plan {planned:?}", json.len());
    println!("{} bytes of blueprint, {} of plan", blueprint.approx_bytes(), plan.approx_bytes());

    let small =
        parse(with_steps(&vec![launch(r#"{"Ptr": "A"}, {"Ptr": "B"}"#); 10].join(",")).as_bytes()).unwrap();
    let sizes = Sizes { inputs: &[8, 64], weights: &[0], words: &[], free: &[] };
    let again = Instant::now();
    for _ in 0..1000 {
        std::hint::black_box(small.plan(&sizes).unwrap());
    }
    println!("ten launches: plan {:?}", again.elapsed() / 1000);
    let mut cache = PlanCache::new(CacheBounds { plans: 8, bytes: 1 << 20 });
    let again = Instant::now();
    for _ in 0..1000 {
        std::hint::black_box(cache.get_or_plan(0, &small, &sizes).unwrap());
    }
    println!("from the cache: {:?}", again.elapsed() / 1000);
    assert!(processor_time() - before < Duration::from_secs(5));
}
