//! JSON text, read one token after the other: what is no JSON is told in words, with its place in the text. Knows nothing of
//! what the values mean. serde's readers stop at the first value of another type, and do not say where it is.

use std::borrow::Cow;

use crate::limits;

/// A position in JSON text that is being read. A copy is a mark to come back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'j> {
    text: &'j str,
    at: usize,
    /// Objects and lists that are open.
    depth: usize,
}

/// Where text is no JSON, and why.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) at: usize,
    pub(crate) why: Cow<'static, str>,
}

/// What kind of value begins at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    List,
    Text,
    Number,
    Bool,
    Null,
}

/// A key of an object, and where it stands.
pub(crate) struct Key<'j> {
    pub(crate) text: Cow<'j, str>,
    pub(crate) at: usize,
}

type Result<T> = std::result::Result<T, Broken>;

impl<'j> Cursor<'j> {
    pub(crate) fn new(text: &'j str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// Where the next token begins.
    pub(crate) fn next_at(&mut self) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.at += blank.count();
        self.at
    }

    /// The next token's first byte.
    fn peek(&mut self) -> Option<u8> {
        let at = self.next_at();
        self.text.as_bytes().get(at).copied()
    }

    /// The kind of the next value.
    pub(crate) fn kind(&mut self) -> Result<Kind> {
        Ok(match self.peek() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::List,
            Some(b'"') => Kind::Text,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            _ if self.rest().starts_with("null") => Kind::Null,
            _ if self.rest().starts_with("true") || self.rest().starts_with("false") => Kind::Bool,
            _ => return Err(self.unexpected("a value")),
        })
    }

    /// Reads `{` or `[`.
    pub(crate) fn open(&mut self) -> Result<()> {
        if self.depth == limits::JSON_DEPTH {
            let why =
                format!("one more object or list inside others, expected at most {}", limits::JSON_DEPTH);
            return Err(Broken { at: self.at, why: why.into() });
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// The next key of the object that is open, with its `:`; nothing at the object's end. `first` is true before the first.
    pub(crate) fn next_key(&mut self, first: &mut bool) -> Result<Option<Key<'j>>> {
        if !self.goes_on(b'}', "`,` or `}`", first)? {
            return Ok(None);
        }
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a key in double quotes"));
        }
        let at = self.at;
        let text = self.string()?;
        match self.peek() {
            Some(b':') => self.at += 1,
            _ => return Err(self.unexpected("`:` behind the key")),
        }
        Ok(Some(Key { text, at }))
    }

    /// True if the list that is open has another entry, which is read next.
    pub(crate) fn next_entry(&mut self, first: &mut bool) -> Result<bool> {
        self.goes_on(b']', "`,` or `]`", first)
    }

    fn goes_on(&mut self, end: u8, wanted: &str, first: &mut bool) -> Result<bool> {
        let is_first = std::mem::replace(first, false);
        match self.peek() {
            Some(byte) if byte == end => {
                self.at += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !is_first => self.at += 1,
            _ if is_first => return Ok(true),
            _ => return Err(self.unexpected(wanted)),
        }
        let comma = self.at - 1;
        match self.peek() {
            Some(byte) if byte == end => Err(Broken {
                at: comma,
                why: "a comma behind the last entry, which JSON does not have".into(),
            }),
            _ => Ok(true),
        }
    }

    /// Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end of the text")),
        }
    }

    /// Reads a text.
    pub(crate) fn string(&mut self) -> Result<Cow<'j, str>> {
        let begin = self.at + 1;
        let bytes = self.text.as_bytes();
        let mut at = begin;
        let mut unescaped = String::new();
        // Where what is not in `unescaped` yet begins.
        let mut from = begin;
        loop {
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    unescaped.push_str(&self.text[from..at]);
                    let (character, behind) = self.escape(at)?;
                    unescaped.push(character);
                    (at, from) = (behind, behind);
                }
                Some(0..0x20) => {
                    let why =
                        "a line break or another control character within a text: JSON writes it as \\n";
                    return Err(Broken { at, why: why.into() });
                }
                Some(_) => at += 1,
                None => return Err(Broken { at: self.at, why: "a text that does not end".into() }),
            }
        }
        self.at = at + 1;
        let last = &self.text[from..at];
        Ok(if from == begin { Cow::Borrowed(last) } else { Cow::Owned(unescaped + last) })
    }

    /// What an escape stands for, and where the text goes on.
    fn escape(&self, at: usize) -> Result<(char, usize)> {
        let wrong = |why: &'static str| Broken { at, why: why.into() };
        let hex = |from: usize| {
            let digits = self.text.as_bytes().get(from..from + 4)?;
            digits.iter().try_fold(0u32, |all, digit| Some(all << 4 | char::from(*digit).to_digit(16)?))
        };
        let character = match self.text.as_bytes().get(at + 1) {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(&byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                let no_digits = || wrong("an escape that is not \\u and four hexadecimal digits");
                let first = hex(at + 2).ok_or_else(no_digits)?;
                let half =
                    || wrong("an escape of half a character: JSON writes such a one as two, \\ud83c\\udf3c");
                if let Some(character) = char::from_u32(first) {
                    return Ok((character, at + 6));
                }
                let low = self.text[at + 6..].starts_with("\\u").then(|| hex(at + 8)).flatten();
                let low =
                    low.filter(|low| (0xdc00..0xe000).contains(low) && first < 0xdc00).ok_or_else(half)?;
                let both = 0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                return Ok((char::from_u32(both).ok_or_else(half)?, at + 12));
            }
            _ => return Err(wrong("an escape that JSON does not have; a backslash is written \\\\")),
        };
        Ok((character, at + 2))
    }

    /// Reads a number: as it is written, since it may be larger than any type.
    pub(crate) fn number(&mut self) -> Result<&'j str> {
        let rest = self.rest();
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (begin, mut end) = (self.at, usize::from(rest.starts_with('-')));
        let whole = digits(&rest[end..]);
        let mut well = whole > 0 && !(whole > 1 && rest[end..].starts_with('0'));
        end += whole;
        if rest[end..].starts_with('.') {
            let fraction = digits(&rest[end + 1..]);
            well &= fraction > 0;
            end += 1 + fraction;
        }
        if rest[end..].starts_with(['e', 'E']) {
            end += 1 + usize::from(rest[end + 1..].starts_with(['+', '-']));
            let exponent = digits(&rest[end..]);
            well &= exponent > 0;
            end += exponent;
        }
        let behind = rest[end..].bytes().next();
        if !well || behind.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte)) {
            let why = "a number that JSON does not have: it is written 12, -5, 0.5 or 1e-3";
            return Err(Broken { at: begin, why: why.into() });
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// Reads `true`, `false` or `null`, whose kind is known.
    pub(crate) fn word(&mut self) -> Result<&'j str> {
        let rest = self.rest();
        let end = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        match &rest[..end] {
            word @ ("true" | "false" | "null") => {
                self.at += end;
                Ok(word)
            }
            _ => Err(self.unexpected("a value")),
        }
    }

    /// Passes over a value.
    pub(crate) fn skip(&mut self) -> Result<()> {
        let mut first = true;
        match self.kind()? {
            Kind::Object => {
                self.open()?;
                while self.next_key(&mut first)?.is_some() {
                    self.skip()?;
                }
            }
            Kind::List => {
                self.open()?;
                while self.next_entry(&mut first)? {
                    self.skip()?;
                }
            }
            Kind::Text => drop(self.string()?),
            Kind::Number => drop(self.number()?),
            Kind::Bool | Kind::Null => drop(self.word()?),
        }
        Ok(())
    }

    fn rest(&self) -> &'j str {
        &self.text[self.at..]
    }

    /// Something else than what must come next.
    fn unexpected(&mut self, wanted: &str) -> Broken {
        let at = self.next_at();
        let rest = self.rest();
        let word = rest.split(|character: char| !character.is_alphanumeric() && character != '_').next();
        let why = match (rest.chars().next(), word) {
            (None, _) => format!("the text ends, expected {wanted}"),
            (Some('/' | '#'), _) => format!("expected {wanted}; JSON has no comments"),
            (Some('\''), _) => format!("expected {wanted}; JSON writes texts in double quotes"),
            (_, Some("NaN" | "Infinity" | "inf" | "nan")) => {
                format!("expected {wanted}; JSON has finite numbers only")
            }
            (_, Some("True" | "False" | "None")) => {
                format!("expected {wanted}; JSON writes `true`, `false` and `null`")
            }
            (Some(character), _) => format!("expected {wanted}, found {character:?}"),
        };
        Broken { at, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<()> {
        let mut cursor = Cursor::new(text);
        cursor.skip()?;
        cursor.end()
    }

    #[test]
    fn what_is_no_json_is_told_in_words_with_its_place() {
        for (text, at, words) in [
            ("", 0, "the text ends, expected a value"),
            (r#"{"a": 1,}"#, 7, "a comma behind the last entry"),
            ("[1 2]", 3, "expected `,` or `]`, found '2'"),
            ("[,1]", 1, "expected a value, found ','"),
            ("{a: 1}", 1, "a key in double quotes"),
            ("{'a': 1}", 1, "double quotes"),
            (r#"{"a" 1}"#, 5, "`:` behind the key"),
            ("[1] x", 4, "the end of the text"),
            ("// no", 0, "no comments"),
            ("[NaN]", 1, "finite numbers only"),
            ("[True]", 1, "`true`"),
            ("truely", 0, "a value"),
            ("[01]", 1, "a number that JSON does not have"),
            ("[1.]", 1, "a number that JSON does not have"),
            ("[-]", 1, "a number that JSON does not have"),
            ("[0x10]", 1, "a number that JSON does not have"),
            ("\"a\nb\"", 2, "a line break"),
            ("\"ab", 0, "a text that does not end"),
            (r#""\x""#, 1, "an escape that JSON does not have"),
            (r#""\u12""#, 1, "four hexadecimal digits"),
            (r#""\ud800x""#, 1, "half a character"),
        ] {
            let broken = read(text).unwrap_err();
            assert!(broken.why.contains(words), "{text}: {}", broken.why);
            assert_eq!(broken.at, at, "{text}: {}", broken.why);
        }
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        read(&deep(limits::JSON_DEPTH)).unwrap();
        assert!(read(&deep(limits::JSON_DEPTH + 1)).unwrap_err().why.contains("at most 128"));
    }

    #[test]
    fn escapes_stand_for_their_characters() {
        let text = r#""a\"\\\/\b\f\n\r\t\u00e9\ud83c\udf3cz""#;
        let found = Cursor::new(text).string().unwrap();
        assert_eq!(found, serde_json::from_str::<String>(text).unwrap());
    }

    /// Text that is nearly JSON.
    fn nearly() -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\"",
            "\"\\u00e9\"",
            "\"\\ud800\"",
            "\"",
            "\\",
            "1",
            "-0.5e-3",
            "01",
            "1.",
            "true",
            "nul",
            "null",
            " ",
            "\n",
            "é",
            "\t",
            "[1]",
            "{\"a\":1}",
        ]);
        prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn what_serde_takes_for_json_is_taken_and_nothing_else(text in nearly()) {
            let known = serde_json::from_str::<serde_json::Value>(&text);
            prop_assert_eq!(read(&text).is_ok(), known.is_ok(), "{:?}: {:?}", text, known);
        }
    }
}
