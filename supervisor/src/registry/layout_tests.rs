//! Tests of [`layout`](super).

use pappus_blueprint::kernel_info::{KernelInfo, ParamClass, ParamInfo};

use super::*;

const ANYWHERE: DeviceLimits<'_> = DeviceLimits { devices: "the device cuda:0", stack_bytes: Some(1 << 30) };

/// A function that launches kernel `k` with these arguments and blocks of `threads`.
fn function(arguments: &str, threads: u32) -> Blueprint {
    let one = r#"{"Absolute": 1}"#;
    let json = format!(
        r#"{{"modules": [{{"module_name": "m", "path": "m.ptx"}}],
            "kernels": [{{"module_name": "m", "kernel_name": "k"}}],
            "blueprint": {{"inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{{"Repeat": [{one}, [{{"ExecKernel": ["k", [{arguments}], {{
                "grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one},
                "block_dim_x": {{"Absolute": {threads}}}, "block_dim_y": {one}, "block_dim_z": {one},
                "shared_mem_bytes": {{"Absolute": 0}}}}]}}]]}}]}}}}"#
    );
    pappus_blueprint::parse(json.as_bytes()).unwrap()
}

fn kernel(params: &[(u32, u32, ParamClass)]) -> KernelInfo {
    let param = |&(offset, bytes, class): &_| ParamInfo { name: "".into(), offset, bytes, class };
    let params = params.iter().map(param).collect();
    KernelInfo { name: "k".into(), params: Some(params), ..KernelInfo::default() }
}

fn judge(blueprint: &Blueprint, kernel: KernelInfo) -> Result<(), (String, String)> {
    check(blueprint, &[Some(Arc::new(CodeInfo { kernels: vec![kernel], ..CodeInfo::default() }))], ANYWHERE)
        .map_err(|e| (e.to_string(), e.place().into_owned()))
}

