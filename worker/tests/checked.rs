//! Checked calls on the CPU device: every kind of access to memory, at the edges of every kind of buffer. Each stray
//! access has a control: the same one in an ordinary call passes unnoticed.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use harness::{Call, Worker, compile_cpu, compile_cpu_checked};
use pappus_blueprint::{GUARD_BYTES, PRINTED_BYTES};
use pappus_protocol::FaultCode;
use pappus_worker::device::Compiler;
use pappus_worker::device::cpu::{Cpu, compiler::CpuCompiler};

/// An instruction that reaches memory.
#[derive(Debug, Clone)]
struct Access {
    /// As text has it, such as `i32.load8_u`.
    name: String,
    bytes: u64,
    is_store: bool,
}

/// Every instruction with an address that modules may have: those of the first version and of SIMD.
macro_rules! accesses {
    ($(@$proposal:ident $op:ident $({ $($field:ident: $ty:ty),* })? => $visit:ident ($($rest:tt)*))*) => {{
        let mut all = Vec::new();
        $({
            let fields: &[&str] = &[$($(stringify!($field)),*)?];
            let proposal = stringify!($proposal);
            if matches!(proposal, "mvp" | "simd") && fields.contains(&"memarg") {
                all.push(access(stringify!($visit)));
            }
        })*
        all
    }};
}

/// From `visit_i32_load8_u`.
fn access(visit: &str) -> Access {
    let name = visit.strip_prefix("visit_").unwrap().replacen('_', ".", 1);
    let (ty, operation) = name.split_once('.').unwrap();
    let digits = |text: &str| -> Option<u64> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let is_store = operation.starts_with("store");
    let width = operation.trim_start_matches("load").trim_start_matches("store");
    let bits = match digits(width) {
        // Such as 8x8: all of them are read.
        Some(bits) => bits * width.split_once('x').map_or(1, |(_, lanes)| digits(lanes).unwrap()),
        None => digits(&ty[1..]).unwrap(),
    };
    Access { bytes: bits / 8, is_store, name: name.clone() }
}

/// The instructions in kernels of their names. Their parameters are the addresses of four buffers, which of them is meant, and
/// how far from its start. With `offset`, a part of the way stands in the instruction.
fn module(accesses: &[Access], offset: u64) -> Vec<u8> {
    let mut text = String::from(r#"(module (import "env" "memory" (memory 1)) "#);
    for Access { name, is_store, .. } in accesses {
        let ty = name.split_once('.').unwrap().0;
        let lane = if name.ends_with("_lane") { "0" } else { "" };
        let zero = if ty == "v128" { "(v128.const i64x2 0 0)".to_owned() } else { format!("({ty}.const 0)") };
        let at = "(local.get $at)";
        let body = match (*is_store, lane) {
            (true, _) => format!("({name} offset={offset} {lane} {at} {zero})"),
            (false, "") => format!("(drop ({name} offset={offset} {at}))"),
            (false, _) => format!("(drop ({name} offset={offset} {lane} {at} {zero}))"),
        };
        // With a local of its own beside those that checks have.
        text += &format!(
            r#"(func (export "{name}") (param $args i32) (param i32 i64 i64) (local $at i32)
                (local.set $at (i32.sub
                    (i32.add
                        (i32.load (i32.add (local.get $args) (i32.shl (i32.load offset=32 (local.get $args)) (i32.const 3))))
                        (i32.load offset=40 (local.get $args)))
                    (i32.const {offset})))
                {body})"#
        );
    }
    text += ")";
    wat::parse_str(text).unwrap()
}

/// What kernels are given: an input, a weight, a buffer without a type, an output.
const BUFFERS: [(&str, u64); 4] = [("A", 96), ("W", 64), ("B", 80), ("C", 256)];

