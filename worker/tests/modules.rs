//! The rules for wasm modules, one by one; modules within the rules run.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use pappus_protocol::FaultCode;
use pappus_worker::device::Compiler;
use pappus_worker::device::cpu::compiler::CpuCompiler;

/// Compiles `(module …)` around a memory import, a stack pointer, a kernel and `more`.
fn compile(more: &str) -> Result<Vec<String>, String> {
    compile_text(&format!(
        r#"(module
            (import "env" "memory" (memory 1))
            (global $sp (export "__stack_pointer") (mut i32) (i32.const 4096))
            (func (export "kernel") (param i32 i32 i64 i64))
            {more})"#
    ))
}

fn compile_text(text: &str) -> Result<Vec<String>, String> {
    compile_bytes(&wat::parse_str(text).unwrap())
}

fn compile_bytes(module: &[u8]) -> Result<Vec<String>, String> {
    match CpuCompiler::new(false).unwrap().compile(module) {
        Ok((_, module)) => Ok(module.kernels.into_iter().map(|kernel| kernel.name).collect()),
        Err(fault) => {
            assert_eq!((fault.code, fault.kernel), (FaultCode::BadModule, None), "{fault}");
            Err(fault.message)
        }
    }
}

/// The module is refused, with these words in the message.
#[track_caller]
fn refused(result: Result<Vec<String>, String>, words: &str) {
    let message = result.unwrap_err();
    assert!(message.contains(words), "{message}");
}

const KERNEL: &str = r#"(func (export "kernel") (param i32 i32 i64 i64))"#;

