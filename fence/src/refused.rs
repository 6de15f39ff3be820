//! Why a text is not fenced: the place, the kernel, the instruction, and what its author can do.

/// A place in a text, both numbers from 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in bytes.
    pub column: u32,
}

/// Why a module, or a kernel of it, cannot be fenced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}{}: `{what}`: {why}", self.place())]
pub struct Refused {
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
    /// The function that holds the place; empty outside of functions.
    pub kernel: String,
    /// The text that stands in the way: an instruction, a name.
    pub what: String,
    /// The reason, and what to do where something can be done.
    pub why: String,
}

impl Refused {
    /// A reason at a place outside of functions; [`Refused::of`] names a function.
    pub(crate) fn at(at: Position, what: impl Into<String>, why: impl Into<String>) -> Refused {
        let mut what = what.into();
        if let Some((end, _)) = what.char_indices().nth(120) {
            what.truncate(end);
            what.push('…');
        }
        Refused { line: at.line, column: at.column, kernel: String::new(), what, why: why.into() }
    }

    /// The same reason, of the function of this name.
    pub(crate) fn of(mut self, kernel: &str) -> Refused {
        self.kernel = kernel.to_owned();
        self
    }

    fn place(&self) -> String {
        if self.kernel.is_empty() { String::new() } else { format!(", in {}", self.kernel) }
    }
}