#[test]
fn a_module_that_matches_its_blueprint_is_accepted() {
    use ParamClass::{Bytes, Float, Integer, Unknown};
    let all = r#"{"Ptr": "A"}, {"I32": 1}, {"F32": 1}, {"F64": 1}, {"U32": 1}, {"Constant": 3},
        {"Struct": {"size": 12, "align": 4, "fields": []}}, {"Sizeof": "A"}"#;
    let layout = [
        (0, 8, Integer),
        (8, 4, Integer),
        (12, 4, Float),
        (16, 8, Float),
        (24, 4, Unknown),
        (32, 8, Integer),
        (40, 12, Bytes),
        (56, 8, Integer),
    ];
    assert_eq!(judge(&function(all, 1), kernel(&layout)), Ok(()));
    // Small numbers have their own size and alignment; what declares a float of two bytes is up to the compiler.
    let small = r#"{"U8": 1}, {"F16": 1}, {"I8": 1}, {"Bool": true}, {"BF16": 1}, {"I16": 1}, {"F16": 1}"#;
    let layout = [
        (0, 1, Integer),
        (2, 2, Float),
        (4, 1, Integer),
        (5, 1, Unknown),
        (6, 2, Integer),
        (8, 2, Integer),
        (10, 2, Bytes),
    ];
    assert_eq!(judge(&function(small, 1), kernel(&layout)), Ok(()));
    // A struct of one number is the number; numbers may be what the kernel calls a struct.
    let one = function(r#"{"Struct": {"size": 4, "align": 4, "fields": []}}"#, 1);
    assert_eq!(judge(&one, kernel(&[(0, 4, Float)])), Ok(()));
    assert_eq!(judge(&function(r#"{"F64": 1}"#, 1), kernel(&[(0, 8, Bytes)])), Ok(()));
    // AMD's code tells pointers from everything else.
    use ParamClass::{Pointer, Value};
    let layout = [
        (0, 8, Pointer),
        (8, 4, Value),
        (12, 4, Value),
        (16, 8, Value),
        (24, 4, Value),
        (32, 8, Value),
        (40, 12, Value),
        (56, 8, Value),
    ];
    assert_eq!(judge(&function(all, 1), kernel(&layout)), Ok(()));
    // A zero is an address of nothing: Triton's kernels take two such.
    assert_eq!(judge(&function(r#"{"U64": 0}"#, 1), kernel(&[(0, 8, Pointer)])), Ok(()));
    // Kinds that do not tell.
    assert_eq!(judge(&function(all, 1), KernelInfo { params: None, ..kernel(&[]) }), Ok(()));
}

#[test]
fn a_tensor_map_lies_where_the_assembler_aligned_it() {
    use ParamClass::{Bytes, Integer};
    let map = r#"{"Ptr": "A"}, {"TensorMap": {"buffer": "A", "dtype": "u8", "shape": [{"Sizeof": "A"}],
        "strides": [], "box": [16]}},
        {"I32": 1}"#;
    for (at, accepted) in [(64, true), (48, true), (16, true), (8, false), (0, false), (80, false)] {
        let layout = [(0, 8, Integer), (at, 128, Bytes), (at + 128, 4, Integer)];
        assert_eq!(judge(&function(map, 1), kernel(&layout)).is_ok(), accepted, "{at}");
    }
    // What follows it has its own place.
    let gap = [(0, 8, Integer), (48, 128, Bytes), (180, 4, Integer)];
    let (why, _) = judge(&function(map, 1), kernel(&gap)).unwrap_err();
    assert!(why.contains("argument 3") && why.contains("at byte 176"), "{why}");
}

#[test]
fn each_disagreement_names_kernel_and_argument() {
    use ParamClass::{Bytes, Float, Integer, Pointer, Unknown, Value, Whole};
    let place = "blueprint.control_flow[0].Repeat[1][0].ExecKernel";
    let two = r#"{"I32": 1}, {"Ptr": "A"}"#;
    let padded = r#"{"I32": 1}, {"Struct": {"size": 16, "align": 4, "fields": []}}"#;
    for (arguments, layout, within, words) in [
        (two, &[(0, 4, Integer)][..], "[1]", "kernel `k` takes 1 arguments, the blueprint passes 2"),
        (
            two,
            &[(0, 4, Integer), (4, 4, Float)],
            "[1][1]",
            "kernel `k`, argument 2: the kernel takes 4 bytes (float), the blueprint passes a pointer of 8 bytes",
        ),
        (
            two,
            &[(0, 4, Float), (8, 8, Integer)],
            "[1][0]",
            "argument 1: the kernel takes 4 bytes (float), the blueprint passes an i32",
        ),
        (r#"{"F64": 1}"#, &[(0, 8, Integer)], "[1][0]", "(integer or address), the blueprint passes an f64"),
        (r#"{"F64": 1}"#, &[(0, 4, Unknown)], "[1][0]", "takes 4 bytes, the blueprint passes an f64 of 8"),
        (
            r#"{"I64": 1}"#,
            &[(0, 8, Pointer)],
            "[1][0]",
            "argument 1: the kernel takes 8 bytes (pointer), the blueprint passes an i64 of 8 bytes",
        ),
        (
            r#"{"Ptr": "A"}"#,
            &[(0, 8, Value)],
            "[1][0]",
            "argument 1: the kernel takes 8 bytes by value, the blueprint passes a pointer of 8 bytes",
        ),
        (
            r#"{"Ptr": "A"}"#,
            &[(0, 8, Whole)],
            "[1][0]",
            "argument 1: the kernel takes 8 bytes (integer), the blueprint passes a pointer of 8 bytes",
        ),
        (
            r#"{"I16": 1}"#,
            &[(0, 4, Integer)],
            "[1][0]",
            "takes 4 bytes (integer or address), the blueprint passes an i16 of 2",
        ),
        (
            r#"{"U16": 1}"#,
            &[(0, 2, Float)],
            "[1][0]",
            "takes 2 bytes (float), the blueprint passes a u16 of 2",
        ),
        (
            padded,
            &[(0, 4, Integer), (16, 16, Bytes)],
            "[1][1]",
            "at byte 16 of its parameters, the blueprint's alignment of 4 puts it at byte 4",
        ),
    ] {
        let (message, at) = judge(&function(arguments, 1), kernel(layout)).unwrap_err();
        assert!(message.contains(words), "{message}");
        assert_eq!(at, format!("{place}{within}"));
    }
}

#[test]
fn blocks_and_stacks_have_limits() {
    let small = KernelInfo { max_threads: 256, ..kernel(&[]) };
    assert_eq!(judge(&function("", 256), small.clone()), Ok(()));
    let (why, at) = judge(&function("", 257), small).unwrap_err();
    assert!(why.contains("blocks of 257 threads, it can be launched with 256"), "{why}");
    assert!(at.ends_with("ExecKernel[2]"), "{at}");
    let hungry = KernelInfo { local_bytes: 9000, stack_bytes: 2 << 30, ..kernel(&[]) };
    let (why, _) = judge(&function("", 1), hungry.clone()).unwrap_err();
    for words in ["kernel `k`", "9000 bytes of stack per thread", "2.0 GiB", "stack=1.0 GiB", "cuda:0"] {
        assert!(why.contains(words), "{why}");
    }
    let host = DeviceLimits { stack_bytes: None, ..ANYWHERE };
    assert!(
        check(
            &function("", 1),
            &[Some(Arc::new(CodeInfo { kernels: vec![hungry], ..CodeInfo::default() }))],
            host
        )
        .is_ok()
    );
    let (why, at) = judge(&function("", 1), KernelInfo { name: "other".into(), ..kernel(&[]) }).unwrap_err();
    assert!(why == "module m has no kernel `k`; it has \"other\"" && at == "kernels[0]", "{why} {at}");
}
