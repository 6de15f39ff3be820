//! Parameters that are reached through a register, as clang writes it for structures, are reached by their names: a register
//! whose only definition is a parameter's address, or such a register and a number, goes away.

use std::collections::HashMap;

use super::body::{Body, Name};
use super::opcodes::writes_first;
use crate::read::tree::{Instruction, Operand, StatementKind, Word};
use crate::read::{integer, types::bytes};

/// Replaces `[%rd1+8]` by `[parameter+8]`. What cannot be replaced stays, and is refused by a later pass.
pub(crate) fn parameters(body: &mut Body<'_>) {
    let aliases = aliases(body);
    if aliases.is_empty() {
        return;
    }
    body.statements.retain_mut(|statement| {
        let StatementKind::Instruction(i) = &mut statement.kind else { return true };
        if i.name() == "ld" && i.modifiers().any(|m| m.starts_with("param")) {
            if let Some(Operand::Address(base, offset)) = i.operands.get_mut(1)
                && let Some((parameter, more)) = aliases.get(base)
            {
                *base = parameter.clone();
                *offset = offset.wrapping_add(*more);
            }
            return true;
        }
        !matches!(i.operands.first(), Some(Operand::Word(target)) if aliases.contains_key(target))
    });
}

/// Registers that are a parameter's address and nothing else, and are used for nothing else.
fn aliases<'t>(body: &Body<'t>) -> HashMap<Word<'t>, (Word<'t>, i64)> {
    let mut aliases: HashMap<Word<'t>, (Word<'t>, i64)> = HashMap::new();
    let address = |o: &Operand<'_>| match o {
        Operand::Word(w) | Operand::Sum(w, _) => matches!(body.names.get(w), Some(Name::Parameter(_))),
        _ => false,
    };
    let instructions = || {
        body.statements.iter().filter_map(|s| match &s.kind {
            StatementKind::Instruction(i) => Some(i),
            _ => None,
        })
    };
    if !instructions().any(|i| i.name() == "mov" && i.operands.get(1).is_some_and(address)) {
        return aliases;
    }
    for i in instructions() {
        if let Some((target, source)) = alias(body, &aliases, i) {
            aliases.insert(target, source);
        }
    }
    // Whatever is written or used otherwise is no alias, and neither is what comes from it.
    let mut wrong: Vec<Word<'t>> = Vec::new();
    let mut from: HashMap<Word<'t>, Vec<Word<'t>>> = HashMap::new();
    let mut definitions: HashMap<Word<'t>, usize> = HashMap::new();
    for i in instructions() {
        let defines = writes_first(i);
        let target = match i.operands.first() {
            Some(Operand::Word(w)) if defines => Some(w),
            _ => None,
        };
        let is_alias = alias(body, &aliases, i).is_some();
        for (place, operand) in i.operands.iter().enumerate() {
            let members = match operand {
                Operand::Vector(members) | Operand::List(members) => members.as_slice(),
                other => std::slice::from_ref(other),
            };
            for member in members {
                match member {
                    Operand::Word(w) if aliases.contains_key(w) => match target {
                        Some(target) if place == 0 && target == w && is_alias => {
                            *definitions.entry(w.clone()).or_default() += 1;
                        }
                        Some(target) if place > 0 && is_alias => {
                            from.entry(w.clone()).or_default().push(target.clone())
                        }
                        _ => wrong.push(w.clone()),
                    },
                    Operand::Sum(w, _) | Operand::Not(w) | Operand::Minus(w) if aliases.contains_key(w) => {
                        wrong.push(w.clone());
                    }
                    Operand::Pair(a, b) => wrong.extend([a.clone(), b.clone()]),
                    Operand::Address(w, _) if aliases.contains_key(w) => {
                        let loads = i.name() == "ld" && i.modifiers().any(|m| m.starts_with("param"));
                        if !(loads && place == 1) {
                            wrong.push(w.clone());
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    wrong.extend(definitions.into_iter().filter(|(_, n)| *n != 1).map(|(w, _)| w));
    if wrong.iter().any(|w| aliases.contains_key(w)) {
        // Rare: all stay, and the later pass says where.
        aliases.clear();
    }
    aliases
}

/// What the instruction makes an alias, and of which parameter's place.
fn alias<'t>(
    body: &Body<'t>,
    aliases: &HashMap<Word<'t>, (Word<'t>, i64)>,
    i: &Instruction<'t>,
) -> Option<(Word<'t>, (Word<'t>, i64))> {
    let wide = i.modifiers().last().and_then(bytes) == Some(8);
    if i.guard.is_some() || !wide || i.modifiers().count() != 1 {
        return None;
    }
    let parameter = |w: &Word<'t>| matches!(body.names.get(w), Some(Name::Parameter(_)));
    match (i.name(), i.operands.as_slice()) {
        ("mov", [Operand::Word(target), Operand::Word(source)]) if parameter(source) => {
            Some((target.clone(), (source.clone(), 0)))
        }
        ("mov", [Operand::Word(target), Operand::Sum(source, offset)]) if parameter(source) => {
            Some((target.clone(), (source.clone(), *offset)))
        }
        ("mov", [Operand::Word(target), Operand::Word(source)]) => {
            Some((target.clone(), aliases.get(source)?.clone()))
        }
        ("add", [Operand::Word(target), Operand::Word(source), Operand::Number(more)]) => {
            let (parameter, offset) = aliases.get(source)?;
            let more = i64::try_from(integer(more)?).ok()?;
            Some((target.clone(), (parameter.clone(), offset.wrapping_add(more))))
        }
        _ => None,
    }
}
