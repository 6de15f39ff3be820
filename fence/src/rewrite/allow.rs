//! Refuses what is not on the list, instruction by instruction: opcodes, forms of addresses, symbols where they cannot stand,
//! carries that nothing set. Later passes meet known instructions only.

use super::access::accesses;
use super::body::{Body, Name, Reasons, Symbol, Symbols};
use super::opcodes::{refusal, writes_first};
use super::whole::gathers;
use super::write;
use crate::read::tree::{Instruction, Operand, Space, StatementKind};
use crate::refused::Refused;

/// Adds a reason for each instruction that cannot be fenced.
pub(crate) fn allow(body: &Body<'_>, symbols: &Symbols<'_>, reasons: &mut Reasons) {
    let mut carry = false;
    for statement in &body.statements {
        let StatementKind::Instruction(instruction) = &statement.kind else {
            carry &= !matches!(statement.kind, StatementKind::Label(_) | StatementKind::Table(..));
            continue;
        };
        let why = refusal(instruction)
            .map(str::to_owned)
            .or_else(|| accesses(instruction).err().map(str::to_owned))
            .or_else(|| addresses(body, symbols, instruction))
            .or_else(|| names(body, symbols, instruction));
        let why = match instruction.name() {
            "addc" | "subc" | "madc" if !carry => {
                why.or_else(|| Some("no instruction before it sets the carry that it reads".to_owned()))
            }
            "call" if instruction.guard.is_some() => {
                Some("branch around the call: it cannot have a predicate".to_owned())
            }
            _ if instruction.guard.is_some() && gathers(instruction) => why.or_else(|| {
                Some("branch around it: what reads registers of all lanes cannot have a predicate".to_owned())
            }),
            _ => why,
        };
        carry |= instruction.has("cc") && instruction.guard.is_none();
        carry &= !matches!(instruction.name(), "bra" | "brx" | "ret" | "exit" | "trap" | "call");
        if let Some(why) = why {
            let what = match call_parts(&instruction.operands) {
                Some((_, callee, _)) if instruction.name() == "call" => format!("call {callee}"),
                _ => write::instruction(instruction),
            };
            reasons.push(Refused::at(statement.at, what, why).of(&body.function.name));
        }
    }
}

/// Why an address of the instruction cannot be fenced.
fn addresses(body: &Body<'_>, symbols: &Symbols<'_>, instruction: &Instruction<'_>) -> Option<String> {
    for access in accesses(instruction).ok()? {
        let (base, offset) = match &instruction.operands[access.operand] {
            Operand::Address(base, offset) => (base, *offset),
            Operand::Absolute(_) if access.space == Some(Space::Global) => continue,
            _ => return Some("a number is no address in this kind of memory".to_owned()),
        };
        let far = offset.unsigned_abs() > i32::MAX.unsigned_abs().into();
        if far && matches!(access.space, Some(Space::Shared | Space::Const)) {
            return Some("the offset is larger than any memory of this kind".to_owned());
        }
        if body.is_register(base) {
            if access.space == Some(Space::Param) {
                return Some("a parameter can only be reached by its name".to_owned());
            }
            match body.width(base) {
                Some(4 | 8) => continue,
                _ => return Some(format!("`{base}` is not as wide as an address")),
            }
        }
        let known = body.names.get(base);
        let space = match (known, symbols.names.get(base)) {
            (Some(Name::Parameter(size) | Name::Return(size) | Name::Argument(size)), _) => {
                let end = u64::try_from(offset).ok().and_then(|o| o.checked_add(access.bytes));
                if end.is_none_or(|end| end > *size) {
                    return Some(format!("`{base}` has only {size} bytes"));
                }
                Space::Param
            }
            (Some(Name::Local(_)), _) => Space::Local,
            (Some(Name::Shared), _) | (None, Some(Symbol::Shared)) => Space::Shared,
            (None, Some(Symbol::Global(_))) => Space::Global,
            (None, Some(Symbol::Const)) => Space::Const,
            _ => return Some(format!("`{base}` is no variable")),
        };
        let generic = access.space.is_none() && space == Space::Global;
        if access.space != Some(space) && !generic {
            return Some(format!("`{base}` lies in other memory than the instruction reaches"));
        }
    }
    None
}

