//! Tensor maps: what of them is checked when, and what a plan says of them.

use super::{launch, mistake, plan, with_steps};
use crate::{BoxFill, DType, Location, ParamKind, Space, Swizzle, parse};

/// Of `A`, which has 100 bytes, from byte 16 on: two rows of 16 f16 that are 48 bytes apart.
const MAP: &str = r#"{"buffer": "A", "offset": {"Absolute": 16}, "dtype": "f16",
    "shape": [{"Absolute": 2}, {"Absolute": 16}], "strides": [{"Absolute": 48}], "box": [2, 8]}"#;

fn passing(map: &str) -> String {
    with_steps(&launch(&format!(r#"{{"U8": 1}}, {{"TensorMap": {map}}}, {{"Ptr": "B"}}"#)))
}

const PLACE: &str = "blueprint.control_flow[0].ExecKernel[1][1].TensorMap";

/// The blueprint is refused at a key of the map, changed so.
fn refused(from: &str, to: &str, key: &str, words: &str) {
    assert!(MAP.contains(from));
    let error = mistake(&passing(&MAP.replace(from, to)));
    assert_eq!(error.path, format!("{PLACE}.{key}"), "{error}");
    assert!(error.message.contains(words), "{error}");
}

/// The same of a plan.
fn unplanned(from: &str, to: &str, key: &str, words: &str) {
    assert!(MAP.contains(from));
    let error = plan(&passing(&MAP.replace(from, to)), &[]).unwrap_err();
    assert_eq!(error.path, format!("{PLACE}.{key}"), "{error}");
    assert!(error.message.contains(words), "{error}");
}

#[test]
fn a_plan_says_where_the_array_lies_and_what_it_is() {
    let made = plan(&passing(MAP), &[]).unwrap();
    let params: Vec<_> = made.params.params.iter().map(|p| (p.slot, p.bytes, p.align, p.kind)).collect();
    let expected =
        [(0, 1, 1, ParamKind::U8), (1, 128, 64, ParamKind::TensorMap), (17, 8, 8, ParamKind::Pointer)];
    assert_eq!(params, expected);
    let [map] = &made.params.tensor_maps[..] else { panic!("one map") };
    assert_eq!((map.slot, map.dtype), (1, DType::F16));
    assert_eq!(map.at, Location { space: Space::Pool, offset: made.buffers[1].offset + 16 });
    assert_eq!((&*map.shape, &*map.strides, &*map.box_shape), (&[2, 16][..], &[48][..], &[2, 8][..]));
    assert_eq!((map.swizzle, map.fill), (Swizzle::None, BoxFill::Zero));
    let all = MAP.replace(r#""box""#, r#""swizzle": "64B", "fill": "nan", "box""#);
    let made = plan(&passing(&all), &[]).unwrap();
    assert_eq!(
        (made.params.tensor_maps[0].swizzle, made.params.tensor_maps[0].fill),
        (Swizzle::Bytes64, BoxFill::Nan)
    );
}

#[test]
fn a_launch_with_a_map_says_so() {
    let blueprint = parse(passing(MAP).as_bytes()).unwrap();
    let special: Vec<_> = blueprint.launches().map(|launch| launch.special()).collect();
    assert_eq!(special, [Some("a tensor map")]);
    let plain = parse(with_steps(&launch("")).as_bytes()).unwrap();
    assert!(plain.launches().all(|launch| launch.special().is_none()));
}

#[test]
fn what_needs_no_sizes_is_refused_when_it_is_read() {
    refused(r#""A""#, r#""X""#, "buffer", "unknown buffer");
    refused(r#"[{"Absolute": 2}, {"Absolute": 16}]"#, "[]", "shape", "0 dimensions, expected 1 to 5");
    let six = [r#"{"Absolute": 2}"#; 6].join(",");
    refused(r#"[{"Absolute": 2}, {"Absolute": 16}]"#, &format!("[{six}]"), "shape", "6 dimensions");
    refused(r#"[{"Absolute": 48}]"#, "[]", "strides", "0 entries, expected 1");
    refused("[2, 8]", "[8]", "box", "1 entries, expected 2");
    refused("[2, 8]", "[0, 8]", "box[0]", "the value is 0, expected 1 to 256");
    refused("[2, 8]", "[2, 264]", "box[1]", "the value is 264, expected 1 to 256");
    refused("[2, 8]", "[2, 9]", "box", "18 bytes along the last dimension, expected a multiple of 16");
    refused(
        "[2, 8]",
        r#"[2, 24], "swizzle": "32B""#,
        "box",
        "48 bytes along the last dimension, expected at most the 32",
    );
    refused(
        "[2, 8]",
        r#"[2, 8], "swizzle": "16B""#,
        "swizzle",
        "unknown swizzle \"16B\"; known: \"none\", \"32B\", \"64B\", \"128B\"",
    );
    refused(r#""f16""#, r#""u16", "fill": "nan""#, "fill", "u16 has no NaN");
    let inside = format!(
        r#"{{"Struct": {{"size": 128, "fields": [{{"offset": 0, "value": {{"TensorMap": {MAP}}}}}]}}}}"#
    );
    let error = mistake(&with_steps(&launch(&inside)));
    assert!(error.message.contains("a tensor map within a struct"), "{error}");
}

#[test]
fn what_it_reaches_lies_inside_its_buffer() {
    // It ends at byte 16 + 48 + 32 = 96 of 100.
    unplanned(
        r#"{"Absolute": 16}, "dtype""#,
        r#"{"Absolute": 32}, "dtype""#,
        "shape",
        "it ends at byte 112, expected at most the 100",
    );
    unplanned(r#"[{"Absolute": 48}]"#, r#"[{"Absolute": 64}]"#, "shape", "it ends at byte 112");
    unplanned(r#"{"Absolute": 2}"#, r#"{"Absolute": 3}"#, "shape", "it ends at byte 144");
    unplanned(r#"{"Absolute": 2}"#, r#"{"Absolute": 4294967296}"#, "shape", "expected at most the 100");
    unplanned(r#"{"Absolute": 2}"#, r#"{"Absolute": 4294967297}"#, "shape", "expected 1 to 4294967296");
    unplanned(r#"{"Absolute": 2}"#, r#"{"Absolute": 0}"#, "shape", "a dimension of 0 elements");
    unplanned(
        r#"[{"Absolute": 48}]"#,
        r#"[{"Absolute": 50}]"#,
        "strides",
        "a stride of 50, expected a multiple of 16",
    );
    unplanned(r#"[{"Absolute": 48}]"#, r#"[{"Absolute": 18446744073709551600}]"#, "strides", "a stride of");
    unplanned(
        r#"{"Absolute": 16}, "dtype""#,
        r#"{"Absolute": 8}, "dtype""#,
        "offset",
        "byte 8, expected a multiple of 16",
    );
    // A size without a value is told at its own place.
    let error = plan(
        &passing(&MAP.replace(r#"{"Absolute": 2}"#, r#"{"Sub": [{"Sizeof": "W"}, {"Sizeof": "A"}]}"#)),
        &[],
    );
    assert_eq!(error.unwrap_err().path, format!("{PLACE}.shape[0].Sub"));
}

#[test]
fn equal_maps_are_one_and_keep_their_buffer_live() {
    let steps = [passing(MAP), passing(MAP)];
    assert_eq!(steps[0], steps[1]);
    let two = with_steps(
        &[
            launch(&format!(r#"{{"TensorMap": {MAP}}}"#)),
            launch(&format!(r#"{{"TensorMap": {MAP}}}, {{"U8": 1}}"#)),
        ]
        .join(","),
    );
    let made = plan(&two, &[]).unwrap();
    assert_eq!(made.params.tensor_maps.len(), 2);
    assert_eq!(made.params.tensor_maps[1].slot, 16);
    assert_eq!(parse(two.as_bytes()).unwrap().tensor_maps.len(), 1);
}
