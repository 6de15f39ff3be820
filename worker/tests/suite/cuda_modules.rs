//! The compiler's description of modules, and its messages for modules that it refuses.

use pappus_protocol::FaultCode;
use pappus_protocol::from_worker::{KernelInfo, ParamClass};

use crate::harness::program::{self, Options};
use crate::suite::UnderTest;
use crate::suite::blueprints::{Blueprint, filling, i64, launch, ptr, u32};
use crate::suite::cuda::{CLUSTER_PROBES, OnCuda, PROBES, TENSOR_MAP_PROBES, compile};

fn refused(module: &[u8], words: &str) {
    let fault = program::compile(&Options::CUDA, module).unwrap_err();
    assert_eq!(fault.code, FaultCode::BadModule, "{fault}");
    assert!(fault.message.contains(words), "{fault}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]
fn parameters_are_told() {
    let (_, module) = program::compile(&Options::CUDA, PROBES).unwrap();
    let kernel = |name: &str| -> &KernelInfo { module.kernels.iter().find(|k| k.name == name).unwrap() };
    let params = |name: &str| -> Vec<(u32, u32, ParamClass)> {
        let params = kernel(name).params.as_ref().unwrap();
        params.iter().map(|param| (param.offset, param.bytes, param.class)).collect()
    };
    use ParamClass::{Float, Integer};
    assert_eq!(params("parameters"), [(0, 8, Integer), (8, 4, Integer), (12, 4, Float), (16, 8, Float)]);
    assert_eq!(params("fill"), [(0, 8, Integer), (8, 8, Integer), (16, 8, Integer)]);
    assert_eq!(params("trap"), []);
    assert!(kernel("local_fill").local_bytes >= 4096);
    assert!(kernel("local_fill").stack_bytes >= 4096 * 1024);
    assert_eq!(kernel("register_fill").max_threads, 256);
    // Registers would be enough for more.
    let text = String::from_utf8(PROBES.to_vec()).unwrap();
    let text = text.replace(".entry trap()\n.maxntid 1024, 1, 1", ".entry trap()\n.reqntid 128");
    let (_, module) = program::compile(&Options::CUDA, text.as_bytes()).unwrap();
    assert_eq!(module.kernels.iter().find(|kernel| kernel.name == "trap").unwrap().max_threads, 128);
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]
fn what_does_not_compile_is_refused_with_the_compilers_words() {
    let text = String::from_utf8(PROBES.to_vec()).unwrap();
    refused(text.replace("trap;", "bogus.instruction;").as_bytes(), "bogus");
    refused(text.replace(".target sm_70", ".target sm_7000").as_bytes(), "sm_7000");
    refused(b".version 7.0\n.target sm_70\n.address_size 64\n", "no kernel");
    refused(b"\0asm\x01\0\0\0", "PTX");
    refused(b"", "");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]
fn machine_code_of_another_gpu_or_cut_short_is_refused() {
    let code = OnCuda::probes();
    for bytes in [16, 64, code.len() / 2, code.len() - 64] {
        refused(&code[..bytes], "");
        // A serving worker judges for itself.
        let mut worker = OnCuda::worker();
        worker.install(1, &filling(8, &[launch("work", "")]), &code[..bytes], &[]);
        worker.install(2, &filling(8, &[launch("work", "")]), code, &[]);
        assert_eq!(worker.call(1, &[], &[8]).unwrap_err().code, FaultCode::Load, "{bytes} bytes");
        assert_eq!(worker.call(2, &[], &[8]).unwrap(), [[0; 8]]);
        worker.end().unwrap();
    }
    // PTX for a GPU that is newer than this one.
    let text = String::from_utf8(CLUSTER_PROBES.to_vec()).unwrap();
    refused(text.replace(".version 7.8", ".version 8.8").replace("sm_90", "sm_121a").as_bytes(), "");
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]
fn arguments_that_do_not_fit_are_told() {
    for (params, words) in [
        ([ptr("out"), i64(1)].join(","), "3 arguments"),
        ([ptr("out"), r#"{"F32": 1.5}"#.to_owned(), i64(8)].join(","), "argument 2"),
    ] {
        let mut worker = OnCuda::worker();
        worker.install(1, &filling(8, &[launch("fill", &params)]), OnCuda::probes(), &[]);
        let fault = worker.call(1, &[], &[8]).unwrap_err();
        assert!(fault.message.contains("`fill`") && fault.message.contains(words), "{fault}");
        worker.end().unwrap();
    }
}

/// Where the machine code has the map, and so where the worker has to pass it, is up to the assembler.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check conformance"]
fn a_kernel_copies_boxes_by_a_tensor_map() {
    let mut worker = OnCuda::worker();
    // GPUs before sm_90 have none.
    if ["sm_7", "sm_8"].iter().any(|older| worker.hello.arch.starts_with(older)) {
        return worker.end().unwrap();
    }
    const ROWS: usize = 8;
    const COLUMNS: usize = 56;
    const STRIDE: usize = 64;
    let input: Vec<u8> = (0..ROWS * STRIDE).map(|at| (at % 251) as u8 + 1).collect();
    let map = format!(
        r#"{{"TensorMap": {{"buffer": "in", "dtype": "u8", "shape": [{{"Absolute": {ROWS}}}, {{"Absolute": {COLUMNS}}}],
            "strides": [{{"Absolute": {STRIDE}}}], "box": [4, 16]}}}}"#
    );
    // One in the middle, and one that reaches beyond the last row and the last column. Where a box does not begin at a multiple of 16
    // bytes, an H200 ends the kernel for an illegal instruction.
    for (function, row, column) in [(1, 3, 16), (2, 6, 48)] {
        let arguments = [ptr("out"), map.clone(), u32(column as u32), u32(row as u32)].join(",");
        let steps = [launch("box_copy", &arguments)];
        let blueprint = Blueprint {
            inputs: &["in"],
            weights: &[],
            buffers: &[("out", 64)],
            outputs: &["out"],
            steps: &steps,
        };
        worker.install(function, &blueprint.json(), &compile(TENSOR_MAP_PROBES), &[]);
        let expected: Vec<u8> = (0..64)
            .map(|at| [row + at / 16, column + at % 16])
            .map(|[y, x]| if y < ROWS && x < COLUMNS { input[y * STRIDE + x] } else { 0 })
            .collect();
        let copied = worker.call(function, &[&input], &[64]);
        assert_eq!(copied.map_err(|e| format!("row {row}, column {column}: {e}")).unwrap(), [expected]);
    }
    worker.end().unwrap();
}
