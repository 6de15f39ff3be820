//! One operand of an instruction.

use super::cursor::Cursor;
use super::expression::offset;
use super::lex::{Kind, Token, literal};
use super::tree::Operand;
use crate::refused::Refused;
use crate::window::OPERAND_LIMIT;

/// Reads an operand: a simple one, an address, or a list of simple ones in braces or parentheses.
pub(super) fn operand<'t>(cursor: &mut Cursor<'t>) -> Result<Operand<'t>, Refused> {
    if cursor.eat("[") {
        return address(cursor);
    }
    if cursor.eat("{") {
        return Ok(Operand::Vector(list(cursor, "}")?));
    }
    if cursor.eat("(") {
        return Ok(Operand::List(list(cursor, ")")?));
    }
    simple(cursor)
}

fn list<'t>(cursor: &mut Cursor<'t>, end: &str) -> Result<Vec<Operand<'t>>, Refused> {
    let mut members = Vec::new();
    while !cursor.eat(end) {
        members.push(simple(cursor)?);
        if members.len() > OPERAND_LIMIT {
            return Err(cursor.refuse("too many operands"));
        }
        if !cursor.eat(",") {
            cursor.expect(end)?;
            break;
        }
    }
    Ok(members)
}

fn simple<'t>(cursor: &mut Cursor<'t>) -> Result<Operand<'t>, Refused> {
    if cursor.eat("!") {
        return Ok(Operand::Not(cursor.word("a predicate")?.text.into()));
    }
    if cursor.eat("-") {
        let token = cursor.take("a number")?;
        return match token.kind {
            Kind::Number => number(true, token),
            Kind::Word => Ok(Operand::Minus(token.text.into())),
            _ => Err(Refused::at(token.at, token.text, "expected a number here")),
        };
    }
    let token = cursor.take("an operand")?;
    match token.kind {
        Kind::Number => number(false, token),
        Kind::Word if cursor.eat("|") => {
            Ok(Operand::Pair(token.text.into(), cursor.word("a predicate")?.text.into()))
        }
        Kind::Word if cursor.is("+") || cursor.is("-") => {
            cursor.eat("+");
            Ok(Operand::Sum(token.text.into(), offset(cursor)?))
        }
        Kind::Word => Ok(Operand::Word(token.text.into())),
        _ => Err(Refused::at(token.at, token.text, "expected an operand here")),
    }
}

fn number<'t>(minus: bool, token: Token<'t>) -> Result<Operand<'t>, Refused> {
    let value = literal(minus, token.text);
    value.map(Operand::Number).ok_or_else(|| Refused::at(token.at, token.text, "this is no number"))
}

/// What stands between brackets, the closing one too.
fn address<'t>(cursor: &mut Cursor<'t>) -> Result<Operand<'t>, Refused> {
    let operand = match cursor.peek().map(|t| t.kind) {
        Some(Kind::Word) => {
            let base = cursor.take("")?.text;
            let plus = cursor.eat("+");
            let added = if plus || cursor.is("-") { offset(cursor)? } else { 0 };
            Operand::Address(base.into(), added)
        }
        Some(Kind::Number) => Operand::Absolute(cursor.number("an address")?),
        _ => return Err(cursor.wants("an address")),
    };
    if !cursor.is("]") {
        return Err(cursor.refuse(
            "addresses of this kind (tensors, textures, sums of registers) are not known to the fence",
        ));
    }
    cursor.expect("]")?;
    Ok(operand)
}
