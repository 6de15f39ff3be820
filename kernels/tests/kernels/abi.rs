//! Every wasm module has the shape that the CPU device relies on.

use pappus_kernels::ARTEFACTS;
use wasmtime::{Config, Engine, ExternType, Module, Mutability, ValType};

/// Pages of the low region: the stack's and, where there are constants, theirs.
const MAX_LOW_REGION_PAGES: u64 = 2;

fn wasm() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    ARTEFACTS.iter().copied().filter(|(file, _)| file.ends_with(".wasm"))
}

#[test]
fn imports_are_the_memory_alone() {
    let engine = Engine::new(&Config::new()).unwrap();
    for (file, bytes) in wasm() {
        let module = Module::new(&engine, bytes).unwrap();
        let imports = module.imports().collect::<Vec<_>>();
        let [memory] = imports.as_slice() else { panic!("{file} imports {imports:?}") };
        assert_eq!((memory.module(), memory.name()), ("env", "memory"), "{file}");
        let memory = memory.ty().unwrap_memory().clone();
        assert!(memory.minimum() <= MAX_LOW_REGION_PAGES && memory.maximum().is_none(), "{file}: {memory:?}");
        assert!(!memory.is_64() && !memory.is_shared(), "{file}");
    }
}

#[test]
fn exports_are_kernels_and_the_stack_pointer() {
    let engine = Engine::new(&Config::new()).unwrap();
    for (file, bytes) in wasm() {
        for export in Module::new(&engine, bytes).unwrap().exports() {
            match export.ty() {
                ExternType::Global(global) => {
                    assert_eq!(export.name(), "__stack_pointer", "{file}");
                    assert_eq!(global.mutability(), Mutability::Var, "{file}");
                    assert!(global.content().is_i32(), "{file}");
                }
                ExternType::Func(function) => {
                    let parameters = function.params().map(|ty| ty.to_string()).collect::<Vec<_>>();
                    assert_eq!(parameters, ["i32", "i32", "i64", "i64"], "{file}: {}", export.name());
                    assert!(function.results().all(|_: ValType| false), "{file}: {}", export.name());
                }
                other => panic!("{file} exports {} as {other:?}", export.name()),
            }
        }
    }
}

#[test]
fn sections_are_those_of_plain_code() {
    // Custom (what the kernels take), type, import, function, table (the linker's, empty), global, export, code, data. Not among
    // them: start (8), element (9), and data count (12), without which no instruction can use or
    // drop a data segment.
    const ALLOWED: [u8; 9] = [0, 1, 2, 3, 4, 6, 7, 10, 11];
    for (file, bytes) in wasm() {
        let mut rest = &bytes[8..];
        while let [id, after @ ..] = rest {
            assert!(ALLOWED.contains(id), "{file} has section {id}");
            let (length, after) = leb128(after);
            if *id == 6 {
                assert_eq!(leb128(after).0, 1, "{file} has more than one global");
            }
            rest = &after[length..];
        }
    }
}

/// The number at the front of `bytes` and what follows it.
fn leb128(bytes: &[u8]) -> (usize, &[u8]) {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let number = bytes[..=end].iter().rev().fold(0, |number, byte| number << 7 | usize::from(byte & 0x7F));
    (number, &bytes[end + 1..])
}

#[test]
fn ptx_rounds_as_the_others_do() {
    for (file, bytes) in ARTEFACTS.iter().filter(|(file, _)| file.ends_with(".ptx")) {
        let text = std::str::from_utf8(bytes).unwrap();
        for other in ["fma.", ".approx", ".ftz", ".full"] {
            assert!(!text.contains(other), "{file} has {other}");
        }
    }
    let math = pappus_kernels::artefact("math.ptx").map(|bytes| std::str::from_utf8(bytes).unwrap()).unwrap();
    for exact in ["sqrt.rn.f32", "rcp.rn.f32", "div.rn.f64", "mul.rn.f64", "add.rn.f64"] {
        assert!(math.contains(exact), "{exact}");
    }
}

#[test]
fn every_ptx_kernel_can_be_launched_with_1024_threads() {
    for (file, bytes) in ARTEFACTS.iter().filter(|(file, _)| file.ends_with(".ptx")) {
        let text = std::str::from_utf8(bytes).unwrap();
        assert_eq!(text.matches(".entry ").count(), text.matches(".maxntid 1024").count(), "{file}");
    }
}
