//! What is wrong with a blueprint, and where: an [`Error`] names a place of the JSON, and a [`Path`] is that place while it is
//! being visited (kept on the stack, written out on error only). [`Mistakes`] are all that a document has, which [`Notes`]
//! gather.

use std::fmt::{self, Write};

use crate::limits;
use crate::place::{self, Position};

/// A blueprint, or the sizes it is given, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{message}", if path.is_empty() { "" } else { "at " }, Place(path))]
pub struct Error {
    /// The place in the JSON, such as `blueprint.control_flow[3].ExecKernel[1][0].Ptr`; empty for
    /// the top level.
    pub path: String,
    /// What is wrong there and what was expected.
    pub message: String,
    /// The same place in the text, where that was at hand.
    pub position: Option<Position>,
}

/// A path in front of a message.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

impl Error {
    /// An error at a place of the JSON.
    pub fn new(path: impl fmt::Display, message: impl fmt::Display) -> Error {
        Error { path: printable(path), message: printable(message), position: None }
    }

    /// The same with its position in the text, where the text has such a place.
    #[must_use]
    pub fn found_in(self, json: &[u8]) -> Error {
        let position = text_of(json).ok().and_then(|text| place::locate(text, &self.path));
        Error { position: position.or(self.position), ..self }
    }
}

/// All that is wrong with one document, in the order of its text: at least one mistake, at most [`limits::MISTAKES`], and how
/// many more there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(Box<Told>);

/// Behind a pointer: results hold it as their rarest case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    first: Error,
    others: Vec<Error>,
    more: usize,
}

impl Mistakes {
    /// Adds positions in `json` to errors that were found without the text; none if there are no errors.
    pub fn found_in(errors: impl IntoIterator<Item = Error>, json: &[u8]) -> Option<Self> {
        let mut errors = errors.into_iter();
        let kept = errors.by_ref().take(limits::MISTAKES);
        let mut kept: Vec<Error> = kept.map(|error| error.found_in(json)).collect();
        kept.sort_by_key(|error| error.position.map(|at| (at.line, at.column)));
        let mut kept = kept.into_iter();
        Some(Self(Box::new(Told { first: kept.next()?, others: kept.collect(), more: errors.count() })))
    }

    /// The one that comes first in the text.
    pub fn first(&self) -> &Error {
        &self.0.first
    }

    /// Every one that is told.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        std::iter::once(&self.0.first).chain(&self.0.others)
    }

    /// How many there are besides those.
    pub fn more(&self) -> usize {
        self.0.more
    }

    /// Writes each on a line of its own, with what stands before its position, such as the name of a file and a colon.
    pub fn lines(&self, before: impl fmt::Display) -> String {
        let mut text = String::new();
        for error in self.iter() {
            let end = if text.is_empty() { "" } else { "\n" };
            // Writing to a string cannot fail.
            let _ = match error.position {
                Some(position) => write!(text, "{end}{before}{position}: {error}"),
                None => write!(text, "{end}{before} {error}"),
            };
        }
        if self.more() > 0 {
            let _ = write!(text, "\nand {} more", self.more());
        }
        text
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lines("").trim_start())
    }
}

impl std::error::Error for Mistakes {}

impl From<Error> for Mistakes {
    fn from(first: Error) -> Self {
        Self(Box::new(Told { first, others: Vec::new(), more: 0 }))
    }
}

/// Mistakes of one document, as they are found.
pub(crate) struct Notes<'j> {
    text: &'j str,
    /// With their places in the text.
    kept: Vec<(usize, Error)>,
    more: usize,
}

impl<'j> Notes<'j> {
    pub(crate) fn new(text: &'j str) -> Self {
        Self { text, kept: Vec::new(), more: 0 }
    }

    pub(crate) fn text(&self) -> &'j str {
        self.text
    }

    /// True if a mistake was found at this key of the top level, or inside its value.
    pub(crate) fn concern(&self, key: &str) -> bool {
        self.kept.iter().any(|(_, error)| error.path.split(['.', '[']).next() == Some(key))
    }

    /// Notes a mistake at a place that is not being read: it is looked for in the text.
    pub(crate) fn note(&mut self, place: &Path<'_>, message: impl fmt::Display) {
        self.add(Error::new_unless(self.is_full(), place, message));
    }

    /// Notes a mistake at a byte of the text.
    pub(crate) fn note_at(&mut self, at: usize, place: &Path<'_>, message: impl fmt::Display) {
        match Error::new_unless(self.is_full(), place, message) {
            Some(error) => self.kept.push((at, error)),
            None => self.more += 1,
        }
    }

    fn is_full(&self) -> bool {
        self.kept.len() == limits::MISTAKES
    }

    fn add(&mut self, error: Option<Error>) {
        match error {
            Some(error) => self.kept.push((place::offset(self.text, &error.path).unwrap_or(0), error)),
            None => self.more += 1,
        }
    }

    /// The mistakes in the order of the text; none if there are no mistakes.
    pub(crate) fn finish(self) -> Option<Mistakes> {
        let Self { text, mut kept, more } = self;
        kept.sort_by_key(|(at, _)| *at);
        let mut all = kept.into_iter().map(|(at, error)| {
            let position = Some(Position::of(text, at));
            Error { position, ..error }
        });
        Some(Mistakes(Box::new(Told { first: all.next()?, others: all.collect(), more })))
    }
}

impl Error {
    /// Nothing is written where it would not be kept.
    fn new_unless(full: bool, path: impl fmt::Display, message: impl fmt::Display) -> Option<Error> {
        (!full).then(|| Error::new(path, message))
    }
}

/// The text of a document; an editor's byte order mark is none of it.
pub(crate) fn text_of(json: &[u8]) -> Result<&str, Error> {
    let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
    std::str::from_utf8(json).map_err(|why| {
        if json.starts_with(b"\xff\xfe") || json.starts_with(b"\xfe\xff") {
            return Error::new("", "the text is UTF-16: save it as UTF-8");
        }
        if [&b"\0asm"[..], b"\x7fELF"].iter().any(|begins| json.starts_with(begins)) {
            return Error::new(
                "",
                "a compiled module and no configuration: `pappus module show FILE` tells what is in it",
            );
        }
        let good = &json[..why.valid_up_to()];
        let position = std::str::from_utf8(good).ok().map(|good| Position::of(good, good.len()));
        Error { position, ..Error::new("", "bytes that are no UTF-8: save the text as UTF-8") }
    })
}

/// True if a character shows nothing, or changes how those around it are shown: a name with such ones reads as another.
pub(crate) fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Marks, embeddings, overrides and isolates of direction; separators of lines; what has no width.
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// Text fit for a log line: a tenant's text may be long and may hold control characters.
fn printable(text: impl fmt::Display) -> String {
    let mut text = text.to_string();
    if text.contains(is_deceptive) {
        text = text.replace(is_deceptive, "�");
    }
    if text.len() > limits::ERROR_BYTES {
        text.truncate(text.floor_char_boundary(limits::ERROR_BYTES));
        text.push('…');
    }
    text
}

/// A place in the JSON.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    pub(crate) fn error(&self, message: impl fmt::Display) -> Error {
        Error::new(self, message)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Path::Root => Ok(()),
            Path::Key(Path::Root, key) if place::is_plain(key) => f.write_str(key),
            Path::Key(parent, key) => {
                parent.fmt(f)?;
                if place::is_plain(key) { write!(f, ".{key}") } else { write!(f, "[{key:?}]") }
            }
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
