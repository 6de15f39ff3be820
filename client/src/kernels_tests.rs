//! What machine code and configurations say of each other.

use pappus_blueprint::code::of_name;
use pappus_blueprint::signatures;

use super::*;

/// As of a file whose name ends in the format's.
fn of_bytes(path: &Path, format: &str, content: &[u8]) -> Result<Vec<Part>> {
    super::of_bytes(path, of_name(format).unwrap(), content)
}

fn part(found: Result<Vec<Part>>) -> Part {
    let [part] = &found.unwrap()[..] else { panic!("one part") };
    part.clone()
}

/// The kernels of a module that comes with Pappus.
fn built(name: &str) -> Vec<Kernel> {
    let format = name.rsplit('.').next().unwrap();
    part(of_bytes(Path::new(name), format, pappus_kernels::artefact(name).unwrap())).kernels.unwrap()
}

#[test]
fn every_form_of_a_module_tells_its_kernels() {
    for name in ["mlops.wasm", "mlops.ptx", "mlops.hsaco", "mlops.gfx942.hsaco"] {
        let names: Vec<String> = built(name).into_iter().map(|kernel| kernel.info.name).collect();
        assert!(names.contains(&"matmul_para".to_owned()), "{name}: {names:?}");
    }
    let ptx = built("mlops.ptx");
    let params =
        ptx.iter().find(|kernel| kernel.info.name == "matmul_para").unwrap().info.params.as_ref().unwrap();
    assert_eq!(params.iter().map(|param| param.bytes).collect::<Vec<_>>(), [8, 8, 8]);
}

#[test]
fn a_code_object_tells_what_its_kernels_take_and_need() {
    let content = pappus_kernels::artefact("linalg.gfx942.hsaco").unwrap();
    let object = part(of_bytes(Path::new("m"), "hsaco", content));
    assert_eq!(
        (object.target.as_str(), &object.figures[..]),
        ("gfx942", &[("code_object_version", 5), ("variable_bytes", 0)][..])
    );
    let kernels = object.kernels.unwrap();
    let kernel = kernels.iter().find(|kernel| kernel.info.name == "matmul_tiled_i64").unwrap();
    let classes: Vec<_> = kernel.info.params.iter().flatten().map(|param| param.class.name()).collect();
    assert_eq!(classes, ["pointer", "pointer", "pointer", "value", "value", "value"]);
    let figure = |name| kernel.figures.iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!((figure("max_threads"), figure("wave"), figure("local_bytes")), (1024, 64, 0));
    assert!(figure("vector_registers") > 0);
    // Of a bundle each.
    let bundle = pappus_kernels::synthetic::bundle(&[
        ("hipv4-amdgcn-amd-amdhsa--gfx942", content),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a", pappus_kernels::artefact("linalg.hsaco").unwrap()),
    ]);
    let targets = of_bytes(Path::new("m"), "hsaco", &bundle).unwrap();
    assert_eq!(targets.into_iter().map(|part| part.target).collect::<Vec<_>>(), ["gfx942", "gfx90a"]);
}

#[test]
fn wasm_tells_its_memory_and_ptx_its_target() {
    let wasm = part(of_bytes(Path::new("m"), "wasm", pappus_kernels::artefact("module.wasm").unwrap()));
    let [("memory_bytes", bytes)] = wasm.figures[..] else { panic!("{wasm:?}") };
    assert!(bytes > 0 && bytes % 65536 == 0, "{bytes}");
    let ptx = part(of_bytes(Path::new("m"), "ptx", b".target sm_90, debug\n.entry k() .maxntid 8 {}"));
    assert_eq!(
        (ptx.target.as_str(), &ptx.kernels.unwrap()[0].figures[..]),
        ("sm_90", &[("max_threads", 8)][..])
    );
}

#[test]
fn every_function_that_comes_with_pappus_fits_its_modules() {
    for (config, text) in pappus_kernels::CONFIGS {
        let blueprint = pappus_blueprint::parse(text.as_bytes()).unwrap();
        for (at, module) in blueprint.modules().iter().enumerate() {
            let stem = crate::variants::stem(Path::new(&*module.path));
            for format in ["wasm", "ptx", "hsaco", "gfx942.hsaco"] {
                let name = format!("{stem}.{format}");
                assert_eq!(check(&blueprint, at, Path::new(&name), &built(&name)), [], "{config}");
            }
        }
    }
}

