//! The tokens that are left, and the small questions about them that every part of the reader asks.

use super::lex::{Kind, Token, Tokens, integer};
use crate::refused::{Position, Refused};

/// Where the reader is.
pub(super) struct Cursor<'t> {
    tokens: Tokens<'t>,
    next: usize,
    end: Position,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(tokens: Tokens<'t>) -> Cursor<'t> {
        let last = tokens.len().checked_sub(1).and_then(|last| tokens.get(last));
        let end = last.map(|t| t.at).unwrap_or_default();
        Cursor { tokens, next: 0, end }
    }

    /// The next token.
    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next)
    }

    /// The token behind the next one.
    pub(super) fn second(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next + 1)
    }

    /// Where the next token begins.
    pub(super) fn at(&self) -> Position {
        self.peek().map_or(self.end, |t| t.at)
    }

    /// Goes back by one token.
    pub(super) fn back(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// The next token, taken.
    pub(super) fn take(&mut self, wanted: &str) -> Result<Token<'t>, Refused> {
        let token = self.peek().ok_or_else(|| self.wants(wanted))?;
        self.next += 1;
        Ok(token)
    }

    /// True if the next token has this text; it is taken then.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let is = self.is(text);
        self.next += usize::from(is);
        is
    }

    /// True if the next token has this text.
    pub(super) fn is(&self, text: &str) -> bool {
        self.peek().is_some_and(|t| t.text == text && t.kind != Kind::Quoted)
    }

    /// Takes a token with this text.
    pub(super) fn expect(&mut self, text: &str) -> Result<Position, Refused> {
        let at = self.at();
        if self.eat(text) { Ok(at) } else { Err(self.wants(&format!("`{text}`"))) }
    }

    /// Takes a name.
    pub(super) fn word(&mut self, wanted: &str) -> Result<Token<'t>, Refused> {
        match self.peek() {
            Some(token) if token.kind == Kind::Word => self.take(wanted),
            _ => Err(self.wants(wanted)),
        }
    }

    /// Takes an unsigned number.
    pub(super) fn number(&mut self, wanted: &str) -> Result<u64, Refused> {
        let value = self.peek().filter(|t| t.kind == Kind::Number).and_then(|t| integer(t.text));
        let value = value.and_then(|v| u64::try_from(v).ok()).ok_or_else(|| self.wants(wanted))?;
        self.next += 1;
        Ok(value)
    }

    /// Takes everything up to a token of this text, and that; the reason is about where the reader was.
    pub(super) fn skip_to(&mut self, text: &str) -> Result<(), Refused> {
        let reason = self.wants(&format!("`{text}` behind it"));
        while let Some(token) = self.peek() {
            self.next += 1;
            if token.text == text && token.kind == Kind::Mark {
                return Ok(());
            }
        }
        Err(reason)
    }

    /// What stands at the cursor is not what has to stand there.
    pub(super) fn wants(&self, wanted: &str) -> Refused {
        match self.peek() {
            Some(token) => Refused::at(token.at, token.text, format!("expected {wanted} here")),
            None => Refused::at(self.end, "end of text", format!("expected {wanted} before it")),
        }
    }

    /// What stands at the cursor is refused for this reason.
    pub(super) fn refuse(&self, why: &str) -> Refused {
        Refused::at(self.at(), self.peek().map_or("end of text", |t| t.text), why)
    }
}
