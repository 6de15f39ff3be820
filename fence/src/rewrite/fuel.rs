//! Loops can be stopped: before each branch that may go backward a counter sinks, and where it is empty the window's stop word is
//! read.

use std::collections::HashSet;

use super::body::{Body, made, number, word};
use super::globals::above;
use crate::read::tree::{Operand, Statement, StatementKind, Word};
use crate::refused::Position;
use crate::window::{AT, FUEL, FUEL_LEFT, LO, OUT, STOP};

/// Adds fuel to a function's backward branches.
pub(crate) fn fuel(body: &mut Body<'_>) {
    let statements = std::mem::take(&mut body.statements);
    let mut fuelled = Vec::with_capacity(statements.len());
    let mut seen: HashSet<Word<'_>> = HashSet::new();
    let (mut checks, mut end) = (Vec::new(), false);
    for statement in statements {
        let at = statement.at;
        end = false;
        match &statement.kind {
            StatementKind::Label(name) => {
                seen.insert(name.clone());
            }
            StatementKind::Instruction(i) => {
                let back = matches!(
                    (i.name(), i.operands.as_slice()),
                    ("bra", [Operand::Word(target)]) if seen.contains(target)
                );
                if back {
                    let check = checks.len();
                    fuelled.push(made(at, "sub.u32", [word(FUEL_LEFT), word(FUEL_LEFT), number(1)]));
                    fuelled.push(made(at, "setp.eq.u32", [word(OUT), word(FUEL_LEFT), number(0)]));
                    fuelled.push(guarded(made(at, "bra", [word(format!("$pappus_check_{check}"))])));
                    fuelled.push(label(at, format!("$pappus_on_{check}")));
                    checks.push(at);
                }
                end = i.guard.is_none() && matches!(i.name(), "bra" | "ret" | "exit" | "trap");
            }
            _ => {}
        }
        fuelled.push(statement);
    }
    if !end {
        fuelled.push(made(body.function.at, "ret", []));
    }
    body.loops = !checks.is_empty();
    for (check, at) in checks.into_iter().enumerate() {
        fuelled.push(label(at, format!("$pappus_check_{check}")));
        fuelled.extend(stop(at));
        fuelled.push(made(at, "mov.b32", [word(FUEL_LEFT), number(FUEL)]));
        fuelled.push(made(at, "bra.uni", [word(format!("$pappus_on_{check}"))]));
    }
    body.statements = fuelled;
}

/// Reads the stop word, and ends the thread where it is not zero.
pub(crate) fn stop<'t>(at: Position) -> [Statement<'t>; 5] {
    [
        made(at, "mov.b32", [word(LO), number(format_args!("{STOP:#x}"))]),
        above(at),
        made(at, "ld.volatile.global.u32", [word(LO), Operand::Address(AT.into(), 0)]),
        made(at, "setp.ne.u32", [word(OUT), word(LO), number(0)]),
        guarded(made(at, "exit", [])),
    ]
}

/// The statement, done where the fence's predicate holds.
pub(crate) fn guarded(mut statement: Statement<'_>) -> Statement<'_> {
    if let StatementKind::Instruction(instruction) = &mut statement.kind {
        instruction.guard = Some((false, OUT.into()));
    }
    statement
}

/// A label.
pub(crate) fn label<'t>(at: Position, name: impl Into<Word<'t>>) -> Statement<'t> {
    Statement { at, kind: StatementKind::Label(name.into()) }
}
