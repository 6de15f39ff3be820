//! Local arrays: those of a function become one, and every access stays inside of it, checked here or bounded when it runs.

use std::collections::HashMap;

use super::access::accesses;
use super::body::{Body, Name, Reasons, made, number, word};
use super::write;
use crate::read::tree::{Operand, Space, StatementKind, Variable};
use crate::read::types::bytes;
use crate::refused::{Position, Refused};
use crate::window::{AT, BASE, LOCAL_LIMIT};

/// Merges arrays and bounds accesses.
pub(crate) fn locals(body: &mut Body<'_>, reasons: &mut Reasons) {
    let places = merge(body, reasons);
    let array = body.locals.first().map(|a| (a.name.clone(), a.size));
    let statements = std::mem::take(&mut body.statements);
    let mut bounded = Vec::with_capacity(statements.len());
    for mut statement in statements {
        let at = statement.at;
        let mut added = None;
        if let StatementKind::Instruction(i) = &mut statement.kind {
            let text = i.clone();
            let mut refuse = |why: &str| {
                reasons.push(Refused::at(at, write::instruction(&text), why).of(&body.function.name))
            };
            if let Some(access) =
                accesses(i).ok().and_then(|a| a.into_iter().find(|a| a.space == Some(Space::Local)))
                && let Operand::Address(base, offset) = &mut i.operands[access.operand]
            {
                let Some((name, size)) = &array else {
                    refuse("the function has no local array");
                    continue;
                };
                let Some(limit) = size.checked_sub(access.bytes) else {
                    refuse("the access is larger than the function's local arrays");
                    continue;
                };
                if let Some(place) = places.get(base.as_ref()) {
                    let sum = i128::from(*offset) + i128::from(*place);
                    if !(0..=i128::from(limit)).contains(&sum) {
                        refuse("the access is not within the local array");
                        continue;
                    }
                    *base = name.clone();
                    *offset = sum as i64;
                } else {
                    let whole = || made(at, "mov.b64", [word(BASE), word(name.clone())]);
                    let mut from = base.clone();
                    if body.types.get(base).and_then(|t| bytes(t)) == Some(4) {
                        bounded.push(made(at, "cvt.u64.u32", [word(AT), word(from)]));
                        from = AT.into();
                    }
                    bounded.push(whole());
                    bounded.push(made(at, "sub.s64", [word(AT), word(from), word(BASE)]));
                    if *offset != 0 {
                        bounded.push(made(at, "add.s64", [word(AT), word(AT), number(*offset)]));
                    }
                    bounded.push(whole());
                    bounded.push(made(at, "min.u64", [word(AT), word(AT), number(limit)]));
                    bounded.push(made(at, "add.s64", [word(AT), word(AT), word(BASE)]));
                    *base = AT.into();
                    *offset = 0;
                }
            } else if let Some((name, _)) = &array {
                added = taken(i, name, &places, at);
            }
        }
        bounded.push(statement);
        bounded.extend(added);
    }
    body.statements = bounded;
}

/// An array's address that a register gets: the first array's, and a sum behind it where that is not the place.
fn taken<'t>(
    instruction: &mut crate::read::tree::Instruction<'t>,
    array: &crate::read::tree::Word<'t>,
    places: &HashMap<String, u64>,
    at: Position,
) -> Option<crate::read::tree::Statement<'t>> {
    let target = instruction.operands.first()?.clone();
    let (symbol, added) = match instruction.operands.get(1)? {
        Operand::Word(symbol) => (symbol, 0),
        Operand::Sum(symbol, added) => (symbol, *added),
        _ => return None,
    };
    let sum = added.wrapping_add_unsigned(*places.get(symbol.as_ref())?);
    instruction.operands[1] = word(array.clone());
    if sum == 0 {
        return None;
    }
    let narrow = instruction.modifiers().filter_map(bytes).any(|b| b == 4);
    let mut statement =
        made(at, if narrow { "add.s32" } else { "add.s64" }, [target.clone(), target, number(sum)]);
    if let StatementKind::Instruction(made) = &mut statement.kind {
        made.guard.clone_from(&instruction.guard);
    }
    Some(statement)
}

/// Makes one array of all, called as the first; tells where in it each begins.
fn merge(body: &mut Body<'_>, reasons: &mut Reasons) -> HashMap<String, u64> {
    let mut places = HashMap::new();
    let (mut end, mut align) = (0u64, 8);
    for found in &body.locals {
        let wanted = found.align.or(bytes(found.element)).unwrap_or(1);
        align = align.max(wanted);
        end = end.next_multiple_of(wanted);
        places.insert(found.name.to_string(), end);
        // Sizes are limited where they are read, and declarations by the text.
        end = end.saturating_add(found.size);
    }
    let Some(first) = body.locals.first() else { return places };
    let size = end.next_multiple_of(8);
    if end > LOCAL_LIMIT {
        let why = format!("local arrays of a function can have {LOCAL_LIMIT} bytes together");
        reasons.push(Refused::at(first.at, first.name.to_string(), why).of(&body.function.name));
    }
    let one = Variable { align: Some(align), element: ".b8", size, array: true, ..first.clone() };
    for found in &body.locals {
        body.names.remove(&found.name);
    }
    body.names.insert(one.name.clone(), Name::Local(0));
    body.locals = vec![one];
    places
}
