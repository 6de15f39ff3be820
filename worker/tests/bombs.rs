//! Modules made to keep the compiler busy or to fill its memory: small files that stand for much work. Each is
//! refused by a rule that names it, or compiles in a time that is no harm.

#![allow(clippy::unwrap_used, reason = "a test")]

use pappus_protocol::FaultCode;
use pappus_worker::device::Compiler;
use pappus_worker::device::cpu::compiler::CpuCompiler;
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, ElementSection, Elements, EntityType, ExportKind, ExportSection,
    Function, FunctionSection, ImportSection, Instruction, MemoryType, Module, RefType, TableSection,
    TableType, TypeSection, ValType,
};

/// A module with a kernel and these functions of type `() -> ()`.
struct Bomb {
    types: TypeSection,
    tables: TableSection,
    elements: ElementSection,
    bodies: Vec<Function>,
}

impl Bomb {
    fn new() -> Self {
        let mut types = TypeSection::new();
        types.ty().function([ValType::I32, ValType::I32, ValType::I64, ValType::I64], []);
        types.ty().function([], []);
        Self { types, tables: TableSection::new(), elements: ElementSection::new(), bodies: Vec::new() }
    }

    fn module(&self) -> Vec<u8> {
        let mut imports = ImportSection::new();
        let memory =
            MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None };
        imports.import("env", "memory", EntityType::Memory(memory));
        let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
        functions.function(0);
        code.function(Function::new([]).instruction(&Instruction::End));
        for body in &self.bodies {
            functions.function(1);
            code.function(body);
        }
        let mut exports = ExportSection::new();
        exports.export("kernel", ExportKind::Func, 0);
        let mut module = Module::new();
        module.section(&self.types).section(&imports).section(&functions).section(&self.tables);
        module.section(&exports).section(&self.elements).section(&code);
        module.finish()
    }
}

fn body(locals: u32, count: usize, fill: impl Fn(&mut Function)) -> Bomb {
    let mut bomb = Bomb::new();
    let mut one = Function::new([(locals, ValType::I64)]);
    fill(&mut one);
    one.instruction(&Instruction::End);
    bomb.bodies = vec![one; count];
    bomb
}

fn again(function: &mut Function, count: usize, instruction: &Instruction<'_>) {
    for _ in 0..count {
        function.instruction(instruction);
    }
}

/// Blocks within blocks.
fn nested(depth: usize) -> impl Fn(&mut Function) {
    move |function| {
        again(function, depth, &Instruction::Block(BlockType::Empty));
        again(function, depth, &Instruction::End);
    }
}

/// A choice among so many targets, which are all the same.
fn choice(targets: usize) -> impl Fn(&mut Function) {
    move |function| {
        let table = Instruction::BrTable(vec![0u32; targets].into(), 0);
        function.instruction(&Instruction::Block(BlockType::Empty)).instruction(&Instruction::I32Const(1));
        function.instruction(&table).instruction(&Instruction::End);
    }
}

/// A table, and segments that fill all of it again and again.
fn segments(elements: usize, count: usize) -> Bomb {
    let mut bomb = body(0, 1, |_| ());
    let minimum = elements as u64;
    bomb.tables.table(TableType {
        element_type: RefType::FUNCREF,
        minimum,
        maximum: None,
        table64: false,
        shared: false,
    });
    let items = vec![0u32; elements];
    for _ in 0..count {
        let functions = Elements::Functions(items.as_slice().into());
        bomb.elements.active(None, &ConstExpr::i32_const(0), functions);
    }
    bomb
}

/// Values that blocks hand on, far more than any processor has registers.
fn wide(blocks: usize) -> Bomb {
    let mut bomb = body(0, 1, |function| {
        again(function, 1000, &Instruction::I64Const(7));
        for _ in 0..blocks {
            function
                .instruction(&Instruction::Block(BlockType::FunctionType(2)))
                .instruction(&Instruction::End);
        }
        again(function, 1000, &Instruction::Drop);
    });
    bomb.types.ty().function([ValType::I64; 1000], [ValType::I64; 1000]);
    bomb
}

fn compile(bomb: &Bomb) -> Result<(), String> {
    match CpuCompiler::new(false).unwrap().compile(&bomb.module()) {
        Ok(_) => Ok(()),
        Err(fault) => {
            assert_eq!(fault.code, FaultCode::BadModule);
            Err(fault.message)
        }
    }
}

#[test]
fn small_files_that_stand_for_much_work_are_refused_or_cheap() {
    for (bomb, words) in [
        (body(50_000, 64, |_| ()), "locals in all functions"),
        (body(0, 16_384, |_| ()), "16385 functions"),
        (body(0, 1, nested(5000)), "blocks within blocks"),
        (body(0, 1, choice(100_000)), "100000 targets"),
        (body(0, 1, |function| again(function, 140_000, &Instruction::Nop)), "split it"),
        (segments(65_536, 200), "element segments of 131072 elements"),
    ] {
        let why = compile(&bomb).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    // The controls: as much as is allowed, or nearly, is compiled in a time that a registration can wait.
    for bomb in [
        body(50_000, 2, |_| ()),
        body(0, 4_000, |_| ()),
        body(0, 1, nested(1000)),
        body(0, 1, choice(10_000)),
        segments(65_536, 1),
        wide(10),
    ] {
        compile(&bomb).unwrap();
    }
}
