//! Calls hand the window on, and nothing that was left in memory: arguments are whole before a call, what a function returns is
//! zero until the function stores it. Functions that call themselves, by however many others, are refused.

use std::collections::{HashMap, HashSet};

use super::access::accesses;
use super::allow::call_parts;
use super::body::{Body, Name, Reasons, Symbol, Symbols, made, number, word};
use crate::read::tree::{Operand, Space, Statement, StatementKind, Variable, Word};
use crate::read::types::bytes;
use crate::refused::{Position, Refused};
use crate::window::{ARGUMENT, HI};

/// Adds the window to each call of a function.
pub(crate) fn calls<'t>(body: &mut Body<'t>, symbols: &Symbols<'t>) {
    let unset = unset(body);
    let statements = std::mem::take(&mut body.statements);
    let mut handed = Vec::with_capacity(statements.len());
    // For each open scope, true if it declares the argument already.
    let mut scopes: Vec<bool> = Vec::new();
    for mut statement in statements {
        let at = statement.at;
        match &mut statement.kind {
            StatementKind::Open => scopes.push(false),
            StatementKind::Close => {
                scopes.pop();
            }
            StatementKind::Variable(found) => {
                let name = found.name.clone();
                let missing = unset.get(&name).cloned().unwrap_or_default();
                let unit = unit(found);
                handed.push(statement);
                handed.extend(missing.into_iter().map(|place| zero(at, &name, place, unit)));
                continue;
            }
            StatementKind::Instruction(instruction) if instruction.name() == "call" => {
                let Some((_, callee, _)) = call_parts(&instruction.operands) else { continue };
                if let Some(Symbol::Function(callee)) = symbols.names.get(callee) {
                    body.calls.push(*callee);
                }
                let argument = || word(ARGUMENT);
                match instruction.operands.as_mut_slice() {
                    [Operand::Word(_), Operand::List(given)]
                    | [Operand::List(_), Operand::Word(_), Operand::List(given)] => {
                        given.push(argument());
                    }
                    _ => instruction.operands.push(Operand::List(vec![argument()])),
                }
                let alone = scopes.is_empty();
                if alone {
                    handed.push(Statement { at, kind: StatementKind::Open });
                }
                let declared = scopes.last_mut().is_some_and(|declared| std::mem::replace(declared, true));
                if !declared {
                    handed.push(Statement {
                        at,
                        kind: StatementKind::Variable(Box::new(argument_declared(at))),
                    });
                }
                let target = Operand::Address(ARGUMENT.into(), 0);
                handed.push(made(at, "st.param.b32", [target, word(HI)]));
                handed.push(statement);
                if alone {
                    handed.push(Statement { at, kind: StatementKind::Close });
                }
                continue;
            }
            _ => {}
        }
        handed.push(statement);
    }
    body.statements = handed;
}

fn argument_declared<'t>(at: Position) -> Variable<'t> {
    Variable {
        at,
        space: Space::Param,
        linkage: Vec::new(),
        name: ARGUMENT.into(),
        align: None,
        element: ".b32",
        size: 4,
        array: false,
        initial: Vec::new(),
        initialised: false,
    }
}

/// The bytes that one store clears of a parameter.
fn unit(parameter: &Variable<'_>) -> u64 {
    let each = bytes(parameter.element).unwrap_or(1);
    if !parameter.array {
        return each;
    }
    // A power of two that divides the size and that the parameter is aligned to.
    let align = parameter.align.unwrap_or(each);
    align.min(8).min(1 << parameter.size.trailing_zeros().min(3))
}

fn zero<'t>(at: Position, name: &Word<'t>, place: u64, unit: u64) -> Statement<'t> {
    let opcode = match unit {
        1 => "st.param.b8",
        2 => "st.param.b16",
        4 => "st.param.b32",
        _ => "st.param.b64",
    };
    // Parameters have at most PARAMETER_LIMIT bytes.
    made(at, opcode, [Operand::Address(name.clone(), place as i64), number(0)])
}

/// Bytes of a parameter, at most: more than PTX admits.
const PARAMETER_LIMIT: u64 = 32 << 10;
/// Bytes of all parameters, returns and arguments of a module.
const PARAMETERS_LIMIT: u64 = 8 << 20;

