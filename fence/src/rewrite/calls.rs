//! Calls hand the window on, and nothing that was left in memory: arguments are whole before a call, what a function returns is
//! zero until the function stores it. Functions that call themselves, by however many others, are refused.

use std::collections::HashMap;

use super::access::accesses;
use super::allow::call_parts;
use super::body::{Body, Reasons, Symbol, Symbols, made, number, word};
use crate::read::tree::{Operand, Space, Statement, StatementKind, Variable, Word};
use crate::read::types::bytes;
use crate::refused::{Position, Refused};
use crate::window::{ARGUMENT, HI};

/// Adds the window to each call of a function.
pub(crate) fn calls<'t>(body: &mut Body<'t>, symbols: &Symbols<'t>) {
    let statements = std::mem::take(&mut body.statements);
    let mut cleared = unset(body, &statements).into_iter().peekable();
    let mut handed = Vec::with_capacity(statements.len());
    for (place, mut statement) in statements.into_iter().enumerate() {
        let at = statement.at;
        while let Some((_, argument)) = cleared.next_if(|(p, _)| *p == place) {
            handed.extend(zeros(at, &body.arguments[argument]));
        }
        if let StatementKind::Instruction(instruction) = &mut statement.kind
            && instruction.name() == "call"
        {
            let callee =
                call_parts(&instruction.operands).map(|(_, callee, _)| Word::from(callee.to_owned()));
            if let Some(Symbol::Function(callee)) = callee.and_then(|c| symbols.names.get(&c)) {
                body.calls.push(*callee);
            }
            match instruction.operands.as_mut_slice() {
                [Operand::Word(_), Operand::List(given)]
                | [Operand::List(_), Operand::Word(_), Operand::List(given)] => given.push(word(ARGUMENT)),
                _ => instruction.operands.push(Operand::List(vec![word(ARGUMENT)])),
            }
            handed.push(made(at, "st.param.b32", [Operand::Address(ARGUMENT.into(), 0), word(HI)]));
        }
        handed.push(statement);
    }
    if !body.calls.is_empty() {
        body.arguments.push(argument_declared(body.function.at));
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

/// Bytes of a kernel's parameter.
const PARAMETER_LIMIT: u64 = 32 << 10;
/// Bytes of a function's parameter, and of what a function returns.
const ARGUMENT_LIMIT: u64 = 256;

/// What was stored of an argument since the last label or call.
struct Stored {
    argument: usize,
    size: u64,
    /// Bytes from the beginning that are stored without a gap.
    whole: u64,
    /// The statement that stored first.
    first: Option<usize>,
}

/// Arguments that are not whole where they are given, by the place of the statement before which they are set to zero: stores
/// without a predicate, behind the last label, have to reach every byte in ascending order.
fn unset(body: &Body<'_>, statements: &[Statement<'_>]) -> Vec<(usize, usize)> {
    let named = body.arguments.iter().enumerate();
    let mut stored: HashMap<&str, Stored> = named
        .map(|(argument, a)| (a.name.as_ref(), Stored { argument, size: a.size, whole: 0, first: None }))
        .collect();
    // Arguments that were stored to since the last label.
    let mut recent: Vec<&str> = Vec::new();
    let mut cleared = Vec::new();
    for (place, statement) in statements.iter().enumerate() {
        match &statement.kind {
            StatementKind::Instruction(i) if i.name() == "call" => {
                let Some((_, _, given)) = call_parts(&i.operands) else { continue };
                for operand in given {
                    let Operand::Word(name) = operand else { continue };
                    let Some(found) = stored.get_mut(name.as_ref()) else { continue };
                    if found.whole < found.size {
                        cleared.push((found.first.unwrap_or(place), found.argument));
                    }
                    (found.whole, found.first) = (0, None);
                }
            }
            StatementKind::Instruction(i) if i.name() == "st" => {
                let Some(access) = accesses(i).ok().and_then(|a| a.first().copied()) else { continue };
                let Some(Operand::Address(name, offset)) = i.operands.first() else { continue };
                let Some(found) = stored.get_mut(name.as_ref()) else { continue };
                if found.first.is_none() {
                    recent.push(name);
                    found.first = Some(place);
                }
                let offset = u64::try_from(*offset).unwrap_or(u64::MAX);
                if i.guard.is_none() && offset <= found.whole {
                    found.whole = found.whole.max(offset + access.bytes);
                }
            }
            StatementKind::Label(_) => {
                for name in recent.drain(..) {
                    if let Some(found) = stored.get_mut(name) {
                        (found.whole, found.first) = (0, None);
                    }
                }
            }
            _ => {}
        }
    }
    cleared.sort_unstable();
    cleared.dedup();
    cleared
}

/// Stores of zero for all of a parameter.
fn zeros<'t>(at: Position, parameter: &Variable<'t>) -> Vec<Statement<'t>> {
    let unit = unit(parameter);
    (0..parameter.size).step_by(unit as usize).map(|place| zero(at, &parameter.name, place, unit)).collect()
}

/// Stores of zero for all that a function returns.
pub(crate) fn returns<'t>(body: &Body<'t>) -> Vec<Statement<'t>> {
    body.function.returns.iter().flat_map(|parameter| zeros(parameter.at, parameter)).collect()
}

/// Refuses parameters and arguments that are larger than any can be.
pub(crate) fn sizes(body: &Body<'_>, reasons: &mut Reasons) {
    let function = &body.function;
    let mut refuse =
        |at, name: &str, why: String| reasons.push(Refused::at(at, name, why).of(&function.name));
    if function.returns.len() > 1 {
        refuse(function.at, &function.name, "a function can return one value".to_owned());
    }
    let limit = if function.entry { PARAMETER_LIMIT } else { ARGUMENT_LIMIT };
    let own = function.parameters.iter().map(|p| (p, limit));
    let others = function.returns.iter().chain(&body.arguments).map(|p| (p, ARGUMENT_LIMIT));
    for (found, limit) in own.chain(others) {
        if found.size > limit || bytes(found.element).is_none_or(|each| each > 8) {
            let why = format!("it can have at most {limit} bytes, and elements of at most eight");
            refuse(found.at, &found.name, why);
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
                    reasons.push(
                        Refused::at(body.function.at, body.function.name.to_string(), why)
                            .of(&body.function.name),
                    );
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