/// Why a name cannot stand where the instruction has it.
fn names(body: &Body<'_>, symbols: &Symbols<'_>, instruction: &Instruction<'_>) -> Option<String> {
    if let Some((_, guard)) = instruction.guard.as_ref().filter(|(_, guard)| !body.is_register(guard)) {
        return Some(format!("`{guard}` is no register: only predicates can stand behind `@`"));
    }
    let name = instruction.name();
    if matches!(name, "call" | "bra" | "brx") {
        return control(body, symbols, instruction);
    }
    let list = instruction.operands.iter().any(|o| matches!(o, Operand::List(_)));
    if list {
        return Some("the fence does not know an operand in parentheses here".to_owned());
    }
    if writes_first(instruction) && !instruction.operands.first().is_some_and(|target| written(body, target))
    {
        return Some("the first operand has to be a register, or registers in braces".to_owned());
    }
    for (nth, operand) in instruction.operands.iter().enumerate() {
        if let Operand::Minus(word) = operand {
            return Some(format!("`-{word}`: only numbers can have a sign here"));
        }
        if matches!(operand, Operand::Pair(..)) && (nth > 0 || !writes_first(instruction)) {
            return Some("only what an instruction writes can be a pair".to_owned());
        }
        let members = match operand {
            Operand::Vector(members) => members.as_slice(),
            other => std::slice::from_ref(other),
        };
        let plain = |member: &Operand<'_>| match member {
            Operand::Word(word) => word == "_" || body.is_register(word),
            Operand::Number(_) => true,
            _ => false,
        };
        if matches!(operand, Operand::Vector(_)) && !members.iter().all(plain) {
            return Some("only registers and numbers can stand in braces".to_owned());
        }
        for member in members {
            let (Operand::Word(word) | Operand::Sum(word, _)) = member else { continue };
            if body.is_register(word) {
                if matches!(member, Operand::Sum(..)) {
                    return Some(format!("`{word}` is no symbol that an offset can be added to"));
                }
                continue;
            }
            match (body.names.get(word), symbols.names.get(word)) {
                (Some(Name::Parameter(_) | Name::Return(_) | Name::Argument(_)), _) => {
                    return Some(format!(
                        "the address of the parameter `{word}` cannot be fenced: use `ld.param`"
                    ));
                }
                (Some(Name::Local(_) | Name::Shared), _)
                | (None, Some(Symbol::Const | Symbol::Shared | Symbol::Global(_))) => {
                    if nth != 1 || !matches!(name, "mov" | "cvta") {
                        return Some(format!("the address of `{word}` can only be taken by `mov` or `cvta`"));
                    }
                }
                (Some(_), _) | (None, Some(Symbol::Function(_) | Symbol::Declared)) => {
                    return Some(format!(
                        "the address of `{word}` cannot be fenced: calls through registers are refused"
                    ));
                }
                (None, None) if matches!(member, Operand::Sum(..)) => {
                    return Some(format!("`{word}` is no symbol that an offset can be added to"));
                }
                (None, None) => {}
            }
        }
    }
    None
}

/// True if an instruction can write the operand.
fn written(body: &Body<'_>, operand: &Operand<'_>) -> bool {
    let register = |word: &str| word == "_" || body.is_register(word);
    match operand {
        Operand::Word(word) => register(word),
        Operand::Pair(a, b) => register(a) && register(b),
        Operand::Vector(members) => {
            members.iter().all(|m| matches!(m, Operand::Word(word) if register(word)))
        }
        _ => false,
    }
}

/// Why a branch or a call cannot be fenced by what it names.
fn control(body: &Body<'_>, symbols: &Symbols<'_>, instruction: &Instruction<'_>) -> Option<String> {
    let kind = |operand: &Operand<'_>| match operand {
        Operand::Word(word) => body.names.get(word).copied(),
        _ => None,
    };
    let operands = instruction.operands.as_slice();
    let right = match instruction.name() {
        "bra" => matches!(operands, [label] if kind(label) == Some(Name::Label)),
        "brx" => match operands {
            [Operand::Word(index), table] => {
                body.width(index) == Some(4) && matches!(kind(table), Some(Name::Table(n)) if n > 0)
            }
            _ => false,
        },
        _ => {
            let through = |o: &Operand<'_>| matches!(o, Operand::Word(w) if body.is_register(w));
            if operands.iter().any(through) {
                return Some("functions cannot be called through a register".to_owned());
            }
            let Some((_, callee, _)) = call_parts(operands) else {
                return Some("the fence does not know this form of call".to_owned());
            };
            match symbols.names.get(callee) {
                Some(Symbol::Function(_)) => {}
                Some(Symbol::Declared) => {
                    return Some(format!(
                        "`{callee}` is not defined in this module: nothing outside of it can be called"
                    ));
                }
                _ => return Some(format!("`{callee}` is no function")),
            }
            let (returned, _, given) = call_parts(operands)?;
            let argument = |o: &Operand<'_>| matches!(kind(o), Some(Name::Argument(_)));
            if !returned.iter().chain(given).all(argument) {
                return Some("what a call takes and returns has to be declared with `.param`".to_owned());
            }
            true
        }
    };
    (!right).then(|| "the fence does not know this form of branch".to_owned())
}

/// What a call returns, the function's name, what the call gives.
pub(crate) fn call_parts<'a, 't>(
    operands: &'a [Operand<'t>],
) -> Option<(&'a [Operand<'t>], &'a str, &'a [Operand<'t>])> {
    match operands {
        [Operand::Word(callee)] => Some((&[], callee, &[])),
        [Operand::Word(callee), Operand::List(given)] => Some((&[], callee, given)),
        [Operand::List(returned), Operand::Word(callee)] => Some((returned, callee, &[])),
        [Operand::List(returned), Operand::Word(callee), Operand::List(given)] => {
            Some((returned, callee, given))
        }
        _ => None,
    }
}
