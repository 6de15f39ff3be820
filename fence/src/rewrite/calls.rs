//! Which functions call which, in which order they can be copied, and how large what they hand on may be. Functions that call
//! themselves, by however many others, are refused.

use super::allow::call_parts;
use super::body::{Body, Reasons, Symbol, Symbols};
use crate::read::tree::{Statement, StatementKind};
use crate::read::types::bytes;
use crate::refused::Refused;

/// Which functions a function calls.
pub(crate) fn called(body: &Body<'_>, symbols: &Symbols<'_>) -> Vec<usize> {
    let callee = |statement: &Statement<'_>| match &statement.kind {
        StatementKind::Instruction(i) if i.name() == "call" => {
            let (_, callee, _) = call_parts(&i.operands)?;
            match symbols.names.get(callee) {
                Some(Symbol::Function(place)) => Some(*place),
                _ => None,
            }
        }
        _ => None,
    };
    body.statements.iter().filter_map(callee).collect()
}

/// Bytes of a kernel's parameter.
const PARAMETER_LIMIT: u64 = 32 << 10;
/// Bytes of a function's parameter, and of what a function returns.
const ARGUMENT_LIMIT: u64 = 256;

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
