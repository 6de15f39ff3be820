//! Writing a document: what `read` reads, as JSON text without blanks. What could not be read is left out, so only documents
//! without mistakes are written whole.

use std::fmt::Write as _;

use smol_str::SmolStr;

use crate::read::{List, Map};

/// A type of the format that can be written.
pub(crate) trait Write {
    /// Appends the value to the text.
    fn write(&self, out: &mut String);
}

/// Appends a text in double quotes.
pub(crate) fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Appends a key and its value, behind a comma unless the object was opened just before.
pub(crate) fn field(key: &str, value: &(impl Write + ?Sized), out: &mut String) {
    if !out.ends_with('{') {
        out.push(',');
    }
    quoted(key, out);
    out.push(':');
    value.write(out);
}

/// Appends a list.
pub(crate) fn list<'v, T: Write + 'v>(values: impl IntoIterator<Item = &'v T>, out: &mut String) {
    out.push('[');
    for (at, value) in values.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        value.write(out);
    }
    out.push(']');
}

/// Appends a list of values of several types.
pub(crate) fn entries(values: &[&dyn Write], out: &mut String) {
    for (at, value) in values.iter().enumerate() {
        out.push(if at == 0 { '[' } else { ',' });
        value.write(out);
    }
    out.push(']');
}

/// Appends the word that stands for a value.
pub(crate) fn word<T: PartialEq>(value: &T, all: &[(&str, T)], out: &mut String) {
    let name = all.iter().find(|(_, other)| other == value).map_or("", |(name, _)| name);
    quoted(name, out);
}

impl Write for String {
    fn write(&self, out: &mut String) {
        quoted(self, out);
    }
}

impl Write for SmolStr {
    fn write(&self, out: &mut String) {
        quoted(self, out);
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Write for $type {
            fn write(&self, out: &mut String) {
                // Writing to a string cannot fail.
                let _ = write!(out, "{self}");
            }
        })*
    };
}

// As short as can be, and read as the same value again.
numbers!(u8, u32, u64, i64, i128, bool);

impl Write for f64 {
    fn write(&self, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{self:e}");
    }
}

impl<T: Write> Write for Box<T> {
    fn write(&self, out: &mut String) {
        (**self).write(out);
    }
}

impl<T: Write> Write for Vec<T> {
    fn write(&self, out: &mut String) {
        list(self, out);
    }
}

impl<T: Write> Write for (T, T) {
    fn write(&self, out: &mut String) {
        list([&self.0, &self.1], out);
    }
}

impl<T: Write, const MOST: usize> Write for List<T, MOST> {
    fn write(&self, out: &mut String) {
        list(self.0.iter().flatten(), out);
    }
}

impl<V: Write> Write for Map<V> {
    fn write(&self, out: &mut String) {
        out.push('{');
        self.0.iter().for_each(|(key, value)| {
            if let Some(value) = value {
                field(key, value, out);
            }
        });
        out.push('}');
    }
}
