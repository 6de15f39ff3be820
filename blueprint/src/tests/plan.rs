//! What plans hold, what is refused for given sizes, and the cache of plans.

use std::sync::Arc;

use super::{launch, launch_as, plan, with, with_steps};
use crate::{
    CacheBounds, Error, Location, ParamKind, PlanCache, Relocation, Shape, Sizes, Space, Step, WordRef, parse,
};

const WORD: &str = r#"{"FromInput": {"bufname": "cfg", "idx": 1}}"#;

/// Planning fails at `path`, saying `words`; `WORD` is `word`.
fn check_word(json: &str, word: u64, path: &str, words: &str) {
    check(plan(json, &[word]), path, words);
}

fn check<T: std::fmt::Debug>(result: Result<T, Error>, path: &str, words: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.path, path, "{error}");
    assert!(error.message.contains(words), "{error}");
}

fn repeat(count: &str, body: &str) -> String {
    format!(r#"{{"Repeat": [{count}, [{body}]]}}"#)
}

#[test]
fn buffers_are_placed_in_order() {
    let json = with(r#""E": {"Absolute": 0}, "C": {"Absolute": 257}, "B": {"Absolute": 1}"#, "");
    let plan = plan(&json, &[]).unwrap();
    let placed: Vec<_> = plan.buffers.iter().map(|at| (at.space, at.offset, at.bytes)).collect();
    let expected = [
        (Space::Pool, 0, 32),
        (Space::Pool, 256, 100),
        (Space::Weights, 0, 10),
        (Space::Pool, 512, 0),
        (Space::Pool, 512, 257),
        (Space::Pool, 1024, 1),
    ];
    assert_eq!(placed, expected);
    assert_eq!(plan.pool_bytes, 1280);
}

#[test]
fn sizes_must_match_the_blueprint() {
    let blueprint = parse(with(&format!(r#""B": {WORD}"#), "").as_bytes()).unwrap();
    let plan = |inputs: &[u64], weights: &[u64], words: &[u64]| {
        blueprint.plan(&Sizes { inputs, weights, words, free: &[] })
    };
    plan(&[16, 0], &[0], &[0]).unwrap();
    check(plan(&[16], &[0], &[0]), "blueprint.inputs", "expected 2");
    check(plan(&[16, 0], &[], &[0]), "blueprint.weights", "expected 1");
    check(plan(&[16, 0], &[0], &[]), "the words of `FromInput`", "expected 1");
    check(
        plan(&[15, 0], &[0], &[0]),
        "blueprint.buffers.B.FromInput",
        "word 1 is beyond the 15 bytes of \"cfg\"",
    );
    check(plan(&[u64::MAX, 0], &[0], &[0]), "blueprint.inputs[0]", "expected at most 1099511627776");
    check(plan(&[16, 1 << 40], &[0], &[0]), "blueprint.inputs[1]", "after 256 others");
    check(plan(&[16, 0], &[u64::MAX], &[0]), "blueprint.weights[0]", "expected at most 1099511627776");
    check(plan(&[16, 0], &[0], &[u64::MAX]), "blueprint.buffers.B", "expected at most 1099511627776");
}

#[test]
fn words_are_inside_their_input() {
    let blueprint = parse(with(&format!(r#""B": {WORD}"#), "").as_bytes()).unwrap();
    let word = blueprint.words()[0];
    assert_eq!(word, WordRef { input: 0, index: 1 });
    assert_eq!(blueprint.word_offset(&word, 16), Ok(8));
    check(blueprint.word_offset(&word, 15), "blueprint.buffers.B.FromInput", "beyond");
    check(blueprint.word_offset(&WordRef { input: 9, index: u64::MAX }, 15), "blueprint.inputs", "beyond");
}

#[test]
fn weights_are_packed() {
    let blueprint = parse(with_steps("").replace(r#""W""#, r#""W", "V""#).as_bytes()).unwrap();
    let layout = blueprint.weight_layout(&[257, 5]).unwrap();
    assert_eq!((layout.offsets, layout.total), (vec![0, 512], 768));
    check(blueprint.weight_layout(&[1 << 40, 1]), "blueprint.weights[1]", "expected at most");
    check(blueprint.weight_layout(&[1]), "blueprint.weights", "expected 2");
}

#[test]
fn sizes_are_computed_without_overflow() {
    let sum = format!(r#"{{"Sum": [{WORD}, {{"Sizeof": "A"}}, {{"Absolute": 3}}]}}"#);
    let product = format!(r#"{{"Product": [{WORD}, {{"Sizeof": "B"}}]}}"#);
    let division = format!(r#"{{"CeilDiv": [{{"Sizeof": "C"}}, {WORD}]}}"#);
    let minimum = r#"{"Min": [{"Sizeof": "C"}, {"Sizeof": "A"}, {"Sizeof": "W"}]}"#;
    let json = with(&format!(r#""D": {division}, "E": {minimum}, "B": {sum}, "C": {product}"#), "");
    let sizes: Vec<u64> = plan(&json, &[7]).unwrap().buffers[3..].iter().map(|at| at.bytes).collect();
    assert_eq!(sizes, [110, 10, 110, 770]);
    check_word(&json, u64::MAX, "blueprint.buffers.B.Sum", "18446744073709551615 + 100 is too large");
    check_word(&json, 1 << 62, "blueprint.buffers.C.Product", "is too large");
    check_word(&json, 0, "blueprint.buffers.D.CeilDiv", "0 is divided by zero");
}

#[test]
fn differences_quotients_and_remainders_are_checked() {
    let of = |op: &str, a: &str, b: &str| format!(r#"{{"{op}": [{a}, {b}]}}"#);
    let a = r#"{"Sizeof": "A"}"#;
    let buffers = [
        format!(r#""B": {}"#, of("Sub", a, WORD)),
        format!(r#""C": {}"#, of("FloorDiv", a, WORD)),
        format!(r#""D": {}"#, of("Mod", a, WORD)),
        format!(r#""E": {}"#, of("Max", WORD, r#"{"Sizeof": "W"}"#)),
    ];
    let bytes = |word: u64| -> Vec<u64> {
        let plan = plan(&with(&buffers.join(","), ""), &[word]).unwrap();
        plan.buffers[3..].iter().map(|at| at.bytes).collect()
    };
    assert_eq!(bytes(7), [93, 14, 2, 10]);
    assert_eq!(bytes(100), [0, 1, 0, 100]);
    let place = |buffer: &str, op: &str| format!("blueprint.buffers.{buffer}.{op}");
    check_word(&with(&buffers[0], ""), 101, &place("B", "Sub"), "100 − 101 is negative, expected at least 0");
    let json = |at: usize| with(&format!(r#"{}, "B": {{"Absolute": 1}}"#, buffers[at]), "");
    check_word(&json(1), 0, &place("C", "FloorDiv"), "100 is divided by zero");
    check_word(&json(2), 0, &place("D", "Mod"), "100 is divided by zero");
    // The innermost size is named, and one that is repeated zero times is not used.
    let nested = of("Product", &of("Sub", WORD, a), a);
    check_word(
        &with(&format!(r#""B": {nested}"#), ""),
        9,
        "blueprint.buffers.B.Product[0].Sub",
        "cfg[1] − sizeof(A) has no value: 9 − 100 is negative",
    );
    let grid = of("Sub", WORD, r#"{"Absolute": 1}"#);
    let unused = with_steps(&repeat(WORD, &launch_as("", &grid)));
    assert_eq!(plan(&unused, &[0]).unwrap().launches, 0);
    assert_eq!(plan(&unused, &[2]).unwrap().launches, 2);
}

#[test]
fn launch_dimensions_are_checked() {
    let place = "blueprint.control_flow[1].Repeat[1][1].Repeat[1][0].ExecKernel[2]";
    let one = r#"{"Absolute": 1}"#;
    let step = launch_as("", WORD);
    let nested = repeat(one, &format!("{}, {}", launch(""), repeat(one, &step)));
    let json = with_steps(&format!("{}, {nested}", repeat(one, &launch(""))));
    check_word(&json, 0, &format!("{place}.grid_dim_x"), "word 1 of \"cfg\" is 0, expected 1 to 2147483647");
    check_word(
        &json,
        1 << 32,
        &format!("{place}.grid_dim_x"),
        "word 1 of \"cfg\" is 4294967296, expected 1 to",
    );
    let plan = plan(&json, &[9]).unwrap();
    assert_eq!(plan.launches, 3);
    assert!(matches!(plan.expanded().last(), Some(Step::Launch { grid: [9, 1, 1], .. })));

    let block = launch("").replace(r#""block_dim_y": {"Absolute": 1}"#, &format!(r#""block_dim_y": {WORD}"#));
    let block = block.replace(r#""block_dim_z": {"Absolute": 1}"#, r#""block_dim_z": {"Absolute": 2}"#);
    check_word(&with_steps(&block), 513, "blueprint.control_flow[0].ExecKernel[2]", "1026 threads");
}

#[test]
fn a_size_that_cannot_be_names_what_makes_it_so() {
    let json = |grid: &str| {
        with_steps(&launch_as("", grid)).replace(
            r#""weights""#,
            r#""types": {"A": {"dtype": "u8", "shape": [{"Free": "n"}]}}, "weights""#,
        )
    };
    let why = |grid: &str, n: u64, words: &[u64]| {
        let blueprint = parse(json(grid).as_bytes()).unwrap();
        let sizes = Sizes { inputs: &[32, n], weights: &[10], words, free: &[n] };
        blueprint.plan(&sizes).unwrap_err().message
    };
    let n = r#"{"Free": "n"}"#;
    let told = |message: String| message.split(", expected ").next().unwrap().to_owned();
    assert_eq!(told(why(n, 0, &[])), "the dimension n is 0");
    let ceil = format!(r#"{{"CeilDiv": [{n}, 256]}}"#);
    assert_eq!(told(why(&ceil, 0, &[])), "the dimension n is 0: ceil(n / 256) is 0");
    let product =
        format!(r#"{{"Product": [{{"Sum": [{n}, 1]}}, {{"Min": [4, {{"FloorDiv": [{WORD}, 2]}}]}}]}}"#);
    let formula = "(n + 1) × min(4, floor(cfg[1] / 2))";
    assert_eq!(told(why(&product, 3, &[0])), format!("word 1 of \"cfg\" is 0: {formula} is 0"));
    // Nothing is 0 that the call brings.
    assert_eq!(told(why(&product, 3, &[1])), format!("{formula} is 0"));
    assert_eq!(
        told(why(r#"{"Product": [{"Sizeof": "A"}, 4294967296]}"#, 3, &[])),
        "sizeof(A) × 4294967296 is 12884901888"
    );
    assert_eq!(
        why(r#"{"Sub": [{"Free": "n"}, {"Sizeof": "W"}]}"#, 3, &[]),
        "n − sizeof(W) has no value: 3 − 10 is negative, expected at least 0"
    );
}

#[test]
fn whole_clusters_make_up_a_grid() {
    let step = launch_as("", WORD)
        .replace(r#""shared_mem_bytes""#, r#""cluster_dim_x": {"Sizeof": "W"}, "shared_mem_bytes""#);
    let place = "blueprint.control_flow[0].ExecKernel[2]";
    check_word(
        &with_steps(&step),
        4,
        &format!("{place}.cluster_dim_x"),
        "weights \"W\" have 10 bytes, expected 1 to 8",
    );
    let step = step.replace(r#"{"Sizeof": "W"}"#, r#"{"Absolute": 4}"#);
    check_word(&with_steps(&step), 6, place, "a grid of 6 blocks in clusters of 4, expected a multiple");
    let made = plan(&with_steps(&step), &[8]).unwrap();
    assert!(matches!(made.steps[..], [Step::Launch { grid: [8, 1, 1], cluster: [4, 1, 1], .. }]));
}

#[test]
fn parameters_are_laid_out() {
    let by_value = format!(
        r#"{{"Struct": {{"size": 24, "align": 16, "fields": [
            {{"offset": 16, "value": {{"Ptr": {{"buffer": "A", "offset": {WORD}}}}}}},
            {{"offset": 4, "value": {{"I32": -2}}}}, {{"offset": 0, "value": {{"U32": {WORD}}}}}]}}}}"#
    )
    .replace("24", "32");
    let arguments = format!(
        r#"{{"F32": 1.5}}, {by_value}, {{"F64": -2}}, {{"Constant": -1}}, {{"I32": -1}}, {{"Ptr": "W"}}"#
    );
    let plan = plan(&with_steps(&launch(&arguments)), &[5]).unwrap();
    let params: Vec<_> = plan.params.params.iter().map(|p| (p.slot, p.bytes, p.align, p.kind)).collect();
    let expected = [
        (0, 4, 4, ParamKind::F32),
        (1, 32, 16, ParamKind::Struct),
        (5, 8, 8, ParamKind::F64),
        (6, 8, 8, ParamKind::I64),
        (7, 4, 4, ParamKind::I32),
        (8, 8, 8, ParamKind::Pointer),
    ];
    assert_eq!(params, expected);
    let slots = [
        1.5f32.to_bits().into(),
        0xffff_fffe_0000_0005,
        0,
        0,
        0,
        (-2f64).to_bits(),
        u64::MAX,
        u32::MAX.into(),
        0,
    ];
    assert_eq!(plan.params.slots, slots);
    let relocations = [
        Relocation { slot: 3, space: Space::Pool, addend: 261 },
        Relocation { slot: 8, space: Space::Weights, addend: 0 },
    ];
    assert_eq!(plan.params.relocations, relocations);
}

#[test]
fn small_parameters_take_the_first_bytes_of_a_slot() {
    let by_value = format!(
        r#"{{"Struct": {{"size": 8, "fields": [{{"offset": 0, "value": {{"I8": -2}}}},
            {{"offset": 1, "value": {{"Bool": true}}}}, {{"offset": 2, "value": {{"BF16": 1}}}},
            {{"offset": 6, "value": {{"U16": {WORD}}}}}]}}}}"#
    );
    let arguments = format!(
        r#"{{"I8": -1}}, {{"U8": {WORD}}}, {{"I16": -32768}}, {{"U16": 65535}}, {{"F16": -1.5}}, {{"BF16": 1.5}},
           {{"Bool": false}}, {{"Bool": true}}, {by_value}"#
    );
    let json = with_steps(&launch(&arguments));
    let plan = plan(&json, &[200]).unwrap();
    let params: Vec<_> = plan.params.params.iter().map(|p| (p.bytes, p.align, p.kind)).collect();
    let expected = [
        (1, 1, ParamKind::I8),
        (1, 1, ParamKind::U8),
        (2, 2, ParamKind::I16),
        (2, 2, ParamKind::U16),
        (2, 2, ParamKind::F16),
        (2, 2, ParamKind::Bf16),
        (1, 1, ParamKind::Bool),
        (1, 1, ParamKind::Bool),
        (8, 2, ParamKind::Struct),
    ];
    assert_eq!(params, expected);
    let by_value = 200 << 48 | 0x3f80 << 16 | 1 << 8 | 0xfe;
    assert_eq!(plan.params.slots, [0xff, 200, 0x8000, 0xffff, 0xbe00, 0x3fc0, 0, 1, by_value]);
    let place = "blueprint.control_flow[0].ExecKernel[1]";
    check_word(&json, 256, &format!("{place}[1].U8"), "word 1 of \"cfg\" is 256, expected at most 255");
}

#[test]
fn parameters_are_checked() {
    let place = "blueprint.control_flow[0].ExecKernel[1]";
    let argument = |argument: &str| with_steps(&launch(&format!(r#"{{"Ptr": "A"}}, {argument}"#)));
    let field = |value: &str| {
        argument(&format!(
            r#"{{"Struct": {{"size": 16, "fields": [{{"offset": 8, "value": {{"U32": 1}}}},
                {{"offset": 0, "value": {value}}}]}}}}"#
        ))
    };
    for (kind, max) in [("I32", i32::MAX as u64), ("U32", u32::MAX.into()), ("I64", i64::MAX as u64)] {
        let json = argument(&format!(r#"{{"{kind}": {WORD}}}"#));
        assert_eq!(plan(&json, &[max]).unwrap().params.slots[1], max);
        check_word(&json, max + 1, &format!("{place}[1].{kind}"), &format!("expected at most {max}"));
    }
    let json = field(&format!(r#"{{"I32": {WORD}}}"#));
    check_word(
        &json,
        1 << 31,
        &format!("{place}[1].Struct.fields[1].value.I32"),
        "expected at most 2147483647",
    );
    let pointer = format!(r#"{{"Ptr": {{"buffer": "A", "offset": {WORD}}}}}"#);
    assert_eq!(plan(&argument(&pointer), &[100]).unwrap().params.relocations[1].addend, 356);
    check_word(&argument(&pointer), 101, &format!("{place}[1].Ptr.offset"), "expected at most its 100 bytes");
    let path = format!("{place}[1].Struct.fields[1].value.Ptr.offset");
    check_word(&field(&pointer), 101, &path, "byte 101 is beyond");
}

#[test]
fn equal_parameter_lists_are_shared() {
    let [a, b] = [r#"{"Ptr": "A"}, {"I32": 1}"#, r#"{"Ptr": "A"}, {"U32": 1}"#].map(launch);
    let plan = plan(&with_steps(&format!("{a}, {b}, {a}")), &[]).unwrap();
    let params = plan.steps.iter().map(|step| match step {
        Step::Launch { params, .. } => params.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(params.collect::<Vec<_>>(), [0..2, 2..4, 0..2]);
    assert_eq!(plan.params.params.len(), 4);
}

#[test]
fn copies_and_fills_are_placed_in_the_pool() {
    let offset = r#"{"Absolute": 4}"#;
    let copy = format!(
        r#"{{"Copy": {{"from": "W", "to": "B"}}}},
           {{"Copy": {{"from": "A", "from_offset": {offset}, "to": "B", "to_offset": {offset}}}}},
           {{"Copy": {{"from": "A", "to": "A", "to_offset": {WORD}, "bytes": {WORD}}}}},
           {{"Fill": {{"buffer": "A", "byte": 7}}}},
           {{"Fill": {{"buffer": "B", "offset": {offset}, "bytes": {WORD}, "byte": 8}}}}"#
    );
    let at = |space, offset| Location { space, offset };
    let first = [
        Step::Copy { from: at(Space::Weights, 0), to: 512, bytes: 10 },
        Step::Copy { from: at(Space::Pool, 260), to: 516, bytes: 96 },
    ];
    let all = plan(&with_steps(&copy), &[50]).unwrap();
    assert_eq!(all.steps[..2], first);
    assert_eq!(all.steps[2], Step::Copy { from: at(Space::Pool, 256), to: 306, bytes: 50 });
    assert_eq!(all.steps[3], Step::Fill { offset: 256, bytes: 100, byte: 7 });
    assert_eq!(all.steps[4], Step::Fill { offset: 516, bytes: 50, byte: 8 });
    assert_eq!((all.launches, all.expanded_steps), (0, 5));
    // Nothing to copy or fill: no step.
    assert_eq!(plan(&with_steps(&copy), &[0]).unwrap().expanded_steps, 3);
    check_word(
        &with_steps(&copy),
        51,
        "blueprint.control_flow[2].Copy.to",
        "51 bytes into the 49 that are left",
    );
}

#[test]
fn copies_and_fills_are_checked() {
    let one = |step: &str, word: u64, path: &str, words: &str| {
        check_word(&with_steps(step), word, &format!("blueprint.control_flow[0].{path}"), words);
    };
    let from = format!(r#"{{"Copy": {{"from": "A", "from_offset": {WORD}, "to": "B"}}}}"#);
    one(&from, 101, "Copy.from_offset", "byte 101 is beyond");
    one(&from, u64::MAX, "Copy.from_offset", "is beyond");
    let to = format!(r#"{{"Copy": {{"from": "A", "to_offset": {WORD}, "to": "B"}}}}"#);
    one(&to, 101, "Copy.to_offset", "byte 101 is beyond");
    one(&to, 1, "Copy.to", "100 bytes into the 99 that are left");
    let bytes = format!(r#"{{"Copy": {{"from": "A", "from_offset": {WORD}, "to": "B", "bytes": {WORD}}}}}"#);
    one(&bytes, 51, "Copy.bytes", "51 bytes from 51, expected at most 49");
    let overlap = format!(
        r#"{{"Copy": {{"from": "A", "from_offset": {WORD}, "to": "A", "bytes": {{"Absolute": 10}}}}}}"#
    );
    one(&overlap, 9, "Copy", "no overlap");
    plan(&with_steps(&overlap), &[10]).unwrap();
    let fill = format!(r#"{{"Fill": {{"buffer": "A", "offset": {WORD}, "bytes": {WORD}, "byte": 1}}}}"#);
    one(&fill, 101, "Fill.offset", "byte 101 is beyond");
    one(&fill, 51, "Fill.bytes", "expected at most 49");
}

#[test]
fn repeats_stay_folded() {
    let inner = repeat(WORD, &format!("{}, {}", launch(""), launch("")));
    let json = with_steps(&format!("{}, {}", repeat(r#"{"Absolute": 3}"#, &inner), launch("")));
    let folded = plan(&json, &[4]).unwrap();
    assert_eq!((folded.launches, folded.expanded_steps, folded.steps.len()), (25, 25, 5));
    assert!(matches!(folded.steps[0], Step::Repeat { count: 3, body: 3 }));
    assert!(matches!(folded.steps[1], Step::Repeat { count: 4, body: 2 }));
    assert_eq!(folded.expanded().count(), 25);
    assert!(folded.expanded().all(|step| matches!(step, Step::Launch { .. })));
    // A repeat that does nothing is gone, and so is one that holds nothing else.
    assert_eq!(plan(&json, &[0]).unwrap().steps.len(), 1);
    check_word(&json, 200_000, "blueprint.control_flow[0]", "expected at most 1000000");
    check_word(&json, u64::MAX, "blueprint.control_flow[0].Repeat[1][0]", "expected at most 1000000");
    assert_eq!(plan(&with_steps(&repeat(WORD, "")), &[u64::MAX]).unwrap().steps, []);
}

#[test]
fn steps_that_do_not_run_are_not_checked() {
    let division = format!(r#"{{"CeilDiv": [{{"Sizeof": "A"}}, {WORD}]}}"#);
    let pointer = r#"{"Ptr": {"buffer": "A", "offset": {"Product": [{"Sizeof": "A"}, {"Absolute": 2}]}}}"#;
    let json = with_steps(&repeat(WORD, &launch_as(pointer, &division)));
    assert_eq!(plan(&json, &[0]).unwrap().launches, 0);
    let path = "blueprint.control_flow[0].Repeat[1][0].ExecKernel[1][0].Ptr.offset";
    check_word(&json, 1, path, "byte 200 is beyond");
}

#[test]
fn typed_buffers_match_their_shapes() {
    let typed =
        |types: &str| with_steps("").replace(r#""weights""#, &format!(r#""types": {{{types}}}, "weights""#));
    let shape = |dims: &str| typed(&format!(r#""B": {{"dtype": "f32", "shape": [{dims}]}}"#));
    let dims = |json: &str| plan(json, &[]).unwrap().output_shapes[0].clone();
    assert_eq!(dims(&typed("")), None);
    assert_eq!(dims(&typed(r#""B": {"dtype": "u16"}"#)).unwrap().dims, [50]);
    let five = r#"{"Absolute": 5}"#;
    assert_eq!(
        dims(&shape(&format!("{five}, {five}"))),
        Some(Shape { dtype: crate::DType::F32, dims: vec![5, 5] })
    );
    let place = "blueprint.types.B";
    check(plan(&shape(five), &[]), place, "the buffer has 100 bytes, expected 20");
    check(plan(&shape(""), &[]), place, "expected 4");
    let huge = r#"{"Absolute": 4294967296}"#;
    check(plan(&shape(&format!("{huge}, {huge}")), &[]), place, "more than any has");
    check(plan(&typed(r#""B": {"dtype": "f64"}"#), &[]), place, "expected a multiple of 8");
    let divided = r#"{"CeilDiv": [{"Absolute": 5}, {"FromInput": {"bufname": "cfg", "idx": 1}}]}"#;
    check_word(&shape(divided), 0, "blueprint.types.B.shape[0].CeilDiv", "divided by zero");
    check(plan(&typed(r#""A": {"dtype": "f64"}"#), &[]), "blueprint.types.A", "expected a multiple of 8");
}

#[test]
fn cache_returns_what_it_planned() {
    let blueprint = parse(with(&format!(r#""B": {WORD}"#), "").as_bytes()).unwrap();
    let mut cache = PlanCache::new(CacheBounds { plans: 2, bytes: 1 << 20 });
    let mut get = |function, word| {
        cache.get_or_plan(
            function,
            &blueprint,
            &Sizes { inputs: &[16, 0], weights: &[0], words: &[word], free: &[] },
        )
    };
    let first = get(0, 1).unwrap();
    assert!(Arc::ptr_eq(&first, &get(0, 1).unwrap()));
    assert!(!Arc::ptr_eq(&first, &get(1, 1).unwrap()));
    // The third plan pushes out the second: the first has been used since.
    get(0, 1).unwrap();
    get(0, 2).unwrap();
    assert!(Arc::ptr_eq(&first, &get(0, 1).unwrap()));
    check(get(0, u64::MAX), "blueprint.buffers.B", "expected at most");
    assert_eq!(cache.len(), 2, "what failed counts as well");
    cache.remove_function(0);
    assert!(cache.is_empty());
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn cache_remembers_that_there_is_no_plan() {
    let blueprint = parse(with(&format!(r#""B": {WORD}"#), "").as_bytes()).unwrap();
    let mut cache = PlanCache::new(CacheBounds { plans: 2, bytes: 1 << 20 });
    let sizes = |word| Sizes { inputs: &[16, 0], weights: &[0], words: word, free: &[] };
    let why = cache.get_or_plan(0, &blueprint, &sizes(&[u64::MAX])).unwrap_err();
    assert_eq!(cache.find(0, &blueprint, &sizes(&[u64::MAX])), Err(why));
    assert_eq!(cache.find(0, &blueprint, &sizes(&[1])), Ok(None), "the control");
    let held = cache.get_or_plan(0, &blueprint, &sizes(&[1])).unwrap();
    assert!(!cache.give_up_one(), "somebody has it, and a failure holds no plan");
    drop(held);
    assert!(cache.give_up_one() && !cache.give_up_one());
    assert_eq!(cache.len(), 1);
    // Planned by two at once: counted once.
    let plan = Arc::new(blueprint.plan(&sizes(&[1])).unwrap());
    let before = cache.bytes();
    cache.keep(0, &sizes(&[1]), Ok(plan.clone()), 100);
    let once = cache.bytes();
    cache.keep(0, &sizes(&[1]), Ok(plan), 100);
    assert!(once > before && cache.bytes() == once);
}

#[test]
fn cache_is_bounded_by_memory() {
    let blueprint = parse(with(&format!(r#""B": {WORD}"#), "").as_bytes()).unwrap();
    let mut cache = PlanCache::new(CacheBounds { plans: 1000, bytes: 2000 });
    for word in 0..100 {
        let sizes = Sizes { inputs: &[16, 0], weights: &[0], words: &[word], free: &[] };
        let plan = cache.get_or_plan(0, &blueprint, &sizes).unwrap();
        assert_eq!(plan.buffers[3].bytes, word);
        assert!(cache.bytes() <= 2000 && !cache.is_empty());
    }
    let mut none = PlanCache::new(CacheBounds { plans: 1000, bytes: 10 });
    let sizes = Sizes { inputs: &[16, 0], weights: &[0], words: &[3], free: &[] };
    none.get_or_plan(0, &blueprint, &sizes).unwrap();
    assert!(none.is_empty());
}
