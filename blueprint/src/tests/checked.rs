//! The blueprint of checked calls.

use super::{launch, with};
use crate::{GUARD_BYTES, PRINTED, PRINTED_BYTES, Plan, Sizes, Space, limits, parse};

fn checked(json: &str) -> Result<crate::Blueprint, crate::Error> {
    parse(json.as_bytes()).unwrap().checked()
}

#[test]
fn every_buffer_is_an_output_behind_the_functions_own() {
    let json = with(r#""half": {"Absolute": 7}, "B": {"Absolute": 1}"#, "");
    let blueprint = checked(&json).unwrap();
    let names = blueprint.outputs().iter().map(|id| blueprint.buffers()[id.index()].name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["B", "cfg", "A", "half", PRINTED]);
    assert!(blueprint.is_checked() && !parse(json.as_bytes()).unwrap().is_checked());
    // What nothing uses can be looked at, too.
    assert!(blueprint.inputs().iter().all(|id| blueprint.buffers()[id.index()].reached));
}

#[test]
fn behind_every_buffer_and_every_weight_is_room() {
    // In a plan as large as those whose buffers share memory.
    let large = 16 << 20;
    let json = with(&format!(r#""C": {{"Absolute": {large}}}, "B": {{"Absolute": {large}}}"#), &{
        let steps = [launch(r#"{"Ptr": "C"}"#), launch(r#"{"Ptr": "B"}"#)];
        steps.join(",")
    });
    let plan = |blueprint: &crate::Blueprint| -> Plan {
        blueprint.plan(&Sizes { inputs: &[256, 512], weights: &[256], words: &[], free: &[] }).unwrap()
    };
    let plain = plan(&parse(json.as_bytes()).unwrap());
    assert_eq!(plain.buffers[3].offset, plain.buffers[4].offset, "C and B share memory");
    let blueprint = checked(&json).unwrap();
    let plan = plan(&blueprint);
    let placed: Vec<_> = plan.buffers.iter().map(|at| (at.space, at.offset, at.bytes)).collect();
    let guard = GUARD_BYTES;
    let expected = [
        (Space::Pool, 0, 256),
        (Space::Pool, 256 + guard, 512),
        (Space::Weights, 0, 256),
        (Space::Pool, 768 + 2 * guard, large),
        (Space::Pool, 768 + 3 * guard + large, large),
        (Space::Pool, 768 + 4 * guard + 2 * large, PRINTED_BYTES),
    ];
    assert_eq!(placed, expected);
    assert_eq!(plan.steps.len(), 2, "nothing is cleared in between");
    assert_eq!(blueprint.weight_layout(&[256]).unwrap().total, 256 + guard);
}

#[test]
fn what_a_checked_call_cannot_have_is_refused_in_words() {
    let taken = checked(&with(&format!(r#"{PRINTED:?}: {{"Absolute": 1}}, "B": {{"Absolute": 1}}"#), ""));
    let why = taken.unwrap_err();
    assert!(why.message.contains("expected another name"), "{why}");
    let many = |count: usize| {
        let buffers: Vec<_> = (0..count).map(|n| format!(r#""b{n}": {{"Absolute": 1}}"#)).collect();
        checked(&with(&format!(r#""B": {{"Absolute": 1}}, {}"#, buffers.join(",")), ""))
    };
    // Besides them there are two inputs, B, and what is printed.
    assert_eq!(many(limits::OUTPUTS - 4).unwrap().outputs().len(), limits::OUTPUTS);
    let why = many(limits::OUTPUTS - 3).unwrap_err();
    assert!(why.message.contains("1024 inputs and buffers, a checked call takes at most 1023"), "{why}");
}
