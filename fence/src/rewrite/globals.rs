//! Global accesses: the low half of the address is taken, the window's high half is put above it, the access uses the result.

use super::access::accesses;
use super::body::{Body, Symbol, Symbols, made, number, word};
use crate::read::tree::{Operand, Space, Statement, StatementKind};
use crate::window::{AT, HI, LO};

/// Fences each global access of a function.
pub(crate) fn globals(body: &mut Body<'_>, symbols: &Symbols<'_>) {
    let statements = std::mem::take(&mut body.statements);
    let mut fenced = Vec::with_capacity(statements.len() + statements.len() / 4);
    for mut statement in statements {
        if let StatementKind::Instruction(instruction) = &mut statement.kind
            && let Some(access) = accesses(instruction)
                .ok()
                .and_then(|a| a.into_iter().find(|a| a.space == Some(Space::Global)))
        {
            let at = statement.at;
            let operand = &mut instruction.operands[access.operand];
            let (low, mut offset) = match &*operand {
                Operand::Address(base, offset) => {
                    let low = match (body.width(base), symbols.names.get(base)) {
                        (Some(8), _) => made(at, "cvt.u32.u64", [word(LO), word(base.clone())]),
                        (None, Some(Symbol::Global(place))) => made(at, "mov.b32", [word(LO), number(place)]),
                        _ => made(at, "mov.b32", [word(LO), word(base.clone())]),
                    };
                    (low, *offset)
                }
                Operand::Absolute(address) => (made(at, "mov.b32", [word(LO), number(*address as u32)]), 0),
                _ => continue,
            };
            fenced.push(low);
            // As far below as above: the checker counts both alike.
            if offset.unsigned_abs() > i32::MAX.unsigned_abs().into() {
                fenced.push(made(at, "add.u32", [word(LO), word(LO), number(offset as u32)]));
                offset = 0;
            }
            fenced.push(above(at));
            *operand = Operand::Address(AT.into(), offset);
        }
        fenced.push(statement);
    }
    body.statements = fenced;
}

/// The statement that puts the window's high half above what is in the low one.
pub(crate) fn above<'t>(at: crate::refused::Position) -> Statement<'t> {
    made(at, "mov.b64", [word(AT), Operand::Vector(vec![word(LO), word(HI)])])
}
