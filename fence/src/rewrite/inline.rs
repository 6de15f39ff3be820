//! Calls become copies of what they call, so fenced text is kernels only. Each copy has registers, labels and arguments of its
//! own; local arrays are one for all copies in a kernel, as no function is at work twice. `ret` becomes a branch behind the copy.

use std::collections::{HashMap, HashSet};

use super::allow::call_parts;
use super::body::{Body, Name, Reasons, Symbol, Symbols, word};
use super::fuel::label;
use crate::read::tree::{Instruction, Operand, Statement, StatementKind, Variable, Word};
use crate::refused::Refused;
use crate::window::{COPY_LIMIT, NESTING_LIMIT};

/// What copies bring into a function.
#[derive(Default)]
struct Brought<'t> {
    registers: Vec<(&'t str, Word<'t>, Option<u64>)>,
    types: Vec<(Word<'t>, &'t str)>,
    arguments: Vec<Variable<'t>>,
    locals: Vec<Variable<'t>>,
    names: Vec<(Word<'t>, Name)>,
    copied: HashSet<usize>,
}

/// One copy: the function, the copy's number, arguments in place of parameters.
struct Copy<'a, 't> {
    callee: &'a Body<'t>,
    place: usize,
    number: usize,
    prefix: &'a str,
    bound: Bound<'a, 't>,
}

/// Replaces all calls; `order` has each function behind all that it calls.
pub(crate) fn inline<'t>(
    bodies: &mut [Body<'t>],
    order: &[usize],
    symbols: &Symbols<'t>,
    prefix: &str,
    reasons: &mut Reasons,
) {
    let (mut copies, mut total) = (0, 0);
    let mut depths = vec![0; bodies.len()];
    for &current in order {
        let depth = bodies[current].calls.iter().map(|callee| depths[*callee] + 1).max().unwrap_or(0);
        depths[current] = depth;
        let (at, name) = (bodies[current].function.at, bodies[current].function.name.to_string());
        let refuse = |why: &str| Refused::at(at, name.clone(), why).of(&name);
        if depth > NESTING_LIMIT {
            reasons.push(refuse("too many functions call each other in a row"));
            return;
        }
        if depth == 0 {
            continue;
        }
        let mut brought = Brought::default();
        let statements = std::mem::take(&mut bodies[current].statements);
        let mut whole = Vec::with_capacity(statements.len());
        for statement in statements {
            let Some((callee, bound)) = call(&statement, symbols, bodies) else {
                whole.push(statement);
                continue;
            };
            let body = &bodies[callee];
            let Some(bound) = bound else {
                let why = "the call gives or takes another number of parameters than the function has";
                reasons
                    .push(Refused::at(statement.at, format!("call {}", body.function.name), why).of(&name));
                continue;
            };
            let declared = body.registers.len() + body.arguments.len() + body.locals.len() + body.names.len();
            total += body.statements.len() + declared + 1;
            if total > COPY_LIMIT {
                reasons.push(refuse(
                    "calls are replaced by copies of what they call, and these would be too many",
                ));
                return;
            }
            let copy = Copy { callee: body, place: callee, number: copies, prefix, bound };
            copies += 1;
            copy.write(&mut whole, &mut brought);
        }
        let body = &mut bodies[current];
        body.statements = whole;
        body.registers.append(&mut brought.registers);
        body.types.extend(brought.types);
        body.arguments.append(&mut brought.arguments);
        body.locals.append(&mut brought.locals);
        body.names.extend(brought.names);
    }
}

/// Parameters of a function, each with the argument that stands for it.
type Bound<'a, 't> = HashMap<&'a Word<'t>, Word<'t>>;

/// The function that a statement calls, and its parameters with their arguments, if there are as many.
fn call<'a, 't>(
    statement: &Statement<'t>,
    symbols: &Symbols<'t>,
    bodies: &'a [Body<'t>],
) -> Option<(usize, Option<Bound<'a, 't>>)> {
    let StatementKind::Instruction(i) = &statement.kind else { return None };
    if i.name() != "call" {
        return None;
    }
    let (returned, callee, given) = call_parts(&i.operands)?;
    let Some(Symbol::Function(callee)) = symbols.names.get(callee) else { return None };
    let function = &bodies.get(*callee)?.function;
    if returned.len() != function.returns.len() || given.len() != function.parameters.len() {
        return Some((*callee, None));
    }
    let names =
        returned.iter().chain(given).filter_map(|o| if let Operand::Word(w) = o { Some(w) } else { None });
    let parameters = function.returns.iter().chain(&function.parameters).map(|parameter| &parameter.name);
    Some((*callee, Some(parameters.zip(names.cloned()).collect())))
}

