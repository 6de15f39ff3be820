//! What the compiler found in a module against what a blueprint does with it: kernels, parameters, block
//! sizes, stacks. Pure.

use std::collections::HashMap;

use bytesize::ByteSize;
use pappus_blueprint::{Blueprint, Launch, ParamKind, PassedParam};
use pappus_protocol::from_worker::{KernelInfo, ParamClass, ParamInfo};

use crate::refusal::{Reason, Refusal, refusal};
use crate::store::records::CodeInfo;

/// Where code runs, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLimits<'a> {
    /// Names of the devices, for messages.
    pub devices: &'a str,
    /// Device memory that the driver may take for the stacks of one worker.
    pub stack_bytes: Option<u64>,
}

/// Checks a blueprint against the machine code of its modules, in its order, as far as it is known.
pub fn check(
    blueprint: &Blueprint,
    codes: &[Option<CodeInfo>],
    place: DeviceLimits<'_>,
) -> Result<(), Refusal> {
    let known: Vec<_> = codes.iter().map(|code| code.as_ref().map(by_name)).collect();
    let unknown = KernelInfo::default();
    let mut kernels = Vec::with_capacity(blueprint.kernels().len());
    for kernel in blueprint.kernels() {
        let Some(code) = &known[kernel.module] else {
            kernels.push(&unknown);
            continue;
        };
        let Some(info) = code.get(kernel.symbol.as_str()) else {
            let there = codes[kernel.module].iter().flat_map(|code| &code.kernels);
            let there = there.map(|k| k.name.as_str()).collect::<Vec<_>>();
            let why = format!("has no kernel `{}`; it has {}", kernel.symbol, there.join(", "));
            let module = &blueprint.modules()[kernel.module].name;
            return Err(Box::new(refusal(Reason::InvalidArgument, why).at(format!("module {module}"))));
        };
        check_stack(&kernel.name, info, place)?;
        kernels.push(*info);
    }
    blueprint.launches().try_for_each(|launch| {
        let name = &blueprint.kernels()[launch.kernel].name;
        check_launch(name, kernels[launch.kernel], &launch)
    })
}

fn by_name(code: &CodeInfo) -> HashMap<&str, &KernelInfo> {
    code.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel)).collect()
}

fn check_stack(name: &str, kernel: &KernelInfo, place: DeviceLimits<'_>) -> Result<(), Refusal> {
    match place.stack_bytes {
        Some(limit) if kernel.stack_bytes > limit => {
            let size = |bytes| ByteSize::b(bytes).display().iec();
            let why = format!(
                "kernel `{name}` needs {} bytes of stack per thread, {} for all threads of the device, but {} \
                 allows stack={}: make the kernel's arrays smaller, or ask the operator for a larger stack",
                kernel.local_bytes,
                size(kernel.stack_bytes),
                place.devices,
                size(limit)
            );
            Err(Box::new(refusal(Reason::OutOfMemory, why).at(format!("kernel {name}"))))
        }
        _ => Ok(()),
    }
}

fn check_launch(name: &str, kernel: &KernelInfo, launch: &Launch<'_>) -> Result<(), Refusal> {
    let wrong = |within: &str, why: String| {
        let error = refusal(Reason::InvalidArgument, format!("kernel `{name}`{why}"));
        Err(Box::new(error.at(format!("{}{within}", launch.place()))))
    };
    if let Some(threads) = launch.block_threads
        && kernel.max_threads != 0
        && threads > u64::from(kernel.max_threads)
    {
        let why = format!(": blocks of {threads} threads, it can be launched with {}", kernel.max_threads);
        return wrong("[2]", why);
    }
    let Some(params) = &kernel.params else { return Ok(()) };
    let passed = launch.params().count();
    if passed != params.len() {
        return wrong("[1]", format!(" takes {} arguments, the blueprint passes {passed}", params.len()));
    }
    let mut end = 0;
    for (at, (param, passed)) in params.iter().zip(launch.params()).enumerate() {
        if let Err(why) = check_param(*param, passed, end) {
            return wrong(&format!("[1][{at}]"), format!(", argument {}: {why}", at + 1));
        }
        end = u64::from(param.offset) + u64::from(param.bytes);
    }
    Ok(())
}

