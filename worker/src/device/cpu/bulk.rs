//! `memory.fill` and `memory.copy` as functions of the module, 16 bytes at a time: a fault in them is
//! a trap of the kernel that called them.

use wasm_encoder::{BlockType, Function, InstructionSink, MemArg, ValType};

use super::polls::poll;

/// Their type as it lies in a type section: three i32, no result.
pub(super) const TYPE: [u8; 6] = [0x60, 3, 0x7f, 0x7f, 0x7f, 0];
/// How many there are, and their positions.
pub(super) const FUNCTIONS: u32 = 2;
pub(super) const FILL: u32 = 0;
pub(super) const COPY: u32 = 1;

const TO: u32 = 0;
/// The byte to fill with, or the address to copy from.
const FROM: u32 = 1;
const LEFT: u32 = 2;
const VECTOR: u32 = 3;

const AT: MemArg = MemArg { offset: 0, align: 0, memory_index: 0 };

/// `fill(to, byte, bytes)`.
pub(super) fn fill(interruptible: bool) -> Function {
    let mut function = Function::new([(1, ValType::V128)]);
    let mut code = function.instructions();
    code.local_get(FROM).i8x16_splat().local_set(VECTOR);
    while_left(&mut code, 16, interruptible, |code| {
        code.local_get(TO).local_get(VECTOR).v128_store(AT);
        step(code, TO, 16);
    });
    while_left(&mut code, 1, interruptible, |code| {
        code.local_get(TO).local_get(FROM).i32_store8(AT);
        step(code, TO, 1);
    });
    code.end();
    function
}

/// `copy(to, from, bytes)`; the ranges may overlap.
pub(super) fn copy(interruptible: bool) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    // Forwards, unless the destination starts within the source: to - from, wrapped, is below the length.
    code.local_get(TO).local_get(FROM).i32_sub().local_get(LEFT).i32_lt_u();
    code.if_(BlockType::Empty);
    // Backwards: LEFT is also how far into the ranges the next bytes end.
    while_left(&mut code, 16, interruptible, |code| {
        end_of(code, TO, 16);
        end_of(code, FROM, 16);
        code.v128_load(AT).v128_store(AT);
    });
    while_left(&mut code, 1, interruptible, |code| {
        end_of(code, TO, 1);
        end_of(code, FROM, 1);
        code.i32_load8_u(AT).i32_store8(AT);
    });
    code.else_();
    while_left(&mut code, 16, interruptible, |code| {
        code.local_get(TO).local_get(FROM).v128_load(AT).v128_store(AT);
        step(code, TO, 16);
        step(code, FROM, 16);
    });
    while_left(&mut code, 1, interruptible, |code| {
        code.local_get(TO).local_get(FROM).i32_load8_u(AT).i32_store8(AT);
        step(code, TO, 1);
        step(code, FROM, 1);
    });
    code.end().end();
    function
}

/// Repeats `body` while at least `bytes` are left, and takes them off behind it.
fn while_left(
    code: &mut InstructionSink<'_>,
    bytes: i32,
    interruptible: bool,
    body: impl FnOnce(&mut InstructionSink<'_>),
) {
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    poll(code, interruptible);
    code.local_get(LEFT).i32_const(bytes).i32_lt_u().br_if(1);
    body(code);
    step(code, LEFT, -bytes);
    code.br(0).end().end();
}

fn step(code: &mut InstructionSink<'_>, local: u32, by: i32) {
    code.local_get(local).i32_const(by).i32_add().local_set(local);
}

/// The address of the last `bytes` of what is left of a range.
fn end_of(code: &mut InstructionSink<'_>, local: u32, bytes: i32) {
    code.local_get(local).local_get(LEFT).i32_add().i32_const(bytes).i32_sub();
}