impl<'t> Copy<'_, 't> {
    fn write(&self, into: &mut Vec<Statement<'t>>, brought: &mut Brought<'t>) {
        let callee = self.callee;
        for (kind, stem, count) in &callee.registers {
            brought.registers.push((kind, self.own('%', stem), *count));
        }
        for argument in &callee.arguments {
            let name = self.own('v', &argument.name);
            brought.names.push((name.clone(), Name::Argument(argument.size)));
            brought.arguments.push(Variable { name, ..argument.clone() });
        }
        if brought.copied.insert(self.place) {
            for local in &callee.locals {
                let name = self.local(&local.name);
                brought.names.push((name.clone(), Name::Local(0)));
                brought.locals.push(Variable { name, ..local.clone() });
            }
            let shared = callee.names.iter().filter(|(_, kind)| **kind == Name::Shared);
            brought.names.extend(shared.map(|(name, kind)| (name.clone(), *kind)));
        }
        let end: Word<'t> = format!("${}i{}_end", self.prefix, self.number).into();
        let last = callee.statements.len().saturating_sub(1);
        let mut ends = false;
        for (place, statement) in callee.statements.iter().enumerate() {
            let mut statement = statement.clone();
            match &mut statement.kind {
                StatementKind::Label(name) => {
                    *name = self.own('$', name);
                    brought.names.push((name.clone(), Name::Label));
                }
                StatementKind::Instruction(i) if i.name() == "ret" => {
                    if place == last && i.guard.is_none() {
                        continue;
                    }
                    self.instruction(i, brought);
                    ends = true;
                    *i = Instruction {
                        guard: i.guard.take(),
                        opcode: "bra".into(),
                        operands: vec![word(end.clone())],
                    };
                }
                StatementKind::Instruction(i) => self.instruction(i, brought),
                _ => {}
            }
            into.push(statement);
        }
        if ends {
            brought.names.push((end.clone(), Name::Label));
            into.push(label(callee.function.at, end));
        }
    }

    fn instruction(&self, i: &mut Instruction<'t>, brought: &mut Brought<'t>) {
        if let Some((_, name)) = &mut i.guard {
            self.rename(name, brought);
        }
        for operand in &mut i.operands {
            self.operand(operand, brought);
        }
    }

    fn operand(&self, operand: &mut Operand<'t>, brought: &mut Brought<'t>) {
        match operand {
            Operand::Number(_) | Operand::Absolute(_) => {}
            Operand::Word(name)
            | Operand::Sum(name, _)
            | Operand::Not(name)
            | Operand::Minus(name)
            | Operand::Address(name, _) => self.rename(name, brought),
            Operand::Pair(a, b) => {
                self.rename(a, brought);
                self.rename(b, brought);
            }
            // Members are never lists themselves.
            Operand::Vector(members) | Operand::List(members) => {
                members.iter_mut().for_each(|member| self.operand(member, brought));
            }
        }
    }

    /// A name of the function as it is in this copy.
    fn rename(&self, name: &mut Word<'t>, brought: &mut Brought<'t>) {
        if let Some(kind) = self.callee.types.get(name) {
            *name = self.own('%', name);
            brought.types.push((name.clone(), kind));
            return;
        }
        match self.callee.names.get(name) {
            Some(Name::Parameter(_) | Name::Return(_)) => {
                if let Some(argument) = self.bound.get(name) {
                    *name = argument.clone();
                }
            }
            Some(Name::Local(_)) => *name = self.local(name),
            Some(Name::Label | Name::Table(_)) => *name = self.own('$', name),
            Some(Name::Argument(_)) => *name = self.own('v', name),
            Some(Name::Shared) | None => {}
        }
    }

    fn own(&self, mark: char, name: &str) -> Word<'t> {
        let name = name.trim_start_matches(['%', '$']);
        format!("{mark}{}i{}_{name}", self.prefix, self.number).into()
    }

    fn local(&self, name: &str) -> Word<'t> {
        format!("v{}f{}_{name}", self.prefix, self.place).into()
    }
}
