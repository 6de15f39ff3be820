//! Text to tokens. A dotted opcode (`ld.global.v4.b32`) is one word, a directive (`.reg`) another; comments are dropped.

use super::tree::Word;
use crate::refused::{Position, Refused};
use crate::window::{NAME_LIMIT, RESERVED, TEXT_LIMIT};

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, a register, or an opcode with its modifiers.
    Word,
    /// A name behind a dot.
    Directive,
    /// Anything that begins with a digit.
    Number,
    /// A text between quotes.
    Quoted,
    /// One character.
    Mark,
}

/// A token and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'t> {
    /// What it is.
    pub(super) kind: Kind,
    /// Its bytes.
    pub(super) text: &'t str,
    /// Where it begins.
    pub(super) at: Position,
}

/// A token as it waits: texts of nothing but tokens take sixteen times their size.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    start: u32,
    line: u32,
    column: u32,
    length: u16,
    kind: Kind,
}

/// The tokens of a text.
#[derive(Debug)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    waiting: Vec<Waiting>,
}

impl<'t> Tokens<'t> {
    /// The token at a place, counted from 0.
    pub(super) fn get(&self, place: usize) -> Option<Token<'t>> {
        let token = self.waiting.get(place)?;
        let start = token.start as usize;
        let text = self.text.get(start..start + usize::from(token.length))?;
        Some(Token { kind: token.kind, text, at: Position { line: token.line, column: token.column } })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// All tokens of a text.
pub(super) fn tokens(text: &str) -> Result<Tokens<'_>, Refused> {
    if text.len() > TEXT_LIMIT {
        return Err(Refused::at(Position { line: 1, column: 1 }, "module", "the text is too long"));
    }
    let bytes = text.as_bytes();
    let mut waiting = Vec::with_capacity(text.len() / 4);
    let (mut i, mut line, mut start) = (0, 1u32, 0);
    while i < bytes.len() {
        let at = Position { line, column: (i - start + 1) as u32 };
        let byte = bytes[i];
        let end = match byte {
            b'\n' => {
                line += 1;
                i += 1;
                start = i;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                i += 1;
                continue;
            }
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                i = bytes[i..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| i + n);
                continue;
            }
            b'/' if bytes.get(i + 1) == Some(&b'*') => {
                let length = text[i + 2..].find("*/");
                let Some(length) = length else {
                    return Err(Refused::at(at, "/*", "the comment does not end"));
                };
                let end = i + 2 + length + 2;
                for (n, _) in bytes[i..end].iter().enumerate().filter(|(_, b)| **b == b'\n') {
                    line += 1;
                    start = i + n + 1;
                }
                i = end;
                continue;
            }
            b'"' => match bytes[i + 1..].iter().position(|&b| b == b'"' || b == b'\n') {
                Some(n) if bytes[i + 1 + n] == b'"' => i + n + 2,
                _ => return Err(Refused::at(at, "\"", "the quoted text does not end on its line")),
            },
            b'.' if bytes.get(i + 1).is_some_and(|b| is_name(*b)) => dotted(bytes, i + 1, false),
            b'0'..=b'9' => number(bytes, i),
            b'%' | b'$' | b'_' | b'a'..=b'z' | b'A'..=b'Z' => dotted(bytes, i + 1, true),
            b',' | b';' | b':' | b'{' | b'}' | b'[' | b']' | b'(' | b')' | b'<' | b'>' | b'+' | b'-'
            | b'!' | b'|' | b'@' | b'=' | b'*' | b'~' | b'&' | b'^' | b'?' | b'/' => i + 1,
            _ => {
                let what: String = text[i..].chars().take(1).collect();
                return Err(Refused::at(at, what, "no PTX begins so"));
            }
        };
        let kind = match byte {
            b'.' => Kind::Directive,
            b'0'..=b'9' => Kind::Number,
            b'"' => Kind::Quoted,
            b'%' | b'$' | b'_' | b'a'..=b'z' | b'A'..=b'Z' => Kind::Word,
            _ => Kind::Mark,
        };
        if end - i > NAME_LIMIT {
            return Err(Refused::at(at, "name", "the name is too long"));
        }
        let word = &text[i..end];
        if kind == Kind::Word && word.contains(RESERVED) {
            let why = "names with `pappus_` in them are the fence's own: choose another name";
            return Err(Refused::at(at, word, why));
        }
        // Lengths are at most NAME_LIMIT, places at most TEXT_LIMIT.
        let (start, length) = (i as u32, word.len() as u16);
        waiting.push(Waiting { start, line: at.line, column: at.column, length, kind });
        i = end;
    }
    Ok(Tokens { text, waiting })
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

/// Where a word ends that goes on at `i`: through `::`, and through dots if they join.
fn dotted(bytes: &[u8], mut i: usize, dots_join: bool) -> usize {
    loop {
        while bytes.get(i).is_some_and(|b| is_name(*b)) {
            i += 1;
        }
        let behind = |n: usize| bytes.get(i + n).is_some_and(|b| is_name(*b));
        match bytes.get(i) {
            Some(b'.') if dots_join && behind(1) => i += 1,
            Some(b':') if bytes.get(i + 1) == Some(&b':') && behind(2) => i += 2,
            _ => return i,
        }
    }
}

/// Where a number ends that begins at `i`; the sign of a decimal exponent belongs to the number.
fn number(bytes: &[u8], start: usize) -> usize {
    let mut i = start;
    let plain = !matches!(bytes.get(start + 1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D' | b'b' | b'B'));
    while let Some(byte) = bytes.get(i) {
        let sign = plain && matches!(byte, b'+' | b'-') && matches!(bytes[i - 1], b'e' | b'E');
        if !(byte.is_ascii_alphanumeric() || *byte == b'.' || sign) {
            break;
        }
        i += 1;
    }
    i
}

/// The value of an integer as PTX writes it: decimal, `0x`, `0b`, octal, with or without `U`.
pub fn integer(text: &str) -> Option<i128> {
    let digits = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let (digits, radix) = if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        (hex, 16)
    } else if let Some(binary) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
        (binary, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (&digits[1..], 8)
    } else {
        (digits, 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    // Digits of the radix only: no sign, no underscore.
    u64::from_str_radix(digits, radix).ok().map(i128::from)
}

/// A number in the one way that fenced text has each: decimal, `0x…`, `0f…`, `0d…`; none for what is no number.
pub(super) fn literal<'t>(minus: bool, text: &'t str) -> Option<Word<'t>> {
    let sign = if minus { "-" } else { "" };
    let all_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some(digits) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8 && all_hex(digits))?;
        return Some(format!("0f{:08X}", bits ^ (u32::from(minus) << 31)).into());
    }
    if let Some(digits) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
        let bits = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16 && all_hex(digits))?;
        return Some(format!("0d{:016X}", bits ^ (u64::from(minus) << 63)).into());
    }
    if let Some(value) = integer(text) {
        let plain =
            !text.ends_with(['U', 'u']) && (text.starts_with("0x") || !text.starts_with('0') || text == "0");
        return Some(if plain && !minus { text.into() } else { format!("{sign}{value}").into() });
    }
    let decimal = text.contains(['.', 'e', 'E'])
        && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    let value: f64 = text.parse().ok().filter(|v: &f64| decimal && v.is_finite())?;
    Some(format!("0d{:016X}", if minus { -value } else { value }.to_bits()).into())
}
