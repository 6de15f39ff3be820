//! The statements of a function. Scopes are counted, not descended into, so text cannot exhaust the stack.

use super::cursor::Cursor;
use super::lex::Kind;
use super::operand::operand;
use super::tree::{Instruction, Statement, StatementKind};
use super::variable;
use crate::refused::Refused;
use crate::window::{NESTING_LIMIT, OPERAND_LIMIT, REGISTER_LIMIT};

/// The statements between a function's braces; the opening one is taken already.
pub(super) fn body<'t>(cursor: &mut Cursor<'t>) -> Result<Vec<Statement<'t>>, Refused> {
    let mut statements = Vec::new();
    let mut depth = 0;
    loop {
        let token = cursor.peek().ok_or_else(|| cursor.wants("`}`"))?;
        let at = token.at;
        let kind = match (token.kind, token.text) {
            (Kind::Mark, "{") => {
                depth += 1;
                if depth > NESTING_LIMIT {
                    return Err(cursor.refuse("too many scopes within each other"));
                }
                cursor.take("")?;
                StatementKind::Open
            }
            (Kind::Mark, "}") => {
                cursor.take("")?;
                if depth == 0 {
                    return Ok(statements);
                }
                depth -= 1;
                StatementKind::Close
            }
            (Kind::Mark, ";") => {
                cursor.take("")?;
                continue;
            }
            (Kind::Directive, _) => match directive(cursor, &mut statements)? {
                Some(kind) => kind,
                None => continue,
            },
            (Kind::Word, name) if cursor.second().is_some_and(|t| t.text == ":") => {
                cursor.take("")?;
                cursor.take("")?;
                if name.contains('.') {
                    return Err(Refused::at(at, name, "a label cannot have a dot in its name"));
                }
                if cursor.eat(".branchtargets") {
                    StatementKind::Table(name.into(), targets(cursor)?)
                } else {
                    // The call that names it is refused with its place.
                    if cursor.is(".callprototype") || cursor.is(".calltargets") {
                        cursor.skip_to(";")?;
                    }
                    StatementKind::Label(name.into())
                }
            }
            (Kind::Word, _) | (Kind::Mark, "@") => StatementKind::Instruction(instruction(cursor)?),
            _ => return Err(cursor.wants("a statement")),
        };
        statements.push(Statement { at, kind });
    }
}

/// A statement that begins with a dot; none where it is dropped or was put into `statements`.
fn directive<'t>(
    cursor: &mut Cursor<'t>,
    statements: &mut Vec<Statement<'t>>,
) -> Result<Option<StatementKind<'t>>, Refused> {
    let token = cursor.take("")?;
    let refuse = |why: &str| Err(Refused::at(token.at, token.text, why));
    match token.text {
        ".loc" => location(cursor)?,
        ".file" => file(cursor)?,
        ".pragma" => pragma(cursor)?,
        ".reg" => return registers(cursor).map(Some),
        ".local" | ".shared" | ".param" => {
            cursor.back();
            let mut found = Vec::new();
            variable::variables(cursor, Vec::new(), &mut found, false)?;
            cursor.expect(";")?;
            for found in found {
                statements.push(Statement { at: found.at, kind: StatementKind::Variable(Box::new(found)) });
            }
        }
        ".global" | ".const" => return refuse("declare the variable outside of the function"),
        _ => return refuse("this directive is not known to the fence"),
    }
    Ok(None)
}

/// `.loc 1 50 28`, perhaps with `, function_name NAME, inlined_at 1 10 20`.
fn location(cursor: &mut Cursor<'_>) -> Result<(), Refused> {
    for _ in 0..3 {
        cursor.number("a number")?;
    }
    if cursor.eat(",") {
        cursor.expect("function_name")?;
        cursor.word("a label")?;
        if cursor.eat("+") {
            cursor.number("a number")?;
        }
        cursor.expect(",")?;
        cursor.expect("inlined_at")?;
        for _ in 0..3 {
            cursor.number("a number")?;
        }
    }
    cursor.eat(";");
    Ok(())
}

/// `.file 1 "name", 0, 0`.
pub(super) fn file(cursor: &mut Cursor<'_>) -> Result<(), Refused> {
    cursor.number("a number")?;
    cursor.take("a file's name")?;
    while cursor.eat(",") {
        cursor.number("a number")?;
    }
    cursor.eat(";");
    Ok(())
}

/// `.pragma "nounroll";` and `.pragma "used_bytes_mask 0xfff";`: dropped. Others may change what the driver's compiler does.
pub(super) fn pragma(cursor: &mut Cursor<'_>) -> Result<(), Refused> {
    loop {
        let known = |text: &str| text == "nounroll" || text.starts_with("used_bytes_mask");
        if !cursor.peek().is_some_and(|t| known(t.text.trim_matches('"').trim())) {
            return Err(
                cursor.refuse("of pragmas only `nounroll` and `used_bytes_mask` are known to the fence")
            );
        }
        cursor.take("")?;
        if !cursor.eat(",") {
            cursor.expect(";")?;
            return Ok(());
        }
    }
}

/// `.b32 %r<5>, x;` behind `.reg`.
fn registers<'t>(cursor: &mut Cursor<'t>) -> Result<StatementKind<'t>, Refused> {
    let kind = cursor.take("a type")?;
    if !(super::types::bytes(kind.text).is_some() || kind.text == ".pred") || kind.kind != Kind::Directive {
        return Err(Refused::at(kind.at, kind.text, "registers of this type are not known to the fence"));
    }
    let mut names = Vec::new();
    loop {
        let name = cursor.word("a register's name")?;
        if name.text.contains(['.', ':']) {
            return Err(Refused::at(name.at, name.text, "a name cannot have a dot in it"));
        }
        let mut count = None;
        if cursor.eat("<") {
            let value = cursor.number("a count")?;
            if value > REGISTER_LIMIT {
                return Err(Refused::at(name.at, name.text, "too many registers"));
            }
            count = Some(value);
            cursor.expect(">")?;
        }
        names.push((name.text.into(), count));
        if !cursor.eat(",") {
            cursor.expect(";")?;
            return Ok(StatementKind::Registers(kind.text, names));
        }
    }
}

/// Labels up to the semicolon.
fn targets<'t>(cursor: &mut Cursor<'t>) -> Result<Vec<super::tree::Word<'t>>, Refused> {
    let mut targets = Vec::new();
    loop {
        targets.push(cursor.word("a label")?.text.into());
        if !cursor.eat(",") {
            cursor.expect(";")?;
            return Ok(targets);
        }
    }
}

/// `@%p opcode operands;`
fn instruction<'t>(cursor: &mut Cursor<'t>) -> Result<Instruction<'t>, Refused> {
    let mut guard = None;
    if cursor.eat("@") {
        let negated = cursor.eat("!");
        guard = Some((negated, cursor.word("a predicate")?.text.into()));
    }
    let at = cursor.at();
    let mut opcode: super::tree::Word<'t> = cursor.word("an instruction")?.text.into();
    if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(Refused::at(at, opcode, "no instruction is called so"));
    }
    while let Some(part) = cursor.peek().filter(|t| t.kind == Kind::Directive) {
        opcode.to_mut().push_str(part.text);
        cursor.take("")?;
    }
    let mut operands = Vec::new();
    if !cursor.eat(";") {
        loop {
            operands.push(operand(cursor)?);
            if operands.len() > OPERAND_LIMIT {
                return Err(cursor.refuse("too many operands"));
            }
            if !cursor.eat(",") {
                cursor.expect(";")?;
                break;
            }
        }
    }
    Ok(Instruction { guard, opcode, operands })
}
