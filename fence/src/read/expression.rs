//! Constant expressions in offsets, such as `4 * (100 - 96)`: sums, products, parentheses to a limited depth.

use super::cursor::Cursor;
use super::lex::Kind;
use crate::refused::Refused;
use crate::window::NESTING_LIMIT;

/// An expression's value modulo 2^64; addresses are sums modulo 2^64 too.
pub(super) fn offset(cursor: &mut Cursor<'_>) -> Result<i64, Refused> {
    sum(cursor, 0)
}

fn sum(cursor: &mut Cursor<'_>, depth: usize) -> Result<i64, Refused> {
    let mut value = product(cursor, depth)?;
    loop {
        if cursor.eat("+") {
            value = value.wrapping_add(product(cursor, depth)?);
        } else if cursor.eat("-") {
            value = value.wrapping_sub(product(cursor, depth)?);
        } else {
            return Ok(value);
        }
    }
}

fn product(cursor: &mut Cursor<'_>, depth: usize) -> Result<i64, Refused> {
    let mut value = factor(cursor, depth)?;
    while cursor.eat("*") {
        value = value.wrapping_mul(factor(cursor, depth)?);
    }
    Ok(value)
}

fn factor(cursor: &mut Cursor<'_>, depth: usize) -> Result<i64, Refused> {
    if depth > NESTING_LIMIT {
        return Err(cursor.refuse("too many parentheses within each other"));
    }
    if cursor.eat("(") {
        let value = sum(cursor, depth + 1)?;
        cursor.expect(")")?;
        return Ok(value);
    }
    if cursor.eat("-") {
        return Ok(factor(cursor, depth + 1)?.wrapping_neg());
    }
    match cursor.peek() {
        Some(token) if token.kind == Kind::Number => Ok(cursor.number("an offset")? as i64),
        _ => Err(cursor.wants("a constant offset")),
    }
}
