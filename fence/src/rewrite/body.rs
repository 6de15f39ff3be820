//! What passes hand on: a function whose scopes are flat and whose names are unique, and what the whole module knows.

use std::collections::HashMap;

use crate::read::tree::{Function, Instruction, Operand, Statement, StatementKind, Variable, Word};
use crate::read::types::bytes;
use crate::refused::{Position, Refused};
use crate::window::REASON_LIMIT;

/// A name of the whole module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// A variable in the window, at this offset.
    Global(u32),
    /// A constant.
    Const,
    /// A variable in shared memory.
    Shared,
    /// A function with a body, by its place among these.
    Function(usize),
    /// A function without one.
    Declared,
}

/// A name of a function that is no register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// A parameter of this many bytes.
    Parameter(u64),
    /// A parameter that it returns.
    Return(u64),
    /// A `.param` for a call.
    Argument(u64),
    /// A local array, by its place among these.
    Local(usize),
    /// A variable in shared memory.
    Shared,
    /// A label.
    Label,
    /// A table of labels, of this length.
    Table(usize),
}

/// A function between passes.
#[derive(Debug)]
pub(crate) struct Body<'t> {
    /// The function without its statements.
    pub(crate) function: Function<'t>,
    /// Registers as they are declared.
    pub(crate) registers: Vec<(&'t str, Word<'t>, Option<u64>)>,
    /// Types of the registers that are used.
    pub(crate) types: HashMap<Word<'t>, &'t str>,
    /// All other names.
    pub(crate) names: HashMap<Word<'t>, Name>,
    /// Local arrays.
    pub(crate) locals: Vec<Variable<'t>>,
    /// Variables in shared memory.
    pub(crate) shared: Vec<Variable<'t>>,
    /// Parameters for calls.
    pub(crate) arguments: Vec<Variable<'t>>,
    /// Its statements: labels and instructions, and tables at first.
    pub(crate) statements: Vec<Statement<'t>>,
    /// Functions that it calls.
    pub(crate) calls: Vec<usize>,
    /// True if it reaches shared memory by itself.
    pub(crate) touches_shared: bool,
    /// True if one of its branches goes backward.
    pub(crate) loops: bool,
}

impl Body<'_> {
    /// The bytes of a register, if the word is one.
    pub(crate) fn width(&self, word: &str) -> Option<u64> {
        self.types.get(word).and_then(|kind| bytes(kind))
    }

    /// True if the word is a register.
    pub(crate) fn is_register(&self, word: &str) -> bool {
        self.types.contains_key(word)
    }
}

/// What all functions of a module know.
#[derive(Debug, Default)]
pub(crate) struct Symbols<'t> {
    /// Names outside of functions, as they are from now on.
    pub(crate) names: HashMap<Word<'t>, Symbol>,
    /// What each name of the source is called from now on.
    pub(crate) new: HashMap<Word<'t>, Word<'t>>,
}

/// Reasons that were found.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    /// In the order they were found.
    pub(crate) list: Vec<Refused>,
}

impl Reasons {
    /// Adds a reason.
    pub(crate) fn push(&mut self, refused: Refused) {
        if self.list.len() < REASON_LIMIT {
            self.list.push(refused);
        }
    }
}

/// A word for an operand.
pub(crate) fn word<'t>(text: impl Into<Word<'t>>) -> Operand<'t> {
    Operand::Word(text.into())
}

/// A number for an operand.
pub(crate) fn number<'t>(value: impl std::fmt::Display) -> Operand<'t> {
    Operand::Number(value.to_string().into())
}

/// A statement that a pass adds, without a guard.
pub(crate) fn made<'t>(
    at: Position,
    opcode: &'static str,
    operands: impl IntoIterator<Item = Operand<'t>>,
) -> Statement<'t> {
    let operands = operands.into_iter().collect();
    Statement {
        at,
        kind: StatementKind::Instruction(Instruction { guard: None, opcode: opcode.into(), operands }),
    }
}