/// Arguments' bytes that no store without a predicate sets, in units that are cleared together.
fn unset<'t>(body: &Body<'t>) -> HashMap<Word<'t>, Vec<u64>> {
    let mut returned: HashSet<&Word<'t>> = HashSet::new();
    let mut declared: HashMap<&Word<'t>, (&Variable<'t>, Vec<bool>)> = HashMap::new();
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Variable(found) if found.size <= PARAMETER_LIMIT => {
                declared.insert(&found.name, (found, vec![false; found.size as usize]));
            }
            StatementKind::Instruction(i) if i.name() == "call" => {
                let Some((names, ..)) = call_parts(&i.operands) else { continue };
                returned.extend(
                    names.iter().filter_map(|o| if let Operand::Word(w) = o { Some(w) } else { None }),
                );
            }
            StatementKind::Instruction(i) if i.name() == "st" && i.guard.is_none() => {
                let Some(access) = accesses(i).ok().and_then(|a| a.first().copied()) else { continue };
                if let Some(Operand::Address(name, place)) = i.operands.first()
                    && let Some((_, set)) = declared.get_mut(name)
                    && let Ok(place) = usize::try_from(*place)
                    && let Some(bytes) = set.get_mut(place..place.saturating_add(access.bytes as usize))
                {
                    bytes.fill(true);
                }
            }
            _ => {}
        }
    }
    declared
        .into_iter()
        .filter(|(name, _)| !returned.contains(name))
        .map(|(name, (found, set))| {
            let unit = unit(found) as usize;
            let missing = set.chunks(unit).enumerate().filter(|(_, bytes)| bytes.contains(&false));
            (name.clone(), missing.map(|(i, _)| (i * unit) as u64).collect())
        })
        .collect()
}

/// Stores of zero for all that a function returns.
pub(crate) fn returns<'t>(body: &Body<'t>) -> Vec<Statement<'t>> {
    let mut stores = Vec::new();
    for parameter in &body.function.returns {
        let unit = unit(parameter);
        let places = (0..parameter.size).step_by(unit as usize);
        stores.extend(places.map(|place| zero(parameter.at, &parameter.name, place, unit)));
    }
    stores
}

/// Refuses parameters and arguments that are larger than any can be; `total` counts all bytes of a module's.
pub(crate) fn sizes(body: &Body<'_>, total: &mut u64, reasons: &mut Reasons) {
    let declared = body.statements.iter().filter_map(|s| match &s.kind {
        StatementKind::Variable(found) => Some(&**found),
        _ => None,
    });
    for found in body.function.parameters.iter().chain(&body.function.returns).chain(declared) {
        *total = total.saturating_add(found.size);
        if found.size > PARAMETER_LIMIT
            || *total > PARAMETERS_LIMIT
            || bytes(found.element).is_none_or(|each| each > 8)
        {
            let why =
                format!("a parameter has at most {PARAMETER_LIMIT} bytes, and elements of at most eight");
            reasons.push(Refused::at(found.at, found.name.to_string(), why).of(body.function.name));
        }
    }
    for (name, kind) in &body.names {
        if name.contains('.') || (matches!(kind, Name::Label) && name.starts_with('%')) {
            reasons.push(
                Refused::at(body.function.at, name.to_string(), "no name can be so").of(body.function.name),
            );
        }
    }
}

/// Functions in an order in which each stands behind all that it calls; a reason where there is none.
pub(crate) fn order(bodies: &[Body<'_>], reasons: &mut Reasons) -> Vec<usize> {
    let mut order = Vec::with_capacity(bodies.len());
    // 0: not seen, 1: being looked at, 2: in order.
    let mut states = vec![0u8; bodies.len()];
    for first in 0..bodies.len() {
        let mut path = vec![(first, 0)];
        while let Some((current, next)) = path.pop() {
            let body = &bodies[current];
            if next == 0 && states[current] != 0 {
                if states[current] == 1 {
                    let why =
                        "the function calls itself, or one that calls it: stacks that grow cannot be fenced";
                    reasons
                        .push(Refused::at(body.function.at, body.function.name, why).of(body.function.name));
                }
                continue;
            }
            states[current] = 1;
            match body.calls.get(next) {
                Some(callee) => {
                    path.push((current, next + 1));
                    path.push((*callee, 0));
                }
                None => {
                    states[current] = 2;
                    order.push(current);
                }
            }
        }
    }
    order
}
