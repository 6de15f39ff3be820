//! Buffers that are not live together share memory, and no call can tell.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::interpreter::Interpreter;
use super::{launch, processor_time, with};
use crate::layout::{self, Rule, SharedPool};
use crate::{Blueprint, Known, Plan, Sizes, Step, describe, limits, parse};

const MIB: u64 = 1 << 20;

/// Shares whatever can be.
const EAGER: Rule = Rule { min_plan_bytes: 0, min_buffer_bytes: 1, min_saving: u64::MAX };

/// The same, but for the small inputs of [`with`].
const LARGE: Rule = Rule { min_buffer_bytes: 4096, ..EAGER };

/// The blueprint of [`with`] with buffers of these sizes, and the arguments `cfg` of 32 bytes and `A` of 100.
fn blueprint(buffers: &[(&str, u64)], flow: &[String]) -> Blueprint {
    let buffers = buffers.iter().map(|(name, bytes)| format!(r#""{name}": {{"Absolute": {bytes}}}"#));
    parse(with(&buffers.collect::<Vec<_>>().join(","), &flow.join(",")).as_bytes()).unwrap()
}

/// A launch that uses these buffers.
fn uses(buffers: &[&str]) -> String {
    let pointers: Vec<_> = buffers.iter().map(|name| format!(r#"{{"Ptr": "{name}"}}"#)).collect();
    launch(&pointers.join(","))
}

fn repeat(count: u64, body: &[String]) -> String {
    format!(r#"{{"Repeat": [{{"Absolute": {count}}}, [{}]]}}"#, body.join(","))
}

const SIZES: Sizes<'static> = Sizes { inputs: &[32, 100], weights: &[10], words: &[], free: &[] };

/// A plan by a rule, and by `edit` of what it shares.
fn plan_by(
    blueprint: &Blueprint,
    sizes: &Sizes<'_>,
    rule: &Rule,
    edit: impl FnOnce(&mut SharedPool),
) -> Option<Plan> {
    let share = |own_bytes, values: &crate::size::Values<'_>| {
        let mut shared = layout::share(blueprint, rule, own_bytes, |id| values.known(id)).ok()?;
        shared.as_mut().map(edit);
        shared
    };
    blueprint.plan_with(sizes, share).ok()
}

/// A plan with memory for every buffer.
fn unshared(blueprint: &Blueprint, sizes: &Sizes<'_>) -> Option<Plan> {
    blueprint.plan_with(sizes, |_, _| None).ok()
}

/// The steps of a plan in short, and its bytes: fills with the MiB where they start and how many they clear.
fn outline(blueprint: &Blueprint) -> (String, u64) {
    let plan = plan_by(blueprint, &SIZES, &LARGE, |_| ()).unwrap();
    Interpreter::new(blueprint, SIZES).run(&plan).unwrap();
    let words = plan.steps.iter().map(|step| match step {
        Step::Launch { .. } => "launch".to_owned(),
        Step::Copy { .. } => "copy".to_owned(),
        Step::Fill { offset, bytes, byte } => format!("fill({},{},{byte})", offset / MIB, bytes / MIB),
        Step::Repeat { count, body } => format!("repeat({count},{body})"),
    });
    (words.collect::<Vec<_>>().join(" "), plan.pool_bytes / MIB)
}

fn mib(buffers: &[&'static str]) -> Vec<(&'static str, u64)> {
    buffers.iter().map(|&name| (name, MIB)).collect()
}

/// A chain through these buffers, each launch from one to the next.
fn chain(buffers: &[&str]) -> Vec<String> {
    buffers.windows(2).map(uses).collect()
}

#[test]
fn a_chain_shares_two_places_and_clears_what_it_hands_on() {
    let names = ["a", "b", "c", "d", "B"];
    let (steps, mib) = outline(&blueprint(&mib(&names), &chain(&names)));
    assert_eq!(steps, "launch fill(0,1,0) launch fill(1,1,0) launch fill(0,1,0) launch");
    assert_eq!(mib, 2);
}

#[test]
fn inputs_live_from_the_start_and_outputs_to_the_end() {
    let sizes = Sizes { inputs: &[MIB, MIB], weights: &[10], words: &[], free: &[] };
    let flow = [uses(&["A", "b"]), uses(&["b", "B"]), uses(&["cfg"])];
    let blueprint = blueprint(&mib(&["b", "B"]), &flow);
    let plan = plan_by(&blueprint, &sizes, &EAGER, |_| ()).unwrap();
    Interpreter::new(&blueprint, sizes).run(&plan).unwrap();
    // `A` is dead when `B` is used first; `cfg` is used last of all.
    assert_eq!((plan.pool_bytes, plan.buffers[1].offset), (3 * MIB, plan.buffers[4].offset));
    assert_eq!(plan.expanded_steps, 4);
    // An output that no step uses is zero bytes where something else was.
    let blueprint = self::blueprint(&mib(&["b", "B"]), &[uses(&["b"])]);
    assert_eq!(outline(&blueprint), ("launch fill(0,1,0)".to_owned(), 1));
}

#[test]
fn what_a_repeat_uses_lives_through_all_repetitions() {
    let flow = |count| {
        [uses(&["a"]), repeat(count, &[uses(&["b"]), repeat(2, &[uses(&["c"])]), uses(&["d"])]), uses(&["B"])]
    };
    let names = mib(&["a", "b", "c", "d", "B"]);
    let (steps, mib) = outline(&blueprint(&names, &flow(2)));
    // The clearing is in front of the repeat: the second repetition finds what the first one left.
    let inside = "repeat(2,4) launch repeat(2,1) launch launch";
    assert_eq!((steps, mib), (format!("launch fill(0,1,0) {inside} fill(0,1,0) launch"), 3));
    // What is executed once is no repetition.
    let (steps, mib) = outline(&blueprint(&names, &flow(1)));
    let inside = "repeat(1,7) fill(0,1,0) launch fill(0,1,0) repeat(2,1) launch fill(0,1,0) launch";
    assert_eq!((steps, mib), (format!("launch {inside} fill(0,1,0) launch"), 1));
    let (steps, mib) = outline(&blueprint(&names, &flow(0)));
    assert_eq!((steps.as_str(), mib), ("launch fill(0,1,0) launch", 1));
}

#[test]
fn what_is_overwritten_at_once_is_not_cleared() {
    let fill = |buffer: &str, more: &str| format!(r#"{{"Fill": {{"buffer": "{buffer}", "byte": 3{more}}}}}"#);
    let copy = |more: &str| format!(r#"{{"Copy": {{"from": "a", "to": "B"{more}}}}}"#);
    let names = mib(&["a", "b", "B"]);
    let say = |flow: &[String]| outline(&blueprint(&names, flow)).0;
    assert_eq!(say(&[uses(&["a"]), fill("B", "")]), "launch fill(0,1,3)");
    assert_eq!(say(&[uses(&["b"]), uses(&["a"]), copy("")]), "launch fill(0,1,0) launch copy");
    // Not all of it, or not at once.
    let short = [uses(&["a"]), fill("B", r#", "offset": {"Absolute": 1}"#)];
    assert_eq!(say(&short), "launch fill(0,1,0) fill(0,0,3)");
    let late = [uses(&["a"]), uses(&["B"]), fill("B", "")];
    assert_eq!(say(&late), "launch fill(0,1,0) launch fill(0,1,3)");
    // Its last bytes are not a multiple of the alignment: those behind them would stay.
    let odd = blueprint(&[("a", MIB), ("B", MIB - 1)], &[uses(&["a"]), fill("B", "")]);
    assert_eq!(outline(&odd).0, "launch fill(0,1,0) fill(0,0,3)");
}

#[test]
fn neighbours_that_one_step_needs_are_cleared_at_once() {
    let flow = [uses(&["a"]), uses(&["b", "c"]), uses(&["B"])];
    let blueprint = blueprint(&[("a", 2 * MIB), ("b", MIB), ("c", MIB), ("B", MIB)], &flow);
    let (steps, mib) = outline(&blueprint);
    assert_eq!((steps.as_str(), mib), ("launch fill(0,2,0) launch fill(0,1,0) launch", 2));
}

#[test]
fn sharing_must_be_worth_it() {
    let names = ["a", "b", "c", "B"];
    let bytes = |buffers: &[(&str, u64)]| {
        let plan = blueprint(buffers, &chain(&names)).plan(&SIZES).unwrap();
        let own: u64 = plan.buffers.iter().map(|at| at.bytes.next_multiple_of(256)).sum();
        // One weight is not in the pool.
        (own - 256 - plan.pool_bytes, plan.expanded_steps - plan.launches)
    };
    let four = |bytes: u64| names.map(|name| (name, bytes));
    assert_eq!(bytes(&four(2 * MIB)), (4 * MIB, 2));
    // The plan is small: with `cfg` and `A` it has 512 bytes more than its buffers.
    assert_eq!(bytes(&four(2 * MIB - 256)), (0, 0));
    assert_eq!(bytes(&four(2 * MIB - 128)), (4 * MIB, 2));
    // Small buffers have memory of their own, however large the plan is.
    let with_small = |small| [("a", 8 * MIB), ("b", 8 * MIB), ("c", 8 * MIB), ("B", small)];
    assert_eq!(bytes(&with_small(MIB / 4)), (8 * MIB + MIB / 4, 2));
    assert_eq!(bytes(&with_small(MIB / 4 - 1)), (8 * MIB, 1));
    // A little of much is not worth it.
    assert_eq!(bytes(&[("a", 4 * MIB), ("b", 10 * MIB), ("c", 4 * MIB), ("B", MIB)]), (5 * MIB, 2));
    assert_eq!(bytes(&[("a", 4 * MIB), ("b", 14 * MIB), ("c", 4 * MIB), ("B", MIB)]), (0, 0));
}

/// A function of up to eight buffers, some steps of which follow the order of the buffers.
fn function() -> impl Strategy<Value = Value> {
    const NAMES: [&str; 11] = ["cfg", "A", "W", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"];
    let named = || prop::sample::select(&NAMES[..]);
    let writable = || named().prop_filter("weights are read-only", |name| *name != "W");
    let one = json!({"Absolute": 1});
    let launch = move |names: Vec<&str>| {
        let pointers: Vec<_> = names.iter().map(|name| json!({"Ptr": name})).collect();
        json!({"ExecKernel": ["k", pointers, {"grid_dim_x": one, "grid_dim_y": one, "grid_dim_z": one,
            "block_dim_x": one, "block_dim_y": one, "block_dim_z": one, "shared_mem_bytes": {"Absolute": 0}}]})
    };
    let neighbours = (1..NAMES.len()).prop_map(|at| vec![NAMES[at - 1], NAMES[at]]);
    let launches = prop_oneof![2 => prop::collection::vec(named(), 0..4), 3 => neighbours].prop_map(launch);
    let sized = |key: &'static str, max: u64| {
        prop::option::of(0..max).prop_map(move |n| n.map(|n| (key, json!({"Absolute": n}))))
    };
    let object = |kind: &str, fields: Vec<(&str, Value)>| {
        let fields: serde_json::Map<_, _> =
            fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        json!({kind: fields})
    };
    let fill = (writable(), any::<u8>(), sized("bytes", 300)).prop_map(move |(to, byte, bytes)| {
        let fields = [("buffer", json!(to)), ("byte", json!(byte))].into_iter().chain(bytes);
        object("Fill", fields.collect())
    });
    let copy = (named(), writable(), sized("from_offset", 9), sized("bytes", 300)).prop_map(
        move |(from, to, at, bytes)| {
            let fields = [("from", json!(from)), ("to", json!(to))].into_iter().chain(at).chain(bytes);
            object("Copy", fields.collect())
        },
    );
    let action = prop_oneof![5 => launches, 1 => fill, 1 => copy].prop_recursive(2, 12, 5, |inner| {
        let count = prop_oneof![
            (0..4u64).prop_map(|n| json!({"Absolute": n})),
            (0..2u64).prop_map(|idx| json!({"FromInput": {"bufname": "cfg", "idx": idx}})),
        ];
        (count, prop::collection::vec(inner, 0..5)).prop_map(|(count, body)| json!({"Repeat": [count, body]}))
    });
    let sizes = prop::collection::vec(prop_oneof![1 => Just(0), 4 => 1..1500u64, 2 => Just(512)], 8);
    let outputs = prop::sample::subsequence(["cfg", "A", "b0", "b3", "b6", "b7"].to_vec(), 0..4);
    (sizes, outputs, prop::collection::vec(action, 0..14)).prop_map(|(sizes, outputs, steps)| {
        let buffers: serde_json::Map<_, _> = NAMES[3..]
            .iter()
            .zip(sizes)
            .map(|(name, bytes)| ((*name).to_owned(), json!({"Absolute": bytes})))
            .collect();
        json!({"module_path": "m", "kernels": ["k"], "blueprint": {"inputs": ["cfg", "A"], "weights": ["W"],
            "buffers": buffers, "outputs": outputs, "control_flow": steps}})
    })
}

/// The words that a blueprint of [`function`] reads.
fn words<'a>(blueprint: &Blueprint, all: &'a [u64]) -> &'a [u64] {
    &all[..blueprint.words().len()]
}

proptest! {

    #[test]
    fn no_call_can_tell_that_buffers_share_memory(
        function in function(),
        a in 0..1500u64,
        counts in [0..4u64, 0..4u64],
        min_buffer_bytes in prop::sample::select(vec![1u64, 400]),
    ) {
        let blueprint = parse(&serde_json::to_vec(&function).unwrap()).unwrap();
        let sizes = Sizes { inputs: &[300, a], weights: &[40], words: words(&blueprint, &counts), free: &[] };
        let rule = Rule { min_buffer_bytes, ..EAGER };
        let Some(own) = unshared(&blueprint, &sizes) else {
            prop_assert_eq!(plan_by(&blueprint, &sizes, &rule, |_| ()), None);
            return Ok(());
        };
        let plan = plan_by(&blueprint, &sizes, &rule, |_| ()).unwrap();
        let interpreter = Interpreter::new(&blueprint, sizes);
        prop_assert_eq!(interpreter.run(&own), Ok(()));
        prop_assert_eq!(interpreter.run(&plan), Ok(()));
        prop_assert_eq!(interpreter.overlap(&plan), None);
        prop_assert!(plan.pool_bytes <= own.pool_bytes && plan.launches == own.launches);
        prop_assert!(plan.buffers.iter().all(|at| at.offset % limits::BUFFER_ALIGN == 0));
        prop_assert_eq!(plan.expanded().count() as u64, plan.expanded_steps);
        let same: Vec<_> = plan.buffers.iter().map(|at| (at.space, at.bytes)).collect();
        prop_assert_eq!(same, own.buffers.iter().map(|at| (at.space, at.bytes)).collect::<Vec<_>>());
    }
}

/// The control of the property above: what it checks goes wrong without clearings, and where lifetimes are too short.
#[test]
fn plans_that_do_not_clear_or_overlap_are_caught() {
    let mut runner = TestRunner::deterministic();
    let functions = function();
    let (mut shared, mut unclear, mut overlaps, mut wrong) = (0, 0, 0, 0);
    for _ in 0..300 {
        let function = functions.new_tree(&mut runner).unwrap().current();
        let blueprint = parse(&serde_json::to_vec(&function).unwrap()).unwrap();
        let sizes =
            Sizes { inputs: &[300, 512], weights: &[40], words: words(&blueprint, &[1, 2]), free: &[] };
        let Some(plan) = plan_by(&blueprint, &sizes, &EAGER, |_| ()) else { continue };
        let interpreter = Interpreter::new(&blueprint, sizes);
        assert_eq!((interpreter.run(&plan), interpreter.overlap(&plan)), (Ok(()), None));
        shared += u32::from(plan.expanded_steps > unshared(&blueprint, &sizes).unwrap().expanded_steps);
        let plan = plan_by(&blueprint, &sizes, &EAGER, |pool| pool.clearings.clear()).unwrap();
        unclear += u32::from(interpreter.run(&plan).is_err());
        let stack = |pool: &mut SharedPool| pool.offsets.iter_mut().for_each(|offset| *offset = 0);
        let plan = plan_by(&blueprint, &sizes, &EAGER, |pool| {
            pool.bytes = 4096;
            stack(pool);
        });
        overlaps += u32::from(interpreter.overlap(plan.as_ref().unwrap()).is_some());
        wrong += u32::from(interpreter.run(plan.as_ref().unwrap()).is_err());
    }
    println!("{shared} of 300 shared; caught: {unclear} uncleared, {overlaps} overlapping, {wrong} wrong");
    assert!(shared > 50 && unclear > 50 && overlaps > 50 && wrong > 50);
}

/// The buffers of ResNet-18 in 32-bit floats for 8 pictures of 224×224: the activations, and beside each convolution a
/// small buffer. Launches as a compiler makes them: convolutions into new buffers, the rest in place.
fn resnet18() -> Blueprint {
    let mut buffers: Vec<(String, u64)> = Vec::new();
    let mut flow = Vec::new();
    let mut layer = |from: &[&str], channels: u64, side: u64| {
        let name = format!("x{}", buffers.len());
        let scale = format!("s{}", buffers.len());
        buffers.push((name.clone(), 8 * channels * side * side * 4));
        buffers.push((scale.clone(), channels * 8));
        let all: Vec<&str> = from.iter().copied().chain([name.as_str(), scale.as_str()]).collect();
        flow.push(uses(&all));
        flow.push(uses(&[&name, &scale]));
        name
    };
    let first = layer(&["A"], 64, 112);
    let mut x = layer(&[&first], 64, 56);
    for (stage, channels) in [64, 128, 256, 512].into_iter().enumerate() {
        let side = 56 >> stage;
        for block in 0..2 {
            let inner = layer(&[&x], channels, side);
            let skip = if stage > 0 && block == 0 { layer(&[&x], channels, side) } else { x.clone() };
            x = layer(&[&inner, &skip], channels, side);
        }
    }
    let mean = layer(&[&x], 512, 1);
    flow.push(uses(&[&mean, "B"]));
    let mut buffers: Vec<_> = buffers.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    buffers.push(("B", 8 * 1000 * 4));
    blueprint(&buffers, &flow)
}

#[test]
fn a_network_takes_what_is_live_at_its_widest_place() {
    let blueprint = resnet18();
    let input = 8 * 3 * 224 * 224 * 4;
    let sizes = Sizes { inputs: &[32, input], weights: &[10], words: &[], free: &[] };
    let (own, plan) = (unshared(&blueprint, &sizes).unwrap(), blueprint.plan(&sizes).unwrap());
    assert_eq!(Interpreter::new(&blueprint, sizes).overlap(&plan), None);
    let fills = plan.expanded_steps - own.expanded_steps;
    println!(
        "{} buffers, {} launches: {} bytes, {} shared, {fills} clearings",
        plan.buffers.len(),
        plan.launches,
        own.pool_bytes,
        plan.pool_bytes
    );
    // The first convolution's output and what is pooled from it, beside less than 1 % of small buffers.
    let widest = 8 * 64 * 4 * (112 * 112 + 56 * 56);
    assert!(own.pool_bytes > 85_000_000 && (widest..widest + widest / 100).contains(&plan.pool_bytes));
    assert_eq!(fills, 20);
    let known =
        Known { inputs: [("cfg".to_owned(), 32), ("A".to_owned(), input)].into(), ..Known::default() };
    let description = describe(&blueprint, &known).unwrap();
    let described = (description.pool_bytes.value(), description.unshared_pool_bytes.value());
    assert_eq!(described, (Some(plan.pool_bytes), Some(own.pool_bytes)));
}

#[test]
fn a_description_says_when_it_is_not_known_what_is_shared() {
    let word = r#"{"FromInput": {"bufname": "cfg", "idx": 0}}"#;
    let repeats =
        repeat(1, &chain(&["a", "b"])).replace(r#"{"Absolute": 1}, [{"Ex"#, &format!("{word}, [{{\"Ex"));
    let blueprint = blueprint(&[("a", 8 * MIB), ("b", 8 * MIB), ("B", 8 * MIB)], &[repeats, uses(&["B"])]);
    let inputs = [("cfg".to_owned(), 32), ("A".to_owned(), 100)];
    let mut known = Known { inputs: inputs.into(), ..Known::default() };
    let say = |known: &Known| {
        let description = describe(&blueprint, known).unwrap();
        [description.pool_bytes.to_string(), description.unshared_pool_bytes.to_string()]
    };
    assert_eq!(say(&known), ["at most 25166336", "25166336"]);
    known.words.insert(("cfg".to_owned(), 0), 1);
    assert_eq!(say(&known), ["16777728", "25166336"]);
    known.inputs.remove("A");
    let text = "256 × ceil(sizeof(A) / 256) + 25166080";
    assert_eq!(say(&known), [format!("at most {text}"), text.to_owned()]);
}

/// A bound on processor time that only a wrong complexity breaks; `--nocapture` shows how long it took.
#[test]
fn sharing_is_decided_fast() {
    let names: Vec<String> = (0..4000).map(|i| format!("b{i}")).collect();
    let mut buffers: Vec<_> = (0..).zip(&names).map(|(i, name)| (name.as_str(), MIB + i * 256)).collect();
    buffers.push(("B", MIB));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Every pair of neighbours, and nearly all other pairs.
    let wide: Vec<String> = names.chunks(500).map(uses).chain(names.chunks(500).map(uses)).collect();
    for flow in [chain(&names), wide] {
        let blueprint = blueprint(&buffers, &flow);
        let (start, before) = (Instant::now(), processor_time());
        let own = unshared(&blueprint, &SIZES).unwrap();
        let without = start.elapsed();
        let plan = plan_by(&blueprint, &SIZES, &layout::RULE, |_| ()).unwrap();
        println!("{} → {}: {without:?}, {:?}", own.pool_bytes, plan.pool_bytes, start.elapsed() - without);
        assert!(plan.expanded_steps <= own.expanded_steps + limits::SHARING_BUFFERS as u64);
        assert!(processor_time() - before < Duration::from_secs(5));
    }
}