fn blueprint(kernel: &str, arguments: &str) -> Blueprint {
    let one = r#"{"Absolute": 1}"#;
    let text = format!(
        r#"{{"modules": [{{"module_name": "m", "path": "m.ptx"}}],
        "kernels": [{{"module_name": "m", "kernel_name": "{kernel}"}}],
        "blueprint": {{"inputs": ["A"], "buffers": {{}}, "outputs": ["A"], "control_flow": [
            {{"ExecKernel": ["{kernel}", [{arguments}], {{
                "grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one}, "block_dim_x": {one},
                "block_dim_y": {one}, "block_dim_z": {one}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
    );
    pappus_blueprint::parse(text.as_bytes()).unwrap()
}

#[test]
fn what_does_not_fit_names_kernel_module_and_argument() {
    let ptx = "m.ptx";
    let of = |text: &str| part(of_bytes(Path::new(ptx), "ptx", text.as_bytes())).kernels.unwrap();
    let kernels = of(".entry k(.param .u64 a, .param .f32 b) {}");
    let judge = |kernel: &str, arguments: &str| {
        let misfits = check(&blueprint(kernel, arguments), 0, Path::new(ptx), &kernels);
        misfits.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(judge("k", r#"{"Ptr": "A"}, {"F32": 1}"#), [""; 0]);
    for (kernel, arguments, words) in [
        ("j", "", "at kernels[0]: m.ptx: module m has no kernel `j`; it has \"k\""),
        (
            "k",
            r#"{"Ptr": "A"}"#,
            "at blueprint.control_flow[0].ExecKernel[1]: m.ptx: kernel `k` takes 2 arguments, the blueprint passes 1",
        ),
        (
            "k",
            r#"{"Ptr": "A"}, {"F64": 1}"#,
            "argument 2: the kernel takes 4 bytes (float), the blueprint passes an f64",
        ),
        (
            "k",
            r#"{"Ptr": "A"}, {"I32": 1}"#,
            "argument 2: the kernel takes 4 bytes (float), the blueprint passes an i32",
        ),
    ] {
        let why = judge(kernel, arguments);
        assert!(why.len() == 1 && why[0].contains(words), "{why:?}");
    }
    // All at once.
    let both = judge("k", r#"{"I32": 1}, {"I32": 1}"#);
    let places: Vec<_> = both.iter().map(|why| why.split(": ").next().unwrap()).collect();
    assert_eq!(places, [0, 1].map(|at| format!("at blueprint.control_flow[0].ExecKernel[1][{at}]")));
}

#[test]
fn a_pointer_is_no_integer_of_wasm_that_tells_its_parameters() {
    use signatures::{Class, Signature, laid_out, put};
    let told = |class| {
        let params = laid_out([("values", class, 8, 8)]).unwrap();
        let export = b"\0asm\x01\0\0\0\x07\x05\x01\x01k\0\0";
        let module = put(export, &[Signature { kernel: "k".to_owned(), params }]).unwrap();
        part(of_bytes(Path::new("m.wasm"), "wasm", &module)).kernels.unwrap()
    };
    let judge = |kernels: &[Kernel], argument: &str| {
        check(&blueprint("k", argument), 0, Path::new("m.wasm"), kernels)
            .iter()
            .map(ToString::to_string)
            .collect::<String>()
    };
    let (pointer, integer) = (r#"{"Ptr": "A"}"#, r#"{"I64": 5}"#);
    let words = "argument 1 \"values\": the kernel takes 8 bytes (integer), the blueprint passes a pointer of 8 bytes";
    assert!(
        judge(&told(Class::Integer), pointer).contains(words),
        "{}",
        judge(&told(Class::Integer), pointer)
    );
    assert_eq!(judge(&told(Class::Integer), integer), "");
    assert_eq!(judge(&told(Class::Pointer), pointer), "");
    assert!(judge(&told(Class::Pointer), integer).contains("(pointer), the blueprint passes an i64"));
    // PTX has no pointers: there an integer of 8 bytes may be one.
    let ptx = part(of_bytes(Path::new("m.ptx"), "ptx", b".entry k(.param .u64 a) {}")).kernels.unwrap();
    assert_eq!(judge(&ptx, pointer), "");
}

/// A parameter's record in a cubin.
fn record(ordinal: u16, offset: u16, bytes: u32) -> Vec<u8> {
    let head =
        [4, 0x17, 12, 0, 0, 0, 0, 0].into_iter().chain(ordinal.to_le_bytes()).chain(offset.to_le_bytes());
    head.chain((bytes << 18 | 0x1_f000).to_le_bytes()).collect()
}

/// A cubin of one kernel `k`, for sm_90.
fn cubin(info: &[u8]) -> Vec<u8> {
    let names = b"\0.nv.info.k\0.symtab\0";
    let symbols: Vec<u8> = [[0; 24], {
        let mut symbol = [0; 24];
        // Called by the end of the section's name, global, a function, in the first section.
        (symbol[0], symbol[4], symbol[6]) = (10, 0x12, 1);
        symbol
    }]
    .concat();
    let mut file = b"\x7fELF\x02\x01\x01\x33\x07".to_vec();
    file.resize(64, 0);
    let mut sections = vec![0; 64];
    for (name, kind, content, entry) in [(1u32, 1u32, info, 0u64), (13, 2, &symbols, 24), (0, 3, names, 0)] {
        for word in [name, kind] {
            sections.extend(word.to_le_bytes());
        }
        for word in [0, 0, file.len() as u64, content.len() as u64, 3 | 1 << 32, 1, entry] {
            sections.extend(word.to_le_bytes());
        }
        file.extend(content);
    }
    let table = (file.len() as u64).to_le_bytes();
    file[0x28..0x30].copy_from_slice(&table);
    for (at, half) in
        [(0x10, 2u16), (0x12, 190), (0x14, 1), (0x30, 90), (0x34, 64), (0x3a, 64), (0x3c, 4), (0x3e, 3)]
    {
        file[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    file.extend(sections);
    file
}

#[test]
fn a_cubin_tells_where_its_parameters_lie() {
    let path = Path::new("m.cubin");
    let of = |info: &[u8]| {
        let part = part(of_bytes(path, "cubin", &cubin(info)));
        assert_eq!((part.target.as_str(), part.kernels.as_ref().unwrap().len()), ("sm_90", 1));
        part.kernels.unwrap()
    };
    let arguments = r#"{"Ptr": "A"}, {"TensorMap": {"buffer": "A", "dtype": "u16", "shape": [{"Absolute": 64}],
        "strides": [], "box": [64]}}"#;
    let judge = |kernels: &[Kernel]| {
        check(&blueprint("k", arguments), 0, path, kernels)
            .iter()
            .map(ToString::to_string)
            .collect::<String>()
    };
    // In any order, among other attributes.
    let kernels = of(&[record(1, 64, 128), vec![3, 0x1b, 255, 0], record(0, 0, 8)].concat());
    assert_eq!(
        kernels[0].info.params.iter().flatten().map(|param| param.bytes).collect::<Vec<_>>(),
        [8, 128]
    );
    assert_eq!(judge(&kernels), "");
    let why = judge(&of(&[record(0, 0, 8), record(1, 112, 128)].concat()));
    let words = "kernel `k`, argument 2: the kernel has it at byte 112 of its parameters, the blueprint's alignment of 64 \
                 puts it at byte 64";
    assert!(why.contains(words), "{why}");
    // What is not understood tells nothing.
    for info in [&[][..], &record(1, 8, 8), &record(0, 0, 8)[..12], &[5, 0x17, 0, 0]] {
        assert_eq!(of(info)[0].info.params, None, "{info:?}");
    }
}

#[test]
fn what_is_no_module_is_refused_and_never_panics() {
    for (format, content) in [
        ("wasm", &b"\0asm\x01\0\0\0\x07\x05\x01\xff\xff"[..]),
        ("wasm", b"\x7fELF"),
        ("hsaco", b"\x7fELF\x02\x01"),
        ("cubin", b""),
        ("ptx", b"\xff\xfe"),
    ] {
        of_bytes(Path::new("m"), format, content).unwrap_err();
    }
    assert_eq!(part(of_bytes(Path::new("m"), "fatbin", b"")).kernels, None);
    assert_eq!(part(of_bytes(Path::new("m"), "ptx", b".entry k(")).kernels, None);
}
