//! Where a place of the JSON, as an error names it, is in the text. Errors name few places: each is looked for in the whole
//! text again, and nothing is kept of it otherwise.

use std::fmt;

use crate::cursor::{Cursor, Kind};

/// A line and a column of a text, both from 1; a column is a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

impl Position {
    /// Where a byte of a text is.
    pub(crate) fn of(text: &str, at: usize) -> Position {
        let before = &text[..text.floor_char_boundary(at)];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Position { line, column }
    }
}

/// `7:12`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The position of a place that an error names; of the innermost value around it where it is not there. Nothing where the
/// place is none of this text.
pub(crate) fn locate(text: &str, path: &str) -> Option<Position> {
    offset(text, path).map(|at| Position::of(text, at))
}

/// The same as a byte of the text.
pub(crate) fn offset(text: &str, path: &str) -> Option<usize> {
    let mut cursor = Cursor::new(text);
    let mut at = cursor.next_at();
    let mut rest = path;
    let mut depth = 0;
    while !rest.is_empty() {
        // What is no JSON from here on does not matter: the place is before it, or not there.
        let Some((value, behind)) = step(cursor, rest, depth == 0) else {
            return (depth > 0).then_some(at);
        };
        (cursor, rest) = (value, behind);
        at = cursor.next_at();
        depth += 1;
    }
    Some(at)
}

/// The part of a value that a path begins with, and what is left of the path. Of keys that come twice it is the last.
fn step<'j, 'p>(mut cursor: Cursor<'j>, path: &'p str, is_root: bool) -> Option<(Cursor<'j>, &'p str)> {
    let mut first = true;
    let mut found = None;
    match cursor.kind().ok()? {
        Kind::Object => {
            cursor.open().ok()?;
            while let Ok(Some(key)) = cursor.next_key(&mut first) {
                if let Some(rest) = behind_key(path, &key.text, is_root) {
                    found = Some((cursor, rest));
                }
                if cursor.skip().is_err() {
                    break;
                }
            }
        }
        Kind::List => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            let mut left: usize = index.parse().ok()?;
            cursor.open().ok()?;
            while let Ok(true) = cursor.next_entry(&mut first) {
                if left == 0 {
                    return Some((cursor, rest));
                }
                left -= 1;
                cursor.skip().ok()?;
            }
        }
        _ => {}
    }
    found
}

/// What follows a key at the beginning of a path, if it is this key.
fn behind_key<'p>(path: &'p str, key: &str, is_root: bool) -> Option<&'p str> {
    let rest = if !is_plain(key) {
        path.strip_prefix("[\"").and(path.strip_prefix(&format!("[{key:?}]")))
    } else if is_root {
        path.strip_prefix(key)
    } else {
        path.strip_prefix('.')?.strip_prefix(key)
    };
    rest.filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// True if a key stands in a path as it is; another would be mistaken for something else.
pub(crate) fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Path;

    #[test]
    fn places_are_found_in_the_text() {
        let text =
            "{ \"a\": [1, {\"b\": 2}],\n  \"é.x\": 3, \"c\": {\"d\":\n4, \"d\": 5, \"dd\": 6}, \"broken\": ?";
        let at = |path: &str| locate(text, path).map(|found| (found.line, found.column));
        for (path, position) in [
            ("", (1, 1)),
            ("a", (1, 8)),
            ("a[0]", (1, 9)),
            ("a[1].b", (1, 18)),
            ("[\"é.x\"]", (2, 10)),
            // The last of two.
            ("c.d", (3, 9)),
            ("c.dd", (3, 18)),
            // The value around what is not there.
            ("a[7]", (1, 8)),
            ("a[1].b.c", (1, 18)),
            ("a[1].missing", (1, 12)),
        ] {
            assert_eq!(at(path), Some(position), "{path}");
        }
        for elsewhere in ["module m", "b", "[0]", "the free dimensions"] {
            assert_eq!(at(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn every_value_of_a_document_is_found_by_the_path_it_is_visited_by() {
        fn visit(mut cursor: Cursor<'_>, place: &Path<'_>, found: &mut Vec<(String, usize)>) -> Option<()> {
            found.push((place.to_string(), cursor.next_at()));
            let mut first = true;
            match cursor.kind().ok()? {
                Kind::Object => {
                    cursor.open().ok()?;
                    while let Some(key) = cursor.next_key(&mut first).ok()? {
                        visit(cursor, &place.key(&key.text), found)?;
                        cursor.skip().ok()?;
                    }
                }
                Kind::List => {
                    cursor.open().ok()?;
                    for index in 0.. {
                        if !cursor.next_entry(&mut first).ok()? {
                            break;
                        }
                        visit(cursor, &place.index(index), found)?;
                        cursor.skip().ok()?;
                    }
                }
                _ => {}
            }
            Some(())
        }
        let text = r#"{"blueprint": {"buffers": {"a.b": [1, [2, {}]], "\u202e\"": {"]": 3, "": null}}}, "[0]": [[]]}"#;
        let mut found = Vec::new();
        visit(Cursor::new(text), &Path::Root, &mut found).unwrap();
        assert_eq!(found.len(), 13);
        for (path, at) in found {
            assert_eq!(offset(text, &path), Some(at), "{path}");
        }
    }
}
