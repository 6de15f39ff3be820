//! What PTX text is read into: a module, its variables and functions, and their statements.

use std::borrow::Cow;

use crate::refused::Position;

/// A name or a number, as the text has it or as a pass made it.
pub type Word<'t> = Cow<'t, str>;

/// A module.
#[derive(Debug, Clone)]
pub struct Module<'t> {
    /// The PTX version.
    pub version: (u32, u32),
    /// The target, such as `sm_90a`.
    pub target: &'t str,
    /// Variables outside of functions.
    pub variables: Vec<Variable<'t>>,
    /// Functions with bodies, in the order of the text.
    pub functions: Vec<Function<'t>>,
    /// Functions that are only declared.
    pub declared: Vec<Function<'t>>,
}

/// Where a variable lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
}

/// A variable of any space, a parameter too.
#[derive(Debug, Clone)]
pub struct Variable<'t> {
    /// Where it is declared.
    pub at: Position,
    /// Where it lies.
    pub space: Space,
    /// The words before the space that are kept, such as `.visible`.
    pub linkage: Vec<&'t str>,
    /// Its name.
    pub name: Word<'t>,
    /// `.align`, if it is written.
    pub align: Option<u64>,
    /// The type of one element, such as `.b8`.
    pub element: &'t str,
    /// All its bytes; zero for a variable whose size the launch decides.
    pub size: u64,
    /// True if the declaration has brackets.
    pub array: bool,
    /// Values at the beginning, one for each element.
    pub initial: Vec<Initial<'t>>,
    /// True if the declaration has initial values.
    pub initialised: bool,
}

/// One initial value.
#[derive(Debug, Clone)]
pub enum Initial<'t> {
    /// A number as written, with its sign.
    Number(Word<'t>),
    /// The address of a variable.
    Address {
        /// Where it stands.
        at: Position,
        /// The variable.
        name: &'t str,
        /// What is added.
        offset: i64,
        /// The bits that are taken, for `0xFF(x)`.
        mask: Option<u64>,
    },
}

/// An `.entry` or `.func`.
#[derive(Debug, Clone)]
pub struct Function<'t> {
    /// Where its name stands.
    pub at: Position,
    /// True if it is launched by the host.
    pub entry: bool,
    /// `.visible`, `.weak`, `.extern`.
    pub linkage: Vec<&'t str>,
    /// Its name.
    pub name: Word<'t>,
    /// What it returns.
    pub returns: Vec<Variable<'t>>,
    /// What it takes.
    pub parameters: Vec<Variable<'t>>,
    /// `.maxntid 1024, 1, 1` and the like, kept.
    pub directives: Vec<String>,
    /// Its statements.
    pub body: Vec<Statement<'t>>,
    /// True if it has a body.
    pub defined: bool,
}

/// A statement and its place.
#[derive(Debug, Clone)]
pub struct Statement<'t> {
    /// Where it begins.
    pub at: Position,
    /// What it is.
    pub kind: StatementKind<'t>,
}

/// What a statement is.
#[derive(Debug, Clone)]
pub enum StatementKind<'t> {
    /// `name:`
    Label(Word<'t>),
    /// `name: .branchtargets a, b;`
    Table(Word<'t>, Vec<Word<'t>>),
    /// `{`
    Open,
    /// `}`
    Close,
    /// `.reg .b32 %r<5>, x;`
    Registers(&'t str, Vec<(Word<'t>, Option<u64>)>),
    /// `.local`, `.shared`, `.param`
    Variable(Box<Variable<'t>>),
    /// Anything that is done.
    Instruction(Instruction<'t>),
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Instruction<'t> {
    /// The predicate before it, and whether it is negated.
    pub guard: Option<(bool, Word<'t>)>,
    /// The opcode with its modifiers, `ld.global.f32`.
    pub opcode: Word<'t>,
    /// Its operands.
    pub operands: Vec<Operand<'t>>,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'t> {
    /// A register, symbol, label or special register.
    Word(Word<'t>),
    /// `name+8`
    Sum(Word<'t>, i64),
    /// A number as written, with its sign.
    Number(Word<'t>),
    /// `!%p`
    Not(Word<'t>),
    /// `-%r`
    Minus(Word<'t>),
    /// `%p|%q`
    Pair(Word<'t>, Word<'t>),
    /// `{%r1, %r2}`
    Vector(Vec<Operand<'t>>),
    /// `[name+8]`
    Address(Word<'t>, i64),
    /// `[64]`
    Absolute(u64),
    /// `(a, b)`
    List(Vec<Operand<'t>>),
}

impl<'t> Instruction<'t> {
    /// The opcode's first part.
    pub fn name(&self) -> &str {
        self.opcode.split('.').next().unwrap_or("")
    }

    /// The opcode's other parts.
    pub fn modifiers(&self) -> impl Iterator<Item = &str> {
        self.opcode.split('.').skip(1)
    }

    /// True if the opcode has this modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers().any(|m| m == modifier)
    }
}
