//! The checker: accepts PTX only where every access is fenced in the canonical way of `docs/fence.md`. Isolation of strangers
//! in one GPU context rests on this module. The module shares no code and no constant with the rewriter, and refuses what no
//! rule knows. `lexer` reads lines, `rules` lists what may be said, `body` follows a function from its first line to its last.

mod body;
mod lexer;
mod rules;

use std::collections::HashMap;

use lexer::{Line, decimal};

/// Bytes of a text, at most.
const MOST_TEXT: usize = 64 << 20;

/// What was checked: kernels that a shared worker may launch.
#[derive(Debug, PartialEq, Eq)]
pub struct Checked {
    /// Names of the kernels, in the order of the text.
    pub kernels: Vec<String>,
}

/// The first place that is not fenced in the canonical way.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unfenced {
    /// A line of the text, from 1.
    pub line: usize,
    /// What stands there and may not.
    pub what: String,
}

impl Unfenced {
    fn new(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

/// Bytes and alignment of a variable or parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    bytes: u64,
    align: u64,
}

/// What a name of the module stands for. The last input of a function, the window, is not listed.
enum Symbol {
    Kernel,
    Function { results: Vec<Shape>, inputs: Vec<Shape>, shares: bool },
    Variable,
}

type Names<'a> = HashMap<&'a str, Symbol>;

/// Checks a module: the very text that goes to the driver's compiler.
///
/// # Errors
/// The first line that is unknown or not fenced.
pub fn check(text: &str) -> Result<Checked, Unfenced> {
    if text.len() > MOST_TEXT {
        return Err(Unfenced::new(1, "the text is too long"));
    }
    let lines = lexer::lines(text)?;
    let is_header = match lines.as_slice() {
        [version, target, size, ..] => {
            is_version(version.text) && is_target(target.text) && size.text == ".address_size 64"
        }
        _ => false,
    };
    if !is_header {
        return Err(Unfenced::new(1, "not `.version`, one `.target` from sm_70, `.address_size 64`"));
    }
    let (mut names, mut kernels, mut rest) = (Names::new(), Vec::new(), &lines[3..]);
    while let Some(first) = rest.first() {
        let refused = || Unfenced::new(first.number, format!("`{}` is not known here", first.text));
        let (name, symbol, length) = match global(first.text) {
            Some(name) => (name, Symbol::Variable, 1),
            None => function(rest, &names)?.ok_or_else(refused)?,
        };
        // The compiler has functions of its own, whose names begin with two underscores.
        let is_free = lexer::is_name(name) && !name.starts_with(['$', '%']) && !rules::is_taken(name);
        let is_builtin = name.starts_with("__") && !matches!(symbol, Symbol::Variable);
        kernels.extend(matches!(symbol, Symbol::Kernel).then(|| name.to_owned()));
        if !is_free || is_builtin || names.insert(name, symbol).is_some() {
            return Err(refused());
        }
        rest = &rest[length..];
    }
    Ok(Checked { kernels })
}

/// True if a version of PTX is known: 6.0 to 9.0.
fn is_version(line: &str) -> bool {
    let parts = line.strip_prefix(".version ").and_then(|version| version.split_once('.'));
    let parts = parts.map(|(major, minor)| (decimal(major), decimal(minor)));
    matches!(parts, Some((Some(6..=8), Some(0..=9)) | (Some(9), Some(0))))
}

/// True if a target is an architecture from sm_70.
fn is_target(line: &str) -> bool {
    let name = line.strip_prefix(".target sm_").unwrap_or_default();
    decimal(name.strip_suffix(['a', 'f']).unwrap_or(name)).is_some_and(|number| (70..1000).contains(&number))
}

/// `[.align N] .TYPE name[N]`: name, shape, and true if the length is left open.
fn variable(text: &str) -> Option<(&str, Shape, bool)> {
    let (align, text) = match text.strip_prefix(".align ") {
        Some(rest) => rest.split_once(' ').and_then(|(align, rest)| Some((Some(decimal(align)?), rest)))?,
        None => (None, text),
    };
    let (kind, name) = text.strip_prefix('.')?.split_once(' ')?;
    let (name, count) = name.strip_suffix(']').map_or(Some((name, "1")), |rest| rest.split_once('['))?;
    let bytes = rules::bytes(kind)?;
    let all = if count.is_empty() { 0 } else { bytes.checked_mul(decimal(count)?)? };
    Some((name, Shape { bytes: all, align: align.unwrap_or(bytes) }, count.is_empty()))
}

/// The name of a variable of the module, in constant or shared memory.
fn global(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let is_extern = line.starts_with(".extern .shared ");
    let line = line.strip_prefix(".extern ").unwrap_or(line);
    // Numbers only: a name would be an address.
    let (line, values) =
        line.split_once(" = ").filter(|_| line.starts_with(".const ")).unwrap_or((line, "0"));
    let values = lexer::inside(values, '{', '}').unwrap_or(values);
    let rest = line.strip_prefix(".shared ").or(line.strip_prefix(".const "));
    let (name, _, is_open) = variable(rest?)?;
    (is_open == is_extern && values.split(", ").all(lexer::is_number)).then_some(name)
}

/// A parameter: its name and shape.
fn parameter(text: &str) -> Option<(&str, Shape)> {
    let (name, shape, is_open) = variable(text.strip_prefix(".param ")?)?;
    (!is_open).then_some((name, shape))
}

/// A kernel or a function with its body, and how many lines both have; `None` where the head has an unknown form.
fn function<'a>(lines: &[Line<'a>], names: &Names<'a>) -> Result<Option<(&'a str, Symbol, usize)>, Unfenced> {
    let text = |at: usize| lines.get(at).map_or("", |line: &Line<'a>| line.text);
    let head = text(0).strip_prefix(".visible ").unwrap_or(text(0)).strip_suffix('(').unwrap_or_default();
    let (kind, head) = head.split_once(' ').unwrap_or_default();
    let is_kernel = kind == ".entry";
    let (result, name) = head.strip_prefix('(').and_then(|rest| rest.split_once(") ")).unwrap_or(("", head));
    let results: Vec<_> = parameter(result).into_iter().collect();
    let (mut inputs, mut at) = (Vec::new(), 1);
    while let Some(input) = text(at).strip_suffix(',').and_then(parameter) {
        inputs.push(input);
        at += 1;
    }
    let is_known =
        (is_kernel && result.is_empty()) || (kind == ".func" && result.is_empty() == results.is_empty());
    if !is_known || text(at) != rules::PARAMETER || text(at + 1) != ")" {
        return Ok(None);
    }
    at += 2;
    // Limits of the launch, which the driver enforces.
    let is_limit = |text: &str| {
        let (kind, counts) = text.split_once(' ').unwrap_or_default();
        rules::LIMITS.contains(&kind) && counts.split(", ").all(|count| decimal(count).is_some())
    };
    while is_kernel && is_limit(text(at)) {
        at += 1;
    }
    if text(at) != "{" {
        return Ok(None);
    }
    let (length, shares) = body::check(names, is_kernel, &lines[at + 1..], &results, &inputs)?;
    let shapes = |list: Vec<(&str, Shape)>| list.into_iter().map(|(_, shape)| shape).collect();
    let function = Symbol::Function { results: shapes(results), inputs: shapes(inputs), shares };
    Ok(Some((name, if is_kernel { Symbol::Kernel } else { function }, at + 1 + length)))
}
