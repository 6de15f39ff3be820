//! Registers hold what an earlier kernel left: each that may be read before it is written is set to zero at the beginning. Not
//! cleared are registers whose first occurrence writes them, without a predicate, and whose others lie in the same basic block.

use std::collections::HashMap;

use super::body::{Body, Reasons, made, number, word};
use super::opcodes::writes_first;
use crate::read::tree::{Operand, Statement, StatementKind, Word};
use crate::refused::Refused;

/// What is known of a register so far: its block, and whether it has to be cleared.
struct Seen {
    block: usize,
    cleared: bool,
    place: usize,
}

/// The statements that clear a function's registers, in the order of their first occurrences.
pub(crate) fn clears<'t>(
    body: &Body<'t>,
    window: &HashMap<&'static str, &'static str>,
    reasons: &mut Reasons,
) -> Vec<Statement<'t>> {
    let mut seen: HashMap<&Word<'t>, Seen> = HashMap::new();
    let mut block = 0;
    let kind = |word: &Word<'t>| body.types.get(word).copied().or_else(|| window.get(word.as_ref()).copied());
    for statement in &body.statements {
        let StatementKind::Instruction(i) = &statement.kind else {
            block +=
                usize::from(matches!(statement.kind, StatementKind::Label(_) | StatementKind::Table(..)));
            continue;
        };
        // Reads come first: a register that an instruction reads and writes is read before it is written.
        let writes = writes_first(i) && i.guard.is_none();
        let (first, rest) = match i.operands.split_first() {
            Some((first, rest)) if writes => (Some(first), rest),
            _ => (None, i.operands.as_slice()),
        };
        let guard = i.guard.as_ref().map(|(_, name)| name);
        let mut reads: Vec<&Word<'t>> = guard.into_iter().collect();
        rest.iter().for_each(|operand| words(operand, &mut reads));
        let mut written = Vec::new();
        first.iter().for_each(|operand| words(operand, &mut written));
        let all = reads.into_iter().map(|w| (w, false)).chain(written.into_iter().map(|w| (w, true)));
        for (word, is_written) in all {
            if kind(word).is_none() {
                continue;
            }
            let place = seen.len();
            let entry = seen.entry(word).or_insert(Seen { block, cleared: !is_written, place });
            entry.cleared |= entry.block != block;
        }
        block += usize::from(matches!(i.name(), "bra" | "brx" | "ret" | "exit" | "trap"));
    }
    let mut cleared: Vec<(&Word<'t>, Seen)> = seen.into_iter().filter(|(_, s)| s.cleared).collect();
    cleared.sort_by_key(|(_, s)| s.place);
    let at = body.function.at;
    let mut statements = Vec::with_capacity(cleared.len());
    for (name, _) in cleared {
        let opcode = match kind(name) {
            Some(".pred") => "mov.pred",
            Some(kind) => match crate::read::types::bytes(kind) {
                Some(2) => "mov.b16",
                Some(4) => "mov.b32",
                Some(8) => "mov.b64",
                _ => {
                    let why = "the register may be read before it is written, and cannot be cleared: its type is too rare";
                    reasons.push(Refused::at(at, name.to_string(), why).of(body.function.name));
                    continue;
                }
            },
            None => continue,
        };
        statements.push(made(at, opcode, [word(name.clone()), number(0)]));
    }
    statements
}

fn words<'a, 't>(operand: &'a Operand<'t>, into: &mut Vec<&'a Word<'t>>) {
    match operand {
        Operand::Word(w)
        | Operand::Sum(w, _)
        | Operand::Not(w)
        | Operand::Minus(w)
        | Operand::Address(w, _) => into.push(w),
        Operand::Pair(a, b) => into.extend([a, b]),
        Operand::Vector(members) | Operand::List(members) => {
            for member in members {
                match member {
                    Operand::Word(w) | Operand::Sum(w, _) | Operand::Not(w) | Operand::Minus(w) => {
                        into.push(w)
                    }
                    _ => {}
                }
            }
        }
        Operand::Number(_) | Operand::Absolute(_) => {}
    }
}
