//! Shared memory holds what earlier blocks left, the part that the driver reserves too: a kernel that can reach any of it clears
//! all that its block can address before its first statement.

use super::body::{Body, Name, Symbol, Symbols, made, number, word};
use super::fuel::{guarded, label};
use crate::read::tree::{Operand, Statement, StatementKind};
use crate::refused::Position;
use crate::window::{LO, OUT};

/// The registers that clearing needs besides the fence's others.
pub(crate) const REGISTERS: &str = ".reg .b32 %pappus_step, %pappus_end, %pappus_part;";

const STEP: &str = "%pappus_step";
const END: &str = "%pappus_end";
const PART: &str = "%pappus_part";

/// True if the function itself can reach shared memory.
pub(crate) fn touches(body: &Body<'_>, symbols: &Symbols<'_>) -> bool {
    let symbol = |operand: &Operand<'_>| match operand {
        Operand::Word(w) | Operand::Sum(w, _) | Operand::Address(w, _) => {
            matches!(body.names.get(w), Some(Name::Shared))
                || (!body.is_register(w) && symbols.names.get(w.as_ref()) == Some(&Symbol::Shared))
        }
        _ => false,
    };
    body.statements.iter().any(|statement| match &statement.kind {
        StatementKind::Instruction(i) => {
            matches!(i.name(), "wgmma" | "ldmatrix" | "stmatrix" | "mbarrier" | "cp")
                || i.modifiers().any(|m| m.starts_with("shared"))
                || i.operands.iter().any(symbol)
        }
        _ => false,
    })
}

/// The statements that clear: each thread writes every n-th word, n threads in the block.
pub(crate) fn clear<'t>(at: Position) -> Vec<Statement<'t>> {
    let read = |register, special: &'static str| made(at, "mov.u32", [word(register), word(special)]);
    let step =
        |opcode, register: &'static str| made(at, opcode, [word(register), word(register), word(PART)]);
    let times = |register: &'static str| step("mul.lo.u32", register);
    let plus = |register: &'static str| step("add.u32", register);
    let words = |register: &'static str| made(at, "shl.b32", [word(register), word(register), number(2)]);
    vec![
        read(END, "%total_smem_size"),
        read(PART, "%reserved_smem_offset_end"),
        plus(END),
        read(STEP, "%ntid.x"),
        read(PART, "%ntid.y"),
        times(STEP),
        read(PART, "%ntid.z"),
        times(STEP),
        words(STEP),
        read(LO, "%tid.z"),
        read(PART, "%ntid.y"),
        times(LO),
        read(PART, "%tid.y"),
        plus(LO),
        read(PART, "%ntid.x"),
        times(LO),
        read(PART, "%tid.x"),
        plus(LO),
        words(LO),
        label(at, "$pappus_zero"),
        made(at, "setp.ge.u32", [word(OUT), word(LO), word(END)]),
        guarded(made(at, "bra", [word("$pappus_zeroed")])),
        made(at, "st.shared.u32", [Operand::Address(LO.into(), 0), number(0)]),
        made(at, "add.u32", [word(LO), word(LO), word(STEP)]),
        made(at, "bra", [word("$pappus_zero")]),
        label(at, "$pappus_zeroed"),
        made(at, "bar.sync", [number(0)]),
    ]
}
