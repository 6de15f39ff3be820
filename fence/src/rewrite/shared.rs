//! Shared memory holds what earlier blocks left, the part that the driver reserves too: a kernel that can reach any of it clears
//! all that its block can address before its first statement.

use super::body::{Body, Name, Symbol, Symbols, made, number, word};
use super::fuel::{guarded, label};
use crate::read::tree::{Operand, Statement, StatementKind};
use crate::refused::Position;
use crate::window::{LO, OUT};

const STEP: &str = "%pappus_step";
const END: &str = "%pappus_end";

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

/// The statements that clear: each thread writes every n-th 16 bytes, n threads in the block. Behind the fence `wgmma` sees them.
pub(crate) fn clear<'t>(at: Position) -> Vec<Statement<'t>> {
    let read = |register, special: &'static str| made(at, "mov.u32", [word(register), word(special)]);
    let add = || made(at, "mad.lo.u32", [word(LO), word(LO), word(STEP), word(END)]);
    let times = || made(at, "mul.lo.u32", [word(STEP), word(STEP), word(END)]);
    let sixteens = |register: &'static str| made(at, "shl.b32", [word(register), word(register), number(4)]);
    let zeros = Operand::Vector(vec![number(0), number(0), number(0), number(0)]);
    vec![
        read(LO, "%tid.z"),
        read(STEP, "%ntid.y"),
        read(END, "%tid.y"),
        add(),
        read(STEP, "%ntid.x"),
        read(END, "%tid.x"),
        add(),
        sixteens(LO),
        read(END, "%ntid.y"),
        times(),
        read(END, "%ntid.z"),
        times(),
        sixteens(STEP),
        read(END, "%aggr_smem_size"),
        made(at, "add.u32", [word(END), word(END), number(127)]),
        made(at, "and.b32", [word(END), word(END), number(-128)]),
        label(at, "$pappus_zero"),
        made(at, "setp.ge.u32", [word(OUT), word(LO), word(END)]),
        guarded(made(at, "bra", [word("$pappus_zeroed")])),
        made(at, "st.shared.v4.b32", [Operand::Address(LO.into(), 0), zeros]),
        made(at, "add.u32", [word(LO), word(LO), word(STEP)]),
        made(at, "bra.uni", [word("$pappus_zero")]),
        label(at, "$pappus_zeroed"),
        made(at, "fence.proxy.async.shared::cta", []),
        made(at, "bar.sync", [number(0)]),
    ]
}
