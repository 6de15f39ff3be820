//! Free dimensions: where blueprints may name them, their values in sizes, and which arrays fit.

use proptest::prelude::*;

use super::mistake;
use crate::{
    Array, Blueprint, CacheBounds, DType, Error, Known, Misfit, Plan, PlanCache, Sizes, describe, parse,
};

/// Inputs `x` and `m`, a buffer and output `y`, with these types.
fn with(types: &str, y: &str) -> String {
    format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": ["x", "m"],
            "buffers": {{"y": {y}}}, "outputs": ["y"], "types": {{{types}}}, "control_flow": []}}}}"#
    )
}

const N: &str = r#"{"Free": "n"}"#;

/// `x` and `y` are f32[n,3], `m` is u8[n].
fn network() -> Blueprint {
    let types = format!(
        r#""x": {{"dtype": "f32", "shape": [{N}, {{"Absolute": 3}}]}}, "m": {{"dtype": "u8", "shape": [{N}]}},
           "y": {{"dtype": "f32", "shape": [{N}, {{"Absolute": 3}}]}}"#
    );
    parse(with(&types, &format!(r#"{{"Product": [{N}, {{"Absolute": 12}}]}}"#)).as_bytes()).unwrap()
}

fn array(dtype: DType, shape: &[u64]) -> Array<'_> {
    Array { dtype, shape }
}

fn bind(
    blueprint: &Blueprint,
    x: Option<Array<'_>>,
    m: Option<Array<'_>>,
) -> Result<Vec<u64>, (usize, String)> {
    let bytes = |array: &Option<Array<'_>>, otherwise| {
        array.map_or(otherwise, |array| array.shape.iter().product::<u64>() * array.dtype.bytes())
    };
    let given = [bytes(&x, 24), bytes(&m, 2)];
    blueprint.bind(&given, |at| [x, m][at]).map_err(|(at, why)| (at, why.to_string()))
}

fn plan(blueprint: &Blueprint, inputs: [u64; 2], free: &[u64]) -> Result<Plan, Error> {
    blueprint.plan(&Sizes { inputs: &inputs, weights: &[], words: &[], free })
}

#[test]
fn values_come_from_the_arrays_and_are_sizes() {
    let blueprint = network();
    assert_eq!(blueprint.free_dimensions(), ["n".into()]);
    let (x, m) = (array(DType::F32, &[5, 3]), array(DType::U8, &[5]));
    assert_eq!(bind(&blueprint, Some(x), Some(m)), Ok(vec![5]));
    let made = plan(&blueprint, [60, 5], &[5]).unwrap();
    assert_eq!(made.buffers[2].bytes, 60);
    let shape = made.output_shapes[0].clone().unwrap();
    assert_eq!((shape.dtype, &shape.dims[..]), (DType::F32, &[5, 3][..]));
    assert_eq!(
        made.input_shapes.iter().flatten().map(|shape| shape.dims.clone()).collect::<Vec<_>>(),
        [vec![5, 3], vec![5]]
    );
    // Nothing is a shape, too.
    let (x, m) = (array(DType::F32, &[0, 3]), array(DType::U8, &[0]));
    assert_eq!(bind(&blueprint, Some(x), Some(m)), Ok(vec![0]));
    assert_eq!(plan(&blueprint, [0, 0], &[0]).unwrap().pool_bytes, 0);
    // The plan checks the bytes, whoever said the values.
    let why = plan(&blueprint, [60, 5], &[6]).unwrap_err();
    assert!(why.message.contains("the buffer has 60 bytes, expected 72"), "{why}");
    let why = plan(&blueprint, [60, 5], &[]).unwrap_err();
    assert_eq!((&*why.path, &*why.message), ("the free dimensions", "0 values given for it, expected 1"));
}

#[test]
fn a_plan_is_kept_for_its_free_dimensions() {
    let types = format!(r#""x": {{"dtype": "u8", "shape": [{N}, {{"Free": "k"}}]}}"#);
    let blueprint = parse(with(&types, N).as_bytes()).unwrap();
    let mut cache = PlanCache::new(CacheBounds { plans: 9, bytes: 1 << 20 });
    let mut bytes = |free: &[u64]| {
        let sizes = Sizes { inputs: &[12, 0], weights: &[], words: &[], free };
        cache.get_or_plan(0, &blueprint, &sizes).unwrap().buffers[2].bytes
    };
    assert_eq!([bytes(&[3, 4]), bytes(&[4, 3]), bytes(&[3, 4])], [3, 4, 3]);
    assert_eq!(cache.len(), 2);
}

#[test]
fn arrays_that_do_not_fit_are_refused_with_what_is_wanted_and_what_came() {
    let blueprint = network();
    let good = array(DType::U8, &[2]);
    for (x, words) in [
        (array(DType::F64, &[2, 3]), "f32[n,3] is wanted, f64[2,3] came"),
        (array(DType::F32, &[2, 4]), "f32[n,3] is wanted, f32[2,4] came"),
        (array(DType::F32, &[6]), "f32[n,3] is wanted, f32[6] came"),
        (array(DType::F32, &[1, 2, 3]), "f32[n,3] is wanted, f32[1,2,3] came"),
        (array(DType::F32, &[]), "f32[n,3] is wanted, f32[] came"),
    ] {
        assert_eq!(bind(&blueprint, Some(x), Some(good)), Err((0, words.to_owned())));
    }
    let x = array(DType::F32, &[2, 3]);
    let other = array(DType::U8, &[3]);
    let words = "u8[n] is wanted with n = 2, which came before; u8[3] came";
    assert_eq!(bind(&blueprint, Some(x), Some(other)), Err((1, words.to_owned())));
}

#[test]
fn bytes_tell_a_free_dimension_that_no_shape_tells() {
    let blueprint = network();
    let bytes = |given: [u64; 2]| blueprint.bind(&given, |_| None).map_err(|(at, why)| (at, why.to_string()));
    assert_eq!(bytes([60, 5]), Ok(vec![5]));
    assert_eq!(bytes([0, 0]), Ok(vec![0]));
    // One array told it, and the plan compares the bytes of the others.
    assert_eq!(bind(&blueprint, Some(array(DType::F32, &[2, 3])), None), Ok(vec![2]));
    assert_eq!(bytes([24, 3]), Ok(vec![2]));
    assert!(plan(&blueprint, [24, 3], &[2]).is_err());
    let words = "f32[n,3] is wanted, 25 bytes came: no n has so many";
    assert_eq!(bytes([25, 2]), Err((0, words.to_owned())));
    // What stands behind tells the rest.
    let types = format!(
        r#""x": {{"dtype": "f16", "shape": [{N}, {{"Free": "k"}}]}}, "m": {{"dtype": "u8", "shape": [{{"Free": "k"}}]}}"#
    );
    let blueprint = parse(with(&types, N).as_bytes()).unwrap();
    assert_eq!(blueprint.bind(&[24, 3], |_| None), Ok(vec![4, 3]));
    // Nothing tells how many rows of nothing there are.
    let (at, why) = blueprint.bind(&[0, 0], |_| None).unwrap_err();
    assert_eq!((at, &*why.to_string()), (0, "f16[n,k] is wanted: the shape must come with the call"));
    // A computed dimension is no number yet.
    let types = format!(
        r#""x": {{"dtype": "u8", "shape": [{N}, {{"Sizeof": "m"}}]}}, "m": {{"dtype": "u8", "shape": [7]}}"#
    );
    let blueprint = parse(with(&types, N).as_bytes()).unwrap();
    assert!(matches!(blueprint.bind(&[14, 7], |_| None), Err((0, Misfit::NoShape { .. }))));
}

#[test]
fn an_array_has_the_bytes_that_came_and_no_more_dimensions_than_there_may_be() {
    let blueprint = parse(with("", r#"{"Sizeof": "x"}"#).as_bytes()).unwrap();
    let bind = |dtype, shape: &[u64], bytes| {
        blueprint.bind(&[bytes, 0], |at| (at == 0).then_some(Array { dtype, shape })).map_err(|(_, why)| why)
    };
    assert_eq!(bind(DType::F16, &[2, 3], 12), Ok(vec![]));
    assert_eq!(bind(DType::F16, &[], 2), Ok(vec![]));
    let misfit = bind(DType::F16, &[2, 3], 13).unwrap_err();
    assert_eq!(misfit.to_string(), "f16[2,3] takes 12 bytes, 13 came");
    assert!(matches!(bind(DType::U8, &[u64::MAX, u64::MAX], 1), Err(Misfit::Long(u64::MAX))));
    assert!(matches!(bind(DType::U8, &[0, u64::MAX], 0), Err(Misfit::Long(u64::MAX))));
    assert!(matches!(bind(DType::U8, &[1 << 40, 1 << 40], 1), Err(Misfit::Bytes { .. })));
    assert_eq!(bind(DType::U8, &[1; 32], 1), Ok(vec![]));
    assert!(matches!(bind(DType::U8, &[1; 33], 1), Err(Misfit::Rank(33))));
}

#[test]
fn computed_dimensions_are_compared_with_the_plan() {
    let half = format!(r#"{{"FloorDiv": [{N}, {{"Absolute": 2}}]}}"#);
    let types = format!(
        r#""x": {{"dtype": "u8", "shape": [{N}]}}, "m": {{"dtype": "u8", "shape": [{half}, {{"Absolute": 2}}]}}"#
    );
    let blueprint = parse(with(&types, N).as_bytes()).unwrap();
    let sizes = Sizes { inputs: &[4, 4], weights: &[], words: &[], free: &[4] };
    let made = blueprint.plan(&sizes).unwrap();
    let (good, bad) = (array(DType::U8, &[2, 2]), array(DType::U8, &[1, 2]));
    assert_eq!(blueprint.check_planned(&made, 1, &good), Ok(()));
    assert_eq!(blueprint.check_computed(&sizes, 1, &good), Ok(()));
    for why in [blueprint.check_planned(&made, 1, &bad), blueprint.check_computed(&sizes, 1, &bad)] {
        assert_eq!(why.unwrap_err().to_string(), "u8[2,2] is wanted, u8[1,2] came");
    }
    let shape = blueprint.input_types()[1].as_ref().unwrap().text(blueprint.free_dimensions());
    assert_eq!(shape, "u8[…,2]");
}

#[test]
fn free_dimensions_are_named_by_inputs() {
    let check = |types: &str, y: &str, path: &str, words: &str| {
        let error = mistake(&with(types, y));
        assert_eq!(error.path, path, "{error}");
        assert!(error.message.contains(words), "{error}");
    };
    let x = |dim: &str| format!(r#""x": {{"dtype": "u8", "shape": [{dim}]}}"#);
    check("", N, "blueprint.buffers.y.Free", "unknown free dimension \"n\"");
    // Only a whole dimension of an input takes a value.
    let twice = format!(r#"{{"Product": [{N}, {{"Absolute": 2}}]}}"#);
    let of = r#"{"Absolute": 1}"#;
    check(&x(&twice), of, "blueprint.types.x.shape[0].Product[0].Free", "unknown free dimension");
    let output = format!(r#""y": {{"dtype": "u8", "shape": [{N}]}}"#);
    check(&output, r#"{"Absolute": 1}"#, "blueprint.types.y.shape[0].Free", "unknown free dimension");
    parse(with(&format!("{}, {output}", x(N)), N).as_bytes()).unwrap();
    for name in ["", "a b", "3n", "sizeof(A)", "ä"] {
        let dim = format!(r#"{{"Free": "{name}"}}"#);
        check(&x(&dim), r#"{"Absolute": 1}"#, "blueprint.types.x.shape[0].Free", "letters, digits and `_`");
    }
    // A shape has 32 dimensions, so names come from many inputs.
    let inputs: Vec<String> = (0..9).map(|i| format!("\"i{i}\"")).collect();
    let types = (0..9).map(|i| {
        let dims = (0..32).map(|d| format!(r#"{{"Free": "d{}"}}"#, i * 32 + d)).collect::<Vec<_>>().join(",");
        format!(r#""i{i}": {{"dtype": "u8", "shape": [{dims}]}}"#)
    });
    let json = with(&types.collect::<Vec<_>>().join(","), r#"{"Absolute": 1}"#)
        .replace(r#""x", "m""#, &inputs.join(","));
    let error = mistake(&json);
    assert_eq!(error.path, "blueprint.types.i8.shape[0].Free");
    assert!(error.message.contains("expected at most 256 names"), "{error}");
}

#[test]
fn descriptions_name_free_dimensions() {
    let blueprint = network();
    let mut known = Known::default();
    let described = describe(&blueprint, &known).unwrap();
    assert_eq!(described.buffers[2].bytes.to_string(), "12 × n");
    assert_eq!(described.buffers[0].shape.as_ref().unwrap()[0].to_string(), "n");
    known.free.insert("n".to_owned(), 7);
    assert_eq!(describe(&blueprint, &known).unwrap().buffers[2].bytes.value(), Some(84));
    known.free.insert("other".to_owned(), 7);
    let error = describe(&blueprint, &known).unwrap_err();
    assert!(error.message.contains("\"other\""), "{error}");
}

proptest! {

    /// Whatever comes, what is bound has a plan whose inputs have these shapes, or the bytes differ.
    #[test]
    fn whatever_fits_is_planned_as_it_came(
        x in prop::collection::vec(prop_oneof![0..6u64, any::<u64>()], 0..4),
        m in prop::collection::vec(0..6u64, 0..3),
        dtype in prop::sample::select(&DType::ALL[..]),
        bytes in [0..100u64, 0..8u64],
    ) {
        let blueprint = network();
        let arrays = [Array { dtype, shape: &x }, Array { dtype: DType::U8, shape: &m }];
        if let Ok(free) = blueprint.bind(&bytes, |at| Some(arrays[at])) {
            prop_assert_eq!((dtype, x.len(), x[1], &m[..]), (DType::F32, 2, 3, &x[..1]));
            prop_assert_eq!(&free[..], &x[..1]);
            let made = plan(&blueprint, bytes, &free).unwrap();
            for (at, array) in arrays.iter().enumerate() {
                prop_assert_eq!(blueprint.check_planned(&made, at, array), Ok(()));
            }
        }
    }
}