#[test]
fn a_module_within_the_rules_compiles() {
    let more = r#"(func (export "second") (param i32 i32 i64 i64))
        (table 2 funcref) (elem (i32.const 0) $helper) (func $helper (result i32) (i32.const 1))
        (func (result i32) (call_indirect (result i32) (i32.const 0)))
        (global (export "__heap_base") i32 (i32.const 4096)) (data (i32.const 65528) "12345678")"#;
    assert_eq!(compile(more).unwrap(), ["kernel", "second"]);
    assert!(compile_text(&format!(r#"(module (import "env" "memory" (memory 0)) {KERNEL})"#)).is_ok());
    assert!(compile_text(&format!(r#"(module (import "env" "memory" (memory 512)) {KERNEL})"#)).is_ok());
}

#[test]
fn nothing_runs_but_kernels() {
    refused(compile("(func $start) (start $start)"), "start function");
    refused(compile(r#"(func (export "helper"))"#), "`helper` is no kernel");
    refused(
        compile(r#"(func (export "k") (param i32 i32 i64 i64) (result i32) unreachable)"#),
        "`k` is no kernel",
    );
    refused(compile_text(r#"(module (import "env" "memory" (memory 1)))"#), "no kernel");
}

#[test]
fn nothing_is_imported_but_the_memory() {
    refused(compile_text(&format!("(module {KERNEL})")), "--import-memory");
    refused(compile_text(&format!("(module (memory 1) {KERNEL})")), "memory of its own");
    for import in [
        r#"(import "env" "print" (func))"#,
        r#"(import "env" "g" (global i32))"#,
        r#"(import "env" "t" (table 1 funcref))"#,
        r#"(import "wasi" "memory" (memory 1))"#,
        r#"(import "env" "heap" (memory 1))"#,
    ] {
        refused(compile_text(&format!("(module {import} {KERNEL})")), "nothing but its memory");
    }
}

#[test]
fn the_memory_is_an_ordinary_small_one() {
    let module =
        |memory: &str| compile_text(&format!(r#"(module (import "env" "memory" {memory}) {KERNEL})"#));
    refused(module("(memory 513)"), "33619968 bytes");
    refused(module("(memory i64 1)"), "memory64");
    refused(module("(memory 1 2 shared)"), "threads");
    refused(module("(memory 1 (pagesize 1))"), "page");
    refused(
        compile_text(&format!(
            r#"(module (import "env" "memory" (memory 1)) (import "env" "memory" (memory 1)) {KERNEL})"#
        )),
        "multi",
    );
}

#[test]
fn no_state_outlives_a_call() {
    refused(compile("(global (mut i32) (i32.const 0))"), "mutable");
    let other = format!(
        r#"(module (import "env" "memory" (memory 1)) (global (export "state") (mut i32) (i32.const 0)) {KERNEL})"#
    );
    refused(compile_text(&other), "`__stack_pointer`");
    let wide = format!(
        r#"(module (import "env" "memory" (memory 1)) (global (export "__stack_pointer") (mut i64) (i64.const 0)) {KERNEL})"#
    );
    refused(compile_text(&wide), "an i32");
    for (instructions, name) in [
        ("(drop (memory.grow (i32.const 1)))", "memory.grow"),
        ("(table.set 0 (i32.const 0) (ref.null func))", "table.set"),
        ("(drop (table.grow 0 (ref.null func) (i32.const 1)))", "table.grow"),
        ("(table.fill 0 (i32.const 0) (ref.null func) (i32.const 1))", "table.fill"),
        ("(table.copy 0 0 (i32.const 0) (i32.const 0) (i32.const 1))", "table.copy"),
    ] {
        refused(compile(&format!("(table 1 funcref) (func {instructions})")), name);
    }
    refused(compile("(data \"x\")"), "passive");
    refused(
        compile("(data \"x\") (func (memory.init 0 (i32.const 0) (i32.const 0) (i32.const 1)))"),
        "memory.init",
    );
    refused(compile("(data (i32.const 0) \"x\") (func (data.drop 0))"), "data.drop");
    for instructions in ["(table.init 0 0 (i32.const 0) (i32.const 0) (i32.const 1))", "(elem.drop 0)"] {
        refused(compile(&format!("(table 1 funcref) (elem func) (func {instructions})")), "not active");
        let active = format!("(table 1 funcref) (elem (i32.const 0) func) (func {instructions})");
        refused(compile(&active), if instructions.contains("init") { "table.init" } else { "elem.drop" });
    }
    refused(compile(r#"(table (export "t") 1 funcref)"#), "`t` is a table");
    refused(compile(r#"(export "m" (memory 0))"#), "`m` is neither");
}

#[test]
fn data_lies_in_the_low_part() {
    refused(compile("(data (i32.const 65529) \"12345678\")"), "beyond the 65536 bytes");
    refused(compile("(data (i32.const -1) \"1\")"), "beyond the 65536 bytes");
    refused(compile("(global $g i32 (i32.const 8)) (data (global.get $g) \"1\")"), "constant");
}

#[test]
fn features_beyond_the_list_are_refused() {
    for (more, words) in [
        ("(func (drop (i32.atomic.load (i32.const 0))))", "threads"),
        ("(tag)", "exceptions"),
        ("(type (struct))", "gc"),
        ("(func (return_call 0 (i32.const 0) (i32.const 0) (i64.const 0) (i64.const 0)))", "tail calls"),
        ("(func (drop (i32x4.relaxed_trunc_f32x4_s (v128.const i32x4 0 0 0 0))))", "relaxed"),
    ] {
        refused(compile(more), words);
    }
}

#[test]
fn limits_are_checked_before_the_compiler_works() {
    refused(compile_bytes(&vec![0; (16 << 20) + 1]), "16777217 bytes");
    refused(compile_bytes(b"\x7fELF"), "no WebAssembly module");
    refused(compile_bytes(b""), "no WebAssembly module");
    refused(compile_bytes(b"\0asm\x0d\0\x01\0"), "no WebAssembly module");
    refused(compile(&"(func)".repeat(16_384)), "16385 functions");
    let exports: String = (0..1024).map(|i| format!(r#"(export "k{i}" (func 0))"#)).collect();
    refused(compile(&exports), "exports, allowed are 1024");
    refused(compile(&format!(r#"(export "{}" (func 0))"#, "x".repeat(256))), "256 bytes");
    let long: String = (0..512).map(|i| format!(r#"(export "{i:0>200}" (func 0))"#)).collect();
    refused(compile(&long), "names have 102406 bytes");
    refused(compile("(table 65537 funcref)"), "65537 elements");
    let segment = format!("(elem (i32.const 0) func {})", "0 ".repeat(40_000));
    assert!(compile(&format!("(table 40000 funcref) {segment}")).is_ok());
    refused(compile(&format!("(table 40000 funcref) {segment} {segment}")), "segments of 80000 elements");
    let locals = format!("(func {})", "(local i64)".repeat(50_000));
    assert!(compile(&locals).is_ok());
    refused(compile(&locals.repeat(21)), "locals in all functions");
    refused(compile(&format!("(func {})", "(drop (i32.const 1000000))".repeat(27_000))), "split it");
}

#[test]
fn what_a_module_tells_of_its_kernels_is_judged_and_told() {
    use pappus_blueprint::signatures::{Class, Signature, laid_out, put};
    let of = |kernel: &str, params: usize| Signature {
        kernel: kernel.to_owned(),
        params: laid_out(vec![("x", Class::Pointer, 8, 8); params]).unwrap(),
    };
    let bare = wat::parse_str(format!(r#"(module (import "env" "memory" (memory 1)) {KERNEL})"#)).unwrap();
    let judge = |all: &[Signature]| CpuCompiler::new(false).unwrap().compile(&put(&bare, all).unwrap());
    let told = |all: &[Signature]| judge(all).unwrap().1.kernels[0].params.as_ref().map(Vec::len);
    assert_eq!((told(&[of("kernel", 3)]), told(&[])), (Some(3), None));
    let why = |all: &[Signature]| judge(all).unwrap_err().message;
    assert!(why(&[of("other", 0)]).contains("tells of a kernel `other`, which the module does not export"));
    assert!(why(&[of("kernel", 0), of("kernel", 1)]).contains("has kernel \"kernel\" twice"));
    let named = |name: &str| Signature {
        kernel: "kernel".to_owned(),
        params: laid_out(vec![(name, Class::Pointer, 8, 8); 400]).unwrap(),
    };
    assert_eq!(told(&[named(&"x".repeat(100))]), Some(400));
    assert!(why(&[named(&"x".repeat(200))]).contains("parameters have 80006 bytes, allowed are 65536"));
    let with = put(&bare, &[of("kernel", 1)]).unwrap();
    let section = &with[8..8 + with.len() - bare.len()];
    let twice = [&bare[..8], section, &with[8..]].concat();
    refused(compile_bytes(&twice), "two sections `pappus.kernels`");
}

#[test]
fn broken_modules_of_every_kind_are_refused_or_compile() {
    let module: &[u8] = include_bytes!("../../kernels/built/module.wasm");
    for end in 0..module.len() {
        refused(compile_bytes(&module[..end]), "");
    }
    for bit in 0..module.len() * 8 {
        let mut flipped = module.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = compile_bytes(&flipped);
    }
}