/// `end` is where the parameter before ends.
fn check_param(param: ParamInfo, passed: PassedParam, end: u64) -> Result<(), String> {
    let float = matches!(passed.kind, ParamKind::F32 | ParamKind::F64);
    let whole = !matches!(passed.kind, ParamKind::Struct) && !float;
    let wrong_type = param.class == ParamClass::Integer && float || param.class == ParamClass::Float && whole;
    if param.bytes != passed.bytes || wrong_type {
        let taken = match param.class {
            ParamClass::Unknown => "",
            ParamClass::Integer => " (integer or address)",
            ParamClass::Float => " (float)",
            ParamClass::Bytes => " (struct)",
        };
        return Err(format!(
            "the kernel takes {} bytes{taken}, the blueprint passes {} of {} bytes",
            param.bytes,
            word(passed.kind),
            passed.bytes
        ));
    }
    let expected = end.next_multiple_of(u64::from(passed.align.max(1)));
    match u64::from(param.offset) == expected {
        true => Ok(()),
        false => Err(format!(
            "the kernel has it at byte {} of its parameters, the blueprint's alignment of {} puts it at byte \
             {expected}: give the struct the kernel's \"align\"",
            param.offset, passed.align
        )),
    }
}

/// `an i32`, `a pointer`.
fn word(kind: ParamKind) -> String {
    let article = match kind {
        ParamKind::I32 | ParamKind::I64 | ParamKind::F32 | ParamKind::F64 => "an",
        _ => "a",
    };
    format!("{article} {}", kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANYWHERE: DeviceLimits<'_> =
        DeviceLimits { devices: "the device cuda:0", stack_bytes: Some(1 << 30) };

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
        let params =
            params.iter().map(|&(offset, bytes, class)| ParamInfo { offset, bytes, class }).collect();
        KernelInfo { name: "k".into(), params: Some(params), ..KernelInfo::default() }
    }

    fn judge(blueprint: &Blueprint, kernel: KernelInfo) -> Result<(), (String, String)> {
        check(blueprint, &[Some(CodeInfo { kernels: vec![kernel] })], ANYWHERE)
            .map_err(|e| (e.message, e.place))
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
        // A struct of one number is the number; numbers may be what the kernel calls a struct.
        let one = function(r#"{"Struct": {"size": 4, "align": 4, "fields": []}}"#, 1);
        assert_eq!(judge(&one, kernel(&[(0, 4, Float)])), Ok(()));
        assert_eq!(judge(&function(r#"{"F64": 1}"#, 1), kernel(&[(0, 8, Bytes)])), Ok(()));
        // Kinds that do not tell.
        assert_eq!(judge(&function(all, 1), KernelInfo { params: None, ..kernel(&[]) }), Ok(()));
    }

    #[test]
    fn each_disagreement_names_kernel_and_argument() {
        use ParamClass::{Bytes, Float, Integer, Unknown};
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
            (
                r#"{"F64": 1}"#,
                &[(0, 8, Integer)],
                "[1][0]",
                "(integer or address), the blueprint passes an f64",
            ),
            (
                r#"{"F64": 1}"#,
                &[(0, 4, Unknown)],
                "[1][0]",
                "takes 4 bytes, the blueprint passes an f64 of 8",
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
        assert!(check(&function("", 1), &[Some(CodeInfo { kernels: vec![hungry] })], host).is_ok());
        let (why, at) =
            judge(&function("", 1), KernelInfo { name: "other".into(), ..kernel(&[]) }).unwrap_err();
        assert!(why.contains("has no kernel `k`; it has other") && at == "module m", "{why} {at}");
    }
}