fn config(kernel: &str) -> String {
    let word = |idx: u32| format!(r#"{{"U64": {{"FromInput": {{"bufname": "probe", "idx": {idx}}}}}}}"#);
    format!(
        r#"{{"module_path": "m.wasm", "kernels": ["{kernel}"], "blueprint": {{
            "inputs": ["probe", "A"], "weights": ["W"],
            "buffers": {{"B": {{"Absolute": 80}}, "C": {{"Absolute": 256}}}}, "outputs": ["C"],
            "types": {{"A": {{"dtype": "f32"}}, "C": {{"dtype": "i16"}}}},
            "control_flow": [{{"ExecKernel": ["{kernel}",
                [{{"Ptr": "A"}}, {{"Ptr": "W"}}, {{"Ptr": "B"}}, {{"Ptr": "C"}}, {}, {}],
                {{"grid_dim_x": {{"Absolute": 1}}, "grid_dim_y": {{"Absolute": 1}}, "grid_dim_z": {{"Absolute": 1}},
                  "block_dim_x": {{"Absolute": 1}}, "block_dim_y": {{"Absolute": 1}}, "block_dim_z": {{"Absolute": 1}},
                  "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#,
        word(0),
        word(1)
    )
}

const PLAIN: u64 = 1;
const CHECKED: u64 = 2;
/// What every checked function returns behind its own output: the inputs, B, what it prints.
const CHECKED_OUTPUTS: [u64; 5] = [256, 16, 96, 80, PRINTED_BYTES];

/// A worker that has the same kernel, plain and with checks.
struct Both {
    worker: Worker,
    plain: Vec<u8>,
    checked: Vec<u8>,
}

impl Both {
    fn new(module: &[u8]) -> Self {
        let worker = Worker::start(|| Cpu::new(false).unwrap());
        Self { worker, plain: compile_cpu(module), checked: compile_cpu_checked(module) }
    }

    fn install(&mut self, kernel: &str) {
        let (config, weight) = (config(kernel), [7; 64]);
        self.worker.install(PLAIN, &config, &self.plain, &[&weight]);
        self.worker.checked = true;
        self.worker.install(CHECKED, &config, &self.checked, &[&weight]);
        self.worker.checked = false;
    }

    /// Reaches so far from the start of a buffer: what the output is, or why there is none.
    fn probe(&mut self, function: u64, buffer: usize, offset: i64) -> Result<Vec<u8>, String> {
        let probe: Vec<u8> = [buffer as i64, offset].iter().flat_map(|word| word.to_le_bytes()).collect();
        let outputs: &[u64] = if function == CHECKED { &CHECKED_OUTPUTS } else { &CHECKED_OUTPUTS[..1] };
        let call = self.worker.arena_call(function, &[&probe, &[3; 96]], outputs);
        let call = Call { scalars: vec![buffer as u64, offset as u64], ..call };
        match self.worker.invoke(&call) {
            Ok(()) => Ok(self.worker.outputs(&call)[0].clone()),
            Err(fault) => {
                assert_eq!((fault.code, fault.kernel), (FaultCode::KernelTrap, Some(0)), "{fault}");
                Err(fault.message)
            }
        }
    }
}

/// How an access at this distance from a buffer's start is told.
fn place((name, _): (&str, u64), offset: i64) -> String {
    let width = match name {
        "A" => 4,
        "C" => 2,
        _ => return format!("byte {offset} of {name}"),
    };
    match offset % width {
        0 => format!("{name}[{}]", offset / width),
        _ => format!("byte {offset} of {name}"),
    }
}

fn check_edges(accesses: &[Access], offset: u64) {
    let mut both = Both::new(&module(accesses, offset));
    for Access { name, bytes, is_store } in accesses {
        both.install(name);
        let does = if *is_store { "writes" } else { "reads" };
        let bytes_text = if *bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") };
        let width = *bytes as i64;
        for (at, buffer) in BUFFERS.into_iter().enumerate() {
            let size = buffer.1 as i64;
            for inside in [0, size - width] {
                let got = both.probe(CHECKED, at, inside);
                match *is_store && buffer.0 == "W" {
                    true => {
                        let why = got.unwrap_err();
                        let place = place(buffer, inside);
                        assert!(
                            why.contains(&format!("{does} {bytes_text} at {place}: W may only be read")),
                            "{why}"
                        );
                    }
                    false => assert_eq!(got, both.probe(PLAIN, at, inside), "{name} in {buffer:?}"),
                }
            }
            let over = (width > 1).then_some((size - width + 1, "over the end"));
            let strays = [(-1, "before the start"), (-width, "before the start"), (size, "behind the end")];
            for (outside, side) in strays.into_iter().chain(over) {
                let why = both.probe(CHECKED, at, outside).unwrap_err();
                let expected = format!(
                    "kernel `{name}` {does} {bytes_text} at {}, {side} of {}",
                    place(buffer, outside),
                    buffer.0
                );
                assert!(why.contains(&expected), "{why}\nin place of\n{expected}");
            }
            // The control. (What is stored into weights, or around them, traps: their memory is mapped read-only.)
            if buffer.0 != "W" && at > 0 {
                both.probe(PLAIN, at, size).unwrap();
                both.probe(PLAIN, at, -1).unwrap();
            }
        }
    }
}

#[test]
fn every_access_at_every_edge_is_named() {
    let accesses: Vec<Access> = wasmparser::for_each_operator!(accesses);
    // 23 of the first version, 22 of SIMD.
    assert_eq!(accesses.len(), 45, "{accesses:?}");
    check_edges(&accesses, 0);
}

#[test]
fn an_offset_in_the_instruction_counts() {
    let some: Vec<Access> =
        ["visit_i32_load", "visit_v128_store", "visit_i64_store8", "visit_v128_load16_lane"]
            .map(access)
            .to_vec();
    check_edges(&some, 1000);
}

const BULK: &str = r#"(module (import "env" "memory" (memory 1))
    (func $at (param $args i32) (result i32)
        (i32.add
            (i32.load (i32.add (local.get $args) (i32.shl (i32.load offset=32 (local.get $args)) (i32.const 3))))
            (i32.load offset=40 (local.get $args))))
    (func (export "fill") (param $args i32) (param i32 i64 i64)
        (memory.fill (call $at (local.get $args)) (i32.const 5) (i32.const 32)))
    (func (export "into") (param $args i32) (param i32 i64 i64)
        (memory.copy (call $at (local.get $args)) (i32.load (local.get $args)) (i32.const 32)))
    (func (export "out_of") (param $args i32) (param i32 i64 i64)
        (memory.copy (i32.load offset=24 (local.get $args)) (call $at (local.get $args)) (i32.const 32)))
    (func (export "nothing") (param $args i32) (param i32 i64 i64)
        (memory.fill (call $at (local.get $args)) (i32.const 5) (i32.const 0)))
    (func (export "wild") (param $args i32) (param i32 i64 i64)
        (drop (i32.load offset=4294967295 (i32.load offset=40 (local.get $args)))))
    (func (export "loop") (param $args i32) (param i32 i64 i64) (local $left i32)
        (local.set $left (i32.const 32))
        (loop $again
            (i32.store8 offset=31 (i32.sub (call $at (local.get $args)) (i32.sub (local.get $left) (i32.const 1))) (i32.const 9))
            (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))"#;

#[test]
fn bulk_operations_are_checked_as_a_whole() {
    let mut both = Both::new(&wat::parse_str(BULK).unwrap());
    for (kernel, does) in [("fill", "writes"), ("into", "writes"), ("out_of", "reads")] {
        both.install(kernel);
        for (at, buffer) in BUFFERS.into_iter().enumerate() {
            let size = buffer.1 as i64;
            if kernel == "out_of" || buffer.0 != "W" {
                for inside in [0, size - 32] {
                    let got = both.probe(CHECKED, at, inside);
                    assert!(got.is_ok(), "{got:?}");
                    assert_eq!(got, both.probe(PLAIN, at, inside), "{kernel} of {buffer:?}");
                }
            }
            for (outside, side) in
                [(-1, "before the start"), (size, "behind the end"), (size - 31, "over the end")]
            {
                let why = both.probe(CHECKED, at, outside).unwrap_err();
                let place = place(buffer, outside);
                assert!(
                    why.contains(&format!("{does} 32 bytes at {place}, {side} of {}", buffer.0)),
                    "{why}"
                );
            }
        }
    }
    both.install("nothing");
    assert!(both.probe(CHECKED, 0, 1 << 30).is_ok(), "no byte is touched");
    both.install("loop");
    assert_eq!(both.probe(CHECKED, 3, 0), both.probe(PLAIN, 3, 0));
}

#[test]
fn wild_pointers_are_named_too() {
    let mut both = Both::new(&wat::parse_str(BULK).unwrap());
    both.install("wild");
    // The address wraps nowhere: with its offset it lies behind all that can be addressed.
    let why = both.probe(CHECKED, 0, 8).unwrap_err();
    assert!(why.contains("reads 4 bytes at byte "), "{why}");
    let mut null = Both::new(&module(&[access("visit_i32_load")], 0));
    null.install("i32.load");
    // An address of which the sum is zero: A lies at the start of the pool, behind the probe and its guard.
    let a_at = (64 << 20) + 256 + GUARD_BYTES as i64;
    let why = null.probe(CHECKED, 0, -a_at).unwrap_err();
    assert!(why.contains("reads 4 bytes at address 0: a pointer that is null"), "{why}");
    assert!(null.probe(CHECKED, 0, 16 - a_at).is_ok(), "the stack");
}

#[test]
fn code_with_checks_is_for_checked_calls_alone() {
    let module = module(&[access("visit_i32_load")], 0);
    let mut worker = Worker::start(|| Cpu::new(false).unwrap());
    for (checked, code) in [(false, compile_cpu_checked(&module)), (true, compile_cpu(&module))] {
        worker.checked = checked;
        worker.install(1, &config("i32.load"), &code, &[&[7; 64]]);
        let outputs: &[u64] = if checked { &CHECKED_OUTPUTS } else { &CHECKED_OUTPUTS[..1] };
        let fault = worker.call(1, &[&[0; 16], &[3; 96]], outputs).unwrap_err();
        assert_eq!(fault.code, FaultCode::Load);
        assert!(fault.message.contains("machine code with checks is for checked calls"), "{fault}");
    }
}

#[test]
fn what_compiles_compiles_with_checks_too() {
    let compiler = CpuCompiler::new(false).unwrap();
    let module: &[u8] = include_bytes!("../../kernels/built/module.wasm");
    for bit in 0..module.len() * 8 {
        let mut flipped = module.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if compiler.compile(&flipped).is_ok() {
            compiler.compile_checked(&flipped).unwrap();
        }
    }
    let [linalg, math, mlops, vision]: [&[u8]; 4] = [
        include_bytes!("../../kernels/built/linalg.wasm"),
        include_bytes!("../../kernels/built/math.wasm"),
        include_bytes!("../../kernels/built/mlops.wasm"),
        include_bytes!("../../kernels/built/vision.wasm"),
    ];
    for library in [linalg, math, mlops, vision] {
        compiler.compile_checked(library).unwrap();
    }
}
