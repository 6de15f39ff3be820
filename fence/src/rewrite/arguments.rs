//! Arguments of calls that became copies: a register each, where all stores and loads are of the whole argument; a local array
//! otherwise.

use std::collections::{HashMap, HashSet};

use super::access::accesses;
use super::body::{Body, Name};
use crate::read::tree::{Instruction, Operand, Space, StatementKind, Variable, Word};

/// Takes a function's arguments away.
pub(crate) fn arguments(body: &mut Body<'_>) {
    if body.arguments.is_empty() {
        return;
    }
    let mut sizes: HashMap<Word<'_>, u64> = HashMap::new();
    for argument in &body.arguments {
        if !argument.array && matches!(argument.size, 2 | 4 | 8) {
            sizes.insert(argument.name.clone(), argument.size);
        }
    }
    let mut used: HashSet<Word<'_>> = HashSet::new();
    for statement in &body.statements {
        let StatementKind::Instruction(i) = &statement.kind else { continue };
        let Some((name, offset, value)) = reached(body, i) else { continue };
        used.insert(name.clone());
        let whole = sizes.get(name).is_some_and(|size| {
            let bytes = accesses(i).ok().and_then(|a| a.first().map(|a| a.bytes));
            let fits = match value {
                Operand::Word(value) => body.width(value) == Some(*size),
                Operand::Number(_) => true,
                _ => false,
            };
            offset == 0 && bytes == Some(*size) && fits
        });
        if !whole {
            sizes.remove(name);
        }
    }
    for statement in &mut body.statements {
        let StatementKind::Instruction(i) = &mut statement.kind else { continue };
        let Some((name, ..)) = reached_name(&body.names, i) else { continue };
        let (name, store) = (name.clone(), i.name() == "st");
        if let Some(size) = sizes.get(&name) {
            let register = Operand::Word(register(&name));
            i.opcode = format!("mov.b{}", size * 8).into();
            i.operands[usize::from(!store)] = register;
        } else {
            let local =
                |part: &str| if part.starts_with("param") { "local".to_owned() } else { part.to_owned() };
            i.opcode = i.opcode.split('.').map(local).collect::<Vec<_>>().join(".").into();
        }
    }
    for argument in std::mem::take(&mut body.arguments) {
        if !used.contains(&argument.name) {
            continue;
        }
        if let Some(size) = sizes.get(&argument.name) {
            let kind = match size {
                2 => ".b16",
                4 => ".b32",
                _ => ".b64",
            };
            let name = register(&argument.name);
            body.registers.push((kind, name.clone(), None));
            body.types.insert(name, kind);
        } else {
            body.names.insert(argument.name.clone(), Name::Local(body.locals.len()));
            body.locals.push(Variable { space: Space::Local, ..argument });
        }
    }
}

fn register<'t>(name: &Word<'t>) -> Word<'t> {
    format!("%{name}").into()
}

/// The argument that a load or store reaches, where in it, and the value.
fn reached<'a, 't>(body: &Body<'t>, i: &'a Instruction<'t>) -> Option<(&'a Word<'t>, i64, &'a Operand<'t>)> {
    let (name, offset) = reached_name(&body.names, i)?;
    Some((name, offset, i.operands.get(usize::from(i.name() == "st"))?))
}

fn reached_name<'a, 't>(
    names: &HashMap<Word<'t>, Name>,
    i: &'a Instruction<'t>,
) -> Option<(&'a Word<'t>, i64)> {
    let place = match i.name() {
        "st" => 0,
        "ld" => 1,
        _ => return None,
    };
    match i.operands.get(place)? {
        Operand::Address(name, offset) if matches!(names.get(name), Some(Name::Argument(_))) => {
            Some((name, *offset))
        }
        _ => None,
    }
}
