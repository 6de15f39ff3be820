//! Registers hold what an earlier kernel left: each that may be read before it is written is set to zero at the beginning. Not
//! cleared are registers whose reads all follow a write without a predicate, in their own block or in the first.

use std::collections::HashMap;

use super::body::{Body, made, number, word};
use super::opcodes::writes_first;
use crate::read::tree::{Operand, Statement, StatementKind, Word};
use crate::read::types::bytes;
use crate::window::{AT, BASE, LO};

/// What is known of a register so far.
#[derive(Default)]
struct Seen {
    /// The block that wrote it last, without a predicate.
    written: Option<usize>,
    /// True if it was written before the first label or branch.
    early: bool,
    /// True if it may be read before it is written.
    leftover: bool,
    /// How many registers were seen before it.
    place: usize,
}

/// The statements that clear a function's registers, in the order of their first occurrences.
pub(crate) fn clears<'t>(body: &Body<'t>) -> Vec<Statement<'t>> {
    let mut seen: HashMap<&Word<'t>, Seen> = HashMap::new();
    let (mut block, mut early) = (0, true);
    let kind = |word: &Word<'t>| match word.as_ref() {
        LO => Some(".b32"),
        AT | BASE => Some(".b64"),
        _ => body.types.get(word).copied(),
    };
    for statement in &body.statements {
        let StatementKind::Instruction(i) = &statement.kind else {
            // Where fuel is counted, nothing else arrives from elsewhere with other registers.
            let fuel =
                matches!(&statement.kind, StatementKind::Label(name) if name.starts_with("$pappus_on_"));
            block += usize::from(!fuel);
            early = false;
            continue;
        };
        let (first, rest) = match i.operands.split_first() {
            Some((first, rest)) if writes_first(i) => (Some(first), rest),
            _ => (None, i.operands.as_slice()),
        };
        // Reads come first: a register that an instruction reads and writes is read before it is written.
        let mut reads: Vec<&Word<'t>> = i.guard.iter().map(|(_, name)| name).collect();
        rest.iter().for_each(|operand| words(operand, &mut reads));
        let mut written = Vec::new();
        first.iter().for_each(|operand| words(operand, &mut written));
        let all = reads.into_iter().map(|w| (w, true)).chain(written.into_iter().map(|w| (w, false)));
        for (word, read) in all.filter(|(w, _)| kind(w).is_some()) {
            let place = seen.len();
            let entry = seen.entry(word).or_insert(Seen { place, ..Seen::default() });
            if read {
                entry.leftover |= !entry.early && entry.written != Some(block);
            } else if i.guard.is_none() {
                entry.written = Some(block);
                entry.early |= early;
            }
        }
        early &= !matches!(i.name(), "bra" | "ret" | "exit" | "trap");
    }
    let mut cleared: Vec<(&Word<'t>, usize)> =
        seen.into_iter().filter(|(_, s)| s.leftover).map(|(w, s)| (w, s.place)).collect();
    cleared.sort_by_key(|(_, place)| *place);
    let at = body.function.at;
    let mut statements = Vec::with_capacity(cleared.len());
    for (name, _) in cleared {
        let target = word(name.clone());
        let Some(kind) = kind(name) else { continue };
        let opcode = match bytes(kind) {
            None => "mov.pred",
            Some(1) => "cvt.u8.u32",
            Some(2) => "mov.b16",
            Some(4) => "mov.b32",
            Some(8) => "mov.b64",
            Some(_) => {
                let halves = Operand::Vector(vec![word(AT), word(AT)]);
                statements.push(made(at, "mov.b64", [word(AT), number(0)]));
                statements.push(made(at, "mov.b128", [target, halves]));
                continue;
            }
        };
        statements.push(made(at, opcode, [target, number(0)]));
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
        // Members are never lists themselves.
        Operand::Vector(members) | Operand::List(members) => {
            for member in members {
                words(member, into);
            }
        }
        Operand::Number(_) | Operand::Absolute(_) => {}
    }
}
