//! What is wrong with a blueprint, and where: an [`Error`] names a place of the JSON, and a
//! [`Path`] is that place while it is being visited (kept on the stack, written out on error only).

use std::fmt::{self, Write};

use crate::limits;

/// A blueprint, or the sizes it is given, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {}: {message}", if path.is_empty() { "the top level" } else { path.as_str() })]
pub struct Error {
    /// The place in the JSON, such as `blueprint.control_flow[3].ExecKernel[1][0].Ptr`; empty for
    /// the top level.
    pub path: String,
    /// What is wrong there and what was expected.
    pub message: String,
}

impl Error {
    pub(crate) fn new(path: impl fmt::Display, message: impl fmt::Display) -> Error {
        let path = printable(path);
        let message = in_place(&path, printable(message));
        Error { path, message }
    }
}

/// How what a place of the blueprint takes is written, by the first form that serde knows for it.
const WRITTEN: [(&str, &str); 3] = [
    (
        "`Sizeof`",
        r#"a size is written {"Absolute": 12}, {"Sizeof": "A"} or, in the shape of an input, {"Free": "n"}"#,
    ),
    ("`Ptr`", r#"an argument is written {"Ptr": "A"} or {"I64": 4}"#),
    ("`ExecKernel`", r#"a step is written {"ExecKernel": ["kernel", [arguments], {launch}]}, with one key"#),
];

/// Where a size, an argument or a step must be an object and is not, serde_json says "expected value", which reads as if
/// the JSON itself were broken. At the top level that is right. Where it is one of another form, or a string, the forms that
/// there are say little to who never saw one.
fn in_place(path: &str, message: String) -> String {
    if message.starts_with("unknown variant `")
        && let Some((_, forms)) = message.split_once(", expected one of ")
        && let Some((_, written)) = WRITTEN.iter().find(|(first, _)| forms.starts_with(first))
    {
        // The place in the text stands at the end.
        let (what, at) = message.rsplit_once(" at line ").unwrap_or((&message, ""));
        let line = if at.is_empty() { String::new() } else { format!(" at line {at}") };
        return format!("{what}: {written}{line}");
    }
    match message.strip_prefix("expected value") {
        Some(rest) if path.starts_with("blueprint.") => format!(
            "expected an object with one key, such as {{\"Absolute\": 1}} for a size or {{\"I64\": 4}} for an \
             argument{rest}"
        ),
        _ => message,
    }
}

/// Text fit for a log line: a tenant's text may be long and may hold control characters.
fn printable(text: impl fmt::Display) -> String {
    let mut text = text.to_string();
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, "�");
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
            Path::Key(Path::Root, key) if is_plain(key) => f.write_str(key),
            Path::Key(parent, key) => {
                parent.fmt(f)?;
                write_key(f, key)
            }
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Writes the place of a serde error the way [`Path`] does.
pub(crate) fn serde_place(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut place = String::new();
    for segment in path {
        // Writing to a string cannot fail.
        let _ = match segment {
            Segment::Seq { index } => write!(place, "[{index}]"),
            Segment::Map { key } | Segment::Enum { variant: key } => write_key(&mut place, key),
            Segment::Unknown => Ok(()),
        };
    }
    match place.strip_prefix('.') {
        Some(rest) => rest.to_owned(),
        None => place,
    }
}

/// `.key`, or `["key"]` where the key would be mistaken for something else.
fn write_key(out: &mut impl Write, key: &str) -> fmt::Result {
    if is_plain(key) { write!(out, ".{key}") } else { write!(out, "[{key:?}]") }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
