//! Loops can be stopped: before each branch that may go backward a counter sinks, and where it is empty the window's stop word is
//! read. Branches by a table cannot leave it.

use std::collections::{HashMap, HashSet};

use super::body::{Body, Name, Reasons, made, number, word};
use super::globals::above;
use super::write;
use crate::read::tree::{Operand, Statement, StatementKind, Word};
use crate::refused::{Position, Refused};
use crate::window::{AT, FUEL, FUEL_LEFT, LO, OUT, STOP};

/// Adds fuel to a function's backward branches, and bounds to tables.
pub(crate) fn fuel(body: &mut Body<'_>, reasons: &mut Reasons) {
    let mut tables: HashMap<Word<'_>, Vec<Word<'_>>> = HashMap::new();
    for statement in &body.statements {
        if let StatementKind::Table(name, targets) = &statement.kind {
            tables.insert(name.clone(), targets.clone());
        }
    }
    let statements = std::mem::take(&mut body.statements);
    let mut fuelled = Vec::with_capacity(statements.len());
    let mut seen: HashSet<Word<'_>> = HashSet::new();
    // Tables with a target that was seen, so that each table is looked through once for each of its targets at most.
    let mut backward: HashMap<Word<'_>, bool> = HashMap::new();
    let mut users: HashMap<Word<'_>, Vec<Word<'_>>> = HashMap::new();
    for (name, targets) in &tables {
        for target in targets {
            users.entry(target.clone()).or_default().push(name.clone());
        }
    }
    let (mut checks, mut depth, mut end) = (Vec::new(), 0, false);
    for mut statement in statements {
        let at = statement.at;
        match &mut statement.kind {
            StatementKind::Label(name) => {
                for table in users.get(name).into_iter().flatten() {
                    backward.insert(table.clone(), true);
                }
                seen.insert(name.clone());
            }
            StatementKind::Open => depth += 1,
            StatementKind::Close => depth -= 1,
            StatementKind::Instruction(i) => {
                let back = match (i.name(), i.operands.as_slice()) {
                    ("bra", [Operand::Word(label)]) => seen.contains(label),
                    ("brx", [_, Operand::Word(table)]) => backward.contains_key(table),
                    _ => false,
                };
                if back && depth > 0 {
                    let why = "a loop cannot go on where the arguments of a call are put together";
                    reasons.push(Refused::at(at, write::instruction(i), why).of(body.function.name));
                }
                if back {
                    let check = checks.len();
                    fuelled.push(made(at, "sub.u32", [word(FUEL_LEFT), word(FUEL_LEFT), number(1)]));
                    fuelled.push(made(at, "setp.eq.u32", [word(OUT), word(FUEL_LEFT), number(0)]));
                    fuelled.push(guarded(made(at, "bra", [word(format!("$pappus_check_{check}"))])));
                    fuelled.push(label(at, format!("$pappus_on_{check}")));
                    checks.push(at);
                }
                let table = i.name() == "brx";
                if let (true, [index, Operand::Word(table)]) = (table, i.operands.as_mut_slice()) {
                    let last = match body.names.get(table) {
                        Some(Name::Table(count)) => count.saturating_sub(1),
                        _ => 0,
                    };
                    let from = std::mem::replace(index, word(LO));
                    fuelled.push(made(at, "min.u32", [word(LO), from, number(last)]));
                }
            }
            _ => {}
        }
        end = match &statement.kind {
            StatementKind::Instruction(i) => {
                i.guard.is_none() && matches!(i.name(), "bra" | "brx" | "ret" | "exit" | "trap")
            }
            _ => false,
        };
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
        made(at, "mov.b32", [word(LO), number(STOP)]),
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
