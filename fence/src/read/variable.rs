//! Declarations of variables and parameters, with their initial values.

use super::cursor::Cursor;
use super::expression::offset;
use super::lex::{Kind, integer, literal};
use super::tree::{Initial, Space, Variable};
use super::types::bytes;
use crate::refused::Refused;

/// The space that a directive names.
pub(super) fn space(directive: &str) -> Option<Space> {
    Some(match directive {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" | ".shared::cta" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}

/// One declaration from its space on, without the comma or semicolon behind it. `first` is none for the names of one
/// declaration behind the first: they share what stands before it.
pub(super) fn variables<'t>(
    cursor: &mut Cursor<'t>,
    linkage: Vec<&'t str>,
    into: &mut Vec<Variable<'t>>,
    one: bool,
) -> Result<(), Refused> {
    let token = cursor.take("a state space")?;
    let space = space(token.text)
        .ok_or_else(|| Refused::at(token.at, token.text, "this state space is not known"))?;
    let (mut align, mut element) = (None, None);
    while let Some(next) = cursor.peek().filter(|t| t.kind == Kind::Directive) {
        match next.text {
            ".align" => {
                cursor.take("")?;
                let value = cursor.number("an alignment")?;
                if !value.is_power_of_two() || value > 4096 {
                    return Err(Refused::at(
                        next.at,
                        format!(".align {value}"),
                        "no such alignment is possible",
                    ));
                }
                align = Some(value);
            }
            ".ptr" => {
                cursor.take("")?;
                while cursor.peek().is_some_and(|t| t.kind == Kind::Directive) {
                    if cursor.eat(".align") {
                        cursor.number("an alignment")?;
                    } else {
                        cursor.take("")?;
                    }
                }
            }
            name if element.is_none() && (bytes(name).is_some() || name == ".pred") => {
                cursor.take("")?;
                element = Some(name);
            }
            _ => return Err(cursor.refuse("such variables are not known to the fence")),
        }
    }
    let element = element.ok_or_else(|| cursor.wants("a type"))?;
    let each = bytes(element).ok_or_else(|| cursor.refuse("a variable cannot be a predicate"))?;
    loop {
        let name = cursor.word("the variable's name")?;
        if name.text.contains('.') {
            return Err(Refused::at(name.at, name.text, "a name cannot have a dot in it"));
        }
        let (mut size, mut array) = (each, false);
        while cursor.eat("[") {
            array = true;
            let count = if cursor.is("]") { 0 } else { cursor.number("a count")? };
            cursor.expect("]")?;
            size = size
                .checked_mul(count)
                .filter(|s| *s <= 1 << 40)
                .ok_or_else(|| Refused::at(name.at, name.text, "the variable is too large"))?;
        }
        let (mut initial, initialised) = (Vec::new(), cursor.eat("="));
        if initialised {
            if cursor.eat("{") {
                while !cursor.eat("}") {
                    initial.push(value(cursor)?);
                    if !cursor.eat(",") {
                        cursor.expect("}")?;
                        break;
                    }
                }
            } else {
                initial.push(value(cursor)?);
            }
        }
        into.push(Variable {
            at: name.at,
            space,
            linkage: linkage.clone(),
            name: name.text.into(),
            align,
            element,
            size,
            array,
            initial,
            initialised,
        });
        if one || !cursor.eat(",") {
            return Ok(());
        }
    }
}

/// One initial value: a number, `name`, `name+8`, `generic(name)+8`, `0xFF00(name)`.
fn value<'t>(cursor: &mut Cursor<'t>) -> Result<Initial<'t>, Refused> {
    if cursor.is("{") {
        return Err(
            cursor.refuse("initial values of several dimensions are not known to the fence: write them flat")
        );
    }
    let minus = cursor.eat("-");
    let token = cursor.take("an initial value")?;
    match token.kind {
        Kind::Number if !minus && cursor.eat("(") => {
            let mask = integer(token.text).and_then(|v| u64::try_from(v).ok());
            let mask = mask
                .ok_or_else(|| Refused::at(token.at, token.text, "no such mask of an address is possible"))?;
            let inner = address(cursor)?;
            cursor.expect(")")?;
            Ok(match inner {
                Initial::Address { at, name, offset, .. } => {
                    Initial::Address { at, name, offset, mask: Some(mask) }
                }
                number => number,
            })
        }
        Kind::Number => match literal(minus, token.text) {
            Some(number) => Ok(Initial::Number(number)),
            None => Err(Refused::at(token.at, token.text, "this is no number")),
        },
        Kind::Word if !minus => rest_of_address(cursor, token),
        _ => Err(Refused::at(token.at, token.text, "no such initial value is known to the fence")),
    }
}

fn address<'t>(cursor: &mut Cursor<'t>) -> Result<Initial<'t>, Refused> {
    let token = cursor.word("a variable's name")?;
    rest_of_address(cursor, token)
}

fn rest_of_address<'t>(
    cursor: &mut Cursor<'t>,
    token: super::lex::Token<'t>,
) -> Result<Initial<'t>, Refused> {
    let (mut at, mut name) = (token.at, token.text);
    if name == "generic" && cursor.eat("(") {
        let inner = cursor.word("a variable's name")?;
        (at, name) = (inner.at, inner.text);
        cursor.expect(")")?;
    }
    let added = if cursor.eat("+") || cursor.is("-") { offset(cursor)? } else { 0 };
    Ok(Initial::Address { at, name, offset: added, mask: None })
}
